//! Requests that are shed: by the worker, before limits are asked, and for want of a slot among the
//! requests in flight to an upstream. The slot is asked for when all limits have allowed the request,
//! and its body has been read where the proxy does that first; a request that is shed then gets back
//! what they took.

use std::sync::Arc;

use http_body::Body;
use weir_http::request::HttpRequest;
use weir_limit::Priority;
use weir_limit::time::Nanos;
use weir_runtime::loop_time;
use weir_telemetry::Disposition;

use super::deferred_charge::DeferredCharges;
use super::deferred_slot::{DeferredSlot, UpstreamSlot, by_upstream};
use super::held_slot::HeldSlot;
use super::in_flight::InFlight;
use super::metered::{Metered, UploadTime};
use super::pipeline::PendingState;
use super::plan::size;
use super::response_context::ResponseContext;
use super::spent::Spent;
use super::{LimitedRequest, LimitedService, RateLimit, RateLimitLayer, ResponseState};
use crate::concurrency::{Admission, RouteConcurrency, Slot, SlotClaim};
use crate::overload::{OwnShed, Shedding, shed_response};
use crate::route::RouteState;
use crate::{RequestContext, ResponseBody, Shed, Verdict};

impl RateLimitLayer {
    /// The same layer, where workers that are overloaded shed requests. Those that a
    /// [`RouteLayer`](crate::RouteLayer) has found a route for are shed as their route's state says,
    /// which is made of the same `shedding`.
    pub fn with_shedding(self, shedding: &Shedding) -> Self {
        let by_worker = shedding.by_worker().by_worker;
        self.with(|settings| {
            settings.overload.clone_from(&by_worker);
            let own = settings.route.iter_mut();
            for route in own.chain([&mut settings.unrouted]) {
                Arc::make_mut(route)
                    .shedding
                    .by_worker
                    .clone_from(&by_worker);
            }
        })
    }
}

impl<S> RateLimit<S> {
    /// Goes on with a request that has a slot or is shed: at once, or when it has waited.
    fn when_admitted<W, N, F, R>(
        &mut self,
        (priority, admission): (Priority, Admission),
        waiting: W,
        next: N,
    ) -> ResponseState<F, R>
    where
        N: FnOnce(W, &mut Self, Result<Slot, Shed>) -> ResponseState<F, R> + Send + 'static,
        W: Send + 'static,
        S: Clone + Send + 'static,
    {
        let shed = by_upstream(priority);
        match admission {
            Admission::Admitted(slot) => next(waiting, self, Ok(slot)),
            Admission::Shed => next(waiting, self, Err(shed)),
            Admission::Waits(wait) => {
                // The service that is ready waits too; its clone takes its place.
                let clone = self.clone();
                let mut ready = std::mem::replace(self, clone);
                ResponseState::Waiting {
                    decision: Box::pin(async move {
                        let slot = wait.wait().await;
                        next(waiting, &mut ready, slot.ok_or(shed))
                    }),
                }
            }
        }
    }

    /// Asks the limits about a request, unless this worker, which has too much to do, sheds it. One
    /// that `comes_again` has been here before its account was known.
    #[cold]
    pub(super) fn ask_unless_shed<Q: LimitedRequest>(
        &mut self,
        request: Q,
        comes_again: bool,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        match self.own_shed(&request, comes_again) {
            Some(OwnShed::Shed(shed, retry_in)) => {
                respond(without_limits(shed), shed, Some(retry_in))
            }
            Some(OwnShed::Marked(shed)) => self.ask(request).marked(shed),
            None => self.ask(request),
        }
    }

    /// Whether a request is shed as this worker is overloaded. One whose account says its priority,
    /// and is not known yet, comes here again; any other that comes again has been decided about,
    /// unless the lists had to know its account first. Of a preflight nobody knows the account, and its
    /// response costs no more.
    fn own_shed<Q: LimitedRequest>(&self, request: &Q, comes_again: bool) -> Option<OwnShed> {
        let extensions = request.extensions();
        let settings = &self.settings;
        let route = settings.route_or_none(extensions);
        let overload = route.shedding.by_worker.as_ref()?;
        let by_accounts = overload.concerns_accounts();
        let is_decided = comes_again && !by_accounts && !self.lists_accounts();
        let is_early = by_accounts && RequestContext::unverified(extensions).is_some();
        let body_bytes = || size(request.body());
        if is_decided
            || is_early
            || (route.policy).exempts(request.method(), request.headers(), body_bytes)
        {
            return None;
        }
        let priority = route.shedding.priority;
        overload.shed(priority, extensions, settings.backend.now())
    }

    /// Forwards a request that no limit applies to. One of a client on the allow list is counted,
    /// and never shed.
    #[cold]
    pub(super) fn pass_by_slot<Q: LimitedRequest>(
        &mut self,
        mut request: Q,
        context: ResponseContext,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let route = Arc::clone(self.settings.route_or_none(request.extensions()));
        let always = context.verdict.listed.is_some();
        let Some(limited) = &route.shedding.by_upstream else {
            return ResponseState::Forwarding {
                future: self.inner.call(request.map(Metered::unmetered)),
                context: Box::new(context),
            };
        };
        let claim = limited.claim(request.extensions(), always);
        if defers(limited, &request) {
            let slot = defer(&mut request, &route, claim, None);
            return self.forward_with_slot(request, context, slot);
        }
        self.when_admitted(
            (claim.priority, limited.admit(claim)),
            (request, context),
            |(request, context), limiter, slot| match slot {
                Ok(slot) => {
                    limiter.forward_with_slot(request, context, UpstreamSlot::Granted(slot))
                }
                Err(shed) => {
                    let route = limiter.settings.route_or_none(request.extensions());
                    route.shedding.count_by_upstream();
                    respond(without_limits(shed), shed, None)
                }
            },
        )
    }
}

impl<S> RateLimit<S> {
    fn forward_with_slot<Q: LimitedRequest>(
        &mut self,
        request: Q,
        mut context: ResponseContext,
        slot: UpstreamSlot,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let mut upload = None;
        context.hold_slot(slot, &request, &mut upload, None);
        let request = request.map(|body| Metered::new(body, None, upload));
        ResponseState::Forwarding {
            future: self.inner.call(request),
            context: Box::new(context),
        }
    }
}

/// Whether a request asks for its slot when its body has been read.
fn defers<Q: LimitedRequest>(limited: &RouteConcurrency, request: &Q) -> bool {
    limited.reads_bodies_first && !request.body().is_end_stream()
}

/// Leaves a gate in the request, where it asks for its slot.
fn defer<Q: LimitedRequest>(
    request: &mut Q,
    route: &Arc<RouteState>,
    claim: SlotClaim,
    spent: Option<Spent>,
) -> UpstreamSlot {
    let (gate, slot) = DeferredSlot::new(route, claim, spent);
    request.extensions_mut().insert(gate);
    UpstreamSlot::Deferred(slot)
}

impl PendingState {
    /// Goes on with a request that its limits allow, when its upstream has a slot for it.
    #[cold]
    pub(super) fn enter<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        mut request: Q,
        in_flight: Option<InFlight>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let route = Arc::clone(&self.decision.route);
        let Some(limited) = &route.shedding.by_upstream else {
            return self.forward(limiter, request, in_flight, None);
        };
        let claim = limited.claim(request.extensions(), false);
        if defers(limited, &request) {
            let backend = &limiter.settings.backend;
            let spent = self.decision.spent(backend);
            let slot = Some(defer(&mut request, &route, claim, Some(spent)));
            return self.forward(limiter, request, in_flight, slot);
        }
        let admission = (claim.priority, limited.admit(claim));
        let arrived = loop_time::now();
        let has_slot = matches!(admission.1, Admission::Admitted(_));
        let backend = &limiter.settings.backend;
        let refund = (!has_slot).then(|| self.decision.refund(backend));
        limiter.when_admitted(
            admission,
            (self.take(), request, in_flight, refund),
            move |(mut pending, request, in_flight, refund), limiter, slot| {
                // The store did not take the time that the request waited here.
                pending.since += loop_time::now().saturating_duration_since(arrived);
                match slot {
                    Ok(slot) => {
                        if let Some(refund) = refund {
                            refund.cancel();
                        }
                        pending.decision.count();
                        let slot = Some(UpstreamSlot::Granted(slot));
                        pending.forward(limiter, request, in_flight, slot)
                    }
                    Err(shed) => {
                        drop(refund);
                        pending.decision.route.shedding.count_by_upstream();
                        let verdict = Verdict {
                            shed: Some(shed),
                            store: Some(pending.waited()),
                            ..pending.decision.verdict(Disposition::Shed)
                        };
                        respond(pending.decision.refunded(verdict), shed, None)
                    }
                }
            },
        )
    }
}

impl<F: 'static, R: 'static> ResponseState<F, R> {
    /// Marks a request that would be shed without a dry run, unless another mark is there. Its
    /// client may leave before there is a response, so the mark is where the log looks then.
    fn marked(mut self, shed: Shed) -> Self {
        let verdict = match &mut self {
            Self::Waiting { .. } => None,
            Self::Forwarding { context, .. } | Self::Answering { context, .. } => {
                Some(&mut context.verdict)
            }
            Self::Answered { response, .. } => {
                let response = response.as_mut();
                response.and_then(|made| made.extensions_mut().get_mut::<Verdict>())
            }
        };
        if let Some(verdict) = verdict {
            verdict.shed.get_or_insert(shed);
        }
        match self {
            Self::Waiting { decision } => Self::Waiting {
                decision: Box::pin(async move { decision.await.marked(shed) }),
            },
            state => state,
        }
    }
}

impl ResponseContext {
    /// Holds a slot until the response begins. `upload` notes when the request's body is read,
    /// which is no time of the upstream's.
    pub(super) fn hold_slot<Q: HttpRequest<Body: Body>>(
        &mut self,
        slot: UpstreamSlot,
        request: &Q,
        upload: &mut Option<Arc<UploadTime>>,
        charges: Option<&Arc<DeferredCharges>>,
    ) {
        if !request.body().is_end_stream() {
            upload.get_or_insert_default();
        }
        let upload = upload.clone();
        let held = match slot {
            UpstreamSlot::Granted(slot) => {
                self.verdict.shed = slot.would_shed.map(by_upstream);
                HeldSlot::new(slot, upload)
            }
            UpstreamSlot::Deferred(slot) => {
                HeldSlot::deferred(slot.with_charges(charges.cloned()), upload)
            }
        };
        // First, as a slot that is still waited for decides whether anything is charged.
        self.held.insert(0, Box::new(held));
    }
}

/// The result for a request that is shed, and that no limit was asked about.
fn without_limits(shed: Shed) -> ResponseContext {
    let verdict = Verdict {
        shed: Some(shed),
        ..Verdict::new(Disposition::Shed)
    };
    ResponseContext::new(verdict, None)
}

fn respond<F, R>(
    context: ResponseContext,
    shed: Shed,
    retry_in: Option<Nanos>,
) -> ResponseState<F, R> {
    let mut response = ResponseBody::whole(shed_response(shed, retry_in));
    let tasks = context.complete(&mut response);
    ResponseState::answered(response, tasks)
}
