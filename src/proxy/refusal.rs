//! Requests that no upstream ever gets.

use bytes::Bytes;
use http::{Response, StatusCode, request};
use http_body_util::Full;

use super::request::{check, forwards_left};

/// What the proxy answers a request that it forwards to no upstream, by its head alone; none when
/// it would forward it.
///
/// Whoever limits requests asks this first: such an answer must not depend on who asks, or on how
/// often.
pub fn refusal(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
    if forwards_left(&head.method, &head.headers) == Some(0) {
        return Some(no_further());
    }
    check(head).err().map(|error| {
        tracing::debug!(%error, "refused");
        error.into_answer()
    })
}

/// The answer of who is asked for its own options.
pub(super) fn no_further() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn status(request: request::Builder) -> Option<u16> {
        let (head, ()) = request.body(()).unwrap().into_parts();
        refusal(&head).map(|answer| answer.status().as_u16())
    }

    #[test]
    fn what_is_forwarded_to_nobody_is_known_by_its_head() {
        let options = |left| {
            let request = Request::options("/").header("host", "a");
            status(request.header("max-forwards", left))
        };
        assert_eq!(status(Request::get("/").header("host", "a")), None);
        assert_eq!(status(Request::get("/")), Some(400));
        let two = Request::get("/").header("host", "a").header("host", "b");
        assert_eq!(status(two), Some(400));
        let http2 = |fields: &[&str]| {
            let request = Request::get("https://app/").version(http::Version::HTTP_2);
            let request = fields
                .iter()
                .fold(request, |it, host| it.header("host", *host));
            status(request)
        };
        assert_eq!((http2(&[]), http2(&["app"])), (None, None));
        assert_eq!(
            (http2(&["app", "b"]), http2(&["a, b"])),
            (Some(400), Some(400))
        );
        let trace = Request::builder().method("TRACE").header("host", "a");
        assert_eq!(status(trace), Some(501));
        let coded = |coding| {
            let request = Request::post("/").header("host", "a");
            status(request.header("transfer-encoding", coding))
        };
        assert_eq!(coded("Chunked"), None);
        assert_eq!(coded("gzip, chunked"), Some(501));
        assert_eq!((options("0"), options("1")), (Some(204), None));
    }
}
