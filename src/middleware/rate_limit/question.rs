//! A request whose limits are being checked, and what becomes of it then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body::Body;
use smallvec::smallvec;
use tower::Service;

use super::future::{Progress, State};
use super::gate::{ActiveBan, BanCheck, treat};
use super::leasing::{AwaitingLease, InFlight, Leasing};
use super::metered::Metered;
use super::passage::{DecoySample, ResponseContext};
use super::plan::{Denial, MissingValue, Prepared, QueriedLimits};
use super::settlement::{Dues, Settlement};
use super::{OnDenied, Rejection, reject};
use crate::middleware::{Answer, Verdict};
use crate::store::{DecisionSource, Outcome, StoreError};
use crate::telemetry::Disposition;

/// A request whose limits are being checked.
pub(super) struct AwaitingDecision<S, B> {
    pub(super) policy: Prepared,
    pub(super) asked: QueriedLimits,
    /// What is left to be done when the request is through; most requests leave nothing.
    pub(super) dues: Option<Box<Dues>>,
    /// The places to ask for when the store has allowed the request; most requests need none.
    pub(super) leasing: Option<Box<Leasing>>,
    /// What bans have to do with it, where there are any; their decisions come first.
    pub(super) watch: Option<Box<BanCheck>>,
    pub(super) request: Request<B>,
    pub(super) inner: S,
    pub(super) since: Instant,
}

impl<S, B> AwaitingDecision<S, B> {
    /// Whether nothing that the store may say would be acted upon.
    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_idle() && self.watch.as_ref().is_none_or(|watch| watch.is_idle())
    }
}

impl<S, B, R> AwaitingDecision<S, B>
where
    S: Service<Request<Metered<B>>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    /// How many bans and limits the store was asked about.
    fn of_store(&self) -> usize {
        let leasing = self.leasing.as_ref();
        let limits = self.asked.len() - leasing.map_or(0, |it| it.claims.len());
        limits + self.watch.as_ref().map_or(0, |watch| watch.len())
    }

    /// Goes on with a request, now that the store has answered or failed.
    pub(super) fn resolve(
        mut self,
        answer: Result<Outcome, StoreError>,
    ) -> Progress<S, B, S::Future, R> {
        let mut outcome = match answer {
            Ok(outcome) => outcome,
            // A dry run stops nobody, whatever becomes of the store.
            Err(_) if self.is_idle() => undecided(self.of_store()),
            Err(_) => return Progress::decided(unavailable(Some(self.since.elapsed()))),
        };
        if let Some(held) = self.judge(&mut outcome) {
            return Progress::decided(self.keep_out(&held, &outcome));
        }
        if let Some(lack) = self.watch.as_mut().and_then(|watch| watch.take_lack()) {
            self.struck_by(self.policy.name_of(&lack).as_deref().into_iter());
            let denied = lacking(&self.policy, &lack, self.request, self.watch);
            return Progress::decided(denied);
        }
        if let Some(leasing) = self.leasing.take() {
            if self.policy.denial(&self.asked, &outcome).is_none() {
                let question = AwaitingLease::new(self, leasing, outcome);
                return Progress::Leasing {
                    question: Some(Box::new(question)),
                };
            }
            // Nobody was asked for a place.
            outcome.decisions.resize(self.asked.len(), None);
        }
        Progress::decided(self.decide(outcome, None))
    }

    /// Goes on with a request about which all is known.
    pub(super) fn decide(
        mut self,
        outcome: Outcome,
        places: Option<InFlight>,
    ) -> State<S::Future, R> {
        let store = Some(self.since.elapsed());
        let policy = self.policy.clone();
        policy.count(&self.asked, &outcome);
        match policy.denial(&self.asked, &outcome) {
            None => self.forward(outcome, store, places),
            Some(denial) => {
                self.struck_by(denial.limits());
                self.deny(&denial, outcome, store)
            }
        }
    }

    /// The ban that keeps the request out, by decisions that it takes off.
    fn judge(&mut self, outcome: &mut Outcome) -> Option<ActiveBan> {
        let watch = self.watch.as_mut()?;
        watch.judge(outcome, self.request.uri().path())
    }

    /// Limits deny the request, which may be a strike.
    fn struck_by<'l>(&mut self, limits: impl Iterator<Item = &'l str> + Clone) {
        if let Some(watch) = &mut self.watch {
            watch.denied_by(limits);
        }
    }

    /// Gives the banned what they get.
    fn keep_out(self, held: &ActiveBan, outcome: &Outcome) -> State<S::Future, R> {
        let store = Some(self.since.elapsed());
        let Some(treating) = held.treating() else {
            return unavailable(store);
        };
        let verdict = Verdict {
            banned_by: Some(Arc::clone(&held.name)),
            decided_by: stand_in(outcome),
            store,
            ..Verdict::new(Disposition::Denied)
        };
        let outcome = self.asked.imagined(outcome.basis, held.at);
        let passage = ResponseContext {
            verdict,
            standing: Some((self.asked, outcome)),
            ..ResponseContext::of(Disposition::Denied, Some(self.policy))
        };
        treat(&treating, self.inner, self.request, passage)
    }

    /// Lets the request through.
    fn forward(
        mut self,
        outcome: Outcome,
        store: Option<Duration>,
        in_flight: Option<InFlight>,
    ) -> State<S::Future, R> {
        let would_deny = self.policy.would_deny(&self.asked, &outcome);
        if let (Some(watch), Some(_)) = (&mut self.watch, &would_deny) {
            watch.would_be_denied_by(self.policy.would_denials(&self.asked, &outcome));
        }
        let would_ban = self.watch.as_mut().and_then(|watch| watch.would_hold());
        let verdict = Verdict {
            disposition: match outcome.basis {
                DecisionSource::FailedOpen => Disposition::FailedOpen,
                _ if would_deny.is_some() || would_ban.is_some() => Disposition::WouldDeny,
                _ if self.asked.is_empty() => Disposition::Unlimited,
                _ => Disposition::Allowed,
            },
            denied_by: would_deny,
            banned_by: would_ban,
            listed: None,
            decided_by: stand_in(&outcome),
            store,
            in_flight: self.policy.in_flight(&self.asked, &outcome),
        };
        let lesson = DecoySample::of(&self.policy, self.watch.as_deref(), &self.request);
        let dues = self.dues.take();
        let settlement =
            dues.map(|dues| Arc::new(Settlement::new(self.policy.clone(), *dues, &outcome)));
        let meter = settlement.clone().filter(|it| it.is_by_body());
        let upload = lesson.as_ref().and_then(|lesson| lesson.upload());
        let mut request = self.request.map(|body| Metered::new(body, meter, upload));
        if let Some(in_flight) = &in_flight {
            request.extensions_mut().insert(in_flight.clone());
        }
        State::Forwarding {
            future: self.inner.call(request),
            passage: ResponseContext {
                verdict,
                policy: Some(self.policy),
                standing: (!self.asked.is_empty()).then_some((self.asked, outcome)),
                lesson,
                settlement,
                watch: self.watch,
                in_flight,
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
            in_flight: self.policy.in_flight(&self.asked, &outcome),
            ..Verdict::new(Disposition::Denied)
        };
        let passage = ResponseContext {
            verdict,
            standing: Some((self.asked, outcome)),
            watch: self.watch,
            ..ResponseContext::of(Disposition::Denied, Some(self.policy.clone()))
        };
        turn_away(&self.policy, self.request, passage, |rejection| {
            reject::denied(rejection, denial.document(rejection), denial.decision())
        })
    }
}

/// Refuses a request without a value that a limit must have.
pub(super) fn lacking<B, F, R>(
    policy: &Prepared,
    lack: &MissingValue,
    request: Request<B>,
    watch: Option<Box<BanCheck>>,
) -> State<F, R>
where
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    let denied_by = policy.name_of(lack);
    let limit = denied_by.clone().unwrap_or_default();
    let mut passage = ResponseContext::of(Disposition::Denied, None);
    passage.verdict.denied_by = denied_by;
    passage.watch = watch;
    turn_away(policy, request, passage, |_| {
        reject::missing(&limit, lack.source())
    })
}

/// Ends a request that is not let through: by the route's decoy, or by an honest answer.
fn turn_away<B, F, R>(
    policy: &Prepared,
    request: Request<B>,
    mut passage: ResponseContext,
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
            State::settling(response, passage.struck())
        }
    }
}

/// Nobody has decided.
pub(super) fn undecided(limits: usize) -> Outcome {
    Outcome {
        decisions: smallvec![None; limits],
        basis: DecisionSource::FailedOpen,
    }
}

/// Refuses a request that nobody can decide about.
pub(super) fn unavailable<F, R>(store: Option<Duration>) -> State<F, R> {
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
        DecisionSource::Remembered => Some("remembered"),
        DecisionSource::Local => Some("local"),
        DecisionSource::Store | DecisionSource::FailedOpen => None,
    }
}
