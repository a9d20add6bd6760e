//! A response's body on its way to the client, on the connection that it comes by, while the rest
//! of the request may still be on its way.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use weir_runtime::loop_time;

use super::connection::{Connection, DeadlineTimer};
use super::hop_by_hop;
use super::http1::{Decoder, Malformed, Piece, RequestWriter};
use super::http2::ResponseStream;
use super::stream::WriteHalf;

/// A response body: the upstream's, passed on as it comes, or one that is there as a whole.
///
/// It holds the connection that it comes from. Once it was read to the end, the connection is free
/// for the next request; when it is dropped earlier, the connection is closed, and so the upstream
/// learns that the client has gone.
pub struct ProxyBody(BodySource);

enum BodySource {
    Http1(Box<ResponseReader>),
    Http2(Box<StreamReader>),
    Full(Full<Bytes>),
    Timed(Box<Timed>),
}

/// A body that is cut at a deadline.
struct Timed {
    body: ProxyBody,
    deadline: Instant,
    timer: DeadlineTimer,
}

/// Why the upstream's body cannot be passed on to its end.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct BodyError(#[from] Broken);

#[derive(Debug, Error)]
pub(super) enum Broken {
    /// The connection closed before the end.
    #[error("the upstream's response broke off")]
    Closed(#[from] io::Error),
    /// Nothing came for too long.
    #[error("the upstream's response stopped before its end")]
    Timeout,
    /// All of it took too long.
    #[error("the response took longer than it may take in all")]
    TotalTimeout,
    /// The stream was reset before the end, or its connection was closed.
    #[error("the upstream's response broke off")]
    Reset(#[from] hyper::Error),
    #[error("the upstream's response is malformed")]
    Malformed(#[from] Malformed),
}

impl ProxyBody {
    pub(super) fn full(body: Full<Bytes>) -> Self {
        Self(BodySource::Full(body))
    }

    /// Cuts the body at the `deadline`.
    pub(super) fn until(self, deadline: Instant) -> Self {
        match self.0 {
            BodySource::Full(_) => self,
            _ => Self(BodySource::Timed(Box::new(Timed {
                body: self,
                deadline,
                timer: DeadlineTimer::default(),
            }))),
        }
    }

    /// The body that is yet to come, or is there already.
    pub(super) fn upstream(body: UpstreamBody) -> Self {
        match body {
            UpstreamBody::Http2(reader) => Self(BodySource::Http2(reader)),
            UpstreamBody::Http1(mut reader) => match reader.whole() {
                Some(whole) => Self::full(Full::new(whole)),
                None => Self(BodySource::Http1(Box::new(reader))),
            },
        }
    }
}

/// A response's body as it comes from the upstream.
pub(super) enum UpstreamBody {
    Http1(ResponseReader),
    Http2(Box<StreamReader>),
}

/// Reads a body from a stream of HTTP/2; no frame may take longer than the timeout.
pub(super) struct StreamReader {
    stream: ResponseStream,
    timeout: Duration,
    timer: DeadlineTimer,
    waiting_since: Option<Instant>,
}

impl StreamReader {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = match self.stream.poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let since = *self.waiting_since.get_or_insert_with(loop_time::now);
                ready!(self.timer.poll_past(since + self.timeout, cx));
                return Poll::Ready(Some(Err(Broken::Timeout)));
            }
        };
        self.waiting_since = None;
        Poll::Ready(frame.map(|frame| Ok(without_hop_by_hop(frame?))))
    }
}

impl UpstreamBody {
    pub(super) fn http2(stream: ResponseStream, timeout: Duration) -> Self {
        Self::Http2(Box::new(StreamReader {
            stream,
            timeout,
            timer: DeadlineTimer::default(),
            waiting_since: None,
        }))
    }

    /// The connection itself, which speaks another protocol from now on.
    pub(super) fn into_connection(self) -> Option<Box<Connection>> {
        match self {
            Self::Http1(reader) => reader.into_connection(),
            Self::Http2(_) => None,
        }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let reader = match &mut self.0 {
            BodySource::Http1(reader) => reader,
            BodySource::Http2(reader) => {
                let frame = ready!(reader.poll_frame(cx));
                return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)));
            }
            BodySource::Timed(timed) => {
                if timed.timer.poll_past(timed.deadline, cx).is_ready() {
                    // Closes the connection.
                    self.0 = BodySource::Full(Full::default());
                    return Poll::Ready(Some(Err(Broken::TotalTimeout.into())));
                }
                return Pin::new(&mut timed.body).poll_frame(cx);
            }
            BodySource::Full(body) => {
                return Pin::new(body)
                    .poll_frame(cx)
                    .map_err(|never| match never {});
            }
        };
        Poll::Ready(match ready!(reader.poll_piece(cx)) {
            Ok(Piece::Data(data)) => Some(Ok(Frame::data(data))),
            Ok(Piece::Trailers(mut trailers)) => {
                hop_by_hop::strip_trailers(&mut trailers);
                Some(Ok(Frame::trailers(trailers)))
            }
            Ok(Piece::End) => None,
            Err(broken) => Some(Err(broken.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodySource::Full(body) => body.is_end_stream(),
            BodySource::Timed(timed) => timed.body.is_end_stream(),
            BodySource::Http1(reader) => reader.is_at_end(),
            BodySource::Http2(reader) => reader.stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodySource::Full(body) => body.size_hint(),
            BodySource::Timed(timed) => timed.body.size_hint(),
            BodySource::Http1(reader) => reader.size_hint(),
            BodySource::Http2(reader) => reader.stream.size_hint(),
        }
    }
}

fn without_hop_by_hop(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        hop_by_hop::strip_trailers(trailers);
    }
    frame
}

/// Reads a body from a connection of HTTP/1.1.
pub(super) struct ResponseReader {
    decoder: Decoder,
    /// The connection, as long as there is something to read. Dropping it closes it.
    connection: Option<Box<Connection>>,
    /// The rest of the request, if it was answered before its end.
    pending: Option<PendingUpload>,
    /// Whether the connection can serve another request.
    keep_alive: bool,
    /// How long the server may take for the next piece.
    timeout: Duration,
    /// When the wait for the next piece began; the time that the client takes does not count.
    waiting_since: Option<Instant>,
}

impl ResponseReader {
    /// The body that `decoder` finds on `connection`, which serves another request afterwards if
    /// `keep_alive` is set and the `pending` rest of this one is sent. No piece of it may take
    /// longer than `timeout`.
    pub(super) fn new(
        decoder: Decoder,
        connection: Box<Connection>,
        pending: Option<PendingUpload>,
        keep_alive: bool,
        timeout: Duration,
    ) -> Self {
        let mut reader = Self {
            decoder,
            connection: Some(connection),
            pending,
            keep_alive,
            timeout,
            waiting_since: None,
        };
        reader.finish_at_end();
        reader
    }

    /// The whole body, if it has arrived already.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        let connection = self.connection.as_mut()?;
        let whole = connection.reader.take_whole(&mut self.decoder)?;
        self.finish_at_end();
        Some(whole)
    }

    /// The connection itself, which speaks another protocol from now on.
    pub(super) fn into_connection(mut self) -> Option<Box<Connection>> {
        self.connection.take()
    }

    /// The next piece of the body. After the end, or an error, there is only the end.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, Broken>> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(Ok(Piece::End));
        };
        let piece = match poll_next(connection, &mut self.decoder, cx) {
            Poll::Ready(piece) => piece,
            Poll::Pending => {
                let since = *self.waiting_since.get_or_insert_with(loop_time::now);
                ready!(connection.timer.poll_past(since + self.timeout, cx));
                Err(Broken::Timeout)
            }
        };
        self.waiting_since = None;
        match &piece {
            Ok(Piece::Data(_) | Piece::Trailers(_)) => self.finish_at_end(),
            Ok(Piece::End) => self.finish(),
            Err(broken) => {
                if let Broken::Malformed(error) = broken {
                    connection.log_cut(error);
                }
                self.connection = None;
            }
        }
        Poll::Ready(piece)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.connection.is_none() || self.decoder.is_at_end()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.connection {
            Some(_) => self.decoder.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }

    /// A body's reader need not ask for its end if its length told it.
    fn finish_at_end(&mut self) {
        if self.decoder.is_at_end() {
            self.finish();
        }
    }

    /// Hands the connection on, now or when the request is sent to its end.
    fn finish(&mut self) {
        let connection = self.connection.take().filter(|_| self.keep_alive);
        match (connection, self.pending.take()) {
            (Some(connection), None) => connection.release(),
            (Some(connection), Some(pending)) => {
                drop(tokio::spawn(pending.release_after(connection)));
            }
            (None, _) => {}
        }
    }
}

fn poll_next(
    connection: &mut Connection,
    decoder: &mut Decoder,
    cx: &mut Context<'_>,
) -> Poll<Result<Piece, Broken>> {
    loop {
        if let Some(piece) = connection.reader.take_piece(decoder)? {
            return Poll::Ready(Ok(piece));
        }
        match ready!(connection.reader.poll_fill(cx))? {
            0 if decoder.ends_with_connection() => return Poll::Ready(Ok(Piece::End)),
            0 => return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())),
            _ => {}
        }
    }
}

/// The rest of a request that was answered before its end. A task of its own sends it, as the
/// client need not read the response before it has sent everything.
pub(super) struct PendingUpload {
    writer: oneshot::Receiver<WriteHalf>,
    task: AbortHandle,
}

impl PendingUpload {
    /// Sends what is left, for as long as the server takes some of it every now and then.
    pub(super) fn send<B>(
        mut request: RequestWriter<B>,
        mut writer: WriteHalf,
        timeout: Duration,
    ) -> Self
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let (sent, receiver) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut timer = DeadlineTimer::default();
            let done = poll_fn(|cx| match request.poll(cx, &mut writer) {
                Poll::Ready(done) => Poll::Ready(done.is_ok()),
                Poll::Pending => {
                    let deadline = request.deadline(timeout);
                    timer.poll_past(deadline, cx).map(|()| false)
                }
            });
            // An error here is the server's to handle; its response is on its way already.
            if done.await {
                let _ = sent.send(writer);
            }
        });
        Self {
            writer: receiver,
            task: task.abort_handle(),
        }
    }

    async fn release_after(mut self, mut connection: Box<Connection>) {
        if let Ok(writer) = (&mut self.writer).await {
            connection.writer = Some(writer);
            connection.release();
        }
    }
}

/// The response is not wanted any more, or broke off, and so the request is of no use either.
impl Drop for PendingUpload {
    fn drop(&mut self) {
        self.task.abort();
    }
}
