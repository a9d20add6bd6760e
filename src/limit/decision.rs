//! What came of a transaction.

use super::fixed_window::window_end;
use super::sub_windows::sub_window_end;
use crate::limit::{Algorithm, Quota};
use crate::time::{Nanos, Timestamp};

/// Whether a request may pass one limit, and the state of the bucket after it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Whole units that are left in the bucket now.
    pub remaining: u64,
    /// How long until the cost fits; zero when it does. [`Nanos::NEVER`] when it is more than a full
    /// bucket holds. A kind that never denies is allowed all the same.
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
    /// The state of a full bucket.
    pub fn of_full(quota: &Quota) -> Self {
        Self {
            allowed: true,
            remaining: quota.burst().get(),
            retry_in: Nanos::ZERO,
            reset_in: Nanos::ZERO,
        }
    }

    /// The state of a bucket with this debt, for a request that may pass.
    pub(super) fn allowed(quota: &Quota, debt: Nanos) -> Self {
        Self {
            allowed: true,
            remaining: quota.remaining(debt),
            retry_in: Nanos::ZERO,
            reset_in: debt,
        }
    }

    /// Whether the cost fits the bucket, so that a kind that spends took it, if all were allowed.
    pub fn fits(&self) -> bool {
        self.retry_in.is_zero()
    }

    /// The state of the same bucket once so many more units are taken from it now, or as many as it
    /// has left, by arithmetic alone.
    #[must_use]
    pub fn after_taking(&self, quota: &Quota, units: u64, now: Timestamp) -> Self {
        let taken = units.min(self.remaining);
        if quota.algorithm().is_windowed() {
            let begins = self.reset_in.is_zero() && taken > 0;
            return Self {
                remaining: self.remaining - taken,
                reset_in: if begins {
                    a_window(quota, now)
                } else {
                    self.reset_in
                },
                ..*self
            };
        }
        let interval = quota.emission_interval().get();
        let debt = Nanos::new(taken.saturating_mul(interval)) + self.reset_in;
        Self {
            retry_in: self.retry_in,
            allowed: self.allowed,
            ..Self::allowed(quota, debt)
        }
    }

    /// The state of the same bucket once so many units are given back to it.
    #[must_use]
    pub fn after_giving_back(&self, quota: &Quota, units: u64) -> Self {
        let more = self
            .remaining
            .saturating_add(units)
            .min(quota.burst().get());
        if quota.algorithm().is_windowed() {
            return Self {
                remaining: more,
                ..*self
            };
        }
        let back = Nanos::new(units.saturating_mul(quota.emission_interval().get()));
        Self {
            retry_in: self.retry_in,
            allowed: self.allowed,
            ..Self::allowed(quota, self.reset_in.saturating_sub(back))
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

/// How long a window is in force that begins now. Those of a calendar or a period have begun before
/// anything is taken in them.
fn a_window(quota: &Quota, now: Timestamp) -> Nanos {
    match quota.algorithm() {
        Algorithm::FixedWindow(_) => window_end(quota, now).since(now),
        Algorithm::SlidingWindow { .. } => sub_window_end(quota, now).since(now),
        _ => quota.tolerance(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::limit::{Alignment, Calendar, CalendarUnit, Transaction};

    /// A quarter of a minute into one.
    const NOW: Timestamp = Timestamp::from_nanos(75_000_000_000);

    /// Ten units, one a minute.
    fn decide(cost: u64, debt: u64) -> (Quota, Decision) {
        let quota = Quota::new(10, 1, Duration::from_secs(60)).unwrap();
        let one = Transaction::new("L:a".into(), quota, NonZeroU64::new(cost).unwrap());
        (quota, one.decide(Nanos::from_secs(debt)))
    }

    #[test]
    fn what_is_foreseen_is_what_the_same_units_would_have_made_of_the_bucket() {
        let (quota, once) = decide(2, 90);
        assert_eq!(once.after_taking(&quota, 3, NOW), decide(5, 90).1);
        assert_eq!(once.after_giving_back(&quota, 1), decide(1, 90).1);
        assert_eq!(once.after_giving_back(&quota, 99).remaining, 10);
    }

    #[test]
    fn no_more_is_foreseen_to_be_taken_than_is_left() {
        let (quota, once) = decide(2, 90);
        assert_eq!(once.after_taking(&quota, u64::MAX, NOW).remaining, 0);
        assert!(once.after_taking(&quota, u64::MAX, NOW).reset_in <= quota.tolerance());
    }

    #[test]
    fn a_window_is_foreseen_by_its_units() {
        let day = Calendar::new(CalendarUnit::Day, "UTC").unwrap();
        for (window, period, left) in [
            (Algorithm::FixedWindow(Alignment::Period), 60, 45),
            (Algorithm::FixedWindow(Alignment::FirstRequest), 60, 60),
            (
                Algorithm::FixedWindow(Alignment::Calendar(day)),
                86_400,
                86_325,
            ),
            (
                Algorithm::SlidingLog {
                    count_denied: false,
                },
                60,
                60,
            ),
            // The second in which it is taken counts to its end.
            (
                Algorithm::SlidingWindow {
                    count_denied: false,
                },
                60,
                61,
            ),
        ] {
            let quota = Quota::windowed(window, 10, Duration::from_secs(period)).unwrap();
            let full = Decision::of_full(&quota);
            let after = full.after_taking(&quota, 4, NOW);
            assert_eq!(
                (after.remaining, after.reset_in),
                (6, Nanos::from_secs(left))
            );
            assert_eq!(after.after_giving_back(&quota, 1).remaining, 7);
            assert_eq!(full.after_taking(&quota, 0, NOW), full, "no window begins");
            assert_eq!(after.after_taking(&quota, 0, NOW), after);
            let empty = after.after_taking(&quota, 99, NOW);
            assert_eq!((empty.remaining, empty.reset_in), (0, after.reset_in));
            assert_eq!(full.after_giving_back(&quota, 1), full, "no more than all");
        }
    }
}
