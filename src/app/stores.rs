//! The store of the configuration: the parts that the process has once, and those of each worker.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use weir_config::{RedisStore, Settings, StoreSettings};
use weir_limit::time::{Clock, SystemClock};
use weir_middleware::{Backend, BackgroundTasks};
use weir_redis::{HotBuckets, Prefetching, Redis};
use weir_rules::Limit;
use weir_store::{
    DecisionClock, DenialCache, DenialCached, GuardSettings, Guarded, KeyScan, Leases, Memory,
    Observer, OnFailure, Reachability, SharedLists, SharedTexts, Store,
};
use weir_telemetry::Metrics;

use super::store_observer::StoreMetricsObserver;

/// How long a worker waits for its first connection to the store before it serves without.
const CONNECT_AT_START: Duration = Duration::from_secs(1);

/// The minimum timeout of calls for the admin API.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The parts of the store that workers share.
#[derive(Clone)]
pub(super) struct Stores {
    memory: Arc<Memory>,
    remote: Option<Remote>,
}

/// The stores of a worker.
#[derive(Clone)]
pub(super) struct WorkerStores {
    /// The buckets.
    store: Arc<dyn Store>,
    /// The same buckets, of which hot ones are prefetched; none where they are not shared.
    prefetching: Option<Arc<DenialCached<Prefetching<Guarded<Redis>>>>>,
    /// The requests in flight.
    leases: Arc<dyn Leases>,
}

/// The stores of the admin API.
pub(super) struct AdminStores {
    /// For reading buckets: the store itself, without cached denials.
    pub(super) read: Arc<dyn Store>,
    /// For refunds and resets, which remove denials from the cache, and for resets, which lose
    /// what is prefetched.
    pub(super) change: Arc<dyn Store>,
    /// The requests in flight.
    pub(super) leases: Arc<dyn Leases>,
    /// Lists the keys of buckets; none where the store has hashes in their place.
    pub(super) scan: Option<Arc<dyn KeyScan>>,
}

/// What gateways share, by one connection.
#[derive(Clone)]
pub(super) struct SharedStores {
    pub(super) buckets: Arc<dyn Store>,
    pub(super) lists: Arc<dyn SharedLists>,
    pub(super) texts: Arc<dyn SharedTexts>,
}

#[derive(Clone)]
struct Remote {
    settings: RedisStore,
    denials: Arc<DenialCache>,
    hot_buckets: Arc<HotBuckets>,
    reachability: Arc<Reachability>,
    observer: Arc<StoreMetricsObserver>,
}

impl WorkerStores {
    /// What limits ask of a configuration, by this clock and with these tasks.
    pub(super) fn backend(
        &self,
        settings: &Settings,
        clock: &Arc<dyn Clock>,
        tasks: &BackgroundTasks,
    ) -> Backend {
        let store = match &self.prefetching {
            Some(prefetching) if settings.prefetches() => Arc::clone(prefetching) as _,
            _ => Arc::clone(&self.store),
        };
        Backend {
            store,
            leases: Arc::clone(&self.leases),
            clock: Arc::clone(clock),
            tasks: tasks.clone(),
        }
    }

    /// Gives back all that is held, because the worker ends, and waits until that is done.
    pub(super) async fn end(&self) {
        let prefetched = async {
            if let Some(prefetching) = &self.prefetching {
                prefetching.get_ref().end().await;
            }
        };
        // The stores report their failures themselves.
        let _ = tokio::join!(self.leases.end(), prefetched);
    }
}

impl Stores {
    /// What the process has once. Must be called on a runtime that lasts as long as the process.
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

    /// The stores of a worker. Must be called on its runtime.
    pub(super) async fn for_worker(&self) -> io::Result<WorkerStores> {
        match &self.remote {
            None => Ok(WorkerStores {
                store: self.memory(),
                prefetching: None,
                leases: self.leases(),
            }),
            Some(remote) => remote.for_worker(self.memory()).await,
        }
    }

    /// The stores of the admin API. Must be called on its runtime.
    pub(super) async fn for_admin(&self) -> io::Result<AdminStores> {
        match &self.remote {
            None => Ok(AdminStores {
                read: self.memory(),
                change: self.memory(),
                leases: self.leases(),
                scan: None,
            }),
            Some(remote) => remote.for_admin(self.memory()).await,
        }
    }

    /// What all gateways see beside the buckets; none if this process is alone. Must be called on a
    /// runtime that lasts as long as the process.
    pub(super) async fn shared(&self) -> io::Result<Option<SharedStores>> {
        let Some(remote) = &self.remote else {
            return Ok(None);
        };
        let guarded = Arc::new(remote.for_operators(self.memory()).await?);
        Ok(Some(SharedStores {
            buckets: Arc::clone(&guarded) as _,
            lists: Arc::clone(&guarded) as _,
            texts: guarded,
        }))
    }

    /// The memory store: the only one, or the fallback.
    pub(super) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// The clock by which all of them decide.
    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        match &self.remote {
            None => Arc::new(SystemClock),
            Some(remote) => remote.settings.redis.clock.to_shared(),
        }
    }

    fn leases(&self) -> Arc<dyn Leases> {
        Arc::new(self.memory.leases().clone())
    }

    /// Logs outages that were held back because there were too many, once they are due.
    pub(super) fn log_outages(&self) {
        if let Some(remote) = &self.remote {
            remote.observer.log_outages();
        }
    }

    /// These limits are in force: Redis has to carry out the commands that they need.
    pub(super) fn use_for(&self, limits: &[&Arc<Limit>]) {
        let Some(remote) = &self.remote else { return };
        let quotas = limits.iter().flat_map(|limit| {
            let of_overrides = limit.overrides().map(|overridden| overridden.quota);
            limit.quota().into_iter().chain(of_overrides)
        });
        let used = &remote.settings.redis.algorithms;
        used.replace(quotas.map(|quota| quota.algorithm()));
    }

    /// What of the store some worker does not reach, or what it refuses, if that is anything.
    pub(super) fn trouble(&self) -> Option<String> {
        let remote = self.remote.as_ref()?;
        let cause = |node: Option<&str>| remote.observer.cause(node);
        let reachability = &remote.reachability;
        if reachability.is_reachable() {
            let refusals = reachability.refusals();
            let refusals = (!refusals.is_empty()).then(|| refusals.join("; "))?;
            return Some(format!("the store refuses commands: {refusals}"));
        }
        let named = |node: &Arc<str>| match cause(Some(node)) {
            None => node.to_string(),
            Some(cause) => format!("{node} ({cause})"),
        };
        let nodes: Vec<_> = reachability.unreachable_nodes().iter().map(named).collect();
        Some(match (nodes.as_slice(), cause(None)) {
            ([], None) => "the store is out of reach".to_owned(),
            ([], Some(cause)) => format!("the store is out of reach: {cause}"),
            (nodes, _) => format!("nodes of the store are out of reach: {}", nodes.join(", ")),
        })
    }
}

impl Remote {
    fn new(settings: &RedisStore, metrics: &Arc<Metrics>) -> Self {
        let mut settings = settings.clone();
        settings.redis.clock = DecisionClock::new(settings.clock);
        let metrics_observer = Arc::new(StoreMetricsObserver::new(
            settings.guard.on_failure,
            settings.redis.clock.clone(),
            metrics,
        ));
        let observer = Arc::clone(&metrics_observer) as Arc<dyn Observer>;
        let mut settings = settings.clone();
        settings.redis = settings.redis.shared(&observer);
        Self {
            settings,
            denials: Arc::new(DenialCache::default()),
            hot_buckets: Arc::new(HotBuckets::default()),
            reachability: Arc::new(Reachability::new(observer)),
            observer: metrics_observer,
        }
    }

    async fn for_worker(&self, memory: Arc<Memory>) -> io::Result<WorkerStores> {
        let guarded = Arc::new(self.guarded(self.settings.guard, memory).await?);
        Ok(WorkerStores {
            store: Arc::new(self.denial_cached(Arc::clone(&guarded))),
            prefetching: Some(Arc::new(self.denial_cached(self.prefetching(&guarded)))),
            leases: guarded,
        })
    }

    async fn for_admin(&self, memory: Arc<Memory>) -> io::Result<AdminStores> {
        let guarded = Arc::new(self.for_operators(memory).await?);
        Ok(AdminStores {
            change: Arc::new(self.denial_cached(self.prefetching(&guarded))),
            read: Arc::clone(&guarded) as _,
            scan: Some(Arc::clone(&guarded) as _),
            leases: guarded,
        })
    }

    /// Operators want the state of the store itself, and accept a longer wait.
    async fn for_operators(&self, memory: Arc<Memory>) -> io::Result<Guarded<Redis>> {
        let guard = GuardSettings {
            timeout: self.settings.guard.timeout.max(ADMIN_TIMEOUT),
            on_failure: OnFailure::Deny,
            ..self.settings.guard
        };
        self.guarded(guard, memory).await
    }

    fn redis(&self) -> io::Result<Redis> {
        let observer = Arc::clone(self.reachability.observer());
        let redis = Redis::spawn(self.settings.redis.clone(), observer);
        redis.map_err(io::Error::other)
    }

    fn denial_cached<S>(&self, store: S) -> DenialCached<S> {
        DenialCached::new(store, Arc::clone(&self.denials))
    }

    fn prefetching(&self, store: &Arc<Guarded<Redis>>) -> Prefetching<Guarded<Redis>> {
        Prefetching::new(Arc::clone(store), Arc::clone(&self.hot_buckets))
    }

    async fn guarded(
        &self,
        guard: GuardSettings,
        memory: Arc<Memory>,
    ) -> io::Result<Guarded<Redis>> {
        let redis = self.redis()?;
        // A store must not be reported unreachable only because it was not asked yet. If it cannot
        // be reached, the guard finds that out, and says why.
        let _ = redis.connected(CONNECT_AT_START).await;
        let reachability = Arc::clone(&self.reachability);
        Ok(Guarded::spawn(redis, guard, reachability, memory))
    }
}
