//! Never more requests of a subject in progress at once than there are places.

use std::time::Duration;

use super::history::{Bucket, Exchange, History, Span, takes_or_denies};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm};
use crate::trace::moment;

pub(super) const LAW: Law = Law {
    name: "in flight",
    promises: &[PLACES, FREE, ALONE, CHANGED],
    check,
};

const PLACES: &str = "docs/ALGORITHMS.md: Shared through Redis, any number of gateways together \
    never give out more than the places.";
const FREE: &str = "docs/ALGORITHMS.md: `in_flight: 3` gives each subject three places. A request \
    takes one, and gives it back when it ends";
const ALONE: &str = "docs/ALGORITHMS.md: with `on_failure: local` each gateway counts alone";
const CHANGED: &str = "docs/ALGORITHMS.md: **A changed number** applies from the next request on, \
    and ends no request.";

/// For how long others may not know that a place is free.
const RELEASED: Duration = Duration::from_millis(60);

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    for bucket in history.buckets() {
        if bucket.limit.algorithm != Algorithm::InFlight || is_reset(history, &bucket) {
            continue;
        }
        let mut exchanges = bucket.exchanges.iter();
        failures.extend(exchanges.find_map(|one| refused(history, &bucket, one)));
        let counted: Vec<&Exchange<'_>> = bucket
            .exchanges
            .iter()
            .copied()
            .filter(|one| {
                let one_use = history.limit_use(one, &bucket.limit.name);
                let known = one_use.is_some_and(takes_or_denies) && one.reached.is_some();
                known && !is_disturbed(history, &bucket, one)
            })
            .collect();
        for exchange in &counted {
            let Some(at) = exchange.reached else { continue };
            let here = counted
                .iter()
                .filter(|one| holds(one).meets(Span::new(at, at)));
            let (mut held, mut since) = (0, at);
            for one in here {
                held += 1;
                since = since.min(one.sent);
            }
            let definitions = history.definitions(&bucket, Span::new(since, at));
            let places = definitions.iter().map(|one| one.count).max().unwrap_or(0);
            if held > places {
                let what = format!(
                    "{}: {held} requests are in progress at {}, and there are {places} places",
                    bucket.name(),
                    moment(at)
                );
                let promise = match definitions.len() {
                    0 | 1 => PLACES,
                    _ => CHANGED,
                };
                failures.push(Failure {
                    law: LAW.name,
                    promise,
                    at,
                    what,
                });
                break;
            }
        }
    }
}

/// A request that was denied for want of a place, while one was free.
fn refused(history: &History<'_>, bucket: &Bucket<'_>, exchange: &Exchange<'_>) -> Option<Failure> {
    let answer = exchange.answer.filter(|answer| answer.status == 429)?;
    let one = history.limit_use(exchange, &bucket.limit.name)?;
    let alone = history.route(exchange)?.limits.len() == 1;
    // Leases of a gateway that was cut off expire, and then a breaker may be open.
    let lease = history.scenario.store.lease + Duration::from_secs(10);
    let since = exchange.sent.saturating_sub(lease);
    let disturbed = history.is_disturbed(Span::new(since, answer.at));
    if !alone || !takes_or_denies(one) || disturbed {
        return None;
    }
    let before = RELEASED + history.jitter();
    let asked = Span::new(exchange.sent.saturating_sub(before), answer.at);
    let others = bucket.exchanges.iter().filter(|other| {
        let holds = !other.refused() && other.request.id != exchange.request.id;
        holds && other.span().meets(asked)
    });
    let held = others.count() as u64;
    let definitions = history.definitions(bucket, asked);
    let places = definitions.iter().map(|one| one.count).min()?;
    (held < places).then(|| Failure {
        law: LAW.name,
        promise: FREE,
        at: answer.at,
        what: format!(
            "{} was denied, where {held} of the {places} places of {} may be taken",
            exchange.request.name(),
            bucket.name()
        ),
    })
}

/// When it certainly holds its place: from the app's sight on, until its client knows of its end.
fn holds(exchange: &Exchange<'_>) -> Span {
    let over = exchange.over();
    let from = exchange.reached.unwrap_or(over);
    // A place is free a moment before the client has the last byte.
    Span::new(from, over.saturating_sub(Duration::from_nanos(1)))
}

/// Whether its place may be unknown to others.
fn is_disturbed(history: &History<'_>, bucket: &Bucket<'_>, exchange: &Exchange<'_>) -> bool {
    let gateway = exchange.request.gateway;
    let span = exchange.span();
    let lost = |span: Span| {
        let mut losses = history.losses.iter();
        losses.any(|loss| loss.gateway.is_none() && loss.span.meets(span))
            || history.jumps.iter().any(|jump| jump.span().meets(span))
    };
    history.is_frozen(gateway, span)
        || bucket.gateway.is_none() && (history.is_outage(gateway, span) || lost(span))
}

fn is_reset(history: &History<'_>, bucket: &Bucket<'_>) -> bool {
    history.operations.iter().any(|operated| {
        matches!(&operated.operation.act, Act::Reset { limit, subject }
            if *limit == bucket.limit.name && *subject == bucket.subject)
    })
}
