//! Metrics of the banned and the blocked.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::handles::{DecisionSample, GaugeGuard};
use super::page::{Family, Name, Page};
use super::{Counter, Gauge, Metrics};
use crate::{Disposition, events};

/// The metrics of the banned and the blocked.
#[derive(Clone, Debug, Default)]
pub struct Bans {
    bans: Family<Counter>,
    banned: Family<Counter>,
    blocked: Counter,
    tarpit: Gauge,
}

/// The metrics of one ban.
#[derive(Clone, Debug)]
pub struct BanMetrics {
    begun: Counter,
    denied: Counter,
    would_deny: Counter,
}

impl Bans {
    pub(super) fn new(page: &Page) -> Self {
        Self {
            bans: page.metric(Name::new(
                "weir_bans",
                "Bans that this gateway began, by ban",
            )),
            banned: page.metric(Name::new(
                "weir_banned_requests",
                "Requests of the banned, by ban and decision",
            )),
            blocked: page.metric(Name::new(
                "weir_blocked_requests",
                "Requests of clients on the block list",
            )),
            tarpit: page.metric(Name::new("weir_tarpit_held", "Requests held in tarpits")),
        }
    }

    /// The handle for a ban; the same counters for the same name.
    pub fn ban(&self, name: &Arc<str>) -> BanMetrics {
        let ban = ("ban", &**name);
        let requests =
            |decision: Disposition| self.banned.member([ban, ("decision", decision.as_str())]);
        BanMetrics {
            begun: self.bans.member([ban]),
            denied: requests(Disposition::Denied),
            would_deny: requests(Disposition::WouldDeny),
        }
    }

    /// Counts a request from the block list.
    pub fn blocked(&self) {
        self.blocked.inc();
    }

    /// Counts a request that a tarpit holds, while the guard lives.
    pub fn tarpit_held(&self) -> GaugeGuard {
        GaugeGuard::new(&self.tarpit)
    }
}

impl BanMetrics {
    /// The counts until now.
    pub fn sample(&self) -> DecisionSample {
        DecisionSample {
            allowed: 0,
            denied: self.denied.get(),
            would_deny: self.would_deny.get(),
        }
    }

    /// Counts a request of a banned subject, whether the ban is acted upon or not.
    pub fn held(&self, acts: bool) {
        let counter = if acts { &self.denied } else { &self.would_deny };
        counter.inc();
    }
}

/// A ban of this name begins. What may be a secret is hashed in `subject`; `offence` counts those that
/// are not forgotten.
pub fn ban_begun(metrics: &BanMetrics, ban: &str, subject: &str, offence: usize, length: Duration) {
    metrics.begun.inc();
    let duration_s = length.as_secs_f64();
    info!(target: events::TARGET, ban, subject, offence, duration_s, "ban begun");
}

impl Metrics {
    /// The metrics of the banned and the blocked.
    pub fn bans(&self) -> &Bans {
        &self.bans
    }
}
