//! What came of a transaction.

use crate::limit::Quota;
use crate::time::Nanos;

/// Whether a request may pass one limit, and the state of the bucket after it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Whole units that are left in the bucket now.
    pub remaining: u64,
    /// How long until the same request would be allowed; zero when it is. [`Nanos::NEVER`] when
    /// it costs more than a full bucket holds.
    pub retry_in: Nanos,
    /// How long until the bucket is full again. It is the bucket's debt as well.
    pub reset_in: Nanos,
}

/// Orders decisions by how much they restrict; the greatest is the strictest.
///
/// Denied is stricter than allowed, then the longer retry, then the fewer units left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Strictness {
    denied: bool,
    retry_in: Nanos,
    spent: std::cmp::Reverse<u64>,
}

impl Decision {
    /// The state of a bucket with this debt, for a request that may pass.
    pub(super) fn allowed(quota: &Quota, debt: Nanos) -> Self {
        Self {
            allowed: true,
            remaining: quota.remaining(debt),
            retry_in: Nanos::ZERO,
            reset_in: debt,
        }
    }

    /// The state of a bucket with this debt, for a request that may pass in `retry_in`.
    pub(super) fn denied(quota: &Quota, debt: Nanos, retry_in: Nanos) -> Self {
        Self {
            allowed: false,
            retry_in,
            ..Self::allowed(quota, debt)
        }
    }

    /// How strict this decision is beside others of its batch.
    pub fn strictness(&self) -> Strictness {
        // An allowed decision never outranks a denied one, however long its retry.
        Strictness {
            denied: !self.allowed,
            retry_in: self.retry_in,
            spent: std::cmp::Reverse(self.remaining),
        }
    }
}
