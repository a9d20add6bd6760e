//! HTTP/1.1 as it is spoken to an upstream (RFC 9112): one request after the other on a connection.
//!
//! hyper's client drives a connection in a task of its own, and a request passes to it and back
//! through channels. A proxy waits for the answer anyway, so here the task of the request reads and
//! writes the connection itself: no channel, no waking of tasks, no copies. What bytes mean is
//! httparse's to say.
//!
//! A server is not trusted to say where its messages end: an answer that could be read in two ways
//! is refused, and after any doubt the connection is not used again.

mod chunked;
mod decoder;
mod framing;
mod request_head;
mod response_head;
mod sending;
mod wire;

pub(super) use decoder::{Decoder, Piece};
pub(super) use framing::number;
pub(super) use response_head::ResponseHead;
pub(super) use sending::{Coding, RequestWriter, SendError};
pub(super) use wire::ReadBuffer;

use thiserror::Error;

/// Why what a server sent is no HTTP/1.1 message, or none that is safe to pass on.
#[derive(Debug, Error)]
pub(super) enum Malformed {
    /// The bytes are no head, chunk or trailer section.
    #[error("the bytes are no HTTP/1.1 message")]
    Syntax(#[from] httparse::Error),
    /// A field that httparse lets pass cannot be passed on.
    #[error("a field's value has a character that no field can have")]
    Field(#[from] http::Error),
    /// A head, a chunk's line or a trailer section that goes on and on.
    #[error("a head, chunk line or trailer section is too long")]
    TooLong,
    /// `Content-Length` is no number, or there are two that differ.
    #[error("Content-Length is no number, or not the same one everywhere")]
    ContentLength,
    /// A `Transfer-Encoding` other than chunked, which nobody asked for, or one in HTTP/1.0.
    #[error("Transfer-Encoding is not chunked, or comes with HTTP/1.0")]
    TransferEncoding,
}
