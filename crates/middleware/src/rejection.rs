//! Rejections: the honest responses to requests that are not let through.

use std::fmt;
use std::mem;
use std::ops::RangeInclusive;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use weir_http::problem::{self, CustomResponse, PROBLEM_JSON, Problem, ProblemResponse};
use weir_http::request::{HttpRequest, give_back};
use weir_limit::time::Nanos;
use weir_rules::KeySource;

use super::header_text::{Fields, integer};
use super::{RequestContext, ResponseBody};

/// When to try again: from a second on the circuit breaker has asked a store anew that has failed,
/// and a password may have been verified. Nobody knows whether it has helped, so some clients find
/// out first: all at once would make what has failed fail again.
const RETRY_SECS: RangeInclusive<u64> = 1..=5;

/// An honest response to a denied request; by default 429 with a problem document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The status.
    pub status: StatusCode,
    /// Headers to set, over those that Weir sets itself.
    pub headers: HeaderMap,
    /// The body; none for a problem document that names the violated limits.
    pub body: Option<Bytes>,
}

impl Default for Rejection {
    fn default() -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            headers: HeaderMap::new(),
            body: None,
        }
    }
}

/// Says what clients get, such as `429 Too Many Requests with a problem document`.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = match self.body {
            Some(_) => "the configured body",
            None => "a problem document",
        };
        write!(f, "{} with {body}", self.status)
    }
}

impl Rejection {
    /// The status of the response to a request that would pass after `retry_in`.
    ///
    /// 429 and 503 ask clients to come again, and without a `Retry-After` many do so at once.
    /// Where no wait would help, 403 takes their place: it asks a client not to repeat the request
    /// (RFC 9110, section 15.5.4), and no client that retries takes it for a reason to. Several
    /// retry 413.
    pub fn status_after(&self, retry_in: Nanos) -> StatusCode {
        let asks_again = matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        match asks_again && retry_in == Nanos::NEVER {
            true => StatusCode::FORBIDDEN,
            false => self.status,
        }
    }
}

/// In a response's extensions: its status is not the configured one, as no wait would help.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinalDenial;

/// A response without anything in it.
pub(super) struct EmptyResponse {
    response: Response<()>,
    /// Whether its header fields may be lines.
    takes_lines: bool,
}

impl EmptyResponse {
    pub(super) fn takes_lines(&self) -> bool {
        self.takes_lines
    }

    /// The same response with a problem document that has these header lines.
    #[inline]
    pub(super) fn into_problem<B>(
        self,
        status: StatusCode,
        document: Bytes,
        lines: ProblemResponse,
    ) -> Response<ResponseBody<B>> {
        let mut response = self.response.map(|()| ResponseBody::full(document));
        *response.status_mut() = status;
        response.extensions_mut().insert(lines);
        response
    }
}

/// An empty response in the memory of a request that goes no further. A flood of requests that are
/// denied then takes no memory for the headers of their responses.
pub(super) fn in_memory_of(request: impl HttpRequest) -> EmptyResponse {
    let mut head = request.into_boxed().head;
    let takes_lines = RequestContext::takes_lines(&head.extensions);
    let mut response = Response::new(());
    mem::swap(response.headers_mut(), &mut head.headers);
    response.headers_mut().clear();
    mem::swap(response.extensions_mut(), &mut head.extensions);
    response.extensions_mut().clear();
    give_back(head);
    EmptyResponse {
        response,
        takes_lines,
    }
}

/// An honest response with this status to a request that would pass after `retry_in`. It begins as
/// an `empty` one.
pub(super) fn reject<B>(
    empty: EmptyResponse,
    rejection: &Rejection,
    status: StatusCode,
    document: Bytes,
    retry_in: Nanos,
) -> Response<ResponseBody<B>> {
    let EmptyResponse {
        response,
        takes_lines,
    } = empty;
    let body = rejection.body.clone();
    let mut response = response.map(|()| ResponseBody::full(body.unwrap_or(document)));
    *response.status_mut() = status;
    let is_problem = rejection.body.is_none();
    let mut problem = ProblemResponse::default();
    let mut fields = match takes_lines && is_problem && rejection.headers.is_empty() {
        true => {
            problem = ProblemResponse::with_lines();
            Fields::Lines(&mut problem.lines)
        }
        false => Fields::Map(response.headers_mut()),
    };
    if is_problem {
        fields.append(&CONTENT_TYPE, &PROBLEM_JSON);
    }
    if let Some(seconds) = retry_after(retry_in) {
        fields.append_integer(&RETRY_AFTER, seconds);
    }
    if status != rejection.status {
        response.extensions_mut().insert(FinalDenial);
    }
    for (name, value) in &rejection.headers {
        response.headers_mut().insert(name, value.clone());
    }
    match is_problem {
        true => drop(response.extensions_mut().insert(problem)),
        false => drop(response.extensions_mut().insert(CustomResponse)),
    }
    response
}

/// Whole seconds, rounded up and at least one: never before the request would be allowed. None
/// where no wait would help.
pub(super) fn retry_after(retry_in: Nanos) -> Option<u64> {
    (retry_in != Nanos::NEVER).then(|| retry_in.ceil_secs().max(1))
}

/// The problem document that names the violated limits, for a request that would pass after
/// `retry_in`.
pub(super) fn document(status: StatusCode, violated: &[&str], retry_in: Nanos) -> Bytes {
    let detail = if retry_in == Nanos::NEVER {
        "The request costs more than the limit ever lets pass at once."
    } else {
        "The client has sent too many requests; see Retry-After."
    };
    let problem = Problem::new(status, detail).of_type(
        problem::types::QUOTA_EXCEEDED,
        "Request cannot be satisfied as assigned quota has been exceeded",
    );
    problem.with("violated-policies", violated).into_bytes()
}

/// The response to a request without a value that a limit must have.
pub(super) fn missing<B>(limit: &str, source: &KeySource) -> Response<ResponseBody<B>> {
    let detail = format!("The limit {limit} counts per {source}, and the request has none.");
    ResponseBody::problem(Problem::new(StatusCode::FORBIDDEN, detail))
}

pub(super) fn no_route<B>() -> Response<ResponseBody<B>> {
    let problem = Problem::new(StatusCode::NOT_FOUND, "No route of this gateway matches.");
    ResponseBody::problem(problem)
}

/// The response when the store is out of reach and `on_failure` is `deny`.
pub(super) fn unavailable<B>() -> Response<ResponseBody<B>> {
    let detail = "The limits cannot be checked at the moment.";
    ResponseBody::whole(try_again(detail, rand::random_range(RETRY_SECS)))
}

/// The response when too many other passwords are being verified.
pub(super) fn unverified<B>() -> Response<ResponseBody<B>> {
    let detail = "The password cannot be verified at the moment.";
    ResponseBody::whole(try_again(detail, rand::random_range(RETRY_SECS)))
}

/// Asks a client to come back after so many seconds.
pub(super) fn try_again(detail: &str, seconds: u64) -> Response<Full<Bytes>> {
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).of_type(
        problem::types::TEMPORARY_REDUCED_CAPACITY,
        "Request cannot be satisfied due to temporary server capacity constraints",
    );
    let mut response = problem.into_response();
    response.headers_mut().insert(RETRY_AFTER, integer(seconds));
    response
}
