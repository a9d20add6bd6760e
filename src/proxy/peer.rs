//! A server with its idle connections, and whether it could be reached lately.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::connection::Connection;
use super::pool::Pool;
use super::server::Server;

/// For how long a server that could not be connected to is passed over.
pub(super) const BACK_OFF: Duration = Duration::from_secs(1);

/// How often idle connections are looked at, so that one that the server closed is closed here too.
const LOOK: Duration = Duration::from_secs(1);

/// One server of an upstream, as one worker sees it.
pub(super) struct Endpoint {
    server: Server,
    pool: Pool<Box<Connection>>,
    passed_over_until: Mutex<Option<Instant>>,
}

impl Endpoint {
    /// Keeps at most `max_idle` unused connections.
    pub(super) fn new(server: Server, max_idle: usize, idle_timeout: Duration) -> Self {
        Self {
            server,
            pool: Pool::new(max_idle, idle_timeout),
            passed_over_until: Mutex::new(None),
        }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Whether no connection attempt failed in the last moment.
    pub(super) fn is_available(&self, now: Instant) -> bool {
        self.passed_over_until.lock().is_none_or(|end| end <= now)
    }

    /// Passes the server over for a moment.
    pub(super) fn back_off(&self) {
        *self.passed_over_until.lock() = Some(Instant::now() + BACK_OFF);
    }

    /// Takes an idle connection.
    pub(super) fn idle(&self, now: Instant) -> Option<Box<Connection>> {
        self.pool.take(now, |connection| connection.is_ready())
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(self: Arc<Self>, connection: Box<Connection>, now: Instant) {
        if let Some(expiry) = self.pool.put(connection, now) {
            tokio::spawn(sweep(Arc::downgrade(&self), expiry));
        }
    }

    /// Opens a connection.
    pub(super) async fn connect(self: &Arc<Self>) -> io::Result<Box<Connection>> {
        let opened = Connection::open(&self.server, Arc::downgrade(self)).await;
        if opened.is_ok() {
            *self.passed_over_until.lock() = None;
        }
        opened
    }
}

/// Closes connections as they grow too old or the server closes them, until none is left.
async fn sweep(peer: Weak<Endpoint>, mut expiry: Instant) {
    loop {
        sleep_until(expiry.min(Instant::now() + LOOK)).await;
        let Some(peer) = peer.upgrade() else { return };
        let next = peer
            .pool
            .sweep(Instant::now(), |connection| connection.is_ready());
        match next {
            Some(next) => expiry = next,
            None => return,
        }
    }
}
