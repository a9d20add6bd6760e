//! `RateLimit-Policy` names what is in force: by the configuration, or by an override that an
//! operator has set, from when the docs promise that it is.

use std::time::Duration;

use super::history::{Bucket, Exchange, FOREVER, History, Operated, Span};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm, Parameters, Topology};

pub(super) const LAW: Law = Law {
    name: "policy",
    promises: &[GCRA, OTHERS, OVERRIDES],
    check,
};

const GCRA: &str = "docs/CONFIG.md: In `RateLimit-Policy`, `q` is the `burst`, and `w` the number \
    of seconds, rounded up, in which an empty bucket fills";
const OTHERS: &str = "docs/CONFIG.md: In `RateLimit-Policy`, `q` is then the count and `w` the \
    period in seconds";
const OVERRIDES: &str = "docs/OPERATIONS.md: on all gateways that share the Redis within two \
    seconds, and on the one that is asked before it answers";

/// How long a change takes to other gateways.
const SPREADS: Duration = Duration::from_millis(2100);

/// How long before or after its line in the log a configuration may come into force.
const AROUND: Duration = Duration::from_millis(100);

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    for bucket in history.buckets() {
        let mut exchanges = bucket.exchanges.iter();
        failures.extend(exchanges.find_map(|exchange| wrong(history, &bucket, exchange)));
    }
}

fn wrong(history: &History<'_>, bucket: &Bucket<'_>, exchange: &Exchange<'_>) -> Option<Failure> {
    let answer = exchange.answer?;
    let name = &bucket.limit.name;
    let told = (
        answer.policy(name, "q")?,
        answer.policy(name, "w").unwrap_or(0),
    );
    let span = Span::new(exchange.sent, answer.at);
    let due = definitions(history, bucket, exchange.request.gateway, span);
    let due: Vec<(u64, u64)> = due
        .into_iter()
        .map(|parameters| fields(bucket.limit.algorithm, parameters))
        .collect();
    let due_fields: Vec<String> = due.iter().map(|(q, w)| format!("q={q}, w={w}")).collect();
    let what = format!(
        "{} got q={}, w={} of {}, where {} is in force",
        exchange.request.name(),
        told.0,
        told.1,
        bucket.name(),
        due_fields.join(" or ")
    );
    let gateway = exchange.request.gateway;
    let promise = match bucket.limit.algorithm {
        _ if !changes(history, bucket, gateway, span).is_empty() => OVERRIDES,
        Algorithm::Gcra => GCRA,
        _ => OTHERS,
    };
    (!due.contains(&told)).then_some(Failure {
        law: LAW.name,
        promise,
        at: answer.at,
        what,
    })
}

/// `q` and `w`.
fn fields(algorithm: Algorithm, parameters: Parameters) -> (u64, u64) {
    let Parameters {
        burst,
        count,
        period,
    } = parameters;
    let nanos = match algorithm {
        Algorithm::InFlight => return (count, 0),
        Algorithm::Gcra => period.as_nanos() * u128::from(burst) / u128::from(count.max(1)),
        _ => period.as_nanos(),
    };
    let seconds = nanos.div_ceil(1_000_000_000);
    (burst, u64::try_from(seconds).unwrap_or(u64::MAX))
}

/// What may be in force on a gateway at some time of a span.
fn definitions(
    history: &History<'_>,
    bucket: &Bucket<'_>,
    gateway: usize,
    span: Span,
) -> Vec<Parameters> {
    let mut overrides: Vec<Option<Parameters>> = vec![None];
    let mut before = Duration::ZERO;
    for operated in changes(history, bucket, gateway, span) {
        let states = states(history, operated, span);
        let sent = operated.sent.unwrap_or(FOREVER);
        let answered = operated
            .answer
            .filter(|(_, status, _)| (200..300).contains(status));
        let answered = answered.map_or(FOREVER, |(at, ..)| at);
        let here = operated.operation.gateway == gateway;
        let spreads = if here { Duration::ZERO } else { SPREADS };
        let since = started(history, gateway, span).max(answered);
        let known = answered < FOREVER && since + spreads <= span.from;
        let disturbed = history.is_disturbed(Span::new(sent, span.until));
        // Of two that overlap, either may be the last.
        if known && !disturbed && before < sent {
            overrides.clear();
        }
        overrides.extend(states);
        before = before.max(answered);
    }
    let mut all: Vec<Parameters> = overrides.iter().copied().flatten().collect();
    if overrides.contains(&None) {
        all.extend(configured(history, bucket, gateway, span));
    }
    all
}

/// What the operators asked for that may concern a gateway by the end of a span.
fn changes<'h>(
    history: &'h History<'_>,
    bucket: &Bucket<'_>,
    gateway: usize,
    span: Span,
) -> Vec<&'h Operated<'h>> {
    let memory = history.scenario.store.topology == Topology::Memory;
    let mut changes: Vec<&Operated<'_>> = history
        .operations
        .iter()
        .filter(|operated| {
            let (Act::SetOverride { limit, subject, .. } | Act::DeleteOverride { limit, subject }) =
                &operated.operation.act
            else {
                return false;
            };
            let sent = operated.sent.unwrap_or(FOREVER);
            // Without Redis, it is in a file that others do not read.
            let hears = !memory || operated.operation.gateway == gateway;
            *limit == bucket.limit.name && *subject == bucket.subject && hears && sent <= span.until
        })
        .collect();
    changes.sort_by_key(|operated| operated.sent);
    changes
}

/// The overrides that an operation may have left at some time of a span; `None` is none.
fn states(history: &History<'_>, operated: &Operated<'_>, span: Span) -> Vec<Option<Parameters>> {
    let Act::SetOverride {
        parameters, length, ..
    } = &operated.operation.act
    else {
        return vec![None];
    };
    let (Some(length), Some(sent)) = (length, operated.sent) else {
        return vec![Some(*parameters)];
    };
    let answered = operated.answer.map_or(history.end, |(at, ..)| at);
    let slack = *length / 1000 + AROUND;
    let may_be_over = span.until + slack >= sent + *length;
    let is_over = span.from > answered + *length + SPREADS + slack;
    let disturbed = history.is_disturbed(Span::new(sent, span.until));
    match (may_be_over || disturbed, is_over && !disturbed) {
        (_, true) => vec![None],
        (true, false) => vec![None, Some(*parameters)],
        (false, false) => vec![Some(*parameters)],
    }
}

/// Since when a gateway runs.
fn started(history: &History<'_>, gateway: usize, span: Span) -> Duration {
    let runs = history.runs.get(gateway).into_iter().flatten();
    let started = runs.map(|run| run.from).filter(|from| *from <= span.from);
    started.max().unwrap_or_default()
}

/// What configurations say.
fn configured(
    history: &History<'_>,
    bucket: &Bucket<'_>,
    gateway: usize,
    span: Span,
) -> Vec<Parameters> {
    let changes = history
        .in_force
        .get(gateway)
        .map_or(&[][..], |all| &all[..]);
    let mut all = Vec::new();
    for (index, (from, configuration)) in changes.iter().enumerate() {
        let until = changes.get(index + 1).map_or(FOREVER, |(at, _)| *at);
        let during = Span::new(from.saturating_sub(AROUND), until + AROUND);
        let configuration = history.scenario.configurations.get(*configuration);
        let limit = configuration.and_then(|one| one.limit(&bucket.limit.name));
        if let Some(limit) = limit.filter(|_| during.meets(span)) {
            all.push(limit.parameters(&bucket.subject));
        }
    }
    all
}
