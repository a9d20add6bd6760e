//! A request whose limits are being checked, and what becomes of it then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body::Body;
use smallvec::smallvec;
use tower::Service;

use super::future::State;
use super::metered::Metered;
use super::passage::{Lesson, Passage};
use super::plan::{Asked, Denial, Lack, Prepared};
use super::settlement::{Dues, Settlement};
use super::{OnDenied, Rejection, reject};
use crate::middleware::{Answer, Verdict};
use crate::store::{Basis, Outcome, StoreError};
use crate::telemetry::Disposition;

/// A request whose limits are being checked.
pub(super) struct Question<S, B> {
    policy: Prepared,
    asked: Asked,
    /// What is left to be done when the request is through; most requests leave nothing.
    dues: Option<Box<Dues>>,
    request: Request<B>,
    inner: S,
    since: Instant,
}

impl<S, B> Question<S, B> {
    pub(super) fn new(
        policy: Prepared,
        asked: Asked,
        dues: Option<Box<Dues>>,
        request: Request<B>,
        inner: S,
    ) -> Self {
        Self {
            policy,
            asked,
            dues,
            request,
            inner,
            since: Instant::now(),
        }
    }
}

impl<S, B, R> Question<S, B>
where
    S: Service<Request<Metered<B>>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    /// Goes on with a request, now that the store has answered or failed.
    pub(super) fn resolve(self, answer: Result<Outcome, StoreError>) -> State<S::Future, R> {
        let store = Some(self.since.elapsed());
        let outcome = match answer {
            Ok(outcome) => outcome,
            // A dry run stops nobody, whatever becomes of the store.
            Err(_) if self.asked.is_idle() => Outcome {
                decisions: smallvec![None; self.asked.len()],
                basis: Basis::FailedOpen,
            },
            Err(_) => return unavailable(store),
        };
        let policy = self.policy.clone();
        policy.count(&self.asked, &outcome);
        match policy.denial(&self.asked, &outcome) {
            None => self.forward(outcome, store),
            Some(denial) => self.deny(&denial, outcome, store),
        }
    }

    /// Lets the request through.
    fn forward(mut self, outcome: Outcome, store: Option<Duration>) -> State<S::Future, R> {
        let would_deny = self.policy.would_deny(&self.asked, &outcome);
        let verdict = Verdict {
            disposition: match outcome.basis {
                Basis::FailedOpen => Disposition::FailedOpen,
                _ if would_deny.is_some() => Disposition::WouldDeny,
                _ => Disposition::Allowed,
            },
            denied_by: would_deny,
            decided_by: stand_in(&outcome),
            store,
        };
        let lesson = Lesson::of(&self.policy, &self.request);
        let dues = self.dues.take();
        let settlement =
            dues.map(|dues| Arc::new(Settlement::new(self.policy.clone(), *dues, &outcome)));
        let meter = settlement.clone().filter(|it| it.is_by_body());
        let request = self.request.map(|body| Metered::new(body, meter));
        State::Forwarding {
            future: self.inner.call(request),
            passage: Passage {
                verdict,
                policy: Some(self.policy),
                standing: Some((self.asked, outcome)),
                lesson,
                settlement,
            },
        }
    }

    fn deny(
        self,
        denial: &Denial<'_>,
        outcome: Outcome,
        store: Option<Duration>,
    ) -> State<S::Future, R> {
        let verdict = Verdict {
            denied_by: Some(denial.limit()),
            decided_by: stand_in(&outcome),
            store,
            ..Verdict::new(Disposition::Denied)
        };
        let passage = Passage {
            verdict,
            standing: Some((self.asked, outcome)),
            ..Passage::of(Disposition::Denied, Some(self.policy.clone()))
        };
        turn_away(&self.policy, self.request, passage, |rejection| {
            reject::denied(rejection, denial.document(rejection), denial.decision())
        })
    }
}

/// Refuses a request without a value that a limit must have.
pub(super) fn lacking<B, F, R>(policy: &Prepared, lack: &Lack, request: Request<B>) -> State<F, R>
where
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    let denied_by = policy.name_of(lack);
    let limit = denied_by.clone().unwrap_or_default();
    let mut passage = Passage::of(Disposition::Denied, None);
    passage.verdict.denied_by = denied_by;
    turn_away(policy, request, passage, |_| {
        reject::missing(&limit, lack.source())
    })
}

/// Ends a request that is not let through: by the route's decoy, or by an honest answer.
fn turn_away<B, F, R>(
    policy: &Prepared,
    request: Request<B>,
    mut passage: Passage,
    honest: impl FnOnce(&Rejection) -> Response<Answer<R>>,
) -> State<F, R>
where
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    match &policy.policy().on_denied {
        OnDenied::Shadow(shadow) => {
            passage.verdict.disposition = Disposition::Shadowed;
            let (head, body) = request.into_parts();
            State::Answering {
                future: Box::pin(Arc::clone(shadow).answer(head, body)),
                passage,
            }
        }
        OnDenied::Reject(rejection) => {
            passage.verdict.disposition = Disposition::Denied;
            let mut response = honest(rejection);
            passage.mark(&mut response);
            State::answered(response)
        }
    }
}

fn unavailable<F, R>(store: Option<Duration>) -> State<F, R> {
    let mut response = reject::unavailable();
    let verdict = Verdict {
        store,
        ..Verdict::new(Disposition::Unavailable)
    };
    response.extensions_mut().insert(verdict);
    State::answered(response)
}

/// Who decided in the store's place.
fn stand_in(outcome: &Outcome) -> Option<&'static str> {
    match outcome.basis {
        Basis::Remembered => Some("remembered"),
        Basis::Local => Some("local"),
        Basis::Store | Basis::FailedOpen => None,
    }
}
