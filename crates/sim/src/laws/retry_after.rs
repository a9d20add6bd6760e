//! A denied client that waits for Retry-After, and is alone with its buckets, is admitted.

use std::time::Duration;

use super::history::{Exchange, History, Span, share};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm};

pub(super) const LAW: Law = Law {
    name: "retry after",
    promises: &[EXACT, REMEMBERED],
    check,
};

const EXACT: &str = "docs/ALGORITHMS.md: `Retry-After` is the exact time at which the same request \
    would pass if no other request came";
const REMEMBERED: &str = "docs/REDIS.md: A denial is remembered for up to a second";

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    for (index, again) in history.exchanges.iter().enumerate() {
        let Some(denied) = history.exchanges[..index]
            .iter()
            .rev()
            .find(|other| again.request.obeys && other.request.id.0 == again.request.id.0)
        else {
            continue;
        };
        let (Some(first), Some(second)) = (denied.answer, again.answer) else {
            continue;
        };
        if first.status != 429 || second.status != 429 || first.retry_after().is_none() {
            continue;
        }
        if is_alone(history, denied, again) {
            let what = format!(
                "{} was told to retry after {} s, did so after {:?}, alone with its limits, and \
                 {} was denied again",
                denied.request.name(),
                first.retry_after().unwrap_or(0),
                again.sent - first.at,
                again.request.name()
            );
            failures.push(Failure {
                law: LAW.name,
                promise: EXACT,
                at: second.at,
                what,
            });
            return;
        }
    }
}

/// Whether nothing else happened to the buckets of a request from its denial until its repetition.
fn is_alone(history: &History<'_>, denied: &Exchange<'_>, again: &Exchange<'_>) -> bool {
    let Some(configuration) = history.only_configuration() else {
        return false;
    };
    let span = Span::new(denied.sent, again.decided());
    let before = Duration::from_millis(100) + history.jitter();
    let wider = Span::new(span.from.saturating_sub(before), span.until);
    let Some(route) = history.route(denied) else {
        return false;
    };
    let limits: Vec<_> = route
        .limits
        .iter()
        .filter_map(|one| configuration.limit(&one.limit))
        .collect();
    let same_cost = route
        .limits
        .iter()
        .all(|one| denied.cost(one) == again.cost(one));
    let places = limits
        .iter()
        .any(|limit| limit.algorithm == Algorithm::InFlight);
    let prefetched = limits.iter().any(|limit| limit.prefetch.is_some());
    if places || prefetched || !same_cost || history.is_disturbed(wider) {
        return false;
    }
    // In the memory of another gateway, other buckets decide, and by its clock another time.
    let store = &history.scenario.store;
    if (store.clocks.is_empty() || store.local_clock)
        && denied.request.gateway != again.request.gateway
    {
        return false;
    }
    let operated = history.operations.iter().any(|operated| {
        !matches!(
            operated.operation.act,
            Act::Show { .. } | Act::ShowBan { .. }
        ) && operated.sent.is_some_and(|at| at < span.until)
            && operated
                .answer
                .is_none_or(|(at, ..)| at + Duration::from_secs(3) > span.from)
    });
    // Overrides with an end come and go by themselves.
    let overrides = history.operations.iter().any(|operated| {
        matches!(operated.operation.act, Act::SetOverride { .. })
            && operated.sent.is_some_and(|at| at < span.until)
    });
    let others = history.exchanges.iter().any(|other| {
        let itself = [denied.request.id, again.request.id].contains(&other.request.id);
        let touches = history.route(other).is_some_and(|route| {
            route.limits.iter().any(|one| {
                limits.iter().any(|limit| {
                    limit.name == one.limit && share(other.client, denied.client, limit.per)
                })
            })
        });
        let ends = other.over().saturating_add(before);
        !itself && touches && Span::new(other.sent, ends).meets(span)
    });
    !operated && !overrides && !others
}
