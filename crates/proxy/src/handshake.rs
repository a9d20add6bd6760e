//! The opening handshake of a WebSocket (RFC 6455, section 4.1) that Weir makes in a client's place.
//!
//! Over HTTP/1.1 a client sends a key and verifies the server's response, which passes unchanged.
//! Over HTTP/2 (RFC 8441) there is no key, and a status is all that a client goes by: so Weir makes
//! the key, and a response that a client of HTTP/1.1 would fail ends here.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, request};
use thiserror::Error;
use weir_http::list::members;

use super::hop_by_hop::has_token;

/// Appended to the key before it is hashed (RFC 6455, section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// What the server's response must agree with.
#[derive(Debug)]
pub(super) struct Handshake {
    accept: String,
    protocols: Vec<HeaderValue>,
    extensions: Vec<HeaderValue>,
}

/// Why a response with the status 101 begins no WebSocket.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum HandshakeError {
    #[error("its Upgrade does not name websocket")]
    Upgrade,
    #[error("its Connection does not name upgrade")]
    Connection,
    #[error("its Sec-WebSocket-Accept does not match the key")]
    Accept,
    #[error("its Sec-WebSocket-Protocol is not one that the client offered")]
    Protocol,
    #[error("its Sec-WebSocket-Extensions has one that the client did not offer")]
    Extension,
}

impl Handshake {
    /// Adds a new key to a request. `None` does not occur, as base64 is a header value.
    pub(super) fn begin(parts: &mut request::Parts) -> Option<Self> {
        let key = BASE64_STANDARD.encode(rand::random::<[u8; 16]>());
        let accept = accept(&key);
        parts
            .headers
            .insert(SEC_WEBSOCKET_KEY, HeaderValue::try_from(key).ok()?);
        let offered = |name| parts.headers.get_all(name).iter().cloned().collect();
        Some(Self {
            accept,
            protocols: offered(SEC_WEBSOCKET_PROTOCOL),
            extensions: offered(SEC_WEBSOCKET_EXTENSIONS),
        })
    }

    /// Checks the head of a response with the status 101.
    pub(super) fn check(&self, response: &HeaderMap) -> Result<(), HandshakeError> {
        for (holds, error) in [
            (
                has_token(response, UPGRADE, "websocket"),
                HandshakeError::Upgrade,
            ),
            (
                has_token(response, CONNECTION, "upgrade"),
                HandshakeError::Connection,
            ),
            (self.accepts(response), HandshakeError::Accept),
            (
                self.has_offered_protocol(response),
                HandshakeError::Protocol,
            ),
            (
                self.has_offered_extensions(response),
                HandshakeError::Extension,
            ),
        ] {
            if !holds {
                return Err(error);
            }
        }
        Ok(())
    }

    fn accepts(&self, response: &HeaderMap) -> bool {
        let shown = only_one(response, SEC_WEBSOCKET_ACCEPT);
        shown.is_some_and(|shown| shown.as_bytes().trim_ascii() == self.accept.as_bytes())
    }

    /// At most one protocol, spelled as the client spelled it.
    fn has_offered_protocol(&self, response: &HeaderMap) -> bool {
        if !response.contains_key(SEC_WEBSOCKET_PROTOCOL) {
            return true;
        }
        let chosen = only_one(response, SEC_WEBSOCKET_PROTOCOL);
        let mut offered = self.protocols.iter().flat_map(members);
        chosen.is_some_and(|chosen| {
            let chosen = chosen.as_bytes().trim_ascii();
            offered.any(|offered| offered == chosen)
        })
    }

    /// The parameters of extensions are between client and server.
    fn has_offered_extensions(&self, response: &HeaderMap) -> bool {
        let offered = |chosen: &[u8]| {
            let mut offered = self.extensions.iter().flat_map(members).map(name);
            offered.any(|offered| offered.eq_ignore_ascii_case(name(chosen)))
        };
        let chosen = response.get_all(SEC_WEBSOCKET_EXTENSIONS);
        chosen.iter().flat_map(members).all(offered)
    }
}

/// The answer to a key (RFC 6455, section 4.2.2).
fn accept(key: &str) -> String {
    let both = [key, GUID].concat();
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, both.as_bytes()))
}

fn only_one(headers: &HeaderMap, name: HeaderName) -> Option<&HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?;
    lines.next().is_none().then_some(first)
}

/// The name of an extension, without its parameters.
fn name(extension: &[u8]) -> &[u8] {
    let name = extension.split(|byte| *byte == b';').next();
    name.unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455, section 1.3.
    const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        lines.collect()
    }

    /// What comes of these lines of a response to a client that has offered these.
    fn check(
        offered: &[(&'static str, &'static str)],
        response: &[(&'static str, &'static str)],
    ) -> Result<(), HandshakeError> {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.headers = headers(offered);
        let handshake = Handshake {
            accept: ACCEPT.to_owned(),
            ..Handshake::begin(&mut parts).unwrap()
        };
        handshake.check(&headers(response))
    }

    const AGREED: [(&str, &str); 3] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-accept", ACCEPT),
    ];

    #[test]
    fn the_answer_to_a_key_is_that_of_the_rfc() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), ACCEPT);
    }

    #[test]
    fn each_request_has_a_key_of_its_own_whatever_the_client_sent() {
        let key = || {
            let (mut parts, ()) = http::Request::new(()).into_parts();
            parts.headers = headers(&[("sec-websocket-key", "of the client")]);
            let handshake = Handshake::begin(&mut parts).unwrap();
            let key = only_one(&parts.headers, SEC_WEBSOCKET_KEY).unwrap();
            assert_eq!(accept(key.to_str().unwrap()), handshake.accept);
            key.clone()
        };
        assert_ne!(key(), key());
    }

    #[test]
    fn what_the_client_offered_may_be_chosen() {
        let offered = [
            ("sec-websocket-protocol", "chat, v2.superchat"),
            ("sec-websocket-protocol", "mqtt"),
            (
                "sec-websocket-extensions",
                "permessage-deflate; client_max_window_bits",
            ),
        ];
        assert_eq!(check(&offered, &AGREED), Ok(()));
        let extension = "permessage-deflate; server_no_context_takeover";
        for chosen in ["chat", "v2.superchat", "mqtt"] {
            let chosen = [
                ("sec-websocket-protocol", chosen),
                ("sec-websocket-extensions", extension),
            ];
            assert_eq!(check(&offered, &[&AGREED[..], &chosen].concat()), Ok(()));
        }
    }

    #[test]
    fn a_response_that_a_client_has_to_fail_is_an_error() {
        let [connection, upgrade, accept] = AGREED;
        let offered = [
            ("sec-websocket-protocol", "chat, superchat"),
            ("sec-websocket-extensions", "permessage-deflate"),
        ];
        let plus = |line| [connection, upgrade, accept, line].to_vec();
        for (response, error) in [
            (vec![connection, accept], HandshakeError::Upgrade),
            (
                vec![connection, ("upgrade", "h2c"), accept],
                HandshakeError::Upgrade,
            ),
            (vec![upgrade, accept], HandshakeError::Connection),
            (
                vec![("connection", "close"), upgrade, accept],
                HandshakeError::Connection,
            ),
            (vec![connection, upgrade], HandshakeError::Accept),
            (
                vec![connection, upgrade, ("sec-websocket-accept", "xyz")],
                HandshakeError::Accept,
            ),
            (plus(accept), HandshakeError::Accept),
            (
                plus(("sec-websocket-protocol", "mqtt")),
                HandshakeError::Protocol,
            ),
            (
                plus(("sec-websocket-protocol", "Chat")),
                HandshakeError::Protocol,
            ),
            (
                plus(("sec-websocket-protocol", "chat, superchat")),
                HandshakeError::Protocol,
            ),
            (
                plus(("sec-websocket-extensions", "permessage-deflate, x-other")),
                HandshakeError::Extension,
            ),
        ] {
            assert_eq!(check(&offered, &response), Err(error), "{response:?}");
        }
        for line in ["sec-websocket-protocol", "sec-websocket-extensions"] {
            assert!(check(&[], &plus((line, "chat"))).is_err(), "{line}");
        }
    }
}
