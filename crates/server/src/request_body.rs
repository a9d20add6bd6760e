//! A request body: it must keep arriving, and what is left unread of it is drained.
//!
//! A client that announces a body and sends none would otherwise hold a connection to the upstream
//! for as long as it likes, at no cost to itself.
//!
//! If a body is not read to its end, as when a request is denied, hyper reads no further, and
//! closes the connection after the response without having said so in it: a client that sends its
//! head first, and its body a moment later, loses its next request. So a short remainder is
//! drained, and the connection stays open; otherwise the response carries `Connection: close`.
//!
//! Over HTTP/2 the end of such a body is a reset of its stream, behind the response. A client that
//! still sends may take the reset for the outcome and show no response at all, as curl 7.88 does.
//! So what it sends is read and discarded for a moment, as before a close over HTTP/1.1
//! (`client_io`): most clients stop by themselves when they see the response.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use super::client_io::LINGER;
use super::connection_state::ServedRequest;

/// A client's request body. It fails when nothing arrives for `stall_timeout` while it is awaited.
#[derive(Debug)]
pub struct RequestBody<B = DrainOnDrop>(BodyState<B>);

#[derive(Debug)]
enum BodyState<B> {
    /// The body of a request that this crate's own HTTP/1.1 serves.
    Plain(Bytes),
    /// The rest of a body that came with the head.
    Buffered(Bytes),
    /// Boxed, as requests are moved from layer to layer, and most have no such body.
    Streaming(Box<StreamingBody<B>>),
}

#[derive(Debug)]
struct StreamingBody<B> {
    body: B,
    stall_timeout: Duration,
    /// Set while nothing arrives.
    end: Option<Pin<Box<Sleep>>>,
}

impl<B> RequestBody<B> {
    pub(super) fn new(body: B, stall_timeout: Duration) -> Self {
        Self(BodyState::Streaming(Box::new(StreamingBody {
            body,
            stall_timeout,
            end: None,
        })))
    }

    /// The body of a plain request, which is there as a whole.
    pub(super) fn plain(body: Bytes) -> Self {
        Self(BodyState::Plain(body))
    }

    /// Whether the response may have header lines in its [`ProblemResponse`].
    ///
    /// [`ProblemResponse`]: weir_http::problem::ProblemResponse
    pub fn takes_lines(&self) -> bool {
        matches!(self.0, BodyState::Plain(_))
    }

    /// A body that is there as a whole.
    pub fn buffered(body: Bytes) -> Self {
        Self(BodyState::Buffered(body))
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let StreamingBody {
            body,
            stall_timeout,
            end,
        } = match &mut self.0 {
            BodyState::Plain(body) | BodyState::Buffered(body) => {
                let whole = Some(mem::take(body)).filter(|body| !body.is_empty());
                return Poll::Ready(whole.map(|body| Ok(Frame::data(body))));
            }
            BodyState::Streaming(streaming) => &mut **streaming,
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            *end = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let end = end.get_or_insert_with(|| Box::pin(sleep(*stall_timeout)));
        ready!(end.as_mut().poll(cx));
        let late = io::Error::new(ErrorKind::TimedOut, "the client sends no more of the body");
        Poll::Ready(Some(Err(late.into())))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyState::Plain(body) | BodyState::Buffered(body) => body.is_empty(),
            BodyState::Streaming(streaming) => streaming.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyState::Plain(body) | BodyState::Buffered(body) => {
                SizeHint::with_exact(body.len() as u64)
            }
            BodyState::Streaming(streaming) => streaming.body.size_hint(),
        }
    }
}

/// How many unread bytes are drained. A new connection costs more than that.
const MAX_DRAINED: u64 = 64 * 1024;

/// How long they may take to arrive.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How many bytes of a stream are read after its response, for which its client gets as much room
/// to send. A client may have a mebibyte on its way before it can know of the response.
const MAX_LINGERED: u64 = 4 * 1024 * 1024;

/// The body of a client's request as it arrives.
#[derive(Debug)]
enum ClientBody {
    /// By hyper.
    Hyper(Incoming),
    /// By a protocol of another crate.
    Other(UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>),
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Hyper(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Other(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(body) => body.is_end_stream(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Hyper(body) => body.size_hint(),
            Self::Other(body) => body.size_hint(),
        }
    }
}

/// A body whose unread remainder is drained when this is dropped.
#[derive(Debug)]
pub struct DrainOnDrop {
    /// Until it is drained.
    body: Option<ClientBody>,
    /// For HTTP/1.1, where the next request follows the body. Dropped after it.
    connection: Option<ServedRequest>,
    /// A client that expects `100 Continue` does not get it after the response.
    is_expected: bool,
    /// Whether it has a stream of its own, as those of HTTP/2 have.
    is_stream: bool,
    is_over: bool,
}

impl DrainOnDrop {
    /// Wraps the body of a request, which keeps its connection busy while it can be read.
    pub(super) fn wrap(
        request: Request<Incoming>,
        connection: impl FnOnce() -> ServedRequest,
    ) -> Request<Self> {
        let is_stream = request.version() == Version::HTTP_2;
        let is_followed = !is_stream && !request.body().is_end_stream();
        let is_expected = is_followed && request.headers().contains_key(EXPECT);
        request.map(|body| Self {
            body: Some(ClientBody::Hyper(body)),
            connection: is_followed.then(connection),
            is_expected,
            is_stream,
            is_over: false,
        })
    }

    /// Wraps the body of a stream of another protocol than HTTP/2.
    pub(super) fn of_stream<B>(body: B) -> Self
    where
        B: Body<Data = Bytes, Error = Box<dyn Error + Send + Sync>> + Send + 'static,
    {
        Self {
            body: Some(ClientBody::Other(UnsyncBoxBody::new(body))),
            connection: None,
            is_expected: false,
            is_stream: true,
            is_over: false,
        }
    }

    fn is_short(&self) -> bool {
        let most = self.size_hint().upper();
        !self.is_expected && most.is_some_and(|most| most <= MAX_DRAINED)
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        if self.is_over || self.is_end_stream() {
            return;
        }
        let runtime = Handle::try_current().ok();
        if self.is_stream {
            if let (Some(body), Some(runtime)) = (self.body.take(), runtime) {
                runtime.spawn(linger(body));
            }
            return;
        }
        let Some(connection) = &self.connection else {
            return;
        };
        match runtime {
            Some(runtime) if self.is_short() => {
                if let (Some(body), Some(connection)) = (self.body.take(), self.connection.take()) {
                    runtime.spawn(drain(body, connection));
                }
            }
            _ => connection.will_close(),
        }
    }
}

/// Reads and discards the remainder; the connection counts as busy meanwhile.
async fn drain(mut body: ClientBody, connection: ServedRequest) {
    let remainder = async { while let Some(Ok(_)) = body.frame().await {} };
    // If a client takes longer, its connection is closed.
    let _ = timeout(DRAIN_TIMEOUT, remainder).await;
    drop(body);
    drop(connection);
}

/// Reads and discards what a client sends after the response, until it stops or has sent enough.
async fn linger(mut body: ClientBody) {
    let mut left = MAX_LINGERED;
    let rest = async {
        while let Some(Ok(frame)) = body.frame().await {
            let read = frame.data_ref().map_or(0, |data| data.len() as u64);
            left = left.saturating_sub(read);
            if left == 0 {
                return;
            }
        }
    };
    let _ = timeout(LINGER, rest).await;
}

impl Body for DrainOnDrop {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if let Some(connection) = &self.connection
            && connection.is_suspect()
        {
            connection.will_close();
            self.is_over = true;
            let error = "a line of the chunks ends with a bare line feed";
            return Poll::Ready(Some(Err(error.into())));
        }
        // Trailers come last, so a reader may stop there; after an error there is nothing to read.
        self.is_over = !matches!(&frame, Some(Ok(frame)) if frame.is_data());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(SizeHint::default, Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_may_take_long_but_must_not_stop() {
        let stall_timeout = Duration::from_secs(60);
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let mut body = RequestBody::new(StreamBody::new(stream), stall_timeout);
        tokio::spawn(async move {
            for _ in 0..10 {
                sleep(stall_timeout * 9 / 10).await;
                let data = Frame::data(Bytes::from_static(b"x"));
                sender.send(Ok::<_, io::Error>(data)).unwrap();
            }
            std::future::pending::<()>().await;
        });
        let start = Instant::now();
        for _ in 0..10 {
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(start.elapsed(), stall_timeout * 9);
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(start.elapsed(), stall_timeout * 10);
    }
}
