//! The state of one connection, as far as its timeouts, eviction and the drain need it.
//!
//! hyper does not expose it, and its own timeouts do not cover a connection that has sent nothing
//! yet. The connection's socket, service and driver share this record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::HeaderValue;
use tokio::time::Instant;
use weir_runtime::loop_time;
use weir_telemetry::StripedGauge;

use super::alt_svc::AltSvc;
use super::drain::Draining;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// For the head of a request, from its first byte to its last.
    pub(super) head: Duration,
    /// Between requests.
    pub(super) idle: Duration,
    /// Between requests, until the connection is parked.
    pub(super) park: Duration,
}

/// Bounds on a client while it sends a request and takes the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientBounds {
    /// How long it may send nothing of a body, or accept nothing of a response.
    pub(super) stall_timeout: Duration,
    /// How many header lines a request may have.
    pub(super) max_headers: usize,
    /// How large the head of a request of HTTP/2 or HTTP/3 may be.
    pub(super) max_head_bytes: u32,
}

/// How many of the largest heads an HTTP/2 or HTTP/3 connection may have in flight at a time. By
/// references to one field that it sent once (HPACK), a client can repeat a large head for a few
/// bytes each time.
pub(super) const MAX_HEADS_IN_FLIGHT: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeoutCheck {
    /// None; check again at this time.
    Fine(Instant),
    /// No request came for too long.
    Idle,
    /// The head of a request takes too long.
    SlowHead,
}

/// How long a client may owe a complete head while new connections wait. A client with a request
/// sends it, or its ClientHello, together with the last packet of the TCP handshake.
pub(super) const HEAD_WHILE_OTHERS_WAIT: Duration = Duration::from_millis(50);

/// The record. Only tasks of one thread read and write it; the atomics merely make it `Sync`.
#[derive(Debug)]
pub(super) struct ConnectionState {
    created: Instant,
    /// Kept here, and not by the socket and the service, which both use it, so that the task of a
    /// connection fits 768 bytes, a size class of jemalloc. The task is most of the memory of an
    /// idle connection.
    pub(super) bounds: ClientBounds,
    alt_svc: Option<AltSvc>,
    /// Requests that are served, and request bodies that may still be read.
    in_flight: AtomicU32,
    /// Bytes of the heads of these requests, over HTTP/2 and HTTP/3.
    heads: AtomicU32,
    /// hyper has bytes that the client does not accept, or the write half is shut down.
    write_blocked: AtomicBool,
    /// Bytes of an incomplete head have arrived.
    head_begun: AtomicBool,
    /// At least one complete head has arrived.
    had_request: AtomicBool,
    /// It serves several requests at a time, each on a stream of its own.
    multiplexed: AtomicBool,
    /// Another protocol follows, which the connection does not leave.
    upgraded: AtomicBool,
    /// Nothing that follows the request in flight is read.
    closing: AtomicBool,
    /// No request may have a transfer coding.
    suspect: AtomicBool,
    pub(super) draining: Draining,
    /// All requests that this process serves; here, so that a request takes no reference of its
    /// own.
    pub(super) requests: StripedGauge,
    /// When the last request ended or the first byte of the next arrived, in milliseconds after the
    /// connection was created.
    since: AtomicU64,
}

impl ConnectionState {
    pub(super) fn new(
        draining: Draining,
        requests: StripedGauge,
        bounds: ClientBounds,
    ) -> Arc<Self> {
        Self::telling(None, draining, requests, bounds)
    }

    /// The same, whose responses tell of other services.
    pub(super) fn telling(
        alt_svc: Option<AltSvc>,
        draining: Draining,
        requests: StripedGauge,
        bounds: ClientBounds,
    ) -> Arc<Self> {
        Arc::new(Self {
            created: Instant::now(),
            bounds,
            alt_svc,
            in_flight: AtomicU32::new(0),
            heads: AtomicU32::new(0),
            write_blocked: AtomicBool::new(false),
            head_begun: AtomicBool::new(false),
            had_request: AtomicBool::new(false),
            multiplexed: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            draining,
            requests,
            since: AtomicU64::new(0),
        })
    }

    pub(super) fn set_multiplexed(&self) {
        self.multiplexed.store(true, Relaxed);
    }

    pub(super) fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Relaxed)
    }

    /// Whether requests of HTTP/1.1 may follow.
    pub(super) fn is_http1(&self) -> bool {
        !self.is_multiplexed() && !self.upgraded.load(Relaxed)
    }

    pub(super) fn received(&self) {
        // Bytes that arrive while a request is served mostly belong to its body.
        if !self.is_serving() && !self.head_begun.swap(true, Relaxed) {
            self.touch();
        }
    }

    /// From now on no request may have a transfer coding (see
    /// [`FramingScanner`](super::framing::FramingScanner)). That is for all of the connection's
    /// requests, not for the one at fault alone: a count of them that goes wrong would let it pass.
    pub(super) fn suspect(&self) {
        self.suspect.store(true, Relaxed);
    }

    /// Whether no request may have a transfer coding.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Relaxed)
    }

    /// A request's head is complete; the request lasts until the guard is dropped.
    pub(super) fn request(self: &Arc<Self>) -> ServedRequest {
        self.in_flight.fetch_add(1, Relaxed);
        self.head_begun.store(false, Relaxed);
        self.had_request.store(true, Relaxed);
        ServedRequest(Arc::clone(self))
    }

    /// Whether a request of HTTP/2 may have a head of so many bytes beside those in flight.
    pub(super) fn has_room_for(&self, head: u32) -> bool {
        let most = self
            .bounds
            .max_head_bytes
            .saturating_mul(MAX_HEADS_IN_FLIGHT);
        self.heads.load(Relaxed).saturating_add(head) <= most
    }

    /// Records whether written bytes have not left yet, or no more may be written.
    pub(super) fn set_write_blocked(&self, write_blocked: bool) {
        self.write_blocked.store(write_blocked, Relaxed);
    }

    /// The connection closes after the response.
    pub(super) fn will_close(&self) {
        self.closing.store(true, Relaxed);
    }

    fn touch(&self) {
        let age = loop_time::now().saturating_duration_since(self.created);
        let age = u64::try_from(age.as_millis());
        self.since.store(age.unwrap_or(u64::MAX), Relaxed);
    }

    fn is_serving(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    /// Whether no request is being served or arriving. An HTTP/2 client may send other frames at
    /// any time, so its bytes prove nothing.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_serving() && (self.is_multiplexed() || !self.head_begun.load(Relaxed))
    }

    /// Whether an HTTP/1.1 connection is idle in both directions. If hyper is polled after that, is
    /// pending, and this still holds, it waits for the next request and has nothing to send: for
    /// hyper, a request is over once its response is written and its body is no longer read.
    pub(super) fn is_settled(&self) -> bool {
        let write_blocked = self.write_blocked.load(Relaxed);
        self.is_quiet() && !self.is_multiplexed() && !write_blocked
    }

    /// When the connection may be parked if it stays as it is. The result does not change while a
    /// settled connection sees no activity; after that time, any activity changes it.
    pub(super) fn parks_at(&self, timeouts: Timeouts, now: Instant) -> Instant {
        if self.is_settled() {
            self.since() + timeouts.park
        } else {
            now + timeouts.park
        }
    }

    /// Whether a quiet connection has been without a request for long enough to be parked, or, over
    /// HTTP/2, to count as idle.
    pub(super) fn is_park_due(&self, timeouts: Timeouts, now: Instant) -> bool {
        self.since() + timeouts.park <= now
    }

    /// Whether the client owes a head: it has begun one, or has sent none so far.
    pub(super) fn owes_head(&self) -> bool {
        let has_begun = self.head_begun.load(Relaxed) && !self.is_multiplexed();
        !self.is_serving() && (has_begun || !self.had_request.load(Relaxed))
    }

    /// By when a client that owes a head must have sent it, if new connections wait.
    pub(super) fn head_due_by(&self) -> Instant {
        self.since() + HEAD_WHILE_OTHERS_WAIT
    }

    fn since(&self) -> Instant {
        self.created + Duration::from_millis(self.since.load(Relaxed))
    }

    pub(super) fn check_timeouts(&self, timeouts: Timeouts) -> TimeoutCheck {
        let now = Instant::now();
        let since = self.since();
        let quiet = self.is_quiet();
        let allowed = if quiet { timeouts.idle } else { timeouts.head };
        match (self.is_serving(), since + allowed) {
            (true, _) => TimeoutCheck::Fine(now + timeouts.head.min(timeouts.idle)),
            (false, deadline) if now < deadline => TimeoutCheck::Fine(deadline),
            (false, _) if quiet => TimeoutCheck::Idle,
            (false, _) => TimeoutCheck::SlowHead,
        }
    }
}

/// A request that is being served. The response body holds this guard, and so does the request body
/// while it is read.
#[derive(Debug)]
pub(super) struct ServedRequest(Arc<ConnectionState>);

impl ServedRequest {
    pub(super) fn requests(&self) -> &StripedGauge {
        &self.0.requests
    }

    pub(super) fn will_close(&self) {
        self.0.will_close();
    }

    /// What responses say of other services.
    pub(super) fn alt_svc(&self) -> Option<&HeaderValue> {
        self.0.alt_svc.as_ref()?.value()
    }

    /// Counts a head of HTTP/2, for which there is room.
    pub(super) fn hold_head(&self, bytes: u32) {
        self.0.heads.fetch_add(bytes, Relaxed);
    }

    /// Takes it from the count.
    pub(super) fn release_head(&self, bytes: u32) {
        self.0.heads.fetch_sub(bytes, Relaxed);
    }

    /// The connection is upgraded to another protocol.
    pub(super) fn upgrades(&self) {
        self.0.upgraded.store(true, Relaxed);
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.0.is_suspect()
    }

    /// Whether the connection closes after the response.
    pub(super) fn closes(&self) -> bool {
        self.0.closing.load(Relaxed) || self.0.draining.has_begun()
    }
}

impl Drop for ServedRequest {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Relaxed) == 1 {
            self.0.touch();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::settings::HttpSettings;

    const TIMEOUTS: Timeouts = Timeouts {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        park: Duration::from_secs(1),
    };

    fn state() -> Arc<ConnectionState> {
        let bounds = HttpSettings::default().client_bounds();
        ConnectionState::new(Draining::never(), StripedGauge::default(), bounds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_sends_is_idle_from_its_beginning() {
        let state = state();
        advance(Duration::from_secs(74)).await;
        let last = Instant::now() + Duration::from_secs(1);
        assert_eq!(state.check_timeouts(TIMEOUTS), TimeoutCheck::Fine(last));
        advance(Duration::from_secs(1)).await;
        assert_eq!(state.check_timeouts(TIMEOUTS), TimeoutCheck::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dripping_head_is_slow_however_often_bytes_arrive() {
        let state = state();
        advance(Duration::from_secs(60)).await;
        for _ in 0..10 {
            state.received();
            assert!(matches!(
                state.check_timeouts(TIMEOUTS),
                TimeoutCheck::Fine(_)
            ));
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(state.check_timeouts(TIMEOUTS), TimeoutCheck::SlowHead);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_request_is_neither_idle_nor_slow() {
        let state = state();
        state.received();
        let request = state.request();
        advance(Duration::from_secs(3600)).await;
        state.received();
        assert!(matches!(
            state.check_timeouts(TIMEOUTS),
            TimeoutCheck::Fine(_)
        ));
        assert!(!state.is_quiet());
        drop(request);
        assert!(state.is_quiet(), "its body is not the next request");
        advance(Duration::from_secs(74)).await;
        assert!(matches!(
            state.check_timeouts(TIMEOUTS),
            TimeoutCheck::Fine(_)
        ));
        advance(Duration::from_secs(1)).await;
        assert_eq!(state.check_timeouts(TIMEOUTS), TimeoutCheck::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn frames_without_a_stream_do_not_make_an_http2_connection_busy() {
        let state = state();
        state.set_multiplexed();
        state.received();
        advance(Duration::from_secs(75)).await;
        assert_eq!(state.check_timeouts(TIMEOUTS), TimeoutCheck::Idle);
    }
}
