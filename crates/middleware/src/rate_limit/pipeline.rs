//! A request's way from the lists to what becomes of it: `start`, `ask`, the stages of its
//! [`PendingDecision`], `conclude`, then `forward`, or `deny`.
//!
//! The memory store's answer is there when it is asked for, and all of this then happens within the
//! call of the layer. Another store's answer is waited for, in a box.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::ACCEPT_ENCODING;
use tokio::time::Instant;
use weir_http::problem::Problem;
use weir_http::request::HttpRequest;
use weir_limit::time::Timestamp;
use weir_rules::{Access, Captures};
use weir_runtime::loop_time;
use weir_store::{Outcome, StoreError, StoreFuture};
use weir_telemetry::{Disposition, is_logged};

use super::decision::{Conclusion, Next, PendingDecision};
use super::decisions::Denial;
use super::deferred_charge::HeldCharges;
use super::deferred_slot::UpstreamSlot;
use super::denial_response::denial_response;
use super::in_flight::InFlight;
use super::kept_out::KeptOut;
use super::metered::Metered;
use super::on_denied::OnDenied;
use super::plan::{MissingValue, size};
use super::response_context::ResponseContext;
use super::{LimitedRequest, LimitedService, RateLimit, ResponseState};
use crate::backend::PendingTasks;
use crate::decoy::Shadow;
use crate::rejection;
use crate::route::RouteState;
use crate::{ClientIdentity, RequestContext, RequestHead, ResponseBody, Verdict};

impl<S> RateLimit<S> {
    /// Decides about a request, by the lists first. An overloaded worker may shed it here, unless it
    /// `comes_again` with its account and the worker has decided before whether to.
    #[inline(always)]
    pub(super) fn start<Q: LimitedRequest>(
        &mut self,
        request: Q,
        comes_again: bool,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let control = self.settings.access.as_ref();
        let access = control.map(|control| (control, control.access(request.extensions())));
        match access {
            Some(_) if self.needs_account_for_lists(&request) => self.learn_account(request),
            None | Some((_, Access::Unlisted)) => match &self.settings.overload {
                Some(overload) if overload.is_shedding() => {
                    self.ask_unless_shed(request, comes_again)
                }
                _ => self.ask(request),
            },
            Some((_, Access::Allowed(_))) => self.pass(request, Some("allow")),
            Some((control, Access::Blocked(entry))) => {
                let kept_out = KeptOut::listed(control);
                let needs_account = || {
                    let known = RequestContext::routed_client(request.extensions());
                    let (routed, _, is_unverified) = known;
                    is_unverified && self.settings.route_of(routed).needs_account(Some(control))
                };
                if kept_out.looks_real() && needs_account() {
                    return self.learn_account(request);
                }
                control.count_blocked(entry);
                self.keep_out(request, kept_out)
            }
        }
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
        let (routed, _, is_unverified) = RequestContext::routed_client(request.extensions());
        let route = self.settings.route_of(routed);
        if is_unverified && route.needs_account(self.settings.access.as_ref()) {
            return self.learn_account(request);
        }
        let conceals = route.conceals().then(|| Arc::clone(route));
        let mut context = ResponseContext::new(Verdict::new(Disposition::Unlimited), conceals);
        context.verdict.listed = listed;
        if route.limits_concurrency() {
            return self.pass_by_slot(request, context);
        }
        ResponseState::Forwarding {
            future: self.inner.call(request.map(Metered::unmetered)),
            context: Box::new(context),
        }
    }

    /// Plans the decision about a request, and asks the store.
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
        let known = RequestContext::routed_client(request.extensions());
        let (routed, client, is_unverified) = known;
        let route = settings.route_of(routed);
        if settings.access.is_none() && !route.is_limited() {
            return self.pass(request, None);
        }
        let now = backend.now();
        let captures = routed.map_or(Captures::NONE, |routed| &routed.captures);
        let head = RequestHead::new(&request);
        let attributes = head.attributes_of(client, (route.name(), captures), now);
        let is_unknown = attributes.client == ClientIdentity::UNKNOWN;
        if is_unknown && route.counts_addresses && !settings.shares_unknown {
            return unidentified();
        }
        let access = settings.access.as_ref();
        let awaits_account = is_unverified && route.needs_account(access);
        let kept_out = access.and_then(|it| KeptOut::standing(it, &attributes, awaits_account));
        if let Some(kept_out) = kept_out {
            if awaits_account && kept_out.looks_real() {
                return self.learn_account(request);
            }
            // Operators see that it goes on, as they do of clients whose bans are buckets.
            let body_bytes = || size(request.body());
            PendingDecision::new(route, now).count_subjects(&attributes, body_bytes);
            return self.keep_out(request, kept_out);
        }
        let body_bytes = || size(request.body());
        let mut pending = PendingState::new(route, now);
        let decision = &mut pending.decision;
        if !decision.plan(&attributes, body_bytes, (access, backend), awaits_account) {
            return self.pass(request, None);
        }
        let answer = decision.ask(backend);
        self.when_answered(answer, &mut pending, request, PendingState::answered)
    }

    /// Treats a request that is kept out. If its answer has to look real, the limits of its route
    /// count it as others, by buckets that only those have who are kept out, and deny nothing.
    #[cold]
    pub(super) fn keep_out<Q: LimitedRequest>(
        &mut self,
        request: Q,
        kept_out: KeptOut,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let backend = &self.settings.backend;
        let (routed, client, _) = RequestContext::routed_client(request.extensions());
        let route = Arc::clone(self.settings.route_of(routed));
        let verdict = Verdict::new(Disposition::Denied);
        let untold = |route: &Arc<_>| ResponseContext::new(verdict, Some(Arc::clone(route)));
        if !kept_out.looks_real() {
            let context = untold(&route);
            return kept_out.treat(&mut self.inner, request, &route, context);
        }
        let now = backend.now();
        let mut pending = PendingState::new(&route, now);
        let decision = &mut pending.decision;
        let captures = routed.map_or(Captures::NONE, |routed| &routed.captures);
        let head = RequestHead::new(&request);
        let attributes = head.attributes_of(client, (route.name(), captures), now);
        if !decision.plan_kept_out(&attributes, || size(request.body())) {
            let context = untold(&route);
            return kept_out.treat(&mut self.inner, request, &route, context);
        }
        let answer = decision.ask(backend);
        pending.kept_out = Some(Box::new(kept_out));
        self.when_answered(answer, &mut pending, request, PendingState::answered)
    }

    /// Goes on with an answer of the store: at once where it is there, as the memory store's is.
    #[inline(always)]
    pub(super) fn when_answered<T, Q, N>(
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

/// The state of a request beside the request. It is large, so the steps borrow it, and it is moved
/// only for a request that may have to wait.
pub(super) struct PendingState {
    pub(super) decision: PendingDecision,
    /// What its client gets whatever its limits say, which has to look real.
    pub(super) kept_out: Option<Box<KeptOut>>,
    pub(super) since: Instant,
}

impl PendingState {
    /// That of a request without anything to decide. The clock is read first: what is called once
    /// the decision is made has it made elsewhere and moved.
    #[inline(always)]
    pub(super) fn new(route: &Arc<RouteState>, arrived: Timestamp) -> Self {
        let since = loop_time::now();
        Self {
            decision: PendingDecision::new(route, arrived),
            kept_out: None,
            since,
        }
    }

    /// Moves the state out, into what a request keeps that may have to wait.
    pub(super) fn take(&mut self) -> Self {
        let none = Self::new(&self.decision.route, self.decision.arrived);
        mem::replace(self, none)
    }

    /// How long the store took; nothing where it answered in the same turn, as memory does.
    pub(super) fn waited(&self) -> Duration {
        let now = loop_time::now();
        // Memory answers within one reading of the clock, and to subtract takes longer than this.
        match now == self.since {
            true => Duration::ZERO,
            false => now.saturating_duration_since(self.since),
        }
    }

    /// Goes on with the request, now that the store has answered or failed.
    #[inline(always)]
    pub(super) fn answered<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        answer: Result<Outcome, StoreError>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let (path, backend) = (request.uri().path(), &limiter.settings.backend);
        match self.decision.answered(answer, path, backend) {
            Next::Known(conclusion) => self.conclude(limiter, request, conclusion),
            next => self.go_on(limiter, request, next),
        }
    }

    /// Goes on with the request when it has what its decision needs.
    fn go_on<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        next: Next,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        match next {
            Next::Known(conclusion) => self.conclude(limiter, request, conclusion),
            Next::Places(answer) => {
                // If its client leaves before the answer, the request goes no further.
                let is_awaited = !matches!(answer, StoreFuture::Ready(_));
                let backend = &limiter.settings.backend;
                let refund = is_awaited.then(|| Box::new(self.decision.refund(backend)));
                let next = |state: &mut Self, limiter: &mut RateLimit<S>, request, answer| {
                    if let Some(refund) = refund {
                        refund.cancel();
                    }
                    let next = state.decision.has_places(answer, &limiter.settings.backend);
                    state.go_on(limiter, request, next)
                };
                limiter.when_answered(answer, self, request, next)
            }
            Next::Turn(turn) => {
                // If its client leaves, `turn` is dropped, which passes it on.
                let clone = limiter.clone();
                let mut ready = mem::replace(limiter, clone);
                let mut state = self.take();
                ResponseState::Waiting {
                    decision: Box::pin(async move {
                        let waited = turn.wait().await;
                        state.since += waited;
                        let backend = &ready.settings.backend;
                        let next = state.decision.has_waited(waited, backend);
                        state.go_on(&mut ready, request, next)
                    }),
                }
            }
        }
    }

    /// Goes on with a request about which all is known.
    #[inline(always)]
    fn conclude<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        conclusion: Conclusion,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let in_flight = match conclusion {
            Conclusion::Decided(in_flight) => in_flight,
            Conclusion::AccountNeeded => return limiter.learn_account(request),
            Conclusion::KeptOut(by) => {
                let kept_out = self.decision.kept_out(by, Some(self.waited()));
                return limiter.keep_out(request, kept_out);
            }
            Conclusion::Lacks(missing) => return self.deny_missing(request, &missing),
            Conclusion::Undecidable => {
                let store = Some(self.waited());
                return ResponseState::unavailable(rejection::unavailable(), store);
            }
        };
        if let Some(kept_out) = self.kept_out.take() {
            return self.conclude_kept_out(limiter, request, *kept_out, in_flight);
        }
        let route = Arc::clone(&self.decision.route);
        match route.policy.denial(&self.decision.queried) {
            None if route.limits_concurrency() => self.enter(limiter, request, in_flight),
            None => {
                self.decision.count();
                self.forward(limiter, request, in_flight, None)
            }
            Some(mut denial) => {
                self.decision.count();
                self.deny(limiter, request, &route, &mut denial)
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
        kept_out: KeptOut,
        in_flight: Option<InFlight>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let store = Some(self.waited());
        let decision = &mut self.decision;
        let verdict = decision.verdict(Disposition::Denied);
        let kept_out = kept_out.decided(Verdict { store, ..verdict });
        let charges = decision.charges(&limiter.settings.backend);
        let route = Arc::clone(&decision.route);
        let mut context = decision.status(Verdict::new(Disposition::Denied));
        context.hold(charges.map(HeldCharges::new));
        context.in_flight = in_flight;
        kept_out.treat(&mut limiter.inner, request, &route, context)
    }

    /// Lets the request through.
    pub(super) fn forward<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        in_flight: Option<InFlight>,
        slot: Option<UpstreamSlot>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let store = self.waited();
        let decoys = self.decision.route.decoys.as_ref();
        let sample = decoys.map(|decoys| decoys.sample(&request));
        let mut upload = sample.as_ref().and_then(|sample| sample.upload());
        let charges = self.decision.charges(&limiter.settings.backend);
        let mut context = self.decision.allowed(in_flight, charges.clone());
        context.verdict.store = Some(store);
        context.hold(sample);
        // A sample must not have what Weir adds.
        context.hold(self.decision.told_delay());
        if let Some(slot) = slot {
            context.hold_slot(slot, &request, &mut upload, charges.as_ref());
        }
        let is_by_json = charges
            .as_ref()
            .is_some_and(|charges| charges.are_by_json());
        let meter = charges.filter(|charges| charges.is_by_body());
        let mut request = request.map(|body| Metered::new(body, meter, upload));
        if is_by_json {
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

    /// Refuses a request without a value that a limit must have.
    fn deny_missing<Q: LimitedRequest, F, R: Send + 'static>(
        &mut self,
        request: Q,
        missing: &MissingValue,
    ) -> ResponseState<F, R> {
        let route = Arc::clone(&self.decision.route);
        let context = self.decision.lacking(missing);
        match &route.policy.on_denied {
            OnDenied::Shadow(shadow) => answer_by_decoy(shadow, request, context),
            OnDenied::Reject(_) => {
                let mut response = rejection::missing(&missing.limit, &missing.source);
                let tasks = context.complete(&mut response);
                ResponseState::answered(response, tasks)
            }
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
    ) -> ResponseState<S::Future, S::ResponseBody> {
        if let Some(forwarded) = &limiter.settings.forwarded
            && forwarded.count_denied(&request)
            && route.policy.hook.is_none()
        {
            let unreadable = &limiter.settings.unreadable;
            unreadable.note(denial.limit(), request.uri(), request.headers());
        }
        let store = self.waited();
        let rejection = match &route.policy.on_denied {
            OnDenied::Reject(rejection) => rejection,
            OnDenied::Shadow(shadow) => {
                let mut context = self.decision.denied(denial);
                context.verdict.store = Some(store);
                return answer_by_decoy(shadow, request, context);
            }
        };
        let waits = &limiter.settings.waits;
        waits.spread(&mut self.decision, denial);
        let verdict = self.decision.denied_by(denial);
        let empty = rejection::in_memory_of(request);
        let (settings, queried) = (&limiter.settings, &self.decision.queried);
        let by = (route, rejection);
        let mut response = denial_response(empty, settings, by, queried, denial);
        let strictest = || route.policy.strictest(queried);
        response.extensions_mut().insert(Verdict {
            store: Some(store),
            strictest: is_logged().then(strictest).flatten(),
            ..verdict
        });
        ResponseState::answered(response, self.decision.tasks_of_denial())
    }
}

/// Has a decoy answer a request that limits deny.
fn answer_by_decoy<Q: LimitedRequest, F, R: Send + 'static>(
    shadow: &Arc<Shadow>,
    request: Q,
    mut context: ResponseContext,
) -> ResponseState<F, R> {
    context.verdict.disposition = Disposition::Shadowed;
    ResponseState::Answering {
        answer: Box::pin(Arc::clone(shadow).respond(request)),
        context: Box::new(context),
    }
}

/// Refuses a request whose client nothing has identified, where a limit counts addresses. One
/// bucket for all of them would let one client use up what others need.
fn unidentified<F, R>() -> ResponseState<F, R> {
    tracing::error!(
        target: "weir::middleware::rate_limit::pipeline",
        "a limit counts addresses, and the server leaves none in the request's extensions"
    );
    let detail = "The client's address is not known.";
    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail);
    let mut response = ResponseBody::problem(problem);
    let verdict = Verdict::new(Disposition::Unavailable);
    response.extensions_mut().insert(verdict);
    ResponseState::answered(response, PendingTasks::new())
}
