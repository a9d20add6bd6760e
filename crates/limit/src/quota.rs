//! How much a limit allows and how it counts: burst, count and period, brought to the two numbers
//! that GCRA needs, or the count and period of a window.

use std::convert::Infallible;
use std::num::NonZeroU64;
use std::time::Duration;

use thiserror::Error;

use crate::time::Nanos;
use crate::{Calendar, Prefetch};

/// By how much the clocks of two gateways may differ without anything expiring too soon. One
/// that is further off from the store's is warned of.
pub const CLOCK_TOLERANCE: Nanos = Nanos::from_secs(1);

/// By how much a gateway's clock may differ from that of the store that it shares with others. One
/// that is further off must not touch the buckets.
pub const CLOCK_BOUND: Nanos = Nanos::from_secs(2);

/// How much greater a debt may be than the quota can have caused, by clocks alone: it was made on a
/// clock that is ahead by the bound, and is seen on one that is behind by the tolerance.
pub(super) const CLOCK_SPREAD: Nanos = Nanos::new(CLOCK_BOUND.get() + CLOCK_TOLERANCE.get());

/// The longest that units may be lent before they have come back: see [`Quota::allow_borrowing`]. A
/// route that does not lend must not take the debts of one that does for leftovers of another
/// quota, so it is shorter than what clocks alone may cause.
pub const MAX_DELAY: Nanos = Nanos::new(CLOCK_SPREAD.get() - CLOCK_TOLERANCE.get());

/// The greatest tolerance, 2^62 ns or some 146 years: with it a TAT stays below 2^63 until 2116.
const MAX_TOLERANCE: u64 = 1 << 62;

/// The shortest period of a window: a sub-window of it has some milliseconds.
const MIN_WINDOW: Duration = Duration::from_secs(1);

/// The greatest count of a sliding log, which remembers each unit: 80 kB a bucket in memory.
pub const MAX_LOG_UNITS: u64 = 10_000;

/// The most entries that one request may add to sliding logs: 53 kB, and a millisecond or two of
/// Redis.
pub const MAX_LOG_ENTRIES: u64 = 1_000;

/// The most entries that are added to a sliding log before it is known whether they fit, and
/// removed again if they do not.
pub const MAX_UNCHECKED_LOG_ENTRIES: u64 = 16;

/// How a limit counts. See `docs/ALGORITHMS.md` for what each costs and where each errs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The generic cell rate algorithm, which is a token bucket: units come back one by one.
    #[default]
    Gcra,
    /// A count that begins anew with every window.
    FixedWindow(Alignment),
    /// Counts of sixty sub-windows, summed over the period and one sub-window more.
    SlidingWindow {
        /// Whether the cost of a request that this limit denies is counted as well.
        count_denied: bool,
    },
    /// Every unit, with the moment at which it was taken.
    SlidingLog {
        /// Whether the cost of a request that this limit denies is counted as well.
        count_denied: bool,
    },
    /// Not what passes in a time, but how much is under way at once: see [`Claim`](super::Claim).
    /// It is counted in leases, and no transaction of a batch is decided by it.
    InFlight,
}

/// Where fixed windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// At multiples of the period since the Unix epoch, for all subjects alike.
    Period,
    /// With a subject's first request after its last window has ended.
    FirstRequest,
    /// With the days, weeks or months of a time zone.
    Calendar(Calendar),
}

impl Algorithm {
    /// The name, as it is written in configurations.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingWindow { .. } => "sliding_window",
            Self::SlidingLog { .. } => "sliding_log",
            Self::InFlight => "in_flight",
        }
    }

    /// Whether it counts in windows.
    pub const fn is_windowed(&self) -> bool {
        !matches!(self, Self::Gcra | Self::InFlight)
    }

    /// Whether the cost of a request that the limit denies is counted as well.
    pub const fn counts_denied(&self) -> bool {
        match self {
            Self::Gcra | Self::FixedWindow(_) | Self::InFlight => false,
            Self::SlidingWindow { count_denied } | Self::SlidingLog { count_denied } => {
                *count_denied
            }
        }
    }
}

/// How much a bucket holds and how fast it fills, in the terms of GCRA.
///
/// A quota that is counted in windows has the count for its burst and the period for its tolerance:
/// the count passes at once, and all of it is there again after the period.
///
/// A quota of requests in flight has their number for its burst, and no tolerance: nothing comes
/// back with time.
///
/// It can only be made by [`Quota::new`], [`Quota::windowed`] and [`Quota::in_flight`], so no
/// arithmetic on it can overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    burst: NonZeroU64,
    emission_interval: NonZeroU64,
    tolerance: u64,
    counting: Counting,
}

/// How a quota is counted. Only GCRA prefetches, so this takes no more room than the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counting {
    Gcra(Option<Prefetch>),
    Other(Algorithm),
}

/// Why a burst, count and period make no quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The burst is zero, which would deny everything.
    #[error("burst must be at least 1")]
    ZeroBurst,
    /// The count is zero: nothing would ever come back.
    #[error("count must be at least 1")]
    ZeroCount,
    /// The period is zero.
    #[error("period must be longer than zero")]
    ZeroPeriod,
    /// The period is longer than 2^62 ns.
    #[error("period must be at most 146 years (2^62 ns)")]
    PeriodTooLong,
    /// More than one unit would come back each nanosecond.
    #[error("count must be at most one per nanosecond of the period")]
    TooFast,
    /// An empty bucket would take longer than 2^62 ns to fill.
    #[error("burst x period / count must be at most 146 years (2^62 ns)")]
    ToleranceTooLong,
    /// The period of a window is shorter than a second.
    #[error("a window's period must be at least 1s")]
    WindowTooShort,
    /// No request may be in flight, which would deny everything.
    #[error("in_flight must be at least 1")]
    ZeroInFlight,
    /// A sliding log of this count takes too much memory.
    #[error("a sliding_log's count must be at most {MAX_LOG_UNITS}, as it remembers each unit")]
    LogTooLong,
}

impl Quota {
    /// A quota of `burst` units at once, and `count` units each `period` for ever.
    ///
    /// The emission interval is `period / count` in whole nanoseconds, rounded down as Boulder
    /// does, so `count` units do come back within a `period`.
    ///
    /// # Errors
    /// See [`QuotaError`]; whatever passes is safe for all arithmetic of this module.
    pub fn new(burst: u64, count: u64, period: Duration) -> Result<Self, QuotaError> {
        let burst = NonZeroU64::new(burst).ok_or(QuotaError::ZeroBurst)?;
        let count = NonZeroU64::new(count).ok_or(QuotaError::ZeroCount)?;
        if period.is_zero() {
            return Err(QuotaError::ZeroPeriod);
        }
        let period = u64::try_from(period.as_nanos())
            .ok()
            .filter(|&nanos| nanos <= MAX_TOLERANCE)
            .ok_or(QuotaError::PeriodTooLong)?;
        let emission_interval = NonZeroU64::new(period / count).ok_or(QuotaError::TooFast)?;
        let tolerance = burst
            .get()
            .checked_mul(emission_interval.get())
            .filter(|&nanos| nanos <= MAX_TOLERANCE)
            .ok_or(QuotaError::ToleranceTooLong)?;
        Ok(Self {
            burst,
            emission_interval,
            tolerance,
            counting: Counting::Gcra(None),
        })
    }

    /// A quota of `count` units in each window of a `period`, counted by `algorithm`. The windows
    /// of a calendar are as long as the calendar says, and `period` is ignored.
    ///
    /// With [`Algorithm::Gcra`] it is the quota of `count` units at once and each `period`.
    ///
    /// # Errors
    /// See [`QuotaError`].
    pub fn windowed(
        algorithm: Algorithm,
        count: u64,
        period: Duration,
    ) -> Result<Self, QuotaError> {
        let period = match algorithm {
            Algorithm::FixedWindow(Alignment::Calendar(calendar)) => {
                calendar.unit().longest().into()
            }
            _ => period,
        };
        if count == 0 {
            return Err(QuotaError::ZeroCount);
        }
        let gcra = Self::new(count, count, period)?;
        match algorithm {
            Algorithm::Gcra => return Ok(gcra),
            Algorithm::SlidingLog { .. } if count > MAX_LOG_UNITS => {
                return Err(QuotaError::LogTooLong);
            }
            _ if period < MIN_WINDOW => return Err(QuotaError::WindowTooShort),
            _ => {}
        }
        // A window in Redis has 62 bits for its units, of which there is one a nanosecond at most.
        let tolerance = u64::try_from(period.as_nanos())
            .ok()
            .filter(|&nanos| nanos < MAX_TOLERANCE)
            .ok_or(QuotaError::PeriodTooLong)?;
        Ok(Self {
            tolerance,
            counting: Counting::Other(algorithm),
            ..gcra
        })
    }

    /// A quota of `most` requests in flight at the same time.
    ///
    /// # Errors
    /// [`QuotaError::ZeroInFlight`].
    pub fn in_flight(most: u64) -> Result<Self, QuotaError> {
        Ok(Self {
            burst: NonZeroU64::new(most).ok_or(QuotaError::ZeroInFlight)?,
            emission_interval: NonZeroU64::MIN,
            tolerance: 0,
            counting: Counting::Other(Algorithm::InFlight),
        })
    }

    /// Lets gateways take units ahead of their requests, or not. Only GCRA prefetches.
    #[must_use]
    pub const fn with_prefetch(self, prefetch: Option<Prefetch>) -> Self {
        match self.counting {
            Counting::Gcra(_) => Self {
                counting: Counting::Gcra(prefetch),
                ..self
            },
            Counting::Other(_) => self,
        }
    }

    /// How many units gateways may take ahead of their requests, if any.
    pub const fn prefetch(&self) -> Option<Prefetch> {
        match self.counting {
            Counting::Gcra(prefetch) => prefetch,
            Counting::Other(_) => None,
        }
    }

    /// Lets units be taken up to `ahead` before they have come back. Only GCRA lends: the burst is
    /// greater by as many units as come back in that time. Units are lent by the bucket, so they
    /// are not prefetched.
    #[must_use]
    pub fn allow_borrowing(self, ahead: Nanos) -> Self {
        let interval = self.emission_interval.get();
        let units = ahead.get().min(MAX_DELAY.get()) / interval;
        let burst = self.burst.saturating_add(units);
        let tolerance = burst.get().checked_mul(interval);
        match (self.counting, tolerance) {
            (Counting::Gcra(_), Some(tolerance)) if tolerance <= MAX_TOLERANCE => Self {
                burst,
                tolerance,
                counting: Counting::Gcra(None),
                ..self
            },
            _ => self,
        }
    }

    /// Whether it limits requests in flight.
    pub const fn is_in_flight(&self) -> bool {
        matches!(self.counting, Counting::Other(Algorithm::InFlight))
    }

    /// How it is counted.
    pub const fn algorithm(&self) -> Algorithm {
        match self.counting {
            Counting::Gcra(_) => Algorithm::Gcra,
            Counting::Other(algorithm) => algorithm,
        }
    }

    /// How many units a full bucket holds.
    pub const fn burst(&self) -> NonZeroU64 {
        self.burst
    }

    /// The time that one unit takes to come back.
    pub const fn emission_interval(&self) -> Nanos {
        Nanos::new(self.emission_interval.get())
    }

    /// How far in the future a TAT may be: the time that an empty bucket takes to fill.
    pub const fn tolerance(&self) -> Nanos {
        Nanos::new(self.tolerance)
    }

    /// The time by which `cost` units advance a TAT, or nothing when even a full bucket does not
    /// hold them.
    pub fn increment(&self, cost: NonZeroU64) -> Option<Nanos> {
        (cost <= self.burst).then(|| Nanos::new(cost.get() * self.emission_interval.get()))
    }

    /// The greatest debt that this quota can have caused. It is three seconds more than the
    /// tolerance: some may stem from another gateway's clock, or from a route that delays requests.
    pub fn greatest_debt(&self) -> Nanos {
        self.tolerance() + CLOCK_SPREAD
    }

    /// Whether a debt is too great to stem from this quota: another definition of the limit is in
    /// force elsewhere, or was. See `limit::levels`.
    pub fn is_foreign(&self, debt: Nanos) -> bool {
        debt > self.greatest_debt()
    }

    /// How long until a bucket with this debt, counted by GCRA, holds one whole unit more; zero for
    /// a full one.
    pub fn next_unit_in(&self, debt: Nanos) -> Nanos {
        if debt.is_zero() {
            return Nanos::ZERO;
        }
        let more = self.remaining(debt).saturating_add(1);
        let more = Nanos::new(more.saturating_mul(self.emission_interval.get()));
        (debt + more).saturating_sub(self.tolerance())
    }

    /// How many whole units a bucket with this debt holds.
    pub const fn remaining(&self, debt: Nanos) -> u64 {
        let units = self.tolerance.saturating_sub(debt.get()) / self.emission_interval.get();
        // A window's period is not a whole number of emission intervals.
        if units > self.burst.get() {
            self.burst.get()
        } else {
            units
        }
    }
}

/// A number of units in each second, minute or hour, of which some may come at once: all of them,
/// unless [`burst`](Self::burst) says otherwise.
///
/// ```
/// # mod weir { pub use weir_limit as limit; }
/// use weir::limit::{Quota, Rate};
///
/// let rate: Rate = Quota::per_minute(100).burst(20);
/// let quota = Quota::try_from(rate)?;
/// assert_eq!(quota.burst().get(), 20);
/// # Ok::<(), weir::limit::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u64,
    period: Duration,
    burst: u64,
}

impl Rate {
    const fn new(count: u64, period: Duration) -> Self {
        Self {
            count,
            period,
            burst: count,
        }
    }

    /// The quota of this rate with `burst` units at once.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        Self { burst, ..self }
    }
}

impl Quota {
    /// A rate of `count` units a second.
    pub const fn per_second(count: u64) -> Rate {
        Rate::new(count, Duration::from_secs(1))
    }

    /// A rate of `count` units a minute.
    pub const fn per_minute(count: u64) -> Rate {
        Rate::new(count, Duration::from_secs(60))
    }

    /// A rate of `count` units an hour.
    pub const fn per_hour(count: u64) -> Rate {
        Rate::new(count, Duration::from_secs(3600))
    }
}

impl TryFrom<Rate> for Quota {
    type Error = QuotaError;

    /// # Errors
    /// When the rate or its burst is zero, or beyond what a quota can hold.
    fn try_from(rate: Rate) -> Result<Self, QuotaError> {
        Self::new(rate.burst, rate.count, rate.period)
    }
}

/// A quota is one already, where either will do.
impl From<Infallible> for QuotaError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(burst: u64, count: u64, period: Duration) -> Quota {
        Quota::new(burst, count, period).unwrap()
    }

    /// Each limit of a request has one.
    #[test]
    fn a_quota_takes_no_more_room_for_what_most_limits_do_not_use() {
        assert_eq!(size_of::<Counting>(), size_of::<Algorithm>());
        let prefetch = Prefetch::new(8, Duration::from_millis(1));
        let prefetched = quota(20, 100, Duration::from_secs(60)).with_prefetch(prefetch);
        assert_eq!(prefetched.prefetch(), prefetch);
        let window = Algorithm::SlidingWindow {
            count_denied: false,
        };
        let windowed = Quota::windowed(window, 20, Duration::from_secs(60)).unwrap();
        assert_eq!(windowed.with_prefetch(prefetch), windowed);
    }

    #[test]
    fn the_tolerance_is_the_burst_times_the_emission_interval() {
        let quota = quota(20, 100, Duration::from_secs(60));
        assert_eq!(quota.emission_interval(), Nanos::new(600_000_000));
        assert_eq!(quota.tolerance(), Nanos::from_secs(12));
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(Quota::new(0, 1, second), Err(QuotaError::ZeroBurst));
        assert_eq!(Quota::new(1, 0, second), Err(QuotaError::ZeroCount));
        assert_eq!(
            Quota::new(1, 1, Duration::ZERO),
            Err(QuotaError::ZeroPeriod)
        );
        assert_eq!(
            Quota::new(1, 1_000_000_001, second),
            Err(QuotaError::TooFast)
        );
        assert_eq!(
            Quota::new(u64::MAX, 1, second),
            Err(QuotaError::ToleranceTooLong)
        );
        assert_eq!(
            Quota::new(1, 1, Duration::MAX),
            Err(QuotaError::PeriodTooLong)
        );
    }

    #[test]
    fn the_greatest_tolerance_is_2_to_the_62_nanoseconds() {
        let greatest = Duration::from_nanos(1 << 62);
        assert_eq!(quota(1, 1, greatest).tolerance().get(), 1 << 62);
        assert_eq!(
            Quota::new(2, 1, greatest),
            Err(QuotaError::ToleranceTooLong)
        );
    }

    #[test]
    fn a_window_has_its_count_for_a_burst_and_its_period_for_a_tolerance() {
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        let windowed = |count, secs| Quota::windowed(log, count, Duration::from_secs(secs));
        let quota = windowed(7, 60).unwrap();
        assert_eq!(quota.burst().get(), 7);
        assert_eq!(quota.tolerance(), Nanos::from_secs(60));
        assert_eq!(quota.remaining(Nanos::ZERO), 7);
        assert_eq!(windowed(0, 60), Err(QuotaError::ZeroCount));
        assert_eq!(windowed(7, 0), Err(QuotaError::ZeroPeriod));
        assert_eq!(windowed(10_001, 60), Err(QuotaError::LogTooLong));
        let short = Duration::from_millis(999);
        assert_eq!(
            Quota::windowed(log, 7, short),
            Err(QuotaError::WindowTooShort)
        );
        // A token bucket is not held to what windows are.
        let bucket = Quota::new(7, 7, short);
        assert_eq!(Quota::windowed(Algorithm::Gcra, 7, short), bucket);
        let long = Duration::from_nanos(1 << 62);
        assert_eq!(
            Quota::windowed(log, 7, long),
            Err(QuotaError::PeriodTooLong)
        );
    }

    #[test]
    fn a_cost_up_to_the_burst_fits_a_full_bucket_and_no_greater_one_ever_does() {
        let quota = quota(5, 1, Duration::from_secs(60));
        let increment = |cost| quota.increment(NonZeroU64::new(cost).unwrap());
        assert_eq!(increment(5), Some(quota.tolerance()));
        assert_eq!(increment(6), None);
        assert_eq!(increment(u64::MAX), None);
    }

    /// A nanosecond is no part of a second by six hundred million, so it looked as if there were
    /// more.
    #[test]
    fn no_bucket_holds_more_than_its_burst() {
        let window = Algorithm::FixedWindow(Alignment::Period);
        let quota = Quota::windowed(window, 600_000_000, Duration::from_secs(1)).unwrap();
        assert_eq!(quota.remaining(Nanos::ZERO), 600_000_000);
        assert_eq!(quota.remaining(quota.tolerance()), 0);
    }

    #[test]
    fn the_longest_log_and_the_shortest_window_are_quotas() {
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        let second = Duration::from_secs(1);
        assert!(Quota::windowed(log, MAX_LOG_UNITS, second).is_ok());
    }

    #[test]
    fn only_a_debt_that_no_clock_within_the_bound_explains_is_another_definitions() {
        let quota = quota(1, 1, Duration::from_secs(5));
        let skewed = quota.tolerance() + CLOCK_SPREAD;
        assert!(!quota.is_foreign(skewed));
        assert!(quota.is_foreign(skewed + Nanos::new(1)));
    }

    #[test]
    fn a_rate_is_the_quota_that_it_says() {
        let minute = Duration::from_secs(60);
        let quota = Quota::try_from(Quota::per_minute(100).burst(20));
        assert_eq!(quota, Quota::new(20, 100, minute));
        let all_at_once = Quota::try_from(Quota::per_hour(7));
        assert_eq!(all_at_once, Quota::new(7, 7, 60 * minute));
        let none = Quota::try_from(Quota::per_second(0));
        assert_eq!(none, Err(QuotaError::ZeroBurst));
    }
}
