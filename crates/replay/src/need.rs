//! What the subjects of a limit need: what it would have to be to deny (nearly) none of them.
//!
//! Each subject has a bucket that never denies, of the limit's own rate and of others. Until a
//! bucket that denies does so for the first time, its level is that of this one, and later it is
//! never higher. So a burst denies just those subjects whose highest level exceeds it, and no more
//! requests than find a level that does.
//!
//! A bucket of a slow rate is never fuller than one of a faster rate. So the rates at which units
//! were still missing when a request came are the slowest ones, for most requests none or one. Only
//! these are looked at; at all others the request finds a full bucket.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::Serialize;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{
    Algorithm, Alignment, BucketKey, MAX_LOG_UNITS, Mode, Quota, Transaction, Window,
};
use weir_rules::KeySource;
use weir_yaml::HumanDuration;

use super::percent;

/// Other rates that are tried, in parts of the limit's own: a twentieth of it to a hundred times
/// it. The slowest comes first.
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
    pub period: Duration,
}

impl Rate {
    /// The time in which one unit comes back.
    fn interval(self) -> Option<NonZeroU64> {
        let quota = Quota::new(1, self.count, self.period).ok()?;
        NonZeroU64::new(quota.emission_interval().get())
    }
}

/// How the needs of a limit's subjects are measured.
#[derive(Clone, Debug)]
pub enum Gauge {
    /// Buckets of several rates, each with the time in which one unit comes back, the slowest
    /// first; and which of them is the limit's own.
    Rates(Vec<(Rate, NonZeroU64)>, usize),
    Windows(Transaction),
    InFlight,
}

/// The needs of a subject so far.
#[derive(Debug)]
pub enum Need {
    Rates(RateNeeds),
    /// Its window, and the most units in it.
    Windows(Box<Window>, u64),
    /// The ends of its requests in flight, and the most of them at once.
    InFlight(BinaryHeap<Reverse<Timestamp>>, u64),
}

/// The needs of a subject at each rate.
#[derive(Debug, Default)]
pub struct RateNeeds {
    /// The time of its last request.
    last: Timestamp,
    last_cost: u64,
    /// How many rates, the slowest ones, lacked units when it came.
    lacking: usize,
    /// The greatest cost: what is needed at rates that never lacked any.
    most_cost: u64,
    /// Of each rate that ever lacked units, the theoretical arrival time, which counts only while
    /// it lacks some, and the highest level.
    buckets: Vec<(Timestamp, u64)>,
}

/// How many requests found which level.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    counts: Vec<u64>,
}

/// How many requests found which level at each rate.
#[derive(Clone, Debug)]
pub struct LevelsByRate {
    /// At this rate, of requests that found a bucket that lacked units.
    lacking: Vec<Levels>,
    /// At this rate and all faster ones, of requests that found a full bucket.
    full: Vec<Levels>,
}

/// Levels of up to this are told apart; above it, to a thirty-second.
const EXACT: u64 = 64;
const STEPS: u32 = 5;

impl Gauge {
    /// The gauge of a limit with this quota, of which `rate` is how it is written.
    pub fn new(quota: &Quota, rate: Option<Rate>) -> Self {
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
                    Algorithm::SlidingLog { .. } => MAX_LOG_UNITS,
                    _ => u64::from(u32::MAX),
                };
                let period = quota.tolerance().into();
                let wide = Quota::windowed(algorithm, most, period).unwrap_or(*quota);
                Self::Windows(Transaction {
                    mode: Mode::SpendOnly,
                    ..Transaction::new(BucketKey::default(), wide, NonZeroU64::MIN)
                })
            }
        }
    }

    fn around(own: Rate) -> Self {
        let mut counts: Vec<u64> = RATES
            .iter()
            .map(|(times, parts)| (own.count.saturating_mul(*times) / parts).max(1))
            .collect();
        counts.dedup();
        let rate = |count| {
            let rate = Rate { count, ..own };
            Some((rate, rate.interval()?))
        };
        let rates: Vec<_> = counts.into_iter().filter_map(rate).collect();
        let index = rates.iter().position(|(rate, _)| *rate == own);
        Self::Rates(rates, index.unwrap_or_default())
    }

    const fn len(&self) -> usize {
        match self {
            Self::Rates(rates, _) => rates.len(),
            Self::Windows(_) | Self::InFlight => 1,
        }
    }

    /// The index of the limit's own rate.
    const fn own(&self) -> usize {
        match self {
            Self::Rates(_, own) => *own,
            Self::Windows(_) | Self::InFlight => 0,
        }
    }

    pub fn levels(&self) -> LevelsByRate {
        LevelsByRate {
            lacking: vec![Levels::default(); self.len()],
            full: vec![Levels::default(); self.len()],
        }
    }

    pub fn nothing(&self) -> Need {
        match self {
            Self::Rates(..) => Need::Rates(RateNeeds::default()),
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
        levels: &mut LevelsByRate,
    ) {
        let (level, most) = match (self, need) {
            (Self::Rates(rates, _), Need::Rates(needs)) => {
                return needs.take(rates, cost.get(), now, levels);
            }
            (Self::Windows(transaction), Need::Windows(window, most)) => {
                let transaction = Transaction {
                    cost,
                    ..transaction.clone()
                };
                window.settle(&transaction.quota, now);
                window.take(&transaction, now);
                (window.used(&transaction.quota, now), most)
            }
            (_, Need::InFlight(ends, most)) => {
                while ends.peek().is_some_and(|Reverse(end)| *end <= now) {
                    ends.pop();
                }
                ends.push(Reverse(ended));
                (ends.len() as u64, most)
            }
            _ => return,
        };
        *most = level.max(*most);
        levels.note(0, level);
    }
}

impl RateNeeds {
    fn take(
        &mut self,
        rates: &[(Rate, NonZeroU64)],
        cost: u64,
        now: Timestamp,
        levels: &mut LevelsByRate,
    ) {
        let mut lacking = 0;
        for (index, (_, interval)) in rates.iter().enumerate() {
            let taken = |cost: u64| Nanos::new(interval.get().saturating_mul(cost));
            let arrival = match self.buckets.get(index) {
                Some((arrival, _)) if index < self.lacking => *arrival,
                _ => self.last + taken(self.last_cost),
            };
            if arrival <= now {
                break;
            }
            lacking += 1;
            let arrival = arrival + taken(cost);
            let level = arrival.since(now).get().div_ceil(interval.get());
            levels.note(index, level);
            match self.buckets.get_mut(index) {
                Some(bucket) => *bucket = (arrival, bucket.1.max(level)),
                None => self.buckets.push((arrival, level)),
            }
        }
        levels.note_full(lacking, cost);
        self.lacking = lacking;
        self.last = now;
        self.last_cost = cost;
        self.most_cost = self.most_cost.max(cost);
    }
}

impl Need {
    /// The highest level, at this rate.
    fn most(&self, rate: usize) -> u64 {
        match self {
            Self::Rates(needs) => match needs.buckets.get(rate) {
                Some((_, most)) => needs.most_cost.max(*most),
                None => needs.most_cost,
            },
            Self::Windows(_, most) | Self::InFlight(_, most) => *most,
        }
    }
}

impl LevelsByRate {
    fn note(&mut self, rate: usize, level: u64) {
        if let Some(levels) = self.lacking.get_mut(rate) {
            levels.note(level);
        }
    }

    /// Notes the same level at this rate and all faster ones.
    fn note_full(&mut self, rate: usize, level: u64) {
        if let Some(levels) = self.full.get_mut(rate) {
            levels.note(level);
        }
    }

    pub fn add(&mut self, other: &Self) {
        let own = self.lacking.iter_mut().chain(&mut self.full);
        for (levels, more) in own.zip(other.lacking.iter().chain(&other.full)) {
            levels.add(more);
        }
    }

    fn for_rate(&self, rate: usize) -> Levels {
        let mut all = self.lacking.get(rate).cloned().unwrap_or_default();
        for full in self.full.iter().take(rate + 1) {
            all.add(full);
        }
        all
    }
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

    fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    fn requests(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The most requests that may have found a level above this one.
    fn above(&self, level: u64) -> u64 {
        let counts = self.counts.iter().enumerate();
        let above = counts.filter(|(index, _)| greatest(*index) > level);
        above.map(|(_, count)| count).sum()
    }
}

/// The index of a level's count.
fn index(level: u64) -> usize {
    if level < EXACT {
        return usize::try_from(level).unwrap_or(usize::MAX);
    }
    let shift = level.ilog2() - STEPS;
    let step = (level >> shift) - (1 << STEPS);
    let octaves = u64::from(level.ilog2() - EXACT.ilog2());
    usize::try_from(EXACT + (octaves << STEPS) + step).unwrap_or(usize::MAX)
}

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

/// How many of sorted needs each of some values denies. The values are some tenth greater one by
/// one.
fn curve(sorted: &[u64]) -> Vec<Step> {
    let most = sorted.last().copied().unwrap_or(0).max(1);
    let next = |value: &u64| {
        let next = value.saturating_add((value / 8).max(1)).min(most);
        (*value < most).then_some(next)
    };
    let step = |value| Step {
        value,
        denied_subjects: (sorted.len() - sorted.partition_point(|need| *need <= value)) as u64,
    };
    std::iter::successors(Some(1), next).map(step).collect()
}

/// The smallest of sorted values that no more than this share of them exceed, and how many do.
fn exceeded_by(sorted: &[u64], share: f64) -> (u64, usize) {
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

/// The needs of a limit's subjects.
#[derive(Debug, Serialize)]
pub struct NeedReport {
    /// What is needed: `burst` at the limit's rate, `count` of its windows, or requests
    /// `in_flight`.
    pub of: &'static str,
    /// What the limit has of it now; nothing where there is no limit yet.
    pub own: Option<u64>,
    /// The number of subjects.
    pub subjects: u64,
    /// Enough for half of the subjects.
    pub p50: u64,
    /// Enough for 99% of the subjects.
    pub p99: u64,
    /// Enough for all subjects.
    pub max: u64,
    /// How many subjects each of some values denies, up to the one that denies none.
    pub curve: Vec<Step>,
    /// The smallest that denies no more subjects than the target says.
    pub smallest: Promise,
    /// The target, in percent of the subjects.
    pub target_percent: f64,
    /// None if there are fewer than [`MIN_SUBJECTS`] subjects.
    pub suggested: Option<Suggestion>,
    /// How many further subjects are no measure, as most of their requests were refused or denied
    /// at the time.
    pub left_out_subjects: u64,
    /// Those of them with the most such requests.
    pub left_out: Vec<LeftOut>,
}

/// The fewest subjects that say what is normal.
pub const MIN_SUBJECTS: u64 = 20;

/// A subject most of whose requests were refused or denied at the time.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    pub subject: String,
    pub requests: u64,
    pub refused: u32,
}

/// A value, and how many subjects it would have denied a request or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The burst, count of windows, or requests in flight.
    pub value: u64,
    pub denied_subjects: u64,
}

impl NeedReport {
    /// Whether the report has a bound of the requests that are denied.
    pub fn has_bound(&self) -> bool {
        let suggested = self.suggested.as_ref().map(|suggested| &suggested.promise);
        let mut promises = suggested.into_iter().chain([&self.smallest]);
        promises.any(|promise| promise.denied_at_most > 0)
    }
}

/// A limit that would deny no more subjects than wanted.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// Its line in `defaults.yaml`.
    pub yaml: String,
    #[serde(flatten)]
    pub promise: Promise,
}

/// The denials of a limit if it were the only one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Promise {
    /// Its burst, count of windows, or requests in flight.
    pub value: u64,
    /// How many subjects it would have denied a request or more.
    pub denied_subjects: u64,
    /// How many of those that are left out.
    pub denied_left_out: u64,
    /// An upper bound of the requests that it would have denied: all that found the bucket too
    /// full, had denied requests taken units as well.
    pub denied_at_most: u64,
    /// In percent of the limit's requests.
    pub denied_at_most_percent: f64,
}

/// A limit whose needs were measured.
pub struct Measured<'m> {
    pub name: &'m str,
    pub per: &'m [KeySource],
    /// What it allows now: its burst, count of windows, or requests in flight.
    pub own: u64,
    pub gauge: &'m Gauge,
    pub levels: &'m LevelsByRate,
    pub needs: Vec<&'m Need>,
    /// The needs of subjects that are no measure.
    pub left_out_needs: Vec<&'m Need>,
    /// The most conspicuous of them.
    pub left_out: Vec<LeftOut>,
    /// The share of its subjects that may be denied.
    pub target: f64,
}

impl Measured<'_> {
    /// `None` without subjects.
    pub fn report(&self) -> Option<NeedReport> {
        let own = self.gauge.own();
        let sorted = self.sorted(own);
        if sorted.is_empty() && self.left_out.is_empty() {
            return None;
        }
        let subjects = sorted.len() as u64;
        Some(NeedReport {
            of: match self.gauge {
                Gauge::Rates(..) => "burst",
                Gauge::Windows(_) => "count",
                Gauge::InFlight => "in_flight",
            },
            own: Some(self.own),
            subjects,
            curve: curve(&sorted),
            p50: exceeded_by(&sorted, 0.5).0,
            p99: exceeded_by(&sorted, 0.01).0,
            max: exceeded_by(&sorted, 0.0).0,
            smallest: self.promise(own),
            target_percent: self.target * 100.0,
            suggested: (subjects >= MIN_SUBJECTS)
                .then(|| self.suggestion())
                .flatten(),
            left_out_subjects: self.left_out_needs.len() as u64,
            left_out: self.left_out.clone(),
        })
    }

    /// The need of each subject at a rate, sorted.
    fn sorted(&self, rate: usize) -> Vec<u64> {
        let mut needs: Vec<u64> = self.needs.iter().map(|need| need.most(rate)).collect();
        needs.sort_unstable();
        needs
    }

    /// The smallest burst or count that denies no more subjects than the target says, at a rate.
    fn promise(&self, rate: usize) -> Promise {
        let (value, denied_subjects) = exceeded_by(&self.sorted(rate), self.target);
        let value = value.max(1);
        let levels = self.levels.for_rate(rate);
        let left_out = self.left_out_needs.iter();
        let denied_left_out = left_out.filter(|need| need.most(rate) > value).count();
        let denied_at_most = match denied_subjects + denied_left_out {
            0 => 0,
            _ => levels.above(value),
        };
        Promise {
            value,
            denied_subjects: denied_subjects as u64,
            denied_left_out: denied_left_out as u64,
            denied_at_most,
            denied_at_most_percent: percent(denied_at_most, levels.requests()),
        }
    }

    /// The smallest rate at which the burst that is needed comes back within its period.
    fn suggestion(&self) -> Option<Suggestion> {
        let (definition, promise) = match self.gauge {
            Gauge::Rates(rates, _) => {
                let all = rates.iter().zip(0..);
                let mut all = all.map(|((rate, _), index)| (*rate, self.promise(index)));
                let mut last = all.next()?;
                while last.1.value > last.0.count {
                    let Some(next) = all.next() else { break };
                    last = next;
                }
                let (rate, promise) = last;
                let burst = promise.value;
                (Definition::Rate { burst, rate }, promise)
            }
            Gauge::Windows(wide) => {
                let promise = self.promise(0);
                let (count, like) = (promise.value, wide.quota);
                (Definition::Windows { count, like }, promise)
            }
            Gauge::InFlight => {
                let promise = self.promise(0);
                (Definition::InFlight(promise.value), promise)
            }
        };
        Some(Suggestion {
            yaml: definition.yaml(self.name, self.per),
            promise,
        })
    }
}

/// The definition of a limit in YAML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Definition {
    /// A burst at a rate.
    Rate {
        burst: u64,
        rate: Rate,
    },
    /// A count in windows like those of the quota.
    Windows {
        count: u64,
        like: Quota,
    },
    InFlight(u64),
}

impl Definition {
    /// The line in YAML that defines a limit so.
    fn yaml(&self, name: &str, per: &[KeySource]) -> String {
        let mut keys = vec![format!("per: {}", sources(per))];
        match self {
            Self::Rate { burst, rate } => {
                keys.push(format!("burst: {burst}"));
                keys.push(format!("count: {}", rate.count));
                keys.push(format!("period: {}", HumanDuration(rate.period)));
            }
            Self::Windows { count, like } => {
                let algorithm = like.algorithm();
                keys.push(format!("algorithm: {}", algorithm.name()));
                keys.push(format!("count: {count}"));
                keys.extend(window_keys(like));
            }
            Self::InFlight(most) => keys.push(format!("in_flight: {most}")),
        }
        format!("{name}: {{{}}}", keys.join(", "))
    }
}

fn window_keys(quota: &Quota) -> Vec<String> {
    let period = format!("period: {}", HumanDuration(quota.tolerance().into()));
    match quota.algorithm() {
        Algorithm::FixedWindow(Alignment::Calendar(calendar)) => vec![
            format!("calendar: {}", calendar.unit().name()),
            format!("time_zone: {}", calendar.time_zone()),
        ],
        Algorithm::FixedWindow(Alignment::FirstRequest) => {
            vec![period, "align: first_request".to_owned()]
        }
        Algorithm::SlidingWindow { count_denied: true }
        | Algorithm::SlidingLog { count_denied: true } => {
            vec![period, "count_denied: true".to_owned()]
        }
        _ => vec![period],
    }
}

/// Sources as YAML has them; `header:x` would be a mapping without quotes.
fn sources(per: &[KeySource]) -> String {
    let quoted = |source: &KeySource| {
        let text = source.to_string();
        match text.contains(':') {
            true => format!("'{text}'"),
            false => text,
        }
    };
    let all: Vec<String> = per.iter().map(quoted).collect();
    match all.as_slice() {
        [one] => one.clone(),
        _ => format!("[{}]", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::time::Nanos;

    #[test]
    fn each_level_has_an_index_whose_greatest_level_is_no_lower() {
        for level in (0..10_000).chain([1 << 20, (1 << 20) + 1, 1 << 40, u64::from(u32::MAX)]) {
            let greatest = greatest(index(level));
            assert!(greatest >= level, "{level} below {greatest}");
            assert!(greatest <= level + level / 32, "{level} below {greatest}");
        }
        let all: Vec<u64> = (0..500).map(greatest).collect();
        assert!(all.is_sorted());
    }

    #[test]
    fn as_many_requests_exceed_a_level_as_are_told() {
        let mut levels = Levels::default();
        (1..=100).for_each(|level| levels.note(level.min(50)));
        assert_eq!(levels.above(50), 0);
        assert_eq!(levels.above(49), 51);
        assert_eq!(levels.above(0), 100);
        levels.note(1000);
        assert_eq!(
            levels.above(1000),
            1,
            "levels with one index are counted together"
        );
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
    fn a_curve_goes_from_one_to_what_denies_nobody() {
        let steps = curve(&[1, 1, 2, 5, 900]);
        let first = steps.first().copied().unwrap();
        assert_eq!((first.value, first.denied_subjects), (1, 3));
        let last = steps.last().copied().unwrap();
        assert_eq!((last.value, last.denied_subjects), (900, 0));
        assert!(steps.len() < 60, "{}", steps.len());
        assert!(steps.is_sorted_by(|one, next| one.value < next.value));
        assert_eq!(curve(&[]).len(), 1);
    }

    #[test]
    fn ten_requests_at_once_need_a_burst_of_ten_and_those_that_come_slowly_one() {
        let rate = Rate {
            count: 60,
            period: Duration::from_secs(60),
        };
        let quota = Quota::new(1, rate.count, rate.period).unwrap();
        let gauge = Gauge::new(&quota, Some(rate));
        let mut levels = gauge.levels();
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

    /// What the buckets of the gateway would hold, by the decisions that it makes.
    fn level(bucket: &mut Timestamp, quota: Quota, cost: NonZeroU64, now: Timestamp) -> u64 {
        let transaction = Transaction {
            mode: Mode::SpendOnly,
            ..Transaction::new(BucketKey::default(), quota, cost)
        };
        let decision = transaction.decide(bucket.since(now));
        *bucket = now + decision.reset_in;
        quota.burst().get() - decision.remaining
    }

    proptest::proptest! {
        #[test]
        fn the_level_of_each_rate_is_that_of_its_own_bucket(
            requests in proptest::collection::vec((0..40_u64, 1..4_u64), 1..200),
        ) {
            let own = Rate { count: 20, period: Duration::from_secs(60) };
            let quota = Quota::new(1, own.count, own.period).unwrap();
            let gauge = Gauge::new(&quota, Some(own));
            let Gauge::Rates(rates, _) = &gauge else { unreachable!() };
            let (mut need, mut levels) = (gauge.nothing(), gauge.levels());
            let mut buckets = vec![(Timestamp::default(), Levels::default(), 0); rates.len()];
            let mut now = Timestamp::from_nanos(1_700_000_000_000_000_000);
            for (seconds, cost) in requests {
                now = now + Nanos::from_secs(seconds * seconds / 40);
                let cost = NonZeroU64::new(cost).unwrap();
                gauge.take(&mut need, cost, now, now, &mut levels);
                for ((rate, _), (bucket, levels, most)) in rates.iter().zip(&mut buckets) {
                    let quota = Quota::new(1 << 20, rate.count, rate.period).unwrap();
                    let level = level(bucket, quota, cost, now);
                    levels.note(level);
                    *most = level.max(*most);
                }
            }
            for (index, (_, expected, most)) in buckets.iter().enumerate() {
                proptest::prop_assert_eq!(need.most(index), *most);
                let levels = levels.for_rate(index);
                proptest::prop_assert_eq!(levels.requests(), expected.requests());
                for level in 0..300 {
                    proptest::prop_assert_eq!(levels.above(level), expected.above(level));
                }
            }
        }
    }
}
