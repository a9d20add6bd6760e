//! What a request has taken from its limits, and what they get back if it gets no slot.

use std::mem;
use std::sync::Arc;

use weir_limit::Batch;
use weir_limit::time::Timestamp;
use weir_store::{Outcome, OwedBatch};

use super::decisions::QueriedLimits;
use super::deferred_charge::DeferredCharges;
use crate::backend::Backend;

/// What limits decided about a request, and what they get back if it is shed.
pub(super) struct Spent {
    pub(super) queried: QueriedLimits,
    pub(super) outcome: Outcome,
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
    pub(super) fn new(owed: OwedBatch, backend: &Backend) -> Self {
        Self {
            owed,
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
