//! A quota in few words, for limits that are written in code.

use std::convert::Infallible;
use std::time::Duration;

use super::{Quota, QuotaError};

/// So many units in each second, minute or hour, of which some may come at once: all of them,
/// unless [`burst`](Self::burst) says otherwise.
///
/// ```
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

    /// The same rate, of which so many units may come at once.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        Self { burst, ..self }
    }
}

impl Quota {
    /// So many units a second.
    pub const fn per_second(count: u64) -> Rate {
        Rate::new(count, Duration::from_secs(1))
    }

    /// So many units a minute.
    pub const fn per_minute(count: u64) -> Rate {
        Rate::new(count, Duration::from_secs(60))
    }

    /// So many units an hour.
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
