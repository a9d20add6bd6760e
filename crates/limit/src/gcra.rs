//! The generic cell rate algorithm (GCRA): a bucket is its theoretical arrival time (TAT), and the
//! time from now to the TAT is its debt. `docs/ALGORITHMS.md` derives it.

use crate::time::Nanos;
use crate::{Decision, Mode, Transaction};

impl Transaction {
    /// The time by which this transaction advances a TAT when its cost fits a bucket with this
    /// debt. It fits when the new debt is no greater than the tolerance.
    pub fn fitting_increment(&self, debt: Nanos) -> Option<Nanos> {
        self.quota
            .increment(self.cost)
            .filter(|&taken| debt + taken <= self.quota.tolerance())
    }

    /// The decision about a bucket whose TAT is `debt` after now.
    ///
    /// An allowed decision shows the bucket after the cost is taken, for the modes that take it.
    #[inline]
    pub fn decide(&self, debt: Nanos) -> Decision {
        let tolerance = self.quota.tolerance();
        let increment = self.quota.increment(self.cost);
        if let Some(taken) = increment
            && debt + taken <= tolerance
        {
            return match self.mode.spends() {
                true => self.untouched(debt + taken),
                false => self.untouched(debt),
            };
        }
        // A debt beside which something fits needs no cut.
        let debt = self.cut(debt).unwrap_or(debt);
        if self.mode == Mode::AllowOnly {
            return self.untouched(debt);
        }
        let retry_in = |taken| (debt + taken).saturating_sub(tolerance);
        Decision {
            allowed: !self.mode.checks(),
            retry_in: increment.map_or(Nanos::NEVER, retry_in),
            ..self.untouched(debt)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::Quota;

    fn transaction(cost: u64, mode: Mode) -> Transaction {
        let quota = Quota::new(10, 10, Duration::from_nanos(100)).unwrap();
        let cost = NonZeroU64::new(cost).unwrap();
        Transaction {
            mode,
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
    fn modes_that_never_deny_tell_whether_the_cost_fits() {
        for mode in [Mode::SpendOnly, Mode::Peek] {
            let passed_over = transaction(3, mode).decide(Nanos::new(75));
            assert!(passed_over.allowed && !passed_over.fits(), "{mode:?}");
            assert_eq!(passed_over.retry_in, Nanos::new(5));
            assert!(
                transaction(3, mode).decide(Nanos::new(70)).fits(),
                "{mode:?}"
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
}
