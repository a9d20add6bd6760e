//! What the store is asked about one request, and for which limits.

use smallvec::SmallVec;

use crate::limit::{Batch, Claim, Decision, Mode, Quota, Transaction};
use crate::middleware::rate_limit::settlement::Due;
use crate::rules::Admission;
use crate::store::{DecisionSource, Outcome};
use crate::time::Timestamp;

/// What the store is asked about a request.
#[derive(Default)]
pub(in crate::middleware::rate_limit) struct StoreQuery {
    pub(in crate::middleware::rate_limit) batch: Batch,
    /// The places that it asks for among the requests in flight, if the store allows it.
    pub(in crate::middleware::rate_limit) claims: Vec<Claim>,
    pub(in crate::middleware::rate_limit) asked: QueriedLimits,
    /// What is left to be done once the request is through; most requests leave nothing.
    pub(in crate::middleware::rate_limit) dues: Vec<Due>,
}

/// The limits that a batch asks about, in its order, and then those on requests in flight.
#[derive(Default)]
pub(in crate::middleware::rate_limit) struct QueriedLimits {
    pub(super) limits: SmallVec<[AskedLimit; 3]>,
    /// A limit that would deny the request for want of a value, if that were acted upon.
    pub(super) would_lack: Option<usize>,
}

/// A limit that a batch asks about.
#[derive(Clone, Copy)]
pub(super) struct AskedLimit {
    /// Its index among those of the route.
    pub(super) limit: usize,
    pub(super) quota: Quota,
    pub(super) role: Role,
    /// The units that it takes, or asks for; as many as a log line has to show.
    pub(super) cost: u32,
}

/// What a limit has to say about a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It denies what does not fit.
    Denies,
    /// It would, if that were acted upon.
    WouldDeny,
    /// It never denies.
    Counts,
}

impl Role {
    pub(super) fn new(kind: Mode, acts: bool) -> Self {
        match (kind.checks(), acts) {
            (true, true) => Self::Denies,
            (true, false) => Self::WouldDeny,
            (false, _) => Self::Counts,
        }
    }
}

impl QueriedLimits {
    /// Whether nothing that the store may say would be acted upon.
    pub(in crate::middleware::rate_limit) fn is_idle(&self) -> bool {
        self.limits.iter().all(|it| it.role != Role::Denies)
    }

    /// Whether no limit applies.
    pub(in crate::middleware::rate_limit) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.would_lack.is_none()
    }

    /// Decisions as a real answer could show them, for a request that took from no bucket. They are
    /// made up even where a bucket was asked: it is not every time, and would give itself away.
    pub(in crate::middleware::rate_limit) fn imagined(
        &self,
        basis: DecisionSource,
        now: Timestamp,
    ) -> Outcome {
        let imagine = |it: &AskedLimit| {
            let full = Decision::of_full(&it.quota);
            Some(match it.quota.is_in_flight() {
                true => Decision {
                    remaining: full.remaining - 1,
                    ..full
                },
                false => full.after_taking(&it.quota, 1, now),
            })
        };
        Outcome {
            decisions: self.limits.iter().map(imagine).collect(),
            basis,
        }
    }

    /// Learns what a limit takes in the end.
    pub(in crate::middleware::rate_limit) fn costs(&mut self, index: usize, cost: u64) {
        if let Some(asked) = self.limits.get_mut(index) {
            asked.cost = shown(cost);
        }
    }

    /// How many limits are asked about.
    pub(in crate::middleware::rate_limit) fn len(&self) -> usize {
        self.limits.len()
    }

    /// The indexes among those of the route, of the limits from this one on.
    pub(in crate::middleware::rate_limit) fn limits_from(
        &self,
        first: usize,
    ) -> impl Iterator<Item = usize> {
        self.limits.iter().skip(first).map(|it| it.limit)
    }
}

fn shown(cost: u64) -> u32 {
    u32::try_from(cost).unwrap_or(u32::MAX)
}

impl StoreQuery {
    pub(super) fn add(&mut self, limit: usize, kind: Mode, arrival: Admission) {
        let transaction = arrival.transaction;
        if let Some(later) = arrival.later {
            self.dues.push(Due {
                limit,
                asked: self.batch.len(),
                transaction: transaction.clone(),
                units: arrival.units,
                later,
            });
        }
        let role = match arrival.is_free {
            true => Role::Counts,
            false => Role::new(kind, arrival.acts),
        };
        self.ask(limit, role, transaction);
    }

    pub(super) fn ask(&mut self, limit: usize, role: Role, transaction: Transaction) {
        let quota = transaction.quota;
        let cost = match transaction.kind.spends() {
            true => shown(transaction.cost.get()),
            false => 0,
        };
        let asked = AskedLimit {
            limit,
            quota,
            role,
            cost,
        };
        match transaction.claim() {
            Some(claim) => {
                self.claims.push(claim);
                self.asked.limits.push(asked);
            }
            // Those of the batch come first, so that decisions are in the order of what is asked.
            None => {
                self.asked.limits.insert(self.batch.len(), asked);
                self.batch.push(transaction);
            }
        }
    }
}
