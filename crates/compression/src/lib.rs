//! Compresses responses for clients that accept it.
//!
//! This file decides by the head of a response, `accept` reads the client's preferences, `codec`
//! codes the body, and `config` has the keys.

#![forbid(unsafe_code)]

mod accept;
mod codec;
mod config;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
};
use http::{Method, StatusCode};
use tokio::sync::Semaphore;
use weir_http::list;
use weir_middleware::{Outgoing, Phase, PreparedStep, RequestHead, ResponseStep};
use weir_telemetry::log_field;

use codec::{Codec, PERMITS};
pub use config::Compression;

log_field! {
    /// how Weir compressed the response: `zstd`, `br` or `gzip`; `bytes` are those after that
    pub static CODING: &'static str = "compression";
}

/// Digests of what is sent, which compression changes.
const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// A coding that responses are compressed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// Zstandard (RFC 8878).
    Zstd,
    /// Brotli (RFC 7932).
    Brotli,
    /// RFC 1952.
    Gzip,
}

impl ContentCoding {
    /// All of them, the preferred one first.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}

/// The compression of the response to one request.
#[derive(Debug)]
struct Compressor {
    settings: Arc<Compression>,
    /// The offered coding that the client prefers, if it accepts one.
    coding: Option<ContentCoding>,
    is_head: bool,
    permits: &'static Semaphore,
}

/// The step that compresses responses as its keys say.
#[derive(Debug)]
pub struct Compress(Arc<Compression>);

impl From<Compression> for Compress {
    fn from(keys: Compression) -> Self {
        Self(Arc::new(keys))
    }
}

impl Compress {
    /// Its keys.
    pub fn keys(&self) -> &Compression {
        &self.0
    }
}

impl ResponseStep for Compress {
    fn phase(&self) -> Phase {
        Phase::Coding
    }

    fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<dyn PreparedStep>> {
        Some(Box::new(Compressor::new(&self.0, request)))
    }
}

impl PreparedStep for Compressor {
    fn apply(self: Box<Self>, response: &mut Outgoing) {
        self.compress(response);
    }
}

impl Compressor {
    fn new(settings: &Arc<Compression>, request: &RequestHead<'_>) -> Self {
        Self {
            settings: Arc::clone(settings),
            coding: match forbids_change(request.headers) {
                true => None,
                false => accept::best(&settings.algorithms, request.headers),
            },
            is_head: request.method == Method::HEAD,
            permits: &PERMITS,
        }
    }

    fn compress(&self, response: &mut Outgoing) {
        if response.head.status() == StatusCode::NOT_MODIFIED {
            return self.update_not_modified(response.head.headers_mut());
        }
        if !self.is_eligible(response) {
            return;
        }
        list::vary_by(response.head.headers_mut(), &ACCEPT_ENCODING);
        let Some(coding) = self.coding else { return };
        let has_body = !self.is_head || made_length(response).is_some();
        let codec = has_body.then(|| Codec::new(coding, self.permits));
        if let Some(None) = codec {
            // Without a permit, as for a client that accepts no coding.
            return;
        }
        let headers = response.head.headers_mut();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        describe_coded(headers);
        if let Some(codec) = codec.flatten() {
            response.note(&CODING, coding.name());
            response.code_by(Box::new(codec));
        }
    }

    /// A 304 stands for a response that was, or would be, compressed. It may lack the type, and has
    /// the headers for caches of that response (RFC 9110 section 15.4.5), so none of the plain one.
    fn update_not_modified(&self, headers: &mut HeaderMap) {
        let is_of_type = !headers.contains_key(CONTENT_TYPE) || self.is_of_type(headers);
        if !is_of_type || headers.contains_key(CONTENT_ENCODING) || forbids_change(headers) {
            return;
        }
        list::vary_by(headers, &ACCEPT_ENCODING);
        if self.coding.is_some() {
            describe_coded(headers);
        }
    }

    /// Whether a response is compressed for clients that accept it.
    fn is_eligible(&self, response: &Outgoing) -> bool {
        let (status, headers) = (response.head.status(), response.head.headers());
        let has_body = !status.is_informational()
            && !matches!(
                status,
                StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::PARTIAL_CONTENT
            );
        has_body
            && !headers.contains_key(CONTENT_ENCODING)
            && !headers.contains_key(CONTENT_RANGE)
            && !forbids_change(headers)
            && self.is_of_type(headers)
            && self
                .length(response)
                .is_none_or(|length| length >= self.settings.min_bytes)
    }

    /// The length of the body, also of one that is left out in response to HEAD.
    fn length(&self, response: &Outgoing) -> Option<u64> {
        if !self.is_head {
            return response.length();
        }
        made_length(response).or_else(|| {
            let length = response.head.headers().get(CONTENT_LENGTH)?;
            length.to_str().ok()?.parse().ok()
        })
    }

    fn is_of_type(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(CONTENT_TYPE).map(HeaderValue::to_str);
        let Some(Ok(value)) = value else { return false };
        let essence = value.split(';').next().unwrap_or_default().trim();
        self.settings.types.iter().any(|wanted| {
            let begin = wanted.strip_suffix('*').unwrap_or(wanted);
            match begin.len() == wanted.len() {
                true => essence.eq_ignore_ascii_case(wanted),
                false => essence
                    .get(..begin.len())
                    .is_some_and(|of_essence| of_essence.eq_ignore_ascii_case(begin)),
            }
        })
    }
}

/// The length of a response to HEAD that Weir made; the server leaves out its body. Responses of
/// upstreams to HEAD have no body.
fn made_length(response: &Outgoing) -> Option<u64> {
    response.length().filter(|&length| length > 0)
}

/// Whether the app or the client forbids to change the body (RFC 9111, sections 5.2.2.6 and
/// 5.2.1.6).
fn forbids_change(headers: &HeaderMap) -> bool {
    list::texts(headers, &CACHE_CONTROL).any(|token| token.eq_ignore_ascii_case("no-transform"))
}

/// Leaves no header that is true of the plain body alone.
fn describe_coded(headers: &mut HeaderMap) {
    for name in [CONTENT_LENGTH, ACCEPT_RANGES].iter().chain(&DIGESTS) {
        headers.remove(name);
    }
    weaken(headers);
}

/// Makes the tag weak: the compressed body differs from the one that the tag was made for (RFC
/// 9110, section 8.8.1).
fn weaken(headers: &mut HeaderMap) {
    let Some(tag) = headers.get(ETAG) else { return };
    if tag.as_bytes().starts_with(b"\"") {
        let weak = [b"W/", tag.as_bytes()].concat();
        if let Ok(weak) = HeaderValue::from_maybe_shared(Bytes::from(weak)) {
            headers.insert(ETAG, weak);
        }
    }
}

#[cfg(test)]
mod tests;
