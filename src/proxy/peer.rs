//! A server with its idle connections, and whether it could be reached lately.

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::connection::Connection;
use super::pool::Pool;
use super::server::Server;
use super::settings::UpstreamSettings;

/// For how long a server that could not be connected to is passed over.
pub(super) const BACK_OFF: Duration = Duration::from_secs(1);

/// One server of an upstream, as one worker sees it.
pub(super) struct Peer<B> {
    server: Server,
    pool: Pool<Box<Connection<B>>>,
    passed_over_until: Mutex<Option<Instant>>,
}

impl<B> Peer<B> {
    pub(super) fn new(server: Server, settings: &UpstreamSettings) -> Self {
        Self {
            server,
            pool: Pool::new(settings.max_idle, settings.idle_timeout),
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
    pub(super) fn idle(&self, now: Instant) -> Option<Box<Connection<B>>> {
        self.pool.take(now, |connection| connection.is_ready())
    }
}

impl<B: Send + 'static> Peer<B> {
    /// Keeps a connection for the next request.
    pub(super) fn keep(self: Arc<Self>, connection: Box<Connection<B>>, now: Instant) {
        if let Some(expiry) = self.pool.put(connection, now) {
            tokio::spawn(sweep(Arc::downgrade(&self), expiry));
        }
    }
}

impl<B> Peer<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Opens a connection.
    pub(super) async fn connect(self: &Arc<Self>) -> io::Result<Box<Connection<B>>> {
        let opened = Connection::open(&self.server, Arc::downgrade(self)).await;
        if opened.is_ok() {
            *self.passed_over_until.lock() = None;
        }
        opened
    }
}

/// Closes connections as they grow too old, until none is left.
async fn sweep<B>(peer: Weak<Peer<B>>, mut next: Instant) {
    loop {
        sleep_until(next).await;
        let Some(peer) = peer.upgrade() else { return };
        match peer.pool.sweep(Instant::now()) {
            Some(expiry) => next = expiry,
            None => return,
        }
    }
}
