//! One connection to a server, its way from request to request, and the timer for what it waits
//! for.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};
use weir_runtime::loop_time;

use super::balance::Attempt;
use super::connection_limit::{OpenConnection, Slot};
use super::http1::{Malformed, ReadBuffer};
use super::pool::Pool;
use super::stream::{Stream, WriteHalf};

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::connection";

/// How often idle connections are checked, so that one that the server closed is closed here too.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

pub(super) type ConnectionPool = Pool<Box<Connection>>;

/// A connection that is open as far as is known. Dropping it closes it.
pub(super) struct Connection {
    pub(super) reader: ReadBuffer,
    /// `None` while the rest of a request is sent that is answered already.
    pub(super) writer: Option<WriteHalf>,
    pub(super) timer: DeadlineTimer,
    pool: Weak<ConnectionPool>,
    permit: Option<OwnedSemaphorePermit>,
    pub(super) attempt: Option<Attempt>,
    /// Counts it where its server may have only so many. Dropped before the slot.
    pub(super) open: Option<OpenConnection>,
    /// Held by the request as long as it uses the connection.
    pub(super) slot: Slot,
    /// How long the server keeps it open without a request, if the last response said so.
    pub(super) idle_timeout: Option<Duration>,
    /// From when on it serves no further request, so that the server's name is resolved again.
    pub(super) retires_at: Option<Instant>,
}

impl Connection {
    /// A connection over `stream` that is released to `pool`.
    pub(super) fn new(
        stream: Stream,
        pool: Weak<ConnectionPool>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Box<Self> {
        let (reader, writer) = stream.split();
        Box::new(Self {
            reader: ReadBuffer::new(reader),
            writer: Some(writer),
            timer: DeadlineTimer::default(),
            pool,
            permit,
            attempt: None,
            open: None,
            slot: None,
            idle_timeout: None,
            retires_at: None,
        })
    }

    /// Whether a request can be sent now.
    pub(super) fn is_ready(&mut self) -> bool {
        self.reader.is_quiet()
    }

    /// Logs that the rest of a response, which the client has begun to get, cannot be passed on.
    pub(super) fn log_cut(&self, error: &Malformed) {
        let server = self.attempt.as_ref().map(Attempt::server);
        tracing::warn!(
            target: TARGET,
            upstream = server.map(|server| &**server.upstream()),
            server = server.map(|server| &**server.name()),
            %error,
            "upstream response cut"
        );
    }

    /// Whether no other connection can be opened while this one is open.
    fn blocks_others(&self) -> bool {
        let permit = self.permit.as_ref();
        permit.is_some_and(|permit| permit.semaphore().available_permits() == 0)
    }

    /// Makes the connection available to the next request, unless something came after the response
    /// that would be taken for the next one.
    pub(super) fn release(mut self: Box<Self>) {
        let slot = self.slot.take();
        self.attempt = None;
        self.park();
        // Whoever waits for the slot finds the connection in the pool.
        drop(slot);
    }

    fn park(mut self: Box<Self>) {
        let now = loop_time::now();
        let is_retired = self.retires_at.is_some_and(|at| at <= now);
        if is_retired || !self.reader.is_empty() || self.blocks_others() {
            return;
        }
        // The pool is gone when the configuration was reloaded meanwhile.
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        self.reader.shrink();
        let idle_timeout = self.idle_timeout;
        if let Some(expiry) = pool.put(self, now, idle_timeout) {
            tokio::spawn(sweep(Arc::downgrade(&pool), expiry));
        }
    }
}

/// Closes connections as they grow too old or the server closes them, until none is left.
async fn sweep(pool: Weak<ConnectionPool>, mut expiry: Instant) {
    loop {
        sleep_until(expiry.min(Instant::now() + SWEEP_INTERVAL)).await;
        let Some(pool) = pool.upgrade() else { return };
        match pool.sweep(Instant::now(), |connection| connection.is_ready()) {
            Some(next) => expiry = next,
            None => return,
        }
    }
}

/// A timer for a deadline that moves with each request.
///
/// The timer stays set from request to request and is only reset when it goes off, so that a
/// deadline that is not reached costs nothing.
#[derive(Default)]
pub(super) struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

impl DeadlineTimer {
    pub(super) fn poll_past(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}
