//! Places among the requests in flight, which are asked for when all other limits have allowed a
//! request: a flood that they deny takes none.

use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use smallvec::SmallVec;
use tower::Service;

use super::background::Background;
use super::future::State;
use super::metered::Metered;
use super::plan::{Prepared, QueriedLimits};
use super::question::{AwaitingDecision, unavailable, undecided};
use crate::limit::{Batch, Claims, Transaction};
use crate::store::{DecisionSource, Held, Leased, Outcome, StoreError, StoreFuture};
use crate::telemetry::GaugeGuard;
use crate::time::Timestamp;

/// What is to be asked for a request, and what the other limits were asked before.
pub(super) struct Leasing {
    pub(super) claims: Claims,
    pub(super) batch: Batch,
    pub(super) background: Background,
    pub(super) arrived: Timestamp,
}

/// The places that a request has among those in flight, until the last clone of this is dropped.
///
/// The layer puts it into the extensions of the request and into the body of the response. Who
/// goes on working for a request when its response has been sent, such as for a connection that
/// was upgraded, holds on to it.
#[derive(Clone, Debug)]
pub struct InFlight(#[expect(dead_code, reason = "it is only held")] Arc<Places>);

#[derive(Debug)]
struct Places {
    _held: Held,
    _gauges: SmallVec<[GaugeGuard; 1]>,
}

/// A request that the store has allowed, and that needs a place among those in flight.
pub(super) struct AwaitingLease<S, B> {
    question: AwaitingDecision<S, B>,
    leasing: Box<Leasing>,
    outcome: Outcome,
    /// Whether there is a place.
    pub(super) pending: StoreFuture<Leased>,
}

impl Leasing {
    /// Asks for the places.
    pub(super) fn ask(&self) -> StoreFuture<Leased> {
        let leases = &self.background.leases;
        leases.acquire(self.claims.clone(), self.arrived)
    }

    /// What comes of it when nobody can be asked.
    pub(super) fn undecided(&self) -> Leased {
        Leased {
            outcome: undecided(self.claims.len()),
            held: Held::NOTHING,
        }
    }

    /// What the request holds, of all that was asked for; nothing where it got nothing.
    pub(super) fn places(
        &self,
        policy: &Prepared,
        asked: &QueriedLimits,
        leased: Leased,
    ) -> Option<InFlight> {
        let claims = self.claims.iter().zip(&leased.outcome.decisions);
        let gauges = claims
            .zip(asked.limits_from(self.batch.len()))
            .filter(|((claim, decision), _)| {
                claim.kind.spends() && decision.is_some_and(|it| it.fits())
            })
            .filter_map(|(_, limit)| Some(policy.metrics(limit)?.leased()))
            .collect();
        (!leased.held.is_nothing()).then(|| {
            InFlight(Arc::new(Places {
                _held: leased.held,
                _gauges: gauges,
            }))
        })
    }

    /// Gives back what the other limits took, because there is no place, and takes it off their
    /// decisions.
    pub(super) fn undo(&self, outcome: &mut Outcome) {
        let mut taken = Batch::new();
        for (one, decision) in self.batch.iter().zip(&mut outcome.decisions) {
            if let Some(decision) = decision
                && one.has_taken(decision)
            {
                *decision = decision.after_giving_back(&one.quota, one.cost.get());
                taken.push(Transaction::clone(one));
            }
        }
        self.background.undo(taken);
    }
}

impl<S, B> AwaitingLease<S, B> {
    /// Asks for the places.
    pub(super) fn new(
        question: AwaitingDecision<S, B>,
        leasing: Box<Leasing>,
        outcome: Outcome,
    ) -> Self {
        Self {
            pending: leasing.ask(),
            question,
            leasing,
            outcome,
        }
    }
}

impl<S, B, R> AwaitingLease<S, B>
where
    S: Service<Request<Metered<B>>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    /// Goes on with the request, now that it has its places or has not.
    pub(super) fn resolve(self, answer: Result<Leased, StoreError>) -> State<S::Future, R> {
        let Self {
            question,
            leasing,
            mut outcome,
            ..
        } = self;
        let leased = match answer {
            Ok(leased) => leased,
            Err(_) if question.asked.is_idle() => leasing.undecided(),
            Err(_) => {
                leasing.undo(&mut outcome);
                return unavailable(Some(question.since.elapsed()));
            }
        };
        join(&mut outcome, &leased.outcome);
        if question.policy.denial(&question.asked, &outcome).is_some() {
            leasing.undo(&mut outcome);
        }
        let places = leasing.places(&question.policy, &question.asked, leased);
        question.decide(outcome, places)
    }
}

/// Adds what was said of places to what was said of buckets. Of those who decided, the one that is
/// farther from the store tells how much the whole is worth.
pub(super) fn join(decided: &mut Outcome, leased: &Outcome) {
    decided.decisions.extend(leased.decisions.iter().copied());
    if distance(leased.basis) > distance(decided.basis) {
        decided.basis = leased.basis;
    }
}

const fn distance(basis: DecisionSource) -> u8 {
    match basis {
        DecisionSource::Store => 0,
        DecisionSource::Remembered => 1,
        DecisionSource::Local => 2,
        DecisionSource::FailedOpen => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(basis: DecisionSource, decisions: usize) -> Outcome {
        Outcome {
            basis,
            ..undecided(decisions)
        }
    }

    /// The log says who decided: whoever is farthest from the store tells how far to trust it.
    #[test]
    fn the_whole_is_worth_as_much_as_the_one_that_is_farther_from_the_store() {
        let by_distance = [
            DecisionSource::Store,
            DecisionSource::Remembered,
            DecisionSource::Local,
            DecisionSource::FailedOpen,
        ];
        for (far, &decided) in by_distance.iter().enumerate() {
            for (farther, &leased) in by_distance.iter().enumerate() {
                let mut whole = outcome(decided, 2);
                join(&mut whole, &outcome(leased, 1));
                assert_eq!(whole.basis, by_distance[far.max(farther)]);
                assert_eq!(whole.decisions.len(), 3);
            }
        }
    }
}
