//! What Weir counts.
//!
//! Whoever counts on a request's path holds a handle made at load time ([`RouteMetrics`],
//! [`LimitMetrics`], ...), and only increments atomics.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::latency::Latency;
use super::page::{self, Kind};
use super::{Disposition, names};

/// Pairs of label and value. Made at load time only, so their allocation does not matter.
type Labels = Vec<(&'static str, Arc<str>)>;

/// Everything that is counted, and the page that shows it.
///
/// There is one for the whole process; it outlives reloads of the configuration, so that no
/// counter starts again from zero.
#[derive(Debug)]
pub struct Metrics {
    pub(super) registry: Mutex<Registry>,
    routes: Mutex<HashMap<Arc<str>, RouteMetrics>>,
    requests: Family<Labels, Counter>,
    request_seconds: Family<Labels, Latency>,
    decisions: Family<Labels, Counter>,
    store_seconds: Family<Labels, Latency>,
    store_errors: Family<Labels, Counter>,
    pub(super) store_reachable: Gauge,
    loads: Family<Labels, Counter>,
    loaded_at: Gauge,
    server: ServerMetrics,
}

/// What the server counts.
#[derive(Clone, Debug, Default)]
pub struct ServerMetrics {
    pub(crate) open: Gauge,
    pub(crate) accepted: Counter,
    pub(crate) accept_errors: Counter,
    pub(crate) in_flight: Gauge,
}

/// What is counted of one route's requests.
#[derive(Clone, Debug)]
pub struct RouteMetrics(Arc<Route>);

#[derive(Debug)]
struct Route {
    name: Arc<str>,
    seconds: Latency,
    requests: Family<Labels, Counter>,
    /// By status class, then by disposition. A counter is on the page from its first request on,
    /// for most of the combinations never happen.
    counters: [[OnceLock<Counter>; Disposition::ALL.len()]; CLASSES.len()],
}

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted of one limit's decisions.
#[derive(Clone, Debug)]
pub struct LimitMetrics {
    allowed: Counter,
    denied: Counter,
}

/// What is counted of one kind of call of the store.
#[derive(Clone, Debug)]
pub struct StoreCallMetrics {
    call: &'static str,
    seconds: Latency,
    errors: Family<Labels, Counter>,
}

/// One more in a gauge for as long as this lives.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl Metrics {
    /// All counters at zero.
    pub fn new() -> Arc<Self> {
        let metrics = Self {
            registry: Mutex::default(),
            routes: Mutex::default(),
            requests: Family::default(),
            request_seconds: Family::default(),
            decisions: Family::default(),
            store_seconds: Family::default(),
            store_errors: Family::default(),
            store_reachable: Gauge::default(),
            loads: Family::default(),
            loaded_at: Gauge::default(),
            server: ServerMetrics::default(),
        };
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&self) {
        let registry = &mut *self.registry.lock();
        page::build_info(registry);
        page::register(registry, names::REQUESTS, &self.requests);
        page::register(registry, names::REQUEST_SECONDS, &self.request_seconds);
        page::register(registry, names::DECISIONS, &self.decisions);
        page::register(registry, names::STORE_SECONDS, &self.store_seconds);
        page::register(registry, names::STORE_ERRORS, &self.store_errors);
        page::register(registry, names::STORE_REACHABLE, &self.store_reachable);
        page::register(registry, names::CONNECTIONS, &self.server.open);
        page::register(registry, names::ACCEPTED, &self.server.accepted);
        page::register(registry, names::ACCEPT_ERRORS, &self.server.accept_errors);
        page::register(registry, names::IN_FLIGHT, &self.server.in_flight);
        page::register(registry, names::RELOADS, &self.loads);
        page::register(registry, names::LOADED_AT, &self.loaded_at);
        self.store_reachable.set(1);
    }

    /// The handle for a route's requests; the same counters for the same name.
    pub fn route(&self, name: &str) -> RouteMetrics {
        let mut routes = self.routes.lock();
        if let Some(route) = routes.get(name) {
            return route.clone();
        }
        let route = self.new_route(name.into());
        routes.insert(Arc::clone(&route.0.name), route.clone());
        route
    }

    fn new_route(&self, name: Arc<str>) -> RouteMetrics {
        let labels = vec![(names::ROUTE, Arc::clone(&name))];
        RouteMetrics(Arc::new(Route {
            name,
            seconds: owned(&self.request_seconds, &labels),
            requests: self.requests.clone(),
            counters: Default::default(),
        }))
    }

    /// The handle for requests that match no route.
    pub fn unrouted(&self) -> RouteMetrics {
        self.route("-")
    }

    /// The handle for a limit's decisions; the same counters for the same name.
    pub fn limit(&self, name: &str) -> LimitMetrics {
        let counter = |decision: Disposition| {
            let labels = vec![
                (names::LIMIT, Arc::from(name)),
                (names::DECISION, Arc::from(decision.as_str())),
            ];
            owned(&self.decisions, &labels)
        };
        LimitMetrics {
            allowed: counter(Disposition::Allowed),
            denied: counter(Disposition::Denied),
        }
    }

    /// The handle for one kind of call of the store, such as `decide`.
    pub fn store_call(&self, call: &'static str) -> StoreCallMetrics {
        let labels = vec![(names::CALL, Arc::from(call))];
        StoreCallMetrics {
            call,
            seconds: owned(&self.store_seconds, &labels),
            errors: self.store_errors.clone(),
        }
    }

    /// What the server counts.
    pub fn server(&self) -> ServerMetrics {
        self.server.clone()
    }

    pub(super) fn loaded(&self, succeeded: bool) {
        let outcome = if succeeded { "success" } else { "failure" };
        let labels = vec![(names::OUTCOME, Arc::from(outcome))];
        owned(&self.loads, &labels).inc();
        if succeeded {
            self.loaded_at.set(unix_seconds());
        }
    }

    /// Shows, at every scrape, how full the memory store is and how many buckets it evicted.
    pub fn memory_store(
        &self,
        buckets: impl Fn() -> u64 + Send + Sync + 'static,
        evicted: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let registry = &mut *self.registry.lock();
        page::at_scrape(registry, names::MEMORY_BUCKETS, Kind::Gauge, buckets);
        page::at_scrape(registry, names::MEMORY_EVICTED, Kind::Counter, evicted);
    }

    /// Shows, at every scrape, how many log lines were dropped.
    pub fn log_lines_dropped(&self, dropped: impl Fn() -> u64 + Send + Sync + 'static) {
        let registry = &mut *self.registry.lock();
        page::at_scrape(registry, names::LOG_DROPPED, Kind::Counter, dropped);
    }
}

impl RouteMetrics {
    /// The route's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(super) fn finished(&self, status: StatusCode, decision: Disposition, took: Duration) {
        self.0.seconds.observe(took);
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        let cell = self.0.counters.get(class);
        if let Some(cell) = cell.and_then(|row| row.get(decision.index())) {
            cell.get_or_init(|| self.counter(class, decision)).inc();
        }
    }

    fn counter(&self, class: usize, decision: Disposition) -> Counter {
        let class = CLASSES.get(class).copied().unwrap_or_default();
        let labels = vec![
            (names::ROUTE, Arc::clone(&self.0.name)),
            (names::STATUS, Arc::from(class)),
            (names::DECISION, Arc::from(decision.as_str())),
        ];
        owned(&self.0.requests, &labels)
    }
}

impl LimitMetrics {
    /// Counts a decision of this limit.
    pub fn decided(&self, allowed: bool) {
        let counter = if allowed { &self.allowed } else { &self.denied };
        counter.inc();
    }
}

impl StoreCallMetrics {
    /// Counts a call that took this long; `failure` is the kind of its failure, if it failed.
    pub fn called(&self, took: Duration, failure: Option<&'static str>) {
        self.seconds.observe(took);
        if let Some(kind) = failure {
            let labels = vec![
                (names::CALL, Arc::from(self.call)),
                (names::KIND, Arc::from(kind)),
            ];
            owned(&self.errors, &labels).inc();
        }
    }
}

impl GaugeGuard {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn owned<M: Clone + Default>(family: &Family<Labels, M>, labels: &Labels) -> M
where
    Labels: Eq + Hash,
{
    family.get_or_create_owned(labels)
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
