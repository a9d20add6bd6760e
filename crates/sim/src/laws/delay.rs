//! Requests that wait keep their order, and do not wait for longer than they may.

use std::time::Duration;

use super::history::{History, Span, share};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm, Configuration, LimitUse, Topology};

pub(super) const LAW: Law = Law {
    name: "delay",
    promises: &[ORDER, UP_TO, LEFT],
    check,
};

const ORDER: &str = "docs/config/routes.md: Nobody overtakes those that wait at the same gateway, except, \
    with Redis, requests that arrive within a few milliseconds of each other.";
const UP_TO: &str =
    "docs/config/routes.md: `up_to` | duration | required | How long a request may wait";
const LEFT: &str = "docs/config/routes.md: In `RateLimit-Policy`, `q` is the `burst` ... In `RateLimit`, \
    `r` is what is left";

/// How much later the head of a request may be seen than the moment that it waited for: timers of a
/// millisecond, on two clocks.
const TIMERS: Duration = Duration::from_millis(15);

/// Whether nothing is given back to a limit but by those that leave a delay. What is given back
/// otherwise, also by other routes that have units in advance, goes to whoever comes next, and so
/// does what another definition adds.
fn is_plain(history: &History<'_>, configuration: &Configuration, name: &str) -> bool {
    let routes = || {
        let configurations = history.scenario.configurations.iter();
        configurations.flat_map(|configuration| &configuration.routes)
    };
    let uses = || routes().filter(|route| route.limits.iter().any(|one| one.limit == name));
    let alone = uses().all(|route| {
        let plain = |one: &LimitUse| !one.refund_on_5xx;
        route.limits.len() == 1 && route.limits.iter().all(plain)
    });
    let operated = history
        .operations
        .iter()
        .any(|operated| match &operated.operation.act {
            Act::Refund { limit, .. }
            | Act::Reset { limit, .. }
            | Act::SetOverride { limit, .. }
            | Act::DeleteOverride { limit, .. } => limit == name,
            _ => false,
        });
    let limit = configuration.limit(name).filter(|limit| {
        let returns = limit.prefetch.is_some() && uses().any(|route| route.delay().is_zero());
        limit.algorithm == Algorithm::Gcra && !returns && limit.overrides.is_empty()
    });
    let same = |other: &Configuration| other.limit(name) == limit;
    let unchanged = history.scenario.configurations.iter().all(same);
    limit.is_some() && alone && !operated && unchanged
}

/// The first response that shows more left than a full bucket holds.
fn excess(history: &History<'_>) -> Option<Failure> {
    for exchange in &history.exchanges {
        let (Some(answer), Some(route)) = (exchange.answer, history.route(exchange)) else {
            continue;
        };
        for LimitUse { limit, .. } in &route.limits {
            let shown = answer.rate_limit(limit, "r").zip(answer.policy(limit, "q"));
            if let Some((r, q)) = shown.filter(|(r, q)| r > q) {
                let name = exchange.request.name();
                return Some(Failure {
                    law: LAW.name,
                    promise: LEFT,
                    at: answer.at,
                    what: format!("{name} got r={r} of {limit}, where q={q}"),
                });
            }
        }
    }
    None
}

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    failures.extend(excess(history));
    let Some(configuration) = history.scenario.configurations.first() else {
        return;
    };
    let call = history.scenario.store.timeout * 3 + history.jitter();
    for (index, exchange) in history.exchanges.iter().enumerate() {
        let Some(route) = history.route(exchange) else {
            continue;
        };
        let up_to = route.delay();
        if up_to.is_zero() {
            continue;
        }
        let Some(reached) = exchange.reached else {
            continue;
        };
        let span = Span::new(exchange.sent, reached);
        let gateway = exchange.request.gateway;
        if history.is_frozen(gateway, span) {
            continue;
        }
        let waited = reached - exchange.sent;
        if waited > up_to + call + TIMERS {
            let name = exchange.request.name();
            let what = format!("{name} waited for {waited:?}, where {up_to:?} is the longest");
            failures.push(Failure {
                law: LAW.name,
                promise: UP_TO,
                at: reached,
                what,
            });
            return;
        }
        let only = route
            .limits
            .iter()
            .all(|one| is_plain(history, configuration, &one.limit));
        // Who has waited since before may give a turn back to a bucket that was lost meanwhile.
        let since = exchange.sent.saturating_sub(up_to);
        if !only || history.is_disturbed(Span::new(since, reached)) {
            continue;
        }
        for later in history.exchanges.iter().skip(index + 1) {
            let Some(overtook) = later.reached else {
                continue;
            };
            let same = later.request.route == exchange.request.route
                && later.request.gateway == gateway
                && route.limits.iter().all(|one| {
                    exchange.cost(one) == later.cost(one)
                        && configuration
                            .limit(&one.limit)
                            .is_some_and(|limit| share(exchange.client, later.client, limit.per))
                });
            let close = match history.scenario.store.topology {
                Topology::Memory => Duration::from_millis(1),
                _ => Duration::from_millis(5) + history.jitter(),
            };
            if same && later.sent > exchange.sent + close && overtook + TIMERS < reached {
                let what = format!(
                    "{} reached the app {:?} before {}, which came {:?} earlier",
                    later.request.name(),
                    reached - overtook,
                    exchange.request.name(),
                    later.sent - exchange.sent
                );
                failures.push(Failure {
                    law: LAW.name,
                    promise: ORDER,
                    at: reached,
                    what,
                });
                return;
            }
        }
    }
}
