//! Reloads: when the files change or at a signal, a new configuration is applied as a whole or not
//! at all.
//!
//! Files are polled once a second, by their metadata. That works everywhere: on network file
//! systems and bind mounts, which do not notify of changes made elsewhere, through symbolic links
//! that change their target, and in folders that are removed and created again. See
//! `docs/decisions/0009-yaml-with-places-and-polled-files.md`.

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use weir_config::{LoadResult, OverrideCheck, ProcessSettings, Settings, Upstream};
use weir_limit::time::{Clock, SystemClock, Timestamp};
use weir_proxy::Server;
use weir_rules::HashKey;
use weir_runtime::blocking;
use weir_runtime::sync::Mutex;
use weir_telemetry::{Metrics, events};
use weir_yaml::Inputs;

use super::features::Features;
use super::features::overrides::{CheckedOverrides, KeptOverride};
use super::shared_list::ListTarget;
use super::sockets::Sockets;
use super::stack::SharedState;
use super::stacks::StackLayers;
use super::startup_log::{self, RestartOnlySettings};
use super::upstreams::ActiveUpstreams;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which changed files must stay the same before they are read, so that a program can
/// finish writing.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// The surroundings of a gateway.
#[derive(Clone)]
pub(super) struct Environment {
    pub(super) demo_upstream: SocketAddr,
    pub(super) sockets: Sockets,
    pub(super) features: Features,
    pub(super) shared: SharedState,
}

impl Environment {
    pub(super) fn new(
        settings: &ProcessSettings,
        demo_upstream: SocketAddr,
        sockets: Sockets,
        features: Features,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            demo_upstream,
            sockets,
            shared: SharedState::new(settings, metrics, features.tracer()),
            features,
        }
    }
}

/// State of a process that outlives reloads.
#[derive(Clone)]
pub(super) struct ProcessState {
    pub(super) environment: Environment,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) refused: Arc<Mutex<Option<RefusedLoad>>>,
}

/// A load whose configuration was refused.
#[derive(Clone, Debug)]
pub(super) struct RefusedLoad {
    pub(super) at: Timestamp,
    /// Each error, with its remedy in lines of its own.
    pub(super) errors: Vec<String>,
}

/// A configuration and the layers made from it.
pub(super) struct Snapshot {
    /// With the overrides by the admin API.
    pub(super) settings: Settings,
    pub(super) layers: StackLayers,
    pub(super) overrides: CheckedOverrides,
    pub(super) refused: Arc<Mutex<Option<RefusedLoad>>>,
    pub(super) sockets: Sockets,
    /// Whether an upstream gets PROXY headers.
    pub(super) sends_proxy_headers: bool,
    pub(super) upstreams: ActiveUpstreams,
}

impl Snapshot {
    /// A snapshot of these settings with the overrides. What is known of upstreams and users that
    /// stay as they were in the `earlier` one is kept.
    pub(super) fn new(
        loaded: &Settings,
        overrides: &[Arc<KeptOverride>],
        process: &ProcessState,
        earlier: Option<&Self>,
    ) -> Self {
        let around = &process.environment;
        let now = process.clock.now();
        let (mut settings, overrides) = CheckedOverrides::add_to(loaded, overrides, now);
        if let Some(earlier) = earlier {
            settings.account.inherit(&earlier.settings.account);
        }
        let complete = |upstream: &mut Upstream| {
            if upstream.is_demo {
                upstream.settings.servers = vec![Server::from(around.demo_upstream)];
            }
            around.features.complete(&mut upstream.settings);
        };
        let known = earlier.map(|earlier| &earlier.upstreams);
        let upstreams = ActiveUpstreams::new(&settings, complete, known);
        let sockets = around.sockets.clone();
        let (redirects, decides) = (sockets.redirect_to_https(), sockets.decide());
        let layers = StackLayers::new(&settings, &upstreams, &around.shared, redirects, decides);
        Self {
            upstreams,
            overrides,
            // SRV records may come later than the client's connection.
            sends_proxy_headers: loaded
                .upstreams
                .iter()
                .any(|upstream| upstream.sends_proxy_headers()),
            settings,
            layers,
            refused: Arc::clone(&process.refused),
            sockets,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// The file of the configuration.
pub(super) struct Source {
    path: PathBuf,
    /// Hashes possible secrets where no key is configured. It lives as long as the process, or a
    /// reload would change the hashes of all accounts.
    key: HashKey,
}

impl Source {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            key: HashKey::random(),
        }
    }

    /// Reads the configuration that is to replace the one `in_force`.
    pub(super) fn read(&self, in_force: Option<&Settings>) -> LoadResult {
        weir_config::read(&self.path, &self.key, in_force)
    }
}

pub(super) struct Reloads {
    source: Arc<Source>,
    /// Told at a signal.
    wanted: Notify,
    publish: watch::Sender<Arc<Snapshot>>,
    process: ProcessState,
    kept: RestartOnlySettings,
    files: RefCell<Files>,
    /// The configuration in force, as it was loaded.
    loaded: RefCell<Arc<Settings>>,
    /// The overrides by the admin API in it.
    overrides: RefCell<Vec<Arc<KeptOverride>>>,
}

struct Files {
    /// As they were when the configuration in force was read.
    in_force: Arc<Inputs>,
    /// As they were at the last read.
    last: Arc<Inputs>,
}

impl Reloads {
    /// `publish` holds the configuration in force, which was `loaded` from `inputs`.
    pub(super) fn new(
        source: Source,
        (loaded, inputs): (Arc<Settings>, Inputs),
        publish: watch::Sender<Arc<Snapshot>>,
        process: ProcessState,
    ) -> Self {
        let kept = RestartOnlySettings::new(&loaded);
        let inputs = Arc::new(inputs);
        let overrides = publish.borrow().overrides.kept();
        Self {
            loaded: RefCell::new(loaded),
            overrides: RefCell::new(overrides),
            source: Arc::new(source),
            wanted: Notify::new(),
            publish,
            process,
            kept,
            files: RefCell::new(Files {
                in_force: Arc::clone(&inputs),
                last: inputs,
            }),
        }
    }

    /// Makes [`Self::follow`] reload after a signal: the outcome is logged in any case.
    pub(super) fn reload(&self) {
        self.wanted.notify_one();
    }

    /// Reloads at signals, and whenever the files change. Nothing is logged again for the same
    /// contents.
    pub(super) async fn follow(&self) -> Infallible {
        loop {
            tokio::select! {
                () = self.wanted.notified() => self.apply(self.read().await),
                () = sleep(POLL_INTERVAL) => {
                    if self.process.environment.features.have_changed() {
                        self.publish_snapshot();
                    }
                    if self.watches() && self.have_changed().await {
                        self.files_changed().await;
                    }
                }
            }
        }
    }

    fn metrics(&self) -> &Metrics {
        &self.process.environment.shared.metrics
    }

    fn watches(&self) -> bool {
        self.publish.borrow().settings.watch
    }

    /// Whether files have changed since they were read. If so, waits until they are quiet.
    async fn have_changed(&self) -> bool {
        let inputs = Arc::clone(&self.files.borrow().last);
        let stamps_now = || {
            let looking = Arc::clone(&inputs);
            blocking::run(move || looking.stamps_now())
        };
        let mut before = inputs.stamps();
        let mut now = stamps_now().await;
        let changed = now != before;
        while now != before {
            sleep(SETTLE_TIME).await;
            before = now;
            now = stamps_now().await;
        }
        changed
    }

    async fn files_changed(&self) {
        let loaded = self.read().await;
        let known = loaded.inputs.same_contents(&self.files.borrow().last);
        if known {
            self.files.borrow_mut().last = Arc::new(loaded.inputs);
        } else {
            self.apply(loaded);
        }
    }

    /// Reads the files, which may be long or on a file system that hangs. Signals, health checks
    /// and the demo upstream must not wait for that.
    async fn read(&self) -> LoadResult {
        let (source, in_force) = (Arc::clone(&self.source), Arc::clone(&self.loaded.borrow()));
        let loaded = blocking::run(move || source.read(Some(&in_force))).await;
        if let Ok(settings) = &loaded.outcome {
            self.process.environment.features.prepare(settings).await;
        }
        loaded
    }

    /// Applies a new configuration, unless it has errors or is the same as the old one.
    fn apply(&self, loaded: LoadResult) {
        let inputs = Arc::new(loaded.inputs);
        let mut files = self.files.borrow_mut();
        files.last = Arc::clone(&inputs);
        *self.process.refused.lock() = loaded.outcome.as_ref().err().map(|found| RefusedLoad {
            at: SystemClock.now(),
            errors: found.error_lines().collect(),
        });
        match loaded.outcome {
            Err(found) => events::reload_failed(self.metrics(), &found),
            Ok(_) if inputs.same_contents(&files.in_force) => events::unchanged(self.metrics()),
            Ok(settings) => {
                files.in_force = inputs;
                self.publish(settings);
            }
        }
    }

    fn publish(&self, settings: Settings) {
        let around = &self.process.environment;
        around.sockets.renew(&settings.listen);
        around.features.apply(&settings);
        self.loaded.replace(Arc::new(settings));
        let snapshot = self.publish_snapshot();
        startup_log::reloaded(&snapshot.settings, &self.kept, self.metrics());
        snapshot.overrides.warn(&snapshot.settings);
    }

    fn publish_snapshot(&self) -> Arc<Snapshot> {
        let earlier = Arc::clone(&self.publish.borrow());
        let (loaded, overrides) = (self.loaded.borrow(), self.overrides.borrow());
        let snapshot = Snapshot::new(&loaded, &overrides, &self.process, Some(&earlier));
        let snapshot = Arc::new(snapshot);
        snapshot
            .layers
            .forwarding
            .inherit(&earlier.layers.forwarding);
        self.publish.send_replace(Arc::clone(&snapshot));
        snapshot
    }
}

impl ListTarget<KeptOverride> for Reloads {
    fn put_in_force(&self, overrides: &[Arc<KeptOverride>]) {
        self.overrides.replace(overrides.to_vec());
        let snapshot = self.publish_snapshot();
        snapshot.overrides.log_change(&snapshot.settings);
    }

    fn check(&self, wanted: &Arc<KeptOverride>, others: &[Arc<KeptOverride>]) -> OverrideCheck {
        wanted.check(&self.loaded.borrow(), others, self.process.clock.now())
    }

    fn log_ended(&self, kept: &KeptOverride) {
        kept.log_end(&self.loaded.borrow());
    }
}
