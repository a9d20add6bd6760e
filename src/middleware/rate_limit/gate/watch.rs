//! What bans have to do with one request: whether one holds, and whether it is a strike.

use std::sync::Arc;

use http::StatusCode;
use smallvec::SmallVec;

use super::{Gate, PreparedBan, TreatmentContext};
use crate::limit::{Batch, BucketKey, Decision, Transaction};
use crate::middleware::BanPolicy;
use crate::middleware::decoy::Shadow;
use crate::middleware::rate_limit::background::Background;
use crate::middleware::rate_limit::plan::MissingValue;
use crate::middleware::rate_limit::settlement::Settling;
use crate::store::Outcome;
use crate::time::{Nanos, Timestamp};

/// A request, as far as bans care about it.
pub(in crate::middleware::rate_limit) struct BanCheck {
    gate: Gate,
    background: Background,
    route: Option<usize>,
    watched: Watched,
    /// The limit that denies the request for want of a value, unless a ban keeps it out.
    lack: Option<MissingValue>,
    /// The ban that would keep the request out, if it were acted upon.
    would_hold: Option<Arc<str>>,
    /// Strikes that are being counted, of bans that are acted upon.
    striking: Settling,
}

/// The subjects that bans have in a request.
type Watched = SmallVec<[BanSubject; 2]>;

pub(super) struct BanSubject {
    /// The index of the ban.
    ban: usize,
    subject: BucketKey,
    /// Whether the ban is acted upon.
    acts: bool,
    /// Whether a strike is out of the question: there was one, or the subject is banned already.
    is_done: bool,
}

/// The ban that keeps a request out.
pub(in crate::middleware::rate_limit) struct ActiveBan {
    gate: Gate,
    route: Option<usize>,
    ban: usize,
    pub(in crate::middleware::rate_limit) name: Arc<str>,
    /// What is left of it.
    retry_in: Nanos,
    /// When that was found out.
    pub(in crate::middleware::rate_limit) at: Timestamp,
}

impl ActiveBan {
    /// What the request gets.
    pub(in crate::middleware::rate_limit) fn treating(&self) -> Option<TreatmentContext<'_>> {
        Some(TreatmentContext {
            gate: &self.gate,
            sentence: &self.gate.ban(self.ban)?.sentence,
            route: self.route,
            retry_in: self.retry_in,
        })
    }
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
                check.kind.non_denying()
            };
            let suspect = BanSubject {
                ban,
                subject,
                acts,
                is_done: false,
            };
            (suspect, Transaction { kind, ..check })
        })
        .unzip()
}

impl BanCheck {
    pub(super) fn new(
        gate: Gate,
        background: Background,
        route: Option<usize>,
        watched: Watched,
    ) -> Self {
        Self {
            gate,
            background,
            route,
            watched,
            lack: None,
            would_hold: None,
            striking: Settling::new(),
        }
    }

    /// The ban that would keep the request out, if it were acted upon.
    pub(in crate::middleware::rate_limit) fn would_hold(&mut self) -> Option<Arc<str>> {
        self.would_hold.take()
    }

    /// The strikes that the response has to wait for, so that a ban which begins with one of them
    /// holds from the next request on.
    pub(in crate::middleware::rate_limit) fn striking(self) -> Settling {
        self.striking
    }

    /// A limit is to deny the request for want of a value.
    pub(in crate::middleware::rate_limit) fn lacks(&mut self, lack: MissingValue) {
        self.lack = Some(lack);
    }

    pub(in crate::middleware::rate_limit) fn take_lack(&mut self) -> Option<MissingValue> {
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

    /// The decoys that learn from a real answer to the request.
    pub(in crate::middleware::rate_limit) fn learning(&self) -> SmallVec<[Arc<Shadow>; 1]> {
        self.gate.learning(self.route)
    }

    /// The ban that keeps the request for this path out, by the first decisions of an outcome, which
    /// are taken off. Of several that hold, the first decides.
    pub(in crate::middleware::rate_limit) fn judge(
        &mut self,
        outcome: &mut Outcome,
        path: &str,
    ) -> Option<ActiveBan> {
        let count = self.watched.len().min(outcome.decisions.len());
        let decisions: SmallVec<[Option<Decision>; 3]> = outcome.decisions.drain(..count).collect();
        let mut held = None;
        for (suspect, decision) in self.watched.iter_mut().zip(decisions) {
            let Some((ban, decision)) = self.gate.ban(suspect.ban).zip(decision) else {
                continue;
            };
            if decision.fits() {
                continue;
            }
            suspect.is_done = true;
            ban.metrics.held(suspect.acts);
            let name = Arc::clone(ban.policy.ban.name());
            if !suspect.acts {
                self.would_hold.get_or_insert(name);
            } else if held.is_none() {
                held = Some(ActiveBan {
                    gate: self.gate.clone(),
                    route: self.route,
                    ban: suspect.ban,
                    name,
                    retry_in: decision.retry_in,
                    at: self.background.now(),
                });
            }
        }
        if held.is_none() {
            self.strike(|_, policy| policy.paths.matches(path));
        }
        held
    }

    /// These limits have denied the request.
    pub(in crate::middleware::rate_limit) fn denied_by<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l str> + Clone,
    ) {
        self.strike(|_, policy| policy.strikes_by(limits.clone()));
    }

    /// These limits would have denied the request, were they acted upon. Bans that are not acted
    /// upon either take that for a strike, or a dry run of both would tell of no ban.
    pub(in crate::middleware::rate_limit) fn would_be_denied_by<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l str> + Clone,
    ) {
        self.strike(|suspect, policy| !suspect.acts && policy.strikes_by(limits.clone()));
    }

    /// The response has this status.
    pub(in crate::middleware::rate_limit) fn answered(&mut self, status: StatusCode) {
        self.strike(|_, policy| policy.statuses.contains(status));
    }

    /// A request is one strike of a ban at the most.
    fn strike(&mut self, is_strike: impl Fn(&BanSubject, &BanPolicy) -> bool) {
        for suspect in self.watched.iter_mut().filter(|it| !it.is_done) {
            let ban = self.gate.ban(suspect.ban);
            if ban.is_some_and(|ban| is_strike(suspect, &ban.policy)) {
                suspect.is_done = true;
                let subject = suspect.subject.clone();
                let under_way = self.gate.strike(suspect.ban, subject, &self.background);
                self.striking.extend(under_way.filter(|_| suspect.acts));
            }
        }
    }
}
