//! Keeps out who is banned or blocked, and lets through who is allowed.

mod sentence;
mod strike;
mod treat;
mod watch;

use std::sync::Arc;

use http::Extensions;
use smallvec::SmallVec;

pub(super) use self::sentence::PreparedTreatment;
pub(super) use self::treat::{TreatmentContext, treat};
pub(super) use self::watch::{ActiveBan, BanCheck};
use super::background::Background;
use super::plan::Prepared;
use super::{HeaderForms, OnDenied, Rejection, RoutePolicy, reject};
use crate::limit::Batch;
use crate::middleware::decoy::Shadow;
use crate::middleware::{BanPolicy, ClientIdentity, TarpitSlots, Treatment};
use crate::rules::{Access, AccessLists, RequestAttributes};
use crate::telemetry::{BanMetrics, KeptOut, Metrics};

/// The name of the block list, where a ban would have one.
const BLOCK: &str = "";

/// Who is kept out, and who is not.
#[derive(Clone, Debug)]
pub struct GateSettings {
    /// Who is let through in any case, and who in no case.
    pub access: AccessLists,
    /// What the blocked get.
    pub blocked: Treatment,
    /// Bans. Of several that hold, the first says what the banned gets.
    pub bans: Vec<BanPolicy>,
}

impl GateSettings {
    /// Whether anybody is diverted to another upstream.
    pub fn diverts(&self) -> bool {
        let of_bans = self.bans.iter().map(|ban| &ban.treatment);
        let mut all = of_bans.chain([&self.blocked]);
        all.any(|treatment| matches!(treatment, Treatment::Divert(_)))
    }
}

/// Keeps out who is banned or blocked, on every route. Clones share it.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    access: AccessLists,
    blocked: PreparedTreatment,
    bans: Vec<PreparedBan>,
    /// What holds for requests without a route: no limit, but bans.
    unrouted: Prepared,
    pit: TarpitSlots,
    metrics: KeptOut,
}

/// A ban with all that can be prepared at load time.
struct PreparedBan {
    policy: BanPolicy,
    sentence: PreparedTreatment,
    metrics: BanMetrics,
}

impl Gate {
    /// A gate before so many routes, whose tarpits are `pit`.
    pub fn new(settings: GateSettings, routes: usize, pit: TarpitSlots, metrics: &Metrics) -> Self {
        let banned = |policy: BanPolicy| PreparedBan {
            sentence: PreparedTreatment::new(policy.treatment.clone(), routes, reject::BANNED),
            metrics: metrics.kept_out().ban(policy.ban.name()),
            policy,
        };
        let unrouted = RoutePolicy {
            name: "-".into(),
            limits: Vec::new(),
            on_denied: OnDenied::Reject(Rejection::default()),
            headers: HeaderForms::NONE,
            cors: None,
        };
        Self(Arc::new(Inner {
            access: settings.access,
            blocked: PreparedTreatment::new(settings.blocked, routes, reject::BLOCKED),
            bans: settings.bans.into_iter().map(banned).collect(),
            unrouted: Prepared::new(unrouted, metrics),
            pit,
            metrics: metrics.kept_out().clone(),
        }))
    }

    /// Whether requests of who is on no list matter: they may be banned, or teach a decoy.
    pub(super) fn watches(&self) -> bool {
        !self.0.bans.is_empty() || !self.0.blocked.shadows().is_empty()
    }

    /// Whether everybody is let through.
    pub(super) fn is_open(&self) -> bool {
        self.0.access.is_empty() && self.0.bans.is_empty()
    }

    /// The decoys of the banned, each with its ban's name and its route's place among the routes.
    pub fn shadows(&self) -> impl Iterator<Item = (&str, usize, &Shadow)> {
        let of_bans = self.0.bans.iter();
        let of_bans = of_bans.map(|ban| (&**ban.policy.ban.name(), &ban.sentence));
        let all = of_bans.chain([(BLOCK, &self.0.blocked)]);
        all.flat_map(|(name, sentence)| {
            let shadows = sentence.shadows().iter().enumerate();
            shadows.map(move |(route, shadow)| (name, route, &**shadow))
        })
    }

    /// What the lists say of who sent a request.
    pub(super) fn access(&self, extensions: &Extensions) -> Access {
        match extensions.get::<ClientIdentity>() {
            Some(sender) => {
                let address = sender.client.address;
                let account = sender.account.as_ref().map(|account| account.id);
                self.0.access.access(address, account)
            }
            None => Access::Unlisted,
        }
    }

    /// What holds for requests without a route.
    pub(super) fn unrouted(&self) -> &Prepared {
        &self.0.unrouted
    }

    /// Counts a request of who is blocked, and says what it gets.
    pub(super) fn blocked(&self) -> &PreparedTreatment {
        self.0.metrics.blocked();
        &self.0.blocked
    }

    /// The decoys that learn from real answers of a route.
    pub(super) fn learning(&self, route: Option<usize>) -> SmallVec<[Arc<Shadow>; 1]> {
        self.shadows_of(route).cloned().collect()
    }

    fn shadows_of(&self, route: Option<usize>) -> impl Iterator<Item = &Arc<Shadow>> {
        let of_bans = self.0.bans.iter().map(|ban| &ban.sentence);
        let all = of_bans.chain([&self.0.blocked]);
        all.filter_map(move |sentence| sentence.shadow(route))
    }

    /// What the gate has to do with a request, and what is to be asked about bans; none where no ban
    /// has a subject in it, and no decoy can learn from its answer.
    pub(super) fn watch(
        &self,
        facts: &RequestAttributes<'_>,
        route: Option<usize>,
        background: &Background,
    ) -> Option<(Box<BanCheck>, Batch)> {
        let bans = self.0.bans.iter().enumerate();
        let found =
            bans.filter_map(|(index, ban)| Some((index, ban, ban.policy.ban.subject(facts)?)));
        let (watched, checks) = watch::watched(found);
        let watch = || BanCheck::new(self.clone(), background.clone(), route, watched);
        let matters = !checks.is_empty() || self.shadows_of(route).next().is_some();
        matters.then(|| (Box::new(watch()), checks))
    }

    fn ban(&self, index: usize) -> Option<&PreparedBan> {
        self.0.bans.get(index)
    }

    /// Where requests are held.
    pub(super) fn pit(&self) -> &TarpitSlots {
        &self.0.pit
    }
}

#[cfg(test)]
mod tests;
