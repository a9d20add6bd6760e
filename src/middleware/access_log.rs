//! Writes a line and counts for each request, when the last byte of its answer is sent or its
//! client is gone.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, Bytes};
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use crate::middleware::{ClientIdentity, Deciding, Verdict};
use crate::rules::RouteMatch;
use crate::telemetry::{
    Answer, Disposition, Metrics, RequestFinished, RouteMetrics, Said, Strictest, Traffic, Tunnel,
    UpstreamAnswer, UpstreamFailed, UpstreamOutcome, is_logged,
};

/// What nginx made the usual status for a client that left before it was answered.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Who numbers requests does it here: a proxy in front, or the app.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Logs and counts requests.
#[derive(Clone, Debug)]
pub struct AccessLogLayer(Arc<Routes>);

#[derive(Debug)]
struct Routes {
    routes: Vec<RouteMetrics>,
    unrouted: RouteMetrics,
    /// Whether queries are logged, which may hold secrets.
    queries: bool,
}

impl AccessLogLayer {
    /// Logs requests under the names of their routes, given in the routes' order.
    ///
    /// Queries are logged only where `queries` says so.
    pub fn new<'a>(
        routes: impl IntoIterator<Item = &'a str>,
        queries: bool,
        metrics: &Metrics,
    ) -> Self {
        let routes = routes.into_iter().map(|name| metrics.route(name)).collect();
        Self(Arc::new(Routes {
            routes,
            unrouted: metrics.unrouted(),
            queries,
        }))
    }
}

impl<S> Layer<S> for AccessLogLayer {
    type Service = AccessLog<S>;

    fn layer(&self, inner: S) -> AccessLog<S> {
        AccessLog {
            inner,
            routes: Arc::clone(&self.0),
        }
    }
}

/// A service whose requests are logged and counted; see [`AccessLogLayer`].
#[derive(Clone, Debug)]
pub struct AccessLog<S> {
    inner: S,
    routes: Arc<Routes>,
}

/// What is known of a request so far. It is told when it is dropped, whatever happened. It is boxed
/// because it travels with the future, then with the body, which are moved many times.
#[derive(Debug)]
struct Record {
    since: Instant,
    route: RouteMetrics,
    method: Method,
    uri: Uri,
    version: Version,
    sender: Option<ClientIdentity>,
    /// None where nobody reads the log.
    kept: Option<Box<Kept>>,
    status: StatusCode,
    verdict: Option<Verdict>,
    upstream: Option<UpstreamOutcome>,
    upstream_error: Option<&'static str>,
    bytes: u64,
    complete: bool,
    /// Of the tunnel that the request has become.
    traffic: Option<Arc<Traffic>>,
}

/// What is kept of a request's head for the log alone.
#[derive(Debug)]
struct Kept {
    host: Option<HeaderValue>,
    scheme: &'static str,
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    request_id: Option<HeaderValue>,
    query: bool,
    strictest: Option<Strictest>,
}

impl Kept {
    fn of<B>(request: &Request<B>, query: bool) -> Self {
        let headers = request.headers();
        Self {
            host: headers.get(header::HOST).cloned(),
            scheme: scheme(request),
            user_agent: headers.get(header::USER_AGENT).cloned(),
            referer: headers.get(header::REFERER).cloned(),
            request_id: headers.get(REQUEST_ID).cloned(),
            query,
            strictest: None,
        }
    }

    fn said<'a>(&'a self, uri: &'a Uri) -> Said<'a> {
        let authority = uri.authority().map(|it| it.as_str().as_bytes());
        let referer = self.referer.as_ref().map(HeaderValue::as_bytes);
        Said {
            host: authority.or_else(|| self.host.as_ref().map(HeaderValue::as_bytes)),
            scheme: Some(self.scheme),
            user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
            referer: match self.query {
                true => referer,
                false => referer.and_then(without_query),
            },
            request_id: self.request_id.as_ref().map(HeaderValue::as_bytes),
        }
    }
}

/// By which scheme the client came, as far as a trusted proxy or the connection itself says.
fn scheme<B>(request: &Request<B>) -> &'static str {
    let sender = request.extensions().get::<ClientIdentity>();
    let told = sender.filter(|it| it.client.peer_is_trusted);
    match told.and_then(|_| request.headers().get(FORWARDED_PROTO)) {
        Some(proto) if proto.as_bytes().eq_ignore_ascii_case(b"https") => "https",
        Some(proto) if proto.as_bytes().eq_ignore_ascii_case(b"http") => "http",
        _ if sender.is_some_and(|it| it.secure) => "https",
        _ => "http",
    }
}

/// A URL without its query, which may hold secrets of the page that it is of.
fn without_query(url: &[u8]) -> Option<&[u8]> {
    url.split(|byte| matches!(byte, b'?' | b'#')).next()
}

impl Record {
    fn of<B>(request: &Request<B>, routes: &Routes) -> Self {
        let found = request.extensions().get::<RouteMatch>();
        let route = found.and_then(|found| routes.routes.get(found.id.0));
        Self {
            since: Instant::now(),
            route: route.unwrap_or(&routes.unrouted).clone(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            sender: request.extensions().get::<ClientIdentity>().cloned(),
            kept: is_logged().then(|| Box::new(Kept::of(request, routes.queries))),
            status: StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or_default(),
            verdict: None,
            upstream: None,
            upstream_error: None,
            bytes: 0,
            complete: false,
            traffic: None,
        }
    }

    fn answered<B>(&mut self, response: &mut Response<B>) {
        self.status = response.status();
        self.verdict = response.extensions_mut().remove();
        self.upstream = response.extensions_mut().remove();
        let failed = response.extensions_mut().remove::<UpstreamFailed>();
        self.upstream_error = failed.map(|failed| failed.reason);
        if let Some(kept) = &mut self.kept {
            let id = || response.headers().get(REQUEST_ID).cloned();
            kept.request_id = kept.request_id.take().or_else(id);
            kept.strictest = response.extensions_mut().remove();
        }
    }

    /// The request is counted by what has been until now, and told of when its tunnel ends.
    fn becomes(mut self: Box<Self>, tunnel: &Tunnel) {
        self.told().count();
        self.traffic = Some(Arc::clone(tunnel.traffic()));
        tunnel.hold(self);
    }

    fn told(&self) -> RequestFinished<'_> {
        let sender = self.sender.as_ref();
        let account = sender.and_then(|sender| sender.account.as_ref());
        let verdict = self.verdict.as_ref();
        let kept = self.kept.as_ref();
        RequestFinished {
            route: &self.route,
            method: &self.method,
            path: self.uri.path(),
            query: kept.filter(|it| it.query).and_then(|_| self.uri.query()),
            said: kept.map(|it| it.said(&self.uri)).unwrap_or_default(),
            version: self.version,
            client: sender.map(|sender| sender.client.address),
            account: account.map(|account| account as _),
            decision: verdict.map_or(Disposition::Unlimited, |verdict| verdict.disposition),
            denied_by: verdict.and_then(|verdict| verdict.denied_by.as_deref()),
            banned_by: verdict.and_then(|verdict| verdict.banned_by.as_deref()),
            listed: verdict.and_then(|verdict| verdict.listed),
            decided_by: verdict.and_then(|verdict| verdict.decided_by),
            store: verdict.and_then(|verdict| verdict.store),
            strictest: kept.and_then(|it| it.strictest),
            in_flight: verdict.and_then(|verdict| verdict.in_flight),
            upstream: self.upstream.as_ref().map(|upstream| UpstreamAnswer {
                server: &upstream.server,
                status: Some(upstream.status),
                head: Some(upstream.head),
            }),
            upstream_error: self.upstream_error,
            answer: Answer {
                status: self.status,
                bytes: self.bytes,
                complete: self.complete,
                took: self.since.elapsed(),
            },
            received: None,
        }
    }

    fn told_of_tunnel(&self, traffic: &Traffic) -> RequestFinished<'_> {
        let (bytes, received) = traffic.bytes();
        let told = self.told();
        RequestFinished {
            answer: Answer {
                bytes,
                complete: traffic.is_complete(),
                ..told.answer
            },
            received: Some(received),
            ..told
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        match &self.traffic {
            Some(traffic) => self.told_of_tunnel(traffic).log(),
            None => self.told().emit(),
        }
    }
}

impl<S, B, R> Service<Request<B>> for AccessLog<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Deciding,
    R: Body,
{
    type Response = Response<LoggedBody<R>>;
    type Error = S::Error;
    type Future = LoggedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let record = Some(Box::new(Record::of(&request, &self.routes)));
        LoggedFuture {
            future: self.inner.call(request),
            record,
        }
    }
}

pin_project! {
    /// The response of [`AccessLog`].
    #[derive(Debug)]
    pub struct LoggedFuture<F>
    where
        F: Deciding,
    {
        #[pin]
        future: F,
        record: Option<Box<Record>>,
    }

    impl<F> PinnedDrop for LoggedFuture<F>
    where
        F: Deciding,
    {
        /// Who leaves before the answer was decided about all the same, and held in a tarpit perhaps.
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(record) = this.record {
                record.verdict = this.future.verdict().cloned();
            }
        }
    }
}

impl<F, R, E> Future for LoggedFuture<F>
where
    F: Future<Output = Result<Response<R>, E>> + Deciding,
    R: Body,
{
    type Output = Result<Response<LoggedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.future.poll(cx))?;
        let mut record = this.record.take();
        if let Some(record) = &mut record {
            record.answered(&mut response);
            // The answer to HEAD has no body, whatever the body at hand says.
            record.complete = record.method == Method::HEAD || response.body().is_end_stream();
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(tunnel) = response.extensions_mut().remove::<Tunnel>()
            && let Some(record) = record.take()
        {
            record.becomes(&tunnel);
        }
        Poll::Ready(Ok(response.map(|body| LoggedBody { body, record })))
    }
}

pin_project! {
    /// A response's body that logs its request when it is dropped.
    #[derive(Debug)]
    pub struct LoggedBody<R> {
        #[pin]
        body: R,
        record: Option<Box<Record>>,
    }
}

impl<R: Body<Data = Bytes>> Body for LoggedBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if let Some(record) = this.record {
            match &frame {
                Some(Ok(frame)) => {
                    let data = frame.data_ref().map_or(0, Buf::remaining);
                    record.bytes = record.bytes.saturating_add(data as u64);
                    // Where the length is known, nobody asks for the end.
                    record.complete = this.body.is_end_stream();
                }
                Some(Err(_)) => {}
                None => record.complete = true,
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
