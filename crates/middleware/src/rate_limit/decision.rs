//! The decision about one request, from the top down in the order of its stages: it is planned,
//! the store decides, then the request waits for its turn, and for its places in flight, as far as
//! its route has any of these; at last there is a result, with what is charged later.
//!
//! Nothing here waits, or knows the request itself. A stage returns what comes [`Next`]. `pipeline`
//! goes through the stages with requests that arrive, as the store replies; `simulation` with
//! requests of the past, and with those to explain, at once; and `descriptors` with those of a call
//! of Envoy's.

use std::mem;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, BucketKey, Decision, Transaction};
use weir_rules::RequestAttributes;
use weir_store::{DecisionSource, Leased, Outcome, StoreError, StoreFuture};
use weir_telemetry::Disposition;

use super::borrowing::{apply_wait, borrow};
use super::decisions::{Denial, QueriedLimits};
use super::deferred_charge::{DeferredCharge, DeferredCharges, HeldCharges};
use super::delay::DelayedRequest;
use super::delay::told::ToldDelay;
use super::in_flight::InFlight;
use super::lease_request::{LeaseRequest, undecided};
use super::look_ahead::LookAhead;
use super::plan::{MissingValue, Purpose, StoreQuery};
use super::response_context::ResponseContext;
use super::spent::{Refund, Spent};
use crate::Verdict;
use crate::access::{AccessControl, ActiveBan, BanCheck, TellingDenial};
use crate::backend::{Backend, PendingTasks};
use crate::route::RouteState;

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
    missing: Option<Box<MissingValue>>,
    /// What the store is asked in the end, if it is only asked how things stand because the account
    /// is not known yet.
    look_ahead: Option<LookAhead>,
    /// When the request arrived, or when its turn came.
    pub(super) arrived: Timestamp,
}

/// What a decision needs to go on.
pub(super) enum Next {
    /// The request's turn: [`PendingDecision::has_waited`].
    Turn(Box<DelayedRequest>),
    /// A reply about places in flight: [`PendingDecision::has_places`].
    Places(StoreFuture<Leased>),
    /// Nothing more.
    Known(Conclusion),
}

/// What is known in the end.
pub(super) enum Conclusion {
    /// The request has to start again with its account.
    AccountNeeded,
    /// A ban keeps it out.
    KeptOut(ActiveBan),
    /// A limit must have a value that it lacks.
    Lacks(Box<MissingValue>),
    /// Nothing can decide.
    Undecidable,
    /// All limits have decided. The request is denied if one of them denies it, and else it has
    /// these places in flight.
    Decided(Option<InFlight>),
}

/// The stages, in their order.
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
            look_ahead: None,
            arrived,
        }
    }

    /// Plans what the store is asked: about bans first, so that of two denials that the process
    /// remembers the ban's answers. About a request that `awaits_account`, the store is asked how
    /// things stand. False where there is nothing to ask, and nothing learns from the response.
    #[inline(always)]
    pub(super) fn plan(
        &mut self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
        (access, backend): (Option<&AccessControl>, &Backend),
        awaits_account: bool,
    ) -> bool {
        let bans = access.and_then(|access| access.check(attributes, backend));
        let purpose = match awaits_account {
            true => Purpose::LookAhead,
            false => Purpose::Decide,
        };
        self.missing = self.plan_limits(attributes, body_bytes, purpose, |_| ());
        let asks = bans.is_some() || self.missing.is_some() || !self.queried.is_empty();
        if !asks && !self.route.learns_from_all() {
            return false;
        }
        if let Some((bans, checks)) = bans {
            self.batch.insert_many(0, checks);
            self.bans = Some(bans);
        }
        if awaits_account {
            let bans = self.bans_asked();
            self.look_ahead = Some(LookAhead::new(&mut self.batch, bans));
        }
        true
    }

    /// Plans what the store is asked about a request that is kept out, and has to look as if it
    /// were not: its limits, by buckets of those who are kept out. False where there are none.
    pub(super) fn plan_kept_out(
        &mut self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
    ) -> bool {
        let aside = |query: &mut StoreQuery<'_>| query.set_aside();
        drop(self.plan_limits(attributes, body_bytes, Purpose::KeptOut, aside));
        !self.queried.is_empty()
    }

    /// Counts the subjects of a request whose limits are not asked.
    pub(super) fn count_subjects(
        &mut self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
    ) {
        let unasked = |query: &mut StoreQuery<'_>| query.clear();
        drop(self.plan_limits(attributes, body_bytes, Purpose::Decide, unasked));
    }

    /// Plans what the limits are asked, changed by `change`: nothing if one lacks its value.
    #[inline(always)]
    fn plan_limits(
        &mut self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
        purpose: Purpose,
        change: impl FnOnce(&mut StoreQuery<'_>),
    ) -> Option<Box<MissingValue>> {
        let mut query = StoreQuery {
            batch: &mut self.batch,
            claims: Vec::new(),
            queried: &mut self.queried,
            charges: &mut self.charges,
            purpose,
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

    /// The store has decided, or failed, about a request with this path.
    #[inline(always)]
    pub(super) fn answered(
        &mut self,
        answer: Result<Outcome, StoreError>,
        path: &str,
        backend: &Backend,
    ) -> Next {
        let Ok(outcome) = self.outcome(answer) else {
            return Next::Known(Conclusion::Undecidable);
        };
        let ban = self.record(outcome);
        if let Some(look_ahead) = self.look_ahead.take() {
            if !self.is_refused(ban.as_ref()) {
                return Next::Known(Conclusion::AccountNeeded);
            }
            let (policy, now) = (&self.route.policy, self.arrived);
            look_ahead.count_refused(policy, &mut self.queried, now, backend);
        }
        if let Some(bans) = &mut self.bans {
            bans.count(ban.is_some(), path);
        }
        if let Some(ban) = ban {
            return Next::Known(Conclusion::KeptOut(ban));
        }
        if let Some(missing) = self.missing.take() {
            return Next::Known(Conclusion::Lacks(missing));
        }
        match self.turn(backend) {
            Some(turn) => Next::Turn(turn),
            None => self.lease(backend),
        }
    }

    /// What the store decided. A dry run stops no request, whatever becomes of the store.
    #[inline(always)]
    fn outcome(&self, answer: Result<Outcome, StoreError>) -> Result<Outcome, StoreError> {
        if answer.is_ok() || !self.is_idle() {
            return answer;
        }
        Ok(undecided(self.batch.len()))
    }

    /// Records the decisions. From now on the batch is that of limits alone. Returns the ban that
    /// keeps the request out.
    #[inline(always)]
    fn record(&mut self, mut outcome: Outcome) -> Option<ActiveBan> {
        let ban = self.bans.as_mut().and_then(|bans| {
            drop(self.batch.drain(..bans.len()));
            bans.apply(&mut outcome)
        });
        self.queried.record(0, &outcome);
        ban
    }

    /// Whether the request is refused honestly, whatever its account. An invented answer takes as
    /// long as a real one.
    fn is_refused(&self, ban: Option<&ActiveBan>) -> bool {
        let policy = &self.route.policy;
        match ban {
            Some(ban) => !ban.treatment.looks_real(),
            None if policy.on_denied.looks_real() => false,
            None => self.missing.is_some() || policy.denial(&self.queried).is_some(),
        }
    }

    /// The request's turn, if it was allowed and has to wait for it.
    fn turn(&mut self, backend: &Backend) -> Option<Box<DelayedRequest>> {
        let policy = &self.route.policy;
        let delay = policy.delay.as_ref()?;
        // What could be lent is not left.
        apply_wait(&mut self.queried, Nanos::ZERO);
        if policy.denial(&self.queried).is_some() {
            return None;
        }
        let asked = (backend, self.arrived);
        borrow(delay, &self.batch, &mut self.queried, asked).map(Box::new)
    }

    /// The request's turn has come.
    pub(super) fn has_waited(&mut self, waited: Duration, backend: &Backend) -> Next {
        apply_wait(&mut self.queried, waited.into());
        for limit in &mut self.queried.limits {
            limit.has_waited(waited.into());
        }
        self.delay = Some(waited);
        self.arrived = self.arrived + Nanos::from(waited);
        self.lease(backend)
    }

    /// Asks for the request's places in flight, if it needs any, and all other limits have allowed
    /// it.
    #[inline(always)]
    fn lease(&self, backend: &Backend) -> Next {
        match &self.leases {
            Some(leases) if self.route.policy.denial(&self.queried).is_none() => {
                Next::Places(leases.acquire(backend, self.arrived))
            }
            _ => Next::Known(Conclusion::Decided(None)),
        }
    }

    /// The request's places in flight are granted or denied. Where it does not get them, the other
    /// limits get back what they took.
    pub(super) fn has_places(
        &mut self,
        answer: Result<Leased, StoreError>,
        backend: &Backend,
    ) -> Next {
        let Some(leases) = &self.leases else {
            return Next::Known(Conclusion::Decided(None));
        };
        let others = self.batch.len();
        let leased = match answer {
            Ok(leased) => leased,
            Err(_) if self.queried.never_deny() => leases.undecided(),
            Err(_) => {
                drop(self.refund(backend));
                return Next::Known(Conclusion::Undecidable);
            }
        };
        self.queried.record(others, &leased.outcome);
        if self.route.policy.denial(&self.queried).is_some() {
            drop(self.refund(backend));
            self.queried.take_off(&self.batch);
        }
        let places = leases.in_flight(&self.route.policy, &self.queried, others, leased);
        Next::Known(Conclusion::Decided(places))
    }

    /// What is charged later for a request that is let through.
    #[inline(always)]
    pub(super) fn charges(&mut self, backend: &Backend) -> Option<Arc<DeferredCharges>> {
        if self.charges.is_empty() {
            return None;
        }
        let mut charges = mem::take(&mut self.charges);
        for charge in &mut charges {
            let decision = charge.decision_in(&self.queried);
            let taken = decision.filter(|decision| charge.transaction.has_taken(decision));
            charge.owed_until =
                taken.map(|decision| self.owed_until(&charge.transaction, &decision));
        }
        DeferredCharges::new(&self.route, backend, charges, self.arrived, &self.queried)
    }

    /// Counts the decisions of its limits. A request that is shed counts for none.
    #[inline(always)]
    pub(super) fn count(&self) {
        self.route.policy.count(&self.queried, self.arrived);
    }
}

/// The results. Each takes what it needs of the decision, which is not used again.
impl PendingDecision {
    /// For a request that is let through, with what is charged for it later. In a box at once, as it
    /// is large.
    #[inline(always)]
    pub(super) fn allowed(
        &mut self,
        in_flight: Option<InFlight>,
        charges: Option<Arc<DeferredCharges>>,
    ) -> Box<ResponseContext> {
        let (policy, queried) = (&self.route.policy, &self.queried);
        let would_deny = policy.would_deny(queried);
        if let (Some(bans), Some(_)) = (&mut self.bans, &would_deny) {
            let wait = policy.would_wait(queried);
            let denial = TellingDenial {
                wait: policy.told_wait(wait),
                at: self.arrived,
            };
            bans.would_be_denied_by(policy.would_denials(queried), denial);
        }
        let would_ban = self.bans.as_mut().and_then(|bans| bans.would_hold());
        let disposition = match queried.source {
            DecisionSource::FailedOpen => Disposition::FailedOpen,
            _ if would_deny.is_some() || would_ban.is_some() => Disposition::WouldDeny,
            _ if self.delay.is_some() => Disposition::Delayed,
            _ if queried.is_empty() => Disposition::Unlimited,
            _ => Disposition::Allowed,
        };
        let verdict = Verdict {
            denied_by: would_deny,
            banned_by: would_ban,
            delay: self.delay,
            in_flight: policy.in_flight(queried),
            ..self.verdict(disposition)
        };
        let route = Some(Arc::clone(&self.route));
        let mut context = Box::new(ResponseContext::new(verdict, route));
        context.hold(charges.map(HeldCharges::new));
        context.hold(self.bans.take());
        if !self.queried.is_empty() {
            let status = context.status.get_or_insert_default();
            mem::swap(status, &mut self.queried);
        }
        context.in_flight = in_flight;
        context
    }

    /// What tells the client of a request that goes on how long it was delayed.
    pub(super) fn told_delay(&self) -> Option<Box<ToldDelay>> {
        let delay = self.route.policy.delay.as_ref();
        ToldDelay::new(delay?, self.delay?)
    }

    /// For a request that limits deny.
    pub(super) fn denied(&mut self, denial: &Denial<'_>) -> ResponseContext {
        let verdict = self.denied_by(denial);
        let mut context = self.status(verdict);
        context.hold(self.bans.take());
        context
    }

    /// The verdict about a request that limits deny, which may be a strike.
    #[inline(always)]
    pub(super) fn denied_by(&mut self, denial: &Denial<'_>) -> Verdict {
        if let Some(bans) = &mut self.bans {
            let told = TellingDenial {
                wait: self.route.policy.told_wait(denial.told_wait()),
                at: self.arrived,
            };
            bans.denied_by(denial.limits(), told);
        }
        Verdict {
            denied_by: Some(denial.limit()),
            in_flight: self.route.policy.in_flight(&self.queried),
            ..self.verdict(Disposition::Denied)
        }
    }

    /// What the response to a request that limits deny waits for.
    #[inline(always)]
    pub(super) fn tasks_of_denial(&mut self) -> PendingTasks {
        let bans = self.bans.take();
        bans.map_or_else(PendingTasks::new, |mut bans| bans.striking())
    }

    /// For a request without a value that a limit must have, which may be a strike.
    pub(super) fn lacking(&mut self, missing: &MissingValue) -> ResponseContext {
        let verdict = Verdict {
            denied_by: Some(Arc::clone(&missing.limit)),
            decided_at: Some(self.decided_at()),
            ..Verdict::new(Disposition::Denied)
        };
        if let Some(bans) = &mut self.bans {
            let denial = TellingDenial {
                wait: None,
                at: self.arrived,
            };
            bans.denied_by(std::iter::once(&*missing.limit), denial);
        }
        let mut context = ResponseContext::new(verdict, None);
        context.hold(self.bans.take());
        context
    }

    /// For a request that limits allowed and that is refused all the same. They have got back what
    /// they took, and it counts for no ban.
    pub(super) fn refunded(&mut self, verdict: Verdict) -> ResponseContext {
        self.queried.take_off(&self.batch);
        self.status(verdict)
    }

    /// With this verdict, and where the client stands.
    pub(super) fn status(&mut self, verdict: Verdict) -> ResponseContext {
        ResponseContext {
            status: Some(mem::take(&mut self.queried)),
            ..ResponseContext::new(verdict, Some(Arc::clone(&self.route)))
        }
    }

    /// What was decided, and by what.
    pub(super) fn verdict(&self, disposition: Disposition) -> Verdict {
        Verdict {
            decided_by: self.queried.decided_by(),
            decided_at: Some(self.decided_at()),
            ..Verdict::new(disposition)
        }
    }
}

/// What the stages share.
impl PendingDecision {
    /// What each limit was asked, in the order of what they decided: the bucket, and what is taken.
    pub(super) fn asked(&self) -> impl Iterator<Item = (&BucketKey, NonZeroU64)> {
        let batch = self.batch.iter();
        let of_limits = batch.map(|transaction| (&transaction.key, transaction.cost));
        let claims = self.leases.iter().flat_map(|leases| &leases.claims);
        of_limits.chain(claims.map(|claim| (&claim.key, NonZeroU64::MIN)))
    }

    /// Whether no decision of the store would be acted upon.
    fn is_idle(&self) -> bool {
        self.queried.never_deny() && self.bans.as_ref().is_none_or(|bans| bans.is_idle())
    }

    /// How many bans the store is asked about.
    fn bans_asked(&self) -> usize {
        self.bans.as_ref().map_or(0, |bans| bans.len())
    }

    /// When it was decided: a request that has waited for its turn was decided before.
    fn decided_at(&self) -> Timestamp {
        match self.delay {
            Some(delay) => self.arrived.saturating_sub(delay.into()),
            None => self.arrived,
        }
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

    /// What its limits get back if it goes no further.
    pub(super) fn refund(&self, backend: &Backend) -> Refund {
        let until = |taken: &Transaction, decision: &Decision| self.owed_until(taken, decision);
        Refund::new(&self.batch, &self.queried, until, backend)
    }

    /// The same for a request that may be refused when it has been forwarded.
    pub(super) fn spent(&mut self, backend: &Backend) -> Spent {
        Spent {
            refund: self.refund(backend),
            queried: self.queried.clone(),
            arrived: self.arrived,
            batch: mem::take(&mut self.batch),
            charges: None,
        }
    }
}
