//! One bucket, one cost, and what to do; and the decision about it.

use std::num::NonZeroU64;

use smallvec::SmallVec;

use crate::time::Nanos;
use crate::{Algorithm, BucketKey, Quota};

/// The transactions of one request. They take from all their buckets or from none.
pub type Batch = SmallVec<[Transaction; 3]>;

/// A request to one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Which bucket.
    pub key: BucketKey,
    /// How much the bucket holds and how fast it fills.
    pub quota: Quota,
    /// Units to take.
    pub cost: NonZeroU64,
    /// What to do.
    pub mode: Mode,
}

/// Whether a transaction checks its bucket, and whether it takes from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Denies when the cost does not fit, takes it when the whole batch is allowed.
    #[default]
    CheckAndSpend,
    /// Denies when the cost does not fit, takes nothing.
    CheckOnly,
    /// Never denies; takes the cost where it fits, else nothing.
    SpendOnly,
    /// Never denies, takes nothing, and reads the bucket.
    Peek,
    /// Never denies, takes nothing, and leaves the bucket unread: a limit that is switched off.
    AllowOnly,
}

impl Mode {
    /// Whether a bucket without room denies the request.
    pub const fn checks(self) -> bool {
        matches!(self, Self::CheckAndSpend | Self::CheckOnly)
    }

    /// Whether units are taken from the bucket.
    pub const fn spends(self) -> bool {
        matches!(self, Self::CheckAndSpend | Self::SpendOnly)
    }

    /// The mode that denies alike and takes nothing.
    #[must_use]
    pub const fn non_spending(self) -> Self {
        match self {
            Self::CheckAndSpend | Self::CheckOnly => Self::CheckOnly,
            Self::SpendOnly | Self::Peek => Self::Peek,
            Self::AllowOnly => Self::AllowOnly,
        }
    }

    /// The mode that treats the bucket alike and never denies: [`Decision::fits`] says whether this
    /// mode would have denied.
    #[must_use]
    pub const fn non_denying(self) -> Self {
        match self {
            Self::CheckAndSpend | Self::SpendOnly => Self::SpendOnly,
            Self::CheckOnly | Self::Peek => Self::Peek,
            Self::AllowOnly => Self::AllowOnly,
        }
    }
}

impl Transaction {
    /// Checks one bucket and takes `cost` from it.
    pub fn new(key: BucketKey, quota: Quota, cost: NonZeroU64) -> Self {
        Self {
            key,
            quota,
            cost,
            mode: Mode::CheckAndSpend,
        }
    }

    /// Whether it is counted in windows.
    pub const fn is_windowed(&self) -> bool {
        self.quota.algorithm().is_windowed()
    }

    /// The decision about a bucket that is left alone, because another limit denied the request.
    pub fn untouched(&self, debt: Nanos) -> Decision {
        Decision::allowed(&self.quota, debt)
    }

    /// Whether the cost was taken, by the decision about it as one of a batch that was allowed.
    pub fn has_taken(&self, decision: &Decision) -> bool {
        self.mode.spends() && decision.fits()
    }

    /// Whether a debt was made by another definition of the limit, so that another level may count
    /// for this one. What is left of a term is cut instead.
    pub fn has_foreign_level(&self, debt: Nanos) -> bool {
        self.quota.is_foreign(debt) && !self.key.class().is_term()
    }

    /// What counts of a term that is longer than the longest one is now.
    pub fn cut(&self, debt: Nanos) -> Option<Nanos> {
        match self.quota.is_foreign(debt) {
            true => self.cut_foreign(),
            false => None,
        }
    }

    #[cold]
    fn cut_foreign(&self) -> Option<Nanos> {
        let is_term = self.key.class().is_term();
        is_term.then(|| self.quota.tolerance())
    }

    /// Whether it cuts a debt that its quota cannot have caused. Who only reads changes nothing,
    /// except for the check of a term: nothing else touches its bucket while it lasts.
    pub fn cuts_leftovers(&self) -> bool {
        self.mode.spends() || self.mode == Mode::CheckOnly && self.key.class().is_term()
    }
}

/// Whether a request may pass one limit, and the state of the bucket after it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Whole units that are left in the bucket now.
    pub remaining: u64,
    /// How long until the cost fits; zero when it does. [`Nanos::NEVER`] when it is more than a
    /// full bucket holds. A mode that never denies is allowed all the same.
    pub retry_in: Nanos,
    /// How long until the bucket is full again. It is the bucket's debt as well.
    pub reset_in: Nanos,
    /// `reset_in` of a bucket that is counted in windows before the transaction took its cost: in
    /// whole seconds, rounded up, since a request's decisions are moved often and have to be small.
    pub reset_before_secs: u32,
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
    /// The state of a full bucket.
    pub fn full(quota: &Quota) -> Self {
        Self {
            allowed: true,
            remaining: quota.burst().get(),
            retry_in: Nanos::ZERO,
            reset_in: Nanos::ZERO,
            reset_before_secs: 0,
        }
    }

    /// The state of a bucket with this debt, for a request that may pass.
    pub(crate) fn allowed(quota: &Quota, debt: Nanos) -> Self {
        Self {
            allowed: true,
            remaining: quota.remaining(debt),
            retry_in: Nanos::ZERO,
            reset_in: debt,
            reset_before_secs: 0,
        }
    }

    /// How long until the bucket has more units than now, or, for a denied request, until its cost
    /// fits; zero for a full bucket. When the next unit of a sliding window or log comes back is
    /// not known of a request that may pass: then it is at the latest after `reset_in`.
    pub fn more_in(&self, quota: &Quota) -> Nanos {
        let otherwise = || match quota.algorithm() {
            Algorithm::Gcra => quota.next_unit_in(self.reset_in),
            _ => self.reset_in,
        };
        self.wait_of_denial().unwrap_or_else(otherwise)
    }

    /// How long a denied request has to wait until it would pass; none where no wait helps, and
    /// for one that may pass.
    pub fn wait_of_denial(&self) -> Option<Nanos> {
        (!self.allowed && self.retry_in != Nanos::NEVER).then_some(self.retry_in)
    }

    /// Whether the cost fits the bucket, so that a mode that spends took it, if all were allowed.
    pub fn fits(&self) -> bool {
        self.retry_in.is_zero()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn strictness(allowed: bool, retry_in: u64, remaining: u64) -> Strictness {
        let decision = Decision {
            allowed,
            remaining,
            retry_in: Nanos::new(retry_in),
            reset_in: Nanos::ZERO,
            reset_before_secs: 0,
        };
        decision.strictness()
    }

    #[test]
    fn denied_is_stricter_than_allowed_then_longer_retry_then_fewer_left() {
        assert!(strictness(false, 10, 0) > strictness(true, 0, 0));
        assert!(strictness(false, 30, 0) > strictness(false, 10, 0));
        assert!(strictness(true, 0, 5) > strictness(true, 0, 6));
        // A mode that never denies may have the longer retry.
        assert!(strictness(false, 10, 0) > strictness(true, 90, 0));
    }
}
