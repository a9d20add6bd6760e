//! The leases of a request in flight, which are asked for when all other limits have allowed it: a
//! flood that they deny takes none.

use smallvec::smallvec;
use weir_limit::time::Timestamp;
use weir_limit::{Batch, BucketClass, Claims, Decision, Transaction};
use weir_store::{DecisionSource, LeaseGuard, Leased, Outcome, Owed, OwedBatch, StoreFuture};

use super::decisions::QueriedLimits;
use super::in_flight::InFlight;
use super::policy::{PreparedLimit, RoutePolicy};
use crate::backend::Backend;

/// The leases to ask for.
pub(super) struct LeaseRequest {
    pub(super) claims: Claims,
}

impl LeaseRequest {
    pub(super) fn acquire(&self, backend: &Backend, arrived: Timestamp) -> StoreFuture<Leased> {
        backend.leases.acquire(self.claims.clone(), arrived)
    }

    /// What comes of it when nothing can be asked.
    pub(super) fn undecided(&self) -> Leased {
        Leased {
            outcome: undecided(self.claims.len()),
            guard: LeaseGuard::EMPTY,
        }
    }

    /// What the request holds of the limits that granted it a lease, if any did: those behind so
    /// many others.
    pub(super) fn in_flight(
        &self,
        policy: &RoutePolicy<PreparedLimit>,
        queried: &QueriedLimits,
        others: usize,
        leased: Leased,
    ) -> Option<InFlight> {
        let claims = self.claims.iter().zip(&leased.outcome.decisions);
        let limits = queried.limits.iter().skip(others);
        let gauges = claims
            .zip(limits)
            .filter(|((claim, decision), _)| {
                let is_taken = claim.mode.spends() && decision.is_some_and(|it| it.fits());
                // A client that is kept out is counted in buckets of its own.
                is_taken && claim.key.class() == BucketClass::Limit
            })
            .filter_map(|(_, queried)| Some(policy.limit(queried.limit.into())?.metrics.leased()))
            .collect();
        (!leased.guard.is_empty()).then(|| InFlight::new(leased.guard, gauges))
    }
}

/// Gives back what limits took by this batch for a request that goes no further, and takes it off
/// their decisions, by which it is owed `until` then.
pub(super) fn give_back(
    batch: &Batch,
    queried: &QueriedLimits,
    outcome: &mut Outcome,
    until: impl Fn(&Transaction, &Decision) -> Timestamp,
    backend: &Backend,
) {
    backend.undo(owed(batch, outcome, until));
    take_off(batch, queried, outcome);
}

/// What limits took by this batch, owed `until` then.
pub(super) fn owed(
    batch: &Batch,
    outcome: &Outcome,
    until: impl Fn(&Transaction, &Decision) -> Timestamp,
) -> OwedBatch {
    let decided = batch.iter().zip(&outcome.decisions);
    let owed = decided.filter_map(|(transaction, decision)| {
        let decision = decision.as_ref()?;
        transaction.has_taken(decision).then(|| Owed {
            transaction: transaction.clone(),
            until: until(transaction, decision),
        })
    });
    owed.collect()
}

/// Takes what is given back off the decisions about it.
pub(super) fn take_off(batch: &Batch, queried: &QueriedLimits, outcome: &mut Outcome) {
    let asked = batch.iter().zip(&queried.limits);
    for ((transaction, limit), decision) in asked.zip(&mut outcome.decisions) {
        if let Some(decision) = decision
            && transaction.has_taken(decision)
        {
            *decision = decision.after_giving_back(&limit.quota, transaction.cost.get());
        }
    }
}

/// No decision for any of these limits.
pub(super) fn undecided(limits: usize) -> Outcome {
    Outcome {
        decisions: smallvec![None; limits],
        source: DecisionSource::FailedOpen,
    }
}

/// Adds the decisions about leases to those about buckets. Of what decided about either (the store,
/// what stood in for it, or nothing), the outcome names what is farther from the store.
pub(super) fn join(decided: &mut Outcome, leased: &Outcome) {
    decided.decisions.extend(leased.decisions.iter().copied());
    if distance(leased.source) > distance(decided.source) {
        decided.source = leased.source;
    }
}

const fn distance(source: DecisionSource) -> u8 {
    match source {
        DecisionSource::Store => 0,
        DecisionSource::Prefetched => 1,
        DecisionSource::Remembered => 2,
        DecisionSource::Local => 3,
        DecisionSource::FailedOpen => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(source: DecisionSource, decisions: usize) -> Outcome {
        Outcome {
            source,
            ..undecided(decisions)
        }
    }

    /// The log shows what decided: the source that is farthest from the store.
    #[test]
    fn the_whole_does_not_hide_the_source_that_is_farther_from_the_store() {
        let by_distance = [
            DecisionSource::Store,
            DecisionSource::Prefetched,
            DecisionSource::Remembered,
            DecisionSource::Local,
            DecisionSource::FailedOpen,
        ];
        for (far, &decided) in by_distance.iter().enumerate() {
            for (farther, &leased) in by_distance.iter().enumerate() {
                let mut whole = outcome(decided, 2);
                join(&mut whole, &outcome(leased, 1));
                assert_eq!(whole.source, by_distance[far.max(farther)]);
                assert_eq!(whole.decisions.len(), 3);
            }
        }
    }
}
