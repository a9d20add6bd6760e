//! Decides about requests of the past as the layer decides about those that arrive: by the same
//! steps, at a time that the caller says. Nothing is forwarded, and nobody waits. `weir replay` and
//! `weir explain` are made of it.
//!
//! A request that is let through is [answered](Simulation::answer) when the caller says so, and
//! over when the caller drops it, so that what is charged by responses and what is in flight count
//! at their times.

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Empty;
use weir_limit::time::{ManualClock, Nanos, Timestamp};
use weir_limit::{BucketKey, Quota};
use weir_rules::{Access, RequestAttributes};
use weir_store::{Memory, StoreError, StoreFuture};
use weir_telemetry::Disposition;

use super::decision::{Conclusion, Next, PendingDecision};
use super::decisions::meaning;
use super::delay::DelayedRequest;
use super::held::Responder;
use super::response_context::ResponseContext;
use crate::Verdict;
use crate::access::AccessControl;
use crate::backend::Backend;
use crate::route::RouteState;

/// Limits and bans with a store and a clock of their own.
///
/// Charges and strikes are tasks of tokio, which run at once as memory answers at once: they need
/// an entered runtime, and nothing that drives it.
pub struct Simulation {
    backend: Backend,
    clock: ManualClock,
    store: Arc<Memory>,
    /// None where all clients may come.
    access: Option<AccessControl>,
}

/// How far a request is.
pub enum Progress {
    /// It is decided.
    Decided(Simulated),
    /// It waits for its turn.
    Waits(Box<Waiting>),
}

/// A request that is decided, with what is to be done when it is answered and over.
pub struct Simulated(Box<ResponseContext>);

/// What one limit decided.
pub struct LimitDecision<'d> {
    /// Its index among those of the route.
    pub limit: usize,
    /// Its bucket.
    pub key: &'d BucketKey,
    /// What the bucket may hold.
    pub quota: Quota,
    /// What the request takes.
    pub cost: NonZeroU64,
    /// Allowed, denied, or would deny; none where another's denial answered for it.
    pub disposition: Option<Disposition>,
    /// When such a request fits; zero if it does now, and [`Nanos::NEVER`] if it never will.
    pub retry_in: Nanos,
}

/// A request that waits for its turn.
pub struct Waiting {
    decision: PendingDecision,
    turn: Box<DelayedRequest>,
}

impl Simulation {
    /// Limits, lists and bans that keep their buckets in `store`.
    pub fn new(store: Memory, access: AccessControl) -> Self {
        let (store, clock) = (Arc::new(store), ManualClock::default());
        Self {
            backend: Backend::in_memory(&store, Arc::new(clock.clone())),
            clock,
            store,
            access: (!access.is_empty()).then_some(access),
        }
    }

    /// The store.
    pub fn store(&self) -> &Memory {
        &self.store
    }

    /// Decides about a request that takes this route, one without limits where none matched, and
    /// has a body of so many bytes. It arrives at its attributes' time. Passes on what each limit
    /// that was asked decided.
    pub fn arrive(
        &self,
        route: &Arc<RouteState>,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
        tell: impl FnMut(LimitDecision<'_>),
    ) -> Progress {
        self.clock.set(attributes.now);
        let decided = |verdict| {
            Progress::Decided(ResponseContext::new(verdict, Some(Arc::clone(route))).into())
        };
        let access = self.access.as_ref();
        let account = attributes.account.map(|account| account.id);
        let listed = access.map(|access| access.access_of(attributes.client, account));
        let listed = match listed.unwrap_or(Access::Unlisted) {
            Access::Unlisted => None,
            Access::Allowed(_) => Some(("allow", Disposition::Unlimited)),
            // Whatever the treatment: replays count it as a denial, and explanations describe it.
            Access::Blocked(_) => Some(("block", Disposition::Denied)),
        };
        if let Some((list, disposition)) = listed {
            return decided(Verdict {
                listed: Some(list),
                ..Verdict::new(disposition)
            });
        }
        let backend = &self.backend;
        let mut decision = PendingDecision::new(route, attributes.now);
        if !decision.plan(attributes, body_bytes, (access, backend), false) {
            return decided(Verdict::new(Disposition::Unlimited));
        }
        let answer = at_once(decision.ask(backend));
        let next = decision.answered(answer, attributes.uri.path(), backend);
        self.go_on(decision, next, tell)
    }

    /// Goes on with a request whose turn has come, at [`Waiting::until`].
    pub fn turn_has_come(
        &self,
        waiting: Waiting,
        tell: impl FnMut(LimitDecision<'_>),
    ) -> Simulated {
        self.clock.set(waiting.until());
        let Waiting { mut decision, turn } = waiting;
        let waited = turn.wait;
        turn.finish();
        let next = decision.has_waited(waited, &self.backend);
        match self.go_on(decision, next, tell) {
            Progress::Decided(decided) => decided,
            Progress::Waits(_) => undecidable(),
        }
    }

    fn go_on(
        &self,
        mut decision: PendingDecision,
        mut next: Next,
        tell: impl FnMut(LimitDecision<'_>),
    ) -> Progress {
        loop {
            next = match next {
                Next::Places(answer) => decision.has_places(at_once(answer), &self.backend),
                Next::Turn(turn) => return Progress::Waits(Box::new(Waiting { decision, turn })),
                Next::Known(conclusion) => {
                    return Progress::Decided(self.conclude(decision, conclusion, tell));
                }
            }
        }
    }

    /// Makes the result of a request about which all is known.
    fn conclude(
        &self,
        mut decision: PendingDecision,
        conclusion: Conclusion,
        tell: impl FnMut(LimitDecision<'_>),
    ) -> Simulated {
        let places = match conclusion {
            Conclusion::Decided(places) => places,
            Conclusion::KeptOut(by) => {
                let kept_out = decision.kept_out(by, None);
                return kept_out.untreated(&decision.route).into();
            }
            Conclusion::Lacks(missing) => return decision.lacking(&missing).into(),
            // All accounts of the past are known.
            Conclusion::AccountNeeded | Conclusion::Undecidable => return undecidable(),
        };
        tell_decisions(&decision, tell);
        let route = Arc::clone(&decision.route);
        let decided = match route.policy.denial(&decision.queried) {
            Some(denial) => decision.denied(&denial),
            None => {
                let charges = decision.charges(&self.backend);
                *decision.allowed(places, charges)
            }
        };
        decided.into()
    }

    /// The response begins: with this status, or not at all, because the client left.
    pub fn answer(&self, request: &mut Simulated, status: Option<StatusCode>, now: Timestamp) {
        self.clock.set(now);
        let context = &mut request.0;
        match status {
            Some(status) => {
                let mut response = Response::new(Empty::<Bytes>::new());
                *response.status_mut() = status;
                drop(context.tell_held(response, Responder::Service));
            }
            None => context.held.clear(),
        }
    }
}

impl Waiting {
    /// When its turn comes.
    pub fn until(&self) -> Timestamp {
        self.decision.arrived + self.turn.wait.into()
    }
}

impl From<ResponseContext> for Simulated {
    fn from(context: ResponseContext) -> Self {
        Self(Box::new(context))
    }
}

impl Simulated {
    /// What was decided.
    pub fn verdict(&self) -> &Verdict {
        &self.0.verdict
    }

    /// Whether its response matters: it was let through, and is charged, or may be a strike.
    pub fn is_unanswered(&self) -> bool {
        let context = &self.0;
        let is_forwarded = context.verdict.disposition != Disposition::Denied;
        is_forwarded && (!context.held.is_empty() || self.is_in_flight())
    }

    /// Whether its end matters beyond that of its head.
    pub fn is_in_flight(&self) -> bool {
        self.0.in_flight.is_some()
    }
}

/// Passes on what each limit of the batch decided, and then those on requests in flight.
fn tell_decisions(decision: &PendingDecision, mut tell: impl FnMut(LimitDecision<'_>)) {
    let decided = decision.queried.decided();
    for ((queried, decision), (key, cost)) in decided.zip(decision.asked()) {
        tell(LimitDecision {
            limit: queried.limit.into(),
            key,
            quota: queried.quota,
            cost,
            disposition: decision.map(|decision| meaning(queried.role, &decision)),
            retry_in: decision.map_or(Nanos::ZERO, |it| queried.within_override(it).retry_in),
        });
    }
}

/// The result for a request about which nothing can decide.
fn undecidable() -> Simulated {
    ResponseContext::new(Verdict::new(Disposition::Unavailable), None).into()
}

/// The answer of memory, which is there when it is asked for.
fn at_once<T>(answer: StoreFuture<T>) -> Result<T, StoreError> {
    match answer {
        StoreFuture::Ready(Some(answer)) => answer,
        StoreFuture::Ready(None) | StoreFuture::Waiting(_) => Err(StoreError::OutOfReach),
    }
}
