//! The servers of an upstream: which of them is next, which are passed over because they could not
//! be reached lately, and how many connections they may have in all.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::connection::{Connection, ConnectionPool};
use super::error::ProxyError;
use super::settings::{Server, UpstreamSettings};

/// For how long a server that could not be connected to is passed over.
pub(super) const BACK_OFF: Duration = Duration::from_secs(1);

/// How many connections to upstreams the process may have, so that they leave file descriptors to
/// everything else. All workers share it. Without bounds by default.
#[derive(Clone, Debug, Default)]
pub struct ConnectionBudget {
    permits: Option<Arc<Semaphore>>,
    /// As in [`UpstreamSettings`].
    max_idle: Option<usize>,
}

impl ConnectionBudget {
    /// At most `open` connections at a time, of which `max_idle` per server and worker may be
    /// unused, whatever an upstream's settings allow.
    pub fn new(open: usize, max_idle: usize) -> Self {
        let permits = Semaphore::new(open.min(Semaphore::MAX_PERMITS));
        Self {
            permits: Some(Arc::new(permits)),
            max_idle: Some(max_idle),
        }
    }

    /// Waits at most `within` for the permit to open a connection, which ends when it is dropped.
    pub(super) async fn permit(
        &self,
        within: Duration,
    ) -> Result<Option<OwnedSemaphorePermit>, ProxyError> {
        let Some(permits) = &self.permits else {
            return Ok(None);
        };
        let permit = timeout(within, Arc::clone(permits).acquire_owned()).await;
        permit.map_or(
            Err(ProxyError::TooManyConnections),
            |permit| Ok(permit.ok()),
        )
    }
}

/// One server of an upstream with its idle connections, as one worker sees it.
pub(super) struct Endpoint {
    server: Server,
    pool: Arc<ConnectionPool>,
    passed_over_until: Mutex<Option<Instant>>,
}

impl Endpoint {
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Takes an idle connection.
    pub(super) fn idle(&self, now: Instant) -> Option<Box<Connection>> {
        self.pool.take(now, |connection| connection.is_ready())
    }

    /// Whether no connection attempt failed in the last moment.
    fn is_available(&self, now: Instant) -> bool {
        self.passed_over_until.lock().is_none_or(|end| end <= now)
    }

    /// Opens a connection, or has the server passed over for a moment.
    async fn connect(&self, within: Duration) -> Result<Box<Connection>, ProxyError> {
        let opened = timeout(within, self.open()).await;
        let failed = opened.as_ref().map_or(true, Result::is_err);
        *self.passed_over_until.lock() = failed.then(|| Instant::now() + BACK_OFF);
        let server = Arc::clone(self.server.name());
        match opened {
            Ok(opened) => opened.map_err(|source| ProxyError::from_connect(source, server)),
            Err(_) => Err(ProxyError::ConnectTimeout { server }),
        }
    }

    async fn open(&self) -> io::Result<Box<Connection>> {
        Connection::open(&self.server, Arc::downgrade(&self.pool)).await
    }
}

/// The servers of an upstream, which take turns.
pub(super) struct Endpoints {
    all: Box<[Endpoint]>,
    next: AtomicUsize,
}

impl Endpoints {
    pub(super) fn new(settings: &UpstreamSettings, budget: &ConnectionBudget) -> Self {
        let most = budget.max_idle.unwrap_or(usize::MAX);
        let max_idle = settings.max_idle.min(most);
        let endpoint = |server: &Server| Endpoint {
            server: server.clone(),
            pool: Arc::new(ConnectionPool::new(max_idle, settings.idle_timeout)),
            passed_over_until: Mutex::new(None),
        };
        Self {
            all: settings.servers.iter().map(endpoint).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// The servers to try, the one whose turn it is first. Those that could not be reached lately
    /// are left out; but the only server there is always gets its chance.
    pub(super) fn in_turn(&self, now: Instant) -> impl Iterator<Item = &Endpoint> + Clone {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.all.len().max(1);
        let (before, from) = self.all.split_at(first);
        let only = self.all.len() == 1;
        let in_turn = from.iter().chain(before);
        in_turn.filter(move |endpoint| only || endpoint.is_available(now))
    }
}

/// Opens a connection to the first of the servers that can be reached. Each gets its share of the
/// time, so that one that does not answer leaves some to the others.
pub(super) async fn connect<'e>(
    endpoints: impl Iterator<Item = &'e Endpoint> + Clone,
    within: Duration,
) -> Result<(&'e Endpoint, Box<Connection>), ProxyError> {
    let deadline = Instant::now() + within;
    let mut failure = None;
    for (left, endpoint) in shares(endpoints) {
        if let Some(error) = failure.take() {
            log_passed_over(&error);
        }
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        match endpoint.connect(share).await {
            Ok(connection) => return Ok((endpoint, connection)),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or(ProxyError::NoServer))
}

/// The servers, each with the number of those that are left from it on. The last one gets 1, unless
/// servers drop out meanwhile.
fn shares<I: Iterator + Clone>(endpoints: I) -> impl Iterator<Item = (u32, I::Item)> {
    let count = u32::try_from(endpoints.clone().count()).unwrap_or(u32::MAX);
    (1..=count).rev().zip(endpoints)
}

/// The error of the last server is logged with the request that it fails; the others' are not.
fn log_passed_over(error: &ProxyError) {
    let cause = error.source().map(tracing::field::display);
    tracing::warn!(%error, cause, "skipping unreachable server");
}
