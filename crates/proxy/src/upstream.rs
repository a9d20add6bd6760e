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
use super::outgoing_body::OutgoingBody;
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

    /// An upstream with no more connections than `budget` has left, whose WebSockets are closed in
    /// order at `shutdown`. All workers share `state`.
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

    /// An upstream with other timeouts that shares these connections.
    #[must_use]
    pub fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        let shared = UpstreamInner::clone(&self.0);
        Self(Arc::new(UpstreamInner { timeouts, ..shared }))
    }

    /// The end of the total timeout of a request that arrived at this time, if there is one.
    pub(super) fn deadline(&self, arrived: Instant) -> Option<Instant> {
        self.0.timeouts.total.map(|total| arrived + total)
    }

    /// How long nothing may pass through a tunnel, and the signal of the gateway's shutdown.
    pub(super) fn tunnel_bounds(&self) -> (Duration, ShutdownSignal) {
        (self.0.timeouts.body, self.0.shutdown.clone())
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Sends the request to the next server, or to the one that the `key` of its subject leads to,
    /// on a kept-alive connection if there is one, and awaits the head of the response.
    ///
    /// A request of which part was sent is sent again only if it is idempotent and has no body:
    /// when a reused connection closes before the first byte of a response, as the server most
    /// likely closed it while the request was on its way; and otherwise as [`Retries`] say.
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

/// A request that was not answered on the first kept-alive connection, or found none.
struct Attempts<'u, B> {
    upstream: &'u UpstreamInner,
    outbound: Box<Outbound<B>>,
    /// Whether it may be sent again although part of it was sent.
    repeatable: bool,
    key: Option<u64>,
    arrived: Instant,
    /// The servers that failed it.
    tried: Tried,
    /// Cleared after a reused connection turned out to be closed.
    reuse: bool,
    /// Whether a connection was closed during the request. The request may be the cause, so no
    /// other request shares the next connection.
    was_closed: bool,
    /// Until when the request is resent if servers do not process it; `None` before the first time.
    resent_until: Option<Instant>,
    /// The pause before the next resending.
    pause: Duration,
}

/// A connection for a request.
struct Acquired<'u> {
    picked: Picked<'u>,
    channel: Channel,
    /// How long connecting took; `None` for a reused connection.
    connect: Option<Duration>,
}

/// What follows an exchange.
enum Action {
    /// The same server gets the request on a new connection.
    Reconnect,
    /// Another server gets the request after a pause, or the same one if there is no other.
    Resend,
    /// Another server gets the request, or the same one if it may return, as far as the retry
    /// budget allows.
    Retry { may_return: bool },
    /// The client gets the response or the error.
    Respond,
}

impl<'u, B> Attempts<'u, B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Sends the request until it is answered or must not be sent again. `exchanged` is the outcome
    /// on a reused connection to the server that was `picked` first.
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
            let may_return = match self.action(&exchanged, connect.is_none()) {
                Action::Reconnect => {
                    self.reuse = false;
                    self.was_closed = is_closed;
                    continue;
                }
                Action::Resend => {
                    picked = self.next_after_pause(picked).await;
                    continue;
                }
                Action::Retry { may_return } => Some(may_return),
                Action::Respond => None,
            };
            match exchanged.as_ref().map_err(ProxyError::failure) {
                Ok(_) => {}
                Err(Some(failure)) => picked.in_flight.failed(failure),
                Err(None) => picked.in_flight.settle(),
            }
            self.was_closed |= is_closed;
            let next = match may_return {
                Some(may_return) => self.next_for_retry(&picked, may_return).await,
                None => None,
            };
            let Some((next, permit)) = next else {
                let (upstream, arrived) = (self.upstream, self.arrived);
                let exchanged = exchanged?;
                return Ok(upstream.respond(exchanged, picked, self.outbound, arrived, connect));
            };
            if let Ok(exchanged) = exchanged {
                let status = exchanged.status();
                picked.in_flight.responded(status, Instant::now());
                exchanged.discard();
            }
            (picked, _permit) = (next, Some(permit));
        }
    }

    /// The table from the outcome of an exchange to what follows.
    fn action(&self, exchanged: &Result<ChannelResponse, ProxyError>, was_reused: bool) -> Action {
        use ProxyError::{BrokenOff, Closed, Refused, ResponseTimeout, Unprocessed};
        let retries = self.upstream.retries.as_ref();
        let retries_if = |wanted: fn(&Retries) -> bool| retries.is_some_and(wanted);
        // A server that closes a connection may be restarting, and one that refuses a request may
        // take it by another connection. It gets the request once more, which it has after a
        // reused connection that turned out to be closed.
        let may_return = self.tried.is_empty() && !self.was_closed;
        match exchanged {
            // The server closed the connection while the request was on its way.
            Err(Closed { .. }) if was_reused && (self.repeatable || !self.outbound.has_begun()) => {
                Action::Reconnect
            }
            Err(Unprocessed { .. } | Refused { .. })
                if was_reused && self.outbound.can_restart() =>
            {
                Action::Reconnect
            }
            Err(Unprocessed { .. }) if self.outbound.can_restart() && !self.is_resent_enough() => {
                Action::Resend
            }
            Err(Refused { .. }) if self.outbound.can_restart() && retries.is_some() => {
                Action::Retry { may_return }
            }
            _ if !self.repeatable => Action::Respond,
            Ok(exchanged) if self.upstream.retries_status(exchanged.status()) => {
                Action::Retry { may_return: false }
            }
            Err(Closed { .. }) if retries_if(|retries| retries.on_closed) => {
                Action::Retry { may_return }
            }
            Err(BrokenOff { .. }) if retries_if(|retries| retries.on_closed) => {
                Action::Retry { may_return: false }
            }
            Err(ResponseTimeout { .. }) if retries_if(|retries| retries.on_timeout) => {
                Action::Retry { may_return: false }
            }
            _ => Action::Respond,
        }
    }

    fn is_resent_enough(&self) -> bool {
        let is_late = |until| Instant::now() + self.pause >= until;
        self.resent_until.is_some_and(is_late)
    }

    /// The server that gets a request which `picked` has not processed. A server that ends each
    /// connection after so many requests may do that several times.
    async fn next_after_pause(&mut self, mut picked: Picked<'u>) -> Picked<'u> {
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

    /// The server to which the request is sent again, if there is one and the budget allows it.
    async fn next_for_retry(
        &mut self,
        picked: &Picked<'u>,
        may_return: bool,
    ) -> Option<(Picked<'u>, RetryPermit)> {
        let upstream = self.upstream;
        self.tried.push(picked.index);
        let has_other = self.tried.len() < upstream.endpoints.len();
        if !has_other && !may_return {
            return None;
        }
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

    /// Sends the request on `channel`. The response timeout counts from `now` on.
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
                    let request = mem::replace(
                        &mut outbound.writer,
                        RequestWriter::new(OutgoingBody::none()),
                    );
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
