//! Decoys for calls of gRPC, whose outcome is in the trailers: without those, clients report an error
//! that no server causes.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Response, StatusCode, request};

use super::profile::ResponseProfile;
use super::{DecoyResponse, Negotiation, without};
use crate::steps::grpc;
use crate::{RequestHead, ResponseBody};

/// What a call coded as JSON has as its content type.
const GRPC_JSON: &[u8] = b"application/grpc+json";

/// The content type of a call, if the request is one.
pub(super) fn content_type(head: &request::Parts) -> Option<HeaderValue> {
    grpc::content_type(&RequestHead {
        method: &head.method,
        uri: &head.uri,
        version: head.version,
        headers: &head.headers,
        extensions: &head.extensions,
    })
}

/// Whether a real response is that of a call that failed: it has its outcome in place of trailers.
pub(super) fn is_failed_call(headers: &HeaderMap) -> bool {
    headers.contains_key(grpc::STATUS)
}

impl DecoyResponse<'_> {
    /// The reply to a call of this content type.
    ///
    /// A decoy with a status of success succeeds, with one message: the configured body where
    /// messages are JSON, and otherwise an empty one, which is a message of any type of Protocol
    /// Buffers.
    pub(super) fn reply<R>(
        mut self,
        content_type: &HeaderValue,
        text: &[u8],
        negotiation: &Negotiation,
    ) -> Response<ResponseBody<R>> {
        let decoy = &self.shadow.decoy;
        let status = grpc::status_of(decoy.status);
        self.headers = self.reply_headers(content_type, negotiation);
        let outcome = HeaderMap::from_iter([(grpc::STATUS, HeaderValue::from(status))]);
        let body = if status == 0 {
            let is_json = content_type.as_bytes().starts_with(GRPC_JSON);
            ResponseBody::reply(framed(if is_json { text } else { b"" }), outcome)
        } else {
            // The headers of a failed call are its trailers.
            self.headers.extend(outcome);
            ResponseBody::full(Bytes::new())
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::OK;
        *response.headers_mut() = self.headers;
        response
    }

    /// The headers of real replies. The configured content type is that of the decoy's body.
    fn reply_headers(&self, content_type: &HeaderValue, negotiation: &Negotiation) -> HeaderMap {
        let mut configured = self.shadow.decoy.headers.clone();
        configured.remove(CONTENT_TYPE);
        let nothing = ResponseProfile::default();
        let mut profiles = self.shadow.closest(negotiation.full());
        let profile = profiles.next().unwrap_or(&nothing);
        let headers = self.imitate_with(profile, &configured, None);
        let mut headers = without(headers, |name| {
            [CONTENT_LENGTH, ETAG, TRANSFER_ENCODING].contains(name)
        });
        if !headers.get(CONTENT_TYPE).is_some_and(grpc::is_grpc) {
            headers.insert(CONTENT_TYPE, content_type.clone());
        }
        headers
    }
}

/// A message with the prefix that says its length, uncompressed.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(length);
    frame.put_slice(message);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;

    use http::{Request, Version};
    use http_body_util::{BodyExt, Collected, Full};

    use super::*;
    use crate::decoy::{Decoy, ResponseSample, Shadow};

    fn shadow(status: u16) -> Arc<Shadow> {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
        let status = StatusCode::from_u16(status).unwrap();
        let decoy = Decoy::new("sent", status, headers, r#"{"sent":true}"#).unwrap();
        Arc::new(Shadow::new(Arc::new(decoy)))
    }

    type Reply = (HeaderMap, Collected<Bytes>);

    async fn call(shadow: &Arc<Shadow>, content_type: &'static str) -> Reply {
        let request = Request::post("/a.B/C")
            .version(Version::HTTP_2)
            .header(CONTENT_TYPE, content_type);
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let response: Response<ResponseBody<Full<Bytes>>> =
            Arc::clone(shadow).respond(request).await;
        assert_eq!(response.status(), 200);
        let (head, body) = response.into_parts();
        let body: Result<_, Infallible> = body.collect().await;
        (head.headers, body.unwrap())
    }

    fn learn(shadow: &Shadow, fields: &[(&'static str, &'static str)]) {
        for client in [1, 2] {
            let mut response = Response::new(Full::<Bytes>::default());
            for &(name, value) in fields {
                let value = HeaderValue::from_static(value);
                response.headers_mut().append(name, value);
            }
            let sample = ResponseSample {
                negotiation: Negotiation::default(),
                client,
                target: 0,
                latency: Some(Duration::ZERO),
            };
            shadow.learn(&response, &sample);
        }
    }

    /// Clients said UNKNOWN, which no server of the app did.
    #[tokio::test(start_paused = true)]
    async fn a_decoy_of_a_call_is_a_message_with_the_outcome_in_trailers() {
        let (headers, reply) = call(&shadow(200), "application/grpc").await;
        assert_eq!(headers["content-type"], "application/grpc");
        assert!(!headers.contains_key("content-length"));
        assert!(!headers.contains_key("grpc-status"));
        assert_eq!(reply.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(&*reply.to_bytes(), [0, 0, 0, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn where_messages_are_json_the_body_is_the_message() {
        let (_, reply) = call(&shadow(201), "application/grpc+json").await;
        assert_eq!(reply.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(&*reply.to_bytes(), b"\0\0\0\0\x0d{\"sent\":true}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_decoy_that_fails_is_a_call_that_fails_and_says_nothing_of_weir() {
        let (headers, reply) = call(&shadow(403), "application/grpc").await;
        assert_eq!(headers["grpc-status"], "7");
        assert!(!headers.contains_key("grpc-message"));
        assert!(reply.trailers().is_none());
        assert_eq!(reply.to_bytes(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn replies_have_the_headers_of_real_ones_and_not_those_of_failed_calls() {
        let shadow = shadow(200);
        learn(&shadow, &[("x-failed", "1"), ("grpc-status", "5")]);
        learn(
            &shadow,
            &[
                ("content-type", "application/grpc+proto"),
                ("server", "app"),
            ],
        );
        let (headers, _) = call(&shadow, "application/grpc").await;
        assert_eq!(headers["server"], "app");
        assert_eq!(headers["content-type"], "application/grpc+proto");
        for absent in ["x-failed", "grpc-status", "via"] {
            assert!(!headers.contains_key(absent), "{absent}");
        }
    }
}
