//! Writes responses.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRAILER, TRANSFER_ENCODING};
use http::{StatusCode, response};
use http_body::Body;
use httpdate::HttpDate;
use hyper::ext::ReasonPhrase;
use tokio::io::AsyncWrite;
use weir_http::line;
use weir_http::problem::ProblemResponse;

use super::length;
use crate::service::allows_content;

/// Pieces of a body up to this size are copied behind the head or the size of their chunk, which
/// costs less than a further buffer to write from.
const MAX_COPIED: usize = 4096;

/// How much is collected before it is written.
const MAX_BUFFERED: usize = 16 * 1024;

/// A buffer that has grown beyond this is not used again.
const MAX_KEPT: usize = 64 * 1024;

thread_local! {
    /// The buffer of the next response on this thread, which most sockets take at once.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What waits to be written to a client.
#[derive(Debug, Default)]
pub(super) struct Output {
    buffer: Vec<u8>,
    /// How much of the buffer is written.
    written: usize,
    /// What follows the buffer.
    piece: Bytes,
    /// What follows the piece.
    end: &'static [u8],
    /// Bytes were written that TLS may still hold.
    is_unflushed: bool,
}

/// How a client finds the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Bytes that are left of the length that the head tells.
    Length(u64),
    Chunked,
}

/// The body breaks off before the length that the head has told.
#[derive(Debug, thiserror::Error)]
#[error("the body is shorter than its content-length")]
pub(super) struct TooShort;

impl Output {
    /// Writes the head of a response, and returns how its body is framed, and whether the head
    /// tells the client that the connection closes.
    ///
    /// It is the head that hyper would write.
    pub(super) fn head<B: Body>(
        &mut self,
        head: &response::Parts,
        body: &B,
        is_head: bool,
        mut closes: bool,
    ) -> (Framing, bool) {
        self.reserve();
        let status = head.status;
        let has_body = !is_head && allows_content(status);
        let known = match body.is_end_stream() {
            true => Some(0),
            false => body.size_hint().exact(),
        };
        let output = &mut self.buffer;
        match head.extensions.get::<ProblemResponse>() {
            Some(problem) => {
                write_status(output, status, None);
                output.extend_from_slice(&problem.lines);
            }
            None => write_status(output, status, head.extensions.get()),
        }
        let mut framing = None;
        let mut has_date = false;
        for (name, value) in &head.headers {
            match *name {
                CONTENT_LENGTH if framing.is_some() => continue,
                CONTENT_LENGTH if is_head => framing = Some(Framing::Length(0)),
                // hyper writes a length of zero by itself.
                CONTENT_LENGTH if !has_body || known == Some(0) => continue,
                CONTENT_LENGTH => match known.or_else(|| length(value.as_bytes())) {
                    Some(known) => framing = Some(Framing::Length(known)),
                    None => continue,
                },
                // The framing is written below.
                TRANSFER_ENCODING => continue,
                TRAILER if !has_body => continue,
                CONNECTION if value.as_bytes().eq_ignore_ascii_case(b"close") => {
                    closes = true;
                    continue;
                }
                DATE => has_date = true,
                _ => {}
            }
            line::push(output, name.as_str().as_bytes(), value.as_bytes());
        }
        if closes {
            output.extend_from_slice(b"connection: close\r\n");
        }
        let framing = framing.unwrap_or_else(|| match known {
            // The client has to be told where a body ends, unless there cannot be one.
            Some(length) if has_body => {
                let mut digits = itoa::Buffer::new();
                line::push(output, b"content-length", digits.format(length).as_bytes());
                Framing::Length(length)
            }
            None if has_body => {
                output.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Framing::Chunked
            }
            _ => Framing::Length(0),
        });
        if !has_date {
            write_date(output);
        }
        output.extend_from_slice(b"\r\n");
        (
            if has_body {
                framing
            } else {
                Framing::Length(0)
            },
            closes,
        )
    }

    /// Takes this thread's buffer, unless this has one.
    fn reserve(&mut self) {
        if self.buffer.capacity() == 0 {
            self.buffer = BUFFER.take();
        }
    }

    /// Adds a piece of the body. Call it only when this is not full.
    pub(super) fn body(&mut self, mut data: Bytes, framing: &mut Framing) {
        self.reserve();
        match framing {
            Framing::Length(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
                data.truncate(length);
                *left = left.saturating_sub(length as u64);
                self.end = b"";
            }
            // An empty chunk would end the body.
            Framing::Chunked if data.is_empty() => return,
            Framing::Chunked => {
                self.buffer.extend_from_slice(hex(data.len(), &mut [0; 16]));
                self.buffer.extend_from_slice(b"\r\n");
                self.end = b"\r\n";
            }
        }
        if data.len() <= MAX_COPIED {
            self.buffer.extend_from_slice(&data);
            self.buffer.extend_from_slice(mem::take(&mut self.end));
        } else {
            self.piece = data;
        }
    }

    pub(super) fn end(&mut self, framing: Framing) -> Result<(), TooShort> {
        match framing {
            Framing::Length(0) => {}
            Framing::Length(_) => return Err(TooShort),
            Framing::Chunked => {
                self.reserve();
                self.buffer.extend_from_slice(b"0\r\n\r\n");
            }
        }
        Ok(())
    }

    /// Whether this has to be written before more can be added.
    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= MAX_BUFFERED || !self.piece.is_empty() || !self.end.is_empty()
    }

    pub(super) fn poll_write<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let buffered = self.buffer.get(self.written..).unwrap_or_default();
            let io = Pin::new(&mut *io);
            let written = match (buffered, &*self.piece, self.end) {
                ([], [], []) => break,
                (only, [], []) | ([], only, []) => io.poll_write(cx, only),
                (first, second, third) => {
                    let all = [first, second, third].map(IoSlice::new);
                    // What does not support several slices writes the first that has bytes.
                    io.poll_write_vectored(cx, &all)
                }
            };
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.advance(written),
            }
        }
        self.buffer.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Has TLS send what it holds.
    pub(super) fn poll_flush<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_unflushed {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Lets the next response on this thread have the buffer. Call it only when all is written.
    pub(super) fn release(&mut self) {
        let buffer = mem::take(&mut self.buffer);
        if (1..=MAX_KEPT).contains(&buffer.capacity()) {
            BUFFER.set(buffer);
        }
    }

    /// How much memory it keeps.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.buffer.capacity()
    }

    fn advance(&mut self, written: usize) {
        self.is_unflushed = true;
        let buffered = self.buffer.len() - self.written;
        let of_buffer = written.min(buffered);
        let of_piece = (written - of_buffer).min(self.piece.len());
        self.written += of_buffer;
        self.piece.advance(of_piece);
        let of_end = written - of_buffer - of_piece;
        self.end = self.end.get(of_end..).unwrap_or_default();
    }
}

fn write_status(output: &mut Vec<u8>, status: StatusCode, reason: Option<&ReasonPhrase>) {
    // Nearly all responses have one of these.
    let common: &[u8] = match (status, reason) {
        (StatusCode::OK, None) => b"HTTP/1.1 200 OK\r\n",
        (StatusCode::TOO_MANY_REQUESTS, None) => b"HTTP/1.1 429 Too Many Requests\r\n",
        _ => b"",
    };
    if !common.is_empty() {
        output.extend_from_slice(common);
        return;
    }
    output.extend_from_slice(b"HTTP/1.1 ");
    output.extend_from_slice(status.as_str().as_bytes());
    output.extend_from_slice(b" ");
    // Many parsers expect a reason; the last one is hyper's for a status without one.
    let usual = || status.canonical_reason().unwrap_or("<none>").as_bytes();
    output.extend_from_slice(reason.map_or_else(usual, ReasonPhrase::as_bytes));
    output.extend_from_slice(b"\r\n");
}

/// Writes the `Date` line, which is the same for a second.
fn write_date(output: &mut Vec<u8>) {
    thread_local! {
        static LINE: Cell<(u64, [u8; DATE_LINE])> = const { Cell::new((0, [0; DATE_LINE])) };
    }
    let now = SystemTime::now();
    let second = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_secs());
    let (of, mut line) = LINE.get();
    if of != second {
        let text = format!("date: {}\r\n", HttpDate::from(now));
        let text = text.into_bytes().try_into();
        // Every date of this format has the same length.
        line = text.unwrap_or(line);
        LINE.set((second, line));
    }
    output.extend_from_slice(&line);
}

const DATE_LINE: usize = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n".len();

/// The size of a chunk in hexadecimal digits.
fn hex(mut size: usize, digits: &mut [u8; 16]) -> &[u8] {
    let mut start = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789ABCDEF"
            .get(size & 15)
            .copied()
            .unwrap_or_default();
        size >>= 4;
        start -= 1;
        if size == 0 {
            break;
        }
    }
    digits.get(start..).unwrap_or_default()
}
