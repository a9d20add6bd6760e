//! What bans have to do with one request: whether one holds, and whether it is a strike.

use std::sync::Arc;

use http::StatusCode;
use smallvec::SmallVec;

use super::{Gate, PreparedBan};
use crate::limit::{Batch, BucketKey, Decision, Transaction};
use crate::middleware::BanPolicy;
use crate::middleware::decoy::Shadow;
use crate::middleware::rate_limit::background::Background;
use crate::middleware::rate_limit::plan::Lack;
use crate::store::Outcome;

/// A request, as far as bans care about it.
pub(in crate::middleware::rate_limit) struct Watch {
    gate: Gate,
    background: Background,
    route: usize,
    watched: Watched,
    /// The limit that denies the request for want of a value, unless a ban keeps it out.
    lack: Option<Lack>,
}

/// The subjects that bans have in a request.
type Watched = SmallVec<[Suspect; 2]>;

pub(super) struct Suspect {
    /// The index of the ban.
    ban: usize,
    subject: BucketKey,
    /// Whether the ban is acted upon.
    acts: bool,
    /// Whether a strike is out of the question: there was one, or the subject is banned already.
    is_done: bool,
}

/// What bans say about a request.
pub(in crate::middleware::rate_limit) enum Judgement {
    /// None holds.
    Free,
    /// This one would keep it out, if it were acted upon.
    WouldHold(usize),
    /// This one keeps it out, until as long as the decision says.
    Held(usize, Decision),
}

/// The subjects that bans have in a request, and what is to be asked about each.
pub(super) fn watched<'b>(
    found: impl Iterator<Item = (usize, &'b PreparedBan, BucketKey)>,
) -> (Watched, Batch) {
    found
        .map(|(ban, prepared, subject)| {
            let policy = &prepared.policy;
            let check = policy.ban.check(&subject);
            let acts = policy.enforcement.acts_on(&check.key);
            let kind = if acts {
                check.kind
            } else {
                check.kind.undenying()
            };
            let suspect = Suspect {
                ban,
                subject,
                acts,
                is_done: false,
            };
            (suspect, Transaction { kind, ..check })
        })
        .unzip()
}

impl Watch {
    pub(super) fn new(gate: Gate, background: Background, route: usize, watched: Watched) -> Self {
        Self {
            gate,
            background,
            route,
            watched,
            lack: None,
        }
    }

    /// A limit is to deny the request for want of a value.
    pub(in crate::middleware::rate_limit) fn lacks(&mut self, lack: Lack) {
        self.lack = Some(lack);
    }

    pub(in crate::middleware::rate_limit) fn take_lack(&mut self) -> Option<Lack> {
        self.lack.take()
    }

    /// How many decisions of a batch are about bans; they come before all others.
    pub(in crate::middleware::rate_limit) fn len(&self) -> usize {
        self.watched.len()
    }

    /// Whether no ban would be acted upon.
    pub(in crate::middleware::rate_limit) fn is_idle(&self) -> bool {
        self.watched.iter().all(|it| !it.acts)
    }

    pub(in crate::middleware::rate_limit) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(in crate::middleware::rate_limit) fn route(&self) -> usize {
        self.route
    }

    /// The decoys that learn from a real answer to the request.
    pub(in crate::middleware::rate_limit) fn learning(&self) -> SmallVec<[Arc<Shadow>; 1]> {
        self.gate.learning(self.route)
    }

    /// Judges by the first decisions of an outcome, which it takes off. Of several bans that hold, the
    /// first decides.
    pub(in crate::middleware::rate_limit) fn judge(&mut self, outcome: &mut Outcome) -> Judgement {
        let count = self.watched.len().min(outcome.decisions.len());
        let decisions: SmallVec<[Option<Decision>; 3]> = outcome.decisions.drain(..count).collect();
        let mut judgement = Judgement::Free;
        for (suspect, decision) in self.watched.iter_mut().zip(decisions) {
            let Some(decision) = decision.filter(|decision| !decision.fits()) else {
                continue;
            };
            suspect.is_done = true;
            if let Some(ban) = self.gate.ban(suspect.ban) {
                ban.metrics.held(suspect.acts);
            }
            judgement = match judgement {
                Judgement::Held(..) => judgement,
                _ if suspect.acts => Judgement::Held(suspect.ban, decision),
                Judgement::Free => Judgement::WouldHold(suspect.ban),
                Judgement::WouldHold(_) => judgement,
            };
        }
        judgement
    }

    /// The request asks for this path.
    pub(in crate::middleware::rate_limit) fn asks_for(&mut self, path: &str) {
        self.strike(|policy| policy.paths.matches(path));
    }

    /// These limits have denied the request.
    pub(in crate::middleware::rate_limit) fn denied_by<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l str> + Clone,
    ) {
        self.strike(|policy| {
            let mut limits = limits.clone();
            limits.any(|limit| policy.limits.iter().any(|it| **it == *limit))
        });
    }

    /// The response has this status. Tells whether a strike is under way at the store.
    pub(in crate::middleware::rate_limit) fn answered(&mut self, status: StatusCode) -> bool {
        self.strike(|policy| policy.statuses.contains(status))
    }

    /// A request is one strike of a ban at the most.
    fn strike(&mut self, is_strike: impl Fn(&BanPolicy) -> bool) -> bool {
        let mut under_way = false;
        for suspect in self.watched.iter_mut().filter(|it| !it.is_done) {
            let ban = self.gate.ban(suspect.ban);
            if ban.is_some_and(|ban| is_strike(&ban.policy)) {
                suspect.is_done = true;
                let subject = suspect.subject.clone();
                under_way |= self.gate.strike(suspect.ban, subject, &self.background);
            }
        }
        under_way
    }
}
