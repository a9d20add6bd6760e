//! An upstream: a request goes in, the head of a response comes out.

use std::error::Error as StdError;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use tokio::time::{Instant, sleep};
use weir_runtime::loop_time;
use weir_telemetry::{RequestId, UpstreamOutcome};

use super::balance::{Retries, RetryPermit, UpstreamState};
use super::channel::{Channel, ChannelResponse};
use super::endpoint::{ConnectionBudget, Endpoint, Endpoints, Picked, Sharing, Tried};
use super::error::ProxyError;
use super::exchange::Exchanged;
use super::hop_by_hop;
use super::http1::RequestWriter;
use super::request::Outbound;
use super::response_body::{PendingUpload, ResponseReader, UpstreamBody};
use super::settings::{HostHeader, Server, Timeouts, UpstreamSettings};
use super::tls::Protocol;
use super::websocket::{ShutdownSignal, Upgrade};

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::upstream";

/// How long a request waits before it connects again, when none of the servers can be reached.
const RECONNECT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(250));

/// An upstream with its connections. Clones share them.
///
/// Each worker thread has one of its own, so that a request never leaves its thread.
#[derive(Clone)]
pub struct Upstream(Arc<UpstreamInner>);

#[derive(Clone)]
struct UpstreamInner {
    name: Arc<str>,
    endpoints: Arc<Endpoints>,
    state: Arc<UpstreamState>,
    budget: ConnectionBudget,
    timeouts: Timeouts,
    retries: Option<Retries>,
    host: HostHeader,
    shutdown: ShutdownSignal,
}

impl Upstream {
    /// An upstream of the servers in `settings`, with no connection yet.
    pub fn new(settings: UpstreamSettings) -> Self {
        let state = UpstreamState::new(&settings);
        Self::with_state(
            ConnectionBudget::default(),
            ShutdownSignal::never(),
            state,
            settings,
        )
    }

    /// The same with no more connections than `budget` has left, whose WebSockets are closed in
    /// order at `shutdown`. What is known of its servers is in `state`, which all workers share.
    pub fn with_state(
        budget: ConnectionBudget,
        shutdown: ShutdownSignal,
        state: Arc<UpstreamState>,
        settings: UpstreamSettings,
    ) -> Self {
        Self(Arc::new(UpstreamInner {
            endpoints: Arc::new(Endpoints::new(&settings, &budget, &state)),
            state,
            budget,
            name: settings.name.into(),
            timeouts: settings.timeouts,
            retries: settings.retries,
            host: settings.host,
            shutdown,
        }))
    }

    /// The same upstream with other time-outs. They share its connections.
    #[must_use]
    pub fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        let shared = UpstreamInner::clone(&self.0);
        Self(Arc::new(UpstreamInner { timeouts, ..shared }))
    }

    /// Until when a request that arrived at this time is over, if that is bounded.
    pub(super) fn deadline(&self, arrived: Instant) -> Option<Instant> {
        self.0.timeouts.total.map(|total| arrived + total)
    }

    /// How long nothing may pass through a tunnel, and what tells it of the gateway's shutdown.
    pub(super) fn tunnel_bounds(&self) -> (Duration, ShutdownSignal) {
        (self.0.timeouts.body, self.0.shutdown.clone())
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Sends the request to the server whose turn it is, or to which the `key` of its subject
    /// leads, on a kept-alive connection if there is one, and awaits the head of the response.
    ///
    /// A request of which part was sent is sent again only if it is idempotent and has no body: when
    /// a reused connection closes before the first byte of a response, as the server most likely
    /// closed it while the request was on its way; and otherwise as [`Retries`] say.
    pub(super) async fn send<B>(
        &self,
        mut outbound: Box<Outbound<B>>,
        key: Option<u64>,
        arrived: Instant,
    ) -> Result<UpstreamResponse, ProxyError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let upstream = &*self.0;
        let picked = upstream.endpoints.pick_any(key, &[], arrived);
        let picked = picked.ok_or(ProxyError::NoServer)?;
        let is_upgrade = outbound.upgrade.is_some();
        if is_upgrade && picked.endpoint.server().protocol() == Protocol::Http2 {
            let server = Arc::clone(picked.endpoint.server().name());
            return Err(ProxyError::UpgradeByHttp2 { server });
        }
        let repeatable = is_repeatable(&outbound);
        let exchanged = match picked.endpoint.idle(arrived, is_upgrade) {
            None => None,
            Some(channel) => {
                let endpoint = picked.endpoint;
                let exchange = upstream.exchange(endpoint, channel, &mut outbound, arrived);
                match exchange.await {
                    Ok(exchanged) if !upstream.retries_status(exchanged.status()) => {
                        return Ok(upstream.respond(exchanged, picked, outbound, arrived, None));
                    }
                    exchanged => Some(exchanged),
                }
            }
        };
        let attempts = Attempts {
            upstream,
            repeatable,
            outbound,
            key,
            arrived,
            tried: Tried::new(),
            reuse: true,
            was_closed: false,
            resent_until: None,
            pause: RECONNECT_PAUSE.0,
        };
        Box::pin(attempts.run(picked, exchanged)).await
    }
}

/// A request that needs more than a kept-alive connection on which it is answered.
struct Attempts<'u, B> {
    upstream: &'u UpstreamInner,
    outbound: Box<Outbound<B>>,
    /// Whether it may be sent again although part of it was sent.
    repeatable: bool,
    key: Option<u64>,
    arrived: Instant,
    /// The servers that it was sent to.
    tried: Tried,
    /// Whether it may go out on a kept-alive connection, as none turned out to be closed.
    reuse: bool,
    /// Whether a connection has ended under it. It may be the cause, so no other request shares the
    /// next one.
    was_closed: bool,
    /// Until when it is sent again if servers leave it behind; none before the first one did.
    resent_until: Option<Instant>,
    /// How long it waits when it is left behind again.
    pause: Duration,
}

/// A connection that a request goes out on.
struct Acquired<'u> {
    picked: Picked<'u>,
    channel: Channel,
    /// How long connecting took; none for a kept-alive connection.
    connect: Option<Duration>,
}

impl<'u, B> Attempts<'u, B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Sends the request until it is answered or must not be sent again. `exchanged` is what became
    /// of it on a kept-alive connection to the server that was `picked` first.
    async fn run(
        mut self,
        mut picked: Picked<'u>,
        exchanged: Option<Result<ChannelResponse, ProxyError>>,
    ) -> Result<UpstreamResponse, ProxyError> {
        let mut last = exchanged.map(|exchanged| (exchanged, None));
        // Held until the response to the retry has begun.
        let mut _permit = None;
        loop {
            let (exchanged, connect) = match last.take() {
                Some(last) => last,
                None => {
                    let acquired = self.acquire(picked).await?;
                    picked = acquired.picked;
                    let exchanged = self.exchange(&mut picked, acquired.channel).await;
                    (exchanged, acquired.connect)
                }
            };
            let is_closed = matches!(exchanged, Err(ProxyError::Closed { .. }));
            let is_stale = connect.is_none() && self.is_stale(&exchanged);
            if is_stale {
                self.reuse = false;
                self.was_closed = is_closed;
                continue;
            }
            if self.is_unprocessed(&exchanged) {
                picked = self.next_after_unprocessed(picked).await;
                continue;
            }
            let next = match self.may_retry(&mut picked, &exchanged) {
                Some(may_return) => self.next(&picked, may_return).await,
                None => None,
            };
            self.was_closed |= is_closed;
            let (next, permit) = match next {
                Some(next) => next,
                None => {
                    let exchanged = exchanged?;
                    let (upstream, arrived) = (self.upstream, self.arrived);
                    return Ok(upstream.respond(
                        exchanged,
                        picked,
                        self.outbound,
                        arrived,
                        connect,
                    ));
                }
            };
            if let Ok(exchanged) = exchanged {
                let status = exchanged.status();
                picked.in_flight.responded(status, Instant::now());
                exchanged.discard();
            }
            (picked, _permit) = (next, Some(permit));
        }
    }

    /// Whether a kept-alive connection turned out to be closed, so that the request goes out on a
    /// fresh one.
    fn is_stale(&self, exchanged: &Result<ChannelResponse, ProxyError>) -> bool {
        match exchanged {
            Err(ProxyError::Closed { .. }) => self.repeatable || !self.outbound.has_begun(),
            Err(error) => error.is_unprocessed() && self.outbound.can_restart(),
            Ok(_) => false,
        }
    }

    /// Whether a server has ended the connection in order before it got to the request, which is as
    /// good as not sent.
    fn is_unprocessed(&self, exchanged: &Result<ChannelResponse, ProxyError>) -> bool {
        let is_unprocessed = matches!(exchanged, Err(ProxyError::Unprocessed { .. }));
        let is_late = |until| Instant::now() + self.pause >= until;
        is_unprocessed && self.outbound.can_restart() && !self.resent_until.is_some_and(is_late)
    }

    /// The server to which such a request goes, another one if there is one that it was not sent
    /// to. A server that ends each connection after so many requests may leave one behind several
    /// times.
    async fn next_after_unprocessed(&mut self, mut picked: Picked<'u>) -> Picked<'u> {
        let until = Instant::now() + self.upstream.timeouts.connect;
        self.resent_until.get_or_insert(until);
        sleep(self.pause.mul_f64(rand::random_range(0.5..1.0))).await;
        self.pause = RECONNECT_PAUSE.1.min(2 * self.pause);
        let mut not = self.tried.clone();
        not.push(picked.index);
        let other = self.upstream.endpoints.pick(self.key, &not, Instant::now());
        self.log_sent_again(&picked, other.as_ref().unwrap_or(&picked));
        let Some(other) = other else {
            return picked;
        };
        picked.in_flight.settle();
        other
    }

    /// Whether what became of a request is a reason to send it again, it is safe, and there is a
    /// server left to send it to; if so, whether that may be the same one.
    fn may_retry(
        &mut self,
        picked: &mut Picked<'u>,
        exchanged: &Result<ChannelResponse, ProxyError>,
    ) -> Option<bool> {
        if let Err(error) = exchanged {
            match error.failure() {
                Some(failure) => picked.in_flight.failed(failure),
                None => picked.in_flight.settle(),
            }
        }
        let retries = self.upstream.retries.as_ref()?;
        let is_reason = match exchanged {
            Err(ProxyError::Refused { .. }) => self.outbound.can_restart(),
            _ if !self.repeatable => false,
            Ok(exchanged) => retries.on_status.contains(exchanged.status()),
            Err(ProxyError::Closed { .. } | ProxyError::BrokenOff { .. }) => retries.on_closed,
            Err(ProxyError::ResponseTimeout { .. }) => retries.on_timeout,
            Err(_) => false,
        };
        // A server that closes a connection may be restarting, and one that refuses a request may
        // take it by another connection. It gets the request once more, which it has after a
        // connection that turned out to be closed.
        let may_come_back = matches!(
            exchanged,
            Err(ProxyError::Closed { .. } | ProxyError::Refused { .. })
        );
        let may_return = may_come_back && self.tried.is_empty() && !self.was_closed;
        self.tried.push(picked.index);
        let has_other = self.tried.len() < self.upstream.endpoints.len();
        (is_reason && (has_other || may_return)).then_some(may_return)
    }

    /// The server to which the request is sent again, if the budget allows it.
    async fn next(
        &mut self,
        picked: &Picked<'u>,
        may_return: bool,
    ) -> Option<(Picked<'u>, RetryPermit)> {
        let upstream = self.upstream;
        let permit = upstream.state.retry(upstream.retries.as_ref()?).await?;
        let now = Instant::now();
        let next = match upstream.endpoints.pick(self.key, &self.tried, now) {
            None if may_return => upstream.endpoints.pick(self.key, &[], now),
            next => next,
        };
        let next = next?;
        self.log_sent_again(picked, &next);
        permit.used();
        Some((next, permit))
    }

    fn log_sent_again(&self, picked: &Picked<'u>, next: &Picked<'u>) {
        let request_id = self.outbound.request_id.as_deref();
        tracing::debug!(
            target: TARGET,
            upstream = &*self.upstream.name,
            server = &**picked.endpoint.server().name(),
            next = &**next.endpoint.server().name(),
            request_id = request_id.map(RequestId::text),
            "request sent again"
        );
    }

    async fn exchange(
        &mut self,
        picked: &mut Picked<'u>,
        channel: Channel,
    ) -> Result<ChannelResponse, ProxyError> {
        let now = Instant::now();
        picked.in_flight.restart(now);
        if self.outbound.has_begun() {
            self.outbound.rewind();
        }
        let upstream = self.upstream;
        upstream
            .exchange(picked.endpoint, channel, &mut self.outbound, now)
            .await
    }

    /// A connection to the server that was picked, or to another one if that cannot be reached. As
    /// long as an upstream that was reached before has been out of reach for less than the connect
    /// timeout, as when its only server restarts, the request waits until it is back.
    async fn acquire(&mut self, mut picked: Picked<'u>) -> Result<Acquired<'u>, ProxyError> {
        let upstream = self.upstream;
        let start = Instant::now();
        let deadline = start + upstream.timeouts.connect;
        let mut pause = RECONNECT_PAUSE.0;
        let mut tried = self.tried.clone();
        let is_upgrade = self.outbound.upgrade.is_some();
        let sharing = match self.was_closed {
            _ if is_upgrade => Sharing::Upgrade,
            true => Sharing::Alone,
            false => Sharing::Shared,
        };
        loop {
            let endpoint = picked.endpoint;
            let mut slot = endpoint
                .slot(deadline)
                .await
                .inspect_err(|_| picked.in_flight.settle())?;
            let idle = || endpoint.idle_for(&mut slot, Instant::now(), is_upgrade);
            let may_reuse = self.reuse && !self.was_closed;
            if let Some(channel) = may_reuse.then(idle).flatten() {
                return Ok(Acquired {
                    picked,
                    channel,
                    connect: None,
                });
            }
            let left = upstream.endpoints.len().saturating_sub(tried.len());
            let share = u32::try_from(left).unwrap_or(u32::MAX);
            let client = self.outbound.client.as_deref();
            let connect =
                endpoint.connect(&upstream.budget, share, deadline, sharing, slot, client);
            let error = match connect.await {
                Ok(channel) => {
                    upstream.state.reached();
                    let connect = Some(start.elapsed());
                    return Ok(Acquired {
                        picked,
                        channel,
                        connect,
                    });
                }
                Err(error) => error,
            };
            let Some(failure) = error.failure() else {
                picked.in_flight.settle();
                return Err(error);
            };
            picked.in_flight.failed(failure);
            tried.push(picked.index);
            let now = Instant::now();
            if let Some(next) = upstream.endpoints.pick(self.key, &tried, now) {
                picked = next;
                continue;
            }
            let is_short = upstream.state.unreachable_for(now) < upstream.timeouts.connect;
            if !is_short || now + pause >= deadline {
                return Err(error);
            }
            drop(picked);
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = RECONNECT_PAUSE.1.min(2 * pause);
            tried.clone_from(&self.tried);
            let next = upstream.endpoints.pick(self.key, &tried, Instant::now());
            let next = next.or_else(|| upstream.endpoints.pick_any(self.key, &[], Instant::now()));
            picked = next.ok_or(error)?;
        }
    }
}

impl UpstreamInner {
    fn retries_status(&self, status: StatusCode) -> bool {
        let retries = self.retries.as_ref();
        retries.is_some_and(|retries| retries.on_status.contains(status))
    }

    /// Sends the request on `channel`, where the upstream's turn begins `now`.
    async fn exchange<B>(
        &self,
        endpoint: &Endpoint,
        channel: Channel,
        outbound: &mut Outbound<B>,
        now: Instant,
    ) -> Result<ChannelResponse, ProxyError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let server = endpoint.server();
        set_host(&mut outbound.head.headers, &self.host, server);
        let exchange = channel.exchange(outbound, server.is_secure(), self.timeouts.response, now);
        let exchanged = exchange.await;
        exchanged.map_err(|error| ProxyError::from_exchange(error, Arc::clone(server.name())))
    }

    #[expect(clippy::boxed_local, reason = "taking it out of its box would copy it")]
    fn respond<B>(
        &self,
        exchanged: ChannelResponse,
        picked: Picked<'_>,
        mut outbound: Box<Outbound<B>>,
        arrived: Instant,
        connect: Option<Duration>,
    ) -> UpstreamResponse
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let (status, now) = (exchanged.status(), loop_time::now());
        let Picked {
            endpoint,
            mut in_flight,
            ..
        } = picked;
        in_flight.responded(status, now);
        let outcome = UpstreamOutcome {
            server: Arc::clone(endpoint.server().name()),
            status,
            connect,
            arrived,
            head: now.saturating_duration_since(arrived),
        };
        let (head, has_hop_by_hop, body) = match exchanged {
            ChannelResponse::Http1(exchanged) => {
                let Exchanged {
                    head,
                    mut connection,
                    sent,
                } = exchanged;
                let timeout = self.timeouts.response;
                let pending = connection.writer.take_if(|_| !sent);
                let pending = pending.map(|writer| {
                    let request = mem::replace(&mut outbound.writer, RequestWriter::new(None));
                    PendingUpload::send(request, writer, timeout)
                });
                connection.in_flight = Some(in_flight);
                connection
                    .reader
                    .reuse(mem::take(&mut outbound.head.headers));
                let (body, keep_alive) = (head.body, head.keep_alive);
                let timeout = self.timeouts.body;
                let body = ResponseReader::new(body, connection, pending, keep_alive, timeout);
                let body = UpstreamBody::Http1(body);
                let mut response = head.response;
                let extensions = mem::take(response.extensions_mut());
                *response.extensions_mut() = mem::take(&mut outbound.head.extensions);
                response.extensions_mut().clear();
                response.extensions_mut().extend(extensions);
                (response, head.has_hop_by_hop, body)
            }
            ChannelResponse::Http2(response) => {
                let (head, mut body) = response.into_parts();
                body.keep(in_flight);
                let head = Response::from_parts(head, ());
                let has_hop_by_hop = hop_by_hop::has_any(head.headers());
                let body = UpstreamBody::http2(body, self.timeouts.body);
                (head, has_hop_by_hop, body)
            }
        };
        UpstreamResponse {
            head,
            has_hop_by_hop,
            body,
            upgrade: outbound.upgrade,
            outcome,
        }
    }
}

/// Whether a request may be sent twice: it asks for nothing to be done that is not done already
/// when it arrives again (RFC 9110 section 9.2.2), and has no body.
fn is_repeatable<B>(outbound: &Outbound<B>) -> bool {
    outbound.head.method.is_idempotent()
        && (!outbound.writer.has_body() || outbound.replay.is_some())
        && outbound.upgrade.is_none()
}

fn set_host(headers: &mut HeaderMap, host: &HostHeader, server: &Server) {
    match host {
        // An HTTP/1.0 client need not name a host.
        HostHeader::Preserve if headers.contains_key(HOST) => return,
        HostHeader::Preserve | HostHeader::Upstream => {
            headers.insert(HOST, server.host_header().clone())
        }
        HostHeader::Fixed(host) => headers.insert(HOST, host.clone()),
    };
}

/// The head of a response, the body that is yet to come, and how it came about.
pub(super) struct UpstreamResponse {
    pub(super) head: Response<()>,
    /// Whether some of its headers concern the connection only.
    pub(super) has_hop_by_hop: bool,
    pub(super) body: UpstreamBody,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) outcome: UpstreamOutcome,
}
