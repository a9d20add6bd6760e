//! Metrics of workers that have more to do than their CPU can handle. They are on the page where
//! requests are shed for that, and from then on.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::handles::member;
use super::openmetrics::{Labels, registered};
use crate::names;

/// The counts of overloaded workers.
#[derive(Clone, Debug, Default)]
pub struct OverloadMetrics {
    delay: Family<Labels, Gauge<f64, AtomicU64>>,
    shed: Family<Labels, Counter>,
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
    pub(super) fn registered(page: &mut Registry) -> Self {
        Self {
            delay: registered(page, names::WORKER_DELAY),
            shed: registered(page, names::OVERLOAD_SHED),
            total: Counter::default(),
        }
    }

    /// Shows how late a worker is, in seconds; `None` if that is measured no more.
    pub fn worker_delay(&self, worker: usize, seconds: Option<f64>) {
        let worker = worker.to_string();
        let labels = [("worker", worker.as_str())];
        if let Some(seconds) = seconds {
            member(&self.delay, labels).set(seconds);
        } else {
            self.delay.remove(&vec![("worker", worker.as_str().into())]);
        }
    }

    /// The counters of a priority; the same for the same one.
    pub fn of_priority(&self, priority: &'static str) -> OverloadShed {
        let counter = |decision| {
            let labels = [("priority", priority), ("decision", decision)];
            member(&self.shed, labels)
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
