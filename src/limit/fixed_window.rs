//! A count that begins anew with every window.
//!
//! A bucket is the end of its window and the units that were taken in it. A window that has ended
//! counts as none, and the next begins with the next unit that is taken. Ends are whole
//! microseconds, which is what the bucket in Redis holds.

use super::quota::CLOCK_SPREAD;
use super::window::Usage;
use crate::limit::{Algorithm, Alignment, Quota, Transaction};
use crate::time::{Nanos, Timestamp};

const NANOS_PER_MICRO: u64 = 1_000;

/// The state of a bucket: a window, which may have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// When the window ends.
    pub end: Timestamp,
    /// Units that were taken in it.
    pub used: u64,
}

impl FixedWindow {
    /// How a transaction stands to this bucket.
    pub fn usage(&self, one: &Transaction, now: Timestamp) -> Usage {
        let window = self.effective(&one.quota, now);
        let left = window.end.since(now);
        Usage {
            used: window.used,
            retry_in: left,
            reset_in: if window.used == 0 { Nanos::ZERO } else { left },
            reset_after: left,
        }
    }

    /// The window that counts now: this one, or a new one when it has ended. One that ends later
    /// than any window of this quota stems from another quota, and ends with the current window.
    pub fn effective(&self, quota: &Quota, now: Timestamp) -> Self {
        if self.end <= now {
            Self {
                end: window_end(quota, now),
                used: 0,
            }
        } else if self.is_left_over(quota, now) {
            Self {
                end: window_end(quota, now),
                used: self.used,
            }
        } else {
            *self
        }
    }

    /// Whether the window ends too late to be one of this quota. Another gateway may be in the
    /// next window already, by a clock that is ahead.
    pub fn is_left_over(&self, quota: &Quota, now: Timestamp) -> bool {
        self.end > window_end(quota, now + CLOCK_SPREAD)
    }

    pub(super) fn take(&mut self, one: &Transaction, now: Timestamp) {
        *self = self.effective(&one.quota, now);
        self.used = self.used.saturating_add(one.cost.get());
    }

    pub(super) fn give_back(&mut self, units: u64) {
        self.used = self.used.saturating_sub(units);
    }
}

/// When a window that is in force now, or begins now, ends.
pub fn window_end(quota: &Quota, now: Timestamp) -> Timestamp {
    let micros = now.as_nanos() / NANOS_PER_MICRO;
    let period = quota.tolerance().get().div_ceil(NANOS_PER_MICRO);
    let end = match quota.algorithm() {
        Algorithm::FixedWindow(Alignment::Calendar(calendar)) => return calendar.end(now),
        Algorithm::FixedWindow(Alignment::Period) => (micros / period + 1) * period,
        // A part of a microsecond is rounded up, lest the window be shorter than it should be.
        _ => now.as_nanos().div_ceil(NANOS_PER_MICRO) + period,
    };
    Timestamp::from_nanos(end.saturating_mul(NANOS_PER_MICRO))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::limit::Mode;

    /// A nanosecond into a microsecond.
    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_001);

    fn quota(alignment: Alignment, period: Duration) -> Quota {
        Quota::windowed(Algorithm::FixedWindow(alignment), 10, period).unwrap()
    }

    #[test]
    fn a_window_of_which_nothing_is_used_is_full_whenever_it_ends() {
        let quota = quota(Alignment::Period, Duration::from_secs(60));
        let look = Transaction {
            kind: Mode::Peek,
            ..Transaction::new("L:a".into(), quota, NonZeroU64::MIN)
        };
        let unused = FixedWindow {
            end: window_end(&quota, NOW),
            used: 0,
        };
        let usage = unused.usage(&look, NOW);
        assert_eq!((usage.used, usage.reset_in), (0, Nanos::ZERO));
        assert!(!usage.reset_after.is_zero());
    }

    #[test]
    fn a_window_is_never_shorter_than_its_period() {
        for period in [Duration::from_secs(60), Duration::from_nanos(1_000_000_001)] {
            let quota = quota(Alignment::FirstRequest, period);
            let length = window_end(&quota, NOW).since(NOW);
            assert!(length >= quota.tolerance(), "{length:?}");
            assert!(length < quota.tolerance() + Nanos::new(2000), "{length:?}");
        }
    }
}
