//! The state of a bucket that is counted in windows, whichever the algorithm, and what it means
//! to a transaction.

mod log;
mod sliding;

pub use log::{LogView, UnitLog, farthest_horizon, horizon};
pub use sliding::sub_window_end;
pub use sliding::{SubWindow, SubWindows, sub_windows_lifetime};

use super::quota::CLOCK_SPREAD;
use crate::time::{Nanos, Timestamp};
use crate::{Algorithm, Alignment, Decision, Mode, Quota, Transaction};

const NANOS_PER_MICRO: u64 = 1_000;

/// The state of a bucket that is counted in windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// For [`Algorithm::FixedWindow`].
    Fixed(FixedWindow),
    /// For [`Algorithm::SlidingWindow`].
    Sliding(SubWindows),
    /// For [`Algorithm::SlidingLog`].
    Log(UnitLog),
}

/// How a transaction stands to a bucket at one moment, before it takes anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Units that count now.
    pub used: u64,
    /// How long until the cost fits; of no meaning when it does, or never will.
    pub retry_in: Nanos,
    /// How long until nothing counts any more.
    pub reset_in: Nanos,
    /// `reset_in` after the cost is taken.
    pub reset_after: Nanos,
}

impl Window {
    /// A full bucket; `None` for GCRA, which has no windows. It takes no memory beyond its own
    /// size.
    pub fn full(quota: &Quota) -> Option<Self> {
        match quota.algorithm() {
            Algorithm::Gcra | Algorithm::InFlight => None,
            Algorithm::FixedWindow(_) => Some(Self::Fixed(FixedWindow::default())),
            Algorithm::SlidingWindow { .. } => Some(Self::Sliding(SubWindows::default())),
            Algorithm::SlidingLog { .. } => Some(Self::Log(UnitLog::default())),
        }
    }

    /// How a transaction stands to this bucket.
    pub fn usage(&self, transaction: &Transaction, now: Timestamp) -> Usage {
        match self {
            Self::Fixed(window) => window.usage(transaction, now),
            Self::Sliding(windows) => windows.usage(transaction, now),
            Self::Log(log) => log.view(transaction, now).usage(transaction, now),
        }
    }

    /// Units that count now.
    pub fn used(&self, quota: &Quota, now: Timestamp) -> u64 {
        match self {
            Self::Fixed(window) => window.effective(quota, now).used,
            Self::Sliding(windows) => windows.used(quota, now),
            Self::Log(log) => log.used(quota, now),
        }
    }

    /// Takes a transaction's cost, whether it fits or not.
    pub fn take(&mut self, transaction: &Transaction, now: Timestamp) {
        let (quota, units) = (&transaction.quota, transaction.counted_units());
        match self {
            Self::Fixed(window) => window.take(transaction, now),
            Self::Sliding(windows) => windows.take(quota, units, now),
            Self::Log(log) => {
                log.take(units, now);
                if quota.algorithm().counts_denied() {
                    // Older units decide nothing, and denied ones come without end.
                    log.trim(quota.burst().get(), units);
                }
            }
        }
    }

    /// Gives a transaction's cost back, at most what is taken. A cost that never fits was never
    /// taken.
    pub fn give_back(&mut self, transaction: &Transaction) {
        let units = transaction.cost.get();
        if !transaction.fits_beside(0) {
            return;
        }
        match self {
            Self::Fixed(window) => window.give_back(units),
            Self::Sliding(windows) => windows.give_back(units),
            Self::Log(log) => log.give_back(units),
        }
    }

    /// Forgets what counts no more, and cuts what another quota has left behind.
    pub fn settle(&mut self, quota: &Quota, now: Timestamp) {
        match self {
            Self::Fixed(window) if window.is_foreign(quota, now) => {
                *window = window.effective(quota, now);
            }
            Self::Fixed(_) => {}
            Self::Sliding(windows) => windows.prune(quota, now),
            Self::Log(log) => log.prune(quota, now),
        }
    }

    /// From when on the bucket is full, whatever becomes of it until then, unless units are taken.
    pub fn expires_at(&self, quota: &Quota) -> Timestamp {
        match self {
            Self::Fixed(window) => window.end,
            Self::Sliding(windows) => windows.expires_at(quota),
            Self::Log(log) => log.expires_at(quota),
        }
    }

    /// Bytes that the state takes beyond its own size.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Fixed(_) => 0,
            Self::Sliding(windows) => windows.heap_bytes(),
            Self::Log(log) => log.heap_bytes(),
        }
    }
}

impl Transaction {
    /// Whether the cost fits a bucket counted in windows, of which `used` units are used.
    pub fn fits_beside(&self, used: u64) -> bool {
        let together = used.checked_add(self.cost.get());
        together.is_some_and(|units| units <= self.quota.burst().get())
    }

    /// The decision about a bucket counted in windows.
    ///
    /// An allowed decision shows the bucket after the cost is taken, for the modes that take it.
    pub fn decide_in_window(&self, usage: &Usage) -> Decision {
        let fits = self.fits_beside(usage.used);
        if fits && self.mode.spends() {
            Decision {
                remaining: self.remaining_beside(usage.used + self.cost.get()),
                reset_in: usage.reset_after,
                ..self.untouched_in_window(usage)
            }
        } else if !fits && self.mode != Mode::AllowOnly {
            Decision {
                allowed: !self.mode.checks(),
                retry_in: if self.fits_beside(0) {
                    usage.retry_in
                } else {
                    Nanos::NEVER
                },
                ..self.untouched_in_window(usage)
            }
        } else {
            self.untouched_in_window(usage)
        }
    }

    /// The decision about a bucket counted in windows that is left alone, because another limit
    /// denied the request.
    pub fn untouched_in_window(&self, usage: &Usage) -> Decision {
        Decision {
            allowed: true,
            remaining: self.remaining_beside(usage.used),
            retry_in: Nanos::ZERO,
            reset_in: usage.reset_in,
            reset_before_secs: usage.reset_in.whole_secs(),
        }
    }

    /// Whether this transaction is counted although its own limit denies it.
    pub fn is_counted_when_denied(&self) -> bool {
        let quota = &self.quota;
        quota.algorithm().counts_denied() && self.mode.checks() && self.mode.spends()
    }

    /// The units that are written of a cost. One that is counted when denied may be any number that
    /// a client names, and what a full bucket holds denies as long as more would.
    pub fn counted_units(&self) -> u64 {
        self.cost.min(self.quota.burst()).get()
    }

    fn remaining_beside(&self, used: u64) -> u64 {
        self.quota.burst().get().saturating_sub(used)
    }
}

/// The state of a bucket of a fixed window: its end, in whole microseconds, which is what the
/// bucket in Redis holds, and the units that were taken in it.
///
/// A window that has ended counts as none, and one of which all units are given back is none: the
/// next begins with the next unit that is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// When the window ends.
    pub end: Timestamp,
    /// Units that were taken in it.
    pub used: u64,
}

impl FixedWindow {
    /// How a transaction stands to this bucket.
    pub fn usage(&self, transaction: &Transaction, now: Timestamp) -> Usage {
        let window = self.effective(&transaction.quota, now);
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
        } else if self.is_foreign(quota, now) {
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
    pub fn is_foreign(&self, quota: &Quota, now: Timestamp) -> bool {
        self.end > window_end(quota, now + CLOCK_SPREAD)
    }

    fn take(&mut self, transaction: &Transaction, now: Timestamp) {
        *self = self.effective(&transaction.quota, now);
        self.used = self.used.saturating_add(transaction.cost.get());
    }

    fn give_back(&mut self, units: u64) {
        self.used = self.used.saturating_sub(units);
        if self.used == 0 {
            *self = Self::default();
        }
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
    use crate::Mode;

    /// A nanosecond into a microsecond.
    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_001);

    fn quota(alignment: Alignment, period: Duration) -> Quota {
        Quota::windowed(Algorithm::FixedWindow(alignment), 10, period).unwrap()
    }

    #[test]
    fn a_window_of_which_nothing_is_used_is_full_whenever_it_ends() {
        let quota = quota(Alignment::Period, Duration::from_secs(60));
        let look = Transaction {
            mode: Mode::Peek,
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

    /// Units of a request that was denied after all are given back, and must not leave a window.
    #[test]
    fn a_window_of_which_all_is_given_back_begins_with_the_next_unit() {
        let quota = quota(Alignment::FirstRequest, Duration::from_secs(60));
        let take = Transaction::new("L:a".into(), quota, NonZeroU64::MIN);
        let mut window = Window::full(&quota).unwrap();
        window.take(&take, NOW);
        window.give_back(&take);
        let later = NOW + Nanos::from_secs(40);
        let usage = window.usage(&take, later);
        assert_eq!((usage.used, usage.reset_in), (0, Nanos::ZERO));
        window.take(&take, later);
        assert_eq!(window.expires_at(&quota), window_end(&quota, later));
        window.take(&take, later + Nanos::from_secs(10));
        assert_eq!(window.expires_at(&quota), window_end(&quota, later));
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
