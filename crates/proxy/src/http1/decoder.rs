//! Where a response's body ends, and what it consists of (RFC 9112 section 6.3).

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::SizeHint;
use httparse::Status;

use super::lines::{self, LineError, Spans};
use super::malformed::Malformed;
use crate::response_bounds::{MAX_TRAILER_BYTES, ResponseBound};

/// How long a chunk's line may be, with extensions that nothing reads.
const MAX_LINE_BYTES: usize = 4 * 1024;

/// In place of the head that a trailer section is parsed behind.
const STATUS_LINE: &[u8] = b"HTTP/1.1 200\r\n";

#[derive(Debug)]
pub(crate) enum Decoder {
    /// With as many bytes to come.
    Length(u64),
    /// RFC 9112 section 7.1.
    Chunked(Chunked),
    /// Up to the end of the connection.
    CloseDelimited,
}

pub(crate) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

impl Decoder {
    pub(crate) fn chunked() -> Self {
        Self::Chunked(Chunked::Line)
    }

    /// Takes the next piece out of `buffer`; none before more bytes come.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, Malformed> {
        Ok(match self {
            Self::Length(0) => Some(Piece::End),
            Self::Length(_) | Self::CloseDelimited if buffer.is_empty() => None,
            Self::Length(left) => Some(Piece::Data(take_data(buffer, left))),
            Self::CloseDelimited => Some(Piece::Data(buffer.split().freeze())),
            Self::Chunked(chunked) => chunked.next(buffer)?,
        })
    }

    /// Takes a body of a known length out of `buffer`, if all of it is there.
    pub(crate) fn whole(&mut self, buffer: &mut BytesMut) -> Option<Bytes> {
        match self {
            Self::Length(left) if *left <= buffer.len() as u64 => Some(take_data(buffer, left)),
            _ => None,
        }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunked::Done))
    }

    /// Whether the end of the connection is the end of the body.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self, Self::CloseDelimited)
    }

    /// The length of the rest, if it is known.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Length(left) => SizeHint::with_exact(*left),
            Self::Chunked(_) | Self::CloseDelimited => SizeHint::new(),
        }
    }
}

/// Where in a chunked body the reader is.
#[derive(Debug)]
pub(crate) enum Chunked {
    /// Before a chunk's line.
    Line,
    /// In a chunk with as many bytes to come.
    Data(u64),
    /// After a chunk's last byte, before its line break.
    Break,
    /// After the last chunk's line.
    Trailers,
    Done,
}

impl Chunked {
    /// Takes what comes next out of `buffer`.
    fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, Malformed> {
        loop {
            match self {
                Self::Line => match take_line(buffer)? {
                    None => return Ok(None),
                    Some(0) => *self = Self::Trailers,
                    Some(size) => *self = Self::Data(size),
                },
                Self::Data(_) if buffer.is_empty() => return Ok(None),
                Self::Data(left) => {
                    let data = take_data(buffer, left);
                    if *left == 0 {
                        *self = Self::Break;
                    }
                    return Ok(Some(Piece::Data(data)));
                }
                Self::Break => {
                    if !take_break(buffer)? {
                        return Ok(None);
                    }
                    *self = Self::Line;
                }
                Self::Trailers => {
                    let Some(trailers) = take_trailers(buffer)? else {
                        return Ok(None);
                    };
                    *self = Self::Done;
                    if !trailers.is_empty() {
                        return Ok(Some(Piece::Trailers(trailers)));
                    }
                }
                Self::Done => return Ok(Some(Piece::End)),
            }
        }
    }
}

/// As much of the `left` bytes as is there.
fn take_data(buffer: &mut BytesMut, left: &mut u64) -> Bytes {
    let there = usize::try_from(*left).map_or(buffer.len(), |left| left.min(buffer.len()));
    *left -= there as u64;
    buffer.split_to(there).freeze()
}

/// The size in a chunk's line.
fn take_line(buffer: &mut BytesMut) -> Result<Option<u64>, Malformed> {
    // httparse takes a line without a digit for the last chunk's.
    if buffer.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
        return Err(Malformed::Syntax(httparse::Error::Token));
    }
    match httparse::parse_chunk_size(buffer) {
        Ok(Status::Complete((length, size))) => {
            check_line(length)?;
            check_breaks(&buffer.split_to(length))?;
            Ok(Some(size))
        }
        Ok(Status::Partial) => check_line(buffer.len()).map(|()| None),
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
    if buffer.starts_with(b"\r\n") {
        drop(buffer.split_to(2));
        return Ok(Some(HeaderMap::new()));
    }
    let too_large = |bound| Malformed::TooLarge {
        status: None,
        bound,
    };
    let some = buffer.get(..MAX_TRAILER_BYTES).unwrap_or(buffer);
    let text = [STATUS_LINE, some].concat();
    let mut spans = Spans::new();
    let found = lines::find(&text, &mut spans).map_err(|error| match error {
        LineError::TooMany => too_large(ResponseBound::TrailerLines),
        LineError::Malformed(malformed) => malformed,
    })?;
    let Some(found) = found else {
        return match buffer.len() > MAX_TRAILER_BYTES {
            true => Err(too_large(ResponseBound::TrailerBytes)),
            false => Ok(None),
        };
    };
    check_breaks(&buffer.split_to(found.length - STATUS_LINE.len()))?;
    append_all(&spans, &text).map(Some)
}

/// httparse takes a line feed without a carriage return for a part of an extension, but for the end
/// of a trailer. Others may see it the other way round.
fn check_breaks(part: &[u8]) -> Result<(), Malformed> {
    let mut lines = part.split_inclusive(|byte| *byte == b'\n');
    if !lines.all(|line| line.ends_with(b"\r\n")) {
        return Err(Malformed::Syntax(httparse::Error::NewLine));
    }
    Ok(())
}

fn append_all(spans: &Spans, text: &[u8]) -> Result<HeaderMap, Malformed> {
    let mut trailers = HeaderMap::new();
    for [name, value] in spans {
        let name = HeaderName::from_bytes(name.slice(text)).map_err(http::Error::from)?;
        let value = HeaderValue::from_bytes(value.slice(text)).map_err(http::Error::from)?;
        trailers.append(name, value);
    }
    Ok(trailers)
}

/// The length of a line, or of what is there of it: whether it is found too long must not depend on
/// how much of it came at once.
fn check_line(length: usize) -> Result<(), Malformed> {
    if length > MAX_LINE_BYTES {
        return Err(Malformed::ChunkLine);
    }
    Ok(())
}

/// Digits and nothing else, as opposed to what `parse` takes for a number.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let append = |number: u64, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    };
    text.iter().try_fold(0, append).filter(|_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data, trailers and rest that come of a body that arrives in pieces of `size` bytes.
    fn read(mut decoder: Decoder, text: &str, size: usize) -> Result<String, Malformed> {
        let (mut buffer, mut read) = (BytesMut::new(), String::new());
        for bytes in text.as_bytes().chunks(size) {
            buffer.extend_from_slice(bytes);
            loop {
                match decoder.next(&mut buffer)? {
                    None => break,
                    Some(Piece::Data(data)) => read.push_str(str::from_utf8(&data).unwrap()),
                    Some(Piece::Trailers(trailers)) => read.push_str(&format!("{trailers:?}")),
                    Some(Piece::End) => {
                        read.push('|');
                        break;
                    }
                }
            }
        }
        Ok(read + str::from_utf8(&buffer).unwrap())
    }

    fn chunked(text: &str) -> String {
        let whole = read(Decoder::chunked(), text, text.len()).unwrap();
        let bytewise = read(Decoder::chunked(), text, 1).unwrap();
        assert_eq!(whole, bytewise.replacen("||", "|", 1), "however it arrives");
        whole
    }

    #[test]
    fn a_body_of_a_known_length_ends_there() {
        assert_eq!(
            read(Decoder::Length(4), "bodyrest", 8).unwrap(),
            "body|rest"
        );
        assert_eq!(read(Decoder::Length(4), "bo", 1).unwrap(), "bo");
        assert_eq!(
            read(Decoder::CloseDelimited, "all of it", 3).unwrap(),
            "all of it"
        );
    }

    #[test]
    fn chunks_make_a_body() {
        assert_eq!(chunked("4\r\nbody\r\n0\r\n\r\n"), "body|");
        assert_eq!(chunked("2;x=y\r\nbo\r\n2 \r\ndy\r\n0\r\n\r\n"), "body|");
        assert_eq!(
            chunked("1\r\nx\r\n0\r\nsum: 1\r\n\r\n"),
            "x{\"sum\": \"1\"}|"
        );
        assert_eq!(chunked("4\r\nbo"), "bo");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for text in [
            "4\nbody\r\n",
            "4\r\nbody0\r\n",
            "4\r\nbody\n0\r\n\r\n",
            "-4\r\nbody",
            "+4\r\nbody",
            "0x4\r\nbody",
            "fffffffffffffffff\r\n",
            "\r\nbody",
            "1;\nx\r\n",
            "0\r\n\n",
            "0\r\nx: y\n\r\n",
            "1;\rx\r\n",
            "0\r\nbad name: 1\r\n\r\n",
        ] {
            assert!(
                read(Decoder::chunked(), text, text.len()).is_err(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_part_that_never_ends_is_refused_as_soon_as_it_is_too_long() {
        let line = |length: usize| format!("1;{}", "x".repeat(length - 2));
        let trailers = |length: usize| format!("0\r\nx: {}", "x".repeat(length - 3));
        let chunk_line = [line(4096), line(4097)];
        let trailers = [trailers(65_536), trailers(65_537)];
        for [most, too_much] in [chunk_line, trailers] {
            for size in [1000, too_much.len()] {
                let waits = read(Decoder::chunked(), &most, size);
                assert!(waits.is_ok(), "{size}: there may come an end");
                let read = read(Decoder::chunked(), &too_much, size);
                let is_too_long = matches!(
                    read,
                    Err(Malformed::ChunkLine
                        | Malformed::TooLarge {
                            bound: ResponseBound::TrailerBytes,
                            ..
                        })
                );
                assert!(is_too_long, "in pieces of {size}");
            }
        }
    }

    /// More than 64 used to be an error.
    #[test]
    fn as_many_trailers_are_read_as_header_lines() {
        let lines = |count: usize| format!("0\r\n{}\r\n", "x: y\r\n".repeat(count));
        let most = lines(1000);
        for size in [7, most.len()] {
            let read = read(Decoder::chunked(), &most, size).unwrap();
            assert_eq!(read.matches("\"x\": \"y\"").count(), 1000);
        }
        let too_many = read(Decoder::chunked(), &lines(1001), 7000).unwrap_err();
        assert_eq!(too_many.to_string(), "it has more than 1000 trailer lines");
    }

    #[test]
    fn a_blank_before_the_colon_of_a_trailer_is_left_out_and_no_other_is() {
        assert_eq!(chunked("0\r\nsum \t: 1\r\n\r\n"), "{\"sum\": \"1\"}|");
        for trailer in ["a b: 1", " a: 1", "a: 1\r\n b: 2", ": 1", "a \r\n: 1"] {
            let text = format!("0\r\n{trailer}\r\n\r\n");
            assert!(
                read(Decoder::chunked(), &text, text.len()).is_err(),
                "{trailer:?}"
            );
        }
    }

    #[test]
    fn what_goes_on_and_on_is_refused() {
        let line = format!("1;{}\r\n", "x".repeat(70_000));
        let trailers = format!("0\r\nx: {}\r\n\r\n", "x".repeat(70_000));
        for text in [line, trailers] {
            for size in [1000, text.len()] {
                let read = read(Decoder::chunked(), &text, size);
                assert!(read.is_err(), "in pieces of {size}");
            }
        }
    }

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
