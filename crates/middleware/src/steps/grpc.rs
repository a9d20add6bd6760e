//! Weir's own errors as gRPC has them. A client of gRPC reads the outcome of a call from
//! `grpc-status` alone, and of a plain 429 it makes "unavailable" or "unknown"; so it would not
//! know that it calls too often, nor when to come back.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode, Version};
use tokio::time::Instant;
use weir_runtime::loop_time;

use super::response_step::{Origin, Outgoing, Phase, PreparedStep, ResponseStep};
use crate::RequestHead;
use crate::rejection::FinalDenial;

const GRPC: &str = "application/grpc";

/// The header or trailer that has the status of a call.
pub const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Asks a client that retries not to (gRFC A6).
const NO_RETRY: HeaderValue = HeaderValue::from_static("-1");

/// The content type of a gRPC call, if the request is one. gRPC-Web is another protocol, with
/// HTTP's statuses.
pub fn content_type(request: &RequestHead<'_>) -> Option<HeaderValue> {
    // Most requests need no look at their headers.
    let has_trailers = matches!(request.version, Version::HTTP_2 | Version::HTTP_3);
    if !has_trailers || request.method != Method::POST {
        return None;
    }
    let value = request.headers.get(CONTENT_TYPE)?;
    is_grpc(value).then(|| value.clone())
}

/// Whether messages of this content type are those of gRPC.
pub(crate) fn is_grpc(content_type: &HeaderValue) -> bool {
    let more = content_type.as_bytes().strip_prefix(GRPC.as_bytes());
    more.is_some_and(|more| matches!(more.first(), None | Some(b'+' | b';')))
}

/// The value of `grpc-timeout`: up to eight digits and a unit.
fn timeout(value: &HeaderValue) -> Option<Duration> {
    let value = value.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let amount: u32 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(3600) * amount,
        "M" => Duration::from_secs(60) * amount,
        "S" => Duration::from_secs(1) * amount,
        "m" => Duration::from_millis(1) * amount,
        "u" => Duration::from_micros(1) * amount,
        "n" => Duration::from_nanos(1) * amount,
        _ => return None,
    })
}

/// Turns Weir's own errors into responses without a body, whose headers are trailers to a client of
/// gRPC. They keep the other headers, which become metadata of the call.
#[derive(Debug)]
pub struct GrpcStatuses;

impl ResponseStep for GrpcStatuses {
    fn phase(&self) -> Phase {
        Phase::Form
    }

    fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<dyn PreparedStep>> {
        Some(Box::new(GrpcCall::of_request(request)?))
    }

    fn is_for_decisions(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct GrpcCall {
    content_type: HeaderValue,
    /// When the client gives up, if it said so.
    deadline: Option<Instant>,
}

impl GrpcCall {
    fn of_request(request: &RequestHead<'_>) -> Option<Self> {
        let content_type = content_type(request)?;
        let timeout = request.headers.get("grpc-timeout").and_then(timeout);
        Some(Self {
            content_type,
            deadline: timeout.and_then(|timeout| loop_time::now().checked_add(timeout)),
        })
    }

    /// When to call again, in milliseconds. Clients that retry wait that long in place of their own
    /// back-off (gRFC A6). One whose deadline comes first would sleep until then, and report that
    /// the deadline was exceeded, not that the call was denied.
    fn pushback(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        let millis = seconds.checked_mul(1000)?;
        let end = loop_time::now().checked_add(Duration::from_millis(millis));
        let outlasts = |deadline| end.is_some_and(|end| end < deadline);
        Some(match self.deadline.is_none_or(outlasts) {
            true => HeaderValue::from(millis),
            false => NO_RETRY,
        })
    }
}

impl PreparedStep for GrpcCall {
    fn apply(self: Box<Self>, response: &mut Outgoing) {
        if !response.is_made() {
            return;
        }
        let is_final = response.head.extensions().get::<FinalDenial>().is_some();
        let (status, message) = match is_final {
            // `PERMISSION_DENIED` is not for what exceeds a quota.
            true => outcome(StatusCode::TOO_MANY_REQUESTS),
            false => outcome(response.head.status()),
        };
        let headers = response.head.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_TYPE, self.content_type.clone());
        set_status(headers, status, message);
        let pushback = match is_final {
            true => Some(NO_RETRY),
            false => self.pushback(headers),
        };
        if let Some(pushback) = pushback {
            headers.insert(PUSHBACK, pushback);
        }
        *response.head.status_mut() = StatusCode::OK;
        response.replace_body(Bytes::new());
        // A page would be none of gRPC.
        response.origin = Origin::Weir;
    }
}

/// Sets the outcome of a call. The message is plain ASCII.
pub fn set_status(headers: &mut HeaderMap, status: u16, message: &str) {
    headers.insert(STATUS, HeaderValue::from(status));
    let message = HeaderValue::from_str(message).ok();
    headers.extend(message.map(|message| (MESSAGE, message)));
}

/// The status of a call that gets a response of this status.
pub fn status_of(status: StatusCode) -> u16 {
    match status.is_success() {
        true => 0,
        false => outcome(status).0,
    }
}

/// The status of gRPC, and a message for people. A refusal by the server and a server out of reach
/// have different ones.
fn outcome(status: StatusCode) -> (u16, &'static str) {
    match status {
        StatusCode::TOO_MANY_REQUESTS => (8, "too many requests"),
        StatusCode::UNAUTHORIZED => (16, "the call is not authenticated"),
        StatusCode::FORBIDDEN => (7, "the call is not allowed"),
        StatusCode::NOT_FOUND | StatusCode::NOT_IMPLEMENTED => {
            (12, "there is nothing to call here")
        }
        StatusCode::GATEWAY_TIMEOUT => (4, "the upstream did not respond in time"),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => {
            (14, "the service is not available")
        }
        StatusCode::BAD_REQUEST | StatusCode::INTERNAL_SERVER_ERROR => (13, "the call failed"),
        _ => (2, "the call was not answered"),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, request};
    use http_body::Body;
    use http_body_util::Empty;

    use super::*;
    use crate::ResponseBody;
    use crate::steps::response_step::tests::applied;
    use weir_http::problem::CustomResponse;

    fn call(content_type: &str) -> request::Builder {
        Request::post("/a.B/C")
            .version(Version::HTTP_2)
            .header("content-type", content_type)
    }

    fn found(request: request::Builder) -> bool {
        let request = request.body(()).unwrap();
        content_type(&RequestHead::new(&request)).is_some()
    }

    #[test]
    fn a_call_is_a_post_by_http_2_of_its_content_type() {
        for kind in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc;a=b",
        ] {
            assert!(found(call(kind)), "{kind}");
            assert!(!found(call(kind).version(Version::HTTP_11)), "{kind}");
            assert!(!found(call(kind).method(Method::GET)), "{kind}");
        }
        for kind in [
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/json",
            "",
        ] {
            assert!(!found(call(kind)), "{kind}");
        }
    }

    fn formatted(status: u16, retry_after: &str) -> Response<ResponseBody<Empty<Bytes>>> {
        formatted_for(call("application/grpc+proto"), status, retry_after)
    }

    fn formatted_for(
        call: request::Builder,
        status: u16,
        retry_after: &str,
    ) -> Response<ResponseBody<Empty<Bytes>>> {
        let call = call.body(()).unwrap();
        let call = GrpcCall::of_request(&RequestHead::new(&call)).unwrap();
        let response = Response::builder()
            .status(status)
            .header("content-type", "application/problem+json")
            .header("ratelimit", "\"a\";r=0")
            .header("retry-after", retry_after);
        let response = response.extension(CustomResponse);
        applied(call, response.body(ResponseBody::full("{}")).unwrap())
    }

    fn pushback_within(timeout: &str, retry_after: &str) -> String {
        let call = call("application/grpc").header("grpc-timeout", timeout);
        let response = formatted_for(call, 429, retry_after);
        // A client is told when to come back all the same, as bans expect it to.
        assert_eq!(response.headers()["retry-after"], retry_after);
        let pushback = &response.headers()["grpc-retry-pushback-ms"];
        pushback.to_str().unwrap().to_owned()
    }

    /// Clients slept until their deadline, and reported that it was exceeded.
    #[test]
    fn no_client_is_told_to_wait_beyond_its_deadline() {
        for too_short in ["2S", "2000m", "1999999u", "1n", "0S"] {
            assert_eq!(pushback_within(too_short, "2"), "-1", "{too_short}");
        }
        for enough in ["1M", "61000m", "61000000u", "1H", "99999999H"] {
            assert_eq!(pushback_within(enough, "2"), "2000", "{enough}");
        }
        for no_timeout in ["", "S", "2", "2s", "-1S", "2 S", "99999999999S"] {
            assert_eq!(
                pushback_within(no_timeout, "9000"),
                "9000000",
                "{no_timeout}"
            );
        }
    }

    #[test]
    fn a_call_that_no_wait_lets_pass_is_exhausted_and_not_to_be_retried() {
        let call = call("application/grpc").body(()).unwrap();
        let call = GrpcCall::of_request(&RequestHead::new(&call)).unwrap();
        let response = Response::builder().status(403).extension(CustomResponse);
        let response = response.extension(FinalDenial);
        let body = ResponseBody::<Empty<Bytes>>::full("{}");
        let response = applied(call, response.body(body).unwrap());
        assert_eq!(response.headers()["grpc-status"], "8");
        assert_eq!(response.headers()["grpc-retry-pushback-ms"], "-1");
    }

    #[test]
    fn a_denial_says_when_to_call_again_and_keeps_what_tells_of_the_limit() {
        let response = formatted(429, "3");
        assert_eq!(response.status(), 200);
        assert!(response.body().is_end_stream());
        let headers = response.headers();
        assert_eq!(headers["content-type"], "application/grpc+proto");
        assert_eq!(headers["grpc-status"], "8");
        assert_eq!(headers["grpc-retry-pushback-ms"], "3000");
        assert_eq!(headers["ratelimit"], "\"a\";r=0");
        assert!(!headers.contains_key("content-length"));
    }

    #[test]
    fn each_error_has_its_status() {
        for (status, expected) in [
            (400, "13"),
            (401, "16"),
            (403, "7"),
            (404, "12"),
            (418, "2"),
            (500, "13"),
            (501, "12"),
            (502, "14"),
            (503, "14"),
            (504, "4"),
        ] {
            let response = formatted(status, "soon");
            assert_eq!(response.headers()["grpc-status"], expected, "{status}");
            assert!(!response.headers().contains_key("grpc-retry-pushback-ms"));
        }
    }
}
