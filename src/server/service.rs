//! The service of one connection, with what the server itself wants to know and say about every
//! request: that it is in flight, that the connection closes after it, or in place of an answer, and
//! that some answers have no content.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
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
            is_head: request.method() == Method::HEAD,
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
        is_head: bool,
    }
}

impl<F, B> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body,
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
        if *this.is_head {
            tell_length(&mut response);
        }
        let has_content = !*this.is_head && allows_content(response.status());
        Poll::Ready(Ok(response.map(|inner| CountedBody {
            inner,
            has_content,
            _guard: guard,
        })))
    }
}

/// Whether an answer of this status can have content (RFC 9110, sections 15.3.5 and 15.4.5).
fn allows_content(status: StatusCode) -> bool {
    !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Says how long the body of an answer to HEAD would be for GET, as far as that is known.
fn tell_length<B: Body>(response: &mut Response<B>) {
    let body = response.body();
    // What an upstream answers has no body here, and a length only where the upstream tells one.
    if body.is_end_stream() || !allows_content(response.status()) {
        return;
    }
    if let Some(length) = body.size_hint().exact() {
        let length = || HeaderValue::from(length);
        response
            .headers_mut()
            .entry(CONTENT_LENGTH)
            .or_insert_with(length);
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
    ///
    /// An answer to HEAD never has content, whatever its body holds. hyper sees to that for HTTP/1.1,
    /// but over HTTP/2 it sent the body, which clients take for a broken connection.
    pub(super) struct CountedBody<B> {
        #[pin]
        inner: B,
        has_content: bool,
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
        let this = self.project();
        if !*this.has_content {
            return Poll::Ready(None);
        }
        this.inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        !self.has_content || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if !self.has_content {
            return SizeHint::with_exact(0);
        }
        self.inner.size_hint()
    }
}
