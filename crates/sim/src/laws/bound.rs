//! No more passes in any stretch of time than a limit admits, and the stated error of what
//! happened.

use std::time::Duration;

use super::history::{Bucket, Exchange, FOREVER, History, Span, takes_or_denies};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm, Parameters, Route};
use crate::trace::moment;

pub(super) const LAW: Law = Law {
    name: "bound",
    promises: &[
        ANY_PERIOD,
        DEFINITIONS,
        PERIODS,
        PREFETCH,
        ALONE,
        CLOCK,
        FAILOVER,
        RESTART,
    ],
    check,
};

const ANY_PERIOD: &str = "docs/ALGORITHMS.md: passes in any period, at most";
const DEFINITIONS: &str = "docs/ALGORITHMS.md: While two definitions are in force, in any time at \
    most the burst of both passes, and what comes back by the faster of the two rates.";
const PERIODS: &str = "docs/ALGORITHMS.md: While gateways have definitions with different periods, \
    and for as long as the shorter one after that, more may pass:";
const PREFETCH: &str = "docs/ALGORITHMS.md: In any time, N gateways admit at most `burst`, what \
    comes back in that time, and N times `units`.";
const ALONE: &str = "docs/REDIS.md: the memory store decides, with the same limits, in each \
    gateway alone: with n gateways, up to n times as much passes";
const CLOCK: &str = "docs/CLOCKS.md: Until all of them do, gateways differ by the jump. What \
    may pass of one bucket meanwhile, beside what comes back with time:";
const FAILOVER: &str = "docs/REDIS.md: After a failover a bucket may admit at most \
    `burst` plus the lost units too many.";
const RESTART: &str = "docs/REDIS.md: after a restart without it, all buckets are full";

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    for bucket in history.buckets() {
        if bucket.limit.algorithm == Algorithm::InFlight {
            continue;
        }
        let counted: Vec<&Exchange<'_>> = bucket
            .exchanges
            .iter()
            .copied()
            .filter(|one| counts(history, &bucket, one))
            .collect();
        // Decided by Redis for certain, or by a gateway's own memory.
        let shared = counted.iter().copied().filter(|one| {
            let span = Span::new(one.sent, one.decided());
            bucket.gateway.is_some()
                || !history.passes_without_store()
                || !history.is_outage(one.request.gateway, span)
        });
        let bound = Bound::new(history, &bucket, 1, None);
        failures.extend(bound.breach(shared.collect()));
        if bucket.gateway.is_none() && history.passes_without_store() {
            for gateway in 0..history.scenario.gateways.len() {
                let own = counted.iter().copied().filter(|one| {
                    // `allow` decides nothing, and shows nothing.
                    let name = &bucket.limit.name;
                    let shown = one.answer.and_then(|it| it.rate_limit(name, "r"));
                    one.request.gateway == gateway && shown.is_some()
                });
                let bound = Bound::new(history, &bucket, 2, Some(gateway));
                failures.extend(bound.breach(own.collect()));
            }
        }
    }
}

/// Whether a request is one that the limit let through, and that kept its units.
fn counts(history: &History<'_>, bucket: &Bucket<'_>, exchange: &Exchange<'_>) -> bool {
    let Some(one) = history.limit_use(exchange, &bucket.limit.name) else {
        return false;
    };
    let Some(reached) = exchange.reached else {
        return false;
    };
    let given_back = one.refund_on_5xx && exchange.request.status >= 500;
    let frozen = history.is_frozen(exchange.request.gateway, Span::new(exchange.sent, reached));
    takes_or_denies(one) && !given_back && !frozen
}

/// How much of a bucket may pass.
struct Bound<'a> {
    history: &'a History<'a>,
    bucket: &'a Bucket<'a>,
    /// How many buckets decide: the one in Redis, and one in the memory of a gateway.
    buckets: u64,
    /// Whose memory.
    gateway: Option<usize>,
    /// The definitions that are in force at some time of the run.
    all: Vec<Parameters>,
}

impl<'a> Bound<'a> {
    fn new(
        history: &'a History<'_>,
        bucket: &'a Bucket<'_>,
        buckets: u64,
        gateway: Option<usize>,
    ) -> Self {
        let all = history.definitions(bucket, Span::new(Duration::ZERO, FOREVER));
        Self {
            history,
            bucket,
            buckets,
            gateway,
            all,
        }
    }

    /// The first stretch in which too much passed.
    fn breach(&self, mut exchanges: Vec<&Exchange<'_>>) -> Option<Failure> {
        exchanges.sort_by_key(|one| one.reached);
        for (last, end) in exchanges.iter().enumerate() {
            let Some(until) = end.reached else { continue };
            let (mut from, mut units, mut due) = (until, 0, 0);
            for exchange in exchanges[..=last].iter().rev() {
                from = from.min(self.earliest(exchange));
                units += self.cost(exchange);
                let span = Span::new(from, until);
                // No less is due in a longer span.
                if units <= due || units <= self.least(span) {
                    continue;
                }
                due = self.most(span);
                if units > due {
                    let name = self.bucket.name();
                    let long = until.saturating_sub(from);
                    let what = format!(
                        "{units} units of {name} passed within {long:?} from {} on, where at most \
                         {due} are due{}",
                        moment(from),
                        self.counted_in(span)
                    );
                    return Some(Failure {
                        law: LAW.name,
                        promise: self.promise(span),
                        at: until,
                        what,
                    });
                }
            }
        }
        None
    }

    /// The sentence that says how much may pass in a span.
    fn promise(&self, span: Span) -> &'static str {
        if self.gateway.is_some() {
            ALONE
        } else if self.history.definitions(self.bucket, span).len() > 1 {
            match self.bucket.limit.algorithm {
                Algorithm::Gcra => DEFINITIONS,
                _ => PERIODS,
            }
        } else if self.bucket.limit.prefetch.is_some() {
            PREFETCH
        } else {
            ANY_PERIOD
        }
    }

    /// What is due for other reasons than the sentence's.
    fn counted_in(&self, span: Span) -> &'static str {
        let lost = self.history.losses.iter().any(|one| one.span.meets(span));
        let set = self.history.jumps.iter().any(|one| one.span().meets(span));
        match (lost, set) {
            (false, false) => "",
            (true, false) => ", lost data counted in",
            (false, true) => ", clocks that were set counted in",
            (true, true) => ", lost data and clocks that were set counted in",
        }
    }

    /// When it may have been decided, at the earliest.
    fn earliest(&self, exchange: &Exchange<'_>) -> Duration {
        let waits = self.history.may_wait(exchange);
        let reached = exchange.reached.unwrap_or(exchange.sent);
        if waits.is_zero() || self.may_wait_for_others(exchange) {
            return exchange.sent;
        }
        // It waited for its turn, and the turns keep to the limit.
        let late = self.history.scenario.store.timeout * 3 + self.history.jitter();
        exchange.sent.max(reached.saturating_sub(late))
    }

    /// Whether another limit may have had a request wait that has its units of this one from the
    /// beginning.
    fn may_wait_for_others(&self, exchange: &Exchange<'_>) -> bool {
        let limits = self.history.scenario.configurations.first();
        let lends = |name: &str| {
            let limit = limits.and_then(|all| all.limit(name));
            limit.is_some_and(|limit| limit.algorithm == Algorithm::Gcra)
        };
        let route = self.history.route(exchange);
        route.is_some_and(|route| {
            let mut others = route.limits.iter();
            others.any(|one| one.limit != self.bucket.limit.name && lends(&one.limit))
        })
    }

    fn cost(&self, exchange: &Exchange<'_>) -> u64 {
        let one = self.history.possible_use(exchange, &self.bucket.limit.name);
        one.map_or(0, |one| exchange.cost(one))
    }

    /// What may pass whatever is in force: less needs no closer look.
    fn least(&self, span: Span) -> u64 {
        let each = self
            .all
            .iter()
            .map(|one| self.base(&[*one], span, span.until - span.from));
        each.min().unwrap_or(0)
    }

    /// What may pass at the most, the stated errors of what happened included.
    fn most(&self, span: Span) -> u64 {
        let history = self.history;
        // Those that wait for turns that they have taken still pass when their bucket is full
        // again, or when another definition is in force.
        let waits = self.longest_wait();
        let touched = Span::new(span.from.saturating_sub(waits), span.until);
        let definitions = history.definitions(self.bucket, touched);
        let waiting = |one: &Parameters| {
            let waiting = waits.as_nanos() * u128::from(one.count);
            let waiting = waiting.div_ceil(one.period.as_nanos().max(1));
            u64::try_from(waiting).unwrap_or(u64::MAX / 8)
        };
        let full = |one: &Parameters| one.burst + waiting(one);
        let burst = definitions.iter().map(full).max().unwrap_or(0);
        let mut time = span.until - span.from + self.tolerance();
        time += time / 3000;
        // Behind a request that waits by one definition, others get units by a stricter one.
        let mut units = match definitions.len() {
            0 | 1 => 0,
            _ => definitions.iter().map(waiting).max().unwrap_or(0),
        };
        for jump in history
            .jumps
            .iter()
            .filter(|jump| jump.span().meets(touched))
        {
            if jump.is_slewed() {
                time += Duration::from_nanos(jump.by.unsigned_abs()) * 2;
            } else {
                units += 2 * burst;
            }
        }
        let lost = history.losses.iter().filter(|loss| {
            loss.span.meets(touched)
                && (loss.gateway.is_none() || loss.gateway == self.bucket.gateway)
        });
        // Then each of the definitions that are still in force begins with a full bucket.
        units += lost
            .map(|loss| {
                let since = Span::new(loss.span.from, touched.until.max(loss.span.from));
                let all = history.definitions(self.bucket, since);
                all.iter()
                    .filter(|one| definitions.contains(one))
                    .map(full)
                    .sum::<u64>()
            })
            .sum::<u64>();
        units += burst * self.given(touched);
        units += self.given_back(&definitions, touched);
        let own = history.losses.iter().filter(|loss| {
            self.gateway.is_some() && loss.gateway == self.gateway && loss.span.meets(span)
        });
        let buckets = self.buckets + own.count() as u64;
        buckets * self.base(&definitions, span, time) + units + self.prefetched(&definitions)
    }

    /// How long requests may wait for a turn that they have taken.
    fn longest_wait(&self) -> Duration {
        let routes = self.history.scenario.configurations.iter();
        let routes = routes.flat_map(|one| &one.routes).filter(|route| {
            let mut uses = route.limits.iter();
            uses.any(|one| one.limit == self.bucket.limit.name)
        });
        routes.map(Route::delay).max().unwrap_or_default()
    }

    /// How often an operator may have filled the bucket.
    fn given(&self, span: Span) -> u64 {
        let given = self.history.operations.iter().filter(|operated| {
            let (Act::Refund { limit, subject, .. } | Act::Reset { limit, subject }) =
                &operated.operation.act
            else {
                return false;
            };
            let from = operated.sent.unwrap_or(FOREVER);
            let until = operated.answer.map_or(FOREVER, |(at, ..)| at);
            *limit == self.bucket.limit.name
                && *subject == self.bucket.subject
                && Span::new(from, until).meets(span)
        });
        given.count() as u64
    }

    /// Units of windows and logs that requests may have got back of which newer ones were taken away;
    /// and lent ones that came back too late for those who had turns behind them.
    fn given_back(&self, definitions: &[Parameters], span: Span) -> u64 {
        let lends = match self.bucket.limit.algorithm {
            Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. } => false,
            Algorithm::Gcra if !self.longest_wait().is_zero() => true,
            _ => return 0,
        };
        let periods = definitions.iter().map(|one| one.period);
        let period = periods.max().filter(|_| !lends).unwrap_or_default();
        let since = span.from.saturating_sub(period);
        let touched = Span::new(since, span.until);
        let back = self.bucket.exchanges.iter().filter(|one| {
            let asked = Span::new(one.sent, one.decided());
            let late = one.refused() && self.history.is_outage(one.request.gateway, asked);
            let limit_use = self.history.possible_use(one, &self.bucket.limit.name);
            let refunds = limit_use.is_some_and(|it| it.refund_on_5xx) && !lends;
            let failed = refunds && one.request.status >= 500 && one.reached.is_some();
            asked.meets(touched) && (late || failed)
        });
        // What costs more than a full bucket has was never taken.
        let most = definitions.iter().map(|one| one.burst).max().unwrap_or(0);
        back.map(|one| self.cost(one))
            .filter(|cost| *cost <= most)
            .sum()
    }

    /// How far the clocks of gateways may differ while no clock is set.
    fn tolerance(&self) -> Duration {
        self.history.jitter() + self.history.clocks_differ() + Duration::from_millis(10)
    }

    fn prefetched(&self, definitions: &[Parameters]) -> u64 {
        let Some(prefetch) = self.bucket.limit.prefetch else {
            return 0;
        };
        let most = self.bucket.limit.parameters.burst.max(1);
        let burst = definitions
            .iter()
            .map(|one| one.burst)
            .max()
            .unwrap_or(0)
            .max(most);
        let units = (prefetch.units * burst).div_ceil(most);
        units * self.history.scenario.gateways.len() as u64
    }

    /// What these definitions admit in a span, which clocks may show to be as long as `time`.
    fn base(&self, definitions: &[Parameters], span: Span, time: Duration) -> u64 {
        match self.bucket.limit.algorithm {
            Algorithm::Gcra => {
                let mut bursts: Vec<u64> = definitions.iter().map(|one| one.burst).collect();
                bursts.sort_unstable();
                let mut units = 0;
                for (rank, burst) in bursts.iter().rev().enumerate() {
                    units += if rank < 2 { *burst } else { 2 * burst };
                }
                let back = |one: &Parameters| {
                    time.as_nanos() * u128::from(one.count) / one.period.as_nanos().max(1)
                };
                let fastest = definitions.iter().map(back).max().unwrap_or(0);
                units + u64::try_from(fastest).unwrap_or(u64::MAX / 8)
            }
            // After a change a window of before lasts until its end.
            Algorithm::FixedWindow if self.all.len() == 1 && self.has_one_clock() => {
                let of = |one: &Parameters| one.count * self.windows(one.period, span);
                definitions.first().map_or(0, of)
            }
            algorithm => {
                let most = definitions.iter().map(|one| one.count).max().unwrap_or(0);
                most.saturating_mul(self.windows_within(algorithm, definitions, span, time))
            }
        }
    }

    /// In how many windows the greatest count of these definitions may pass.
    fn windows_within(
        &self,
        algorithm: Algorithm,
        definitions: &[Parameters],
        span: Span,
        time: Duration,
    ) -> u64 {
        let mut periods: Vec<Duration> = definitions.iter().map(|one| one.period).collect();
        if algorithm == Algorithm::FixedWindow {
            // A window that a definition of before has begun lasts.
            let lasting = self.all.iter().filter(|one| {
                let before = Span::new(span.from.saturating_sub(one.period), span.from);
                self.history.definitions(self.bucket, before).contains(one)
            });
            periods.extend(lasting.map(|one| one.period));
        }
        periods.sort_unstable();
        periods.dedup();
        let (Some(&shortest), Some(&longest)) = (periods.first(), periods.last()) else {
            return 0;
        };
        match algorithm {
            // Windows end by each of the definitions.
            Algorithm::FixedWindow => {
                let ends = periods.iter().map(|period| times(time, *period) + 1);
                1 + ends.sum::<u64>()
            }
            Algorithm::WindowFromFirst => times(time, shortest) + 2,
            // The shorter period forgets the sub-windows of the longer one, each as a whole.
            Algorithm::SlidingWindow { .. } if shortest < longest => {
                let late = Duration::from_millis(1);
                times(time, shortest.saturating_sub(longest / 60 + late)) + 1
            }
            _ => times(time, shortest) + 1,
        }
    }

    fn has_one_clock(&self) -> bool {
        self.history.jumps.is_empty() && self.history.losses.is_empty()
    }

    /// How many windows that are multiples of the period a span of world time touches.
    fn windows(&self, period: Duration, span: Span) -> u64 {
        let period = i128::try_from(period.as_nanos()).unwrap_or(1).max(1);
        let tolerance = i128::try_from(self.tolerance().as_nanos()).unwrap_or(0);
        let time = |at| self.history.store_time(self.bucket.gateway, at);
        let first = (time(span.from) - tolerance).div_euclid(period);
        let last = (time(span.until) + tolerance).div_euclid(period);
        u64::try_from(last - first + 1).unwrap_or(1)
    }
}

fn times(time: Duration, period: Duration) -> u64 {
    u64::try_from(time.as_nanos() / period.as_nanos().max(1)).unwrap_or(u64::MAX / 8)
}
