//! The slot among the requests in flight that a request needs where its upstream's are limited. It
//! is asked for when all limits have allowed the request; one that is shed gets back what they
//! took.

use std::sync::Arc;

use http_body::Body;
use weir_http::request::HttpRequest;
use weir_limit::Priority;
use weir_limit::time::Nanos;
use weir_runtime::loop_time;
use weir_store::Outcome;
use weir_telemetry::Disposition;

use super::decide::PendingState;
use super::in_flight::InFlight;
use super::plan::size;
use super::response_context::{HeldSlot, Metered, ResponseContext, UploadTime};
use super::{LimitedRequest, LimitedService, RateLimit, ResponseState};
use crate::concurrency::{Admission, Slot};
use crate::cors::Cors;
use crate::overload::OwnShed;
use crate::{RequestContext, Shed, Verdict, rejection};

const fn by_upstream(priority: Priority) -> Shed {
    Shed {
        by: "upstream",
        priority,
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

    /// Decides about a request of a worker that is overloaded, before its limits are asked.
    #[cold]
    pub(super) fn start_overloaded<Q: LimitedRequest>(
        &mut self,
        request: Q,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let own = self.own_shed(&request);
        if let Some(own) = &own
            && own.is_enforced
        {
            return respond(without_limits(own.shed), own.shed, Some(own.retry_in));
        }
        let state = self.ask(request);
        match own {
            Some(OwnShed { shed, .. }) => state.marked(shed),
            None => state,
        }
    }

    /// Whether a request is shed as this worker is overloaded. One whose account says its priority,
    /// and is not known yet, comes here again. Of a preflight nobody knows the account, and its
    /// response costs no more.
    fn own_shed<Q: LimitedRequest>(&self, request: &Q) -> Option<OwnShed> {
        let extensions = request.extensions();
        let settings = &self.settings;
        let overload = settings.overload.as_ref()?;
        let route = settings.route_or_none(extensions);
        let exempts = |cors: &Arc<Cors>| {
            cors.exempts(request.method(), request.headers(), || size(request.body()))
        };
        if overload.concerns_accounts() && RequestContext::unverified(extensions).is_some()
            || route.cors().is_some_and(exempts)
        {
            return None;
        }
        overload.shed(route.priority, extensions, settings.backend.now())
    }

    /// Forwards a request that no limit applies to. One of a client on the allow list is counted,
    /// and never shed.
    #[cold]
    pub(super) fn pass_by_slot<Q: LimitedRequest>(
        &mut self,
        request: Q,
        context: ResponseContext,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let route = self.settings.route_or_none(request.extensions());
        let always = context.verdict.listed.is_some();
        let concurrency = route.concurrency.as_ref();
        let admission = concurrency.map(|limited| limited.admit(request.extensions(), always));
        let Some(admission) = admission else {
            return ResponseState::Forwarding {
                future: self.inner.call(request.map(Metered::unmetered)),
                context: Box::new(context),
            };
        };
        self.when_admitted(
            admission,
            (request, context),
            |(request, mut context), limiter, slot| match slot {
                Ok(slot) => {
                    let mut upload = None;
                    context.hold(slot, &request, &mut upload);
                    let request = request.map(|body| Metered::new(body, None, upload));
                    ResponseState::Forwarding {
                        future: limiter.inner.call(request),
                        context: Box::new(context),
                    }
                }
                Err(shed) => {
                    let route = limiter.settings.route_or_none(request.extensions());
                    route.metrics.shed_by_upstream();
                    respond(without_limits(shed), shed, None)
                }
            },
        )
    }
}

impl PendingState {
    /// Goes on with a request that its limits allow, when its upstream has a slot for it.
    #[cold]
    pub(super) fn enter<S: LimitedService<Q>, Q: LimitedRequest>(
        &mut self,
        limiter: &mut RateLimit<S>,
        request: Q,
        outcome: Outcome,
        in_flight: Option<InFlight>,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let concurrency = self.decision.route.concurrency.as_ref();
        let admission = concurrency.map(|limited| limited.admit(request.extensions(), false));
        let Some(admission) = admission else {
            return self.forward(limiter, request, outcome, in_flight, None);
        };
        let arrived = loop_time::now();
        let has_slot = matches!(admission.1, Admission::Admitted(_));
        let backend = &limiter.settings.backend;
        let refund = (!has_slot).then(|| self.decision.refund(&outcome, backend));
        limiter.when_admitted(
            admission,
            (self.take(), request, outcome, in_flight, refund),
            move |(mut pending, request, outcome, in_flight, refund), limiter, slot| {
                // The store did not take the time that the request waited here.
                pending.since += loop_time::now().saturating_duration_since(arrived);
                match slot {
                    Ok(slot) => {
                        if let Some(refund) = refund {
                            refund.cancel();
                        }
                        pending.decision.count(&outcome);
                        pending.forward(limiter, request, outcome, in_flight, Some(slot))
                    }
                    Err(shed) => {
                        drop(refund);
                        pending.decision.route.metrics.shed_by_upstream();
                        let store = pending.waited();
                        let mut context = pending.decision.shed(shed, outcome);
                        context.verdict.store = Some(store);
                        respond(context, shed, None)
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
    pub(super) fn hold<Q: HttpRequest<Body: Body>>(
        &mut self,
        slot: Slot,
        request: &Q,
        upload: &mut Option<Arc<UploadTime>>,
    ) {
        self.verdict.shed = slot.would_shed.map(by_upstream);
        if !request.body().is_end_stream() {
            upload.get_or_insert_default();
        }
        let upload = upload.clone();
        self.slot = Some(Box::new(HeldSlot::new(slot, upload)));
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
    let mut response = rejection::shed(shed.by, retry_in);
    let strikes = context.complete(&mut response);
    ResponseState::answered(response, strikes)
}
