//! How large the head of a response and its trailers may be, over HTTP/1.1 and HTTP/2 alike.
//!
//! These bounds are Weir's own: a server whose response exceeds one has done its work, so the
//! response says no more about its health than its status does.

use http::HeaderMap;
use thiserror::Error;

/// How long a head may be.
pub(crate) const MAX_HEAD_BYTES: usize = 256 * 1024;

/// How many header lines a head may have, and how many lines a trailer section.
pub(crate) const MAX_LINES: usize = 1000;

/// How long a trailer section may be.
pub(crate) const MAX_TRAILER_BYTES: usize = 64 * 1024;

/// What HTTP/2 adds to the length of each header line (RFC 9113 section 6.5.2).
const LINE_OVERHEAD: usize = 32;

/// The bound that a response exceeds.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum ResponseBound {
    #[error("its head has more than {} header lines", MAX_LINES)]
    HeadLines,
    #[error("its head is longer than {} KiB", MAX_HEAD_BYTES / 1024)]
    HeadBytes,
    #[error("it has more than {} trailer lines", MAX_LINES)]
    TrailerLines,
    #[error("its trailers are longer than {} KiB", MAX_TRAILER_BYTES / 1024)]
    TrailerBytes,
}

/// The bound that the head of a response of HTTP/2 exceeds, if it does.
pub(crate) fn exceeded_by(headers: &HeaderMap) -> Option<ResponseBound> {
    if headers.len() > MAX_LINES {
        return Some(ResponseBound::HeadLines);
    }
    let lines = headers.iter();
    let bytes: usize = lines
        .map(|(name, value)| name.as_str().len() + value.len() + LINE_OVERHEAD)
        .sum();
    (bytes > MAX_HEAD_BYTES).then_some(ResponseBound::HeadBytes)
}
