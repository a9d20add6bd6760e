//! Metrics of requests that are shed: for the sake of workers that have more to do than their CPU can
//! handle, and of upstreams whose requests in flight are limited. Those of workers are on the page
//! where requests are shed for that, and from then on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::Metrics;
use super::page::{Family, Name, Page, SampleKind};
use crate::striped;

/// The counts of requests that are shed. Clones share them.
#[derive(Clone, Debug)]
pub struct OverloadMetrics {
    delay: Family<Gauge<f64, AtomicU64>>,
    shed: Family<Counter>,
    /// Those that workers shed, for findings.
    by_workers: striped::Counter,
    /// By route, those that were shed for the sake of their upstream, for findings.
    by_upstreams: Arc<Mutex<BTreeMap<Arc<str>, striped::Counter>>>,
}

/// Requests that were shed: until now, or since some time.
#[derive(Clone, Debug, Default)]
pub struct ShedRequests {
    /// As their worker had more to do than its CPU can handle.
    pub by_workers: u64,
    /// For the sake of their upstream, by route.
    pub by_upstreams: BTreeMap<Arc<str>, u64>,
}

/// The counters of a priority.
#[derive(Clone, Debug)]
pub struct OverloadShed {
    shed: Counter,
    would_deny: Counter,
    /// That of all priorities.
    by_workers: striped::Counter,
}

/// The state of the limit on an upstream's requests in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencySample {
    /// How many requests may be in flight.
    pub limit: u32,
    /// Slots that are taken.
    pub taken: u32,
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// The requests that were shed, by priority, the least first.
    pub shed: Vec<ShedSample>,
}

/// The requests of a priority that were shed until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedSample {
    /// The priority.
    pub priority: &'static str,
    /// Requests that were shed.
    pub shed: u64,
    /// Requests that would have been shed without a dry run.
    pub would_deny: u64,
}

impl OverloadMetrics {
    pub(super) fn new(page: &Page) -> Self {
        Self {
            delay: page.metric(Name::new(
                "weir_worker_delay_seconds",
                "How late the event loop of each worker is, where that is measured: the least \
                 delay of 100 ms",
            )),
            shed: page.metric(Name::new(
                "weir_overload_shed_requests",
                "Requests that were shed as their worker has more to do than its CPU can handle, \
                 by priority and decision",
            )),
            by_workers: striped::Counter::default(),
            by_upstreams: Arc::default(),
        }
    }

    /// Shows how late a worker is, in seconds; `None` if that is measured no more.
    pub fn worker_delay(&self, worker: usize, seconds: Option<f64>) {
        let worker = worker.to_string();
        let labels = [("worker", worker.as_str())];
        if let Some(seconds) = seconds {
            self.delay.member(labels).set(seconds);
        } else {
            self.delay.remove(labels);
        }
    }

    /// The counters of a priority; the same for the same one.
    pub fn of_priority(&self, priority: &'static str) -> OverloadShed {
        let counter = |decision| {
            let labels = [("priority", priority), ("decision", decision)];
            self.shed.member(labels)
        };
        OverloadShed {
            shed: counter("shed"),
            would_deny: counter("would_deny"),
            by_workers: self.by_workers.clone(),
        }
    }

    /// The counter of a route's requests that are shed for the sake of their upstream, for findings;
    /// the same for the same route.
    pub fn of_route(&self, route: &str) -> striped::Counter {
        let mut routes = self.by_upstreams.lock();
        routes.entry(route.into()).or_default().clone()
    }

    /// What was shed until now.
    pub(super) fn sample(&self) -> ShedRequests {
        let routes = self.by_upstreams.lock();
        let by_upstreams = routes
            .iter()
            .map(|(name, shed)| (Arc::clone(name), shed.get()));
        ShedRequests {
            by_workers: self.by_workers.get(),
            by_upstreams: by_upstreams.collect(),
        }
    }
}

impl ShedRequests {
    /// What was shed since then.
    pub(super) fn since(mut self, before: &Self) -> Self {
        self.by_workers -= before.by_workers;
        for (route, shed) in &mut self.by_upstreams {
            *shed -= before.by_upstreams.get(route).copied().unwrap_or_default();
        }
        self
    }
}

impl OverloadShed {
    /// Counts a request that is shed, or would be without a dry run.
    pub fn count(&self, is_shed: bool) {
        if is_shed {
            self.shed.inc();
            self.by_workers.inc();
        } else {
            self.would_deny.inc();
        }
    }
}

impl Metrics {
    /// The metrics of requests that are shed.
    pub fn overload(&self) -> OverloadMetrics {
        self.overload.clone()
    }

    /// Shows, at every scrape, the limits on requests in flight of the upstreams that have one, by
    /// their names.
    pub fn limited_upstreams<U>(&self, upstreams: U)
    where
        U: Fn() -> Vec<(Arc<str>, ConcurrencySample)> + Clone + Send + Sync + 'static,
    {
        let limits = |name, number: fn(&ConcurrencySample) -> u64| {
            let upstreams = upstreams.clone();
            self.page
                .family_on_collect(name, SampleKind::Gauge, move || {
                    let limited = upstreams().into_iter();
                    limited
                        .map(|(name, sample)| (vec![("upstream", name)], number(&sample)))
                        .collect()
                });
        };
        limits(
            Name::new(
                "weir_upstream_concurrency_limit",
                "How many requests may be in flight to an upstream, where that is limited",
            ),
            |sample| u64::from(sample.limit),
        );
        limits(
            Name::new(
                "weir_upstream_slots_taken",
                "Requests in flight that the limit of an upstream counts: until their responses begin",
            ),
            |sample| u64::from(sample.taken),
        );
        limits(
            Name::new(
                "weir_upstream_slots_waiting",
                "Requests that wait for a slot of an upstream",
            ),
            |sample| sample.waiting as u64,
        );
        let shed = Name::new(
            "weir_shed_requests",
            "Requests that were shed as their upstream can handle no more, by upstream, priority \
             and decision",
        );
        self.page
            .family_on_collect(shed, SampleKind::Counter, move || {
                let samples = upstreams().into_iter().flat_map(|(name, sample)| {
                    sample.shed.into_iter().flat_map(move |of| {
                        [("shed", of.shed), ("would_deny", of.would_deny)].map(
                            |(decision, count)| {
                                let labels = vec![
                                    ("upstream", Arc::clone(&name)),
                                    ("priority", of.priority.into()),
                                    ("decision", decision.into()),
                                ];
                                (labels, count)
                            },
                        )
                    })
                });
                samples.collect()
            });
    }
}
