//! A request whose limits are being checked, and what becomes of it then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body::Body;
use smallvec::smallvec;
use tower::Service;

use super::future::State;
use super::gate::{Held, Judgement, Watch, treat};
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
    /// What bans have to do with it, where there are any.
    watch: Option<Box<Watch>>,
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
            watch: None,
        }
    }

    /// The same question, about bans as well, whose decisions come first.
    pub(super) fn watched(self, watch: Box<Watch>) -> Self {
        Self {
            watch: Some(watch),
            ..self
        }
    }

    /// Whether nothing that the store may say would be acted upon.
    fn is_idle(&self) -> bool {
        self.asked.is_idle() && self.watch.as_ref().is_none_or(|watch| watch.is_idle())
    }

    /// How many decisions are asked for.
    fn len(&self) -> usize {
        self.asked.len() + self.watch.as_ref().map_or(0, |watch| watch.len())
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
    pub(super) fn resolve(mut self, answer: Result<Outcome, StoreError>) -> State<S::Future, R> {
        let store = Some(self.since.elapsed());
        let mut outcome = match answer {
            Ok(outcome) => outcome,
            // A dry run stops nobody, whatever becomes of the store.
            Err(_) if self.is_idle() => Outcome {
                decisions: smallvec![None; self.len()],
                basis: Basis::FailedOpen,
            },
            Err(_) => return unavailable(store),
        };
        let would_ban = match self.judge(&mut outcome) {
            Judgement::Held(held) => return self.keep_out(&held, &outcome, store),
            Judgement::WouldHold(ban) => Some(ban),
            Judgement::Free => None,
        };
        if let Some(lack) = self.watch.as_mut().and_then(|watch| watch.take_lack()) {
            self.struck_by(self.policy.name_of(&lack).as_deref().into_iter());
            return lacking(&self.policy, &lack, self.request);
        }
        let policy = self.policy.clone();
        policy.count(&self.asked, &outcome);
        match policy.denial(&self.asked, &outcome) {
            None => self.forward(outcome, store, would_ban),
            Some(denial) => {
                self.struck_by(denial.limits());
                self.deny(&denial, outcome, store)
            }
        }
    }

    /// What bans say about the request, whose decisions it takes off.
    fn judge(&mut self, outcome: &mut Outcome) -> Judgement {
        let path = self.request.uri().path();
        let judge = |watch: &mut Box<Watch>| watch.judge(outcome, path);
        self.watch.as_mut().map_or(Judgement::Free, judge)
    }

    /// Limits deny the request, which may be a strike.
    fn struck_by<'l>(&mut self, limits: impl Iterator<Item = &'l str> + Clone) {
        if let Some(watch) = &mut self.watch {
            watch.denied_by(limits);
        }
    }

    /// Gives the banned what they get.
    fn keep_out(
        self,
        held: &Held,
        outcome: &Outcome,
        store: Option<Duration>,
    ) -> State<S::Future, R> {
        let Some(treating) = held.treating() else {
            return unavailable(store);
        };
        let verdict = Verdict {
            banned_by: Some(Arc::clone(&held.name)),
            decided_by: stand_in(outcome),
            store,
            ..Verdict::new(Disposition::Denied)
        };
        let outcome = self.asked.imagined(outcome.basis);
        let passage = Passage {
            verdict,
            standing: Some((self.asked, outcome)),
            ..Passage::of(Disposition::Denied, Some(self.policy))
        };
        treat(&treating, self.inner, self.request, passage)
    }

    /// Lets the request through.
    fn forward(
        mut self,
        outcome: Outcome,
        store: Option<Duration>,
        would_ban: Option<Arc<str>>,
    ) -> State<S::Future, R> {
        let would_deny = self.policy.would_deny(&self.asked, &outcome);
        let verdict = Verdict {
            disposition: match outcome.basis {
                Basis::FailedOpen => Disposition::FailedOpen,
                _ if would_deny.is_some() || would_ban.is_some() => Disposition::WouldDeny,
                _ if self.asked.is_empty() => Disposition::Unlimited,
                _ => Disposition::Allowed,
            },
            denied_by: would_deny,
            banned_by: would_ban,
            decided_by: stand_in(&outcome),
            store,
            listed: None,
        };
        let lesson = Lesson::of(&self.policy, self.watch.as_deref(), &self.request);
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
                standing: (!self.asked.is_empty()).then_some((self.asked, outcome)),
                lesson,
                settlement,
                watch: self.watch,
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
