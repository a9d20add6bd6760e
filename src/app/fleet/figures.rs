//! The figures of this gateway: all of them for itself, and as many as may be published.

use std::sync::Arc;

use tokio::sync::watch;
use weir_console::fleet::{Figures, PublishedFinding, limit_figures};
use weir_limit::time::Timestamp;
use weir_telemetry::Metrics;

use crate::app::reloads::Snapshot;
use crate::app::stores::Stores;

/// The parts of a gateway that figures are taken of.
#[derive(Clone)]
pub(in crate::app) struct Surroundings {
    pub(in crate::app) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(in crate::app) stores: Stores,
    pub(in crate::app) metrics: Arc<Metrics>,
    /// Says what is wrong with a gateway itself.
    pub(in crate::app) findings: fn(&Snapshot, &Stores, &Metrics) -> Vec<PublishedFinding>,
}

impl Surroundings {
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// All figures.
    pub(super) fn figures(&self, now: Timestamp) -> Figures {
        let (snapshot, metrics) = (self.snapshot(), &self.metrics);
        let server = metrics.server();
        let gauge = |value: i64| u64::try_from(value).unwrap_or_default();
        let routes = metrics.failures().routes;
        let sum = |of: fn(&weir_telemetry::RouteErrors) -> u64| {
            routes.iter().map(|(_, route)| of(route)).sum()
        };
        let shows_names = snapshot.settings.account.keeps_names;
        let limits = snapshot.settings.limits().into_iter().filter_map(|limit| {
            let figures = limit_figures(metrics, limit.name(), shows_names, now);
            let is_used = !figures.subjects.is_empty();
            is_used.then(|| (limit.name().to_owned(), figures))
        });
        Figures {
            in_flight: gauge(server.in_flight.get()),
            connections: gauge(server.open.get()),
            requests: sum(|route| route.requests),
            failed: sum(|route| route.failed),
            denied: sum(|route| route.denied),
            counts_subjects: metrics.tracks_subjects(),
            findings: (self.findings)(&snapshot, &self.stores, metrics),
            forwarders: snapshot.layers.forwarding.untrusted_forwarders(),
            limits: limits.collect(),
            ..Figures::new()
        }
    }

    /// As many of the figures as may be published, as text.
    pub(super) fn text(&self, now: Timestamp) -> String {
        self.figures(now).bounded_text()
    }
}
