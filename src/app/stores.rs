//! The store of the configuration: what of it the process has once, and what each worker has.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{RedisStore, StoreSettings};
use crate::store::{
    Call, Denials, Guarded, Memory, Observer, OnFailure, Reachability, Redis, Remembered, Store,
    StoreError,
};
use crate::telemetry::{Metrics, StoreCallMetrics, StoreReachable, StoreUnreachable};

/// The store, as far as workers share it.
#[derive(Clone)]
pub(super) struct Stores {
    memory: Arc<Memory>,
    remote: Option<Remote>,
}

#[derive(Clone)]
struct Remote {
    settings: RedisStore,
    denials: Arc<Denials>,
    reachability: Arc<Reachability>,
}

impl Stores {
    /// What the process has once.
    pub(super) fn new(settings: &StoreSettings, metrics: &Arc<Metrics>) -> Self {
        let (memory, remote) = match settings {
            StoreSettings::Memory(memory) => (memory, None),
            StoreSettings::Redis(redis) => (&redis.local, Some(Remote::new(redis, metrics))),
        };
        let memory = Arc::new(Memory::new(memory.clone()));
        let (buckets, evicted) = (Arc::clone(&memory), Arc::clone(&memory));
        metrics.memory_store(
            move || buckets.stats().buckets as u64,
            move || evicted.stats().evicted,
        );
        Self { memory, remote }
    }

    /// A worker's store. To be called on the worker's runtime.
    pub(super) fn of_worker(&self) -> io::Result<Arc<dyn Store>> {
        let Some(remote) = &self.remote else { return Ok(Arc::clone(&self.memory) as _) };
        let observer = Arc::clone(remote.reachability.observer());
        let redis = Redis::spawn(remote.settings.redis.clone(), observer);
        let redis = redis.map_err(io::Error::other)?;
        let reachability = Arc::clone(&remote.reachability);
        let memory = Arc::clone(&self.memory);
        let guarded = Guarded::spawn(redis, remote.settings.guard, reachability, memory);
        Ok(Arc::new(Remembered::new(guarded, Arc::clone(&remote.denials))))
    }

    /// The memory store: the only one, or the one that stands in.
    pub(super) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Whether every worker reaches the store.
    pub(super) fn are_reachable(&self) -> bool {
        self.remote.as_ref().is_none_or(|remote| remote.reachability.is_reachable())
    }
}

impl Remote {
    fn new(settings: &RedisStore, metrics: &Arc<Metrics>) -> Self {
        let observer = Told::new(settings.guard.on_failure, metrics);
        Self {
            settings: settings.clone(),
            denials: Arc::new(Denials::default()),
            reachability: Arc::new(Reachability::new(Arc::new(observer))),
        }
    }
}

/// Passes on to logs and metrics what the store has to say.
struct Told {
    on_failure: &'static str,
    metrics: Arc<Metrics>,
    decide: StoreCallMetrics,
    refund: StoreCallMetrics,
    reset: StoreCallMetrics,
    clamp: StoreCallMetrics,
}

impl Told {
    fn new(on_failure: OnFailure, metrics: &Arc<Metrics>) -> Self {
        Self {
            on_failure: match on_failure {
                OnFailure::Allow => "allow",
                OnFailure::Deny => "deny",
                OnFailure::Local => "local",
            },
            metrics: Arc::clone(metrics),
            decide: metrics.store_call("decide"),
            refund: metrics.store_call("refund"),
            reset: metrics.store_call("reset"),
            clamp: metrics.store_call("clamp"),
        }
    }
}

impl Observer for Told {
    fn called(&self, call: Call, took: Duration, failure: Option<&StoreError>) {
        let metrics = match call {
            Call::Decide => &self.decide,
            Call::Refund => &self.refund,
            Call::Reset => &self.reset,
            Call::Clamp => &self.clamp,
        };
        metrics.called(took, failure.map(StoreError::kind));
    }

    fn state_changed(&self, reachable: bool, cause: Option<&StoreError>) {
        if reachable {
            StoreReachable.emit(&self.metrics);
        } else {
            let cause = cause.map(|cause| cause as &dyn Error);
            StoreUnreachable { cause, on_failure: self.on_failure }.emit(&self.metrics);
        }
    }
}
