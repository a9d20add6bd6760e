//! Why a list is not changed.

use thiserror::Error;
use weir_store::StoreError;
use weir_telemetry::events::Chain;

use super::file::FileError;

/// Why an entry is not set or deleted.
#[derive(Debug, Error)]
pub(in crate::app) enum ListError {
    /// It does not fit the configuration, for these reasons.
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
    /// There are too many.
    #[error("{0}")]
    Full(String),
    #[error(transparent)]
    File(Box<FileError>),
    #[error("{}", Chain(.0))]
    Store(StoreError),
    /// The gateway does not get to it in time, or ends.
    #[error("the gateway was too busy, or ends; look whether the {0} is there")]
    Late(&'static str),
}

impl From<StoreError> for ListError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Failed(cause) => match cause.downcast() {
                Ok(error) => Self::File(error),
                Err(cause) => Self::Store(StoreError::Failed(cause)),
            },
            error => Self::Store(error),
        }
    }
}
