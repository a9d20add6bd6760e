//! The state of an upstream, for all workers: its servers, whether any of them can be reached, and
//! the retries in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use weir_telemetry::{UpstreamSample, UpstreamServerSample};

use super::server_state::{EjectionBound, ServerState};
use super::settings::Retries;
use crate::settings::{Server, UpstreamSettings};

const NEVER: u64 = 0;
/// It was reached by the last request that connected to it.
const REACHED: u64 = u64::MAX;

/// The state of an upstream that all workers share.
pub struct UpstreamState {
    name: Arc<str>,
    servers: Box<[Arc<ServerState>]>,
    epoch: Instant,
    counts: Arc<Counts>,
    ejection: Arc<EjectionBound>,
    /// The health check of each server. One of a server that stays goes on.
    checks: Mutex<Box<[Option<Check>]>>,
}

/// What another list of servers does not change.
#[derive(Default)]
struct Counts {
    /// [`NEVER`], [`REACHED`], or since when none of the servers could be connected to.
    unreachable_since: AtomicU64,
    retries: AtomicUsize,
    /// Wakes a request that waits for its retry.
    retry_over: Notify,
    retried: AtomicU64,
}

/// A health check, which ends with the last upstream that has the server.
pub(crate) type Check = Arc<AbortOnDropHandle<()>>;

impl UpstreamState {
    /// The state of an upstream that nothing was sent to yet.
    pub fn new(settings: &UpstreamSettings) -> Arc<Self> {
        Self::replacing(settings, None)
    }

    /// The state of an upstream in the place of one with `earlier` settings, whose counts go on.
    /// If nothing but the list of servers differs, those that stay keep their state.
    pub fn replacing(
        settings: &UpstreamSettings,
        earlier: Option<(&UpstreamSettings, &Self)>,
    ) -> Arc<Self> {
        let kept = earlier.filter(|(before, _)| before.differs_by_servers(settings));
        let epoch = kept.map_or_else(Instant::now, |(_, state)| state.epoch);
        let upstream: Arc<str> = settings.name.as_str().into();
        let ejection = kept.map_or_else(
            || Arc::new(EjectionBound::new(settings.ejection.as_ref())),
            |(_, state)| Arc::clone(&state.ejection),
        );
        if settings.ejection.is_some() {
            ejection.set_servers(&settings.servers);
        }
        let mut known = kept.map_or_else(Vec::new, |(before, state)| state.known(before));
        let (servers, checks): (Vec<_>, Vec<_>) = settings
            .servers
            .iter()
            .map(|server| {
                // Each state once, as a server may be listed twice.
                let same = known.iter().position(|(before, ..)| before.is_same(server));
                if let Some((_, state, check)) = same.map(|same| known.swap_remove(same)) {
                    state.set_weight(server.weight());
                    return (state, check);
                }
                let state = ServerState::new(server, settings, Arc::clone(&ejection), epoch);
                let state = Arc::new(state);
                if kept.is_some() {
                    state.join(Instant::now());
                }
                if let Some((_, earlier)) = earlier {
                    earlier.hand_on_to(&state);
                }
                (state, None)
            })
            .unzip();
        for (_, gone, _) in known {
            gone.leave();
        }
        let counts = kept.map(|(_, state)| Arc::clone(&state.counts));
        let counts = counts.unwrap_or_default();
        if let Some((_, earlier)) = earlier {
            let retried = earlier.counts.retried.load(Relaxed);
            counts.retried.fetch_max(retried, Relaxed);
        }
        Arc::new(Self {
            name: upstream,
            servers: servers.into(),
            epoch,
            counts,
            ejection,
            checks: Mutex::new(checks.into()),
        })
    }

    fn known<'s>(
        &self,
        settings: &'s UpstreamSettings,
    ) -> Vec<(&'s Server, Arc<ServerState>, Option<Check>)> {
        let checks = self.checks.lock();
        let servers = settings.servers.iter().zip(&self.servers).zip(&*checks);
        servers
            .map(|((server, state), check)| (server, Arc::clone(state), check.clone()))
            .collect()
    }

    /// Has a server that is new here go on where one of its name has stopped.
    fn hand_on_to(&self, server: &ServerState) {
        let mut servers = self.servers.iter();
        if let Some(before) = servers.find(|before| before.name() == server.name()) {
            server.inherit(before);
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
            retries: self.counts.retried.load(Relaxed),
        }
    }

    /// Starts the health checks of the servers that have none yet.
    pub(crate) fn start_checks(
        &self,
        servers: &[Server],
        check: impl Fn(&Server, &Arc<ServerState>) -> Check,
    ) {
        let servers = servers.iter().zip(&self.servers);
        for ((server, state), running) in servers.zip(self.checks.lock().iter_mut()) {
            running.get_or_insert_with(|| check(server, state));
        }
    }

    /// The states of the servers, in the order of the settings.
    pub(crate) fn servers(&self) -> &[Arc<ServerState>] {
        &self.servers
    }

    pub(crate) fn reached(&self) {
        if self.counts.unreachable_since.load(Relaxed) != REACHED {
            self.counts.unreachable_since.store(REACHED, Relaxed);
        }
    }

    /// For how long none of the servers could be connected to, of which none can be now; forever if
    /// none ever could.
    pub(crate) fn unreachable_for(&self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.epoch);
        let stamp = u64::try_from(elapsed.as_nanos()).map_or(1, |nanos| nanos + 1);
        let begun = self
            .counts
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
                self.counts.retry_over.notified().await;
                if let Some(permit) = self.retry_now(retries) {
                    // There may be room for another one, as the budget has grown.
                    self.counts.retry_over.notify_one();
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
        self.counts
            .retries
            .fetch_update(Relaxed, Relaxed, more)
            .ok()?;
        Some(RetryPermit(Arc::clone(self)))
    }
}

/// A retry, until its response has begun.
pub(crate) struct RetryPermit(Arc<UpstreamState>);

impl RetryPermit {
    /// The request is sent again.
    pub(crate) fn used(&self) {
        self.0.counts.retried.fetch_add(1, Relaxed);
    }
}

impl Drop for RetryPermit {
    fn drop(&mut self) {
        self.0.counts.retries.fetch_sub(1, Relaxed);
        self.0.counts.retry_over.notify_one();
    }
}
