//! Handles for what counts on the path of a connection or a request. They are made at load time, so
//! that a request only increments atomics.

use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;

use super::Gauge;
use super::latency::{Latency, LatencyCounts};
use super::page::{Family, Labels, Name, Page};
use crate::outcome::words;
use crate::striped::{Counter, StripedGauge};
use crate::top_subjects::TopSubjects;
use crate::{Disposition, ListenerKind};

/// The metrics of the server.
#[derive(Clone, Debug, Default)]
pub struct ServerMetrics {
    /// Connections of clients that are open.
    pub open: Gauge,
    /// Connections that were accepted.
    pub accepted: Counter,
    /// Idle connections that were closed to make room for others.
    pub evicted: Counter,
    /// Failures to accept a connection.
    pub accept_errors: Counter,
    /// Requests that have no complete response yet.
    pub in_flight: StripedGauge,
    handshakes: Family<Counter>,
    proxy_headers: Family<Counter>,
}

/// The metrics of a route's requests on one kind of listener.
#[derive(Clone, Debug)]
pub struct RouteMetrics {
    counters: Arc<RouteCounters>,
    listener: ListenerKind,
}

#[derive(Debug)]
struct RouteCounters {
    name: Arc<str>,
    seconds: Latency,
    requests: Family<Counter>,
    /// By kind of listener.
    counters: [OutcomeCounters; ListenerKind::ALL.len()],
}

/// By status class, then by disposition. A counter that was not expected is on the page from its
/// first request on.
type OutcomeCounters = [[OnceLock<Counter>; Disposition::ALL.len()]; CLASSES.len()];

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The metrics of a limit's decisions.
#[derive(Clone, Debug)]
pub struct LimitMetrics {
    allowed: Counter,
    denied: Counter,
    would_deny: Counter,
    subjects: Option<TopSubjects>,
    lazy: Arc<LazyLimitCounters>,
}

/// The counts of a route's requests, on all listeners, at some time.
#[derive(Clone, Debug, Default)]
pub struct RouteSample {
    /// In the order of [`Disposition::ALL`].
    pub decisions: [u64; Disposition::ALL.len()],
    /// Responses with a status of 500 and above, in the same order.
    pub server_errors: [u64; Disposition::ALL.len()],
    /// From the head of the request to the end of the response.
    pub latency: LatencyCounts,
}

/// The counts of a limit's decisions, or of the requests that a ban held, at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionSample {
    /// Requests that were let through.
    pub allowed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Requests that would be denied without the dry run.
    pub would_deny: u64,
}

impl DecisionSample {
    /// The counts since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            allowed: self.allowed.saturating_sub(earlier.allowed),
            denied: self.denied.saturating_sub(earlier.denied),
            would_deny: self.would_deny.saturating_sub(earlier.would_deny),
        }
    }
}

/// Metrics that most limits never have. They are on the page where they were expected, or from
/// their first event on.
#[derive(Debug)]
struct LazyLimitCounters {
    name: Arc<str>,
    settlements: Family<Counter>,
    /// By outcome.
    settled: [OnceLock<Counter>; Settled::ALL.len()],
}

words! {
    /// The outcome of an action after a response.
    pub enum Settled {
        /// The cost was taken, or as much of it as the bucket held.
        Spent = "spent",
        /// The cost was given back.
        Refunded = "refunded",
        /// The store failed, or the process ended.
        Failed = "failed",
    }
}

words! {
    /// The outcome of a handshake.
    pub enum Handshake {
        /// With keys that were agreed upon anew.
        Full = "full",
        /// With a session that the client had before, which costs far less.
        Resumed = "resumed",
        /// Client and gateway could not agree, or the client went away.
        Failed = "failed",
        /// It took too long.
        TooSlow = "too_slow",
        /// The client did not begin one.
        Plain = "plain_text",
    }
}

words! {
    /// The outcome of a connection whose peer has to send a PROXY header.
    pub enum ProxyHeader {
        /// The header names the client.
        Proxied = "proxied",
        /// The peer speaks for itself, as for a health check, or the client has no address.
        Local = "local",
        /// There is no header, or it is malformed.
        Malformed = "malformed",
        /// It took too long.
        TooSlow = "too_slow",
        /// The connection was closed before.
        Closed = "closed",
    }
}

/// The metrics of one kind of call of the store.
#[derive(Clone, Debug)]
pub struct StoreCallMetrics {
    call: &'static str,
    seconds: Latency,
    errors: Family<Counter>,
    failed_calls: Counter,
}

/// Adds one to a gauge while it lives.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl ServerMetrics {
    pub(super) fn new(page: &Page) -> Self {
        let server = Self {
            open: page.metric(Name::new(
                "weir_connections_open",
                "Open connections from clients",
            )),
            accepted: page.metric(Name::new(
                "weir_connections_accepted",
                "Connections accepted from clients",
            )),
            evicted: page.metric(Name::new(
                "weir_connections_evicted",
                "Connections from clients, idle or with an incomplete head, closed to make room \
                 for new ones",
            )),
            proxy_headers: page.metric(Name::new(
                "weir_proxy_headers",
                "Connections of peers that must send a PROXY header, by outcome",
            )),
            handshakes: page.metric(Name::new(
                "weir_tls_handshakes",
                "TLS handshakes with clients, by outcome",
            )),
            accept_errors: page.metric(Name::new(
                "weir_accept_errors",
                "Failures to accept a connection, such as for want of file descriptors",
            )),
            in_flight: page.metric(Name::new(
                "weir_requests_in_flight",
                "Requests being served",
            )),
        };
        for outcome in ProxyHeader::ALL {
            server.proxy_headers(outcome);
        }
        for outcome in Handshake::ALL {
            server.handshakes(outcome);
        }
        server
    }

    /// TLS handshakes with this outcome.
    pub fn handshakes(&self, outcome: Handshake) -> Counter {
        self.handshakes.member([("outcome", outcome.as_str())])
    }

    /// PROXY headers with this outcome.
    pub fn proxy_headers(&self, outcome: ProxyHeader) -> Counter {
        self.proxy_headers.member([("outcome", outcome.as_str())])
    }
}

impl RouteMetrics {
    pub(super) fn new(
        name: Arc<str>,
        requests: &Family<Counter>,
        seconds: &Family<Latency>,
    ) -> Self {
        let counters = RouteCounters {
            seconds: seconds.member([("route", &*name)]),
            name,
            requests: requests.clone(),
            counters: Default::default(),
        };
        Self {
            counters: Arc::new(counters),
            listener: ListenerKind::Forward,
        }
    }

    /// The metrics of the route's requests on this kind of listener.
    #[must_use]
    pub fn on(&self, listener: ListenerKind) -> Self {
        Self {
            counters: Arc::clone(&self.counters),
            listener,
        }
    }

    /// The kind of listener whose requests are counted.
    #[inline]
    pub const fn listener(&self) -> ListenerKind {
        self.listener
    }

    /// The route's name.
    #[inline]
    pub fn name(&self) -> &str {
        &self.counters.name
    }

    /// Shows, at zero, the counters of these decisions. A counter that is born with its first event
    /// looks to a query like one that never grew.
    pub fn expect(&self, decisions: impl IntoIterator<Item = Disposition>) {
        for decision in decisions {
            for class in 0..CLASSES.len() {
                self.cell(class, decision);
            }
        }
    }

    /// Counts a request and its duration.
    pub fn finished(&self, status: StatusCode, decision: Disposition, took: Duration) {
        self.counters.seconds.observe(took);
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.cell(class, decision) {
            counter.inc();
        }
    }

    /// The counts until now.
    pub fn sample(&self) -> RouteSample {
        let mut sample = RouteSample {
            latency: self.counters.seconds.counts(),
            ..RouteSample::default()
        };
        let listeners = self.counters.counters.iter();
        let classes = listeners.flat_map(|counters| CLASSES.iter().zip(counters));
        for (class, cells) in classes {
            let errors = &mut sample.server_errors;
            let counts = sample.decisions.iter_mut().zip(errors);
            for ((decided, errors), cell) in counts.zip(cells) {
                let count = cell.get().map_or(0, Counter::get);
                *decided += count;
                *errors += if *class == "5xx" { count } else { 0 };
            }
        }
        sample
    }

    fn cell(&self, class: usize, decision: Disposition) -> Option<&Counter> {
        let counters = self.counters.counters.get(self.listener as usize)?;
        let cell = counters.get(class)?.get(decision.index())?;
        Some(cell.get_or_init(|| self.counter(class, decision)))
    }

    fn counter(&self, class: usize, decision: Disposition) -> Counter {
        let class = CLASSES.get(class).copied().unwrap_or_default();
        let mut labels: Labels = vec![
            ("route", Arc::clone(&self.counters.name)),
            ("status", class.into()),
            ("decision", decision.as_str().into()),
        ];
        // Requests that are forwarded keep the labels that dashboards know.
        let listener = self.listener.shown();
        labels.extend(listener.map(|listener| ("listener", listener.into())));
        self.counters.requests.member_of(&labels)
    }
}

impl LimitMetrics {
    pub(super) fn new(
        name: &Arc<str>,
        decisions: &Family<Counter>,
        settlements: &Family<Counter>,
    ) -> Self {
        let counter = |decision: Disposition| {
            let labels = [("limit", &**name), ("decision", decision.as_str())];
            decisions.member(labels)
        };
        Self {
            allowed: counter(Disposition::Allowed),
            denied: counter(Disposition::Denied),
            would_deny: counter(Disposition::WouldDeny),
            subjects: None,
            lazy: Arc::new(LazyLimitCounters {
                name: Arc::clone(name),
                settlements: settlements.clone(),
                settled: Default::default(),
            }),
        }
    }

    pub(super) fn with_subjects(mut self, subjects: Option<TopSubjects>) -> Self {
        self.subjects = subjects;
        self
    }

    /// Counts a request of the subject with this bucket key, at a time in seconds since the Unix
    /// epoch, where subjects are tracked. `name` is called if the subject gets a place. Returns the
    /// id of the subject for [`subject_decided`](Self::subject_decided).
    pub fn subject_asked<'n>(
        &self,
        key: &[u8],
        now: impl FnOnce() -> u64,
        name: impl FnOnce() -> Option<&'n str>,
    ) -> Option<NonZeroU64> {
        self.subjects.as_ref()?.request(key, now(), name)
    }

    /// The id that [`subject_asked`](Self::subject_asked) returns for this key, if subjects are
    /// counted.
    pub fn subject_id(&self, key: &[u8]) -> Option<NonZeroU64> {
        Some(self.subjects.as_ref()?.hash(key))
    }

    /// Counts the decision about a subject, after which so many percent of the bucket are `used`.
    pub fn subject_decided(
        &self,
        subject: NonZeroU64,
        denied: bool,
        used: impl FnOnce() -> u8,
        now: impl FnOnce() -> u64,
    ) {
        if let Some(subjects) = &self.subjects {
            subjects.decided(subject, denied, used(), now());
        }
    }

    /// Counts a decision of this limit; all but `Allowed` and `WouldDeny` as denied.
    pub fn decided(&self, decision: Disposition) {
        match decision {
            Disposition::Allowed => self.allowed.inc(),
            Disposition::WouldDeny => self.would_deny.inc(),
            _ => self.denied.inc(),
        };
    }

    /// The counts until now.
    pub fn sample(&self) -> DecisionSample {
        DecisionSample {
            allowed: self.allowed.get(),
            denied: self.denied.get(),
            would_deny: self.would_deny.get(),
        }
    }

    /// Shows, at zero, the settlements of this limit.
    pub fn expect_settlements(&self) {
        for how in Settled::ALL {
            self.lazy.settlement(how);
        }
    }

    /// Counts a settlement of this limit.
    pub fn settled(&self, how: Settled) {
        if let Some(counter) = self.lazy.settlement(how) {
            counter.inc();
        }
    }
}

impl LazyLimitCounters {
    fn settlement(&self, how: Settled) -> Option<&Counter> {
        let labels = [("limit", &*self.name), ("outcome", how.as_str())];
        let cell = self.settled.get(how as usize)?;
        Some(cell.get_or_init(|| self.settlements.member(labels)))
    }
}

impl StoreCallMetrics {
    pub(super) fn new(
        call: &'static str,
        seconds: &Family<Latency>,
        errors: Family<Counter>,
        failed_calls: Counter,
        kinds: &[&'static str],
    ) -> Self {
        let metrics = Self {
            call,
            seconds: seconds.member([("call", call)]),
            errors,
            failed_calls,
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
            self.failed_calls.inc();
        }
    }

    /// The durations of calls until now.
    pub fn latency(&self) -> LatencyCounts {
        self.seconds.counts()
    }

    fn failed(&self, kind: &'static str) -> Counter {
        self.errors.member([("call", self.call), ("kind", kind)])
    }
}

impl GaugeGuard {
    /// Counts one more until this is dropped.
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
