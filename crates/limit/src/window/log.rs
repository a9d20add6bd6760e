//! Every unit, with the moment at which it was taken: exact, and greater than any other state.

use std::collections::VecDeque;

use super::Usage;
use crate::time::{Nanos, Timestamp};
use crate::{CLOCK_BOUND, Quota, Transaction};

/// When units were taken, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitLog(VecDeque<Timestamp>);

/// The part of a log that one transaction needs: all that a store has to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogView {
    /// Units that count now.
    pub live: u64,
    /// When the newest unit was taken.
    pub newest: Option<Timestamp>,
    /// When the unit was taken that has to grow old before the cost fits: see
    /// [`LogView::deciding_rank`].
    pub deciding: Option<Timestamp>,
}

impl LogView {
    /// Which unit decides, counted from the newest, which is 0. When it still counts then at least
    /// `count - cost + 1` units do, and the cost does not fit.
    pub fn deciding_rank(transaction: &Transaction) -> u64 {
        let count = transaction.quota.burst().get();
        count.saturating_sub(transaction.cost.get())
    }

    /// How a transaction stands to a bucket of which this is known.
    pub fn usage(&self, transaction: &Transaction, now: Timestamp) -> Usage {
        let period = transaction.quota.tolerance();
        let left = |taken: Option<Timestamp>| {
            taken.map_or(Nanos::ZERO, |taken| (taken + period).since(now))
        };
        Usage {
            used: self.live,
            retry_in: left(self.deciding),
            reset_in: left(self.newest),
            reset_after: left(self.newest.max(Some(now))),
        }
    }
}

/// The earliest moment at which a unit that counts now can have been taken.
pub fn horizon(quota: &Quota, now: Timestamp) -> Timestamp {
    let period = quota.tolerance().get();
    Timestamp::from_nanos((now.as_nanos() + 1).saturating_sub(period))
}

/// The earliest moment at which a unit can have been taken that counts by the store's clock, while
/// this one may be ahead by the bound.
pub fn farthest_horizon(quota: &Quota, now: Timestamp) -> Timestamp {
    let tolerated = now.as_nanos().saturating_sub(CLOCK_BOUND.get());
    horizon(quota, Timestamp::from_nanos(tolerated))
}

impl UnitLog {
    /// The part of the log that a transaction needs.
    pub fn view(&self, transaction: &Transaction, now: Timestamp) -> LogView {
        let rank = usize::try_from(LogView::deciding_rank(transaction)).unwrap_or(usize::MAX);
        let deciding = self.0.len().checked_sub(1).and_then(|last| {
            let at = last.checked_sub(rank)?;
            self.0.get(at).copied()
        });
        LogView {
            live: self.used(&transaction.quota, now),
            newest: self.0.back().copied(),
            deciding,
        }
    }

    pub(super) fn used(&self, quota: &Quota, now: Timestamp) -> u64 {
        let horizon = horizon(quota, now);
        let dead = self.0.partition_point(|&taken| taken < horizon);
        (self.0.len() - dead) as u64
    }

    /// Adds units at `now`; others may be there already from a clock that is ahead.
    pub(super) fn take(&mut self, units: u64, now: Timestamp) {
        for _ in 0..units {
            let at = self.0.partition_point(|&taken| taken <= now);
            self.0.insert(at, now);
        }
    }

    /// Takes away the newest units, as they were taken last.
    pub(super) fn give_back(&mut self, units: u64) {
        let left = usize::try_from(units).map_or(0, |units| self.0.len().saturating_sub(units));
        self.0.truncate(left);
    }

    /// Takes away up to as many as `added` of the units that are older than the newest `count`. No
    /// more than that: what a greater count of another definition has left is not this one's to
    /// forget.
    pub(super) fn trim(&mut self, count: u64, added: u64) {
        let [count, added] =
            [count, added].map(|units| usize::try_from(units).unwrap_or(usize::MAX));
        let until = self.0.len().saturating_sub(count);
        self.0.drain(until.saturating_sub(added)..until);
    }

    /// Forgets what counts no more, by this clock and by one that is behind.
    pub(super) fn prune(&mut self, quota: &Quota, now: Timestamp) {
        let horizon = farthest_horizon(quota, now);
        while self.0.front().is_some_and(|&taken| taken < horizon) {
            self.0.pop_front();
        }
        if self.0.capacity() > 64 && self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to(2 * self.0.len());
        }
    }

    pub(super) fn expires_at(&self, quota: &Quota) -> Timestamp {
        self.0
            .back()
            .map_or(Timestamp::default(), |&taken| taken + quota.tolerance())
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Timestamp>()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::Algorithm;

    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_123_456_789);

    fn transaction() -> Transaction {
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        let quota = Quota::windowed(log, 1000, Duration::from_secs(60)).unwrap();
        Transaction::new("L:a".into(), quota, NonZeroU64::MIN)
    }

    fn just_before(time: Timestamp) -> Timestamp {
        Timestamp::from_nanos(time.as_nanos() - 1)
    }

    #[test]
    fn nothing_is_forgotten_that_counts_on_a_clock_that_is_behind() {
        let quota = transaction().quota;
        let mut log = UnitLog::default();
        log.take(3, NOW);
        let end = NOW + quota.tolerance();
        log.prune(&quota, just_before(end + CLOCK_BOUND));
        assert_eq!(log.used(&quota, just_before(end)), 3);
        assert_eq!(log.used(&quota, end), 0);
        log.prune(&quota, end + CLOCK_BOUND);
        assert_eq!(log, UnitLog::default());
    }

    #[test]
    fn units_of_a_clock_that_is_ahead_stay_the_newest() {
        let (transaction, ahead) = (transaction(), NOW + Nanos::from_secs(5));
        let mut log = UnitLog::default();
        log.take(1, ahead);
        log.take(1, NOW);
        let view = log.view(&transaction, NOW);
        assert_eq!((view.live, view.newest), (2, Some(ahead)));
        let usage = view.usage(&transaction, NOW);
        let end = (ahead + transaction.quota.tolerance()).since(NOW);
        assert_eq!((usage.reset_in, usage.reset_after), (end, end));
        log.give_back(1);
        assert_eq!(
            log.view(&transaction, NOW).newest,
            Some(NOW),
            "the newest goes first"
        );
    }

    #[test]
    fn the_memory_of_a_long_log_is_given_back() {
        let quota = transaction().quota;
        let mut log = UnitLog::default();
        log.take(1000, NOW);
        let full = log.heap_bytes();
        let later = NOW + Nanos::from_secs(60) + CLOCK_BOUND + CLOCK_BOUND;
        log.take(10, later);
        log.prune(&quota, later);
        assert_eq!(log.used(&quota, later), 10);
        assert!(log.heap_bytes() < full / 4, "{}", log.heap_bytes());
    }
}
