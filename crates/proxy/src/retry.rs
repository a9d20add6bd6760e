//! Retries: which outcomes of an exchange lead to another one, with which server and when.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use tokio::time::{Instant, sleep};
use weir_telemetry::RequestId;

use super::attempt::{UpstreamInner, UpstreamResponse};
use super::balance::{Retries, RetryPermit};
use super::channel::{Channel, ChannelResponse};
use super::endpoint::{Affinity, Picked, Sharing};
use super::error::ProxyError;
use super::request::Outbound;
use super::tried::Tried;

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::retry";

/// How long a request waits before it connects again, when none of the servers can be reached.
const RECONNECT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(250));

/// Into how many parts the time to connect is divided at most: with hundreds of servers, each would
/// have a few milliseconds.
const MAX_SHARES: usize = 8;

/// A request that was not answered on the first kept-alive connection, or found none.
pub(super) struct Attempts<'u, B> {
    upstream: &'u UpstreamInner,
    outbound: Box<Outbound<B>>,
    /// Whether it may be sent again although part of it was sent.
    repeatable: bool,
    affinity: Affinity,
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
    /// The attempts at a request that is `repeatable` if it may be sent again although part of it
    /// was sent.
    pub(super) fn new(
        upstream: &'u UpstreamInner,
        repeatable: bool,
        outbound: Box<Outbound<B>>,
        affinity: Affinity,
        arrived: Instant,
    ) -> Self {
        Self {
            upstream,
            repeatable,
            outbound,
            affinity,
            arrived,
            tried: Tried::default(),
            reuse: true,
            was_closed: false,
            resent_until: None,
            pause: RECONNECT_PAUSE.0,
        }
    }

    /// Sends the request until it is answered or must not be sent again. `exchanged` is the outcome
    /// on a reused connection to the server that was `picked` first.
    pub(super) async fn run(
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
            if let Err(error) = &exchanged {
                error.settle(&mut picked.attempt);
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
                picked.attempt.responded(status, Instant::now());
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
        not.insert(picked.index);
        let endpoints = &self.upstream.endpoints;
        let other = endpoints.pick(self.affinity, &not, Instant::now());
        self.log_sent_again(&picked, other.as_ref().unwrap_or(&picked));
        let Some(other) = other else {
            return picked;
        };
        picked.attempt.settle();
        other
    }

    /// The server to which the request is sent again, if there is one and the budget allows it.
    async fn next_for_retry(
        &mut self,
        picked: &Picked<'u>,
        may_return: bool,
    ) -> Option<(Picked<'u>, RetryPermit)> {
        let upstream = self.upstream;
        self.tried.insert(picked.index);
        let has_other = self.tried.len() < upstream.endpoints.len();
        if !has_other && !may_return {
            return None;
        }
        let permit = upstream.state.retry(upstream.retries.as_ref()?).await?;
        let now = Instant::now();
        let next = match upstream.endpoints.pick(self.affinity, &self.tried, now) {
            None if may_return => upstream
                .endpoints
                .pick(self.affinity, &Tried::default(), now),
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
        picked.attempt.restart(now);
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
                .inspect_err(|_| picked.attempt.settle())?;
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
            let share = left.min(MAX_SHARES);
            let share = u32::try_from(share).unwrap_or(u32::MAX);
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
                picked.attempt.settle();
                return Err(error);
            };
            picked.attempt.failed(failure);
            tried.insert(picked.index);
            let now = Instant::now();
            if now >= deadline {
                return Err(error);
            }
            if let Some(next) = upstream.endpoints.pick(self.affinity, &tried, now) {
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
            let (now, endpoints) = (Instant::now(), &upstream.endpoints);
            let next = endpoints.pick(self.affinity, &tried, now);
            let next = next.or_else(|| endpoints.pick_any(self.affinity, now));
            picked = next.ok_or(error)?;
        }
    }
}
