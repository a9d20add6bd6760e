//! Features that a process has once beside its layers. Two doors keep their names out of what starts,
//! reloads and ends the process. By [`Feature`] they follow the configuration; those are listed in
//! [`Features::new`]. By [`Room`] they show what they do; those are listed in [`ROOMS`].
//!
//! The rest is no door. [`Features`] has fields for what traces requests and what sheds them, and
//! [`SharedFeatures`] a field and a method for each list by which gateways share what operators set:
//! overrides are put in force by `app::reloads`, which knows their type.

pub(super) mod bans;
pub(super) mod jwks;
#[cfg(feature = "otlp")]
mod otlp;
mod overload;
pub(super) mod overrides;
mod room;
mod shedding;
pub(super) mod srv;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use futures_util::future::{LocalBoxFuture, ready};
use tokio::sync::watch;
use weir_config::{ProcessSettings, Settings};
use weir_limit::ShedLevel;
use weir_limit::time::Clock;
use weir_middleware::AccessState;
use weir_proxy::UpstreamSettings;
use weir_store::{SharedLists, Store};
use weir_telemetry::{Metrics, Tracer};

use self::bans::{BansRoom, SharedBans, StandingBan};
use self::jwks::KeySets;
use self::overload::Overload;
use self::overrides::{KeptOverride, OverridesRoom};
pub(super) use self::room::{ArrivedRequest, DecisionCounters, Room};
pub(super) use self::shedding::Load;
use self::shedding::SheddingRoom;
use self::srv::SrvServers;
use super::shared_list::{ListChanges, ListKeeper, ListTarget};
use super::sockets::Sockets;

/// What shows something of itself. By this order they are summarized, explained and listed, and the
/// first one that has a remedy gives it.
pub(super) const ROOMS: [&dyn Room; 3] = [&SheddingRoom, &BansRoom, &OverridesRoom];

/// What follows the configuration in force.
trait Feature: Send + Sync {
    /// Gets ready for settings that are about to be in force. It waits for a moment at most. Called
    /// on a runtime that lasts as long as the process.
    fn prepare<'a>(&'a self, _: &'a Settings) -> LocalBoxFuture<'a, ()> {
        Box::pin(ready(()))
    }

    /// Does what these settings want from now on, and nothing else. Called on the same runtime.
    fn apply(&self, _: &Settings) {}

    /// Completes an upstream by what is not in its configuration.
    fn complete(&self, _: &mut UpstreamSettings) {}

    /// Whether it completes upstreams otherwise than when it was asked last.
    fn has_changed(&self) -> bool {
        false
    }

    /// What it lacks, without which the gateway is not ready.
    fn lacking(&self) -> Option<String> {
        None
    }
}

/// All of them. Clones share them.
#[derive(Clone)]
pub(super) struct Features {
    all: Arc<[Box<dyn Feature>]>,
    overload: Overload,
    /// Traces requests, if that is configured.
    tracer: Option<Arc<Tracer>>,
}

impl Features {
    /// They do nothing yet, and nothing is traced.
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        let all: Vec<Box<dyn Feature>> = vec![
            Box::new(KeySets::new(metrics)),
            Box::new(SrvServers::new(metrics)),
        ];
        Self {
            all: all.into(),
            overload: Overload::new(metrics),
            tracer: None,
        }
    }

    /// The same, with requests traced if these settings say so.
    pub(super) fn tracing(self, settings: &Settings, metrics: &Metrics) -> io::Result<Self> {
        let tracer = start_tracer(settings, metrics)?;
        Ok(Self { tracer, ..self })
    }

    /// Traces requests, if that is configured.
    pub(super) fn tracer(&self) -> Option<Arc<Tracer>> {
        self.tracer.clone()
    }

    /// Gets ready for settings that are about to be in force. It waits for a moment at most. Must be
    /// called on a runtime that lasts as long as the process.
    pub(super) async fn prepare(&self, settings: &Settings) {
        for feature in &*self.all {
            feature.prepare(settings).await;
        }
    }

    /// Does what these settings want from now on. Must be called on the same runtime.
    pub(super) fn apply(&self, settings: &Settings) {
        self.all.iter().for_each(|feature| feature.apply(settings));
    }

    /// Completes an upstream by what is not in its configuration.
    pub(super) fn complete(&self, upstream: &mut UpstreamSettings) {
        let all = self.all.iter();
        all.for_each(|feature| feature.complete(upstream));
    }

    /// Whether upstreams are completed otherwise than at the last call.
    pub(super) fn have_changed(&self) -> bool {
        let changed = self.all.iter().filter(|feature| feature.has_changed());
        changed.count() > 0
    }

    /// What some of them lacks, for which the gateway is not ready.
    pub(super) fn lacking(&self) -> Option<String> {
        self.all.iter().find_map(|feature| feature.lacking())
    }

    /// Keeps up, on this thread's worker, with configurations whose settings `settings_of` gets.
    pub(super) async fn follow_worker<C>(
        self,
        worker: usize,
        configurations: watch::Receiver<Arc<C>>,
        settings_of: impl Fn(&C) -> &Settings,
    ) -> Infallible {
        let follow = self.overload.follow(worker, configurations, settings_of);
        follow.await
    }

    /// How much the workers shed that are watched.
    pub(super) fn worker_levels(&self) -> Vec<ShedLevel> {
        self.overload.levels()
    }

    /// Sends what is left to be sent. That blocks its thread, which must not be the runtime's.
    pub(super) async fn end(self) {
        if let Some(tracer) = self.tracer {
            let ended = tokio::task::spawn_blocking(move || tracer.end());
            // It ends by itself after a time.
            let _ = ended.await;
        }
    }
}

/// Features that other gateways know of as well, by lists that all share. Clones share them.
#[derive(Clone)]
pub(super) struct SharedFeatures {
    bans: SharedBans,
    override_changes: ListChanges<KeptOverride>,
}

/// The keepers of the lists of [`SharedFeatures`].
pub(super) struct ListKeepers {
    standing_bans: ListKeeper<StandingBan>,
    overrides: ListKeeper<KeptOverride>,
}

impl SharedFeatures {
    /// Without `lists`, this process is alone.
    pub(super) fn new(
        settings: &ProcessSettings,
        access: &AccessState,
        clock: Arc<dyn Clock>,
        lists: Option<Arc<dyn SharedLists>>,
    ) -> (Self, ListKeepers) {
        let known = access.known().clone();
        let (bans, standing_bans) = SharedBans::new(known, Arc::clone(&clock), lists.clone());
        let (overrides, override_changes) = overrides::keeper(settings, lists, clock);
        let shared = Self {
            bans,
            override_changes,
        };
        let keepers = ListKeepers {
            standing_bans,
            overrides,
        };
        (shared, keepers)
    }

    /// Puts in force what is in the lists, so that it holds from the first request on. Returns the
    /// overrides, which a snapshot of the configuration puts in force.
    pub(super) async fn begin(&self, keepers: &mut ListKeepers) -> Vec<Arc<KeptOverride>> {
        let overrides = keepers.overrides.first().await;
        let standing = keepers.standing_bans.first().await;
        self.bans.standing.put_in_force(&standing);
        overrides
    }

    /// Keeps up with the lists, with the configurations that are published, whose settings
    /// `settings_of` gets, and with the buckets in this store. Overrides are put in force by `reloads`.
    pub(super) async fn follow<C>(
        &self,
        keepers: &mut ListKeepers,
        reloads: &impl ListTarget<KeptOverride>,
        configurations: watch::Receiver<Arc<C>>,
        settings_of: impl Fn(&C) -> &Settings,
        store: Arc<dyn Store>,
        sockets: &Sockets,
    ) -> Infallible {
        let bans = self
            .bans
            .follow_all(configurations, settings_of, store, sockets);
        let standing = keepers.standing_bans.follow(&self.bans.standing);
        let overrides = keepers.overrides.follow(reloads);
        tokio::join!(bans, standing, overrides).0
    }

    /// Changes of the overrides by the admin API.
    pub(super) const fn override_changes(&self) -> &ListChanges<KeptOverride> {
        &self.override_changes
    }

    const fn bans(&self) -> &SharedBans {
        &self.bans
    }
}

/// Starts what traces requests, if the configuration asks for it.
#[cfg(feature = "otlp")]
fn start_tracer(settings: &Settings, metrics: &Metrics) -> io::Result<Option<Arc<Tracer>>> {
    let settings = settings.process.otlp.as_ref();
    settings
        .map(|settings| otlp::start(settings, metrics))
        .transpose()
}

/// A build without OTLP has refused the configuration.
#[cfg(not(feature = "otlp"))]
fn start_tracer(_: &Settings, _: &Metrics) -> io::Result<Option<Arc<Tracer>>> {
    Ok(None)
}
