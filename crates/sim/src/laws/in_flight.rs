//! Never more requests of a subject in progress at once than there are places.

use std::time::Duration;

use super::history::{Bucket, Exchange, History, Span, takes_or_denies};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm};
use crate::trace::moment;

pub(super) const LAW: Law = Law {
    name: "in flight",
    promises: &[PLACES, ALONE, CHANGED],
    check,
};

const PLACES: &str = "docs/ALGORITHMS.md: Shared through Redis, any number of gateways together \
    never give out more than the places.";
const ALONE: &str = "docs/ALGORITHMS.md: with `on_failure: local` each gateway counts alone";
const CHANGED: &str = "docs/ALGORITHMS.md: **A changed number** applies from the next request on, \
    and ends no request.";

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    for bucket in history.buckets() {
        if bucket.limit.algorithm != Algorithm::InFlight || is_reset(history, &bucket) {
            continue;
        }
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
