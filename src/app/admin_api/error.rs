//! The errors of the admin API, and the one table from error to response.

use std::io;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::Full;

use super::endpoint::{PATHS, PathError};
use crate::app::overrides::OverrideError;
use crate::app::shared_bans::StandingBanError;
use crate::problem::Problem;
use crate::rules::{BannedError, IdError};
use crate::store::StoreError;

/// Why the admin API refuses a request.
#[derive(Debug)]
pub(super) enum ApiError {
    /// It does not show the token.
    Unauthorised,
    /// Wrong tokens from its address kept it waiting for too long.
    TooManyGuesses,
    /// It may not do that, for this reason.
    Forbidden(String),
    /// There is nothing at its path.
    NoSuchPath,
    /// Its path is not UTF-8.
    NotUtf8,
    /// Its method is not allowed; these are.
    Method(&'static str),
    /// No route uses such a limit; a similar name may be meant.
    NoSuchLimit { name: String, help: Option<String> },
    /// There is no such ban; a similar name may be meant.
    NoSuchBan { name: String, help: Option<String> },
    /// The limit or ban has no such subject.
    Subject(IdError),
    /// The ban has neither such a subject nor such a network.
    Banned(BannedError),
    /// This limit only counts subjects with an override, which this one has not.
    NotCounted(String),
    /// The limit is on requests in flight, which have nothing to refund.
    InFlight(String),
    /// The body does not have the form of this example.
    Body { form: &'static str, cause: String },
    /// There is a query, in place of a body such as this example.
    Query { form: &'static str },
    /// This query parameter is unknown, or has an unknown value; these are known.
    Parameter { pair: String, known: &'static str },
    /// As many clients watch as may.
    TooManyWatchers(usize),
    /// An override is not changed.
    Override(OverrideError),
    /// There are too many standing bans.
    StandingBan(StandingBanError),
    /// The store gave no answer.
    Store(StoreError),
    /// The store gave no answer when a part was done.
    Partly(StoreError),
    /// The store cannot be connected to.
    System(io::Error),
}

impl From<IdError> for ApiError {
    fn from(cause: IdError) -> Self {
        Self::Subject(cause)
    }
}

impl From<OverrideError> for ApiError {
    fn from(cause: OverrideError) -> Self {
        Self::Override(cause)
    }
}

impl From<BannedError> for ApiError {
    fn from(cause: BannedError) -> Self {
        Self::Banned(cause)
    }
}

impl From<PathError> for ApiError {
    fn from(cause: PathError) -> Self {
        match cause {
            PathError::Unknown => Self::NoSuchPath,
            PathError::NotUtf8 => Self::NotUtf8,
        }
    }
}

impl From<StandingBanError> for ApiError {
    fn from(cause: StandingBanError) -> Self {
        match cause {
            StandingBanError::Store(cause) => Self::Store(cause),
            cause => Self::StandingBan(cause),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

impl ApiError {
    /// An unknown query parameter, or one of an unknown value.
    pub(super) fn parameter(pair: &str, known: &'static str) -> Self {
        let pair = pair.to_owned();
        Self::Parameter { pair, known }
    }

    /// The same error, when a part of what was asked is done already.
    pub(super) fn after_a_part(self) -> Self {
        match self {
            Self::Store(cause) => Self::Partly(cause),
            error => error,
        }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Problem::new(self.status(), self.detail()).into_response();
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, value)) = self.field() {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Unauthorised => StatusCode::UNAUTHORIZED,
            Self::TooManyGuesses => StatusCode::TOO_MANY_REQUESTS,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NoSuchPath
            | Self::NoSuchLimit { .. }
            | Self::NoSuchBan { .. }
            | Self::NotCounted(_) => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Subject(_)
            | Self::Banned(_)
            | Self::Body { .. }
            | Self::Query { .. }
            | Self::Parameter { .. }
            | Self::NotUtf8 => StatusCode::BAD_REQUEST,
            Self::InFlight(_) | Self::StandingBan(_) | Self::Override(OverrideError::Full) => {
                StatusCode::CONFLICT
            }
            Self::Override(OverrideError::Refused(_) | OverrideError::TooLong(_)) => {
                StatusCode::BAD_REQUEST
            }
            Self::Override(OverrideError::Unknown(..)) => StatusCode::NOT_FOUND,
            Self::Override(OverrideError::Storage(error)) if error.is_of_file() => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Override(_) | Self::Store(_) | Self::Partly(_) | Self::TooManyWatchers(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::System(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::Unauthorised => "Show the token: Authorization: Bearer TOKEN.".to_owned(),
            Self::TooManyGuesses => {
                "Wrong tokens come from this address; try again when they do no more.".to_owned()
            }
            Self::Forbidden(why) => why.clone(),
            Self::NoSuchPath => {
                let paths = PATHS.map(|path| path.template).join(", ");
                format!("There are {paths} here; a `/` in a parameter is written %2F.")
            }
            Self::NotUtf8 => "The path is not UTF-8; write names and ids in UTF-8, and a byte \
                              beyond ASCII as %XX."
                .to_owned(),
            Self::Method(allowed) => format!("Only {allowed} can be used here."),
            Self::NoSuchLimit { name, help } => {
                let help = help.as_deref().unwrap_or("there are none");
                format!("No route uses a limit \"{name}\"; {help}")
            }
            Self::NoSuchBan { name, help } => {
                let help = help.as_deref().unwrap_or("there are none");
                format!("There is no ban \"{name}\"; {help}")
            }
            Self::Subject(cause) => cause.to_string(),
            Self::Banned(cause) => cause.to_string(),
            Self::NotCounted(name) => {
                format!("\"{name}\" applies only to subjects with an override; this one has none.")
            }
            Self::InFlight(name) => format!(
                "A place of \"{name}\" comes back when its request ends; DELETE frees all places."
            ),
            Self::Body { form, cause } => format!("The body must be such as {form}: {cause}"),
            Self::Query { form } => {
                format!("Query parameters are not supported here; send a JSON body such as {form}.")
            }
            Self::Parameter { pair, known } => {
                format!("{pair:?} is not a parameter here; {known}.")
            }
            Self::TooManyWatchers(most) => {
                format!("{most} clients watch already; close one of them, or try again later.")
            }
            Self::Override(OverrideError::Storage(error)) if !error.is_of_file() => {
                format!("{error}; look whether the override is there")
            }
            Self::Override(cause) => cause.to_string(),
            Self::StandingBan(cause) => cause.to_string(),
            Self::Partly(cause) => {
                format!("{cause}; a part of this was done before, so ask for it again")
            }
            Self::Store(cause) if cause.is_out_of_reach() => {
                format!("{cause}; nothing was changed there")
            }
            Self::Store(cause) => format!("{cause}; look at the bucket to see what became of it"),
            Self::System(cause) => format!("the system refuses what it takes: {cause}"),
        }
    }

    fn field(&self) -> Option<(HeaderName, &'static str)> {
        match self {
            Self::Unauthorised => Some((WWW_AUTHENTICATE, "Bearer realm=\"weir\"")),
            Self::Method(allowed) => Some((ALLOW, allowed)),
            Self::Store(_)
            | Self::Partly(_)
            | Self::TooManyGuesses
            | Self::TooManyWatchers(_)
            | Self::Override(OverrideError::Late) => Some((RETRY_AFTER, "1")),
            Self::Override(OverrideError::Storage(error)) if !error.is_of_file() => {
                Some((RETRY_AFTER, "1"))
            }
            _ => None,
        }
    }
}
