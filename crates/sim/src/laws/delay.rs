//! Requests that wait keep their order, and do not wait for longer than they may.

use std::time::Duration;

use super::history::{History, Span, share};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm, Configuration, LimitUse, OnDenied, Topology};

pub(super) const LAW: Law = Law {
    name: "delay",
    promise: "docs/CONFIG.md: \"Nobody overtakes those that wait at the same gateway, except, with \
        Redis, requests that arrive within a few milliseconds of each other\"; \"`up_to`: how long a \
        request may wait\"",
    check,
};

/// How much later the head of a request may be seen than the moment that it waited for: timers of a
/// millisecond, on two clocks.
const TIMERS: Duration = Duration::from_millis(15);

/// Whether nothing is given back to a limit but by those that leave a delay. What is given back
/// otherwise, or by another definition, goes to whoever comes next.
fn is_plain(history: &History<'_>, configuration: &Configuration, name: &str) -> bool {
    let mut uses = configuration
        .routes
        .iter()
        .filter(|route| route.limits.iter().any(|one| one.limit == name));
    let alone = uses.all(|route| {
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
        limit.algorithm == Algorithm::Gcra && limit.prefetch.is_none() && limit.overrides.is_empty()
    });
    limit.is_some() && alone && !operated && history.only_configuration().is_some()
}

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    let Some(configuration) = history.scenario.configurations.first() else {
        return;
    };
    let call = history.scenario.store.timeout * 3 + history.jitter();
    for (index, exchange) in history.exchanges.iter().enumerate() {
        let Some(route) = history.route(exchange) else {
            continue;
        };
        let OnDenied::Delay { up_to, .. } = route.on_denied else {
            continue;
        };
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
            let id = exchange.request.id;
            let what =
                format!("request {id:?} waited for {waited:?}, where {up_to:?} is the longest");
            failures.push(Failure {
                law: LAW.name,
                at: reached,
                what,
            });
            return;
        }
        let only = route
            .limits
            .iter()
            .all(|one| is_plain(history, configuration, &one.limit));
        if !only || history.is_disturbed(Span::new(exchange.sent, reached)) {
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
                    "request {:?} reached the app {:?} before {:?}, which came {:?} earlier",
                    later.request.id,
                    reached - overtook,
                    exchange.request.id,
                    later.sent - exchange.sent
                );
                failures.push(Failure {
                    law: LAW.name,
                    at: reached,
                    what,
                });
                return;
            }
        }
    }
}
