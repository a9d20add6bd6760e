//! One bucket, one cost, and what to do; and the decision that GCRA makes of it.

use std::num::NonZeroU64;

use smallvec::SmallVec;

use crate::time::{Nanos, Timestamp};
use crate::{Algorithm, BucketClass, BucketKey, Quota, sub_window_end, window_end};

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
    pub mode: Mode,
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

    /// The mode that denies alike and takes nothing.
    #[must_use]
    pub const fn non_spending(self) -> Self {
        match self {
            Self::CheckAndSpend | Self::CheckOnly => Self::CheckOnly,
            Self::SpendOnly | Self::Peek => Self::Peek,
            Self::AllowOnly => Self::AllowOnly,
        }
    }

    /// The mode that treats the bucket alike and never denies: it tells by [`Decision::fits`]
    /// whether this mode would have.
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

    /// The time by which this transaction advances a TAT when its cost fits a bucket with this
    /// debt. It fits when the new debt is no greater than the tolerance.
    pub fn fitting_increment(&self, debt: Nanos) -> Option<Nanos> {
        self.quota
            .increment(self.cost)
            .filter(|&taken| debt + taken <= self.quota.tolerance())
    }

    /// The decision about a bucket whose TAT is `debt` after now: GCRA.
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

    /// The decision about a bucket that is left alone, because another limit denied the request.
    pub fn untouched(&self, debt: Nanos) -> Decision {
        Decision::allowed(&self.quota, debt)
    }

    /// Whether the cost was taken, by the decision about it as one of a batch that was allowed.
    pub fn has_taken(&self, decision: &Decision) -> bool {
        self.mode.spends() && decision.fits()
    }

    /// Whether a debt was made by another definition of the limit, so that another level may count for
    /// this one. What is left of a ban is cut instead.
    pub fn is_foreign(&self, debt: Nanos) -> bool {
        self.quota.is_stale(debt) && self.key.class() != BucketClass::Ban
    }

    /// What counts of a ban that is longer than the longest one is now.
    pub fn cut(&self, debt: Nanos) -> Option<Nanos> {
        match self.quota.is_stale(debt) {
            true => self.cut_stale(),
            false => None,
        }
    }

    #[cold]
    fn cut_stale(&self) -> Option<Nanos> {
        (self.key.class() == BucketClass::Ban).then(|| self.quota.tolerance())
    }

    /// Whether it cuts a debt that its quota cannot have caused. Who only reads changes nothing,
    /// except for the check of a ban: nothing else touches the bucket of a ban that holds.
    pub fn cuts_leftovers(&self) -> bool {
        let checks_ban = || self.key.class() == BucketClass::Ban;
        self.mode.spends() || self.mode == Mode::CheckOnly && checks_ban()
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
    /// The same of a bucket that is counted in windows, without what the transaction took: in whole
    /// seconds, rounded up, since a request's decisions are moved often and have to be small.
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
    fn allowed(quota: &Quota, debt: Nanos) -> Self {
        Self {
            allowed: true,
            remaining: quota.remaining(debt),
            retry_in: Nanos::ZERO,
            reset_in: debt,
            reset_before_secs: 0,
        }
    }

    /// Whether the cost fits the bucket, so that a mode that spends took it, if all were allowed.
    pub fn fits(&self) -> bool {
        self.retry_in.is_zero()
    }

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
    use std::time::Duration;

    use super::*;
    use crate::Strictness;

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

#[cfg(test)]
mod decision_tests {
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
