//! Problem details for HTTP APIs (RFC 9457): the body of every response that Weir itself makes,
//! except decoys.

use std::any::Any;
use std::cell::Cell;
use std::error::Error;
use std::mem;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::{Map, Value};
use thiserror::Error;

/// The problem types of draft-ietf-httpapi-ratelimit-headers, as registered with IANA.
pub mod types {
    /// The client used up its quota.
    pub const QUOTA_EXCEEDED: &str =
        "https://iana.org/assignments/http-problem-types#quota-exceeded";
    /// The service cannot serve as much as usual.
    pub const TEMPORARY_REDUCED_CAPACITY: &str =
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    /// The client's requests look like a mistake or an attack.
    pub const ABNORMAL_USAGE_DETECTED: &str =
        "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
}

/// The detail for a request body that ends too early.
pub const BROKEN_BODY: &str = "The request's body broke off.";

/// The detail for a response of the upstream that cannot be passed on.
pub const INVALID_RESPONSE: &str = "The upstream server sent no valid response.";

/// The error of a request body that is longer than its route allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the request's body is longer than {max} bytes")]
pub struct BodyTooLarge {
    /// In bytes.
    pub max: u64,
}

impl BodyTooLarge {
    /// The response to the client.
    pub fn problem(self) -> Problem {
        let max = self.max;
        let detail = format!("The request's body must not be longer than {max} bytes.");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }
}

/// The response to a request whose body cannot be read to its end.
pub fn body_problem(error: &dyn Any) -> Problem {
    let error = error.downcast_ref::<Box<dyn Error + Send + Sync>>();
    match error.and_then(|error| error.downcast_ref::<BodyTooLarge>()) {
        Some(too_large) => too_large.problem(),
        None => Problem::new(StatusCode::BAD_REQUEST, BROKEN_BODY),
    }
}

/// The media type of a problem document.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Adds the request's id, which needs no escapes, to a problem document.
pub fn with_request_id(document: &Bytes, id: &str) -> Bytes {
    let Some(members) = document.strip_suffix(b"}") else {
        return document.clone();
    };
    let mut longer = members.to_vec();
    longer.extend_from_slice(format!(",\"request_id\":\"{id}\"}}").as_bytes());
    longer.into()
}

/// In a response's extensions: Weir made this problem document, and it need not look like a
/// response of the upstream.
#[derive(Clone, Debug, Default)]
pub struct ProblemResponse {
    /// Header lines, as HTTP/1.1 has them, that come before those of the response's map. There are
    /// some only if the server has said that it writes them.
    pub lines: Vec<u8>,
}

/// Room for most lines.
const LINES_BYTES: usize = 256;

thread_local! {
    /// Where the next lines on this thread are written.
    static LINES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl ProblemResponse {
    /// One that will have lines.
    pub fn with_lines() -> Self {
        let mut lines = LINES.take();
        lines.reserve(LINES_BYTES);
        Self { lines }
    }
}

impl Drop for ProblemResponse {
    fn drop(&mut self) {
        if (1..=4 * LINES_BYTES).contains(&self.lines.capacity()) {
            self.lines.clear();
            LINES.set(mem::take(&mut self.lines));
        }
    }
}

/// In a response's extensions: Weir made this response of what the operator configured.
#[derive(Clone, Copy, Debug)]
pub struct CustomResponse;

/// In a response's extensions: it is not sent, and its connection is closed instead. With HTTP/2
/// only the stream is reset, because the other streams may belong to other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoResponse;

/// A problem, to be turned into a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    status: StatusCode,
    members: Map<String, Value>,
}

impl Problem {
    /// A problem that says no more than its status, and `detail` for a human reader.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let mut members = Map::new();
        members.insert("type".to_owned(), "about:blank".into());
        members.insert(
            "title".to_owned(),
            status.canonical_reason().unwrap_or("Error").into(),
        );
        members.insert("status".to_owned(), status.as_u16().into());
        members.insert("detail".to_owned(), detail.into().into());
        Self { status, members }
    }

    /// Sets the type URI, and the title that goes with it.
    #[must_use]
    pub fn of_type(self, uri: &str, title: &str) -> Self {
        self.with("type", uri).with("title", title)
    }

    /// Adds a member.
    #[must_use]
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.members.insert(member.to_owned(), value.into());
        self
    }

    /// The problem as a JSON document.
    pub fn into_bytes(self) -> Bytes {
        Value::Object(self.members).to_string().into()
    }

    /// The problem as a response with an `application/problem+json` body.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        let status = self.status;
        let mut response = Response::new(Full::new(self.into_bytes()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        response.extensions_mut().insert(ProblemResponse::default());
        response
    }
}
