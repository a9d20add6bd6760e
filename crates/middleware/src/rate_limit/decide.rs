//! A request's way from the lists to what becomes of it: `start`, `ask`, `decided`, `lease`,
//! `leased`, `conclude`, then `enter` and `forward`, or `deny`. What is decided on the way is in
//! `pending_decision`.
//!
//! Where the account is needed, and only a password that nobody has verified yet names it, what
//! needs no account is looked at first, and nothing is taken. The password of a request that is
//! refused by that is not verified; any other request starts again with its account
//! ([`verify_password`](RateLimit::verify_password)).
//!
//! The memory store's answer is there when it is asked for, and all of this then happens within the
//! call of the layer. Another store's answer is waited for, in a box.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::header::ACCEPT_ENCODING;
use http::{Response, StatusCode};
use tokio::time::Instant;
use weir_http::problem::Problem;
use weir_http::request::HttpRequest;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Transaction};
use weir_rules::{Access, Captures};
use weir_runtime::loop_time;
use weir_store::{Leased, Outcome, StoreError, StoreFuture};
use weir_telemetry::{Disposition, is_logged};

use super::decisions::Denial;
use super::deferred_slot::UpstreamSlot;
use super::in_flight::InFlight;
use super::pending_decision::PendingDecision;
use super::plan::{MissingValue, attributes, size};
use super::policy::OnDenied;
use super::response_context::{DecoySample, Metered, ResponseContext, Shown, show_limits};
use super::{Denied, LimitedRequest, LimitedService, RateLimit, ResponseState};
use crate::backend::{Backend, PendingTasks};
use crate::bans::{AccessControl, ActiveBan, PreparedTreatment, TreatmentAnswer};
use crate::decoy::Shadow;
use crate::identify::UnverifiedAccount;
use crate::overload::OverloadShedding;
use crate::rejection;
use crate::route::{RouteState, Routed};
use crate::{ClientIdentity, RequestContext, ResponseBody, Verdict};

impl<S> RateLimit<S> {
    /// Decides about a request, by the lists first. A late worker sheds it only if `may_shed`.
    #[inline(always)]
    pub(super) fn start<Q: LimitedRequest>(
        &mut self,
        request: Q,
        may_shed: bool,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let control = self.settings.access.as_ref();
        let access = control.map(|control| (control, control.access(request.extensions())));
        match access {
            Some((control, _)) if control.allows_accounts() && unverified(&request).is_some() => {
                self.verify_password(request)
            }
            None | Some((_, Access::Unlisted)) => {
                if may_shed && self.settings.overload.is_some() && OverloadShedding::is_shedding() {
                    return self.start_overloaded(request);
                }
                self.ask(request)
            }
            Some((_, Access::Allowed(_))) => self.pass(request, Some("allow")),
            Some((control, Access::Blocked(_))) => {
                let treatment = control.blocked();
                if self.needs_password_for(treatment, &request) {
                    return self.verify_password(request);
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
    fn verify_password<Q: LimitedRequest>(
        &mut self,
        mut request: Q,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let unverified = RequestContext::entry(request.extensions_mut())
            .unverified
            .take();
        let Some(unverified) = unverified else {
            return self.start_again(request);
        };
        let clone = self.clone();
        let mut ready = mem::replace(self, clone);
        ResponseState::Waiting {
            decision: Box::pin(async move {
                match unverified.verify(&mut request).await {
                    true => ready.start_again(request),
                    false => unavailable(rejection::unverified(), None),
                }
            }),
        }
    }

    /// Goes on with a request whose account is known now. A late worker that has decided about it
    /// without its account does not shed it after all.
    #[cold]
    fn start_again<Q: LimitedRequest>(
        &mut self,
        request: Q,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let settings = &self.settings;
        let (access, overload) = (settings.access.as_ref(), settings.overload.as_ref());
        let waits_for_account = access.is_some_and(AccessControl::allows_accounts)
            || overload.is_some_and(|overload| overload.concerns_accounts());
        self.start(request, waits_for_account)
    }

    /// Whether the account of a request has to be learned before the request goes on.
    fn needs_account<Q: HttpRequest>(&self, request: &Q) -> bool {
        if !self.settings.verifies_passwords {
            return false;
        }
        let access = self.settings.access.as_ref();
        let route = || self.settings.route_or_none(request.extensions());
        unverified(request).is_some() && route().needs_account(access)
    }

    /// Whether the password has to be verified before a client gets this. An invented answer takes
    /// as long as a real one, and so tells no client that it is banned.
    fn needs_password_for<Q: HttpRequest>(
        &self,
        treatment: &PreparedTreatment,
        request: &Q,
    ) -> bool {
        treatment.looks_real() && self.needs_account(request)
    }

    /// Forwards a request that no limit applies to.
    pub(super) fn pass<Q: LimitedRequest>(
        &mut self,
        request: Q,
        listed: Option<&'static str>,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        if self.needs_account(&request) {
            return self.verify_password(request);
        }
        let route = self.settings.route_or_none(request.extensions());
        let conceals = route.conceals().then(|| Arc::clone(route));
        let mut context = ResponseContext::new(Verdict::new(Disposition::Unlimited), conceals);
        context.verdict.listed = listed;
        if route.concurrency.is_some() {
            return self.pass_by_slot(request, context);
        }
        ResponseState::Forwarding {
            future: self.inner.call(request.map(Metered::unmetered)),
            context: Box::new(context),
        }
    }

    /// Treats a request that is kept out. If its answer has to look real, the limits of its route
    /// count it as others, by buckets that only those have who are kept out, and deny nothing.
    #[cold]
    fn keep_out<Q: LimitedRequest>(
        &mut self,
        request: Q,
        kept_out: KeptOut,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let backend = &self.settings.backend;
        let routed = RequestContext::routed(request.extensions());
        let route = Arc::clone(self.settings.route_of(routed));
        let untold = |route: &Arc<_>| {
            let verdict = Verdict::new(Disposition::Denied);
            ResponseContext::new(verdict, Some(Arc::clone(route)))
        };
        if !kept_out.treatment.looks_real() {
            let context = untold(&route);
            return kept_out.treat(&mut self.inner, request, &route, context);
        }
        let now = backend.now();
        let mut pending = PendingState::new(&route, now);
        let no_captures = Captures::default();
        let captures = routed.map_or(&no_captures, |routed| &routed.captures);
        let attributes = attributes(&request, route.name(), captures, now);
        let body_bytes = || size(request.body());
        let decision = &mut pending.decision;
        decision.plan_kept_out(&attributes, body_bytes);
        if decision.queried.is_empty() {
            let context = untold(&route);
            return kept_out.treat(&mut self.inner, request, &route, context);
        }
        let answer = decision.ask(backend);
        pending.kept_out = Some(Box::new(kept_out));
        self.when_answered(answer, &mut pending, request, PendingState::decided)
    }

    /// Asks the store about a request.
    #[inline(always)]
    pub(super) fn ask<Q: LimitedRequest>(
        &mut self,
        request: Q,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
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
            if self.needs_password_for(&ban.treatment, &request) {
                return self.verify_password(request);
            }
            let verdict = Verdict {
                decided_at: Some(now),
                ..Verdict::new(Disposition::Denied)
            };
            return self.keep_out(request, KeptOut::banned(ban, verdict));
        }
        let body_bytes = || size(request.body());
        let mut pending = PendingState::new(route, now);
        let decision = &mut pending.decision;
        if !decision.plan(&attributes, body_bytes, (access, backend), looks) {
            return self.pass(request, None);
        }
        if looks {
            pending.look = Some(Box::new(decision.batch.clone()));
            let bans = decision.bans_asked();
            let of_limits = decision.batch.iter_mut().skip(bans);
            of_limits.for_each(|asked| asked.mode = asked.mode.non_spending());
        }
        let answer = decision.ask(backend);
        self.when_answered(answer, &mut pending, request, PendingState::decided)
    }

    /// Goes on with an answer of the store: at once where it is there, as the memory store's is.
    #[inline(always)]
    fn when_answered<T, Q, N>(
        &mut self,
        answer: StoreFuture<T>,
        pending: &mut PendingState,
        request: Q,
        next: N,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        N: FnOnce(
                &mut PendingState,
                &mut Self,
                Q,
                Result<T, StoreError>,
            ) -> ResponseState<S::Future, S::ResponseBody>
            + Send
            + 'static,
        T: Send + Unpin + 'static,
        Q: LimitedRequest,
        S: LimitedService<Q>,
    {
        match answer {
            StoreFuture::Ready(Some(answer)) => next(pending, self, request, answer),
            answer => {
                // The service that is ready waits too; its clone takes its place.
                let clone = self.clone();
                let mut ready = mem::replace(self, clone);
                let mut pending = pending.take();
                ResponseState::Waiting {
                    decision: Box::pin(async move {
                        let answer = answer.await;
                        next(&mut pending, &mut ready, request, answer)
                    }),
                }
            }
        }
    }
}

/// The state of a decision, beside its request. It is large, so the steps borrow it, and it is moved
/// only for a request that may have to wait.
pub(super) struct PendingState {
    pub(super) decision: PendingDecision,
    /// What bans and limits are asked in the end, if they are only looked at because the account is
    /// not known yet.
    look: Option<Box<Batch>>,
    /// What its client gets whatever its limits say, which has to look real.
    kept_out: Option<Box<KeptOut>>,
    pub(super) since: Instant,
}

impl PendingState {
    #[inline(always)]
    fn new(route: &Arc<RouteState>, arrived: Timestamp) -> Self {
        Self {
            decision: PendingDecision::new(route, arrived),
            look: None,
            kept_out: None,
            since: loop_time::now(),
        }
    }

    /// Moves the state out, into what a request keeps that may have to wait.
    pub(super) fn take(&mut self) -> Self {
        let none = Self::new(&self.decision.route, self.decision.arrived);
        mem::replace(self, none)
    }

    /// How long the store took; nothing where it answered in the same turn, as memory does.
    pub(super) fn waited(&self) -> Duration {
        loop_time::now().saturating_duration_since(self.since)
    }

    /// Goes on with the request, now that the store has answered or failed.
    #[inline(always)]
    fn decided<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        answer: Result<Outcome, StoreError>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let Ok(mut outcome) = self.decision.outcome(answer) else {
            return unavailable(rejection::unavailable(), Some(self.waited()));
        };
        let ban = self.decision.apply_bans(&mut outcome);
        if let Some(look) = self.look.take() {
            if !self.is_refused(ban.as_ref(), &outcome) {
                return limiter.verify_password(request);
            }
            self.refused_by_look(&look, &limiter.settings.backend);
        }
        let path = request.uri().path();
        self.decision.count_bans(ban.is_some(), path);
        if let Some(ban) = ban {
            return self.treat_banned(limiter, request, ban, &outcome);
        }
        if let Some(missing) = self.decision.missing.take() {
            return self.deny_missing(request, &missing);
        }
        let delayed = self.decision.turn(&mut outcome, &limiter.settings.backend);
        let Some(delayed) = delayed else {
            return self.lease(limiter, request, outcome);
        };
        let clone = limiter.clone();
        let mut ready = mem::replace(limiter, clone);
        let mut pending = self.take();
        ResponseState::Waiting {
            decision: Box::pin(async move {
                let waited = delayed.wait().await;
                pending.decision.has_waited(&mut outcome, waited);
                pending.since += waited;
                pending.lease(&mut ready, request, outcome)
            }),
        }
    }

    /// Whether the request is refused honestly, whatever its account. An invented answer takes as
    /// long as a real one.
    fn is_refused(&self, ban: Option<&ActiveBan>, outcome: &Outcome) -> bool {
        let decision = &self.decision;
        let policy = &decision.route.policy;
        match (ban, &policy.on_denied) {
            (Some(ban), _) => !ban.treatment.looks_real(),
            (None, OnDenied::Shadow(_)) => false,
            (None, OnDenied::Reject(_)) => {
                decision.missing.is_some() || policy.denial(&decision.queried, outcome).is_some()
            }
        }
    }

    /// Counts a request that was refused before its limits were asked for more than a look.
    fn refused_by_look(&mut self, batch: &Batch, backend: &Backend) {
        let decision = &mut self.decision;
        let (policy, now) = (&decision.route.policy, decision.arrived);
        let of_limits = batch.iter().skip(decision.bans_asked());
        for (queried, transaction) in decision.queried.limits.iter_mut().zip(of_limits) {
            if let Some(limit) = policy.limit(queried.limit.into()) {
                queried.subject = limit.record_subject(transaction, now, None);
            }
        }
        let counts_denied = |asked: &Transaction| asked.quota.algorithm().counts_denied();
        if batch.iter().any(counts_denied) {
            let counted = backend.store.decide(batch, now);
            backend.tasks.run(async move { drop(counted.await) });
        }
    }

    /// Goes on with a request whose turn it is, or that was denied: asks for its places in flight.
    #[inline(always)]
    fn lease<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        mut outcome: Outcome,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let leased = self.decision.lease(&mut outcome, &limiter.settings.backend);
        let Some(leased) = leased else {
            return self.conclude(limiter, request, outcome, None);
        };
        limiter.when_answered(
            leased,
            self,
            request,
            |pending, limiter, request, leased| pending.leased(limiter, request, outcome, leased),
        )
    }

    /// Goes on with the request, now that its places in flight are granted or denied.
    fn leased<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        mut outcome: Outcome,
        answer: Result<Leased, StoreError>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let backend = &limiter.settings.backend;
        match self.decision.leased(answer, &mut outcome, backend) {
            Ok(places) => self.conclude(limiter, request, outcome, places),
            Err(_) => unavailable(rejection::unavailable(), Some(self.waited())),
        }
    }

    /// Goes on with a request about which all is known.
    #[inline(always)]
    fn conclude<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        outcome: Outcome,
        in_flight: Option<InFlight>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        if let Some(kept_out) = self.kept_out.take() {
            return self.conclude_kept_out(limiter, request, *kept_out, outcome, in_flight);
        }
        let route = Arc::clone(&self.decision.route);
        match route.policy.denial(&self.decision.queried, &outcome) {
            None if route.concurrency.is_some() => self.enter(limiter, request, outcome, in_flight),
            None => {
                self.decision.count(&outcome);
                self.forward(limiter, request, outcome, in_flight, None)
            }
            Some(mut denial) => {
                self.decision.count(&outcome);
                self.deny(limiter, request, &route, &mut denial, outcome)
            }
        }
    }

    /// Goes on with a request that is kept out and was counted as if it were not. Operators see
    /// limits as they are without it.
    #[cold]
    fn conclude_kept_out<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        mut kept_out: KeptOut,
        outcome: Outcome,
        in_flight: Option<InFlight>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let store = Some(self.waited());
        let decision = &mut self.decision;
        kept_out.verdict = Verdict {
            store,
            banned_by: kept_out.verdict.banned_by,
            listed: kept_out.verdict.listed,
            ..decision.verdict(Disposition::Denied, &outcome)
        };
        let charges = decision.charges(&outcome, &limiter.settings.backend);
        let (route, queried) = (
            Arc::clone(&decision.route),
            mem::take(&mut decision.queried),
        );
        let context = ResponseContext {
            status: Some((queried, outcome)),
            charges,
            in_flight,
            ..ResponseContext::new(Verdict::new(Disposition::Denied), Some(Arc::clone(&route)))
        };
        kept_out.treat(&mut limiter.inner, request, &route, context)
    }

    /// Gives a banned client what its ban says.
    fn treat_banned<S: LimitedService<Q>, Q: LimitedRequest>(
        &self,
        limiter: &mut RateLimit<S>,
        request: Q,
        ban: ActiveBan,
        outcome: &Outcome,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let verdict = Verdict {
            store: Some(self.waited()),
            ..self.decision.verdict(Disposition::Denied, outcome)
        };
        limiter.keep_out(request, KeptOut::banned(ban, verdict))
    }

    /// Refuses a request without a value that a limit must have.
    fn deny_missing<Q: LimitedRequest, F, R: Send + 'static>(
        &mut self,
        request: Q,
        missing: &MissingValue,
    ) -> ResponseState<F, R> {
        let route = Arc::clone(&self.decision.route);
        let context = self.decision.lacking(missing);
        match &route.policy.on_denied {
            OnDenied::Shadow(shadow) => shadowed(shadow, request, context),
            OnDenied::Reject(_) => {
                let mut response = rejection::missing(&missing.limit, &missing.source);
                let strikes = context.complete(&mut response);
                ResponseState::answered(response, strikes)
            }
        }
    }

    /// Lets the request through.
    pub(super) fn forward<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        outcome: Outcome,
        in_flight: Option<InFlight>,
        slot: Option<UpstreamSlot>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let store = self.waited();
        let sample = DecoySample::new(&self.decision.route, &request);
        let mut upload = sample.as_ref().and_then(|sample| sample.upload());
        let backend = &limiter.settings.backend;
        let mut context = Box::new(self.decision.allowed(outcome, in_flight, backend));
        context.verdict.store = Some(store);
        context.sample = sample;
        if let Some(slot) = slot {
            context.hold(slot, &request, &mut upload);
        }
        let charges = context.charges.as_ref();
        let meter = charges.filter(|charges| charges.is_by_body()).cloned();
        let mut request = request.map(|body| Metered::new(body, meter, upload));
        if charges.is_some_and(|charges| charges.are_by_json()) {
            // What is coded cannot be read.
            request.headers_mut().remove(ACCEPT_ENCODING);
        }
        if let Some(in_flight) = &context.in_flight {
            request.extensions_mut().insert(in_flight.clone());
        }
        ResponseState::Forwarding {
            future: limiter.inner.call(request),
            context,
        }
    }

    /// Answers a request that limits deny. A flood of them moves nothing that is large.
    #[inline(always)]
    fn deny<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &RateLimit<S>,
        request: Q,
        route: &Arc<RouteState>,
        denial: &mut Denial<'_>,
        mut outcome: Outcome,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        #[cfg(feature = "gateway")]
        if let Some(forwarded) = &limiter.settings.forwarded {
            forwarded.count_denied(&request);
        }
        let store = self.waited();
        let rejection = match &route.policy.on_denied {
            OnDenied::Reject(rejection) => rejection,
            OnDenied::Shadow(shadow) => {
                let mut context = self.decision.denied(denial, outcome);
                context.verdict.store = Some(store);
                return shadowed(shadow, request, context);
            }
        };
        let waits = &limiter.settings.waits;
        waits.spread(&self.decision, denial, &mut outcome);
        let verdict = self.decision.denied_by(denial, &outcome);
        let retry_in = denial.told_wait();
        let empty = rejection::in_memory_of(request);
        let mut response = match &limiter.settings.respond {
            Some(respond) => {
                let retry_after = (retry_in != Nanos::NEVER).then(|| retry_in.into());
                let limit = &*denial.limit();
                respond(&Denied { limit, retry_after }).map(ResponseBody::full)
            }
            None => {
                let status = rejection.status_after(retry_in);
                rejection::reject(empty, rejection, status, denial.document(status), retry_in)
            }
        };
        let queried = &self.decision.queried;
        show_limits(route, queried, &outcome, Shown::Denial, &mut response);
        let strictest = || route.policy.strictest(queried, &outcome);
        response.extensions_mut().insert(Verdict {
            store: Some(store),
            strictest: is_logged().then(strictest).flatten(),
            ..verdict
        });
        let bans = self.decision.bans.take();
        let strikes = bans.map_or_else(PendingTasks::new, |bans| bans.striking());
        ResponseState::answered(response, strikes)
    }
}

/// The account of a request, if it has to be learned.
fn unverified<Q: HttpRequest>(request: &Q) -> Option<&Arc<UnverifiedAccount>> {
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
    fn banned(ban: ActiveBan, verdict: Verdict) -> Self {
        Self {
            treatment: ban.treatment,
            retry_in: ban.retry_in,
            verdict: Verdict {
                banned_by: Some(ban.name),
                ..verdict
            },
        }
    }

    fn treat<S: LimitedService<Q>, Q: LimitedRequest>(
        self,
        inner: &mut S,
        request: Q,
        route: &Arc<RouteState>,
        mut context: ResponseContext,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let (disposition, answer) = self.treatment.treat(request, self.retry_in);
        context.verdict = Verdict {
            disposition,
            ..self.verdict
        };
        let made = |mut response, context: ResponseContext| {
            let strikes = context.complete(&mut response);
            ResponseState::answered(response, strikes)
        };
        match answer {
            TreatmentAnswer::Response(response) => made(response, context),
            TreatmentAnswer::Later(answer) => ResponseState::Answering {
                answer,
                context: Box::new(context),
            },
            TreatmentAnswer::Decoy(request) => match route.decoy(&self.treatment) {
                Some(shadow) => decoy(shadow, request, context),
                // Without a route every client gets 404, so a decoy would give the ban away.
                None => made(rejection::no_route(), context),
            },
            TreatmentAnswer::Upstream(upstream, mut request) => {
                let known = RequestContext::entry(request.extensions_mut());
                let routed = known.routed.get_or_insert_with(|| Routed {
                    route: Arc::clone(route),
                    captures: Captures::default(),
                    upstream: None,
                });
                routed.upstream = Some(upstream);
                ResponseState::Forwarding {
                    future: inner.call(request.map(Metered::unmetered)),
                    context: Box::new(context),
                }
            }
        }
    }
}

fn decoy<Q: LimitedRequest, F, R: Send + 'static>(
    shadow: &Arc<Shadow>,
    request: Q,
    context: ResponseContext,
) -> ResponseState<F, R> {
    ResponseState::Answering {
        answer: Box::pin(Arc::clone(shadow).respond(request)),
        context: Box::new(context),
    }
}

/// Answers a request that limits deny by the route's decoy.
fn shadowed<Q: LimitedRequest, F, R: Send + 'static>(
    shadow: &Arc<Shadow>,
    request: Q,
    mut context: ResponseContext,
) -> ResponseState<F, R> {
    context.verdict.disposition = Disposition::Shadowed;
    decoy(shadow, request, context)
}

/// Refuses a request about which nothing can decide.
fn unavailable<F, R>(
    mut response: Response<ResponseBody<R>>,
    store: Option<Duration>,
) -> ResponseState<F, R> {
    let verdict = Verdict {
        store,
        ..Verdict::new(Disposition::Unavailable)
    };
    response.extensions_mut().insert(verdict);
    ResponseState::answered(response, PendingTasks::new())
}

/// Refuses a request whose client nothing has identified, where a limit counts addresses. One
/// bucket for all of them would let one client use up what others need.
fn unidentified<F, R>() -> ResponseState<F, R> {
    tracing::error!(
        target: "weir::middleware::rate_limit::decide",
        "a limit counts addresses, and the server leaves none in the request's extensions"
    );
    let detail = "The client's address is not known.";
    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail);
    let mut response = ResponseBody::problem(problem);
    let verdict = Verdict::new(Disposition::Unavailable);
    response.extensions_mut().insert(verdict);
    ResponseState::answered(response, PendingTasks::new())
}
