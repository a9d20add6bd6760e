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
mod read_buffer;
mod request_writer;
mod response_head;

pub(super) use decoder::{Decoder, Piece};
pub(super) use read_buffer::ReadBuffer;
pub(super) use request_writer::{RequestWriter, SendError};
pub(super) use response_head::ResponseHead;

use thiserror::Error;

/// Why what a server sent is not an HTTP/1.1 message, or not one that is safe to pass on.
#[derive(Debug, Error)]
pub(super) enum Malformed {
    /// The bytes are not a head, a chunk or a trailer section.
    #[error("the bytes are not an HTTP/1.1 message")]
    Syntax(#[from] httparse::Error),
    /// A field that httparse lets pass cannot be passed on.
    #[error("a header's value has a character that no header can have")]
    Field(#[from] http::Error),
    /// A head, a chunk's line or a trailer section that goes on and on.
    #[error("a head, chunk line or trailer section is too long")]
    TooLong,
    /// `Content-Length` is not a number, or there are two that differ.
    #[error("Content-Length is not a number, or not the same one everywhere")]
    ContentLength,
    /// A `Transfer-Encoding` other than chunked, which the request did not allow, or one in
    /// HTTP/1.0.
    #[error("Transfer-Encoding is not chunked, or comes with HTTP/1.0")]
    TransferEncoding,
}

/// The length of a part, or of what is there of it, must not be longer than the part may become:
/// whether it is found too long must not depend on how much of it came at once.
fn check_length(length: usize, max: usize) -> Result<(), Malformed> {
    if length > max {
        return Err(Malformed::TooLong);
    }
    Ok(())
}

/// Digits and nothing else, as opposed to what `parse` takes for a number.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let append = |number: u64, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    };
    text.iter().try_fold(0, append).filter(|_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_digits_alone() {
        assert_eq!((number(b"0"), number(b"0042")), (Some(0), Some(42)));
        let (most, above) = (b"18446744073709551615", b"18446744073709551616");
        assert_eq!((number(most), number(above)), (Some(u64::MAX), None));
        for text in ["", "+1", "-1", " 1", "1 ", "1,1", "1e3", "0x1", "\u{661}"] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
    }
}
