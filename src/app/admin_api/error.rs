//! The errors of the admin API, and the one table from error to response.

use std::io;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::Full;
use thiserror::Error;
use weir_console::query::RefusedParameter;
use weir_http::problem::Problem;
use weir_rules::{BannedError, IdError};
use weir_store::StoreError;

use super::endpoint::{PATHS, PathError};
use crate::app::shared_list::ListError;

/// Why the admin API refuses a request, in the words of the response's `detail`.
#[derive(Debug, Error)]
pub(super) enum ApiError {
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
    /// `help` names a similar limit that may be meant.
    #[error("No route uses a limit \"{name}\"; {}", help.as_deref().unwrap_or(NO_OTHERS))]
    NoSuchLimit { name: String, help: Option<String> },
    #[error("There is no ban \"{name}\"; {}", help.as_deref().unwrap_or(NO_BANS))]
    NoSuchBan { name: String, help: Option<String> },
    /// The limit or ban has no such subject.
    #[error(transparent)]
    Subject(#[from] IdError),
    /// The ban has neither such a subject nor such a network.
    #[error(transparent)]
    Banned(#[from] BannedError),
    /// The subject has no ban of its own any more, and is in a network that is banned.
    #[error(
        "{subject} is still banned, as it is in {network}: to let all of that in, lift the ban of \
         {network} (`weir ban lift {ban} {network}`)"
    )]
    StillBanned {
        ban: String,
        subject: String,
        network: String,
    },
    #[error("\"{0}\" applies only to subjects with an override; this one has none.")]
    NotCounted(String),
    #[error("A place of \"{0}\" comes back when its request ends; DELETE frees all places.")]
    InFlight(String),
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
    #[error(
        "the admin API has set no override of \"{limit}\" for {id:?}; `weir override list` shows \
         those that there are, and those of files are changed in their files"
    )]
    NoSuchOverride { limit: String, id: String },
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
}

const NO_OTHERS: &str = "there are none";

const NO_BANS: &str = "gateway.yaml has none, and a ban by hand needs one for its name and treatment: \
    `bans: {abusers: {per: address, for: 1h}}`";

fn all_paths() -> String {
    PATHS.map(|path| path.template).join(", ")
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

impl From<PathError> for ApiError {
    fn from(cause: PathError) -> Self {
        match cause {
            PathError::Unknown => Self::NoSuchPath,
            PathError::NotUtf8 => Self::NotUtf8,
        }
    }
}

impl From<RefusedParameter> for ApiError {
    fn from(RefusedParameter { pair, known }: RefusedParameter) -> Self {
        Self::Parameter { pair, known }
    }
}

impl ApiError {
    /// Standing bans cannot be read or changed. They are in the store, as the buckets of bans are.
    pub(super) fn from_standing_bans(cause: ListError) -> Self {
        match cause {
            ListError::Store(cause) => Self::Store(cause),
            cause => Self::List(cause),
        }
    }

    /// An unknown query parameter, or one of an unknown value.
    pub(super) fn parameter(pair: &str, known: &'static str) -> Self {
        let pair = pair.to_owned();
        Self::Parameter { pair, known }
    }

    /// Whether the store can only not be asked.
    pub(super) fn is_out_of_reach(&self) -> bool {
        match self {
            Self::Store(cause) | Self::Partly(cause) => cause.is_out_of_reach(),
            _ => false,
        }
    }

    /// Adds that a part of the request was carried out.
    pub(super) fn after_a_part(self) -> Self {
        match self {
            Self::Store(cause) => Self::Partly(cause),
            error => error,
        }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
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
            Self::NoSuchPath
            | Self::NoDashboard
            | Self::NoSuchLimit { .. }
            | Self::NoSuchBan { .. }
            | Self::NoSuchOverride { .. }
            | Self::NotCounted(_) => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Subject(_)
            | Self::Banned(_)
            | Self::Body { .. }
            | Self::Query { .. }
            | Self::Parameter { .. }
            | Self::NotUtf8 => StatusCode::BAD_REQUEST,
            Self::InFlight(_) | Self::StillBanned { .. } | Self::List(ListError::Full(_)) => {
                StatusCode::CONFLICT
            }
            Self::List(ListError::Refused(_)) => StatusCode::BAD_REQUEST,
            Self::List(ListError::File(_)) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::List(_) | Self::Store(_) | Self::Partly(_) | Self::TooManyWatchers(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::System(_) => StatusCode::INTERNAL_SERVER_ERROR,
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
