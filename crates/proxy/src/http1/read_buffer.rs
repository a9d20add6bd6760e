//! The reading side of a connection, and what was read from it ahead of its use.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Method};
use tokio::io::AsyncReadExt;

use super::{Decoder, Malformed, Piece, ResponseHead};
use crate::stream::ReadHalf;

/// The room that is made for a read, at first and at most: a read that fills it makes it four times
/// as large. What a client that does not read is sent next is in memory as a whole, so the bound is
/// as small as it can be at no cost: half of it takes a seventh more CPU for a long download, and
/// four times as much saves none but doubles what such a client holds.
const ROOM: (usize, usize) = (8 * 1024, 64 * 1024);

/// Memory for more headers than this is not kept while a connection is idle.
const MAX_KEPT_HEADERS: usize = 64;

/// The reading side of a connection with its buffer. Most reads find a whole answer, and take no
/// allocation: what was cut out of the buffer is given up before the next request needs the room.
pub(crate) struct ReadBuffer {
    reader: ReadHalf,
    buffer: BytesMut,
    /// How much of it was parsed as the beginning of a head.
    parsed: usize,
    room: usize,
    /// Memory for the headers of the next response.
    headers: HeaderMap,
}

impl ReadBuffer {
    pub(crate) fn new(reader: ReadHalf) -> Self {
        Self {
            reader,
            buffer: BytesMut::new(),
            parsed: 0,
            room: ROOM.0,
            headers: HeaderMap::new(),
        }
    }

    /// Uses the memory of these headers, those of a request that is answered, for the next
    /// response.
    pub(crate) fn reuse(&mut self, mut headers: HeaderMap) {
        if headers.capacity() <= MAX_KEPT_HEADERS {
            headers.clear();
            self.headers = headers;
        }
    }

    /// Takes the head of the final answer to a request with `method`, if it has arrived.
    pub(crate) fn take_head(&mut self, method: &Method) -> Result<Option<ResponseHead>, Malformed> {
        loop {
            if self.buffer.is_empty() {
                return Ok(None);
            }
            if self.parsed > 0 && !ResponseHead::may_be_whole(&self.buffer, self.parsed)? {
                self.parsed = self.buffer.len();
                return Ok(None);
            }
            let taken = ResponseHead::take(&mut self.buffer, method, &mut self.headers)?;
            self.parsed = match taken {
                None => self.buffer.len(),
                Some(_) => 0,
            };
            match taken {
                Some(head) if head.is_interim() => {}
                taken => return Ok(taken),
            }
        }
    }

    /// Takes the next piece of a body, if it has arrived.
    pub(crate) fn take_piece(&mut self, decoder: &mut Decoder) -> Result<Option<Piece>, Malformed> {
        decoder.next(&mut self.buffer)
    }

    /// Takes a body of a known length, if all of it has arrived.
    pub(crate) fn take_whole(&mut self, decoder: &mut Decoder) -> Option<Bytes> {
        decoder.whole(&mut self.buffer)
    }

    /// Reads more; the number of bytes that came is 0 when no more will.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(self.room);
        // The buffer may have grown by more than was asked for.
        let mut room = (&mut self.buffer).limit(self.room);
        let polled = pin!(self.reader.read_buf(&mut room)).poll(cx);
        if let Poll::Ready(Ok(read)) = polled
            && read == self.room
        {
            self.room = ROOM.1.min(4 * self.room);
        }
        polled
    }

    /// Whether the server neither closed the connection nor sent anything unasked, as far as is
    /// known. That costs a system call only if something did happen.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.reader.is_quiet() && self.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Gives back the memory that a long answer took, of which nothing is left.
    pub(crate) fn shrink(&mut self) {
        if self.room > ROOM.0 {
            self.room = ROOM.0;
            self.buffer = BytesMut::new();
        }
    }

    /// The reading side, after what was read of it already.
    pub(crate) fn into_parts(self) -> (Bytes, ReadHalf) {
        (self.buffer.freeze(), self.reader)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::stream::Stream;

    #[tokio::test]
    async fn a_connection_reads_more_at_a_time_while_much_comes_and_keeps_nothing_of_it_when_it_is_idle()
     {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connect = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(connect, listener.accept());
        let (mut server, _) = accepted.unwrap();
        let (reader, _writer) = Stream::Tcp(stream.unwrap()).split();
        let mut reader = ReadBuffer::new(reader);
        tokio::spawn(async move { while server.write_all(&[b'x'; 1 << 16]).await.is_ok() {} });
        while reader.room < ROOM.1 {
            poll_fn(|cx| reader.poll_fill(cx)).await.unwrap();
            reader.buffer.clear();
        }
        reader.shrink();
        assert_eq!((reader.room, reader.buffer.capacity()), (ROOM.0, 0));
    }
}
