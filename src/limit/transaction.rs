//! One bucket, one cost, and what to do; and what GCRA makes of it.

use std::num::NonZeroU64;

use smallvec::SmallVec;

use crate::limit::{BucketKey, Decision, Quota};
use crate::time::Nanos;

/// The transactions of one request. They take from all their buckets or from none.
pub type Batch = SmallVec<[Transaction; 3]>;

/// What is asked of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Which bucket.
    pub key: BucketKey,
    /// What the bucket may hold and how fast it fills.
    pub quota: Quota,
    /// Units to take.
    pub cost: NonZeroU64,
    /// What to do.
    pub kind: Mode,
}

/// What a transaction does with its bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Denies when the cost does not fit, takes it when the whole batch is allowed.
    #[default]
    CheckAndSpend,
    /// Denies when the cost does not fit, takes nothing.
    CheckOnly,
    /// Never denies; takes the cost where it fits, else nothing.
    SpendOnly,
    /// Never denies, takes nothing, and tells how the bucket stands.
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

    /// The kind that treats the bucket alike and never denies: it tells by [`Decision::fits`]
    /// whether this kind would have.
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
            kind: Mode::CheckAndSpend,
        }
    }

    /// The time by which this transaction advances a TAT when its cost fits a bucket with this
    /// debt. It fits when the new debt is no greater than the tolerance.
    pub fn fitting_increment(&self, debt: Nanos) -> Option<Nanos> {
        let debt = self.quota.effective(debt);
        self.quota
            .increment(self.cost)
            .filter(|&taken| debt + taken <= self.quota.tolerance())
    }

    /// The decision about a bucket whose TAT is `debt` after now: GCRA.
    ///
    /// An allowed decision shows the bucket after the cost is taken, for the kinds that take it.
    pub fn decide(&self, debt: Nanos) -> Decision {
        match self.fitting_increment(debt) {
            Some(taken) if self.kind.spends() => Decision::allowed(&self.quota, debt + taken),
            None if self.kind != Mode::AllowOnly => Decision {
                allowed: !self.kind.checks(),
                retry_in: self.retry_in(debt),
                ..self.untouched(debt)
            },
            _ => self.untouched(debt),
        }
    }

    /// The decision about a bucket that is left alone, because another limit denied the request.
    pub fn untouched(&self, debt: Nanos) -> Decision {
        Decision::allowed(&self.quota, self.quota.effective(debt))
    }

    /// Whether the cost was taken, by the decision about it as one of a batch that was allowed.
    pub fn has_taken(&self, decision: &Decision) -> bool {
        self.kind.spends() && decision.fits()
    }

    fn retry_in(&self, debt: Nanos) -> Nanos {
        match self.quota.increment(self.cost) {
            Some(taken) => {
                (self.quota.effective(debt) + taken).saturating_sub(self.quota.tolerance())
            }
            None => Nanos::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::Strictness;

    fn transaction(cost: u64, kind: Mode) -> Transaction {
        let quota = Quota::new(10, 10, Duration::from_nanos(100)).unwrap();
        let cost = NonZeroU64::new(cost).unwrap();
        Transaction {
            kind,
            ..Transaction::new("L:a".into(), quota, cost)
        }
    }

    fn decide(cost: u64, debt: u64) -> Decision {
        transaction(cost, Mode::CheckAndSpend).decide(Nanos::new(debt))
    }

    #[test]
    fn a_full_bucket_gives_its_whole_burst_and_no_more() {
        let all = decide(10, 0);
        assert!(all.allowed);
        assert_eq!((all.remaining, all.reset_in), (0, Nanos::new(100)));
        assert_eq!(decide(11, 0).retry_in, Nanos::NEVER);
    }

    #[test]
    fn a_request_is_denied_until_its_cost_fits() {
        let denied = decide(3, 75);
        assert!(!denied.allowed);
        assert_eq!((denied.remaining, denied.retry_in), (2, Nanos::new(5)));
        assert!(!decide(3, 71).allowed);
        assert!(decide(3, 70).allowed);
    }

    #[test]
    fn spend_only_never_denies_and_takes_nothing_where_it_does_not_fit() {
        let spend = transaction(3, Mode::SpendOnly);
        assert_eq!(spend.decide(Nanos::new(75)).reset_in, Nanos::new(75));
        assert_eq!(spend.decide(Nanos::new(70)).reset_in, Nanos::new(100));
        assert!(spend.decide(Nanos::new(75)).allowed);
    }

    #[test]
    fn kinds_that_never_deny_tell_whether_the_cost_fits() {
        for kind in [Mode::SpendOnly, Mode::Peek] {
            let passed_over = transaction(3, kind).decide(Nanos::new(75));
            assert!(passed_over.allowed && !passed_over.fits(), "{kind:?}");
            assert_eq!(passed_over.retry_in, Nanos::new(5));
            assert!(
                transaction(3, kind).decide(Nanos::new(70)).fits(),
                "{kind:?}"
            );
        }
        let look = transaction(3, Mode::Peek).decide(Nanos::new(70));
        assert_eq!(look.reset_in, Nanos::new(70));
        assert!(
            transaction(3, Mode::AllowOnly)
                .decide(Nanos::new(75))
                .fits()
        );
    }

    #[test]
    fn check_only_denies_like_a_spend_and_takes_nothing() {
        let check = transaction(3, Mode::CheckOnly);
        assert!(!check.decide(Nanos::new(75)).allowed);
        assert_eq!(check.decide(Nanos::new(70)).reset_in, Nanos::new(70));
    }

    #[test]
    fn a_debt_left_over_from_a_greater_limit_counts_as_an_empty_bucket() {
        let denied = decide(1, 5_000_000_000);
        assert_eq!(
            (denied.retry_in, denied.reset_in),
            (Nanos::new(10), Nanos::new(100))
        );
    }

    #[test]
    fn denied_is_stricter_than_allowed_then_longer_retry_then_fewer_left() {
        let strictness = |decision: Decision| -> Strictness { decision.strictness() };
        assert!(strictness(decide(1, 100)) > strictness(decide(10, 0)));
        assert!(strictness(decide(3, 100)) > strictness(decide(1, 100)));
        assert!(strictness(decide(5, 0)) > strictness(decide(4, 0)));
        let passed_over = transaction(9, Mode::SpendOnly).decide(Nanos::new(100));
        assert!(passed_over.retry_in > decide(1, 100).retry_in);
        assert!(strictness(decide(1, 100)) > strictness(passed_over));
    }
}
