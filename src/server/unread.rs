//! What becomes of a request's body that nobody wants to the end, as of a request that is denied.
//!
//! hyper reads no further, and closes the connection after the answer without having said so in it: a
//! client that sends its head first, and its body a moment later, loses what it asks next. So the rest
//! of a short body is read and thrown away, and the connection stays; with a long one, the answer says
//! that the connection closes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::activity::InFlight;

/// How much is read of what nobody wants. To open another connection costs more than so many bytes.
const SHORT: u64 = 64 * 1024;

/// How long it may take to arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// A body on its way, of which the rest is seen to when this is dropped.
#[derive(Debug)]
pub struct Upload {
    /// Until it is given away.
    body: Option<Incoming>,
    /// Of HTTP/1.1, where the next request comes behind the body. Dropped after it.
    connection: Option<InFlight>,
    /// A client that waits to be told to send its body is not told so after the answer.
    is_expected: bool,
    is_over: bool,
}

impl Upload {
    /// The body of a request, which keeps its connection busy as long as it can be read.
    pub(super) fn of(
        request: Request<Incoming>,
        connection: impl FnOnce() -> InFlight,
    ) -> Request<Self> {
        let is_followed = request.version() < Version::HTTP_2 && !request.body().is_end_stream();
        let is_expected = is_followed && request.headers().contains_key(EXPECT);
        request.map(|body| Self {
            body: Some(body),
            connection: is_followed.then(connection),
            is_expected,
            is_over: false,
        })
    }

    fn is_short(&self) -> bool {
        let most = self.size_hint().upper();
        !self.is_expected && most.is_some_and(|most| most <= SHORT)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(connection) = &self.connection else {
            return;
        };
        if self.is_over || self.is_end_stream() {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) if self.is_short() => {
                if let (Some(body), Some(connection)) = (self.body.take(), self.connection.take()) {
                    runtime.spawn(discard(body, connection));
                }
            }
            _ => connection.will_close(),
        }
    }
}

/// Reads what still comes, and lets the connection be busy meanwhile.
async fn discard(mut body: Incoming, connection: InFlight) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // A client that takes longer finds its connection closed.
    let _ = timeout(PATIENCE, rest).await;
    drop(body);
    drop(connection);
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        // Trailers come last, so that a reader may stop there; what broke off is over as well.
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
