//! The leases of a request in flight, which are asked for when all other limits have allowed it: a
//! flood that they deny takes none.

use smallvec::smallvec;
use weir_limit::time::Timestamp;
use weir_limit::{BucketClass, Claims};
use weir_store::{DecisionSource, LeaseGuard, Leased, Outcome, StoreFuture};

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
            .filter_map(|(_, queried)| Some(policy.limit(queried.limit.into())?.places.taken()))
            .collect();
        (!leased.guard.is_empty()).then(|| InFlight::new(leased.guard, gauges))
    }
}

/// No decision for any of these limits.
pub(super) fn undecided(limits: usize) -> Outcome {
    Outcome {
        decisions: smallvec![None; limits],
        source: DecisionSource::FailedOpen,
    }
}
