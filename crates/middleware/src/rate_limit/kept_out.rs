//! Requests that a ban or the block list keeps out.

use std::sync::Arc;

use weir_limit::time::{Nanos, Timestamp};
use weir_rules::Captures;
use weir_telemetry::Disposition;

use super::decoys::with_decoy;
use super::metered::Metered;
use super::response_context::ResponseContext;
use super::{LimitedRequest, LimitedService, ResponseState};
use crate::bans::{AccessControl, ActiveBan, PreparedTreatment, TreatmentAnswer};
use crate::route::{RouteState, Routed};
use crate::{RequestContext, Verdict, rejection};

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

    /// By a ban that stands, without a question to the store.
    pub(super) fn standing(ban: ActiveBan, now: Timestamp) -> Self {
        let verdict = Verdict {
            decided_at: Some(now),
            ..Verdict::new(Disposition::Denied)
        };
        Self::banned(ban, verdict)
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

    pub(super) fn banned(ban: ActiveBan, verdict: Verdict) -> Self {
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
    pub(super) fn treat<S: LimitedService<Q>, Q: LimitedRequest>(
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
                Some(shadow) => with_decoy(shadow, request, context),
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
