//! Keeps out clients that are banned or blocked, and lets those through that are allowed.

mod begun;
mod check;
mod refused_peers;
mod told_waits;
mod treatment;

use std::net::IpAddr;
use std::sync::Arc;

use http::Extensions;
use weir_limit::time::Timestamp;
use weir_rules::{
    Access, AccessLists, Ban, Enforcement, KeySource, ListEntry, PathSet, SecretHash, StatusSet,
};
use weir_telemetry::{BanMetrics, Bans, Disposition, Metrics};

pub use self::begun::{BanCause, BegunBan, KnownBans, StrikeCause};
pub(super) use self::check::{ActiveBan, BanCheck, TellingDenial};
pub use self::refused_peers::{RefusedPeer, RefusedPeers};
#[cfg(feature = "config")]
pub use self::treatment::TreatmentKeys;
pub(super) use self::treatment::{PreparedTreatment, TreatmentAnswer};
pub use self::treatment::{Tarpit, TarpitSlots, Treatment};
use super::ClientIdentity;

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

/// The lists and bans that keep clients out.
#[derive(Clone, Debug)]
pub struct AccessSettings {
    /// The clients that are always let through, and those that never are.
    pub lists: AccessLists,
    /// The treatment of the blocked.
    pub blocked: Treatment,
    /// Bans. If several hold, the first decides what the client gets.
    pub bans: Vec<BanPolicy>,
}

impl AccessSettings {
    /// What the banned and the blocked get.
    pub fn treatments(&self) -> impl Iterator<Item = &Treatment> {
        let of_bans = self.bans.iter().map(|ban| &ban.treatment);
        of_bans.chain([&self.blocked])
    }

    /// The decisions about the banned and the blocked.
    pub fn dispositions(&self) -> impl Iterator<Item = Disposition> {
        let bans = self.bans.iter().map(|ban| &ban.treatment);
        let blocks = !self.lists.block.is_empty();
        let treatments = bans.chain(blocks.then_some(&self.blocked));
        treatments.flat_map(Treatment::dispositions)
    }

    /// Whether the store is asked about clients, for it knows who is banned.
    pub fn asks_store(&self) -> bool {
        !self.bans.is_empty()
    }

    /// For whom bans are enforced.
    pub fn enforcements(&self) -> impl Iterator<Item = Enforcement> {
        self.bans.iter().map(|ban| ban.enforcement)
    }

    /// By what bans find their subjects.
    pub fn key_sources(&self) -> impl Iterator<Item = &KeySource> {
        self.bans.iter().flat_map(|ban| ban.ban.per())
    }
}

/// What is known of clients that are kept out, and outlives reloads. Clones share it.
#[derive(Clone)]
pub struct AccessState {
    tarpits: TarpitSlots,
    known: KnownBans,
}

impl AccessState {
    /// Of nobody at first. The metrics show how many requests are held.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            tarpits: TarpitSlots::new(metrics.bans()),
            known: KnownBans::default(),
        }
    }

    /// Bans that are known beside the buckets.
    pub const fn known(&self) -> &KnownBans {
        &self.known
    }

    /// Releases all requests that are held and holds no more, as a drain waits for every request.
    pub fn release(&self) {
        self.tarpits.release();
    }

    /// The lists and bans of a configuration.
    pub fn control(&self, settings: AccessSettings, metrics: &Metrics) -> AccessControl {
        AccessControl::new(settings, &self.tarpits, metrics, &self.known)
    }
}

/// The lists and bans that keep clients out, on every route. Clones share it.
#[derive(Clone)]
pub struct AccessControl(Arc<PreparedAccess>);

struct PreparedAccess {
    lists: AccessLists,
    blocked: Arc<PreparedTreatment>,
    bans: Vec<Arc<PreparedBan>>,
    metrics: Bans,
    known: KnownBans,
}

/// A ban with all that can be prepared at load time.
struct PreparedBan {
    policy: BanPolicy,
    treatment: Arc<PreparedTreatment>,
    metrics: BanMetrics,
    known: KnownBans,
}

impl AccessControl {
    /// Lists and bans whose tarpits hold requests in these slots. Bans that begin are added to
    /// `known`, whose standing bans hold as well.
    pub fn new(
        settings: AccessSettings,
        tarpits: &TarpitSlots,
        metrics: &Metrics,
        known: &KnownBans,
    ) -> Self {
        let banned = |policy: BanPolicy| {
            let name = policy.ban.name();
            let treatment = PreparedTreatment::of_ban(name, policy.treatment.clone(), tarpits);
            Arc::new(PreparedBan {
                treatment: Arc::new(treatment),
                metrics: metrics.bans().ban(name),
                known: known.clone(),
                policy,
            })
        };
        Self(Arc::new(PreparedAccess {
            lists: settings.lists,
            blocked: Arc::new(PreparedTreatment::of_blocked(settings.blocked, tarpits)),
            bans: settings.bans.into_iter().map(banned).collect(),
            metrics: metrics.bans().clone(),
            known: known.clone(),
        }))
    }

    /// Whether there are neither lists nor bans.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lists.is_empty() && self.0.bans.is_empty()
    }

    /// The treatments of all bans, and that of the blocked.
    pub(super) fn treatments(&self) -> impl Iterator<Item = &Arc<PreparedTreatment>> {
        let of_bans = self.0.bans.iter().map(|ban| &ban.treatment);
        of_bans.chain([&self.0.blocked])
    }

    /// Whether a list or a ban is about accounts.
    pub(super) fn concerns_accounts(&self) -> bool {
        let mut bans = self.0.bans.iter();
        let lists = &self.0.lists;
        lists.allow.has_accounts()
            || lists.block.has_accounts()
            || bans.any(|ban| ban.policy.ban.per().contains(&KeySource::Account))
    }

    pub(super) fn allows_accounts(&self) -> bool {
        self.0.lists.allow.has_accounts()
    }

    pub(super) fn access(&self, extensions: &Extensions) -> Access {
        match ClientIdentity::from_extensions(extensions) {
            Some(identity) => {
                let address = identity.client.address;
                let account = identity.account.as_ref().map(|account| account.id);
                self.access_of(address, account)
            }
            None => Access::Unlisted,
        }
    }

    pub(super) fn access_of(&self, address: IpAddr, account: Option<SecretHash>) -> Access {
        self.0.lists.access(address, account)
    }

    pub(super) fn blocked(&self) -> &Arc<PreparedTreatment> {
        &self.0.blocked
    }

    /// Counts a request of a client that is blocked by this entry.
    pub(super) fn count_blocked(&self, by: ListEntry) {
        self.0.metrics.blocked();
        if let ListEntry::Network(network) = by
            && self.0.blocked.drops_in_kernel()
        {
            let refused = self.0.known.refused_peers();
            refused.came(RefusedPeer::Blocked(network), Timestamp::MAX);
        }
    }
}

#[cfg(test)]
mod tests;
