//! What becomes of a request that a limit denies.

#[cfg(feature = "config")]
mod config;

use std::sync::Arc;

use http::StatusCode;
use weir_telemetry::Disposition;

use crate::Rejection;
use crate::decoy::Shadow;
#[cfg(feature = "config")]
pub use config::OnDeniedKeys;

/// What a denied request gets.
#[derive(Clone, Debug)]
pub enum OnDenied {
    /// An honest answer.
    Reject(Rejection),
    /// An invented one.
    Shadow(Arc<Shadow>),
}

impl OnDenied {
    /// The honest answer, if it is one.
    pub const fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Reject(rejection) => Some(rejection),
            Self::Shadow(_) => None,
        }
    }

    /// What makes the answer, if it is an invented one.
    pub(crate) const fn decoy(&self) -> Option<&Arc<Shadow>> {
        match self {
            Self::Reject(_) => None,
            Self::Shadow(shadow) => Some(shadow),
        }
    }

    /// Whether the client is to take it for an answer of the app.
    pub const fn looks_real(&self) -> bool {
        matches!(self, Self::Shadow(_))
    }

    /// What it is called in the log and in metrics.
    pub(super) const fn disposition(&self) -> Disposition {
        match self {
            Self::Reject(_) => Disposition::Denied,
            Self::Shadow(_) => Disposition::Shadowed,
        }
    }

    /// The status of an honest answer.
    pub(super) fn status(&self) -> StatusCode {
        let rejection = self.rejection();
        rejection.map_or(Rejection::default().status, |rejection| rejection.status)
    }
}

impl Default for OnDenied {
    fn default() -> Self {
        Self::Reject(Rejection::default())
    }
}
