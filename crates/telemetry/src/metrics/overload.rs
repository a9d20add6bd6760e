//! Metrics of workers that have more to do than their CPU can handle. They are on the page where
//! requests are shed for that, and from then on.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::Metrics;
use super::page::{Family, Name, Page};

/// The counts of overloaded workers.
#[derive(Clone, Debug, Default)]
pub struct OverloadMetrics {
    delay: Family<Gauge<f64, AtomicU64>>,
    shed: Family<Counter>,
    /// All that were shed.
    total: Counter,
}

/// The counters of a priority.
#[derive(Clone, Debug)]
pub struct OverloadShed {
    shed: Counter,
    would_deny: Counter,
    total: Counter,
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
            total: Counter::default(),
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
            total: self.total.clone(),
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total.get()
    }
}

impl OverloadShed {
    /// Counts a request that is shed, or would be without a dry run.
    pub fn count(&self, is_shed: bool) {
        if is_shed {
            self.shed.inc();
            self.total.inc();
        } else {
            self.would_deny.inc();
        }
    }
}

impl Metrics {
    /// The metrics of workers that have more to do than their CPU can handle.
    pub fn overload(&self) -> &OverloadMetrics {
        &self.overload
    }
}
