//! What a request borrows of limits that delay, and how long it has to wait for that in place of a
//! denial.

use std::sync::Arc;

use smallvec::SmallVec;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Decision};
use weir_store::{Owed, OwedBatch};

use super::decisions::{LimitRole, QueriedLimit, QueriedLimits};
use super::delay::{Delay, DelayedRequest, LentUnits, TakenUnits};
use crate::backend::Backend;

/// Queues a request that was allowed, if it has borrowed anything. Where nothing more may wait, it
/// gives back what the request took, and turns the decisions into denials.
pub(super) fn borrow(
    delay: &Arc<Delay>,
    batch: &Batch,
    queried: &mut QueriedLimits,
    (backend, now): (&Backend, Timestamp),
) -> Option<DelayedRequest> {
    let wait = waits(batch, queried).max()?;
    if wait.is_zero() {
        return None;
    }
    let taken = taken(batch, queried, now);
    let Some(permit) = delay.permit() else {
        let waits: Vec<Nanos> = waits(batch, queried).collect();
        taken.give_back(backend, now);
        deny(batch, queried, &waits);
        return None;
    };
    Some(DelayedRequest::enqueue(taken, wait, permit, (backend, now)))
}

/// What a request took.
fn taken(batch: &Batch, queried: &QueriedLimits, now: Timestamp) -> TakenUnits {
    let mut taken = TakenUnits {
        lent: SmallVec::new(),
        others: OwedBatch::new(),
    };
    for ((limit, decision), transaction) in queried.decided().zip(batch) {
        match decision.filter(|decision| transaction.has_taken(decision)) {
            Some(decision) if lends(limit) => taken.lent.push(LentUnits {
                transaction: transaction.clone(),
                by: queried.source,
                tolerance: limit.quota.tolerance(),
                tat: now + decision.reset_in,
            }),
            Some(decision) => taken.others.push(Owed {
                transaction: transaction.clone(),
                until: now + decision.reset_in,
            }),
            None => {}
        }
    }
    taken
}

fn lends(limit: &QueriedLimit) -> bool {
    !limit.quota.algorithm().is_windowed() && !limit.quota.is_in_flight()
}

/// How long each decision makes its request wait. Only a limit that may deny delays: a dry run and
/// `spend_only` are never felt by clients. A request that took nothing has borrowed nothing,
/// whatever is owed by others.
fn waits<'a>(
    batch: &'a Batch,
    queried: &'a QueriedLimits,
) -> impl Iterator<Item = Nanos> + use<'a> {
    let decided = queried.decided().zip(batch);
    decided.map(|((limit, decision), transaction)| {
        let delays = limit.role == LimitRole::Denies && lends(limit);
        let borrowed = decision.filter(|decision| delays && transaction.has_taken(decision));
        borrowed.map_or(Nanos::ZERO, |borrowed| {
            borrowed.reset_in.saturating_sub(limit.quota.tolerance())
        })
    })
}

/// Brings decisions to what they are when the request has waited.
pub(super) fn apply_wait(queried: &mut QueriedLimits, waited: Nanos) {
    for limit in &mut queried.limits {
        if let Some(decision) = &mut limit.decision
            && !limit.quota.algorithm().is_windowed()
        {
            *decision = decision.later(&limit.quota, waited);
        }
    }
}

/// Turns decisions whose costs were given back into denials by those that had it wait.
fn deny(batch: &Batch, queried: &mut QueriedLimits, waits: &[Nanos]) {
    let limits = queried.limits.iter_mut().zip(batch).zip(waits);
    for ((limit, transaction), &wait) in limits {
        let Some(decision) = &mut limit.decision else {
            continue;
        };
        if transaction.has_taken(decision) {
            *decision = decision.after_giving_back(&limit.quota, transaction.cost.get());
        }
        if !wait.is_zero() {
            *decision = Decision {
                allowed: false,
                retry_in: wait,
                ..*decision
            };
        }
    }
}
