//! A request on its way out: the head, then the body as it comes, in as few writes as possible.

use bytes::{Buf, Bytes};
use http::{HeaderMap, request};
use http_body::{Body, Frame};
use std::cell::Cell;
use std::error::Error as StdError;
use std::io::{self, IoSlice, Write};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use thiserror::Error;
use tokio::io::AsyncWrite;
use tokio::time::Instant;
use weir_http::line;

use crate::outgoing_body::OutgoingBody;

/// The room for a head, which most do not exceed, and which allocators have at hand.
const HEAD_BYTES: usize = 1000;

/// A buffer that has grown beyond this is not used again.
const MAX_KEPT: usize = 16 * 1024;

thread_local! {
    /// The buffer of the next head on this thread, which most servers take at once.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(crate) struct RequestWriter<B> {
    head: Vec<u8>,
    /// How much of the head and the text is written.
    at: usize,
    /// Follows the head: a chunk's line.
    text: Vec<u8>,
    /// Follows the text. `tail` follows the data: a line break or the end of the body.
    data: Bytes,
    tail: &'static [u8],
    body: OutgoingBody<B>,
    begun: bool,
}

/// Why a request cannot be sent to its end.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// The client's part: the body broke off, or is not as long as was told.
    #[error("the body of the request broke off")]
    Body(#[source] Box<dyn StdError + Send + Sync>),
    /// The server's part: it takes no more.
    #[error("the connection broke")]
    Connection(#[from] io::Error),
}

impl<B> RequestWriter<B> {
    /// A request with this body, whose head is yet to be [written](Self::begin).
    pub(crate) fn new(body: OutgoingBody<B>) -> Self {
        Self {
            head: Vec::new(),
            at: 0,
            text: Vec::new(),
            data: Bytes::new(),
            tail: b"",
            body,
            begun: false,
        }
    }

    /// Puts the head first; the response timeout counts from `now` on. The head can be replaced by
    /// another, for another server, before anything was [written](Self::has_begun), or if there is
    /// no body.
    pub(crate) fn begin(&mut self, head: &request::Parts, now: Instant) {
        if self.head.capacity() == 0 {
            self.head = BUFFER.take();
            self.head.reserve(HEAD_BYTES);
        }
        self.head.clear();
        self.at = 0;
        self.begun = false;
        self.body.await_upstream(now);
        write_head(head, &mut self.head);
    }

    /// Takes the body for HTTP/2.
    pub(crate) fn take_body(&mut self) -> OutgoingBody<B> {
        mem::replace(&mut self.body, OutgoingBody::none())
    }

    pub(crate) fn put_body(&mut self, body: OutgoingBody<B>) {
        self.body = body;
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether there is a body of which something is left to send.
    pub(crate) fn has_body(&self) -> bool {
        !self.body.is_over() || !self.data.is_empty() || !self.tail.is_empty()
    }

    /// Until when to wait, if the upstream may take no longer than `timeout`.
    pub(crate) fn deadline(&self, timeout: Duration) -> Instant {
        self.body.deadline(timeout)
    }

    fn is_written(&self) -> bool {
        self.is_text_written() && self.data.is_empty() && self.tail.is_empty()
    }

    fn is_text_written(&self) -> bool {
        self.at == self.head.len() + self.text.len()
    }
}

impl<B> RequestWriter<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Sends for as long as there is something to send and the server takes it. Ready at the end of
    /// the request.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<Result<(), SendError>> {
        loop {
            let more = self.poll_body(cx)?;
            if self.is_written() {
                match more {
                    Poll::Ready(()) if !self.body.is_over() => {}
                    // Nothing may stay behind while the client is waited for.
                    more => {
                        ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                        if more.is_ready() {
                            self.release();
                        }
                        return more.map(Ok);
                    }
                }
            } else {
                ready!(self.poll_write(cx, writer))?;
            }
        }
    }

    /// Takes the next piece of the body, if the last one is gone, so that the first one is written
    /// together with the head.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        if !self.data.is_empty() || !self.tail.is_empty() || self.body.is_over() {
            return Poll::Ready(Ok(()));
        }
        let frame = ready!(self.body.poll_frame(cx)).transpose();
        match frame.map_err(SendError::Body)?.map(Frame::into_data) {
            Some(Ok(data)) => self.put_data(data),
            // No server says by HTTP/1.1 that it reads trailers, and one that merges them with the
            // head would believe them, so they go no further (RFC 9110 section 6.5.1).
            Some(Err(_)) | None if self.body.is_chunked() => self.tail = b"0\r\n\r\n",
            Some(Err(_)) | None => {}
        }
        Poll::Ready(Ok(()))
    }
}

impl<B> RequestWriter<B> {
    fn put_data(&mut self, data: Bytes) {
        if self.body.is_chunked() {
            // An empty chunk would be the last one.
            if data.is_empty() {
                return;
            }
            self.trim();
            // Writing to a vector never fails.
            let _ = write!(self.text, "{:x}\r\n", data.len());
            self.tail = b"\r\n";
        }
        self.data = data;
    }

    /// Lets the next request on this thread have the buffer, once all is written.
    fn release(&mut self) {
        self.trim();
        let buffer = mem::take(&mut self.head);
        if buffer.capacity() <= MAX_KEPT {
            BUFFER.set(buffer);
        }
    }

    /// Makes room in the text once it is all written.
    fn trim(&mut self) {
        if self.is_text_written() {
            self.head.clear();
            self.text.clear();
            self.at = 0;
        }
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        let head = self.head.get(self.at..).unwrap_or_default();
        let of_text = self.at.saturating_sub(self.head.len());
        let text = self.text.get(of_text..).unwrap_or_default();
        let writer = Pin::new(writer);
        let written = match (text, &*self.data, self.tail) {
            // Most requests are a head alone, and the plain call costs less.
            ([], [], []) => writer.poll_write(cx, head),
            (text, data, tail) => {
                let slices = [head, text, data, tail].map(IoSlice::new);
                writer.poll_write_vectored(cx, &slices)
            }
        };
        let written = ready!(written)?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(written);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) {
        self.begun = true;
        let of_text = written.min(self.head.len() + self.text.len() - self.at);
        self.at += of_text;
        let of_data = (written - of_text).min(self.data.len());
        self.data.advance(of_data);
        let of_tail = written - of_text - of_data;
        self.tail = self.tail.get(of_tail..).unwrap_or_default();
        self.body.note_progress();
    }
}

/// Writes the head of a request whose target is in origin form, but for a path that may be empty,
/// as it can be before a query in an absolute form. Nothing in it needs checking: a method, a
/// target, a name or a value with a line break cannot be made.
fn write_head(head: &request::Parts, to: &mut Vec<u8>) {
    let target = head.uri.path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    to.extend_from_slice(head.method.as_str().as_bytes());
    to.push(b' ');
    if target.starts_with('?') {
        to.push(b'/');
    }
    to.extend_from_slice(target.as_bytes());
    to.extend_from_slice(b" HTTP/1.1\r\n");
    write_fields(&head.headers, to);
}

/// Writes fields, and the empty line that ends them.
fn write_fields(fields: &HeaderMap, to: &mut Vec<u8>) {
    for (name, value) in fields {
        line::push(to, name.as_str().as_bytes(), value.as_bytes());
    }
    to.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http::{HeaderMap, Request};
    use http_body_util::{Full, StreamBody};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::outgoing_body::Coding;

    /// What the server gets of a body in these frames.
    async fn sent(frames: Vec<Frame<Bytes>>, coding: Coding) -> (Result<(), SendError>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let (_reader, mut writer) = stream.into_split();
        let body = StreamBody::new(stream::iter(frames.into_iter().map(Ok::<_, io::Error>)));
        let mut sending = RequestWriter::new(OutgoingBody::new(body, coding));
        let head = Request::put("/").body(()).unwrap().into_parts().0;
        sending.begin(&head, Instant::now());
        let done = std::future::poll_fn(|cx| sending.poll(cx, &mut writer)).await;
        drop(writer);
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        let body = text
            .strip_prefix("PUT / HTTP/1.1\r\n\r\n")
            .map(str::to_owned);
        (done, body.unwrap_or_default())
    }

    fn data(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn a_body_is_sent_by_its_length_or_in_chunks() {
        let frames = || vec![data("bo"), data(""), data("dy")];
        let (done, body) = sent(frames(), Coding::Length(4)).await;
        assert!(done.is_ok());
        assert_eq!(body, "body");
        let (done, body) = sent(frames(), Coding::Chunked).await;
        assert!(done.is_ok());
        assert_eq!(body, "2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n");
    }

    #[tokio::test]
    async fn trailers_go_no_further() {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        let frames = vec![data("body"), Frame::trailers(trailers)];
        let (_, body) = sent(frames, Coding::Chunked).await;
        assert_eq!(body, "4\r\nbody\r\n0\r\n\r\n");
    }

    #[tokio::test]
    async fn a_body_that_is_not_as_long_as_told_is_never_sent_as_if_it_were() {
        let (short, body) = sent(vec![data("bo")], Coding::Length(4)).await;
        assert!(matches!(short, Err(SendError::Body(_))));
        assert_eq!(body, "bo");
        let (long, body) = sent(vec![data("body and more")], Coding::Length(4)).await;
        assert!(matches!(long, Err(SendError::Body(_))));
        assert_eq!(body, "");
    }

    #[test]
    fn a_head_gives_way_to_another_before_anything_is_written() {
        let head = |uri| Request::get(uri).body(()).unwrap().into_parts().0;
        let mut sending = RequestWriter::<Full<Bytes>>::new(OutgoingBody::none());
        sending.begin(&head("/1"), Instant::now());
        sending.begin(&head("/2"), Instant::now());
        assert_eq!(sending.head, b"GET /2 HTTP/1.1\r\n\r\n");
    }

    fn written(target: &str) -> String {
        let request = Request::get(target).header("a", "1").header("b", "2");
        let (head, ()) = request.header("a", "3").body(()).unwrap().into_parts();
        let mut text = Vec::new();
        write_head(&head, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_head_has_its_fields_line_by_line_and_ends_with_an_empty_one() {
        let fields = "a: 1\r\na: 3\r\nb: 2\r\n\r\n";
        assert_eq!(written("/x?y"), format!("GET /x?y HTTP/1.1\r\n{fields}"));
        assert_eq!(written("*"), format!("GET * HTTP/1.1\r\n{fields}"));
        let absolute = "http://app.example.com?y";
        assert_eq!(written(absolute), format!("GET /?y HTTP/1.1\r\n{fields}"));
    }
}
