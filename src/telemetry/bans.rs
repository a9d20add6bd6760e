//! Bans and the block list: what is counted of them, and the events of a ban.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tracing::info;

use super::handles::{GaugeGuard, Labels, owned};
use super::{Disposition, names, openmetrics};

/// What is counted of the banned and the blocked.
#[derive(Clone, Debug, Default)]
pub struct Bans {
    bans: Family<Labels, Counter>,
    banned: Family<Labels, Counter>,
    blocked: Counter,
    tarpit: Gauge,
}

/// What is counted of one ban.
#[derive(Clone, Debug)]
pub struct BanMetrics {
    begun: Counter,
    denied: Counter,
    would_deny: Counter,
}

/// A ban begins.
#[derive(Clone, Copy, Debug)]
pub struct BanBegun<'a> {
    /// The ban's name.
    pub ban: &'a str,
    /// Whom it bans, in which what may be a secret is hashed.
    pub subject: &'a str,
    /// Which offence it was, of those that are not forgotten.
    pub offence: usize,
    /// How long it lasts.
    pub length: Duration,
}

/// An operator banned a subject.
#[derive(Clone, Copy, Debug)]
pub struct BanSet<'a> {
    /// The ban's name.
    pub ban: &'a str,
    /// Whom it bans, in which what may be a secret is hashed.
    pub subject: &'a str,
    /// For how long.
    pub length: Duration,
}

/// An operator lifted a ban.
#[derive(Clone, Copy, Debug)]
pub struct BanLifted<'a> {
    /// The ban's name.
    pub ban: &'a str,
    /// Whom it banned, in which what may be a secret is hashed.
    pub subject: &'a str,
}

impl Bans {
    pub(super) fn register(&self, registry: &mut Registry) {
        openmetrics::register(registry, names::BANS, &self.bans);
        openmetrics::register(registry, names::BANNED, &self.banned);
        openmetrics::register(registry, names::BLOCKED, &self.blocked);
        openmetrics::register(registry, names::TARPIT, &self.tarpit);
    }

    /// The handle for a ban; the same counters for the same name.
    pub fn ban(&self, name: &Arc<str>) -> BanMetrics {
        let ban = || (names::BAN, Arc::clone(name));
        let requests = |decision: Disposition| {
            let decision = (names::DECISION, Arc::from(decision.as_str()));
            owned(&self.banned, &vec![ban(), decision])
        };
        BanMetrics {
            begun: owned(&self.bans, &vec![ban()]),
            denied: requests(Disposition::Denied),
            would_deny: requests(Disposition::WouldDeny),
        }
    }

    /// Counts a request from the block list.
    pub fn blocked(&self) {
        self.blocked.inc();
    }

    /// One more request that a tarpit holds.
    pub fn tarpit_held(&self) -> GaugeGuard {
        GaugeGuard::new(&self.tarpit)
    }
}

impl BanMetrics {
    /// Counts a request of a banned subject, whether the ban is acted upon or not.
    pub fn held(&self, acts: bool) {
        let counter = if acts { &self.denied } else { &self.would_deny };
        counter.inc();
    }
}

impl BanBegun<'_> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &BanMetrics) {
        metrics.begun.inc();
        let Self {
            ban,
            subject,
            offence,
            length,
        } = *self;
        let duration_s = length.as_secs_f64();
        info!(ban, subject, offence, duration_s, "ban begun");
    }
}

impl BanSet<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self { ban, subject, .. } = *self;
        let duration_s = self.length.as_secs_f64();
        info!(ban, subject, duration_s, "ban set");
    }
}

impl BanLifted<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self { ban, subject } = *self;
        info!(ban, subject, "ban lifted");
    }
}
