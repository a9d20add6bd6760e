//! Points and spans of time in integer nanoseconds, and clocks.
//!
//! Buckets are shared between machines and outlive processes, so time is wall-clock time: Unix
//! nanoseconds. They fit 63 bits until the year 2262, which is what a bucket in Redis can hold.
//!
//! ```
//! # use weir_limit as weir;
//! use std::time::Duration;
//!
//! use weir::time::{Clock, ManualClock, Nanos, Timestamp};
//!
//! let clock = ManualClock::new(Timestamp::from_nanos(1_700_000_000_000_000_000));
//! let start = clock.now();
//! clock.advance(Duration::from_millis(1500));
//! assert_eq!(clock.now().since(start), Nanos::from(Duration::from_millis(1500)));
//! assert_eq!(clock.now().since(start).ceil_secs(), 2);
//! ```

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A point in time: nanoseconds since the Unix epoch, below 2^63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The greatest timestamp, 2^63 - 1.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// The timestamp of this many nanoseconds since the Unix epoch, at most [`Timestamp::MAX`].
    pub const fn from_nanos(nanos: u64) -> Self {
        if nanos > Self::MAX.0 {
            Self::MAX
        } else {
            Self(nanos)
        }
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch.
    pub const fn as_secs(self) -> u64 {
        self.as_nanos() / NANOS_PER_SEC
    }

    /// The span from `earlier` to this point; zero when `earlier` is the later one.
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point that is this span earlier; the epoch when there is none.
    #[must_use]
    pub const fn saturating_sub(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// Saturates at [`Timestamp::MAX`].
impl Add<Nanos> for Timestamp {
    type Output = Self;

    fn add(self, span: Nanos) -> Self {
        Self::from_nanos(self.0.saturating_add(span.0))
    }
}

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(u64);

impl Nanos {
    /// Longer than anything: what never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of this many nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of this many whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// The span in nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The span in whole seconds, rounded up.
    pub const fn ceil_secs(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SEC)
    }

    /// Whole seconds in 32 bits, which hold 136 years.
    pub fn whole_secs(self) -> u32 {
        u32::try_from(self.ceil_secs()).unwrap_or(u32::MAX)
    }

    /// The span in whole milliseconds, rounded up.
    pub const fn ceil_millis(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MILLI)
    }

    /// This span less `other`, or zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Whether the span is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// Saturates at 2^64 - 1 nanoseconds, some 584 years.
impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

/// Saturates at 2^64 - 1 nanoseconds.
impl Add for Nanos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// Tells the time. It is asked once a request.
pub trait Clock: Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// The operating system's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A clock set before 1970 reads as 1970: everything is then denied a little longer.
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp::from_nanos(Nanos::from(since_epoch).get())
    }
}

/// A clock that stands still until it is moved, for tests and simulations. Clones share its time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.as_nanos())))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.now() + Nanos::from(by));
    }

    /// Sets the clock, backward too.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_nanos(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_never_negative() {
        let (early, late) = (Timestamp::from_nanos(5), Timestamp::from_nanos(9));
        assert_eq!(late.since(early), Nanos::new(4));
        assert_eq!(early.since(late), Nanos::ZERO);
    }

    #[test]
    fn seconds_and_milliseconds_are_rounded_up() {
        assert_eq!(Nanos::new(1).ceil_secs(), 1);
        assert_eq!(Nanos::from_secs(1).ceil_secs(), 1);
        assert_eq!(Nanos::new(1_000_001).ceil_millis(), 2);
        assert_eq!(Nanos::ZERO.ceil_secs(), 0);
    }

    #[test]
    fn timestamps_stay_within_63_bits() {
        assert_eq!(Timestamp::from_nanos(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX + Nanos::new(1), Timestamp::MAX);
    }

    #[test]
    fn clones_of_a_manual_clock_share_its_time() {
        let clock = ManualClock::new(Timestamp::from_nanos(7));
        clock.clone().advance(Duration::from_nanos(3));
        assert_eq!(clock.now(), Timestamp::from_nanos(10));
    }
}
