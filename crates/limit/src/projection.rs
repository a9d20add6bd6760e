//! The state of a bucket after a decision and some later change, by arithmetic alone.

use crate::time::{Nanos, Timestamp};
use crate::{Algorithm, Decision, Quota, sub_window_end, window_end};

impl Decision {
    /// The state of the same bucket once this many more units are taken from it now, or as many as
    /// it has left, by arithmetic alone.
    #[must_use]
    pub fn after_taking(&self, quota: &Quota, units: u64, now: Timestamp) -> Self {
        let taken = units.min(self.remaining);
        if quota.algorithm().is_windowed() {
            let is_fixed = matches!(quota.algorithm(), Algorithm::FixedWindow(_));
            let reset_in = match taken {
                0 => self.reset_in,
                // What was taken before has begun it.
                _ if is_fixed && !self.reset_in.is_zero() => self.reset_in,
                _ => self.reset_in.max(a_window(quota, now)),
            };
            return Self {
                remaining: self.remaining - taken,
                reset_in,
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

    /// The state of the same bucket once these units are given back to it, which the transaction
    /// took.
    #[must_use]
    pub fn after_giving_back(&self, quota: &Quota, units: u64) -> Self {
        let more = self
            .remaining
            .saturating_add(units)
            .min(quota.burst().get());
        if quota.algorithm().is_windowed() {
            let before = Nanos::from_secs(self.reset_before_secs.into());
            return Self {
                remaining: more,
                reset_in: before.min(self.reset_in),
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

    /// The state of the same bucket after some time in which nothing is taken from it. Units of a
    /// window that have grown old by then are not known, unless all have.
    #[must_use]
    pub fn later(&self, quota: &Quota, time: Nanos) -> Self {
        if quota.algorithm().is_windowed() {
            let before = Nanos::from_secs(self.reset_before_secs.into());
            let [retry_in, reset_in, before] =
                [self.retry_in, self.reset_in, before].map(|span| span.saturating_sub(time));
            let is_full = reset_in.is_zero();
            return Self {
                allowed: self.allowed,
                remaining: if is_full {
                    quota.burst().get()
                } else {
                    self.remaining
                },
                retry_in,
                reset_in,
                reset_before_secs: before.whole_secs(),
            };
        }
        Self {
            retry_in: self.retry_in.saturating_sub(time),
            allowed: self.allowed,
            ..Self::allowed(quota, self.reset_in.saturating_sub(time))
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
    use crate::{Alignment, Calendar, CalendarUnit, Transaction, Window};

    /// A quarter of a minute into one.
    const NOW: Timestamp = Timestamp::from_nanos(75_000_000_000);

    /// Ten units, one a minute.
    fn decide(cost: u64, debt: u64) -> (Quota, Decision) {
        let quota = Quota::new(10, 1, Duration::from_secs(60)).unwrap();
        let transaction = Transaction::new("L:a".into(), quota, NonZeroU64::new(cost).unwrap());
        (quota, transaction.decide(Nanos::from_secs(debt)))
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
            let full = Decision::full(&quota);
            let after = full.after_taking(&quota, 4, NOW);
            assert_eq!(
                (after.remaining, after.reset_in),
                (6, Nanos::from_secs(left))
            );
            assert_eq!(after.after_giving_back(&quota, 4), full);
            assert_eq!(full.after_taking(&quota, 0, NOW), full, "no window begins");
            assert_eq!(after.after_taking(&quota, 0, NOW), after);
            let empty = after.after_taking(&quota, 99, NOW);
            assert_eq!((empty.remaining, empty.reset_in), (0, after.reset_in));
            assert_eq!(full.after_giving_back(&quota, 1), full, "no more than all");
            let over = after.later(&quota, Nanos::from_secs(left));
            assert_eq!(over, full, "what was taken counts no more");
        }
    }

    /// `t` stayed what it was before the response took more, or gave back.
    #[test]
    fn when_a_window_is_full_again_is_foreseen_with_what_is_taken_later() {
        let [log, sliding] = [
            Algorithm::SlidingLog {
                count_denied: false,
            },
            Algorithm::SlidingWindow {
                count_denied: false,
            },
        ];
        let fixed = Algorithm::FixedWindow(Alignment::FirstRequest);
        let now = Timestamp::from_nanos(40_000_000_000) + NOW.since(Timestamp::default());
        for (algorithm, before, later) in [(log, 60, 60), (sliding, 61, 61), (fixed, 60, 20)] {
            let quota = Quota::windowed(algorithm, 10, Duration::from_secs(60)).unwrap();
            let take = |cost| Transaction::new("L:a".into(), quota, NonZeroU64::new(cost).unwrap());
            let mut window = Window::full(&quota).unwrap();
            window.take(&take(2), NOW);
            // Three more are taken later, and then three by the response.
            let second = take(3).decide_in_window(&window.usage(&take(3), now));
            let third = second.after_taking(&quota, 3, now);
            assert_eq!(
                (third.remaining, third.reset_in),
                (2, Nanos::from_secs(later))
            );
            let undone = second.after_giving_back(&quota, 3);
            let expected = Nanos::from_secs(before - 40);
            assert_eq!(
                (undone.remaining, undone.reset_in),
                (8, expected),
                "{algorithm:?}"
            );
        }
    }
}
