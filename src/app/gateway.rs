//! A gateway short of its sockets and threads: what a process has once. A simulation is composed by
//! it as well.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use weir_config::Settings;
use weir_logging::LogLevel;
use weir_server::AdminApi;
use weir_store::Store;
use weir_telemetry::Metrics;
use weir_yaml::Inputs;

use super::admin_api;
use super::features::{Features, ListKeepers, SharedFeatures};
use super::fleet::{Fleet, Identity, Surroundings};
use super::reloads::{Environment, ProcessState, Reloads, Snapshot, Source};
use super::stack::SharedState;
use super::stores::{SharedStores, Stores};
use super::upstreams::ActiveUpstreams;

/// Interval of sweeps of a part of the memory store.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// The parts of a process that are no sockets and no threads.
pub(super) struct Gateway {
    pub(super) stores: Stores,
    /// None if this process is alone.
    pub(super) shared: Option<SharedStores>,
    /// The configuration in force, and those that follow it.
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) features: Features,
    reloads: Reloads,
    shared_features: SharedFeatures,
    state: SharedState,
}

impl Gateway {
    /// Makes the first snapshot of what was `loaded`. Must be called on a runtime that lasts as
    /// long as the process.
    pub(super) async fn start(
        source: Source,
        (settings, inputs): (Settings, Inputs),
        environment: Environment,
    ) -> io::Result<(Self, ListKeepers)> {
        let (state, features) = (environment.shared.clone(), environment.features.clone());
        let metrics = Arc::clone(&state.metrics);
        let stores = Stores::new(&settings.process.store, &metrics);
        stores.use_for(&settings.limits());
        let shared = stores.shared().await?;
        let lists = shared.as_ref().map(|shared| Arc::clone(&shared.lists));
        let (shared_features, mut keepers) =
            SharedFeatures::new(&settings.process, &state.access, stores.clock(), lists);
        let process_state = ProcessState {
            environment,
            clock: stores.clock(),
            refused: Arc::default(),
        };
        let kept_overrides = shared_features.begin(&mut keepers).await;
        features.apply(&settings);
        features.prepare(&settings).await;
        let loaded = Arc::new(settings);
        let snapshot = Snapshot::new(&loaded, &kept_overrides, &process_state, None);
        let (publish, snapshots) = watch::channel(Arc::new(snapshot));
        let sampled = snapshots.clone();
        ActiveUpstreams::show(&metrics, move || sampled.borrow().upstreams.clone());
        let files = (loaded, inputs);
        let gateway = Self {
            reloads: Reloads::new(source, files, publish, process_state),
            stores,
            shared,
            snapshots,
            features,
            shared_features,
            state,
        };
        Ok((gateway, keepers))
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    pub(super) fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.state.metrics)
    }

    /// What this gateway and the others of its store know of each other.
    pub(super) fn fleet(&self, identity: Identity) -> Fleet {
        let around = Surroundings {
            snapshots: self.snapshots.clone(),
            stores: self.stores.clone(),
            metrics: self.metrics(),
            findings: admin_api::published_findings,
        };
        Fleet::new(identity, around, self.shared.clone())
    }

    /// The admin API, which ends what it streams when the gateway is `draining`.
    pub(super) fn admin_api(
        &self,
        fleet: Fleet,
        log_level: LogLevel,
        draining: watch::Receiver<bool>,
    ) -> AdminApi {
        let parts = admin_api::GatewayParts {
            snapshots: self.snapshots.clone(),
            stores: self.stores.clone(),
            fleet,
            features: self.features.clone(),
            metrics: self.metrics(),
            log_level,
            shared: self.shared_features.clone(),
        };
        admin_api::service(parts, draining)
    }

    /// Makes [`Self::follow`] read the configuration again.
    pub(super) fn reload(&self) {
        self.reloads.reload();
    }

    /// Lets go of the requests that are held because their senders are kept out.
    pub(super) fn release_held(&self) {
        self.state.access.release();
    }

    /// Keeps up with the files of the configuration, and with what operators and other gateways
    /// change.
    pub(super) async fn follow(&self, keepers: &mut ListKeepers) -> Infallible {
        let (snapshots, store) = (self.snapshots.clone(), self.buckets());
        let sockets = self.snapshot().sockets.clone();
        let (never, ..) = tokio::join!(
            self.sweep(),
            self.follow_limits(),
            self.shared_features.follow(
                keepers,
                &self.reloads,
                snapshots,
                Snapshot::settings,
                store,
                &sockets
            ),
            self.reloads.follow(),
        );
        never
    }

    /// Lets the store know which algorithms are in use.
    async fn follow_limits(&self) -> Infallible {
        let mut snapshots = self.snapshots.clone();
        loop {
            let snapshot = Arc::clone(&snapshots.borrow_and_update());
            self.stores.use_for(&snapshot.settings.limits());
            if snapshots.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The buckets as the store has them, without cached denials.
    fn buckets(&self) -> Arc<dyn Store> {
        let shared = self.shared.as_ref();
        let store = shared.map(|shared| Arc::clone(&shared.buckets));
        store.unwrap_or_else(|| self.stores.memory())
    }

    /// Sweeps expired buckets, a part at a time, logs outages that were held back, and remembers
    /// counters for what failed within a minute.
    async fn sweep(&self) -> Infallible {
        let (memory, clock) = (self.stores.memory(), self.stores.clock());
        let mut turns = interval(SWEEP_EVERY);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            memory.sweep(clock.now());
            self.stores.log_outages();
            self.state.metrics.remember();
        }
    }
}
