//! What a request has taken from its limits, and what they get back if it goes no further.

use std::mem;
use std::sync::Arc;

use weir_limit::time::Timestamp;
use weir_limit::{Batch, Decision, Transaction};
use weir_store::{Owed, OwedBatch};

use super::decisions::QueriedLimits;
use super::deferred_charge::DeferredCharges;
use crate::backend::Backend;

/// What limits decided about a request that may still be refused, and what they get back then.
pub(super) struct Spent {
    pub(super) queried: QueriedLimits,
    pub(super) arrived: Timestamp,
    pub(super) batch: Batch,
    pub(super) refund: Refund,
    /// What else would be given back, or charged, when there is no response.
    pub(super) charges: Option<Arc<DeferredCharges>>,
}

/// What limits get back when this is dropped.
pub(super) struct Refund {
    owed: OwedBatch,
    backend: Backend,
}

impl Refund {
    /// What limits took by this batch, owed `until` then.
    pub(super) fn new(
        batch: &Batch,
        queried: &QueriedLimits,
        until: impl Fn(&Transaction, &Decision) -> Timestamp,
        backend: &Backend,
    ) -> Self {
        let decided = batch.iter().zip(&queried.limits);
        let owed = decided.filter_map(|(transaction, limit)| {
            let decision = limit.decision.as_ref()?;
            let taken = transaction.has_taken(decision);
            taken.then(|| Owed {
                transaction: transaction.clone(),
                until: until(transaction, decision),
            })
        });
        Self {
            owed: owed.collect(),
            backend: backend.clone(),
        }
    }

    /// Leaves the limits what they took.
    pub(super) fn cancel(mut self) {
        self.owed.clear();
    }
}

impl Drop for Refund {
    fn drop(&mut self) {
        self.backend.undo(mem::take(&mut self.owed));
    }
}
