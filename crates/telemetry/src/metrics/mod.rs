//! The metrics of Weir.
//!
//! Handles that are made at load time ([`RouteMetrics`], [`LimitMetrics`], ...) count on a
//! request's path; all other events are counted here.

mod bans;
mod handles;
mod latency;
mod openmetrics;
mod overload;
mod page;
mod recent;
mod refusals;
mod spans;
mod upstreams;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge;
use prometheus_client::metrics::info::Info;

pub use self::bans::{BanMetrics, Bans, ban_begun};
pub use self::handles::{
    DecisionSample, GaugeGuard, Handshake, LimitMetrics, ProxyHeader, RouteMetrics, RouteSample,
    ServerMetrics, Settled, StoreCallMetrics,
};
pub(crate) use self::latency::Latency;
pub use self::latency::LatencyCounts;
pub use self::openmetrics::PageFormat;
pub use self::overload::{
    ConcurrencySample, OverloadMetrics, OverloadShed, ShedRequests, ShedSample,
};
pub use self::page::{Family, Name};
use self::page::{Page, SampleKind};
use self::recent::Remembered;
pub use self::recent::{Failures, RouteErrors};
pub use self::refusals::{RefusalMetrics, Refusals};
pub use self::upstreams::{UpstreamSample, UpstreamServerSample};
use super::striped::Counter;
use super::tail::Tail;
use super::top_subjects::{Period, SubjectActivity, TopSubjects};

/// A number that comes and goes.
pub type Gauge = gauge::Gauge;

/// Everything that is counted, and the page that shows it.
///
/// There is one for the whole process; it outlives reloads of the configuration, so that no
/// counter starts again from zero.
#[derive(Debug)]
pub struct Metrics {
    page: Page,
    routes: Mutex<HashMap<Arc<str>, RouteMetrics>>,
    requests: Family<Counter>,
    request_seconds: Family<Latency>,
    decisions: Family<Counter>,
    /// By limit. `None` unless subjects are tracked.
    subjects: Mutex<Option<HashMap<Arc<str>, TopSubjects>>>,
    bans: Bans,
    settlements: Family<Counter>,
    store_seconds: Family<Latency>,
    store_errors: Family<Counter>,
    failed_store_calls: Counter,
    /// By node; the store as a whole has no label.
    store_reachable: Family<Gauge>,
    store_clock_offset: Family<gauge::Gauge<f64, AtomicU64>>,
    store_clock_slew: gauge::Gauge<f64, AtomicU64>,
    loads: Family<Counter>,
    loaded_at: Gauge,
    last_load_successful: Gauge,
    config_digest: Family<Gauge>,
    gateways: Family<Gauge>,
    other_configurations: Gauge,
    /// The error of the last configuration, if it was refused.
    load_error: Mutex<Option<String>>,
    wrong_admin_tokens: Counter,
    server: ServerMetrics,
    refusals: RefusalMetrics,
    log_left_out: Counter,
    tail: Arc<Tail>,
    remembered: Remembered,
    overload: OverloadMetrics,
}

impl Metrics {
    /// All counters at zero.
    pub fn new() -> Arc<Self> {
        let page = Page::default();
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        page.constant(Name::new("weir_build", "The version that runs"), version);
        let metrics = Self {
            requests: page.metric(Name::new(
                "weir_requests",
                "Requests answered, by route, status class and decision",
            )),
            request_seconds: page.metric(Name::new(
                "weir_request_duration_seconds",
                "Time from a request's head to the end of its answer, by route",
            )),
            decisions: page.metric(Name::new("weir_decisions", "Decisions, by limit")),
            bans: Bans::new(&page),
            settlements: page.metric(Name::new(
                "weir_settlements",
                "Costs taken or given back once the response was there, by limit and outcome",
            )),
            store_seconds: page.metric(Name::new(
                "weir_store_call_duration_seconds",
                "Time that calls of the store took, failed ones included",
            )),
            store_errors: page.metric(Name::new(
                "weir_store_errors",
                "Calls of the store that failed, by call and kind",
            )),
            store_reachable: page.metric(Name::new(
                "weir_store_reachable",
                "Whether the store is asked (1) or its circuit breaker is open (0)",
            )),
            store_clock_offset: page.metric(Name::new(
                "weir_store_clock_offset_seconds",
                "By how much this gateway's clock is ahead of the store's; negative when it is \
                 behind",
            )),
            store_clock_slew: page.metric(Name::new(
                "weir_store_clock_slew_seconds",
                "By how much the time that limits go by is ahead of the store's while it is \
                 slewed",
            )),
            server: ServerMetrics::new(&page),
            refusals: RefusalMetrics::new(&page),
            log_left_out: page.metric(Name::new(
                "weir_access_log_lines_left_out",
                "Lines of requests that were not let through, left out of the access log by its \
                 bound",
            )),
            wrong_admin_tokens: page.metric(Name::new(
                "weir_admin_wrong_tokens",
                "Requests to the admin API that showed a wrong token",
            )),
            loads: page.metric(Name::new(
                "weir_config_loads",
                "Loads of the configuration, the first one included, by outcome",
            )),
            loaded_at: page.metric(Name::new(
                "weir_config_loaded_timestamp_seconds",
                "When the configuration in force was loaded, in seconds since the Unix epoch",
            )),
            last_load_successful: page.metric(Name::new(
                "weir_config_last_load_successful",
                "Whether the last load of the configuration succeeded (1) or was refused (0)",
            )),
            config_digest: page.metric(Name::new(
                "weir_config_digest",
                "1 for the digest of the configuration in force, as gateways of one Redis \
                 compare theirs",
            )),
            gateways: page.metric(Name::new(
                "weir_gateways",
                "Gateways of the same Redis that this one knows, itself included, by state",
            )),
            other_configurations: page.metric(Name::new(
                "weir_other_configurations",
                "Gateways of the same Redis whose configuration or hash_key is another than here",
            )),
            routes: Mutex::default(),
            subjects: Mutex::default(),
            failed_store_calls: Counter::default(),
            load_error: Mutex::default(),
            tail: Arc::default(),
            remembered: Remembered::default(),
            overload: OverloadMetrics::new(&page),
            page,
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

    /// The counters of this name, for a feature that counts on its own.
    pub fn counters(&self, name: Name) -> Family<Counter> {
        self.page.metric(name)
    }

    /// The gauges of this name, for a feature that counts on its own.
    pub fn gauges(&self, name: Name) -> Family<Gauge> {
        self.page.metric(name)
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
        let page = self.page.encode()?;
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
        let metrics = LimitMetrics::new(&name, &self.decisions, &self.settlements);
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
        Some(self.top_subjects(limit)?.hash(key.as_bytes()))
    }

    fn top_subjects(&self, limit: &str) -> Option<TopSubjects> {
        self.subjects.lock().as_ref()?.get(limit).cloned()
    }

    /// Whether it keeps track of subjects.
    pub fn tracks_subjects(&self) -> bool {
        self.subjects.lock().is_some()
    }

    /// The activity of a limit's subjects at a time in seconds since the Unix epoch, in no order:
    /// at most 128 for each thread, the heaviest among them.
    pub fn subjects(&self, limit: &str, period: Period, now: u64) -> Vec<SubjectActivity> {
        let subjects = self.top_subjects(limit);
        subjects.map_or_else(Vec::new, |subjects| subjects.activity(period, now))
    }

    /// How many requests of a subject of a limit may be missing from its count, at most, because
    /// there was no room for all subjects.
    pub fn uncounted(&self, limit: &str, period: Period, now: u64) -> u64 {
        let subjects = self.top_subjects(limit);
        subjects.map_or(0, |subjects| subjects.uncounted(period, now))
    }

    /// Seconds of a period, at a time since the Unix epoch, for which the subjects of a limit have
    /// been counted: one at least, and less than the period while the limit is new.
    pub fn counted_seconds(&self, limit: &str, period: Period, now: Duration) -> f64 {
        let subjects = self.top_subjects(limit);
        subjects.map_or(1.0, |subjects| subjects.counted_seconds(period, now))
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
        self.store_clock_offset.member([]).set(seconds);
    }

    /// Shows how far the time of decisions is ahead of the store's.
    pub fn store_clock_slew(&self, seconds: f64) {
        self.store_clock_slew.set(seconds);
    }

    /// Shows how far it is ahead of that of one of the store's nodes.
    pub fn node_clock_offset(&self, node: &str, seconds: f64) {
        self.store_clock_offset
            .member([("node", node)])
            .set(seconds);
    }

    /// Shows the digest of the configuration in force.
    pub fn config_digest(&self, digest: &str) {
        self.config_digest.clear();
        self.config_digest.member([("digest", digest)]).set(1);
    }

    /// Shows how many gateways of the store are in each state, and how many of them have another
    /// configuration.
    pub fn gateways<'s>(&self, states: impl IntoIterator<Item = (&'s str, usize)>, others: usize) {
        let shown = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (state, count) in states {
            self.gateways.member([("state", state)]).set(shown(count));
        }
        self.other_configurations.set(shown(others));
    }

    /// Shows whether the store is within reach.
    pub fn store_reachable(&self, reachable: bool) {
        self.store_reachable.member([]).set(i64::from(reachable));
    }

    /// Shows whether one of the store's nodes is within reach.
    pub fn node_reachable(&self, node: &str, reachable: bool) {
        self.store_reachable
            .member([("node", node)])
            .set(i64::from(reachable));
    }

    /// Shows nothing more of a node.
    pub fn node_left(&self, node: &str) {
        self.store_reachable.remove([("node", node)]);
    }

    /// The metrics of the server.
    pub fn server(&self) -> ServerMetrics {
        self.server.clone()
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
        self.loads.member([("outcome", outcome)])
    }

    /// Shows, at every scrape, how full the memory store is and how many buckets it evicted.
    pub fn memory_store(
        &self,
        buckets: impl Fn() -> u64 + Send + Sync + 'static,
        evicted: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.page.on_collect(
            Name::new(
                "weir_memory_store_buckets",
                "Buckets that the memory store holds",
            ),
            SampleKind::Gauge,
            buckets,
        );
        self.page.on_collect(
            Name::new(
                "weir_memory_store_evicted",
                "Buckets given up to keep the memory store within its bound",
            ),
            SampleKind::Counter,
            evicted,
        );
    }

    /// Shows, at every scrape, when the first certificate expires, in seconds since the Unix epoch.
    /// A gateway without certificates shows nothing: whatever stood there would be an alarm.
    pub fn certificates(&self, expiry: impl Fn() -> u64 + Send + Sync + 'static) {
        self.page.on_collect(
            Name::new(
                "weir_tls_certificate_expiry_timestamp_seconds",
                "When the first of the certificates in force expires, in seconds since the Unix \
                 epoch",
            ),
            SampleKind::Gauge,
            expiry,
        );
    }

    /// Shows, at every scrape, how many log lines were dropped.
    pub fn log_lines_dropped(&self, dropped: impl Fn() -> u64 + Send + Sync + 'static) {
        self.page.on_collect(
            Name::new(
                "weir_log_lines_dropped",
                "Log lines dropped because the log's reader was too slow",
            ),
            SampleKind::Counter,
            dropped,
        );
    }
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
