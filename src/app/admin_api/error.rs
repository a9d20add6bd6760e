//! The errors of the admin API, and the one table from error to response. Those of an endpoint are its
//! own: each is a [`ResponseError`].

use std::io;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::Full;
use thiserror::Error;
use weir_console::query::RefusedParameter;
use weir_http::problem::Problem;
use weir_store::StoreError;

use super::all_paths;
use crate::app::shared_list::ListError;

/// Why an endpoint refuses a request, in the words of the response's `detail`.
pub(in crate::app) trait ResponseError: std::error::Error + Send {
    fn status(&self) -> StatusCode;
}

/// Why the admin API refuses a request, in the words of the response's `detail`.
#[derive(Debug, Error)]
pub(in crate::app) enum ApiError {
    #[error("Show the token: Authorization: Bearer TOKEN.")]
    Unauthorised,
    #[error("Wrong tokens come from this address; try again when they do no more.")]
    TooManyGuesses,
    #[error("{0}")]
    Forbidden(String),
    #[error("There are {} here; a `/` in a parameter is written %2F.", all_paths())]
    NoSuchPath,
    #[error(
        "The dashboard is off. To have it here, write `admin: {{address: ADDRESS, dashboard: true}}` in \
         gateway.yaml. There are {} here.",
        all_paths()
    )]
    NoDashboard,
    #[error("The path is not UTF-8; write names and ids in UTF-8, and a byte beyond ASCII as %XX.")]
    NotUtf8,
    /// The methods that are allowed.
    #[error("Only {0} can be used here.")]
    Method(&'static str),
    /// `form` is an example of the body.
    #[error("The body must be such as {form}: {cause}")]
    Body { form: &'static str, cause: String },
    #[error("Query parameters are not supported here; send a JSON body such as {form}.")]
    Query { form: &'static str },
    /// The parameter is unknown, or has an unknown value; `known` has those that are known.
    #[error("{pair:?} is not a parameter here; {known}.")]
    Parameter { pair: String, known: &'static str },
    #[error("{0} clients watch already; close one of them, or try again later.")]
    TooManyWatchers(usize),
    #[error("{error}{}", list_advice(.0), error = .0)]
    List(#[from] ListError),
    #[error("{error}; {}", advice(.0), error = .0)]
    Store(#[from] StoreError),
    /// The store failed after a part of the request was carried out.
    #[error("{0}; a part of this was done before, so ask for it again")]
    Partly(StoreError),
    /// The store cannot be connected to.
    #[error("the system refuses what it takes: {0}")]
    System(io::Error),
    #[error("{0}")]
    Refused(Box<dyn ResponseError>),
}

fn advice(error: &StoreError) -> &'static str {
    match error.is_out_of_reach() {
        true => "nothing was changed there",
        false => "look at the bucket to see what became of it",
    }
}

fn list_advice(error: &ListError) -> &'static str {
    match has_no_reply(error) {
        true => "; look whether the override is there",
        false => "",
    }
}

/// Whether it is unknown if the store has made the change of an override.
fn has_no_reply(error: &ListError) -> bool {
    matches!(error, ListError::Store(_))
}

impl<E: ResponseError + 'static> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self::Refused(Box::new(error))
    }
}

impl From<RefusedParameter> for ApiError {
    fn from(RefusedParameter { pair, known }: RefusedParameter) -> Self {
        Self::Parameter { pair, known }
    }
}

impl ApiError {
    /// An unknown query parameter, or one of an unknown value.
    pub(in crate::app) fn parameter(pair: &str, known: &'static str) -> Self {
        let pair = pair.to_owned();
        Self::Parameter { pair, known }
    }

    /// Whether the store can only not be asked.
    pub(in crate::app) fn is_out_of_reach(&self) -> bool {
        match self {
            Self::Store(cause) | Self::Partly(cause) => cause.is_out_of_reach(),
            _ => false,
        }
    }

    /// Adds that a part of the request was carried out.
    pub(in crate::app) fn after_a_part(self) -> Self {
        match self {
            Self::Store(cause) => Self::Partly(cause),
            error => error,
        }
    }

    pub(in crate::app) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Problem::new(self.status(), self.to_string()).into_response();
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
            Self::NoSuchPath | Self::NoDashboard => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Body { .. } | Self::Query { .. } | Self::Parameter { .. } | Self::NotUtf8 => {
                StatusCode::BAD_REQUEST
            }
            Self::List(ListError::Full(_)) => StatusCode::CONFLICT,
            Self::List(ListError::Refused(_)) => StatusCode::BAD_REQUEST,
            Self::List(ListError::File(_)) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::List(_) | Self::Store(_) | Self::Partly(_) | Self::TooManyWatchers(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::System(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Refused(error) => error.status(),
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
            | Self::List(ListError::Late(_)) => Some((RETRY_AFTER, "1")),
            Self::List(error) if has_no_reply(error) => Some((RETRY_AFTER, "1")),
            _ => None,
        }
    }
}
