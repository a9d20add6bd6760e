//! Drives one connection from its first byte to its last: serves it, parks it, times it out, evicts
//! it, or drains it.
//!
//! hyper's `graceful_shutdown` closes an HTTP/1 connection without a request at once, even if it
//! has just been accepted or a request is already in the socket's buffer. So it is only called
//! after the connection has been quiet for a while and its socket was polled once more. A request
//! that arrives in the meantime is answered with `Connection: close`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use weir_telemetry::ServerMetrics;

use super::connection::{PollConnection, Protocols};
use super::connection_limit::ConnectionLimit;
use super::connection_state::{ClientBounds, ConnectionState, TimeoutCheck, Timeouts};
use super::drain::{DrainSettings, Draining};
use super::tls::HandshakeBounds;

/// Shared by all connections of a process.
#[derive(Debug)]
pub(super) struct ConnectionContext {
    pub(super) protocols: Arc<Protocols>,
    pub(super) timeouts: Timeouts,
    pub(super) client_bounds: ClientBounds,
    pub(super) drain: DrainSettings,
    pub(super) limit: ConnectionLimit,
    /// How many requests a connection with streams may have in flight.
    pub(super) max_streams: u32,
    pub(super) metrics: ServerMetrics,
}

impl ConnectionContext {
    pub(super) async fn permit(&self, draining: &Draining) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            permit = self.limit.permit() => permit,
            // In a drain, no connection comes after this one.
            () = draining.begun() => None,
        }
    }

    /// How long what comes before the first request may take.
    pub(super) fn handshake_bounds(&self) -> HandshakeBounds<'_> {
        HandshakeBounds {
            timeout: self.timeouts.head,
            idle_grace: self.drain.idle_grace.min(self.drain.grace / 2),
            when_full: self.timeouts.park,
            limit: &self.limit,
        }
    }
}

pub(super) struct Driver {
    pub(super) state: Arc<ConnectionState>,
    pub(super) context: Arc<ConnectionContext>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Closed by either side, or broken.
    Closed,
    /// Still busy at the end of the drain's grace period.
    Aborted,
}

enum Outcome {
    Closed,
    Drain,
    /// It is idle or owes a head, and a new connection needs its permit.
    Evicted,
    Overdue(TimeoutCheck),
}

impl Driver {
    /// Serves the connection until it ends.
    ///
    /// Both are borrowed, because a future reserves space twice for an owned argument.
    pub(super) async fn drive<C: PollConnection>(&self, connection: &mut C) -> End {
        match self.serve(connection).await {
            Outcome::Closed | Outcome::Overdue(TimeoutCheck::SlowHead) => End::Closed,
            Outcome::Overdue(_) => {
                connection.close();
                // A client that does not close in that time is cut off.
                let _ = timeout(self.context.timeouts.head, closed(connection)).await;
                End::Closed
            }
            Outcome::Evicted => {
                self.context.metrics.evicted.inc();
                connection.close();
                // GOAWAY or a close_notify is written at most once; its permit is needed now.
                let _ = poll_again(connection).await;
                End::Closed
            }
            Outcome::Drain => {
                let grace = self.context.drain.grace;
                let drained = timeout(grace, self.drain(connection)).await;
                drained.map_or(End::Aborted, |()| End::Closed)
            }
        }
    }

    /// Serves until something is overdue or the drain begins.
    async fn serve<C: PollConnection>(&self, connection: &mut C) -> Outcome {
        loop {
            let TimeoutCheck::Fine(next) = self.state.check_timeouts(self.context.timeouts) else {
                if poll_again(connection).await.is_ready() {
                    return Outcome::Closed;
                }
                match self.state.check_timeouts(self.context.timeouts) {
                    TimeoutCheck::Fine(_) => continue,
                    overdue => return Outcome::Overdue(overdue),
                }
            };
            let (is_evictable, wake_at) = self.evictability(connection, next);
            tokio::select! {
                biased;
                ended = poll_until_change(connection, &self.state, is_evictable) => if ended {
                    return Outcome::Closed;
                },
                () = self.state.draining.begun() => return Outcome::Drain,
                () = self.context.limit.evicted(), if is_evictable => {
                    if poll_again(connection).await.is_ready() {
                        return Outcome::Closed;
                    }
                    if self.is_evictable(connection, Instant::now()) {
                        return Outcome::Evicted;
                    }
                    self.context.limit.evict_another();
                }
                () = sleep_until(wake_at) => {}
            }
            if self.park_when_due(connection).await.is_ready() {
                return Outcome::Closed;
            }
        }
    }

    /// Parks the connection if it is due. Ready when it has ended instead.
    async fn park_when_due<C: PollConnection>(&self, connection: &mut C) -> Poll<()> {
        let now = Instant::now();
        let parks_at = self.parks_at(connection, now);
        if parks_at.is_some_and(|at| at <= now) {
            if poll_again(connection).await.is_ready() {
                return Poll::Ready(());
            }
            // A request that came in the meantime has moved the deadline, even if it is already
            // over. hyper may then have to be polled once more, to close because of an unread body.
            if self.parks_at(connection, now) == parks_at {
                connection.park();
            }
        }
        Poll::Pending
    }

    /// Whether the connection may be closed for a new one, and when to look again if nothing happens
    /// on it: at `latest` when something is overdue. Both go by one reading of the clock: if time
    /// passed in between, a connection could be not evictable yet by the first, and have nothing
    /// left to wait for by the second.
    fn evictability<C: PollConnection>(&self, connection: &C, latest: Instant) -> (bool, Instant) {
        let now = Instant::now();
        let changes_at = [self.parks_at(connection, now), self.head_due_after(now)];
        let changes_at = changes_at.into_iter().flatten();
        (
            self.is_evictable(connection, now),
            changes_at.fold(latest, Instant::min),
        )
    }

    /// When the connection becomes idle, unless it is: an HTTP/1.1 connection can be parked from
    /// then on.
    fn parks_at<C: PollConnection>(&self, connection: &C, now: Instant) -> Option<Instant> {
        let may_become_idle = !self.is_idle(connection, now);
        may_become_idle.then(|| self.state.parks_at(self.context.timeouts, now))
    }

    /// Whether the connection has been without a request for a while. A new connection is not idle:
    /// its request may be on its way.
    fn is_idle<C: PollConnection>(&self, connection: &C, now: Instant) -> bool {
        let can_be_idle = connection.is_parked() || self.state.is_multiplexed();
        can_be_idle && self.state.is_quiet() && self.state.is_park_due(self.context.timeouts, now)
    }

    fn is_evictable<C: PollConnection>(&self, connection: &C, now: Instant) -> bool {
        let is_head_overdue = || self.state.head_due_by() <= now;
        self.is_idle(connection, now) || self.state.owes_head() && is_head_overdue()
    }

    /// By when a client that owes a head must have sent it, unless it is overdue.
    fn head_due_after(&self, now: Instant) -> Option<Instant> {
        let owes_head = self.state.owes_head();
        let by = owes_head.then(|| self.state.head_due_by())?;
        Some(by).filter(|by| *by > now)
    }

    /// Serves what still arrives until the connection can be closed without loss.
    async fn drain<C: PollConnection>(&self, connection: &mut C) {
        let idle_grace = self.state.draining.idle_grace(&self.context.drain);
        // GOAWAY says which requests are still answered, so streams need no waiting.
        while !self.state.is_multiplexed() {
            tokio::select! {
                biased;
                () = closed(connection) => return,
                () = sleep(idle_grace) => {}
            }
            if poll_again(connection).await.is_ready() {
                return;
            }
            match self.state.check_timeouts(self.context.timeouts) {
                TimeoutCheck::SlowHead => return,
                _ if self.state.is_quiet() => break,
                _ => {}
            }
        }
        connection.close();
        closed(connection).await;
    }
}

/// Serves until the connection has ended (returns true), or until a parked or evictable connection
/// changes its state, because other deadlines apply then.
///
/// No `async` function, whose future would keep the arguments twice.
fn poll_until_change<C: PollConnection>(
    connection: &mut C,
    state: &ConnectionState,
    evictable: bool,
) -> impl Future<Output = bool> {
    let seen = |connection: &C| {
        let owes_head = state.owes_head();
        (connection.is_parked(), state.is_quiet(), owes_head)
    };
    let before = seen(connection);
    let waits = evictable || connection.is_parked();
    poll_fn(move |cx| match connection.poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending if waits && seen(connection) != before => Poll::Ready(false),
        Poll::Pending => Poll::Pending,
    })
}

/// Serves until the connection has ended.
async fn closed<C: PollConnection>(connection: &mut C) {
    poll_fn(|cx| connection.poll(cx)).await;
}

/// Lets the runtime poll all sockets, then polls this connection, so that everything that has
/// arrived by now is seen. Ready when the connection has ended.
async fn poll_again<C: PollConnection>(connection: &mut C) -> Poll<()> {
    yield_now().await;
    poll_fn(|cx| Poll::Ready(connection.poll(cx))).await
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::task::Context;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::advance;
    use weir_telemetry::{Metrics, StripedGauge};

    use super::*;
    use crate::Drain;
    use crate::serve::Http;
    use crate::settings::HttpSettings;

    /// A parked connection on a machine so slow that time passes whenever the driver looks at it.
    struct OnSlowMachine;

    impl PollConnection for OnSlowMachine {
        fn poll(&mut self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }

        fn is_parked(&self) -> bool {
            let _ = advance(Duration::from_millis(1100)).now_or_never();
            true
        }

        fn park(&mut self) {}

        fn close(&mut self) {}
    }

    /// The clock was read twice. A connection that became idle in between was not evictable, had
    /// nothing to wait for, and kept its place until its idle time-out.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_becomes_idle_while_it_is_looked_at_makes_room() {
        let settings = HttpSettings {
            max_connections: Some(NonZeroUsize::MIN),
            ..HttpSettings::default()
        };
        let context = Http::new(&settings, Metrics::new().server()).0;
        let (_drain, draining) = Drain::new();
        let permit = context.permit(&draining).await;
        let bounds = context.client_bounds;
        let state = ConnectionState::new(draining.clone(), StripedGauge::default(), bounds);
        drop(state.request());
        let driver = Driver {
            state,
            context: Arc::clone(&context),
        };
        tokio::spawn(async move {
            driver.drive(&mut OnSlowMachine).await;
            drop(permit);
        });
        let start = Instant::now();
        assert!(context.permit(&draining).await.is_some());
        assert!(start.elapsed() < settings.idle_timeout / 2);
    }
}
