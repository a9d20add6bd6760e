//! What is left of a bucket is what the algorithm's definition says of the requests that were let
//! through: nothing is charged to others, and nothing is given back twice.
//!
//! The reference knows of each request a stretch in which it was decided, and not the moment. So it
//! keeps a least and a greatest state, and only says what both of them say.

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::{
    Bucket, Exchange, FOREVER, History, Loss, ResponseHead, SERVERS_DIFFER, Span, counts_denied,
    takes_or_denies,
};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm, Cost, FaultKind, LimitKind, LimitUse, Parameters, Topology};

pub(super) const LAW: Law = Law {
    name: "reference",
    promises: &[R, T, CHARGED, LATE, REFUND, DENIED, EXACT, RETRY_AFTER],
    check,
};

const R: &str = "docs/config/routes.md: In `RateLimit`, `r` is what is left";
const T: &str =
    "docs/config/routes.md: `t` is the number of seconds, rounded up, until there is more";
const CHARGED: &str = "docs/ALGORITHMS.md: A request takes from all its buckets or from none.";
const LATE: &str = "docs/REDIS.md: A request that was not let through is not charged for such \
    a call";
const REFUND: &str = "docs/ALGORITHMS.md: A refund gives back at most what is used";
const DENIED: &str = "docs/ALGORITHMS.md: Whoever is denied because of such units may be denied \
    for a second more after they are given back";
const EXACT: &str = "docs/ALGORITHMS.md: Each limit is exact, however many gateways ask at once: a \
    `count` of 100 admits 100.";
const RETRY_AFTER: &str = "docs/ALGORITHMS.md: `Retry-After` is the exact time at which the same \
    request would pass if no other request came, except beside [prefetched units]";

/// Refunds that no request waits for have got to Redis by then, when nothing is wrong.
const REFUNDED: Duration = Duration::from_millis(60);

/// A refund is tried again for two seconds after its server is back.
const RETRIED: Duration = Duration::from_secs(3);

/// Behind how many others a denied client waits at most, and how much longer.
const MAX_CROWD: i128 = 256;
const MAX_SPREAD: Duration = Duration::from_secs(300);

/// What clients round a wait to.
const SECOND: Duration = Duration::from_secs(1);

/// How long a gateway may remember a denial that is out of date.
const REMEMBERED: Duration = Duration::from_millis(1050);

/// Units that a request takes, has given back, or may take.
#[derive(Debug, Clone, Copy)]
struct Take {
    span: Span,
    least: u64,
    most: u64,
    capped: bool,
    /// Takes nothing where it does not fit.
    if_it_fits: bool,
    /// When the most that it can have taken is given back, and whether that is certain.
    back: Option<(Span, bool)>,
}

impl Take {
    /// Is not certain where a failover may have lost it.
    fn doubt(&mut self, doubtful: &[Span]) {
        if doubtful.iter().any(|span| span.meets(self.span)) {
            self.least = 0;
        }
        if let Some((back, is_certain)) = &mut self.back {
            *is_certain &= !doubtful.iter().any(|span| span.meets(*back));
        }
    }
}

#[derive(Debug)]
struct Ledger<'a> {
    history: &'a History<'a>,
    bucket: &'a Bucket<'a>,
    parameters: Parameters,
    /// With the index of the exchange in the bucket.
    takes: Vec<(usize, Take)>,
    /// Clocks and drift.
    tolerance: i128,
}

/// By limit, subject and gateway.
type Ledgers<'a> = BTreeMap<(&'a str, String, Option<usize>), Ledger<'a>>;

/// Used units, or debt in nanoseconds: the least and the greatest.
type Used = (i128, i128);

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    let buckets = history.buckets();
    let mut ledgers = Ledgers::new();
    for bucket in &buckets {
        if let Some(ledger) = Ledger::new(history, bucket) {
            let key = (
                bucket.limit.name.as_str(),
                bucket.subject.clone(),
                bucket.gateway,
            );
            ledgers.insert(key, ledger);
        }
    }
    for ledger in ledgers.values() {
        failures.extend(ledger.fields());
        failures.extend(ledger.looks());
    }
    let mut exchanges = history.exchanges.iter();
    failures.extend(exchanges.find_map(|exchange| denial(history, &ledgers, exchange)));
}

/// What is wrong with a denial: there was room in all of the request's buckets, or it is told to
/// come back before there is, or long after.
fn denial(
    history: &History<'_>,
    ledgers: &Ledgers<'_>,
    exchange: &Exchange<'_>,
) -> Option<Failure> {
    let configuration = history.scenario.configurations.first()?;
    let memory = history.scenario.store.topology == Topology::Memory;
    let answer = exchange.answer.filter(|answer| answer.status == 429)?;
    let gateway = exchange.request.gateway;
    let span = Span::new(exchange.sent.saturating_sub(REMEMBERED), exchange.decided());
    if history.is_outage(gateway, span) || history.is_frozen(gateway, span) {
        return None;
    }
    let denying = history
        .route(exchange)?
        .limits
        .iter()
        .filter(|one| one.enforce);
    let mut uses = Vec::new();
    let (mut is_known, mut prefetched) = (true, false);
    for one in denying.filter(|one| one.kind != LimitKind::SpendOnly) {
        if history.may_lack(exchange, &one.limit) {
            return None;
        }
        let limit = configuration.limit(&one.limit)?;
        let Some(subject) = crate::scenario::subject(exchange.client, limit.per) else {
            continue;
        };
        prefetched |= limit.prefetch.is_some();
        let own = memory.then_some(gateway);
        let ledger = ledgers.get(&(limit.name.as_str(), subject, own));
        is_known &= ledger.is_some();
        uses.extend(ledger.map(|ledger| (one, ledger)));
    }
    let failure = |promise, what| Failure {
        law: LAW.name,
        promise,
        at: exchange.decided(),
        what,
    };
    let request = exchange.request.name();
    let names = || {
        uses.iter()
            .map(|(_, ledger)| ledger.bucket.limit.name.as_str())
    };
    if is_known
        && uses
            .iter()
            .all(|(one, ledger)| ledger.has_room(exchange, one))
    {
        let names: Vec<&str> = names().collect();
        let names = names.join(", ");
        let what =
            format!("{request} was denied, and there was room in each of its limits ({names})");
        return Some(failure(EXACT, what));
    }
    let told = answer.retry_after()?;
    let nanos = i128::from(told) * 1_000_000_000;
    let takes = uses
        .iter()
        .filter(|(one, _)| !prefetched && takes_or_denies(one));
    for (one, ledger) in takes {
        let wait = ledger.waits(exchange, one);
        if wait > nanos {
            let wait = Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
            let name = ledger.bucket.name();
            let what = format!(
                "{request} is told to retry after {told} s, and {name} has no room for it within \
                 {wait:?}"
            );
            return Some(failure(RETRY_AFTER, what));
        }
    }
    let waits = uses
        .iter()
        .map(|(one, ledger)| ledger.waits_at_most(exchange, one));
    let most = waits.collect::<Option<Vec<i128>>>()?.into_iter().max()?;
    let spreads = uses
        .iter()
        .map(|(one, ledger)| ledger.spread(exchange, one));
    let most = most.max(0) + spreads.max()?;
    (is_known && nanos >= most + 1_000_000_000).then(|| {
        let wait = Duration::from_nanos(u64::try_from(most).unwrap_or(u64::MAX));
        let what = format!(
            "{request} is told to retry after {told} s, and there is room for it within {wait:?}"
        );
        failure(RETRY_AFTER, what)
    })
}

impl<'a> Ledger<'a> {
    /// The ledger of a bucket, unless something happened to it that the docs give a wider error.
    fn new(history: &'a History<'_>, bucket: &'a Bucket<'_>) -> Option<Self> {
        let always = Span::new(Duration::ZERO, FOREVER);
        let definitions = history.definitions(bucket, always);
        let [parameters] = definitions[..] else {
            return None;
        };
        let limit = bucket.limit;
        let of_this_store = |loss: &&Loss| loss.gateway == bucket.gateway;
        let losses: Vec<&Loss> = history.losses.iter().filter(of_this_store).collect();
        let lost = losses.iter().any(|loss| loss.writes.is_none());
        let doubtful: Vec<Span> = losses
            .iter()
            .flat_map(|loss| loss.writes.into_iter().flatten())
            .collect();
        if limit.prefetch.is_some()
            || history.is_operated(bucket)
            || lost
            || !history.jumps.is_empty()
            || matches!(
                limit.algorithm,
                Algorithm::InFlight | Algorithm::WindowFromFirst
            )
        {
            return None;
        }
        let mut drift = Duration::from_millis(10) + history.end / 3000 + history.jitter();
        drift += history.clocks_differ();
        let faults = &history.scenario.faults;
        let moves = |kind: &FaultKind| matches!(kind, FaultKind::MoveSlots { .. });
        if !doubtful.is_empty() || faults.iter().any(|fault| moves(&fault.kind)) {
            drift += SERVERS_DIFFER;
        }
        let tolerance = nanos(drift);
        let mut ledger = Self {
            history,
            bucket,
            parameters,
            takes: Vec::new(),
            tolerance,
        };
        for (index, exchange) in bucket.exchanges.iter().enumerate() {
            let one = history.possible_use(exchange, &limit.name)?;
            // The new primary may lack what it is asked to give back after a response.
            if !doubtful.is_empty() && (!takes_or_denies(one) || one.refund_on_5xx) {
                return None;
            }
            let mut take = ledger.take(exchange, one);
            if let Some(take) = &mut take {
                take.doubt(&doubtful);
                if history.may_lack(exchange, &limit.name) {
                    take.least = 0;
                }
            }
            let back = take.is_some_and(|take| take.back.is_some());
            if limit.algorithm != Algorithm::Gcra && back && !exchange.refused() {
                return None;
            }
            ledger.takes.extend(take.map(|take| (index, take)));
        }
        ledger.age();
        ledger.takes.sort_by_key(|(_, take)| take.span.from);
        ledger.cut_to_room();
        Some(ledger)
    }

    /// Refunds of windows and logs take the newest units, and leave the older ones in their place.
    fn age(&mut self) {
        let windows = [Algorithm::Gcra, Algorithm::FixedWindow];
        if windows.contains(&self.bucket.limit.algorithm) {
            return;
        }
        let held = |take: &Take| Some(Span::new(take.span.from, take.back?.0.until));
        let held: Vec<Span> = self
            .takes
            .iter()
            .filter_map(|(_, take)| held(take))
            .collect();
        for (_, take) in &mut self.takes {
            let taken = Span::new(take.span.from, take.span.from);
            let older = held
                .iter()
                .filter(|one| one.meets(taken))
                .map(|one| one.from);
            take.span.from = older.min().unwrap_or(take.span.from);
        }
    }

    /// Cuts takes that take no more than there is to what there may have been.
    fn cut_to_room(&mut self) {
        for position in 0..self.takes.len() {
            let Some((index, take)) = self.takes.get(position).copied() else {
                return;
            };
            if !take.capped && !take.if_it_fits {
                continue;
            }
            let used = self.used(take.span, Some(index));
            let (least, most) = used.map_or((0, take.most), |used| self.left(used, 0));
            if let Some((_, cut)) = self.takes.get_mut(position) {
                if take.capped {
                    (cut.least, cut.most) = (take.least.min(least), take.most.min(most));
                } else {
                    cut.least = if least >= take.least { take.least } else { 0 };
                    cut.most = if most >= take.most { take.most } else { 0 };
                }
            }
        }
    }

    fn take(&self, exchange: &Exchange<'_>, one: &LimitUse) -> Option<Take> {
        let history = self.history;
        let gateway = exchange.request.gateway;
        let (sent, decided) = (exchange.sent, exchange.decided());
        let cost = exchange.cost(one);
        let asks = Span::new(sent, decided.saturating_add(RETRIED));
        let outage = history.is_outage(gateway, asks) || history.is_frozen(gateway, asks);
        let breaks = history.may_break(gateway, asks);
        let mut take = Take {
            span: Span::new(sent, decided),
            least: cost,
            most: cost,
            capped: false,
            if_it_fits: one.kind == LimitKind::SpendOnly || !one.enforce,
            back: None,
        };
        if one.kind == LimitKind::CheckOnly {
            return None;
        }
        // Which store decided is not known; a call may be lost, and a kill leaves things open. But
        // what passes where the store alone decides has taken.
        let is_decided = exchange.reached.is_some() && takes_or_denies(one);
        if outage && (history.passes_without_store() || breaks && !is_decided) {
            take.least = 0;
        }
        // A store that was late takes what has passed without it as late as it can.
        if outage && history.passes_without_store() {
            take.span.until = self.outage_ends(gateway, decided);
        }
        let answered = exchange.answer.map(|answer| answer.at);
        if exchange.refused() && self.counts_denied(one) {
            // The limit itself may have denied it, or another one, or a ban.
            let (most, counted) = (self.parameters.burst, exchange.answer);
            take.most = cost.min(most);
            take.least = match counted {
                Some(ResponseHead { status: 429, .. }) if !outage && self.is_alone(exchange) => {
                    take.most
                }
                _ => 0,
            };
            return Some(take);
        }
        if exchange.refused() {
            // Another limit denied it, or Redis was late: given back, if it was taken.
            let until = if outage {
                self.outage_ends(gateway, decided)
            } else {
                decided + REFUNDED
            };
            take.least = 0;
            take.back = Some((Span::new(sent, until), !breaks));
            let takes_later =
                one.spend_on_errors || matches!(one.cost, Cost::ResponseHeader { .. });
            // So it is where a ban keeps it out that was asked about in the same call.
            let is_kept_out = exchange.answer.is_some_and(|answer| answer.status == 410);
            let alone = !is_kept_out && self.is_alone(exchange);
            // Units of windows and logs that do not fit are removed again in the background.
            let windows = [Algorithm::Gcra, Algorithm::FixedWindow];
            let tentative = !windows.contains(&self.bucket.limit.algorithm);
            return (tentative || !takes_later && (outage || !alone)).then_some(take);
        }
        let Some(reached) = exchange.reached else {
            // Its client left, or its gateway died: it may have been charged or not.
            take.least = 0;
            return Some(take);
        };
        if let Cost::ResponseHeader { default } = one.cost {
            take.span = Span::new(reached, answered.unwrap_or(exchange.over()) + REFUNDED);
            let said = exchange.request.response_cost.unwrap_or(default);
            let known = answered.is_some();
            take.least = if known && !outage { said } else { 0 };
            take.most = if known { said } else { said.max(default) };
            take.capped = one.kind == LimitKind::CheckAndSpend && one.enforce;
        } else if one.spend_on_errors {
            take.span = Span::new(reached, answered.unwrap_or(exchange.over()) + REFUNDED);
            take.capped = !take.if_it_fits;
            if outage || answered.is_none() {
                take.least = 0;
            }
            if exchange.request.status < 400 {
                return None;
            }
        } else if one.refund_on_5xx && exchange.request.status >= 500 {
            let over = answered.unwrap_or(exchange.over());
            let until = if outage {
                self.outage_ends(gateway, over)
            } else {
                over + REFUNDED
            };
            take.back = Some((Span::new(reached, until), answered.is_some() && !outage));
        }
        Some(take)
    }

    /// Whether a request has no other limit.
    fn is_alone(&self, exchange: &Exchange<'_>) -> bool {
        let route = self.history.route(exchange);
        route.is_some_and(|route| route.limits.len() == 1)
    }

    /// Whether requests that the limit denies count.
    fn counts_denied(&self, one: &LimitUse) -> bool {
        let denies = one.kind == LimitKind::CheckAndSpend && one.enforce;
        let later = one.spend_on_errors || matches!(one.cost, Cost::ResponseHeader { .. });
        denies && !later && counts_denied(self.bucket.limit)
    }

    /// When the outages that touch a moment are over, and refunds have been sent.
    fn outage_ends(&self, gateway: usize, at: Duration) -> Duration {
        let mut until = at + RETRIED;
        for outage in self.history.outages.get(gateway).into_iter().flatten() {
            if outage.meets(Span::new(at, until)) {
                until = until.max(outage.until + RETRIED);
            }
        }
        until
    }

    /// World time in the store's nanoseconds.
    fn time(&self, at: Duration) -> i128 {
        self.history.store_time(self.bucket.gateway, at)
    }

    fn interval(&self) -> i128 {
        nanos(self.parameters.period) / i128::from(self.parameters.count).max(1)
    }

    /// How much is used at some time of a span, before the exchange `except`, if other requests
    /// were not decided in that span.
    fn used(&self, span: Span, except: Option<usize>) -> Option<Used> {
        let slack = self.history.jitter();
        let near = Span::new(span.from.saturating_sub(slack), span.until + slack);
        let others = self
            .takes
            .iter()
            .filter(|(index, _)| Some(*index) != except);
        let takes: Vec<Take> = others.map(|(_, take)| *take).collect();
        if takes.iter().any(|take| take.span.meets(near)) {
            return None;
        }
        if self.bucket.limit.algorithm == Algorithm::Gcra {
            let least = self.tat(&takes, span.from, true) - self.time(span.until);
            let most = self.tat(&takes, span.until, false) - self.time(span.from);
            return Some((
                (least - self.tolerance).max(0),
                (most + self.tolerance).max(0),
            ));
        }
        let (mut least, mut most) = (0, 0);
        for take in takes.iter().filter(|take| take.span.until <= span.from) {
            let (certain, possible) = self.counts(take, span);
            least += if certain { i128::from(take.least) } else { 0 };
            let given_back = take
                .back
                .is_some_and(|(back, sure)| sure && back.until <= span.from);
            most += if possible && !given_back {
                i128::from(take.most)
            } else {
                0
            };
        }
        Some((least, most))
    }

    /// The theoretical arrival time by what happened until a moment: at the least, or at the most.
    fn tat(&self, takes: &[Take], until: Duration, least: bool) -> i128 {
        // What is taken and given back leaves a trace where the bucket was full in between.
        let (with, without) = (
            self.tat_by(takes, until, least, true),
            self.tat_by(takes, until, least, false),
        );
        if least {
            with.min(without)
        } else {
            with.max(without)
        }
    }

    /// The same, with what was given back by then, or as if it had never been taken.
    fn tat_by(&self, takes: &[Take], until: Duration, least: bool, given_back: bool) -> i128 {
        let end = |span: Span| if least { span.from } else { span.until };
        let mut steps: Vec<(Duration, bool, u64)> = Vec::new();
        for take in takes.iter().filter(|take| take.span.until <= until) {
            let back = take.back.filter(|(_, certain)| least || *certain);
            let back = back.map(|(back, _)| end(back)).filter(|at| *at <= until);
            if back.is_some() && !given_back {
                continue;
            }
            let units = if least && back.is_none() {
                take.least
            } else {
                take.most
            };
            steps.push((end(take.span), false, units));
            steps.extend(back.map(|at| (at, true, units)));
        }
        steps.sort_unstable();
        let mut tat = i128::MIN / 4;
        for (at, back, units) in steps {
            let now = self.time(at);
            let cost = self.interval() * i128::from(units);
            tat = if back {
                (tat - cost).max(tat.min(now))
            } else {
                tat.max(now) + cost
            };
        }
        tat
    }

    /// Whether units of a window algorithm still count at a time: certainly, and possibly.
    fn counts(&self, take: &Take, span: Span) -> (bool, bool) {
        let period = nanos(self.parameters.period);
        let (taken, taken_last) = (self.time(take.span.from), self.time(take.span.until));
        let (now, last) = (self.time(span.from), self.time(span.until));
        let slack = self.tolerance;
        match self.bucket.limit.algorithm {
            Algorithm::FixedWindow => {
                let window = |time: i128| time.div_euclid(period);
                let certain = window(taken - slack) == window(last + slack);
                let possible = window(taken_last + slack) >= window(now - slack);
                (certain, possible)
            }
            Algorithm::SlidingWindow { .. } => {
                let longer = sub_window_late(period) + slack;
                (
                    taken + period > last + slack,
                    taken_last + period + longer >= now,
                )
            }
            _ => (
                taken + period > last + slack,
                taken_last + period + slack >= now,
            ),
        }
    }

    /// How many nanoseconds it lasts, at the least and at the most, until the bucket is full again,
    /// where this much was used at some time of a span and then `cost` was taken. None at the end
    /// of a window.
    fn full_in(&self, used: Used, span: Span, cost: u64, except: usize) -> Option<Used> {
        let cost = i128::from(cost);
        let period = nanos(self.parameters.period);
        let (now, last) = (self.time(span.from), self.time(span.until));
        let slack = self.tolerance;
        let longer = match self.bucket.limit.algorithm {
            Algorithm::Gcra => {
                let taken = cost * self.interval();
                return Some((used.0 + taken, used.1 + taken));
            }
            Algorithm::FixedWindow => {
                let (first, end) = ((now - slack).rem_euclid(period), last - now + 2 * slack);
                let is_used = |used: i128| i128::from(used + cost > 0);
                let rest = period - first;
                return (first + end < period)
                    .then(|| (is_used(used.0) * (rest - end), is_used(used.1) * rest));
            }
            Algorithm::SlidingWindow { .. } => sub_window_late(period),
            _ => 0,
        };
        let (mut least, mut most) = match cost {
            0 => (0, 0),
            _ => (period - slack, period + longer + slack),
        };
        let others = self.takes.iter().filter(|(index, _)| *index != except);
        for (_, take) in others.filter(|(_, take)| take.span.until <= span.from) {
            let (certain, possible) = self.counts(take, span);
            if certain && take.least > 0 {
                least = least.max(self.time(take.span.from) + period - last - slack);
            }
            let given_back = take
                .back
                .is_some_and(|(back, sure)| sure && back.until <= span.from);
            if possible && take.most > 0 && !given_back {
                most = most.max(self.time(take.span.until) + period + longer + slack - now);
            }
        }
        Some((least, most))
    }

    /// How many nanoseconds it lasts, at the least and at the most, until `t` says that there is
    /// more, where this much was used and then `cost` was taken, or more was asked for.
    fn more_in(&self, used: Used, span: Span, cost: u64, except: usize) -> Option<Used> {
        let full_in = self.full_in(used, span, cost, except);
        match self.bucket.limit.algorithm {
            Algorithm::Gcra => full_in.map(|debt| self.next_unit_in(debt)),
            _ => full_in,
        }
    }

    fn next_unit_in(&self, (least, most): Used) -> Used {
        let (unit, burst) = (self.unit(), i128::from(self.parameters.burst));
        let left = |debt: i128| (burst * unit - debt).div_euclid(unit.max(1)).max(0);
        let next = |debt: i128| match debt {
            0 => 0,
            _ => debt + (left(debt) + 1 - burst) * unit,
        };
        match left(least) == left(most) && least > 0 {
            true => (next(least), next(most)),
            false => (0, next(most).max(unit)),
        }
    }

    /// The same for a denied request: until its cost fits, if this limit denied it, and that may
    /// be before all of a log or of a sliding window is back.
    fn more_in_for_denied(&self, exchange: &Exchange<'_>, one: &LimitUse, more_in: Used) -> Used {
        let (_, most) = more_in;
        match self.bucket.limit.algorithm {
            Algorithm::Gcra => {
                let fits = self.waits_at_most(exchange, one).unwrap_or(i128::MAX / 8);
                (0, most.max(fits))
            }
            Algorithm::FixedWindow => more_in,
            _ => (0, most),
        }
    }

    fn left(&self, (least, most): Used, cost: u64) -> (u64, u64) {
        let burst = i128::from(self.parameters.burst);
        let unit = self.unit();
        let left = |used: i128| {
            let left = (burst * unit - used - i128::from(cost) * unit).div_euclid(unit.max(1));
            u64::try_from(left.clamp(0, burst)).unwrap_or(0)
        };
        (left(most), left(least))
    }

    fn left_in_words(&self, least: u64, most: u64) -> String {
        let left = range(least, most);
        let full = self.parameters.burst;
        format!("the requests that were let through leave {left} of its {full} units")
    }

    /// What was used when a denied request was decided, if that is known and no denial is
    /// remembered; the index of the request; and its cost.
    fn denied(&self, exchange: &Exchange<'_>, one: &LimitUse) -> Option<(Used, usize, i128)> {
        let id = exchange.request.id;
        let mut exchanges = self.bucket.exchanges.iter();
        let index = exchanges.position(|other| other.request.id == id)?;
        let span = Span::new(exchange.sent, exchange.decided());
        let used = self.used(span, Some(index))?;
        let cost = match one.cost {
            Cost::ResponseHeader { default } => default.max(1),
            _ => exchange.cost(one),
        };
        (!self.may_be_remembered(exchange)).then_some((used, index, i128::from(cost)))
    }

    /// What one unit is in terms of what is used.
    fn unit(&self) -> i128 {
        match self.bucket.limit.algorithm {
            Algorithm::Gcra => self.interval(),
            _ => 1,
        }
    }

    /// Whether a request certainly had room.
    fn has_room(&self, exchange: &Exchange<'_>, one: &LimitUse) -> bool {
        let burst = i128::from(self.parameters.burst);
        let denied = self.denied(exchange, one);
        denied.is_some_and(|((_, most), _, cost)| most <= (burst - cost) * self.unit())
    }

    /// How many nanoseconds longer than that a denied request may be told to wait, as its gateway
    /// told others before: each of them may have its units before it.
    fn spread(&self, exchange: &Exchange<'_>, one: &LimitUse) -> i128 {
        let gateway = exchange.request.gateway;
        let before = self.bucket.exchanges.iter().filter(|other| {
            let is_another = other.request.id != exchange.request.id;
            is_another && other.sent <= exchange.decided() && other.request.gateway == gateway
        });
        let is_denied = |other: &&&Exchange<'_>| other.answer.is_some_and(|it| it.status == 429);
        let name = &self.bucket.limit.name;
        let cost_of = |other: &Exchange<'_>| {
            let one = self.history.possible_use(other, name);
            i128::from(one.map_or(1, |one| other.cost(one).max(1)))
        };
        let cost = cost_of(exchange);
        if self.keeps_too_little(one, cost) || !before.clone().any(|other| is_denied(&other)) {
            return 0;
        }
        // Units of those that passed may have been given back since.
        let units: i128 = before.map(|other| cost_of(other)).sum();
        let drawn = cost;
        let most = (units + drawn).min(MAX_CROWD * cost);
        (most * self.interval()).min(nanos(MAX_SPREAD))
    }

    /// Whether clients that wait for whole seconds would lose more units than the bucket keeps, if
    /// they were told to come one after the other. A bucket that keeps none for any of them is
    /// another matter, if its units are slow.
    fn keeps_too_little(&self, one: &LimitUse, cost: i128) -> bool {
        let burst = i128::from(self.parameters.burst);
        let second = nanos(SECOND);
        let keeps_one = 2 * cost <= burst || cost * self.interval() < second;
        let measured = matches!(one.cost, Cost::ResponseHeader { .. });
        self.bucket.limit.algorithm == Algorithm::Gcra
            && !measured
            && keeps_one
            && (burst - cost) * self.interval() < second
    }

    /// How many nanoseconds it lasts at the most until a denied request fits.
    fn waits_at_most(&self, exchange: &Exchange<'_>, one: &LimitUse) -> Option<i128> {
        let ((least, most), index, cost) = self.denied(exchange, one)?;
        if self.bucket.limit.algorithm == Algorithm::Gcra {
            return Some(most + (cost - i128::from(self.parameters.burst)) * self.unit());
        }
        let span = Span::new(exchange.sent, exchange.decided());
        let counted = self.counted_when_denied(exchange, one);
        Some(self.full_in((least, most), span, counted, index)?.1)
    }

    /// What a denied request may have taken.
    fn counted_when_denied(&self, exchange: &Exchange<'_>, one: &LimitUse) -> u64 {
        match self.counts_denied(one) {
            true => exchange.cost(one).min(self.parameters.burst),
            false => 0,
        }
    }

    /// How many nanoseconds it lasts at the least until a denied request fits, by what was taken
    /// before a denial that may be remembered.
    fn waits(&self, exchange: &Exchange<'_>, one: &LimitUse) -> i128 {
        let before = exchange.sent.saturating_sub(REMEMBERED);
        let now = self.time(exchange.decided());
        let taken = self.takes.iter().map(|(_, take)| *take);
        let taken: Vec<Take> = taken.filter(|take| take.span.until <= before).collect();
        let cost = i128::from(exchange.cost(one));
        let burst = i128::from(self.parameters.burst);
        match self.bucket.limit.algorithm {
            Algorithm::Gcra => {
                let tat = self.tat(&taken, before, true);
                let fits = tat - now + (cost - burst) * self.interval() - self.tolerance;
                fits - nanos(self.history.may_wait(exchange))
            }
            Algorithm::FixedWindow => {
                let span = Span::new(before, exchange.decided());
                let certain = taken.iter().filter(|take| self.counts(take, span).0);
                let used: i128 = certain.map(|take| i128::from(take.least)).sum();
                let period = nanos(self.parameters.period);
                let rest = period - now.rem_euclid(period) - self.tolerance;
                if used + cost > burst { rest } else { 0 }
            }
            _ => 0,
        }
    }

    /// Whether a denial of before a refund may still be remembered.
    fn may_be_remembered(&self, exchange: &Exchange<'_>) -> bool {
        self.takes.iter().any(|(_, take)| {
            let back = take.back.map(|(back, _)| back.until + REMEMBERED);
            back.is_some_and(|until| take.span.from <= exchange.decided() && until >= exchange.sent)
        })
    }

    /// The first response whose fields say something else.
    fn fields(&self) -> Option<Failure> {
        let history = self.history;
        for (index, exchange) in self.bucket.exchanges.iter().enumerate() {
            let one = history.limit_use(exchange, &self.bucket.limit.name);
            let one = one.filter(|one| takes_or_denies(one));
            let Some((one, answer)) = one.zip(exchange.answer) else {
                continue;
            };
            let Some(r) = answer.rate_limit(&self.bucket.limit.name, "r") else {
                continue;
            };
            let span = Span::new(exchange.sent, exchange.decided());
            let gateway = exchange.request.gateway;
            let refunded = one.refund_on_5xx && exchange.request.status >= 500;
            // By a faster clock others may have taken what a remembered denial does not know of.
            let outdated = !history.clocks_differ().is_zero();
            let remembered = exchange.refused() && (outdated || self.may_be_remembered(exchange));
            if remembered
                || refunded
                || history.is_outage(gateway, span)
                || history.is_frozen(gateway, span)
            {
                continue;
            }
            let Some(used) = self.used(span, Some(index)) else {
                continue;
            };
            let (cost, most_cost) = match exchange.reached {
                Some(_) => (exchange.cost(one), exchange.cost(one)),
                None => (0, self.counted_when_denied(exchange, one)),
            };
            // While it waits for another limit, what it took of this one comes back.
            let waited = match history.may_wait(exchange).is_zero() {
                true => 0,
                false => nanos(exchange.decided() - exchange.sent),
            };
            let back = if self.bucket.limit.algorithm == Algorithm::Gcra {
                u64::try_from((waited + self.unit() - 1) / self.unit().max(1)).unwrap_or(0)
            } else {
                0
            };
            let (least, most) = (self.left(used, most_cost).0, self.left(used, cost).1);
            let most = (most + back).min(self.parameters.burst);
            let at = answer.at;
            let (request, name) = (exchange.request.name(), self.bucket.name());
            if r < least || r > most {
                let left = self.left_in_words(least, most);
                let what = format!("{request} got r={r} of {name}, where {left}");
                let promise = if r < least { CHARGED } else { R };
                return Some(Failure {
                    law: LAW.name,
                    promise,
                    at,
                    what,
                });
            }
            let t = answer.rate_limit(&self.bucket.limit.name, "t");
            let more_in = |cost| self.more_in(used, span, cost, index);
            if let Some(((t, more_in), last)) = t.zip(more_in(cost)).zip(more_in(most_cost)) {
                let (mut least, mut most) = (more_in.0 - waited, last.1);
                if exchange.reached.is_none() {
                    (least, most) = self.more_in_for_denied(exchange, one, (least, most));
                    most += self.spread(exchange, one);
                }
                let seconds = |wait: i128| u64::try_from((wait + 999_999_999) / 1_000_000_000);
                let from = seconds(least.max(0)).unwrap_or(0);
                let until = seconds(most.max(0)).unwrap_or(u64::MAX);
                if t < from || t > until {
                    let what = format!(
                        "{request} got t={t} of {name}, which has more in {} s",
                        range(from, until)
                    );
                    return Some(Failure {
                        law: LAW.name,
                        promise: T,
                        at,
                        what,
                    });
                }
            }
        }
        None
    }

    /// The first look by the admin API that shows something else.
    fn looks(&self) -> Option<Failure> {
        for operated in &self.history.operations {
            let Act::Show { limit, subject } = &operated.operation.act else {
                continue;
            };
            let gateway = operated.operation.gateway;
            let other = self.bucket.gateway.is_some_and(|own| own != gateway);
            if *limit != self.bucket.limit.name || *subject != self.bucket.subject || other {
                continue;
            }
            let (Some(sent), Some((at, 200, body))) = (operated.sent, operated.answer) else {
                continue;
            };
            let Some(remaining) = number(body, "remaining") else {
                continue;
            };
            let Some(used) = self.used(Span::new(sent, at), None) else {
                continue;
            };
            let (least, most) = self.left(used, 0);
            if remaining < least || remaining > most {
                let (name, left) = (self.bucket.name(), self.left_in_words(least, most));
                let what = format!(
                    "the admin API shows that {remaining} units of {name} are left, where {left}"
                );
                let promise = if remaining < least { CHARGED } else { REFUND };
                return Some(Failure {
                    law: LAW.name,
                    promise,
                    at,
                    what,
                });
            }
        }
        None
    }
}

/// `least to most`, or the one number.
fn range(least: u64, most: u64) -> String {
    match least == most {
        true => least.to_string(),
        false => format!("{least} to {most}"),
    }
}

/// A number in a JSON object.
fn number(body: &str, key: &str) -> Option<u64> {
    serde_json::from_str::<serde_json::Value>(body)
        .ok()?
        .get(key)?
        .as_u64()
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 8)
}

/// How late a unit of a sliding window may come back: sub-windows are of whole milliseconds.
fn sub_window_late(period: i128) -> i128 {
    61 * nanos(Duration::from_millis(1)) * (period + 59_999_999).div_euclid(60_000_000) - period
}
