//! The chunked transfer coding (RFC 9112 section 7.1), as it is read.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use httparse::{EMPTY_HEADER, Status};

use super::Malformed;
use super::response_head::append_fields;

/// How long a chunk's line may be, with extensions that nobody reads.
const LONGEST_LINE: usize = 4 * 1024;

/// How long a trailer section may be, and how many fields it may have.
const LONGEST_TRAILERS: usize = 64 * 1024;
const MOST_TRAILERS: usize = 64;

/// Where in a chunked body the reader is.
#[derive(Debug)]
pub(super) enum Chunked {
    /// Before a chunk's line.
    Line,
    /// In a chunk with as many bytes to come.
    Data(u64),
    /// After a chunk's last byte, before its line break.
    Break,
    /// After the last chunk's line.
    Trailers,
    /// At the end.
    Done,
}

/// What was found next.
pub(super) enum Found {
    /// Nothing, before more bytes come.
    Nothing,
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

impl Chunked {
    /// Takes what comes next out of `buffer`.
    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<Found, Malformed> {
        loop {
            match self {
                Self::Line => match take_line(buffer)? {
                    None => return Ok(Found::Nothing),
                    Some(0) => *self = Self::Trailers,
                    Some(size) => *self = Self::Data(size),
                },
                Self::Data(_) if buffer.is_empty() => return Ok(Found::Nothing),
                Self::Data(left) => {
                    let data = take_data(buffer, left);
                    if *left == 0 {
                        *self = Self::Break;
                    }
                    return Ok(Found::Data(data));
                }
                Self::Break => {
                    if !take_break(buffer)? {
                        return Ok(Found::Nothing);
                    }
                    *self = Self::Line;
                }
                Self::Trailers => {
                    let Some(trailers) = take_trailers(buffer)? else {
                        return Ok(Found::Nothing);
                    };
                    *self = Self::Done;
                    if !trailers.is_empty() {
                        return Ok(Found::Trailers(trailers));
                    }
                }
                Self::Done => return Ok(Found::End),
            }
        }
    }
}

/// As much of the `left` bytes as is there.
pub(super) fn take_data(buffer: &mut BytesMut, left: &mut u64) -> Bytes {
    let there = usize::try_from(*left).map_or(buffer.len(), |left| left.min(buffer.len()));
    *left -= there as u64;
    buffer.split_to(there).freeze()
}

/// The size that a chunk's line tells.
fn take_line(buffer: &mut BytesMut) -> Result<Option<u64>, Malformed> {
    // httparse takes a line without a digit for the last chunk's.
    if buffer.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
        return Err(Malformed::Syntax(httparse::Error::Token));
    }
    match httparse::parse_chunk_size(buffer) {
        Ok(Status::Complete((length, size))) => {
            within(length, LONGEST_LINE)?;
            check_breaks(&buffer.split_to(length))?;
            Ok(Some(size))
        }
        Ok(Status::Partial) => within(buffer.len(), LONGEST_LINE).map(|()| None),
        Err(_) => Err(Malformed::Syntax(httparse::Error::Token)),
    }
}

fn take_break(buffer: &mut BytesMut) -> Result<bool, Malformed> {
    match buffer.get(..2) {
        Some(b"\r\n") => {
            drop(buffer.split_to(2));
            Ok(true)
        }
        Some(_) => Err(Malformed::Syntax(httparse::Error::NewLine)),
        None => Ok(false),
    }
}

fn take_trailers(buffer: &mut BytesMut) -> Result<Option<HeaderMap>, Malformed> {
    let mut fields = [EMPTY_HEADER; MOST_TRAILERS];
    let Status::Complete((length, fields)) = httparse::parse_headers(buffer, &mut fields)? else {
        return within(buffer.len(), LONGEST_TRAILERS).map(|()| None);
    };
    within(length, LONGEST_TRAILERS)?;
    let mut trailers = HeaderMap::new();
    append_fields(&mut trailers, fields)?;
    check_breaks(&buffer.split_to(length))?;
    Ok(Some(trailers))
}

/// httparse takes a line feed without a carriage return for a part of an extension, but for the end of a
/// trailer. Others may see it the other way round.
fn check_breaks(part: &[u8]) -> Result<(), Malformed> {
    let mut lines = part.split_inclusive(|byte| *byte == b'\n');
    if !lines.all(|line| line.ends_with(b"\r\n")) {
        return Err(Malformed::Syntax(httparse::Error::NewLine));
    }
    Ok(())
}

/// The length of a part, or of what is there of it, must not be longer than the part may become: whether
/// it is found too long must not depend on how much of it came at once.
pub(super) fn within(length: usize, longest: usize) -> Result<(), Malformed> {
    if length > longest {
        return Err(Malformed::TooLong);
    }
    Ok(())
}
