//! What the subjects of a limit need: what it would have to be to deny (nearly) none of them.
//!
//! Each subject has a bucket that never denies, of the limit's own rate and of others. Until a bucket
//! that denies does so for the first time, its level is that of this one, and later it is never higher.
//! So a burst denies just those subjects whose highest level exceeds it, and no more requests than
//! find a level that does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::limit::{Algorithm, BucketKey, LONGEST_LOG, Mode, Quota, Transaction, Window};
use crate::time::Timestamp;

/// Other rates that are tried, in parts of the limit's own: a twentieth of it to a hundred times it.
const RATES: [(u64, u64); 11] = [
    (1, 20),
    (1, 10),
    (1, 5),
    (1, 2),
    (1, 1),
    (2, 1),
    (5, 1),
    (10, 1),
    (20, 1),
    (50, 1),
    (100, 1),
];

/// A quota of GCRA as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units that come back each period.
    pub count: u64,
    /// The period.
    pub period: Duration,
}

/// How the needs of a limit's subjects are measured.
#[derive(Clone, Debug)]
pub enum Gauge {
    /// Buckets of several rates, the limit's own among them.
    Rates(Vec<(Rate, Transaction)>, usize),
    /// Windows.
    Windows(Transaction),
    /// Requests in flight.
    InFlight,
}

/// What a subject has needed so far.
#[derive(Debug)]
pub enum Need {
    /// By rate, the theoretical arrival time of its bucket and the highest level.
    Rates(Box<[(Timestamp, u64)]>),
    /// Its window, and the most units in it.
    Windows(Box<Window>, u64),
    /// The ends of its requests in flight, and the most of them at once.
    InFlight(BinaryHeap<Reverse<Timestamp>>, u64),
}

/// How many requests found which level, of one rate.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    counts: Vec<u64>,
}

/// Levels of up to this are told apart; above it, to a thirty-second.
const EXACT: u64 = 64;
const STEPS: u32 = 5;

impl Gauge {
    /// The gauge of a limit with this quota, of which `rate` is how it is written.
    pub fn of(quota: &Quota, rate: Option<Rate>) -> Self {
        match quota.algorithm() {
            Algorithm::InFlight => Self::InFlight,
            Algorithm::Gcra => {
                let rate = rate.unwrap_or(Rate {
                    count: 1,
                    period: quota.emission_interval().into(),
                });
                Self::around(rate)
            }
            algorithm => {
                let most = match algorithm {
                    Algorithm::SlidingLog { .. } => LONGEST_LOG,
                    _ => u64::from(u32::MAX),
                };
                let period = quota.tolerance().into();
                let wide = Quota::windowed(algorithm, most, period).unwrap_or(*quota);
                Self::Windows(spending(wide))
            }
        }
    }

    /// Of rates around this one.
    fn around(own: Rate) -> Self {
        let mut counts: Vec<u64> = RATES
            .iter()
            .map(|(times, parts)| (own.count.saturating_mul(*times) / parts).max(1))
            .collect();
        counts.dedup();
        let rates = counts.iter().map(|count| Rate {
            count: *count,
            ..own
        });
        Self::rates(rates, own)
    }

    /// Of these rates; `own` is one of them.
    pub fn rates(rates: impl Iterator<Item = Rate>, own: Rate) -> Self {
        let wide = rates.filter_map(|rate| Some((rate, spending(wide(rate)?))));
        let all: Vec<_> = wide.collect();
        let own = all.iter().position(|(rate, _)| *rate == own);
        Self::Rates(all, own.unwrap_or_default())
    }

    /// How many rates there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Rates(rates, _) => rates.len(),
            Self::Windows(_) | Self::InFlight => 1,
        }
    }

    /// Which of them is the limit's own.
    pub const fn own(&self) -> usize {
        match self {
            Self::Rates(_, own) => *own,
            Self::Windows(_) | Self::InFlight => 0,
        }
    }

    /// A subject that has needed nothing.
    pub fn nothing(&self) -> Need {
        match self {
            Self::Rates(rates, _) => {
                Need::Rates(vec![(Timestamp::default(), 0); rates.len()].into())
            }
            Self::Windows(transaction) => match Window::full(&transaction.quota) {
                Some(window) => Need::Windows(Box::new(window), 0),
                None => Need::InFlight(BinaryHeap::new(), 0),
            },
            Self::InFlight => Need::InFlight(BinaryHeap::new(), 0),
        }
    }

    /// A request of a subject takes `cost` now, until `ended`. Its levels are noted in `levels`.
    pub fn take(
        &self,
        need: &mut Need,
        cost: NonZeroU64,
        now: Timestamp,
        ended: Timestamp,
        levels: &mut [Levels],
    ) {
        match (self, need) {
            (Self::Rates(rates, _), Need::Rates(buckets)) => {
                for (((_, transaction), bucket), levels) in rates.iter().zip(buckets).zip(levels) {
                    let (arrival, most) = bucket;
                    let level = take_from(transaction, arrival, cost, now);
                    levels.note(level);
                    *most = level.max(*most);
                }
            }
            (Self::Windows(transaction), Need::Windows(window, most)) => {
                let transaction = Transaction {
                    cost,
                    ..transaction.clone()
                };
                window.settle(&transaction.quota, now);
                window.take(&transaction, now);
                let level = window.used(&transaction.quota, now);
                *most = level.max(*most);
                levels.iter_mut().for_each(|levels| levels.note(level));
            }
            (_, Need::InFlight(ends, most)) => {
                while ends.peek().is_some_and(|Reverse(end)| *end <= now) {
                    ends.pop();
                }
                ends.push(Reverse(ended));
                let level = ends.len() as u64;
                *most = level.max(*most);
                levels.iter_mut().for_each(|levels| levels.note(level));
            }
            _ => {}
        }
    }
}

/// Takes a cost from a bucket that holds more than will ever be taken, and returns how many units
/// are missing in it then.
fn take_from(
    transaction: &Transaction,
    arrival: &mut Timestamp,
    cost: NonZeroU64,
    now: Timestamp,
) -> u64 {
    let transaction = Transaction {
        key: BucketKey::default(),
        cost,
        ..*transaction
    };
    let decision = transaction.decide(arrival.since(now));
    *arrival = now + decision.reset_in;
    transaction.quota.burst().get() - decision.remaining
}

impl Need {
    /// The highest level, at this rate.
    pub fn most(&self, rate: usize) -> u64 {
        match self {
            Self::Rates(buckets) => buckets.get(rate).map_or(0, |(_, most)| *most),
            Self::Windows(_, most) | Self::InFlight(_, most) => *most,
        }
    }
}

fn spending(quota: Quota) -> Transaction {
    Transaction {
        mode: Mode::SpendOnly,
        ..Transaction::new(BucketKey::default(), quota, NonZeroU64::MIN)
    }
}

/// The quota of a rate with the greatest burst that there is.
fn wide(rate: Rate) -> Option<Quota> {
    const GREATEST: u64 = 1 << 62;
    let period = u64::try_from(rate.period.as_nanos()).ok()?;
    let interval = period.checked_div(rate.count)?;
    let burst = GREATEST.checked_div(interval)?;
    Quota::new(burst, rate.count, rate.period).ok()
}

impl Levels {
    fn note(&mut self, level: u64) {
        let index = index(level);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(index) {
            *count += 1;
        }
    }

    /// Adds what another has noted.
    pub fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The most requests that may have found a level above this one.
    pub fn above(&self, level: u64) -> u64 {
        let places = self.counts.iter().enumerate();
        let above = places.filter(|(index, _)| greatest(*index) > level);
        above.map(|(_, count)| count).sum()
    }
}

/// The place of a level among the counts.
fn index(level: u64) -> usize {
    if level < EXACT {
        return usize::try_from(level).unwrap_or(usize::MAX);
    }
    let shift = level.ilog2() - STEPS;
    let step = (level >> shift) - (1 << STEPS);
    let octaves = u64::from(level.ilog2() - EXACT.ilog2());
    usize::try_from(EXACT + (octaves << STEPS) + step).unwrap_or(usize::MAX)
}

/// The greatest level of a place.
fn greatest(index: usize) -> u64 {
    let index = index as u64;
    let Some(above) = index.checked_sub(EXACT) else {
        return index;
    };
    let octave = above >> STEPS;
    let step = (above & ((1 << STEPS) - 1)) + (1 << STEPS);
    let shift = octave + u64::from(EXACT.ilog2()) - u64::from(STEPS);
    ((step + 1) << shift) - 1
}

/// The smallest of sorted values that no more than this share of them exceed, and how many do.
pub fn exceeded_by(sorted: &[u64], share: f64) -> (u64, usize) {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a part is between zero and the whole"
    )]
    let most = (share.clamp(0.0, 1.0) * sorted.len() as f64).floor() as usize;
    let index = sorted.len().saturating_sub(most + 1);
    let value = sorted.get(index).copied().unwrap_or(0);
    let not_above = sorted.partition_point(|other| *other <= value);
    (value, sorted.len() - not_above)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Nanos;

    #[test]
    fn each_level_is_at_its_place_and_no_place_is_lower_than_its_levels() {
        for level in (0..10_000).chain([1 << 20, (1 << 20) + 1, 1 << 40, u64::from(u32::MAX)]) {
            let place = greatest(index(level));
            assert!(place >= level, "{level} at {place}");
            assert!(place <= level + level / 32, "{level} at {place}");
        }
        let places: Vec<u64> = (0..500).map(greatest).collect();
        assert!(places.is_sorted());
    }

    #[test]
    fn as_many_requests_exceed_a_level_as_are_told() {
        let mut levels = Levels::default();
        (1..=100).for_each(|level| levels.note(level.min(50)));
        assert_eq!(levels.above(50), 0);
        assert_eq!(levels.above(49), 51);
        assert_eq!(levels.above(0), 100);
        levels.note(1000);
        assert_eq!(levels.above(1000), 1, "a place is counted as a whole");
        assert_eq!(levels.above(1100), 0);
    }

    #[test]
    fn a_value_is_found_that_no_more_than_a_share_exceed() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!(exceeded_by(&values, 0.5), (50, 50));
        assert_eq!(exceeded_by(&values, 0.01), (99, 1));
        assert_eq!(exceeded_by(&values, 0.0), (100, 0));
        assert_eq!(exceeded_by(&[3, 7, 7, 7], 0.5), (7, 0));
        assert_eq!(exceeded_by(&[7], 0.5), (7, 0));
        assert_eq!(exceeded_by(&[], 0.5), (0, 0));
    }

    #[test]
    fn ten_requests_at_once_need_a_burst_of_ten_and_those_that_come_slowly_one() {
        let rate = Rate {
            count: 60,
            period: Duration::from_secs(60),
        };
        let quota = Quota::new(1, rate.count, rate.period).unwrap();
        let gauge = Gauge::of(&quota, Some(rate));
        let mut levels = vec![Levels::default(); gauge.len()];
        let mut need = gauge.nothing();
        let start = Timestamp::from_nanos(1_700_000_000_000_000_000);
        let mut take = |need: &mut Need, at: Timestamp| {
            gauge.take(need, NonZeroU64::MIN, at, at, &mut levels);
        };
        (0..10).for_each(|_| take(&mut need, start));
        assert_eq!(need.most(gauge.own()), 10);
        let mut slow = gauge.nothing();
        (0..10).for_each(|second| take(&mut slow, start + Nanos::from_secs(second)));
        assert_eq!(slow.most(gauge.own()), 1);
    }
}
