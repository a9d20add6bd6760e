//! The error of all parsing.

use http::StatusCode;
use thiserror::Error;

use crate::response_bounds::ResponseBound;

/// Why what a server sent is not an HTTP/1.1 message, or not one that is safe to pass on.
#[derive(Debug, Error)]
pub(crate) enum Malformed {
    /// The bytes are not a head, a chunk or a trailer section.
    #[error("the bytes are not an HTTP/1.1 message")]
    Syntax(#[from] httparse::Error),
    /// A field that httparse lets pass cannot be passed on.
    #[error("a header's value has a character that no header can have")]
    Field(#[from] http::Error),
    /// A chunk's line that goes on and on.
    #[error("a chunk line is too long")]
    ChunkLine,
    /// It exceeds a bound of Weir's own.
    #[error("{bound}")]
    TooLarge {
        /// The status in a head that is too large.
        status: Option<StatusCode>,
        bound: ResponseBound,
    },
    /// `Content-Length` is not a number, or there are two that differ.
    #[error("Content-Length is not a number, or not the same one everywhere")]
    ContentLength,
    /// A `Transfer-Encoding` other than chunked, which the request did not allow, or one in
    /// HTTP/1.0.
    #[error("Transfer-Encoding is not chunked, or comes with HTTP/1.0")]
    TransferEncoding,
}
