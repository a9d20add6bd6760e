//! Keeps the servers fresh that SRV records name. No request waits for that: the last servers are
//! used until others are found, however long the DNS is silent.

use std::convert::Infallible;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join_all};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use weir_config::Settings;
use weir_proxy::{Server, SrvRecord, UpstreamSettings, lookup_srv};
use weir_telemetry::{Counter, Family, Metrics, Name};

use super::Feature;

/// The target of its log lines, as filters name it.
const TARGET: &str = "weir::app::srv";

/// From the first query to the last answer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a start or a reload waits for the servers of upstreams that are new.
const FIRST_LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The bounds of the pause after a success, within which the records' TTL decides: a TTL of 0 asks
/// for no flood of queries, and one of a month may be a mistake that should end.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3600));

const LOOKUPS: Name = Name::new(
    "weir_srv_lookups",
    "Lookups of the SRV records that name servers, by name and outcome",
);

/// The lookups, by name.
#[derive(Clone)]
pub(in crate::app) struct SrvMetrics(Family<Counter>);

impl SrvMetrics {
    pub(in crate::app) fn new(metrics: &Metrics) -> Self {
        Self(metrics.counters(LOOKUPS))
    }

    /// Counts a lookup. From the first one on, the page has both outcomes.
    pub(in crate::app) fn looked_up(&self, name: &str, succeeded: bool) {
        for (outcome, is_this) in [("success", succeeded), ("failure", !succeeded)] {
            let counter = self.0.member([("name", name), ("outcome", outcome)]);
            counter.inc_by(u64::from(is_this));
        }
    }

    /// Shows nothing more of a name.
    fn left(&self, name: &str) {
        for outcome in ["success", "failure"] {
            self.0.remove([("name", name), ("outcome", outcome)]);
        }
    }
}

/// The records by which the servers of upstreams are found. Clones share them.
#[derive(Clone)]
pub(in crate::app) struct SrvServers(Arc<SharedSrvServers>);

struct SharedSrvServers {
    metrics: SrvMetrics,
    lookups: Mutex<Vec<Lookup>>,
    /// Whether there are changes that are not in force.
    changed: Arc<AtomicBool>,
}

/// A name, and the task that looks it up.
struct Lookup {
    source: Source,
    found: watch::Receiver<Option<Vec<SrvRecord>>>,
    _task: AbortOnDropHandle<Infallible>,
}

#[derive(Clone, PartialEq, Eq)]
struct Source {
    name: String,
    resolvers: Vec<SocketAddr>,
    min_pause: Duration,
}

impl Source {
    /// None of a server that is where its URL says.
    fn new(server: &Server, upstream: &UpstreamSettings) -> Option<Self> {
        Some(Self {
            name: server.srv_name()?.to_owned(),
            resolvers: upstream.resolvers.clone(),
            min_pause: PAUSE.0.min(upstream.resolve_interval),
        })
    }
}

fn sources(settings: &Settings) -> Vec<Source> {
    let upstreams = settings.upstreams.iter().map(|upstream| &upstream.settings);
    let servers = upstreams.flat_map(|upstream| {
        let servers = upstream.servers.iter();
        servers.filter_map(move |server| Source::new(server, upstream))
    });
    servers.collect()
}

impl SrvServers {
    /// Nothing is looked up yet.
    pub(in crate::app) fn new(metrics: &Metrics) -> Self {
        Self(Arc::new(SharedSrvServers {
            metrics: SrvMetrics::new(metrics),
            lookups: Mutex::default(),
            changed: Arc::default(),
        }))
    }

    /// Looks up from now on what these settings name, and waits for a moment for what is new. Must
    /// be called on a runtime.
    async fn look_up(&self, settings: &Settings) {
        let mut new = Vec::new();
        for source in sources(settings) {
            let mut lookups = self.0.lookups.lock();
            if !lookups.iter().any(|known| known.source == source) {
                // Those of other DNS servers are better than none.
                let same = lookups
                    .iter()
                    .find(|known| known.source.name == source.name);
                let found = same.and_then(|known| known.found.borrow().clone());
                let lookup = self.start(source, found);
                new.push(lookup.found.clone());
                lookups.push(lookup);
            }
        }
        // What it returns holds up the next publication.
        let first = new
            .iter_mut()
            .map(async |found| drop(found.wait_for(Option::is_some).await));
        let _ = timeout(FIRST_LOOKUP_TIMEOUT, join_all(first)).await;
    }

    /// Looks up and shows nothing any more but what these settings name.
    fn retain(&self, settings: &Settings) {
        let wanted = sources(settings);
        let mut lookups = self.0.lookups.lock();
        let others = lookups.extract_if(.., |known| !wanted.contains(&known.source));
        let names: Vec<String> = others.map(|other| other.source.name).collect();
        for name in names {
            if wanted.iter().all(|source| source.name != name) {
                self.0.metrics.left(&name);
            }
        }
    }

    /// The servers of an upstream, with those that were found in the place of their name.
    fn servers(&self, upstream: &UpstreamSettings) -> Vec<Server> {
        let lookups = self.0.lookups.lock();
        let servers = upstream.servers.iter().flat_map(|server| {
            let Some(source) = Source::new(server, upstream) else {
                return vec![server.clone()];
            };
            let lookup = lookups.iter().find(|known| known.source == source);
            let found = lookup.and_then(|lookup| lookup.found.borrow().clone());
            server.at(&found.unwrap_or_default())
        });
        servers.collect()
    }

    fn start(&self, source: Source, last: Option<Vec<SrvRecord>>) -> Lookup {
        let (publish, found) = watch::channel(last);
        let (metrics, changed) = (self.0.metrics.clone(), Arc::clone(&self.0.changed));
        let task = follow(source.clone(), publish, metrics, changed);
        Lookup {
            source,
            found,
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }
}

impl Feature for SrvServers {
    fn prepare<'a>(&'a self, settings: &'a Settings) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.look_up(settings))
    }

    fn apply(&self, settings: &Settings) {
        self.retain(settings);
    }

    fn complete(&self, upstream: &mut UpstreamSettings) {
        upstream.servers = self.servers(upstream);
    }

    fn has_changed(&self) -> bool {
        self.0.changed.swap(false, Relaxed)
    }
}

async fn follow(
    source: Source,
    publish: watch::Sender<Option<Vec<SrvRecord>>>,
    metrics: SrvMetrics,
    changed: Arc<AtomicBool>,
) -> Infallible {
    let mut is_failing = false;
    let name = &*source.name;
    loop {
        let found = timeout(LOOKUP_TIMEOUT, lookup_srv(&source.resolvers, name)).await;
        let found = found.unwrap_or_else(|late| Err(late.into()));
        metrics.looked_up(name, found.is_ok());
        let pause = match found {
            Ok((records, ttl)) => {
                if mem::take(&mut is_failing) {
                    tracing::info!(target: TARGET, name, "SRV records can be looked up again");
                }
                let servers = records.len();
                let is_new = publish.send_if_modified(|last| {
                    let is_new = last.as_ref() != Some(&records);
                    *last = Some(records);
                    is_new
                });
                if is_new {
                    tracing::info!(target: TARGET, name, servers, "servers found by SRV records");
                    changed.store(true, Relaxed);
                }
                ttl.clamp(source.min_pause, PAUSE.1)
            }
            Err(error) => {
                if !mem::replace(&mut is_failing, true) {
                    tracing::warn!(
                        target: TARGET,
                        name,
                        %error,
                        "SRV records cannot be looked up; the servers stay as they were"
                    );
                }
                RETRY_AFTER
            }
        };
        sleep(pause).await;
    }
}
