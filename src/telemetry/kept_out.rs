//! What is counted of the banned and the blocked.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::handles::{GaugeGuard, Labels, owned};
use super::{names, page};

/// What is counted of the banned and the blocked.
#[derive(Clone, Debug, Default)]
pub struct KeptOut {
    bans: Family<Labels, Counter>,
    banned: Family<Labels, Counter>,
    blocked: Counter,
    tarpit: Gauge,
}

/// What is counted of one ban.
#[derive(Clone, Debug)]
pub struct BanMetrics {
    pub(super) begun: Counter,
    requests: Counter,
}

impl KeptOut {
    pub(super) fn register(&self, registry: &mut Registry) {
        page::register(registry, names::BANS, &self.bans);
        page::register(registry, names::BANNED, &self.banned);
        page::register(registry, names::BLOCKED, &self.blocked);
        page::register(registry, names::TARPIT, &self.tarpit);
    }

    /// The handle for a ban; the same counters for the same name.
    pub fn ban(&self, name: &Arc<str>) -> BanMetrics {
        let labels = vec![(names::BAN, Arc::clone(name))];
        BanMetrics {
            begun: owned(&self.bans, &labels),
            requests: owned(&self.banned, &labels),
        }
    }

    /// Counts a request of somebody who is blocked.
    pub fn blocked(&self) {
        self.blocked.inc();
    }

    /// A place among the requests that tarpits hold, unless `most` are taken.
    pub fn tarpit_place(&self, most: i64) -> Option<GaugeGuard> {
        GaugeGuard::within(&self.tarpit, most)
    }
}

impl BanMetrics {
    /// Counts a request of somebody who is banned.
    pub fn denied(&self) {
        self.requests.inc();
    }
}
