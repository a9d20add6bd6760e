//! The service of one connection, with what the server itself wants to know and say about every
//! request: that it is in flight, and that the connection closes after it, or in place of an answer.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use pin_project_lite::pin_project;

use super::activity::{Activity, InFlight};
use super::body::RequestBody;
use super::drain::Begun;
use super::unread::Upload;
use crate::problem::NoAnswer;
use crate::telemetry::{GaugeGuard, ServerMetrics};

/// What answers the requests of one connection. Every service that can be served is one.
pub trait ConnectionService:
    Service<
        Request<RequestBody>,
        Response = Response<<Self as ConnectionService>::Body>,
        Error = Infallible,
        Future: Send + 'static,
    > + Send
    + 'static
{
    /// The body of its answers.
    type Body: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;
}

impl<S, B> ConnectionService for S
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S: Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Body = B;
}

/// There is no answer; hyper closes the connection, or resets the stream.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed without an answer")]
pub(super) struct Unanswered;

/// Counts the requests of a connection.
pub(super) struct Counted<S> {
    pub(super) inner: S,
    pub(super) activity: Arc<Activity>,
    pub(super) drain: Begun,
    pub(super) metrics: ServerMetrics,
    pub(super) stall_timeout: Duration,
}

impl<S: ConnectionService> Service<Request<Incoming>> for Counted<S> {
    type Response = Response<CountedBody<S::Body>>;
    type Error = Unanswered;
    type Future = ResponseFuture<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let request = Upload::of(request, || self.activity.request());
        let request = request.map(|body| RequestBody::new(body, self.stall_timeout));
        ResponseFuture {
            closable: request.version() < Version::HTTP_2,
            guard: Some(Guard {
                activity: self.activity.request(),
                _gauge: GaugeGuard::new(&self.metrics.in_flight),
            }),
            drain: self.drain.clone(),
            inner: self.inner.call(request),
        }
    }
}

/// Held as long as the request is in flight.
struct Guard {
    activity: InFlight,
    _gauge: GaugeGuard,
}

pin_project! {
    /// The future of [`Counted`].
    pub(super) struct ResponseFuture<F> {
        #[pin]
        inner: F,
        guard: Option<Guard>,
        drain: Begun,
        // HTTP/2 has no field to close a connection with; it has GOAWAY.
        closable: bool,
    }
}

impl<F, B> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = Result<Response<CountedBody<B>>, Unanswered>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.inner.poll(cx));
        if response.extensions().get::<NoAnswer>().is_some() {
            return Poll::Ready(Err(Unanswered));
        }
        let guard = this.guard.take();
        let closes = |guard: &Guard| guard.activity.closes();
        if *this.closable && (this.drain.is_set() || guard.as_ref().is_some_and(closes)) {
            ask_to_close(&mut response);
        }
        Poll::Ready(Ok(response.map(|inner| CountedBody {
            inner,
            _guard: guard,
        })))
    }
}

/// Tells the client not to send another request on this connection. hyper obeys the field too, and
/// closes once the answer is sent.
fn ask_to_close<B>(response: &mut Response<B>) {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
}

pin_project! {
    /// A body whose request is in flight until it is dropped.
    pub(super) struct CountedBody<B> {
        #[pin]
        inner: B,
        _guard: Option<Guard>,
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
