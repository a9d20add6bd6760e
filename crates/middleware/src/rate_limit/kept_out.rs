//! Requests that a ban or the block list keeps out.

use std::sync::Arc;
use std::time::Duration;

use weir_limit::time::Nanos;
use weir_rules::{Captures, RequestAttributes};
use weir_telemetry::Disposition;

use super::decision::PendingDecision;
use super::metered::Metered;
use super::response_context::ResponseContext;
use super::{LimitedRequest, LimitedService, ResponseState};
use crate::access::{AccessControl, ActiveBan, PreparedTreatment, TreatmentAnswer};
use crate::route::{RouteState, Routed};
use crate::{RequestContext, Verdict};

/// What a client gets that a ban or the block list keeps out.
pub(super) struct KeptOut {
    treatment: Arc<PreparedTreatment>,
    /// When it would be let in again.
    retry_in: Nanos,
    verdict: Verdict,
}

impl KeptOut {
    pub(super) fn listed(control: &AccessControl) -> Self {
        Self {
            treatment: Arc::clone(control.blocked()),
            retry_in: Nanos::NEVER,
            verdict: Verdict {
                listed: Some("block"),
                ..Verdict::new(Disposition::Denied)
            },
        }
    }

    /// By a ban that stands, without a question to the store. A request that `awaits_account` will be
    /// checked again when that is known.
    #[inline(always)]
    pub(super) fn standing(
        control: &AccessControl,
        request: &RequestAttributes<'_>,
        awaits_account: bool,
    ) -> Option<Self> {
        let ban = control.standing(request, awaits_account)?;
        let verdict = Verdict {
            decided_at: Some(request.now),
            ..Verdict::new(Disposition::Denied)
        };
        Some(Self::banned(ban, verdict))
    }

    /// Whether its answer has to look real. It takes as long as a real one then, and so tells no
    /// client that it is banned.
    pub(super) fn looks_real(&self) -> bool {
        self.treatment.looks_real()
    }

    /// The same, where limits have decided about the request as about one that is not kept out.
    pub(super) fn decided(self, verdict: Verdict) -> Self {
        Self {
            verdict: Verdict {
                banned_by: self.verdict.banned_by,
                listed: self.verdict.listed,
                ..verdict
            },
            ..self
        }
    }

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
}

impl KeptOut {
    /// For a request that nobody treats.
    pub(super) fn untreated(self, route: &Arc<RouteState>) -> ResponseContext {
        ResponseContext::new(self.verdict, Some(Arc::clone(route)))
    }

    pub(super) fn treat<S: LimitedService<Q>, Q: LimitedRequest>(
        self,
        inner: &mut S,
        request: Q,
        route: &Arc<RouteState>,
        mut context: ResponseContext,
    ) -> ResponseState<S::Future, S::ResponseBody> {
        let (disposition, answer) = self.treatment.treat(request, self.retry_in, route);
        context.verdict = Verdict {
            disposition,
            ..self.verdict
        };
        let made = |mut response, context: ResponseContext| {
            let tasks = context.complete(&mut response);
            ResponseState::answered(response, tasks)
        };
        match answer {
            TreatmentAnswer::Response(response) => made(response, context),
            TreatmentAnswer::Later(answer) => ResponseState::Answering {
                answer,
                context: Box::new(context),
            },
            TreatmentAnswer::Upstream(upstream, mut request) => {
                let known = RequestContext::entry(request.extensions_mut());
                let routed = known.routed.get_or_insert_with(|| Routed {
                    route: Arc::clone(route),
                    captures: Captures::default(),
                    diverted_to: None,
                });
                routed.diverted_to = Some(upstream);
                ResponseState::Forwarding {
                    future: inner.call(request.map(Metered::unmetered)),
                    context: Box::new(context),
                }
            }
        }
    }
}

impl PendingDecision {
    /// For a request that a ban keeps out, as the store says, which took so long.
    #[cold]
    pub(super) fn kept_out(&self, by: ActiveBan, store: Option<Duration>) -> KeptOut {
        let verdict = Verdict {
            store,
            ..self.verdict(Disposition::Denied)
        };
        KeptOut::banned(by, verdict)
    }
}
