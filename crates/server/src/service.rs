//! The service of one connection, with what the server adds to every request: it tracks that it is
//! in flight, sets `Connection: close`, closes the connection instead of answering, and removes the
//! content of responses that must not have any.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ALT_SVC, CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::service::Service;
use pin_project_lite::pin_project;
use weir_http::problem::NoResponse;
use weir_http::request::{BoxedRequest, HttpRequest, WebSocketStream};
use weir_runtime::loop_time::PollClock;
use weir_telemetry::Tunnel;

use super::challenges::Challenges;
use super::connection_state::{ConnectionState, ServedRequest};
use super::request_body::DrainOnDrop;
use super::request_body::RequestBody;
use super::stream_tasks::begin_tunnel;

/// A service that answers the requests of one connection. Implemented for every suitable service.
pub trait ConnectionService:
    Service<
        BoxedRequest<RequestBody>,
        Response = Response<<Self as ConnectionService>::Body>,
        Error = Infallible,
        Future: Send + 'static,
    > + Send
    + 'static
{
    /// Of its responses.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;
}

impl<S, B> ConnectionService for S
where
    S: Service<BoxedRequest<RequestBody>, Response = Response<B>, Error = Infallible>
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    type Body = B;
}

/// The service of [`service_fn`].
pub struct ServiceFn<F, Q> {
    respond: F,
    takes: PhantomData<fn(Q)>,
}

/// A service that calls `respond`, which takes a [`BoxedRequest`] or what one can become, such as a
/// [`Request`].
pub fn service_fn<F, Q>(respond: F) -> ServiceFn<F, Q> {
    ServiceFn {
        respond,
        takes: PhantomData,
    }
}

impl<F, Q, A, R> Service<BoxedRequest<RequestBody>> for ServiceFn<F, Q>
where
    F: Fn(Q) -> A,
    Q: From<BoxedRequest<RequestBody>>,
    A: Future<Output = Result<Response<R>, Infallible>>,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = A;

    fn call(&self, request: BoxedRequest<RequestBody>) -> A {
        (self.respond)(request.into())
    }
}

/// There is no response: hyper closes the connection, or resets the stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("the connection is closed without an answer")]
    Closed,
    /// The code of the reset is the error's.
    #[error("the stream is reset")]
    Reset(#[source] h2::Error),
}

/// In the extensions of a response beside [`NoResponse`]: the stream is reset with this code.
#[derive(Clone, Copy, Debug)]
struct Reset(h2::Reason);

/// What a request of HTTP/2 or HTTP/3 has beside one of HTTP/1.1.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamHead {
    /// Whether the stream is to become a tunnel.
    is_tunnel: bool,
    /// The size of the head; 0 over HTTP/1.1.
    bytes: u32,
}

impl StreamHead {
    /// That of a request whose stream becomes no tunnel.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        Self {
            is_tunnel: false,
            bytes: head_bytes(request),
        }
    }

    /// That of a request that is refused, and so holds nothing.
    pub(super) fn refused(self) -> Self {
        Self { bytes: 0, ..self }
    }
}

/// Tracks the requests of a connection.
pub(super) struct TrackRequests<S> {
    pub(super) inner: S,
    /// What ACME servers ask, where certificates come from there.
    pub(super) challenges: Option<Challenges>,
    pub(super) state: Arc<ConnectionState>,
}

impl<S> TrackRequests<S> {
    /// The response to a request that the inner service does not see. hyper answers other invalid
    /// requests by itself.
    pub(super) fn refusal<B>(
        &self,
        request: &Request<B>,
        head: StreamHead,
    ) -> Option<Response<Full<Bytes>>> {
        let headers = request.headers();
        if self.state.is_suspect() && headers.contains_key(TRANSFER_ENCODING) {
            self.state.will_close();
            return Some(empty(StatusCode::BAD_REQUEST));
        }
        // hyper bounds heads of HTTP/1.1. h2 bounds no number of lines, and has a larger bound for
        // their size.
        let bounds = &self.state.bounds;
        if headers.len() > bounds.max_headers || head.bytes > bounds.max_head_bytes {
            return Some(empty(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        }
        if is_malformed(request) {
            return Some(reset(h2::Reason::PROTOCOL_ERROR));
        }
        // The client may send it again (RFC 9113, section 8.7).
        let has_room = self.state.has_room_for(head.bytes);
        (!has_room).then(|| reset(h2::Reason::REFUSED_STREAM))
    }
}

impl<S: ConnectionService> Service<Request<Incoming>> for TrackRequests<S> {
    type Response = Response<TrackedBody<S::Body>>;
    type Error = Unanswered;
    type Future = ResponseFuture<S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let mut head = StreamHead {
            is_tunnel: asks_for_websocket(&request),
            bytes: head_bytes(&request),
        };
        let refusal = self.refusal(&request, head);
        if refusal.is_some() {
            head.bytes = 0;
        }
        if head.is_tunnel {
            *request.method_mut() = Method::GET;
            // The tunnel keeps the extensions, and so the request is in flight as long.
            let served = Arc::new(self.state.request());
            request.extensions_mut().insert(served);
            request.extensions_mut().insert(WebSocketStream);
        }
        let request = match request.body().is_end_stream() {
            true => request.map(|_| RequestBody::buffered(Bytes::new())),
            false => DrainOnDrop::wrap(request, || self.state.request())
                .map(|body| RequestBody::new(body, self.state.bounds.stall_timeout)),
        };
        self.track(request.into_boxed(), refusal, head)
    }
}

/// Whether requests of this version have a stream each, and pseudo-header fields.
fn has_streams(version: Version) -> bool {
    matches!(version, Version::HTTP_2 | Version::HTTP_3)
}

/// The size of a head of HTTP/2 or HTTP/3, as SETTINGS_MAX_HEADER_LIST_SIZE counts it (RFC 9113,
/// section 6.5.2; RFC 9114, section 4.2.2).
pub(super) fn head_bytes<B>(request: &Request<B>) -> u32 {
    if !has_streams(request.version()) {
        return 0;
    }
    let line = |name: usize, value: usize| name + value + 32;
    let uri = request.uri();
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = uri.authority().map(|authority| authority.as_str().len());
    let scheme = uri.scheme_str().map(str::len);
    let pseudo = line(":method".len(), request.method().as_str().len())
        + line(":path".len(), path)
        + scheme.map_or(0, |length| line(":scheme".len(), length))
        + authority.map_or(0, |length| line(":authority".len(), length));
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| line(name.as_str().len(), value.len()));
    u32::try_from(pseudo + headers.sum::<usize>()).unwrap_or(u32::MAX)
}

/// No response, but a reset with this code.
fn reset(reason: h2::Reason) -> Response<Full<Bytes>> {
    let mut response = empty(StatusCode::BAD_REQUEST);
    response.extensions_mut().insert(NoResponse);
    response.extensions_mut().insert(Reset(reason));
    response
}

/// A response without content.
fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

impl<S: ConnectionService> TrackRequests<S> {
    /// Responds to a plain request, which is not refused here.
    pub(super) fn respond(&self, request: BoxedRequest<RequestBody>) -> ResponseFuture<S::Future> {
        self.track(request, None, StreamHead::default())
    }

    pub(super) fn track(
        &self,
        request: BoxedRequest<RequestBody>,
        refusal: Option<Response<Full<Bytes>>>,
        head: StreamHead,
    ) -> ResponseFuture<S::Future> {
        let challenge = || self.challenges.as_ref()?.response(&request);
        let own = refusal.or_else(challenge);
        ResponseFuture {
            version: request.version(),
            is_head: request.method() == Method::HEAD,
            is_tunnel: head.is_tunnel,
            guard: Some(TrackedRequest::new(&self.state, head.bytes)),
            answer: match own {
                Some(response) => AnswerFuture::Own {
                    response: Some(Box::new(response)),
                },
                None => AnswerFuture::Asked {
                    future: self.inner.call(request),
                },
            },
        }
    }
}

/// Whether a stream of HTTP/2 is to become a WebSocket (RFC 8441 section 4). By HTTP/1.1 that is
/// asked for by a GET, and so routes and limits see one.
fn asks_for_websocket<B>(request: &Request<B>) -> bool {
    let protocol = || request.extensions().get::<Protocol>();
    request.method() == Method::CONNECT
        && protocol().is_some_and(|protocol| protocol.as_str() == "websocket")
}

/// Whether RFC 9113 calls a request of HTTP/2 malformed that h2 lets pass, as RFC 9114 does for
/// HTTP/3: it has another host than its target (section 8.3.1), a header whose value begins or
/// ends with a blank (section 8.2.1), or asks for a tunnel to nowhere (section 8.5).
fn is_malformed<B>(request: &Request<B>) -> bool {
    if !has_streams(request.version()) {
        return false;
    }
    let authority = request.uri().authority();
    let host = request.headers().get(HOST);
    let has_other_host = match (authority, host) {
        (Some(authority), Some(host)) => !names_same(authority, host),
        _ => false,
    };
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let has_blank_end = |value: &HeaderValue| {
        let value = value.as_bytes();
        is_blank(value.first()) || is_blank(value.last())
    };
    let leads_nowhere = request.method() == Method::CONNECT && authority.is_none();
    has_other_host || leads_nowhere || request.headers().values().any(has_blank_end)
}

/// Whether a `Host` names what the authority does. Either may leave out a port.
fn names_same(authority: &Authority, host: &HeaderValue) -> bool {
    let Ok(host) = Authority::try_from(host.as_bytes()) else {
        return false;
    };
    let ports = (authority.port_u16(), host.port_u16());
    authority.host().eq_ignore_ascii_case(host.host())
        && (ports.0 == ports.1 || ports.0.is_none() || ports.1.is_none())
}

/// A request in the gauge of those in flight and, with the bytes of its head, in that of heads, until
/// its response has ended.
struct TrackedRequest {
    state: ServedRequest,
    /// The size of its head, over HTTP/2 or HTTP/3.
    head: u32,
}

impl TrackedRequest {
    fn new(state: &Arc<ConnectionState>, head: u32) -> Self {
        let state = state.request();
        state.requests().inc();
        if head > 0 {
            state.hold_head(head);
        }
        Self { state, head }
    }
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        if self.head > 0 {
            self.state.release_head(self.head);
        }
        self.state.requests().dec();
    }
}

pin_project! {
    /// The future of [`TrackRequests`].
    pub(super) struct ResponseFuture<F> {
        #[pin]
        answer: AnswerFuture<F>,
        guard: Option<TrackedRequest>,
        version: Version,
        is_head: bool,
        // Whether a stream of HTTP/2 is to become a tunnel.
        is_tunnel: bool,
    }
}

pin_project! {
    #[project = AnswerFutureProjection]
    enum AnswerFuture<F> {
        /// The inner service answers.
        Asked {
            #[pin]
            future: F,
        },
        /// Taken when it is polled.
        Own { response: Option<Box<Response<Full<Bytes>>>> },
    }
}

impl<F, B> Future for AnswerFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    /// Nothing is in flight with it yet.
    type Output = Response<TrackedBody<B>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            AnswerFutureProjection::Asked { future } => {
                let Ok(response) = ready!(future.poll(cx));
                Poll::Ready(response.map(|body| TrackedBody::new(Content::Service { body })))
            }
            AnswerFutureProjection::Own { response } => Poll::Ready(match response.take() {
                Some(response) => response.map(|body| TrackedBody::new(Content::Own { body })),
                None => Response::new(TrackedBody::new(Content::None)),
            }),
        }
    }
}

impl<F, B> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<TrackedBody<B>>, Unanswered>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A task of its own polls this for each request of HTTP/2.
        let _clock = PollClock::begin();
        let this = self.project();
        let mut response = ready!(this.answer.poll(cx));
        if response.extensions().get::<NoResponse>().is_some() {
            return Poll::Ready(Err(match response.extensions().get::<Reset>() {
                Some(Reset(reason)) => Unanswered::Reset((*reason).into()),
                None => Unanswered::Closed,
            }));
        }
        let guard = this.guard.take();
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(guard) = &guard
        {
            guard.state.upgrades();
        }
        let closes = |guard: &TrackedRequest| guard.state.closes();
        let closes = match *this.version {
            // They have GOAWAY instead of a header.
            Version::HTTP_2 | Version::HTTP_3 => false,
            // hyper closes there as well, but declares keep-alive.
            Version::HTTP_10 if ends_with_connection(&response) => true,
            _ => guard.as_ref().is_some_and(closes),
        };
        if closes {
            set_connection_close(&mut response, *this.version);
        }
        if let Some(alt_svc) = guard.as_ref().and_then(|guard| guard.state.alt_svc()) {
            // Not the upstream's, whose ports are not this listener's.
            response.headers_mut().insert(ALT_SVC, alt_svc.clone());
        }
        if *this.is_tunnel
            && let Some(tunnel) = response.extensions().get::<Tunnel>()
        {
            begin_tunnel(Arc::clone(tunnel.traffic()));
        }
        if *this.is_head {
            set_content_length(&mut response);
        }
        let has_content = !*this.is_head && allows_content(response.status());
        if !has_content && response.status() == StatusCode::NO_CONTENT {
            // Not even a length of 0 (RFC 9110 section 8.6).
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        let body = response.body_mut();
        if !has_content {
            body.inner = Content::None;
        }
        body.guard = guard;
        Poll::Ready(Ok(response))
    }
}

/// Whether a response with this status can have content (RFC 9110, sections 15.3.5 and 15.4.5).
pub(super) fn allows_content(status: StatusCode) -> bool {
    !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Sets the length that the response to HEAD would have for GET, if it is known.
fn set_content_length<B: Body<Data = Bytes>>(response: &mut Response<TrackedBody<B>>) {
    // A response of an upstream has no body here, and its length is the upstream's business.
    let body = Some(&response.body().inner).filter(|body| !body.is_end_stream());
    let body = body.filter(|_| allows_content(response.status()));
    if let Some(length) = body.and_then(|body| body.size_hint().exact()) {
        let length = || HeaderValue::from(length);
        response
            .headers_mut()
            .entry(CONTENT_LENGTH)
            .or_insert_with(length);
    }
}

/// Whether a client without chunked encoding finds the end of the body by the end of the
/// connection.
fn ends_with_connection<B: Body<Data = Bytes>>(response: &Response<TrackedBody<B>>) -> bool {
    let body = &response.body().inner;
    !body.is_end_stream()
        && body.size_hint().exact().is_none()
        && !response.headers().contains_key(CONTENT_LENGTH)
}

/// Tells the client not to send another request on this connection. hyper obeys the header too, and
/// closes once the response is sent.
fn set_connection_close<B>(response: &mut Response<B>, version: Version) {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        if version == Version::HTTP_10 {
            // With a later version, hyper would add `keep-alive`.
            *response.version_mut() = version;
        }
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
}

pin_project! {
    #[project = ContentProjection]
    enum Content<B> {
        None,
        /// Of the server itself.
        Own {
            #[pin]
            body: Full<Bytes>,
        },
        /// Of the service.
        Service {
            #[pin]
            body: B,
        },
    }
}

impl<B: Body<Data = Bytes>> Body for Content<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project() {
            ContentProjection::None => Poll::Ready(None),
            ContentProjection::Own { body } => {
                let frame = ready!(body.poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
            ContentProjection::Service { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::None => true,
            Self::Own { body } => body.is_end_stream(),
            Self::Service { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Own { body } => body.size_hint(),
            Self::Service { body } => body.size_hint(),
        }
    }
}

pin_project! {
    /// A body, if there is content, whose request is in flight until it is dropped.
    ///
    /// A response to HEAD never has content, whatever its body holds. hyper ensures that for
    /// HTTP/1.1, but over HTTP/2 it would send the body, which clients treat as a protocol error.
    ///
    /// What has arrived of a body that breaks off is sent: the connection is asked to wait once
    /// before it is told of the failure, as it would drop what it has not written by then.
    pub(super) struct TrackedBody<B> {
        #[pin]
        inner: Content<B>,
        failure: Option<Box<dyn Error + Send + Sync>>,
        guard: Option<TrackedRequest>,
    }
}

impl<B> TrackedBody<B> {
    const fn new(inner: Content<B>) -> Self {
        Self {
            inner,
            failure: None,
            guard: None,
        }
    }
}

impl<B> Body for TrackedBody<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.project();
        if let Some(failure) = this.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        match ready!(this.inner.poll_frame(cx)) {
            Some(Ok(frame)) => Poll::Ready(Some(Ok(frame))),
            Some(Err(failure)) => {
                *this.failure = Some(failure.into());
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.failure.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
