//! The state of an upstream, for all workers: its servers, whether any of them can be reached, and
//! the retries in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use weir_telemetry::{UpstreamSample, UpstreamServerSample};

use super::server_state::{EjectionBound, ServerState};
use super::settings::Retries;
use crate::settings::UpstreamSettings;

const NEVER: u64 = 0;
/// It was reached by the last request that connected to it.
const REACHED: u64 = u64::MAX;

/// The state of an upstream that all workers share.
pub struct UpstreamState {
    name: Arc<str>,
    servers: Box<[Arc<ServerState>]>,
    epoch: Instant,
    /// [`NEVER`], [`REACHED`], or since when none of the servers could be connected to.
    unreachable_since: AtomicU64,
    retries: AtomicUsize,
    /// Wakes a request that waits for its retry.
    retry_over: Notify,
    retried: AtomicU64,
    checks: Mutex<JoinSet<()>>,
}

impl UpstreamState {
    /// The state of an upstream that nothing was sent to yet.
    pub fn new(settings: &UpstreamSettings) -> Arc<Self> {
        let epoch = Instant::now();
        let upstream: Arc<str> = settings.name.as_str().into();
        let servers = settings.servers.len();
        let ejection = Arc::new(EjectionBound::new(settings.ejection.as_ref(), servers));
        let state = |server: &crate::Server| {
            Arc::new(ServerState::new(
                Arc::clone(&upstream),
                Arc::clone(server.name()),
                server.weight(),
                settings.slow_start,
                Arc::clone(&ejection),
                epoch,
                settings.max_connections,
            ))
        };
        Arc::new(Self {
            name: Arc::clone(&upstream),
            servers: settings.servers.iter().map(state).collect(),
            epoch,
            unreachable_since: AtomicU64::new(NEVER),
            retries: AtomicUsize::new(0),
            retry_over: Notify::new(),
            retried: AtomicU64::new(0),
            checks: Mutex::default(),
        })
    }

    /// Goes on counting where an `earlier` configuration of the upstream has stopped.
    pub fn continue_counts(&self, earlier: &Self) {
        self.retried.store(earlier.retried.load(Relaxed), Relaxed);
        for server in &self.servers {
            let same = |before: &&Arc<ServerState>| before.name() == server.name();
            if let Some(before) = earlier.servers.iter().find(same) {
                server.continue_counts(before);
            }
        }
    }

    /// The values for the metrics.
    pub fn sample(&self) -> UpstreamSample {
        let server = |server: &Arc<ServerState>| UpstreamServerSample {
            name: Arc::clone(server.name()),
            in_flight: server.in_flight() as u64,
            available: server.is_available(),
            trouble: server.trouble(),
            ejections: server.ejections(),
        };
        UpstreamSample {
            name: Arc::clone(&self.name),
            servers: self.servers.iter().map(server).collect(),
            retries: self.retried.load(Relaxed),
            concurrency: None,
        }
    }

    /// Ends these tasks with the state.
    pub(crate) fn keep(&self, checks: JoinSet<()>) {
        *self.checks.lock() = checks;
    }

    /// The states of the servers, in the order of the settings.
    pub(crate) fn servers(&self) -> &[Arc<ServerState>] {
        &self.servers
    }

    pub(crate) fn reached(&self) {
        if self.unreachable_since.load(Relaxed) != REACHED {
            self.unreachable_since.store(REACHED, Relaxed);
        }
    }

    /// For how long none of the servers could be connected to, of which none can be now; forever if
    /// none ever could.
    pub(crate) fn unreachable_for(&self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.epoch);
        let stamp = u64::try_from(elapsed.as_nanos()).map_or(1, |nanos| nanos + 1);
        let begun = self
            .unreachable_since
            .compare_exchange(REACHED, stamp, Relaxed, Relaxed);
        match begun {
            Ok(_) => Duration::ZERO,
            Err(NEVER) => Duration::MAX,
            Err(since) => Duration::from_nanos(stamp.saturating_sub(since)),
        }
    }

    /// The permit for one more retry. If there are as many as the budget allows, it waits for one
    /// of them to be over: when a server dies, all of its requests fail at once, and the other
    /// servers can answer them one after the other.
    pub(crate) async fn retry(self: &Arc<Self>, retries: &Retries) -> Option<RetryPermit> {
        if let Some(permit) = self.retry_now(retries) {
            return Some(permit);
        }
        if retries.budget == 0 {
            return None;
        }
        let permit = async {
            loop {
                self.retry_over.notified().await;
                if let Some(permit) = self.retry_now(retries) {
                    // There may be room for another one, as the budget has grown.
                    self.retry_over.notify_one();
                    return permit;
                }
            }
        };
        timeout(Retries::MAX_WAIT, permit).await.ok()
    }

    /// The permit for one more retry, unless there are as many as the budget allows.
    fn retry_now(self: &Arc<Self>, retries: &Retries) -> Option<RetryPermit> {
        let in_flight: usize = self.servers.iter().map(|server| server.in_flight()).sum();
        let share = in_flight * usize::from(retries.budget) / 100;
        let most = match retries.budget {
            0 => 0,
            _ => share.max(Retries::MIN_BUDGET),
        };
        let more = |retries| (retries < most).then_some(retries + 1);
        self.retries.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(RetryPermit(Arc::clone(self)))
    }
}

/// A retry, until its response has begun.
pub(crate) struct RetryPermit(Arc<UpstreamState>);

impl RetryPermit {
    /// The request is sent again.
    pub(crate) fn used(&self) {
        self.0.retried.fetch_add(1, Relaxed);
    }
}

impl Drop for RetryPermit {
    fn drop(&mut self) {
        self.0.retries.fetch_sub(1, Relaxed);
        self.0.retry_over.notify_one();
    }
}
