//! Keeps out clients that are banned or blocked, and lets those through that are allowed. Whoever
//! asks about them asks [`AccessControl`].

mod bans;
mod treatment;

use std::net::IpAddr;
use std::sync::Arc;

use http::Extensions;
use weir_limit::Batch;
use weir_limit::time::Timestamp;
use weir_rules::{Access, AccessLists, ListEntry, RequestAttributes, SecretHash};
use weir_telemetry::{Bans, Disposition, Metrics};

use self::bans::PreparedBans;
pub(super) use self::bans::{ActiveBan, BanCheck, TellingDenial};
pub use self::bans::{
    BanCause, BanPolicy, BegunBan, KnownBans, RefusedPeer, RefusedPeers, StrikeCause,
};
#[cfg(feature = "config")]
pub use self::treatment::TreatmentKeys;
pub(super) use self::treatment::{PreparedTreatment, TreatmentAnswer};
pub use self::treatment::{Tarpit, TarpitSlots, Treatment};
use super::ClientIdentity;
use super::backend::Backend;

/// The lists and bans that keep clients out.
#[derive(Clone, Debug)]
pub struct AccessSettings {
    /// The clients that are always let through, and those that never are.
    pub lists: AccessLists,
    /// The treatment of the blocked.
    pub blocked: Treatment,
    /// Bans, each with a name of its own. If several hold, the first decides what the client gets.
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

    /// Lets all clients come; what the blocked would get stays as it is.
    pub fn clear(&mut self) {
        self.lists = AccessLists::default();
        self.bans.clear();
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
    bans: PreparedBans,
    metrics: Bans,
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
        Self(Arc::new(PreparedAccess {
            lists: settings.lists,
            blocked: Arc::new(PreparedTreatment::of_blocked(settings.blocked, tarpits)),
            bans: PreparedBans::new(settings.bans, tarpits, metrics, known),
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
        self.0.bans.treatments().chain([&self.0.blocked])
    }

    /// Whether a list or a ban is about accounts.
    pub(super) fn concerns_accounts(&self) -> bool {
        let lists = &self.0.lists;
        lists.allow.has_accounts() || lists.block.has_accounts() || self.0.bans.concern_accounts()
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

    /// The standing ban that keeps a request out; see [`PreparedBans::standing`].
    #[inline(always)]
    pub(super) fn standing(
        &self,
        request: &RequestAttributes<'_>,
        awaits_account: bool,
    ) -> Option<ActiveBan> {
        self.0.bans.standing(request, awaits_account)
    }

    /// Begins the check of a request; `None` if no ban has a subject in it.
    #[inline(always)]
    pub(super) fn check(
        &self,
        request: &RequestAttributes<'_>,
        backend: &Backend,
    ) -> Option<(Box<BanCheck>, Batch)> {
        self.0.bans.check(request, backend)
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
