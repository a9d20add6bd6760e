//! Bans: which clients are banned, for what, and what this process knows of them.

mod begun;
mod check;
mod refused_peers;
mod told_waits;

use std::sync::Arc;

use weir_rules::{Ban, Enforcement, KeySource, PathSet, StatusSet};
use weir_telemetry::{BanMetrics, Metrics};

pub use self::begun::{BanCause, BegunBan, KnownBans, StrikeCause};
pub(crate) use self::check::{ActiveBan, BanCheck, TellingDenial};
pub use self::refused_peers::{RefusedPeer, RefusedPeers};
use super::AccessSettings;
use super::treatment::{PreparedTreatment, TarpitSlots, Treatment};

/// A ban, its strikes, and the treatment of the banned. It holds on every route, and for requests
/// without one.
#[derive(Clone, Debug)]
pub struct BanPolicy {
    /// Which subjects it bans, after how many strikes, and for how long.
    pub ban: Arc<Ban>,
    /// The limits whose denials are strikes.
    pub limits: Vec<Arc<str>>,
    /// How many workers may share a subject: as many may be told to wait before a denial is a
    /// strike. With 0 every denial is one.
    pub workers: usize,
    /// The statuses of responses that are strikes.
    pub statuses: StatusSet,
    /// The paths whose requests are strikes.
    pub paths: PathSet,
    /// The treatment of the banned.
    pub treatment: Treatment,
    /// The banned for whom it is enforced.
    pub enforcement: Enforcement,
}

impl BanPolicy {
    /// Whether anything is a strike; otherwise it bans by hand alone.
    #[must_use]
    pub fn has_strikes(&self) -> bool {
        !(self.limits.is_empty() && self.statuses.is_empty() && self.paths.is_empty())
    }

    /// Whether it keeps anybody out.
    pub fn acts(&self) -> bool {
        self.enforcement != Enforcement::NONE
    }

    /// Whether it keeps out all whom it bans.
    pub fn acts_on_all(&self) -> bool {
        !self.enforcement.is_partial()
    }

    /// The first of these limits whose denials are strikes.
    fn striking<'l>(&self, mut limits: impl Iterator<Item = &'l str>) -> Option<&Arc<str>> {
        limits.find_map(|denier| self.limits.iter().find(|limit| ***limit == *denier))
    }
}

impl AccessSettings {
    /// Whether the store is asked about clients, for it knows who is banned.
    pub fn asks_store(&self) -> bool {
        !self.bans.is_empty()
    }

    /// For whom bans are enforced.
    pub fn enforcements(&self) -> impl Iterator<Item = Enforcement> {
        self.bans.iter().map(|ban| ban.enforcement)
    }

    /// By what each ban finds its subjects.
    pub fn subjects(&self) -> impl Iterator<Item = &[KeySource]> {
        self.bans.iter().map(|ban| ban.ban.per())
    }

    /// By what bans find their subjects.
    pub fn key_sources(&self) -> impl Iterator<Item = &KeySource> {
        self.subjects().flatten()
    }
}

/// The bans of a configuration, in its order.
pub(super) struct PreparedBans(Vec<Arc<PreparedBan>>);

/// A ban with all that can be prepared at load time.
pub(super) struct PreparedBan {
    policy: BanPolicy,
    treatment: Arc<PreparedTreatment>,
    metrics: BanMetrics,
    known: KnownBans,
}

impl PreparedBans {
    /// Bans whose tarpits hold requests in these slots. Those that begin are added to `known`, whose
    /// standing bans hold as well.
    pub(super) fn new(
        policies: Vec<BanPolicy>,
        tarpits: &TarpitSlots,
        metrics: &Metrics,
        known: &KnownBans,
    ) -> Self {
        let prepared = policies.into_iter().map(|policy| {
            let name = policy.ban.name();
            let treatment = PreparedTreatment::of_ban(name, policy.treatment.clone(), tarpits);
            Arc::new(PreparedBan {
                treatment: Arc::new(treatment),
                metrics: metrics.bans().ban(name),
                known: known.clone(),
                policy,
            })
        });
        Self(prepared.collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn treatments(&self) -> impl Iterator<Item = &Arc<PreparedTreatment>> {
        self.0.iter().map(|ban| &ban.treatment)
    }

    /// Whether a ban is about accounts.
    pub(super) fn concern_accounts(&self) -> bool {
        let mut bans = self.0.iter();
        bans.any(|ban| ban.policy.ban.per().contains(&KeySource::Account))
    }
}

#[cfg(test)]
mod tests;
