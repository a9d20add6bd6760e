//! Writes a line and counts for each request, when the last byte of its response is sent or its
//! client is gone.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower::{Layer, Service};
use weir_http::request::HttpRequest;
use weir_rules::Account;
use weir_runtime::loop_time;
use weir_telemetry::{
    ActiveTrace, CountedRequest, Counter, Disposition, ListenerKind, LoggedRequest, Metrics,
    RequestFinished, RouteMetrics, Tail, Tunnel, is_logged,
};

use crate::identify::UnverifiedAccount;
use crate::{ClientIdentity, HasVerdict, RequestContext, Verdict};

/// The status, after nginx, for a client that left before the response.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The lines of refused requests are bounded for each of these.
const DENIED_WINDOW: Duration = Duration::from_secs(1);

/// Logs and counts requests.
#[derive(Clone, Debug)]
pub struct AccessLogLayer(Arc<Settings>);

/// A worker's own: requests count references to it.
#[derive(Clone, Debug)]
struct Settings {
    /// For requests without a route.
    unrouted: Arc<RouteMetrics>,
    /// Whether queries are logged, which may hold secrets.
    queries: bool,
    /// Those who watch requests; none where nobody can.
    tail: Option<Arc<Tail>>,
    /// Whether requests have traces.
    traces: bool,
    denied: Option<Arc<DeniedLines>>,
}

/// Bounds the lines of requests that were not let through, of which a flood can bring any number.
#[derive(Debug)]
struct DeniedLines {
    per_second: u32,
    /// Since when, and how many.
    written: Mutex<(Instant, u32)>,
    /// Times are counted from here.
    epoch: Instant,
    /// When the window that is full ends, in nanoseconds. A flood only reads it, so that workers do
    /// not wait for each other.
    enough_until: AtomicU64,
    left_out: Counter,
}

impl DeniedLines {
    fn new(per_second: NonZeroU32, left_out: Counter) -> Self {
        let now = Instant::now();
        Self {
            per_second: per_second.get(),
            written: Mutex::new((now, 0)),
            epoch: now,
            enough_until: AtomicU64::new(0),
            left_out,
        }
    }

    /// Whether there may be another line now. If not, it is counted.
    fn allow(&self, now: Instant) -> bool {
        let allows = self.nanos(now) >= self.enough_until.load(Relaxed) && self.take(now);
        if !allows {
            self.left_out.inc();
        }
        allows
    }

    fn take(&self, now: Instant) -> bool {
        let mut written = self.written.lock();
        if now.saturating_duration_since(written.0) >= DENIED_WINDOW {
            *written = (now, 0);
        }
        let allows = written.1 < self.per_second;
        written.1 += u32::from(allows);
        if written.1 == self.per_second {
            let until = self.nanos(written.0 + DENIED_WINDOW);
            self.enough_until.store(until, Relaxed);
        }
        allows
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}

impl AccessLogLayer {
    /// Logs requests of a kind of listener, and their queries where `queries` says so, with a bound
    /// on those that were not let through; and ends their traces, if they have some.
    pub fn new(
        listener: ListenerKind,
        queries: bool,
        denied_per_second: Option<NonZeroU32>,
        traces: bool,
        metrics: &Metrics,
    ) -> Self {
        let denied = denied_per_second.map(|per_second| {
            let left_out = metrics.log_left_out();
            Arc::new(DeniedLines::new(per_second, left_out))
        });
        Self(Arc::new(Settings {
            unrouted: Arc::new(metrics.unrouted().on(listener)),
            queries,
            tail: None,
            traces,
            denied,
        }))
    }

    /// Shows requests as they finish to those who watch them there.
    #[must_use]
    pub fn watched_by(self, tail: Option<Arc<Tail>>) -> Self {
        let settings = Arc::unwrap_or_clone(self.0);
        Self(Arc::new(Settings { tail, ..settings }))
    }
}

impl<S> Layer<S> for AccessLogLayer {
    type Service = AccessLog<S>;

    fn layer(&self, inner: S) -> AccessLog<S> {
        AccessLog {
            inner,
            settings: Arc::new(self.0.unshared()),
        }
    }
}

impl Settings {
    /// A copy for one worker, so that workers do not contend for one reference count.
    fn unshared(&self) -> Self {
        Self {
            unrouted: Arc::new(RouteMetrics::clone(&self.unrouted)),
            ..self.clone()
        }
    }
}

/// A service whose requests are logged and counted; see [`AccessLogLayer`].
#[derive(Clone, Debug)]
pub struct AccessLog<S> {
    inner: S,
    settings: Arc<Settings>,
}

/// What is known of a request so far. It is logged when it is dropped, whatever happened. It
/// travels with the future, then with the body, which are moved many times, so what is large about
/// it is in a box.
#[derive(Debug)]
struct Record {
    counted: CountedRequest,
    /// None where the log is not read, nothing is traced, and nobody watches.
    line: Option<Box<LogLine>>,
}

/// What is kept of a request for its line in the log and its trace, and where they go.
#[derive(Debug)]
struct LogLine {
    logged: LoggedRequest,
    account: Option<Account>,
    /// The account that is learned while the request is under way.
    unverified: Option<Arc<UnverifiedAccount>>,
    /// Those who watch, if somebody did when the request came.
    watched: Option<Arc<Tail>>,
    /// When they are to know: how long the head of the response took.
    head: Option<Duration>,
    trace: Option<Arc<ActiveTrace>>,
    settings: Arc<Settings>,
}

impl LogLine {
    /// Returns a box, as a line is large.
    fn new<Q: HttpRequest>(
        request: &Q,
        context: Option<&RequestContext>,
        settings: &Arc<Settings>,
        watched: Option<Arc<Tail>>,
    ) -> Box<Self> {
        let identity = context.and_then(|context| context.identity.as_ref());
        let request_id = context.and_then(|context| context.request_id.as_ref());
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let mut line = Box::new(Self {
            logged: LoggedRequest {
                queries: settings.queries,
                client: identity.map(|identity| identity.client.address),
                scheme: Some(identity.map_or("http", ClientIdentity::scheme)),
                request_id: request_id.map(|id| id.value.clone()),
                ..LoggedRequest::new(method, uri, request.version())
            },
            account: identity.and_then(|identity| identity.account.clone()),
            unverified: context.and_then(|context| context.unverified.clone()),
            watched,
            head: None,
            trace: context.and_then(|context| context.trace.clone()),
            settings: Arc::clone(settings),
        });
        line.logged.keep_headers(request.headers());
        line
    }

    /// Writes the line. A tunnel has its own bytes and its own end.
    fn log(&self, counted: &CountedRequest, took: Duration) {
        let learned = || self.unverified.as_ref()?.learned();
        let account = self.account.as_ref().or_else(learned);
        let finished = RequestFinished {
            counted,
            logged: &self.logged,
            account: account.map(|account| account as _),
            took,
        };
        let denied = self
            .settings
            .denied
            .as_ref()
            .filter(|_| !counted.decision.lets_through());
        if denied.is_none_or(|denied| denied.allow(counted.since + took)) {
            finished.emit();
        }
        if let Some(trace) = &self.trace {
            trace.finish(&finished);
        }
        if let Some(tail) = &self.watched {
            tail.finished(&finished, self.own_time(counted.decision));
        }
    }

    /// What Weir itself took: until the head of the response was there, without the upstream's part
    /// of it. None if the request was made to wait.
    fn own_time(&self, decision: Disposition) -> Option<Duration> {
        let waits = decision.is_made_to_wait();
        let upstream = self.logged.upstream.as_ref().map(|upstream| upstream.head);
        let head = self
            .head
            .filter(|_| !waits && self.logged.upstream_error.is_none());
        Some(head?.saturating_sub(upstream.unwrap_or_default()))
    }
}

impl Record {
    #[inline(always)]
    fn new<Q: HttpRequest>(request: &Q, settings: &Arc<Settings>) -> Self {
        let context = request.extensions().get::<RequestContext>();
        let routed = context.and_then(|context| context.routed.as_ref());
        let route = routed.map(|routed| &routed.route.metrics);
        let tail = settings.tail.as_ref();
        let watched = tail.filter(|tail| tail.is_watched());
        Self {
            counted: CountedRequest {
                since: loop_time::now(),
                route: Arc::clone(route.unwrap_or(&settings.unrouted)),
                is_head: request.method() == Method::HEAD,
                status: StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or_default(),
                decision: Disposition::Unlimited,
                bytes: 0,
                complete: false,
            },
            line: (watched.is_some() || is_logged() || settings.traces)
                .then(|| LogLine::new(request, context, settings, watched.cloned())),
        }
    }

    fn decided(&mut self, verdict: &Verdict) {
        self.counted.decision = verdict.disposition;
        if let Some(line) = &mut self.line {
            line.logged.verdict = Some(verdict.clone());
        }
    }

    fn answered<B: Body>(&mut self, response: &mut Response<B>) {
        let counted = &mut self.counted;
        counted.status = response.status();
        // The response to HEAD has no body, whatever `is_end_stream` returns.
        counted.complete = counted.is_head || response.body().is_end_stream();
        let verdict = match &mut self.line {
            Some(line) => {
                line.head = line.watched.as_ref().map(|_| counted.since.elapsed());
                line.logged.answered(response);
                line.logged.verdict.as_ref()
            }
            None => response.extensions().get(),
        };
        counted.decision = verdict.map_or(counted.decision, |verdict| verdict.disposition);
    }

    fn count(&self, took: Duration) {
        let counted = &self.counted;
        let route = &counted.route;
        route.finished(counted.status, counted.decision, took);
    }

    /// Whether it is worth to look for a tunnel. Over HTTP/2 one begins with 200 (RFC 8441,
    /// section 5).
    fn may_be_tunnel(&self) -> bool {
        self.counted.complete
            && matches!(
                self.counted.status,
                StatusCode::SWITCHING_PROTOCOLS | StatusCode::OK
            )
    }

    /// The request is counted by what has been until now, and logged when its tunnel ends.
    fn move_to(mut self, tunnel: &Tunnel) {
        if let Some(line) = &mut self.line {
            line.logged.traffic = Some(Arc::clone(tunnel.traffic()));
            self.count(self.counted.since.elapsed());
            tunnel.hold(self);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let took = self.counted.since.elapsed();
        let is_tunnel = |line: &LogLine| line.logged.traffic.is_some();
        if !self.line.as_deref().is_some_and(is_tunnel) {
            self.count(took);
        }
        if let Some(line) = &self.line {
            line.log(&self.counted, took);
        }
    }
}

impl<S, Q, R> Service<Q> for AccessLog<S>
where
    S: Service<Q, Response = Response<R>>,
    Q: HttpRequest,
    S::Future: HasVerdict,
    R: Body,
{
    type Response = Response<LoggedBody<R>>;
    type Error = S::Error;
    type Future = LoggedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let record = Some(Record::new(&request, &self.settings));
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
        F: HasVerdict,
    {
        #[pin]
        future: F,
        record: Option<Record>,
    }

    impl<F> PinnedDrop for LoggedFuture<F>
    where
        F: HasVerdict,
    {
        /// A client that leaves before its answer may have been decided about, and perhaps held in a
        /// tarpit. While its request waits for the store, its turn, its places in flight or a slot,
        /// there is no verdict: the line keeps the status and the decision that [`Record::new`] set.
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let (Some(record), Some(verdict)) = (this.record, this.future.verdict()) {
                record.decided(verdict);
            }
        }
    }
}

impl<F, R, E> Future for LoggedFuture<F>
where
    F: Future<Output = Result<Response<R>, E>> + HasVerdict,
    R: Body,
{
    type Output = Result<Response<LoggedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut future = this.future;
        let mut response = ready!(future.as_mut().poll(cx))?;
        let mut record = this.record.take();
        if let Some(record) = &mut record {
            record.answered(&mut response);
            if let Some(line) = &mut record.line {
                line.logged.notes = future.take_notes();
            }
        }
        if record.as_ref().is_some_and(Record::may_be_tunnel)
            && let Some(tunnel) = response.extensions().get::<Tunnel>()
            && let Some(record) = record.take()
        {
            record.move_to(tunnel);
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
        record: Option<Record>,
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
        if let Some(Record { counted, .. }) = this.record {
            match &frame {
                Some(Ok(frame)) => {
                    let data = frame.data_ref().map_or(0, Buf::remaining);
                    counted.bytes = counted.bytes.saturating_add(data as u64);
                    // Where the length is known, the end is not asked for.
                    counted.complete = this.body.is_end_stream();
                }
                Some(Err(_)) => {}
                None => counted.complete = true,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A flood wrote a line for each request: 37,000 in two seconds.
    #[test]
    fn no_more_lines_of_the_denied_are_written_in_a_second_than_the_bound_and_the_others_are_counted()
     {
        let denied = DeniedLines::new(NonZeroU32::new(3).unwrap(), Counter::default());
        let allowed = |millis| {
            let now = denied.epoch + Duration::from_millis(millis);
            (0..100).filter(|_| denied.allow(now)).count()
        };
        let begun = [0, 999, 1000, 1999, 2000, 5500, 6499, 6500];
        assert_eq!(begun.map(allowed), [3, 0, 3, 0, 3, 3, 0, 3]);
        // Another worker's clock is a bit behind.
        assert_eq!(allowed(6490), 0);
        assert_eq!(denied.left_out.get(), 900 - 5 * 3);
    }
}
