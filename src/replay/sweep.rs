//! Several values of one parameter of a limit, each replayed: `--sweep LIMIT.burst=10..200`.

use std::str::FromStr;
use std::time::Duration;

use super::need::Rate;
use crate::config::HumanDuration;
use crate::limit::{Algorithm, Quota};
use crate::rules::Limit;

/// How many values of a range are tried.
const STEPS: u64 = 10;

/// The most values of a list.
const MOST: usize = 20;

/// A parameter of a limit and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The limit's name.
    pub limit: String,
    /// The values.
    pub values: Vec<SweepValue>,
}

/// One value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepValue {
    /// The burst.
    Burst(u64),
    /// The count.
    Count(u64),
    /// The period.
    Period(Duration),
    /// Requests in flight.
    InFlight(u64),
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            "write a limit, a parameter and values, such as SearchesPerAddress.burst=10..200, \
             SearchesPerAddress.count=50,100,200 or SearchesPerAddress.period=10s,1m"
                .to_owned()
        };
        let (parameter, values) = text.split_once('=').ok_or_else(malformed)?;
        let (limit, parameter) = parameter.rsplit_once('.').ok_or_else(malformed)?;
        let value: fn(u64) -> SweepValue = match parameter {
            "burst" => SweepValue::Burst,
            "count" => SweepValue::Count,
            "in_flight" => SweepValue::InFlight,
            "period" => {
                let period = |text: &str| {
                    text.parse()
                        .map(|HumanDuration(period)| SweepValue::Period(period))
                };
                let periods: Result<Vec<_>, _> = values.split(',').map(period).collect();
                let values = periods.map_err(|error| error.to_string())?;
                return Self::of(limit, values).ok_or_else(malformed);
            }
            _ => return Err(malformed()),
        };
        let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number > 0);
        let numbers: Option<Vec<u64>> = match values.split_once("..") {
            Some((from, to)) => number(from)
                .zip(number(to))
                .and_then(|(from, to)| range(from, to)),
            None => values.split(',').map(number).collect(),
        };
        let values = numbers.unwrap_or_default().into_iter().map(value);
        Self::of(limit, values.collect()).ok_or_else(malformed)
    }
}

/// Values from one number to another, both included.
fn range(from: u64, to: u64) -> Option<Vec<u64>> {
    let steps = to.checked_sub(from)?.min(STEPS - 1);
    let value = |step| {
        from + (to - from) / steps.max(1) * step + (to - from) % steps.max(1) * step / steps.max(1)
    };
    Some((0..=steps).map(value).collect())
}

impl Sweep {
    fn of(limit: &str, values: Vec<SweepValue>) -> Option<Self> {
        let is_good = !limit.is_empty() && (1..=MOST).contains(&values.len());
        is_good.then(|| Self {
            limit: limit.to_owned(),
            values,
        })
    }
}

impl SweepValue {
    /// The quota of a limit with this value; none if the limit has no such parameter, or not this
    /// value.
    pub fn quota(&self, limit: &Limit, rate: Option<Rate>) -> Option<Quota> {
        let quota = limit.quota()?;
        let own = rate.unwrap_or(Rate {
            count: quota.burst().get(),
            period: quota.tolerance().into(),
        });
        let (burst, rate) = match *self {
            Self::Burst(burst) => (burst, own),
            Self::Count(count) => (quota.burst().get(), Rate { count, ..own }),
            Self::Period(period) => (quota.burst().get(), Rate { period, ..own }),
            Self::InFlight(most) => {
                return quota.is_in_flight().then(|| Quota::in_flight(most).ok())?;
            }
        };
        match quota.algorithm() {
            Algorithm::Gcra => Quota::new(burst, rate.count, rate.period).ok(),
            Algorithm::InFlight => None,
            // A window has no burst beside its count.
            _ if matches!(self, Self::Burst(_)) => None,
            algorithm => Quota::windowed(algorithm, rate.count, rate.period).ok(),
        }
    }

    /// Whether a limit has this value.
    pub fn is_of(&self, limit: &Limit) -> bool {
        let quota = limit.quota();
        quota.is_some_and(|quota| match (*self, quota.algorithm()) {
            (Self::Burst(burst), Algorithm::Gcra) => quota.burst().get() == burst,
            (Self::Count(_) | Self::Period(_), Algorithm::Gcra) => true,
            (Self::InFlight(most), Algorithm::InFlight) => quota.burst().get() == most,
            (Self::Burst(_) | Self::InFlight(_), _) | (_, Algorithm::InFlight) => false,
            (Self::Count(count), _) => quota.burst().get() == count,
            (Self::Period(period), _) => Duration::from(quota.tolerance()) == period,
        })
    }

    /// The parameter's name.
    pub const fn parameter(&self) -> &'static str {
        match self {
            Self::Burst(_) => "burst",
            Self::Count(_) => "count",
            Self::Period(_) => "period",
            Self::InFlight(_) => "in_flight",
        }
    }

    /// The value, as it is written.
    pub fn shown(&self) -> String {
        match self {
            Self::Burst(number) | Self::Count(number) | Self::InFlight(number) => {
                number.to_string()
            }
            Self::Period(period) => HumanDuration(*period).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<String> {
        let sweep: Sweep = text.parse().unwrap();
        sweep.values.iter().map(SweepValue::shown).collect()
    }

    #[test]
    fn a_range_has_both_its_ends_and_steps_between_them() {
        let all = values("L.burst=10..200");
        assert_eq!((all.len(), &*all[0], &*all[9]), (10, "10", "200"));
        assert_eq!(values("L.count=1..3"), ["1", "2", "3"]);
        assert_eq!(values("L.count=7..7"), ["7"]);
        assert_eq!(values("L.period=10s,1m"), ["10s", "1m"]);
        assert_eq!(values("L.in_flight=4"), ["4"]);
    }

    #[test]
    fn anything_else_says_what_to_write() {
        for text in [
            "",
            "L",
            "L.burst",
            "L.burst=",
            "burst=1",
            "L.burst=0",
            "L.burst=2..1",
            "L.cost=1",
            "L.burst=1,x",
        ] {
            let error = text.parse::<Sweep>().unwrap_err();
            assert!(error.contains("burst=10..200"), "{text}: {error}");
        }
        assert!("L.period=5".parse::<Sweep>().is_err());
    }
}
