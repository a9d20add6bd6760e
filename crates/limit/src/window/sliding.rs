//! Counts of sub-windows of which sixty make up the period.
//!
//! A unit counts from when it is taken until its whole sub-window is a period old: for at most a
//! sixtieth of the period too long, and never too short. Sub-windows are known by the
//! millisecond of their start, so what was counted stays when the period is changed.

use super::Usage;
use crate::time::{Nanos, Timestamp};
use crate::{CLOCK_TOLERANCE, Quota, Transaction};

const NANOS_PER_MILLI: u64 = 1_000_000;

/// How many sub-windows make up a period.
const SUB_WINDOWS: u64 = 60;

/// Units by sub-window, in the order of their starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubWindows(Vec<SubWindow>);

/// The units of one sub-window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubWindow {
    /// Milliseconds from the Unix epoch to its start.
    pub start: u64,
    /// Units that were taken in it.
    pub used: u64,
}

impl SubWindow {
    /// The start of the sub-window that holds `now`.
    pub fn start_at(quota: &Quota, now: Timestamp) -> u64 {
        let length = length(quota);
        now.as_nanos() / NANOS_PER_MILLI / length * length
    }

    /// From when on it counts no more.
    fn end(&self, quota: &Quota) -> Timestamp {
        end(self.start, quota)
    }

    /// Whether it counts no more, on any clock within the clock tolerance.
    pub fn is_dead(&self, quota: &Quota, now: Timestamp) -> bool {
        self.end(quota) + CLOCK_TOLERANCE <= now
    }
}

/// How long a sub-window is, in milliseconds.
fn length(quota: &Quota) -> u64 {
    quota
        .tolerance()
        .get()
        .div_ceil(SUB_WINDOWS * NANOS_PER_MILLI)
}

fn end(start: u64, quota: &Quota) -> Timestamp {
    let millis = start.saturating_add((SUB_WINDOWS + 1) * length(quota));
    Timestamp::from_nanos(millis.saturating_mul(NANOS_PER_MILLI))
}

/// When a unit that is taken now counts no more.
pub fn sub_window_end(quota: &Quota, now: Timestamp) -> Timestamp {
    end(SubWindow::start_at(quota, now), quota)
}

/// How long a bucket must be remembered after a unit is taken.
pub fn sub_windows_lifetime(quota: &Quota) -> Nanos {
    Nanos::new((SUB_WINDOWS + 1) * length(quota) * NANOS_PER_MILLI)
}

/// Collects sub-windows, in any order.
impl FromIterator<SubWindow> for SubWindows {
    fn from_iter<I: IntoIterator<Item = SubWindow>>(all: I) -> Self {
        let mut all: Vec<_> = all
            .into_iter()
            .filter(|sub_window| sub_window.used > 0)
            .collect();
        all.sort_unstable_by_key(|sub_window| sub_window.start);
        Self(all)
    }
}

impl SubWindows {
    /// How a transaction stands to this bucket.
    pub fn usage(&self, transaction: &Transaction, now: Timestamp) -> Usage {
        let quota = &transaction.quota;
        let live = || self.live(quota, now);
        let used = self.used(quota, now);
        let newest = live().next_back().map_or(0, |sub_window| sub_window.start);
        let after = newest.max(SubWindow::start_at(quota, now));
        let mut usage = Usage {
            used,
            retry_in: Nanos::ZERO,
            reset_in: end(newest, quota).since(now),
            reset_after: end(after, quota).since(now),
        };
        let mut left = used;
        for oldest in live() {
            if transaction.fits_beside(left) {
                break;
            }
            left = left.saturating_sub(oldest.used);
            usage.retry_in = oldest.end(quota).since(now);
        }
        usage
    }

    /// Units that count now.
    pub(super) fn used(&self, quota: &Quota, now: Timestamp) -> u64 {
        let live = self.live(quota, now);
        live.fold(0, |sum: u64, sub_window| {
            sum.saturating_add(sub_window.used)
        })
    }

    fn live(&self, quota: &Quota, now: Timestamp) -> impl DoubleEndedIterator<Item = &SubWindow> {
        self.0
            .iter()
            .filter(move |sub_window| sub_window.end(quota) > now)
    }

    /// Adds units at `now`.
    pub(super) fn take(&mut self, quota: &Quota, units: u64, now: Timestamp) {
        let start = SubWindow::start_at(quota, now);
        match self
            .0
            .binary_search_by_key(&start, |sub_window| sub_window.start)
        {
            Ok(at) => {
                if let Some(found) = self.0.get_mut(at) {
                    found.used = found.used.saturating_add(units);
                }
            }
            Err(at) => self.0.insert(at, SubWindow { start, used: units }),
        }
    }

    /// What giving units back takes away: the newest go first, as they were taken last.
    pub fn given_back(&self, units: u64) -> impl Iterator<Item = SubWindow> {
        let mut left = units;
        self.0.iter().rev().map_while(move |sub_window| {
            let used = sub_window.used.min(left);
            left -= used;
            (used > 0).then_some(SubWindow {
                used,
                ..*sub_window
            })
        })
    }

    pub(super) fn give_back(&mut self, units: u64) {
        let mut left = units;
        while left > 0
            && let Some(newest) = self.0.last_mut()
        {
            let given = newest.used.min(left);
            newest.used -= given;
            left -= given;
            if newest.used == 0 {
                self.0.pop();
            }
        }
    }

    /// Forgets what counts no more on any clock within the clock tolerance.
    pub(super) fn prune(&mut self, quota: &Quota, now: Timestamp) {
        self.0.retain(|sub_window| !sub_window.is_dead(quota, now));
    }

    pub(super) fn expires_at(&self, quota: &Quota) -> Timestamp {
        self.0
            .last()
            .map_or(Timestamp::default(), |sub_window| sub_window.end(quota))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<SubWindow>()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::Algorithm;

    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_123_456_789);
    const NANO: Nanos = Nanos::new(1);

    fn quota(secs: u64) -> Quota {
        let sliding = Algorithm::SlidingWindow {
            count_denied: false,
        };
        Quota::windowed(sliding, 10, Duration::from_secs(secs)).unwrap()
    }

    fn just_before(time: Timestamp) -> Timestamp {
        Timestamp::from_nanos(time.as_nanos() - 1)
    }

    /// What a gateway that is ahead removed was missing where one that is behind counted.
    #[test]
    fn nothing_is_forgotten_that_counts_on_a_clock_that_is_behind() {
        let quota = quota(60);
        let mut windows = SubWindows::default();
        windows.take(&quota, 3, NOW);
        let end = sub_window_end(&quota, NOW);
        windows.prune(&quota, just_before(end + CLOCK_TOLERANCE));
        assert_eq!(windows.used(&quota, just_before(end)), 3);
        windows.prune(&quota, end + CLOCK_TOLERANCE);
        assert_eq!(windows, SubWindows::default());
    }

    #[test]
    fn a_unit_counts_for_a_period_at_least_and_is_remembered_as_long() {
        for secs in 1..=120 {
            let quota = quota(secs);
            let last = SubWindow::start_at(&quota, NOW) + length(&quota);
            let last = just_before(Timestamp::from_nanos(last * NANOS_PER_MILLI));
            let counts = sub_window_end(&quota, last).since(last);
            assert!(counts >= quota.tolerance(), "{secs}: {counts:?}");
            let mut windows = SubWindows::default();
            windows.take(&quota, 1, last);
            assert_eq!(windows.used(&quota, just_before(last + counts)), 1);
            assert_eq!(windows.used(&quota, last + counts), 0);
            let first = SubWindow::start_at(&quota, NOW) * NANOS_PER_MILLI;
            let first = Timestamp::from_nanos(first);
            assert_eq!(
                sub_window_end(&quota, first).since(first),
                sub_windows_lifetime(&quota)
            );
        }
    }

    #[test]
    fn units_of_a_clock_that_is_ahead_put_off_when_all_is_there_again() {
        let quota = quota(60);
        let ahead = NOW + Nanos::from_secs(5);
        let mut windows = SubWindows::default();
        windows.take(&quota, 1, ahead);
        let transaction = Transaction::new("L:a".into(), quota, NonZeroU64::MIN);
        let usage = windows.usage(&transaction, NOW);
        let end = sub_window_end(&quota, ahead).since(NOW);
        assert_eq!((usage.reset_in, usage.reset_after), (end, end));
    }

    #[test]
    fn the_newest_units_are_given_back_first_and_nothing_of_those_that_are_left() {
        let quota = quota(60);
        let mut windows = SubWindows::default();
        let moments = [0, 10, 20].map(|secs| NOW + Nanos::from_secs(secs));
        moments.iter().for_each(|&at| windows.take(&quota, 2, at));
        let given: Vec<_> = windows.given_back(3).collect();
        let starts = [2, 1].map(|index| SubWindow::start_at(&quota, moments[index]));
        let of = |start, used| SubWindow { start, used };
        assert_eq!(given, [of(starts[0], 2), of(starts[1], 1)]);
        let all: Vec<_> = windows.given_back(4).collect();
        assert_eq!(all, [of(starts[0], 2), of(starts[1], 2)]);
        windows.give_back(4);
        assert_eq!(windows.used(&quota, moments[2] + NANO), 2);
    }
}
