//! The steps from the plan for a request to the result, without the request itself, and without
//! waiting for anything. `decide` takes them with requests that arrive, as the store replies, and
//! `simulation` with requests of the past, at once.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Decision, Transaction};
use weir_rules::RequestAttributes;
use weir_store::{DecisionSource, Leased, Outcome, StoreError, StoreFuture};
use weir_telemetry::Disposition;

use super::borrowing::{apply_wait, borrow};
use super::decisions::{Denial, QueriedLimits};
use super::deferred_charge::{DeferredCharge, DeferredCharges};
use super::delay::DelayedRequest;
use super::header_fields::HeaderForm;
use super::in_flight::InFlight;
use super::lease_request::{LeaseRequest, give_back, join, owed, take_off, undecided};
use super::plan::{MissingValue, StoreQuery};
use super::policy::{OnDenied, PreparedLimit, RoutePolicy};
use super::response_context::ResponseContext;
use super::spent::{Refund, Spent};
use crate::backend::Backend;
use crate::bans::{AccessControl, ActiveBan, BanCheck, TellingDenial};
use crate::rejection::retry_after;
use crate::route::RouteState;
use crate::{Shed, Verdict};

/// A request that bans and limits decide about.
pub(super) struct PendingDecision {
    pub(super) route: Arc<RouteState>,
    /// What the store is asked: about bans first, until it has replied, and about the limits of
    /// `queried` in their order.
    pub(super) batch: Batch,
    pub(super) queried: QueriedLimits,
    /// What is charged when the request is through; most requests leave nothing.
    charges: Vec<DeferredCharge>,
    /// The leases to ask for when the store has allowed the request; most requests need none.
    pub(super) leases: Option<Box<LeaseRequest>>,
    /// How long the request has waited for its turn.
    delay: Option<Duration>,
    /// What bans have to do with it, where there are any; their decisions come first.
    pub(super) bans: Option<Box<BanCheck>>,
    /// The limit that denies it for want of a value, unless a ban keeps it out.
    pub(super) missing: Option<Box<MissingValue>>,
    pub(super) arrived: Timestamp,
}

impl PendingDecision {
    /// One without anything to decide.
    #[inline(always)]
    pub(super) fn new(route: &Arc<RouteState>, arrived: Timestamp) -> Self {
        Self {
            route: Arc::clone(route),
            batch: Batch::new(),
            queried: QueriedLimits::default(),
            charges: Vec::new(),
            leases: None,
            delay: None,
            bans: None,
            missing: None,
            arrived,
        }
    }

    /// Plans what the store is asked: about bans first, so that of two denials that the
    /// process remembers the ban's answers. False where there is nothing to ask, and no decoy learns from
    /// the response.
    #[inline(always)]
    pub(super) fn plan(
        &mut self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
        (access, backend): (Option<&AccessControl>, &Backend),
        looks: bool,
    ) -> bool {
        let bans = access.and_then(|access| access.check(attributes, backend));
        self.missing = self.plan_limits(attributes, body_bytes, looks, |_| ());
        let asks = bans.is_some() || self.missing.is_some() || !self.queried.is_empty();
        if !asks && self.route.decoys().next().is_none() {
            return false;
        }
        if let Some((bans, checks)) = bans {
            self.batch.insert_many(0, checks);
            self.bans = Some(bans);
        }
        true
    }

    /// Plans what the store is asked about a request that is kept out, and has to look as if it
    /// were not: its limits, by buckets of those who are kept out.
    pub(super) fn plan_kept_out(
        &mut self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
    ) {
        let aside = |query: &mut StoreQuery<'_>| query.set_aside();
        drop(self.plan_limits(attributes, body_bytes, true, aside));
    }

    /// Plans what the limits are asked, changed by `change`: nothing if one lacks its value.
    #[inline(always)]
    fn plan_limits(
        &mut self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
        looks: bool,
        change: impl FnOnce(&mut StoreQuery<'_>),
    ) -> Option<Box<MissingValue>> {
        let mut query = StoreQuery {
            batch: &mut self.batch,
            claims: Vec::new(),
            queried: &mut self.queried,
            charges: &mut self.charges,
            looks,
        };
        if let Err(missing) = self.route.policy.plan(attributes, body_bytes, &mut query) {
            query.clear();
            return Some(missing);
        }
        change(&mut query);
        if !query.claims.is_empty() {
            self.leases = Some(Box::new(LeaseRequest {
                claims: query.claims.into(),
            }));
        }
        None
    }

    /// Asks the store.
    #[inline(always)]
    pub(super) fn ask(&self, backend: &Backend) -> StoreFuture<Outcome> {
        backend.admit(&self.batch, self.arrived, self.is_idle())
    }

    /// Whether no decision of the store would be acted upon.
    pub(super) fn is_idle(&self) -> bool {
        self.queried.never_deny() && self.bans.as_ref().is_none_or(|bans| bans.is_idle())
    }

    /// How many bans the store was asked about.
    pub(super) fn bans_asked(&self) -> usize {
        self.bans.as_ref().map_or(0, |bans| bans.len())
    }

    /// What the store decided. A dry run stops no request, whatever becomes of the store.
    #[inline(always)]
    pub(super) fn outcome(
        &self,
        answer: Result<Outcome, StoreError>,
    ) -> Result<Outcome, StoreError> {
        if answer.is_ok() || !self.is_idle() {
            return answer;
        }
        let leases = self.leases.as_ref();
        let limits = self.queried.limits.len() - leases.map_or(0, |leases| leases.claims.len());
        Ok(undecided(limits + self.bans_asked()))
    }

    /// The ban that keeps the request out. From now on the batch and the decisions are those of
    /// limits alone.
    pub(super) fn apply_bans(&mut self, outcome: &mut Outcome) -> Option<ActiveBan> {
        let bans = self.bans.as_mut()?;
        drop(self.batch.drain(..bans.len()));
        bans.apply(outcome)
    }

    /// Counts the bans that hold, and strikes by the path.
    pub(super) fn count_bans(&mut self, is_banned: bool, path: &str) {
        if let Some(bans) = &mut self.bans {
            bans.count(is_banned, path);
        }
    }

    /// The request's turn, if it was allowed and has to wait for it.
    pub(super) fn turn(
        &mut self,
        outcome: &mut Outcome,
        backend: &Backend,
    ) -> Option<DelayedRequest> {
        let policy = &self.route.policy;
        let delay = policy.delay.as_ref()?;
        // What could be lent is not left.
        apply_wait(&self.queried, outcome, Nanos::ZERO);
        if policy.denial(&self.queried, outcome).is_some() {
            return None;
        }
        let asked = (backend, self.arrived);
        borrow(delay, &self.batch, &self.queried, outcome, asked)
    }

    /// Goes on from when the request's turn has come.
    pub(super) fn has_waited(&mut self, outcome: &mut Outcome, waited: Duration) {
        apply_wait(&self.queried, outcome, waited.into());
        for limit in &mut self.queried.limits {
            limit.has_waited(waited.into());
        }
        self.delay = Some(waited);
        self.arrived = self.arrived + Nanos::from(waited);
    }

    /// Asks for the request's leases, if it needs any, and all other limits have allowed it.
    pub(super) fn lease(
        &self,
        outcome: &mut Outcome,
        backend: &Backend,
    ) -> Option<StoreFuture<Leased>> {
        let leases = self.leases.as_ref()?;
        if self.route.policy.denial(&self.queried, outcome).is_some() {
            // No lease was asked for.
            outcome.decisions.resize(self.queried.limits.len(), None);
            return None;
        }
        Some(leases.acquire(backend, self.arrived))
    }

    /// The leases that the request has, now that they are granted or denied.
    pub(super) fn leased(
        &self,
        answer: Result<Leased, StoreError>,
        outcome: &mut Outcome,
        backend: &Backend,
    ) -> Result<Option<InFlight>, StoreError> {
        let Some(leases) = &self.leases else {
            return Ok(None);
        };
        let (policy, queried) = (&self.route.policy, &self.queried);
        let until = |taken: &Transaction, decision: &Decision| self.owed_until(taken, decision);
        let leased = match answer {
            Ok(leased) => leased,
            Err(_) if queried.never_deny() => leases.undecided(),
            Err(error) => {
                give_back(&self.batch, queried, outcome, until, backend);
                return Err(error);
            }
        };
        join(outcome, &leased.outcome);
        if policy.denial(queried, outcome).is_some() {
            give_back(&self.batch, queried, outcome, until, backend);
        }
        Ok(leases.in_flight(policy, queried, self.batch.len(), leased))
    }

    /// What is charged later for the request.
    pub(super) fn charges(
        &mut self,
        outcome: &Outcome,
        backend: &Backend,
    ) -> Option<Arc<DeferredCharges>> {
        if self.charges.is_empty() {
            return None;
        }
        let mut charges = mem::take(&mut self.charges);
        for charge in &mut charges {
            let decision = charge.decision_in(outcome);
            let taken = decision.filter(|decision| charge.transaction.has_taken(decision));
            charge.owed_until =
                taken.map(|decision| self.owed_until(&charge.transaction, &decision));
        }
        DeferredCharges::new(&self.route, backend, charges, self.arrived, outcome)
    }

    /// Until when a cost is owed that was taken, by the decision about it. A wait is taken off what
    /// decisions say about buckets of GCRA, and not about windows.
    pub(super) fn owed_until(&self, taken: &Transaction, decision: &Decision) -> Timestamp {
        let since = match taken.is_windowed() {
            true => self.decided_at(),
            false => self.arrived,
        };
        since + decision.reset_in
    }

    /// What was decided, and by what.
    pub(super) fn verdict(&self, disposition: Disposition, outcome: &Outcome) -> Verdict {
        Verdict {
            decided_by: decided_by(outcome),
            decided_at: Some(self.decided_at()),
            ..Verdict::new(disposition)
        }
    }

    /// When it was decided: a request that has waited for its turn was decided before.
    fn decided_at(&self) -> Timestamp {
        match self.delay {
            Some(delay) => self.arrived.saturating_sub(delay.into()),
            None => self.arrived,
        }
    }

    /// The result for a request without a value that a limit must have, which may be a strike. As
    /// all results do, it takes what it needs of the state, which is not used again.
    pub(super) fn lacking(&mut self, missing: &MissingValue) -> ResponseContext {
        let verdict = Verdict {
            denied_by: Some(Arc::clone(&missing.limit)),
            decided_at: Some(self.decided_at()),
            ..Verdict::new(Disposition::Denied)
        };
        let mut bans = self.bans.take();
        if let Some(bans) = &mut bans {
            let denial = TellingDenial {
                wait: None,
                at: self.arrived,
            };
            bans.denied_by(std::iter::once(&*missing.limit), denial);
        }
        ResponseContext {
            bans,
            ..ResponseContext::new(verdict, None)
        }
    }

    /// The verdict about a request that limits deny, which may be a strike.
    #[inline(always)]
    pub(super) fn denied_by(&mut self, denial: &Denial<'_>, outcome: &Outcome) -> Verdict {
        if let Some(bans) = &mut self.bans {
            let told = telling(&self.route.policy, denial.told_wait(), self.arrived);
            bans.denied_by(denial.limits(), told);
        }
        Verdict {
            denied_by: Some(denial.limit()),
            in_flight: self.route.policy.in_flight(&self.queried, outcome),
            ..self.verdict(Disposition::Denied, outcome)
        }
    }

    /// The result for a request that limits deny.
    pub(super) fn denied(&mut self, denial: &Denial<'_>, outcome: Outcome) -> ResponseContext {
        let verdict = self.denied_by(denial, &outcome);
        ResponseContext {
            status: Some((mem::take(&mut self.queried), outcome)),
            bans: self.bans.take(),
            ..ResponseContext::new(verdict, Some(Arc::clone(&self.route)))
        }
    }

    /// Counts the decisions of its limits. A request that is shed counts for none.
    #[inline(always)]
    pub(super) fn count(&self, outcome: &Outcome) {
        let policy = &self.route.policy;
        policy.count(&self.queried, outcome, self.arrived);
    }

    /// What its limits get back if it is shed, or its client leaves before it has a slot.
    pub(super) fn refund(&self, outcome: &Outcome, backend: &Backend) -> Refund {
        let until = |taken: &Transaction, decision: &Decision| self.owed_until(taken, decision);
        Refund::new(owed(&self.batch, outcome, until), backend)
    }

    /// The same where the request asks for its slot later.
    pub(super) fn spent(&mut self, outcome: &Outcome, backend: &Backend) -> Spent {
        Spent {
            refund: self.refund(outcome, backend),
            queried: self.queried.clone(),
            outcome: outcome.clone(),
            arrived: self.arrived,
            batch: mem::take(&mut self.batch),
            charges: None,
        }
    }

    /// The result for a request that its limits allowed and that is shed: they have got back what
    /// they took, and it counts for no ban.
    pub(super) fn shed(&mut self, shed: Shed, mut outcome: Outcome) -> ResponseContext {
        take_off(&self.batch, &self.queried, &mut outcome);
        let verdict = Verdict {
            shed: Some(shed),
            ..self.verdict(Disposition::Shed, &outcome)
        };
        ResponseContext {
            status: Some((mem::take(&mut self.queried), outcome)),
            ..ResponseContext::new(verdict, Some(Arc::clone(&self.route)))
        }
    }

    /// The result for a request that is let through.
    #[inline(always)]
    pub(super) fn allowed(
        &mut self,
        outcome: Outcome,
        in_flight: Option<InFlight>,
        backend: &Backend,
    ) -> ResponseContext {
        let policy = &self.route.policy;
        let would_deny = policy.would_deny(&self.queried, &outcome);
        if let (Some(bans), Some(_)) = (&mut self.bans, &would_deny) {
            let wait = policy.would_wait(&self.queried, &outcome);
            let denial = telling(policy, wait, self.arrived);
            bans.would_be_denied_by(policy.would_denials(&self.queried, &outcome), denial);
        }
        let would_ban = self.bans.as_mut().and_then(|bans| bans.would_hold());
        let disposition = match outcome.source {
            DecisionSource::FailedOpen => Disposition::FailedOpen,
            _ if would_deny.is_some() || would_ban.is_some() => Disposition::WouldDeny,
            _ if self.delay.is_some() => Disposition::Delayed,
            _ if self.queried.is_empty() => Disposition::Unlimited,
            _ => Disposition::Allowed,
        };
        let verdict = Verdict {
            denied_by: would_deny,
            banned_by: would_ban,
            delay: self.delay,
            in_flight: policy.in_flight(&self.queried, &outcome),
            ..self.verdict(disposition, &outcome)
        };
        let charges = self.charges(&outcome, backend);
        ResponseContext {
            status: (!self.queried.is_empty()).then(|| (mem::take(&mut self.queried), outcome)),
            charges,
            bans: self.bans.take(),
            in_flight,
            ..ResponseContext::new(verdict, Some(Arc::clone(&self.route)))
        }
    }
}

/// A denial that tells its client this wait, or the seconds that the route says in its place. A decoy
/// tells none, nor does a denial for good.
fn telling(policy: &RoutePolicy<PreparedLimit>, wait: Nanos, at: Timestamp) -> TellingDenial {
    let OnDenied::Reject(rejection) = &policy.on_denied else {
        return TellingDenial { wait: None, at };
    };
    let written = rejection.headers.get(RETRY_AFTER);
    let written = written.and_then(|value| value.to_str().ok()?.parse().ok());
    let exact = || (wait != Nanos::NEVER).then_some(wait);
    let wait = match policy.header_forms.contains(HeaderForm::RetryAfterMs) {
        _ if written.is_some() => written.map(Nanos::from_secs),
        true => exact(),
        false => retry_after(wait).map(Nanos::from_secs),
    };
    TellingDenial { wait, at }
}

/// What decided in the store's place.
fn decided_by(outcome: &Outcome) -> Option<&'static str> {
    match outcome.source {
        DecisionSource::Prefetched => Some("prefetched"),
        DecisionSource::Remembered => Some("remembered"),
        DecisionSource::Local => Some("local"),
        DecisionSource::Store | DecisionSource::FailedOpen => None,
    }
}
