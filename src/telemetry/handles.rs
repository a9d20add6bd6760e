//! Handles for what counts on the path of a connection or a request. They are made at load time, so
//! that a request only increments atomics.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::latency::Latency;
use super::{Disposition, names, openmetrics};

/// Pairs of label and value. Made at load time only, so their allocation does not matter.
pub(super) type Labels = Vec<(&'static str, Arc<str>)>;

/// What the server counts.
#[derive(Clone, Debug, Default)]
pub struct ServerMetrics {
    pub(crate) open: Gauge,
    pub(crate) accepted: Counter,
    pub(crate) evicted: Counter,
    pub(crate) accept_errors: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) handshakes: Handshakes,
}

/// What is counted of one route's requests.
#[derive(Clone, Debug)]
pub struct RouteMetrics(Arc<Route>);

#[derive(Debug)]
struct Route {
    name: Arc<str>,
    seconds: Latency,
    requests: Family<Labels, Counter>,
    /// By status class, then by disposition. What was not expected of a route is on the page from
    /// its first request on.
    counters: [[OnceLock<Counter>; Disposition::ALL.len()]; CLASSES.len()],
}

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted of one limit's decisions.
#[derive(Clone, Debug)]
pub struct LimitMetrics {
    allowed: Counter,
    denied: Counter,
    would_deny: Counter,
    rare: Arc<LazyLimitCounters>,
}

/// What most limits never have; it is on the page where it was expected, or from its first event
/// on.
#[derive(Debug)]
struct LazyLimitCounters {
    name: Arc<str>,
    settlements: Family<Labels, Counter>,
    leases: Family<Labels, Gauge>,
    leased: OnceLock<Gauge>,
    /// By how they ended.
    settled: [OnceLock<Counter>; Settled::ALL.len()],
}

/// How something ended that was left to be done when a response was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The cost was taken, or as much of it as the bucket held.
    Spent,
    /// The cost was given back.
    Refunded,
    /// The store failed, or the process ended.
    Failed,
}

impl Settled {
    const ALL: [Self; 3] = [Self::Spent, Self::Refunded, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Spent => "spent",
            Self::Refunded => "refunded",
            Self::Failed => "failed",
        }
    }
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

impl RouteMetrics {
    pub(super) fn new(
        name: Arc<str>,
        requests: &Family<Labels, Counter>,
        seconds: &Family<Labels, Latency>,
    ) -> Self {
        let labels = vec![(names::ROUTE, Arc::clone(&name))];
        Self(Arc::new(Route {
            name,
            seconds: owned(seconds, &labels),
            requests: requests.clone(),
            counters: Default::default(),
        }))
    }

    /// The route's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Shows, at zero, the requests that this route may get these decisions for. A counter that is
    /// born with its first event looks to a query like one that never grew.
    pub fn expect(&self, decisions: impl IntoIterator<Item = Disposition>) {
        for decision in decisions {
            for class in 0..CLASSES.len() {
                self.cell(class, decision);
            }
        }
    }

    /// Counts a request that this was decided and answered about.
    pub fn finished(&self, status: StatusCode, decision: Disposition, took: Duration) {
        self.0.seconds.observe(took);
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.cell(class, decision) {
            counter.inc();
        }
    }

    fn cell(&self, class: usize, decision: Disposition) -> Option<&Counter> {
        let cell = self.0.counters.get(class)?.get(decision.index())?;
        Some(cell.get_or_init(|| self.counter(class, decision)))
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
    pub(super) fn new(
        name: &Arc<str>,
        decisions: &Family<Labels, Counter>,
        settlements: &Family<Labels, Counter>,
        leases: &Family<Labels, Gauge>,
    ) -> Self {
        let counter = |decision| owned(decisions, &decision_labels(name, decision));
        Self {
            allowed: counter(Disposition::Allowed),
            denied: counter(Disposition::Denied),
            would_deny: counter(Disposition::WouldDeny),
            rare: Arc::new(LazyLimitCounters {
                name: Arc::clone(name),
                settlements: settlements.clone(),
                leases: leases.clone(),
                leased: OnceLock::new(),
                settled: Default::default(),
            }),
        }
    }

    /// Counts a decision of this limit. What is neither allowed nor would be denied is denied.
    pub fn decided(&self, decision: Disposition) {
        match decision {
            Disposition::Allowed => self.allowed.inc(),
            Disposition::WouldDeny => self.would_deny.inc(),
            _ => self.denied.inc(),
        };
    }

    /// Shows, at zero, what this limit settles when responses are there.
    pub fn expect_settlements(&self) {
        for how in Settled::ALL {
            self.rare.settlement(how);
        }
    }

    /// Shows, at zero, the requests in flight that hold a place of this limit.
    pub fn expect_leases(&self) {
        self.rare.leased();
    }

    /// Counts a request among those in flight, as long as the guard lives.
    pub fn leased(&self) -> GaugeGuard {
        GaugeGuard::new(self.rare.leased())
    }

    /// Counts something that was left to be done for this limit.
    pub fn settled(&self, how: Settled) {
        if let Some(counter) = self.rare.settlement(how) {
            counter.inc();
        }
    }
}

impl LazyLimitCounters {
    fn leased(&self) -> &Gauge {
        let labels = || vec![(names::LIMIT, Arc::clone(&self.name))];
        self.leased.get_or_init(|| owned(&self.leases, &labels()))
    }

    fn settlement(&self, how: Settled) -> Option<&Counter> {
        let labels = || {
            vec![
                (names::LIMIT, Arc::clone(&self.name)),
                (names::OUTCOME, Arc::from(how.as_str())),
            ]
        };
        let cell = self.settled.get(how as usize)?;
        Some(cell.get_or_init(|| owned(&self.settlements, &labels())))
    }
}

fn decision_labels(limit: &Arc<str>, decision: Disposition) -> Labels {
    vec![
        (names::LIMIT, Arc::clone(limit)),
        (names::DECISION, Arc::from(decision.as_str())),
    ]
}

impl StoreCallMetrics {
    pub(super) fn new(
        call: &'static str,
        seconds: &Family<Labels, Latency>,
        errors: Family<Labels, Counter>,
        kinds: &[&'static str],
    ) -> Self {
        let labels = vec![(names::CALL, Arc::from(call))];
        let metrics = Self {
            call,
            seconds: owned(seconds, &labels),
            errors,
        };
        for kind in kinds {
            metrics.failed(kind);
        }
        metrics
    }

    /// Counts a call that took this long; `failure` is the kind of its failure, if it failed.
    pub fn called(&self, took: Duration, failure: Option<&'static str>) {
        self.seconds.observe(took);
        if let Some(kind) = failure {
            self.failed(kind).inc();
        }
    }

    fn failed(&self, kind: &'static str) -> Counter {
        let labels = vec![
            (names::CALL, Arc::from(self.call)),
            (names::KIND, Arc::from(kind)),
        ];
        owned(&self.errors, &labels)
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

/// The metric of a family that has these labels.
pub(super) fn owned<M: Clone + Default>(family: &Family<Labels, M>, labels: &Labels) -> M {
    family.get_or_create_owned(labels)
}

/// How a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// With keys that were agreed upon anew.
    Full,
    /// With a session that the client had before, which costs far less.
    Resumed,
    /// Client and gateway could not agree, or the client went away.
    Failed,
    /// It took too long.
    TooSlow,
    /// The client did not begin one.
    Plain,
}

impl Handshake {
    const ALL: [Self; 5] = [
        Self::Full,
        Self::Resumed,
        Self::Failed,
        Self::TooSlow,
        Self::Plain,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::Failed => "failed",
            Self::TooSlow => "too_slow",
            Self::Plain => "plain_text",
        }
    }
}

/// A handshake that led to no connection. Clients of all kinds cause them, so they are told to
/// those who debug alone.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeFailed<'a, C> {
    /// The client.
    pub peer: SocketAddr,
    /// How it ended.
    pub how: Handshake,
    /// Why.
    pub cause: &'a C,
}

impl<C: Display> HandshakeFailed<'_, C> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &ServerMetrics) {
        metrics.handshakes.ended(self.how);
        tracing::debug!(peer = %self.peer, cause = %self.cause, "no TLS handshake");
    }
}

/// Handshakes by how they ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handshakes(Family<Labels, Counter>);

impl Handshakes {
    /// Counts one.
    pub(crate) fn ended(&self, how: Handshake) {
        self.counter(how).inc();
    }

    fn counter(&self, how: Handshake) -> Counter {
        let labels = vec![(names::OUTCOME, Arc::from(how.as_str()))];
        owned(&self.0, &labels)
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        for how in Handshake::ALL {
            self.counter(how);
        }
        openmetrics::register(registry, names::HANDSHAKES, &self.0);
    }
}
