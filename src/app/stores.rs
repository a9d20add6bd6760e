//! The store of the configuration: what of it the process has once, and what each worker has.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::outages::{Outages, Saying};
use crate::config::{RedisStore, StoreSettings};
use crate::store::{
    Call, ClockOffset, Denials, GuardSettings, Guarded, Leases, Memory, Observer, OnFailure,
    Reachability, Redis, Remembered, Store, StoreError,
};
use crate::telemetry::{
    Metrics, StoreCallMetrics, StoreClockMeasured, StoreClockUnknown, StoreFlapped, StoreReachable,
    StoreUnreachable,
};

/// How long a worker waits for its first connection to the store before it serves without.
const CONNECT_AT_START: Duration = Duration::from_secs(1);

/// How often a store that fails now and then is complained about.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// How long an operator waits for the store at least before it counts as out of reach.
const OPERATORS_PATIENCE: Duration = Duration::from_secs(1);

/// The store, as far as workers share it.
#[derive(Clone)]
pub(super) struct Stores {
    memory: Arc<Memory>,
    remote: Option<Remote>,
}

/// What a worker asks about requests.
pub(super) struct WorkerStores {
    /// How buckets are.
    pub(super) store: Arc<dyn Store>,
    /// Who is in flight.
    pub(super) leases: Arc<dyn Leases>,
}

/// The store as operators see and change it.
pub(super) struct AdminStores {
    /// To be asked how buckets are: the store itself, which no remembered denial answers for.
    pub(super) look: Arc<dyn Store>,
    /// To be told of refunds and resets, which make this process forget its denials.
    pub(super) change: Arc<dyn Store>,
    /// To be asked about those in flight.
    pub(super) leases: Arc<dyn Leases>,
}

#[derive(Clone)]
struct Remote {
    settings: RedisStore,
    denials: Arc<Denials>,
    reachability: Arc<Reachability>,
    told: Arc<StoreMetricsObserver>,
}

impl Stores {
    /// What the process has once.
    pub(super) fn new(settings: &StoreSettings, metrics: &Arc<Metrics>) -> Self {
        let (memory, remote) = match settings {
            StoreSettings::Memory(memory) => (memory, None),
            StoreSettings::Redis(redis) => (&redis.local, Some(Remote::new(redis, metrics))),
        };
        let memory = Arc::new(Memory::new(*memory));
        let (buckets, evicted) = (Arc::clone(&memory), Arc::clone(&memory));
        metrics.memory_store(
            move || buckets.stats().buckets as u64,
            move || evicted.stats().evicted,
        );
        Self { memory, remote }
    }

    /// A worker's store. To be called on the worker's runtime.
    pub(super) async fn of_worker(&self) -> io::Result<WorkerStores> {
        match &self.remote {
            None => Ok(WorkerStores {
                store: self.memory(),
                leases: self.leases(),
            }),
            Some(remote) => remote.of_worker(self.memory()).await,
        }
    }

    /// The store as operators see and change it. To be called on their runtime.
    pub(super) async fn of_operators(&self) -> io::Result<AdminStores> {
        match &self.remote {
            None => Ok(AdminStores {
                look: self.memory(),
                change: self.memory(),
                leases: self.leases(),
            }),
            Some(remote) => remote.of_operators(self.memory()).await,
        }
    }

    /// The memory store: the only one, or the one that stands in.
    pub(super) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    fn leases(&self) -> Arc<dyn Leases> {
        Arc::new(self.memory.leases().clone())
    }

    /// Says what was not said of outages because there were too many, once it is time.
    pub(super) fn tell_outages(&self) {
        if let Some(remote) = &self.remote {
            remote.told.tell_outages();
        }
    }

    /// Whether every worker reaches the store.
    pub(super) fn are_reachable(&self) -> bool {
        self.remote
            .as_ref()
            .is_none_or(|remote| remote.reachability.is_reachable())
    }
}

impl Remote {
    fn new(settings: &RedisStore, metrics: &Arc<Metrics>) -> Self {
        let told = Arc::new(StoreMetricsObserver::new(
            settings.guard.on_failure,
            metrics,
        ));
        let observer = Arc::clone(&told) as Arc<dyn Observer>;
        Self {
            settings: settings.clone(),
            denials: Arc::new(Denials::default()),
            reachability: Arc::new(Reachability::new(observer)),
            told,
        }
    }

    async fn of_worker(&self, memory: Arc<Memory>) -> io::Result<WorkerStores> {
        let guarded = Arc::new(self.guarded(self.settings.guard, memory).await?);
        let denials = Arc::clone(&self.denials);
        Ok(WorkerStores {
            store: Arc::new(Remembered::new(Arc::clone(&guarded), denials)),
            leases: guarded,
        })
    }

    /// Operators want to know what the store itself says, and would rather wait for it a little.
    async fn of_operators(&self, memory: Arc<Memory>) -> io::Result<AdminStores> {
        let guard = GuardSettings {
            timeout: self.settings.guard.timeout.max(OPERATORS_PATIENCE),
            on_failure: OnFailure::Deny,
            ..self.settings.guard
        };
        let guarded = Arc::new(self.guarded(guard, memory).await?);
        let denials = Arc::clone(&self.denials);
        Ok(AdminStores {
            change: Arc::new(Remembered::new(Arc::clone(&guarded), denials)),
            look: Arc::clone(&guarded) as _,
            leases: guarded,
        })
    }

    async fn guarded(
        &self,
        guard: GuardSettings,
        memory: Arc<Memory>,
    ) -> io::Result<Guarded<Redis>> {
        let observer = Arc::clone(self.reachability.observer());
        let redis = Redis::spawn(self.settings.redis.clone(), observer);
        let redis = redis.map_err(io::Error::other)?;
        // A store that is there shall not be called out of reach only because it was not asked
        // yet; one that is not there is found so by the guard, which says why.
        let _ = redis.connected(CONNECT_AT_START).await;
        let reachability = Arc::clone(&self.reachability);
        Ok(Guarded::spawn(redis, guard, reachability, memory))
    }
}

/// Passes on to logs and metrics what the store has to say.
struct StoreMetricsObserver {
    on_failure: &'static str,
    metrics: Arc<Metrics>,
    decide: StoreCallMetrics,
    refund: StoreCallMetrics,
    reset: StoreCallMetrics,
    clamp: StoreCallMetrics,
    expire: StoreCallMetrics,
    acquire: StoreCallMetrics,
    renew: StoreCallMetrics,
    release: StoreCallMetrics,
    failures: Complaints,
    refusals: Complaints,
    /// What was said of the clock last.
    clock: Mutex<ClockState>,
    outages: Mutex<Outages>,
}

/// When something was complained about last.
#[derive(Default)]
struct Complaints(Mutex<Option<Instant>>);

/// How the gateway's clock stands to the store's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ClockState {
    #[default]
    Right,
    Suspicious,
    Unknown,
}

impl StoreMetricsObserver {
    fn new(on_failure: OnFailure, metrics: &Arc<Metrics>) -> Self {
        let call = |call| metrics.store_call(call, &StoreError::KINDS);
        Self {
            on_failure: match on_failure {
                OnFailure::Allow => "allow",
                OnFailure::Deny => "deny",
                OnFailure::Local => "local",
            },
            metrics: Arc::clone(metrics),
            decide: call("decide"),
            refund: call("refund"),
            reset: call("reset"),
            clamp: call("clamp"),
            expire: call("expire"),
            acquire: call("acquire"),
            renew: call("renew"),
            release: call("release"),
            failures: Complaints::default(),
            refusals: Complaints::default(),
            clock: Mutex::default(),
            outages: Mutex::default(),
        }
    }

    fn tell_outages(&self) {
        let due = self.outages.lock().due(tokio::time::Instant::now());
        self.say(due, None);
    }

    fn say(&self, saying: Option<Saying>, cause: Option<&StoreError>) {
        match saying {
            Some(Saying::Unreachable(times)) => StoreUnreachable {
                cause: cause.map(|cause| cause as &dyn Error),
                on_failure: self.on_failure,
                times,
            }
            .emit(),
            Some(Saying::Reachable) => StoreReachable.emit(),
            Some(Saying::Flapped(times)) => StoreFlapped { times }.emit(),
            None => {}
        }
    }

    /// Of a store that goes out of reach the breaker tells; of one that fails now and then, nobody
    /// else does.
    fn complain(&self, failure: &StoreError) {
        match failure {
            StoreError::Failed(cause) if self.failures.may_complain() => {
                tracing::warn!(%cause, "the store failed a call; told once a minute at most");
            }
            StoreError::Forbidden(cause) | StoreError::Undecided { source: cause, .. }
                if self.refusals.may_complain() =>
            {
                tracing::warn!(
                    %cause,
                    on_failure = self.on_failure,
                    "the store refuses a command that a limit needs: grant its user the right; \
                     told once a minute at most"
                );
            }
            _ => {}
        }
    }
}

impl ClockState {
    /// Remembers a measurement, and tells whether to warn of it. A clock that wavers about the
    /// threshold is warned of once: it has to be well again before.
    fn becomes_suspicious(&mut self, offset: ClockOffset) -> bool {
        let was_suspicious = *self == Self::Suspicious;
        let is_suspicious = match was_suspicious {
            true => !offset.is_within_half_the_tolerance(),
            false => offset.is_suspicious(),
        };
        match is_suspicious {
            true => self.becomes(Self::Suspicious),
            false => {
                *self = Self::Right;
                false
            }
        }
    }

    /// Tells whether this is new.
    fn becomes(&mut self, state: Self) -> bool {
        std::mem::replace(self, state) != state
    }
}

impl Complaints {
    fn may_complain(&self) -> bool {
        let mut complained = self.0.lock();
        let may = complained.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY);
        if may {
            *complained = Some(Instant::now());
        }
        may
    }
}

impl Observer for StoreMetricsObserver {
    fn called(&self, call: Call, took: Duration, failure: Option<&StoreError>) {
        if let Some(failure) = failure {
            self.complain(failure);
        }
        let metrics = match call {
            Call::Decide => &self.decide,
            Call::Refund => &self.refund,
            Call::Reset => &self.reset,
            Call::Clamp => &self.clamp,
            Call::Expire => &self.expire,
            Call::Acquire => &self.acquire,
            Call::Renew => &self.renew,
            Call::Release => &self.release,
        };
        metrics.called(took, failure.map(StoreError::kind));
    }

    fn state_changed(&self, reachable: bool, cause: Option<&StoreError>) {
        self.metrics.store_reachable(reachable);
        let now = tokio::time::Instant::now();
        let saying = self.outages.lock().changed(reachable, now);
        self.say(saying, cause);
    }

    fn clock_measured(&self, offset: Result<ClockOffset, &dyn Error>) {
        match offset {
            Ok(offset) => StoreClockMeasured {
                seconds: offset.seconds(),
                warn: self.clock.lock().becomes_suspicious(offset),
            }
            .emit(&self.metrics),
            Err(cause) if self.clock.lock().becomes(ClockState::Unknown) => {
                StoreClockUnknown { cause }.emit();
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn a_wrong_clock_is_warned_of_once_until_it_was_well_again() {
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let mut state = ClockState::default();
        for (millis, warns) in [
            (900, false),
            (1100, true),
            (1100, false),
            (900, false),
            (1100, false),
            (400, false),
            (1100, true),
        ] {
            let offset = ClockOffset::measured(at(5000 + millis), at(5000 + millis), at(5000));
            assert_eq!(state.becomes_suspicious(offset), warns, "{millis}");
        }
        assert!(state.becomes(ClockState::Unknown));
        assert!(!state.becomes(ClockState::Unknown));
    }
}
