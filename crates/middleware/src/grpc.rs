//! Weir's own errors as gRPC has them. A client of gRPC reads the outcome of a call from
//! `grpc-status` alone, and of a plain 429 it makes "unavailable" or "unknown"; so it would not
//! know that it calls too often, nor when to come back.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode, Version};

use super::RequestHead;
use super::response_step::{Origin, Outgoing, Phase, PreparedStep, ResponseStep};

const GRPC: &str = "application/grpc";

pub(super) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The content type of a gRPC call, if the request is one. gRPC-Web is another protocol, with
/// HTTP's statuses.
pub(super) fn content_type(request: &RequestHead<'_>) -> Option<HeaderValue> {
    // Most requests need no look at their headers.
    if request.version != Version::HTTP_2 || request.method != Method::POST {
        return None;
    }
    let value = request.headers.get(CONTENT_TYPE)?;
    let more = value.as_bytes().strip_prefix(GRPC.as_bytes())?;
    matches!(more.first(), None | Some(b'+' | b';')).then(|| value.clone())
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
        let content_type = content_type(request)?;
        Some(Box::new(GrpcCall { content_type }))
    }

    fn is_for_decisions(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct GrpcCall {
    content_type: HeaderValue,
}

impl PreparedStep for GrpcCall {
    fn apply(self: Box<Self>, response: &mut Outgoing) {
        if !response.is_made() {
            return;
        }
        let (status, message) = outcome(response.head.status());
        let headers = response.head.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_TYPE, self.content_type);
        set_status(headers, status, message);
        if let Some(pushback) = pushback(headers) {
            headers.insert(PUSHBACK, pushback);
        }
        *response.head.status_mut() = StatusCode::OK;
        response.replace_body(Bytes::new());
        // A page would be none of gRPC.
        response.origin = Origin::Weir;
    }
}

/// Sets the outcome of a call. The message is plain ASCII.
pub(super) fn set_status(headers: &mut HeaderMap, status: u16, message: &str) {
    headers.insert(STATUS, HeaderValue::from(status));
    let message = HeaderValue::from_str(message).ok();
    headers.extend(message.map(|message| (MESSAGE, message)));
}

/// When to call again, in milliseconds. Clients that retry wait that long in place of their own
/// back-off (gRFC A6).
fn pushback(headers: &HeaderMap) -> Option<HeaderValue> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(HeaderValue::from(seconds.checked_mul(1000)?))
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
    use crate::response_step::tests::applied;
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
        let response = Response::builder()
            .status(status)
            .header("content-type", "application/problem+json")
            .header("ratelimit", "\"a\";r=0")
            .header("retry-after", retry_after);
        let response = response.extension(CustomResponse);
        let content_type = HeaderValue::from_static("application/grpc+proto");
        let call = GrpcCall { content_type };
        applied(call, response.body(ResponseBody::full("{}")).unwrap())
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
