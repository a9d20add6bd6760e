//! The metrics of Weir.
//!
//! Handles that are made at load time ([`RouteMetrics`], [`LimitMetrics`], ...) count on a
//! request's path; all other events are counted here.

mod handles;
mod latency;
mod openmetrics;
mod overload;
mod recent;
mod refusals;
mod upstreams;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub use self::handles::{
    AcmeMetrics, BanMetrics, Bans, DecisionSample, GaugeGuard, Handshake, JwksMetrics,
    LimitMetrics, ProxyHeader, RouteMetrics, RouteSample, ServerMetrics, Settled, StoreCallMetrics,
};
use self::handles::{JwksFamilies, member};
pub(crate) use self::latency::Latency;
pub use self::latency::LatencyCounts;
pub use self::openmetrics::PageFormat;
use self::openmetrics::{Labels, SampleKind, registered};
pub use self::overload::{OverloadMetrics, OverloadShed};
use self::recent::Remembered;
pub use self::recent::RouteErrors;
pub use self::refusals::Refusals;
pub use self::upstreams::{ConcurrencySample, ShedSample, UpstreamSample, UpstreamServerSample};
use super::names;
use super::striped::Counter;
use super::tail::Tail;
use super::top_subjects::{Period, SubjectActivity, TopSubjects};

/// Everything that is counted, and the page that shows it.
///
/// There is one for the whole process; it outlives reloads of the configuration, so that no
/// counter starts again from zero.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    routes: Mutex<HashMap<Arc<str>, RouteMetrics>>,
    requests: Family<Labels, Counter>,
    request_seconds: Family<Labels, Latency>,
    decisions: Family<Labels, Counter>,
    /// By limit. `None` unless subjects are tracked.
    subjects: Mutex<Option<HashMap<Arc<str>, TopSubjects>>>,
    bans: Bans,
    settlements: Family<Labels, Counter>,
    leases: Family<Labels, Gauge>,
    store_seconds: Family<Labels, Latency>,
    store_errors: Family<Labels, Counter>,
    failed_store_calls: Counter,
    /// By node; the store as a whole has no label.
    store_reachable: Family<Labels, Gauge>,
    store_clock_offset: Family<Labels, Gauge<f64, AtomicU64>>,
    store_clock_slew: Gauge<f64, AtomicU64>,
    loads: Family<Labels, Counter>,
    loaded_at: Gauge,
    last_load_successful: Gauge,
    config_digest: Family<Labels, Gauge>,
    gateways: Family<Labels, Gauge>,
    other_configurations: Gauge,
    /// The error of the last configuration, if it was refused.
    load_error: Mutex<Option<String>>,
    acme_orders: Family<Labels, Counter>,
    wrong_admin_tokens: Counter,
    jwks: JwksFamilies,
    srv_lookups: Family<Labels, Counter>,
    server: ServerMetrics,
    overload: OverloadMetrics,
    log_left_out: Counter,
    tail: Arc<Tail>,
    remembered: Remembered,
}

impl Metrics {
    /// All counters at zero.
    pub fn new() -> Arc<Self> {
        let page = &mut Registry::default();
        openmetrics::build_info(page);
        // In the order of the page.
        let metrics = Self {
            requests: registered(page, names::REQUESTS),
            request_seconds: registered(page, names::REQUEST_SECONDS),
            decisions: registered(page, names::DECISIONS),
            bans: Bans::registered(page),
            settlements: registered(page, names::SETTLEMENTS),
            leases: registered(page, names::LEASES),
            store_seconds: registered(page, names::STORE_SECONDS),
            store_errors: registered(page, names::STORE_ERRORS),
            store_reachable: registered(page, names::STORE_REACHABLE),
            store_clock_offset: registered(page, names::STORE_CLOCK_OFFSET),
            store_clock_slew: registered(page, names::STORE_CLOCK_SLEW),
            server: ServerMetrics::registered(page),
            overload: OverloadMetrics::registered(page),
            log_left_out: registered(page, names::LOG_LEFT_OUT),
            acme_orders: registered(page, names::ACME_ORDERS),
            wrong_admin_tokens: registered(page, names::ADMIN_WRONG_TOKENS),
            jwks: JwksFamilies::registered(page),
            srv_lookups: registered(page, names::SRV_LOOKUPS),
            loads: registered(page, names::RELOADS),
            loaded_at: registered(page, names::LOADED_AT),
            last_load_successful: registered(page, names::LAST_LOAD_SUCCESSFUL),
            config_digest: registered(page, names::CONFIG_DIGEST),
            gateways: registered(page, names::GATEWAYS),
            other_configurations: registered(page, names::OTHER_CONFIGURATIONS),
            registry: Mutex::new(std::mem::take(page)),
            routes: Mutex::default(),
            subjects: Mutex::default(),
            failed_store_calls: Counter::default(),
            load_error: Mutex::default(),
            tail: Arc::default(),
            remembered: Remembered::default(),
        };
        for succeeded in [true, false] {
            metrics.loads(succeeded);
        }
        // Nothing is counted before a first configuration is read.
        metrics.last_load_successful.set(1);
        metrics.store_reachable(true);
        metrics.store_clock_offset(0.0);
        Arc::new(metrics)
    }

    /// Counts a request that showed the admin API a wrong token.
    pub fn wrong_admin_token(&self) {
        self.wrong_admin_tokens.inc();
    }

    /// The page in this format.
    ///
    /// # Errors
    /// When a metric cannot be written as text.
    pub fn page(&self, format: PageFormat) -> Result<String, fmt::Error> {
        let page = self.encode()?;
        Ok(match format {
            PageFormat::Text => openmetrics::text_format(&page),
            PageFormat::OpenMetrics => page,
        })
    }

    /// The page in the form of OpenMetrics.
    ///
    /// # Errors
    /// When a metric cannot be written as text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut page = String::with_capacity(8 * 1024);
        encode(&mut page, &self.registry.lock())?;
        Ok(openmetrics::without_empty_labels(&page))
    }

    /// The handle for a route's requests; the same counters for the same name.
    pub fn route(&self, name: &str) -> RouteMetrics {
        let mut routes = self.routes.lock();
        if let Some(route) = routes.get(name) {
            return route.clone();
        }
        let name = Arc::<str>::from(name);
        let route = RouteMetrics::new(Arc::clone(&name), &self.requests, &self.request_seconds);
        routes.insert(name, route.clone());
        route
    }

    /// The counter of lines that the access log's bound left out.
    pub fn log_left_out(&self) -> Counter {
        self.log_left_out.clone()
    }

    /// The handle for requests that match no route.
    pub fn unrouted(&self) -> RouteMetrics {
        self.route("-")
    }

    /// The handle for a limit's decisions; the same counters for the same name.
    pub fn limit(&self, name: &str) -> LimitMetrics {
        let name = Arc::from(name);
        let subjects = self.subjects.lock().as_mut().map(|subjects| {
            let subjects = subjects.entry(Arc::clone(&name));
            subjects.or_insert_with(TopSubjects::new).clone()
        });
        let metrics = LimitMetrics::new(&name, &self.decisions, &self.settlements, &self.leases);
        metrics.with_subjects(subjects)
    }

    /// Keeps track of the subjects that send most and of those that are denied, of all limits whose
    /// handles are made from now on. It takes some 25 KB for each limit and thread, and some
    /// instructions for each decision.
    pub fn track_subjects(&self) {
        self.subjects.lock().get_or_insert_default();
    }

    /// The id of the subject of a limit with this bucket key, if subjects are tracked.
    pub fn subject_id(&self, limit: &str, key: &str) -> Option<NonZeroU64> {
        let subjects = self.subjects.lock();
        Some(subjects.as_ref()?.get(limit)?.hash(key.as_bytes()))
    }

    /// Whether it keeps track of subjects.
    pub fn tracks_subjects(&self) -> bool {
        self.subjects.lock().is_some()
    }

    /// The activity of a limit's subjects at a time in seconds since the Unix epoch, in no order:
    /// at most 128 for each thread, the heaviest among them.
    pub fn subjects(&self, limit: &str, period: Period, now: u64) -> Vec<SubjectActivity> {
        let subjects = self.subjects.lock();
        let subjects = subjects.as_ref().and_then(|all| all.get(limit)).cloned();
        subjects.map_or_else(Vec::new, |subjects| subjects.activity(period, now))
    }

    /// How many requests of a subject of a limit may be missing from its count, at most, because
    /// there was no room for all subjects.
    pub fn uncounted(&self, limit: &str, period: Period, now: u64) -> u64 {
        let subjects = self.subjects.lock();
        let subjects = subjects.as_ref().and_then(|all| all.get(limit)).cloned();
        subjects.map_or(0, |subjects| subjects.uncounted(period, now))
    }

    /// Seconds of a period, at a time since the Unix epoch, for which the subjects of a limit have
    /// been counted: one at least, and less than the period while the limit is new.
    pub fn counted_seconds(&self, limit: &str, period: Period, now: Duration) -> f64 {
        let subjects = self.subjects.lock();
        let subjects = subjects.as_ref().and_then(|all| all.get(limit));
        subjects.map_or(1.0, |subjects| subjects.counted_seconds(period, now))
    }

    /// The metrics of the banned and the blocked.
    pub fn bans(&self) -> &Bans {
        &self.bans
    }

    /// The handle for one kind of call of the store, such as `decide`, which may fail in these
    /// ways.
    pub fn store_call(&self, call: &'static str, failures: &[&'static str]) -> StoreCallMetrics {
        let errors = self.store_errors.clone();
        let failed_calls = self.failed_store_calls.clone();
        StoreCallMetrics::new(call, &self.store_seconds, errors, failed_calls, failures)
    }

    /// Shows how far this machine's clock is ahead of the store's.
    pub fn store_clock_offset(&self, seconds: f64) {
        member(&self.store_clock_offset, []).set(seconds);
    }

    /// Shows how far the time of decisions is ahead of the store's.
    pub fn store_clock_slew(&self, seconds: f64) {
        self.store_clock_slew.set(seconds);
    }

    /// Shows how far it is ahead of that of one of the store's nodes.
    pub fn node_clock_offset(&self, node: &str, seconds: f64) {
        member(&self.store_clock_offset, [("node", node)]).set(seconds);
    }

    /// The handle for the certificate of this domain; the same counters for the same domain.
    pub fn acme(&self, domain: &str) -> AcmeMetrics {
        AcmeMetrics::new(&self.acme_orders, domain)
    }

    /// The handle for the key set at this URL; the same counters for the same URL.
    pub fn jwks(&self, url: &str) -> JwksMetrics {
        self.jwks.for_url(url)
    }

    /// Counts a lookup of the SRV records of this name. From the first one on, the page has both
    /// outcomes.
    pub fn srv_lookup(&self, name: &str, succeeded: bool) {
        for (outcome, is_this) in [("success", succeeded), ("failure", !succeeded)] {
            let labels = [("name", name), ("outcome", outcome)];
            member(&self.srv_lookups, labels).inc_by(u64::from(is_this));
        }
    }

    /// Shows nothing more of the lookups of a name.
    pub fn srv_left(&self, name: &str) {
        for outcome in ["success", "failure"] {
            let labels = vec![("name", name.into()), ("outcome", outcome.into())];
            self.srv_lookups.remove(&labels);
        }
    }

    /// Shows the digest of the configuration in force.
    pub fn config_digest(&self, digest: &str) {
        self.config_digest.clear();
        member(&self.config_digest, [("digest", digest)]).set(1);
    }

    /// Shows how many gateways of the store are in each state, and how many of them have another
    /// configuration.
    pub fn gateways<'s>(&self, states: impl IntoIterator<Item = (&'s str, usize)>, others: usize) {
        let shown = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (state, count) in states {
            member(&self.gateways, [("state", state)]).set(shown(count));
        }
        self.other_configurations.set(shown(others));
    }

    /// Shows whether the store is within reach.
    pub fn store_reachable(&self, reachable: bool) {
        member(&self.store_reachable, []).set(i64::from(reachable));
    }

    /// Shows whether one of the store's nodes is within reach.
    pub fn node_reachable(&self, node: &str, reachable: bool) {
        member(&self.store_reachable, [("node", node)]).set(i64::from(reachable));
    }

    /// Shows nothing more of a node.
    pub fn node_left(&self, node: &str) {
        self.store_reachable.remove(&vec![("node", node.into())]);
    }

    /// The metrics of the server.
    pub fn server(&self) -> ServerMetrics {
        self.server.clone()
    }

    /// The metrics of workers that have more to do than their CPU can handle.
    pub fn overload(&self) -> &OverloadMetrics {
        &self.overload
    }

    /// Requests as they finish.
    pub fn tail(&self) -> &Arc<Tail> {
        &self.tail
    }

    /// The counts of each route until now.
    pub fn route_samples(&self) -> Vec<(Arc<str>, RouteSample)> {
        let routes: Vec<_> = self.routes.lock().values().cloned().collect();
        let samples = routes.iter();
        samples
            .map(|route| (Arc::from(route.name()), route.sample()))
            .collect()
    }

    /// When the configuration in force was loaded, in seconds since the Unix epoch, and why a later
    /// one was refused, if one was.
    pub fn last_load(&self) -> (i64, Option<String>) {
        (self.loaded_at.get(), self.load_error.lock().clone())
    }

    pub(super) fn load_refused(&self, why: String) {
        self.loaded(false);
        *self.load_error.lock() = Some(why);
    }

    pub(super) fn loaded(&self, succeeded: bool) {
        self.loads(succeeded).inc();
        self.last_load_successful.set(i64::from(succeeded));
        *self.load_error.lock() = None;
        if succeeded {
            self.loaded_at.set(unix_seconds());
        }
    }

    /// Sets the load to successful: the files of the configuration have the contents in force.
    pub(super) fn in_force(&self) {
        self.last_load_successful.set(1);
        *self.load_error.lock() = None;
    }

    fn loads(&self, succeeded: bool) -> Counter {
        let outcome = if succeeded { "success" } else { "failure" };
        member(&self.loads, [("outcome", outcome)])
    }

    /// Shows, at every scrape, how full the memory store is and how many buckets it evicted.
    pub fn memory_store(
        &self,
        buckets: impl Fn() -> u64 + Send + Sync + 'static,
        evicted: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let registry = &mut *self.registry.lock();
        openmetrics::on_collect(registry, names::MEMORY_BUCKETS, SampleKind::Gauge, buckets);
        openmetrics::on_collect(
            registry,
            names::MEMORY_EVICTED,
            SampleKind::Counter,
            evicted,
        );
    }

    /// Shows, at every scrape, when the first certificate expires, in seconds since the Unix epoch.
    /// A gateway without certificates shows nothing: whatever stood there would be an alarm.
    pub fn certificates(&self, expiry: impl Fn() -> u64 + Send + Sync + 'static) {
        let registry = &mut *self.registry.lock();
        openmetrics::on_collect(
            registry,
            names::CERTIFICATE_EXPIRY,
            SampleKind::Gauge,
            expiry,
        );
    }

    /// Shows, at every scrape, how many log lines were dropped.
    pub fn log_lines_dropped(&self, dropped: impl Fn() -> u64 + Send + Sync + 'static) {
        let registry = &mut *self.registry.lock();
        openmetrics::on_collect(registry, names::LOG_DROPPED, SampleKind::Counter, dropped);
    }

    /// Shows, at every scrape, how many spans were dropped.
    #[cfg(any(feature = "otlp", test))]
    pub fn otlp_spans_dropped(&self, dropped: impl Fn() -> u64 + Send + Sync + 'static) {
        let registry = &mut *self.registry.lock();
        openmetrics::on_collect(registry, names::OTLP_DROPPED, SampleKind::Counter, dropped);
    }
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
