//! HTTP/1.1 as it is spoken to an upstream (RFC 9112): one request after the other on a connection.
//!
//! hyper's client drives a connection in a task of its own, and a request passes to it and back
//! through channels. A proxy waits for the answer anyway, so here the task of the request reads and
//! writes the connection itself: no channel, no waking of tasks, no copies. httparse says what
//! the bytes mean.
//!
//! A server is not trusted to say where its messages end: an answer that could be read in two ways
//! is refused, and after any doubt the connection is not used again.

mod decoder;
mod keep_alive;
mod lines;
mod malformed;
mod read_buffer;
mod request_writer;
mod response_head;

pub(super) use decoder::{Decoder, Piece, number};
pub(super) use malformed::Malformed;
pub(super) use read_buffer::ReadBuffer;
pub(super) use request_writer::{RequestWriter, SendError};
pub(super) use response_head::ResponseHead;
