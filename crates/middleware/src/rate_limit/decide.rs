//! A request's way from the lists to what becomes of it: `start`, `ask`, `decided`, `turn` where
//! requests are delayed, `leased`, `conclude`, then `forward` or `deny`.
//!
//! Where the account is needed, and only a password that nobody has verified yet names it, what needs
//! no account is looked at first, and nothing is taken. The password of a request that is refused by
//! that is not verified; any other request starts again with its account ([`learn`](RateLimit::learn)).
//!
//! The memory store's answer is there when it is asked for, and all of this then happens within the
//! call of the layer. Another store's answer is waited for, in a box.

use std::sync::Arc;
use std::time::Duration;

use http::header::ACCEPT_ENCODING;
use http::{Request, Response, StatusCode};
use tokio::time::Instant;
use weir_http::problem::Problem;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Transaction};
use weir_rules::{Access, Captures};
use weir_runtime::turn;
use weir_store::{DecisionSource, Leased, Outcome, StoreError, StoreFuture};
use weir_telemetry::Disposition;

use super::decisions::{Denial, QueriedLimits};
use super::deferred_charge::{DeferredCharge, DeferredCharges};
use super::delay::{Turn, at_its_turn};
use super::in_flight::{InFlight, LeaseRequest, join, undecided};
use super::plan::{MissingValue, StoreQuery, attributes};
use super::policy::OnDenied;
use super::response_context::{DecoySample, Metered, ResponseContext};
use super::{Denied, LimitedService, RateLimit, RequestBody, State};
use crate::backend::{Backend, PendingTasks};
use crate::bans::{ActiveBan, BanCheck, PreparedTreatment, TreatmentAnswer};
use crate::decoy::Shadow;
use crate::identify::UnverifiedAccount;
use crate::rejection::{self, Rejection};
use crate::route::{RouteState, Routed};
use crate::{ClientIdentity, RequestContext, ResponseBody, Verdict};

impl<S> RateLimit<S> {
    /// Decides about a request, by the lists first.
    #[inline(always)]
    pub(super) fn start<B: RequestBody>(
        &mut self,
        request: Request<B>,
    ) -> State<S::Future, S::ResponseBody>
    where
        S: LimitedService<B>,
    {
        let control = self.settings.access.as_ref();
        let access = control.map(|control| (control, control.access(request.extensions())));
        match access {
            Some((control, _)) if control.allows_accounts() && unverified(&request).is_some() => {
                self.learn(request)
            }
            None | Some((_, Access::Unlisted)) => self.ask(request),
            Some((_, Access::Allowed(_))) => self.pass(request, Some("allow")),
            Some((control, Access::Blocked(_))) => {
                let treatment = control.blocked();
                if self.is_learned_for(treatment, &request) {
                    return self.learn(request);
                }
                control.count_blocked();
                let kept_out = KeptOut {
                    treatment: Arc::clone(treatment),
                    retry_in: Nanos::NEVER,
                    verdict: Verdict {
                        listed: Some("block"),
                        ..Verdict::new(Disposition::Denied)
                    },
                };
                self.keep_out(request, kept_out)
            }
        }
    }

    /// Verifies the password of a request, and starts again with its account.
    #[cold]
    fn learn<B: RequestBody>(
        &mut self,
        mut request: Request<B>,
    ) -> State<S::Future, S::ResponseBody>
    where
        S: LimitedService<B>,
    {
        let unverified = RequestContext::of(request.extensions_mut())
            .unverified
            .take();
        let Some(unverified) = unverified else {
            return self.start_again(request);
        };
        let clone = self.clone();
        let mut ready = std::mem::replace(self, clone);
        State::Waiting {
            decision: Box::pin(async move {
                match unverified.learn(&mut request).await {
                    true => ready.start_again(request),
                    false => unavailable(rejection::unverified(), None),
                }
            }),
        }
    }

    #[cold]
    fn start_again<B: RequestBody>(
        &mut self,
        request: Request<B>,
    ) -> State<S::Future, S::ResponseBody>
    where
        S: LimitedService<B>,
    {
        self.start(request)
    }

    /// Whether the account of a request has to be learned before the request goes on.
    fn needs_account<B>(&self, request: &Request<B>) -> bool {
        if !self.settings.verifies_passwords {
            return false;
        }
        let access = self.settings.access.as_ref();
        let route = || self.settings.route_or_none(request.extensions());
        unverified(request).is_some() && route().needs_account(access)
    }

    /// Whether the account has to be learned before a client gets this. An invented answer takes as
    /// long as a real one, and so tells no client that it is banned.
    fn is_learned_for<B>(&self, treatment: &PreparedTreatment, request: &Request<B>) -> bool {
        treatment.looks_real() && self.needs_account(request)
    }

    /// Forwards a request that no limit applies to.
    pub(super) fn pass<B: RequestBody>(
        &mut self,
        request: Request<B>,
        listed: Option<&'static str>,
    ) -> State<S::Future, S::ResponseBody>
    where
        S: LimitedService<B>,
    {
        if self.needs_account(&request) {
            return self.learn(request);
        }
        let route = self.settings.route_or_none(request.extensions());
        let conceals = route.conceals().then(|| Arc::clone(route));
        let mut context = ResponseContext::of(Disposition::Unlimited, conceals);
        context.verdict.listed = listed;
        State::Forwarding {
            future: self.inner.call(request.map(Metered::unmetered)),
            context: Box::new(context),
        }
    }

    /// Treats a request that is kept out. If its answer has to look real, the limits of its route count
    /// it as others, by buckets that only those have who are kept out, and deny nothing.
    #[cold]
    fn keep_out<B: RequestBody>(
        &mut self,
        request: Request<B>,
        kept_out: KeptOut,
    ) -> State<S::Future, S::ResponseBody>
    where
        S: LimitedService<B>,
    {
        let backend = &self.settings.backend;
        let routed = RequestContext::routed(request.extensions());
        let route = Arc::clone(self.settings.route_of(routed));
        let now = backend.now();
        let mut query = StoreQuery::new(true);
        if kept_out.treatment.looks_real() {
            let no_captures = Captures::default();
            let captures = routed.map_or(&no_captures, |routed| &routed.captures);
            let attributes = attributes(&request, route.name(), captures, now);
            let planned = route.policy.plan(&request, &attributes, &mut query);
            if planned.is_err() {
                query = StoreQuery::new(true);
            }
        }
        if query.queried.is_empty() {
            let of_route = Some(Arc::clone(&route));
            let context = ResponseContext::of(Disposition::Denied, of_route);
            return kept_out.treat(&mut self.inner, request, &route, context);
        }
        query.set_aside();
        let (mut undecided, batch) = Undecided::of(&route, request, query, now);
        undecided.delayed = None;
        undecided.refusal = Some(Box::new(Refusal::KeptOut(kept_out)));
        let answer = backend.admit(batch, now, undecided.is_idle());
        self.when_answered(answer, undecided, Undecided::decided)
    }

    /// Asks the store about a request, about bans first: one that is remembered has to answer
    /// before another denial that is.
    #[inline(always)]
    fn ask<B: RequestBody>(&mut self, request: Request<B>) -> State<S::Future, S::ResponseBody>
    where
        S: LimitedService<B>,
    {
        let settings = &self.settings;
        let backend = &settings.backend;
        let routed = RequestContext::routed(request.extensions());
        let route = settings.route_of(routed);
        if settings.access.is_none() && !route.is_limited() {
            return self.pass(request, None);
        }
        let now = backend.now();
        let no_captures = Captures::default();
        let captures = routed.map_or(&no_captures, |routed| &routed.captures);
        let attributes = attributes(&request, route.name(), captures, now);
        let is_unknown = attributes.client == ClientIdentity::UNKNOWN;
        if is_unknown && route.counts_addresses && !settings.shares_unknown {
            return unidentified();
        }
        let access = settings.access.as_ref();
        let looks = self.needs_account(&request);
        let standing = access.and_then(|access| access.standing(&attributes, now, looks));
        if let Some(ban) = standing {
            if self.is_learned_for(&ban.treatment, &request) {
                return self.learn(request);
            }
            let kept_out = KeptOut {
                treatment: ban.treatment,
                retry_in: ban.retry_in,
                verdict: Verdict {
                    banned_by: Some(ban.name),
                    decided_at: Some(now),
                    ..Verdict::new(Disposition::Denied)
                },
            };
            return self.keep_out(request, kept_out);
        }
        let bans = access.and_then(|access| access.check(&attributes, backend));
        let mut query = StoreQuery::new(looks);
        let missing = match route.policy.plan(&request, &attributes, &mut query) {
            Ok(()) => None,
            Err(missing) => {
                query = StoreQuery::new(looks);
                Some(Box::new(Refusal::Missing(missing)))
            }
        };
        let asks = bans.is_some() || missing.is_some() || !query.queried.is_empty();
        if !asks && route.decoys().next().is_none() {
            return self.pass(request, None);
        }
        let look = looks.then(|| {
            let checks = bans.iter().flat_map(|(_, checks)| checks);
            Box::new(checks.chain(&query.batch).cloned().collect())
        });
        if looks {
            let batch = query.batch.iter_mut();
            batch.for_each(|asked| asked.mode = asked.mode.non_spending());
        }
        let route = Arc::clone(route);
        let (mut undecided, mut batch) = Undecided::of(&route, request, query, now);
        undecided.look = look;
        undecided.refusal = missing;
        undecided.bans = bans.map(|(bans, checks)| {
            batch.insert_many(0, checks);
            bans
        });
        let answer = backend.admit(batch, now, undecided.is_idle());
        self.when_answered(answer, undecided, Undecided::decided)
    }

    /// Goes on with an answer of the store: at once where it is there, as the memory store's is.
    fn when_answered<T, W, F, R>(
        &mut self,
        answer: StoreFuture<T>,
        waiting: W,
        go_on: impl FnOnce(W, &mut Self, Result<T, StoreError>) -> State<F, R> + Send + 'static,
    ) -> State<F, R>
    where
        T: Send + Unpin + 'static,
        W: Send + 'static,
        S: Clone + Send + 'static,
    {
        match answer {
            StoreFuture::Ready(Some(answer)) => go_on(waiting, self, answer),
            answer => {
                // The service that is ready waits too; its clone takes its place.
                let clone = self.clone();
                let mut ready = std::mem::replace(self, clone);
                State::Waiting {
                    decision: Box::pin(async move {
                        let answer = answer.await;
                        go_on(waiting, &mut ready, answer)
                    }),
                }
            }
        }
    }
}

/// A request whose limits are being checked. It is boxed, as it is large and moved from step to
/// step.
struct Undecided<B> {
    route: Arc<RouteState>,
    queried: QueriedLimits,
    /// What is charged when the request is through; most requests leave nothing.
    charges: Vec<DeferredCharge>,
    /// The places to ask for when the store has allowed the request; most requests need none.
    leases: Option<Box<LeaseRequest>>,
    /// What the limits are asked, on a route that delays requests.
    delayed: Option<Box<Batch>>,
    /// How long the request has waited for its turn.
    delay: Option<Duration>,
    /// What bans and limits are asked in the end, if they are only looked at because the account is
    /// not known yet.
    look: Option<Box<Batch>>,
    /// What bans have to do with it, where there are any; their decisions come first.
    bans: Option<Box<BanCheck>>,
    /// What it gets whatever the store says, or if its limits allow it.
    refusal: Option<Box<Refusal>>,
    request: Request<B>,
    arrived: Timestamp,
    since: Instant,
}

/// Why a request is not let through though its limits may allow it.
enum Refusal {
    /// A limit denies it for want of a value, unless a ban keeps it out.
    Missing(Box<MissingValue>),
    /// Its client is kept out, and gets an answer that has to look real.
    KeptOut(KeptOut),
}

#[expect(
    clippy::boxed_local,
    reason = "it is large, and taking it out of its box would copy it"
)]
impl<B: RequestBody> Undecided<B> {
    /// A request, and what the store is to be asked about its limits.
    #[inline(always)]
    fn of(
        route: &Arc<RouteState>,
        request: Request<B>,
        query: StoreQuery,
        now: Timestamp,
    ) -> (Box<Self>, Batch) {
        let StoreQuery {
            batch,
            claims,
            queried,
            charges,
            ..
        } = query;
        let leases = (!claims.is_empty()).then(|| {
            Box::new(LeaseRequest {
                claims: claims.into(),
                batch: batch.clone(),
            })
        });
        let delayed = route.policy.delay.is_some();
        let undecided = Box::new(Self {
            route: Arc::clone(route),
            queried,
            charges,
            leases,
            delayed: delayed.then(|| Box::new(batch.clone())),
            delay: None,
            look: None,
            bans: None,
            refusal: None,
            request,
            arrived: now,
            since: turn::now(),
        });
        (undecided, batch)
    }

    /// How long the store took; nothing where it answered in the same turn, as memory does.
    fn waited(&self) -> Duration {
        turn::now().saturating_duration_since(self.since)
    }

    /// When it was decided: a request that has waited for its turn was decided before.
    fn decided_at(&self) -> Timestamp {
        match self.delay {
            Some(delay) => self.arrived.before(delay.into()),
            None => self.arrived,
        }
    }

    /// Whether no decision of the store would be acted upon.
    fn is_idle(&self) -> bool {
        self.queried.is_idle() && self.bans.as_ref().is_none_or(|bans| bans.is_idle())
    }

    /// Goes on with the request, now that the store has answered or failed.
    fn decided<S: LimitedService<B>>(
        mut self: Box<Self>,
        limiter: &mut RateLimit<S>,
        answer: Result<Outcome, StoreError>,
    ) -> State<S::Future, S::ResponseBody> {
        let mut outcome = match answer {
            Ok(outcome) => outcome,
            // A dry run stops no request, whatever becomes of the store.
            Err(_) if self.is_idle() => undecided(self.asked_of_store()),
            Err(_) => return unavailable(rejection::unavailable(), Some(self.waited())),
        };
        let ban = self.bans.as_mut().and_then(|bans| bans.judge(&mut outcome));
        if let Some(look) = self.look.take() {
            if !self.is_refused(ban.as_ref(), &outcome) {
                return limiter.learn(self.request);
            }
            self.refused_by_look(*look, &limiter.settings.backend);
        }
        if let Some(bans) = &mut self.bans {
            bans.judged(ban.is_some(), self.request.uri().path());
        }
        if let Some(ban) = ban {
            return self.treat_banned(limiter, ban, &outcome);
        }
        if let Some(Refusal::Missing(missing)) = self.refusal.as_deref() {
            let missing = missing.clone();
            return self.deny_missing(&missing);
        }
        let turn = self.turn(&mut outcome, &limiter.settings.backend);
        let Some(turn) = turn else {
            return self.allowed_or_not(limiter, outcome);
        };
        let clone = limiter.clone();
        let mut ready = std::mem::replace(limiter, clone);
        State::Waiting {
            decision: Box::pin(async move {
                let waited = turn.come().await;
                at_its_turn(&self.queried, &mut outcome, waited.into());
                self.delay = Some(waited);
                self.arrived = self.arrived + Nanos::from(waited);
                self.since += waited;
                self.allowed_or_not(&mut ready, outcome)
            }),
        }
    }

    /// Whether the request is refused honestly, whatever its account. An invented answer takes as long
    /// as a real one.
    fn is_refused(&self, ban: Option<&ActiveBan>, outcome: &Outcome) -> bool {
        let policy = &self.route.policy;
        match (ban, &policy.on_denied) {
            (Some(ban), _) => !ban.treatment.looks_real(),
            (None, OnDenied::Shadow(_)) => false,
            (None, OnDenied::Reject(_)) => {
                self.refusal.is_some() || policy.denial(&self.queried, outcome).is_some()
            }
        }
    }

    /// Counts a request that was refused before its limits were asked for more than a look.
    fn refused_by_look(&mut self, batch: Batch, backend: &Backend) {
        let policy = &self.route.policy;
        let of_limits = batch
            .iter()
            .skip(self.bans.as_ref().map_or(0, |bans| bans.len()));
        for (queried, transaction) in self.queried.limits.iter_mut().zip(of_limits) {
            if let Some(limit) = policy.limit(queried.limit) {
                queried.subject = limit.tracked(transaction, self.arrived, None);
            }
        }
        let counts_denied = |asked: &Transaction| asked.quota.algorithm().counts_denied();
        if batch.iter().any(counts_denied) {
            let counted = backend.store.decide(batch, self.arrived);
            backend.tasks.run(async move { drop(counted.await) });
        }
    }

    /// The request's turn, if it was allowed and has to wait for it.
    fn turn(&mut self, outcome: &mut Outcome, backend: &Backend) -> Option<Turn> {
        let policy = &self.route.policy;
        let (delay, batch) = policy.delay.as_ref().zip(self.delayed.take())?;
        // What could be lent is not left.
        at_its_turn(&self.queried, outcome, Nanos::ZERO);
        if policy.denial(&self.queried, outcome).is_some() {
            return None;
        }
        let asked = (backend, self.arrived);
        Turn::of(delay, &batch, &self.queried, outcome, asked)
    }

    /// Goes on with a request whose turn it is, or that was denied: asks for its places in flight.
    fn allowed_or_not<S: LimitedService<B>>(
        mut self: Box<Self>,
        limiter: &mut RateLimit<S>,
        mut outcome: Outcome,
    ) -> State<S::Future, S::ResponseBody> {
        if let Some(leases) = self.leases.take() {
            if self.route.policy.denial(&self.queried, &outcome).is_none() {
                let leased = leases.ask(&limiter.settings.backend, self.arrived);
                let waiting = (self, leases, outcome);
                return limiter.when_answered(leased, waiting, |waiting, limiter, leased| {
                    let (undecided, leases, outcome) = waiting;
                    undecided.leased(limiter, &leases, outcome, leased)
                });
            }
            // No place was asked for.
            outcome.decisions.resize(self.queried.limits.len(), None);
        }
        self.conclude(limiter, outcome, None)
    }

    /// How many bans and limits the store was asked about.
    fn asked_of_store(&self) -> usize {
        let leases = self.leases.as_ref();
        let limits = self.queried.limits.len() - leases.map_or(0, |leases| leases.claims.len());
        limits + self.bans.as_ref().map_or(0, |bans| bans.len())
    }

    /// Goes on with the request, now that its places in flight are granted or denied.
    fn leased<S: LimitedService<B>>(
        self: Box<Self>,
        limiter: &mut RateLimit<S>,
        leases: &LeaseRequest,
        mut outcome: Outcome,
        answer: Result<Leased, StoreError>,
    ) -> State<S::Future, S::ResponseBody> {
        let leased = match answer {
            Ok(leased) => leased,
            Err(_) if self.queried.is_idle() => leases.undecided(),
            Err(_) => {
                leases.undo(&self.queried, &mut outcome, &limiter.settings.backend);
                return unavailable(rejection::unavailable(), Some(self.waited()));
            }
        };
        join(&mut outcome, &leased.outcome);
        let policy = &self.route.policy;
        if policy.denial(&self.queried, &outcome).is_some() {
            leases.undo(&self.queried, &mut outcome, &limiter.settings.backend);
        }
        let places = leases.places(policy, &self.queried, leased);
        self.conclude(limiter, outcome, places)
    }

    /// Goes on with a request about which all is known.
    fn conclude<S: LimitedService<B>>(
        mut self: Box<Self>,
        limiter: &mut RateLimit<S>,
        outcome: Outcome,
        in_flight: Option<InFlight>,
    ) -> State<S::Future, S::ResponseBody> {
        let store = self.waited();
        let route = Arc::clone(&self.route);
        if let Some(refusal) = self.refusal.take() {
            return self.conclude_refused(limiter, *refusal, outcome, in_flight);
        }
        route.policy.count(&self.queried, &outcome, self.arrived);
        match route.policy.denial(&self.queried, &outcome) {
            None => self.forward(limiter, outcome, store, in_flight),
            Some(denial) => self.deny(limiter, &denial, outcome, store),
        }
    }

    /// Goes on with a request that is kept out and was counted as if it were not. Operators see limits
    /// as they are without it.
    #[cold]
    fn conclude_refused<S: LimitedService<B>>(
        self: Box<Self>,
        limiter: &mut RateLimit<S>,
        refusal: Refusal,
        outcome: Outcome,
        in_flight: Option<InFlight>,
    ) -> State<S::Future, S::ResponseBody> {
        let mut kept_out = match refusal {
            Refusal::Missing(missing) => return self.deny_missing(&missing),
            Refusal::KeptOut(kept_out) => kept_out,
        };
        let store = self.waited();
        let route = Arc::clone(&self.route);
        let verdict = &mut kept_out.verdict;
        verdict.decided_by = decided_by(&outcome);
        verdict.store = Some(store);
        verdict.decided_at = Some(self.decided_at());
        let backend = &limiter.settings.backend;
        let charges = DeferredCharges::new(&route, backend, self.charges, self.arrived, &outcome);
        let context = ResponseContext {
            status: Some((self.queried, outcome)),
            charges,
            in_flight,
            ..ResponseContext::of(Disposition::Denied, Some(Arc::clone(&route)))
        };
        kept_out.treat(&mut limiter.inner, self.request, &route, context)
    }

    /// Gives a banned client what its ban says.
    fn treat_banned<S: LimitedService<B>>(
        self: Box<Self>,
        limiter: &mut RateLimit<S>,
        ban: ActiveBan,
        outcome: &Outcome,
    ) -> State<S::Future, S::ResponseBody> {
        let kept_out = KeptOut {
            treatment: ban.treatment,
            retry_in: ban.retry_in,
            verdict: Verdict {
                banned_by: Some(ban.name),
                decided_by: decided_by(outcome),
                store: Some(self.waited()),
                decided_at: Some(self.decided_at()),
                ..Verdict::new(Disposition::Denied)
            },
        };
        limiter.keep_out(self.request, kept_out)
    }

    /// Refuses a request without a value that a limit must have, which may be a strike.
    fn deny_missing<F, R: Send + 'static>(
        mut self: Box<Self>,
        missing: &MissingValue,
    ) -> State<F, R> {
        if let Some(bans) = &mut self.bans {
            bans.denied_by(std::iter::once(&*missing.limit));
        }
        let mut context = ResponseContext::of(Disposition::Denied, None);
        context.verdict.denied_by = Some(Arc::clone(&missing.limit));
        context.verdict.decided_at = Some(self.decided_at());
        context.bans = self.bans;
        reject(&self.route, self.request, context, |_, _| {
            rejection::missing(&missing.limit, &missing.source)
        })
    }

    /// Lets the request through.
    fn forward<S: LimitedService<B>>(
        mut self: Box<Self>,
        limiter: &mut RateLimit<S>,
        outcome: Outcome,
        store: Duration,
        in_flight: Option<InFlight>,
    ) -> State<S::Future, S::ResponseBody> {
        let policy = &self.route.policy;
        let would_deny = policy.would_deny(&self.queried, &outcome);
        if let (Some(bans), Some(_)) = (&mut self.bans, &would_deny) {
            bans.would_be_denied_by(policy.would_denials(&self.queried, &outcome));
        }
        let would_ban = self.bans.as_mut().and_then(|bans| bans.would_hold());
        let verdict = Verdict {
            disposition: match outcome.source {
                DecisionSource::FailedOpen => Disposition::FailedOpen,
                _ if would_deny.is_some() || would_ban.is_some() => Disposition::WouldDeny,
                _ if self.delay.is_some() => Disposition::Delayed,
                _ if self.queried.is_empty() => Disposition::Unlimited,
                _ => Disposition::Allowed,
            },
            denied_by: would_deny,
            banned_by: would_ban,
            listed: None,
            decided_by: decided_by(&outcome),
            store: Some(store),
            delay: self.delay,
            in_flight: policy.in_flight(&self.queried, &outcome),
            decided_at: Some(self.decided_at()),
            strictest: None,
        };
        let sample = DecoySample::of(&self.route, &self.request);
        let charges = DeferredCharges::new(
            &self.route,
            &limiter.settings.backend,
            self.charges,
            self.arrived,
            &outcome,
        );
        let meter = charges.clone().filter(|charges| charges.is_by_body());
        let upload = sample.as_ref().and_then(|sample| sample.upload());
        let mut request = self.request.map(|body| Metered::new(body, meter, upload));
        if charges
            .as_ref()
            .is_some_and(|charges| charges.are_by_json())
        {
            // What is coded cannot be read.
            request.headers_mut().remove(ACCEPT_ENCODING);
        }
        if let Some(in_flight) = &in_flight {
            request.extensions_mut().insert(in_flight.clone());
        }
        State::Forwarding {
            future: limiter.inner.call(request),
            context: Box::new(ResponseContext {
                verdict,
                route: Some(self.route),
                status: (!self.queried.is_empty()).then_some((self.queried, outcome)),
                sample,
                charges,
                bans: self.bans,
                in_flight,
            }),
        }
    }

    /// Answers a request that limits deny, which may be a strike.
    fn deny<S: LimitedService<B>>(
        mut self: Box<Self>,
        limiter: &RateLimit<S>,
        denial: &Denial<'_>,
        outcome: Outcome,
        store: Duration,
    ) -> State<S::Future, S::ResponseBody> {
        if let Some(bans) = &mut self.bans {
            bans.denied_by(denial.limits());
        }
        #[cfg(feature = "gateway")]
        if let Some(forwarded) = &limiter.settings.forwarded {
            forwarded.count_denied(&self.request);
        }
        let verdict = Verdict {
            denied_by: Some(denial.limit()),
            decided_by: decided_by(&outcome),
            store: Some(store),
            in_flight: self.route.policy.in_flight(&self.queried, &outcome),
            decided_at: Some(self.decided_at()),
            ..Verdict::new(Disposition::Denied)
        };
        let context = ResponseContext {
            verdict,
            status: Some((self.queried, outcome)),
            bans: self.bans,
            ..ResponseContext::of(Disposition::Denied, Some(Arc::clone(&self.route)))
        };
        let retry_in = denial.retry_in();
        reject(
            &self.route,
            self.request,
            context,
            |rejection, empty| match &limiter.settings.respond {
                Some(respond) => {
                    let retry_after = (retry_in != Nanos::NEVER).then(|| retry_in.into());
                    let limit = &*denial.limit();
                    respond(&Denied { limit, retry_after }).map(ResponseBody::full)
                }
                None => rejection::reject(empty, rejection, denial.document(rejection), retry_in),
            },
        )
    }
}

/// The account of a request, if it has to be learned.
fn unverified<B>(request: &Request<B>) -> Option<&Arc<UnverifiedAccount>> {
    RequestContext::unverified(request.extensions())
}

/// What a client gets that a ban or the block list keeps out.
struct KeptOut {
    treatment: Arc<PreparedTreatment>,
    /// When it would be let in again.
    retry_in: Nanos,
    verdict: Verdict,
}

impl KeptOut {
    fn treat<S: LimitedService<B>, B: RequestBody>(
        self,
        inner: &mut S,
        mut request: Request<B>,
        route: &Arc<RouteState>,
        mut context: ResponseContext,
    ) -> State<S::Future, S::ResponseBody> {
        let (disposition, answer) = self.treatment.treat(self.retry_in);
        context.verdict = Verdict {
            disposition,
            ..self.verdict
        };
        let made = |mut response, context: ResponseContext| {
            context.mark(&mut response);
            State::answered(response, PendingTasks::new())
        };
        match answer {
            TreatmentAnswer::Response(response) => made(response, context),
            TreatmentAnswer::Later(answer) => State::Answering {
                answer,
                context: Box::new(context),
            },
            TreatmentAnswer::Decoy => match route.decoy(&self.treatment) {
                Some(shadow) => decoy(shadow, request, context),
                // Without a route every client gets 404, so a decoy would give the ban away.
                None => made(rejection::no_route(), context),
            },
            TreatmentAnswer::Upstream(upstream) => {
                let known = RequestContext::of(request.extensions_mut());
                let routed = known.routed.get_or_insert_with(|| Routed {
                    route: Arc::clone(route),
                    captures: Captures::default(),
                    upstream: None,
                });
                routed.upstream = Some(upstream);
                State::Forwarding {
                    future: inner.call(request.map(Metered::unmetered)),
                    context: Box::new(context),
                }
            }
        }
    }
}

fn decoy<B: RequestBody, F, R: Send + 'static>(
    shadow: &Arc<Shadow>,
    request: Request<B>,
    context: ResponseContext,
) -> State<F, R> {
    let (head, body) = request.into_parts();
    State::Answering {
        answer: Box::pin(Arc::clone(shadow).respond(head, body)),
        context: Box::new(context),
    }
}

/// Answers a request that is not let through: by the route's decoy, or honestly.
fn reject<B: RequestBody, F, R: Send + 'static>(
    route: &RouteState,
    request: Request<B>,
    mut context: ResponseContext,
    honest: impl FnOnce(&Rejection, Response<()>) -> Response<ResponseBody<R>>,
) -> State<F, R> {
    match &route.policy.on_denied {
        OnDenied::Shadow(shadow) => {
            context.verdict.disposition = Disposition::Shadowed;
            decoy(shadow, request, context)
        }
        OnDenied::Reject(rejection) => {
            let mut response = honest(rejection, rejection::in_memory_of(request));
            context.mark(&mut response);
            let strikes = context.strikes();
            State::answered(response, strikes)
        }
    }
}

/// Refuses a request about which nothing can decide.
fn unavailable<F, R>(
    mut response: Response<ResponseBody<R>>,
    store: Option<Duration>,
) -> State<F, R> {
    let verdict = Verdict {
        store,
        ..Verdict::new(Disposition::Unavailable)
    };
    response.extensions_mut().insert(verdict);
    State::answered(response, PendingTasks::new())
}

/// Refuses a request whose client nothing has identified, where a limit counts addresses. One
/// bucket for all of them would let one client use up what others need.
fn unidentified<F, R>() -> State<F, R> {
    tracing::error!(
        target: "weir::middleware::rate_limit::decide",
        "a limit counts addresses, and the server leaves none in the request's extensions"
    );
    let detail = "The client's address is not known.";
    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail);
    let mut response = ResponseBody::problem(problem);
    let verdict = Verdict::new(Disposition::Unavailable);
    response.extensions_mut().insert(verdict);
    State::answered(response, PendingTasks::new())
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
