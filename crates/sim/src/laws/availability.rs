//! Every request gets a response, and one that its circumstances explain.

use std::time::Duration;

use super::history::{Exchange, FOREVER, History, Span};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm, FaultKind, OnDenied, OnFailure, Topology};

pub(super) const LAW: Law = Law {
    name: "availability",
    promises: &[ON_FAILURE, DENY, REJECT, BANNED],
    check,
};

const ON_FAILURE: &str = "docs/REDIS.md: a call takes longer than `timeout` | `on_failure` \
    applies to this request";
const DENY: &str = "docs/REDIS.md: `deny` | get 503 with `Retry-After`";
const REJECT: &str = "docs/config/routes.md: `reject`: 429 with `Retry-After`";
const BANNED: &str = "docs/LOGS.md: or the client is banned or blocked";

/// Longer than any request of a scenario takes: the app, a delay, calls that miss their deadline.
const LONGEST: Duration = Duration::from_secs(12);

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    for exchange in &history.exchanges {
        if let Some((promise, what)) = wrong(history, exchange) {
            let at = exchange.answer.map_or(exchange.sent, |answer| answer.at);
            failures.push(Failure {
                law: LAW.name,
                promise,
                at,
                what,
            });
            return;
        }
    }
}

/// The promise that a request breaks, and how.
fn wrong(history: &History<'_>, exchange: &Exchange<'_>) -> Option<(&'static str, String)> {
    let name = exchange.request.name();
    let gateway = exchange.request.gateway;
    let span = Span::new(exchange.sent, exchange.over().min(history.end));
    let runs = history.runs.get(gateway)?;
    // A gateway that drains accepts no connection, and ends those that it has at last.
    let draining = history.scenario.faults.iter().any(|fault| {
        let until = runs
            .iter()
            .map(|run| run.until)
            .find(|until| *until >= fault.at);
        let drain = Span::new(fault.at, until.unwrap_or(FOREVER));
        matches!(&fault.kind, FaultKind::StopGateway { gateway: own, .. } if *own == gateway)
            && drain.meets(span)
    });
    // Who comes at the very moment at which it begins to serve may be a little early.
    let serves = |run: &Span| run.from < span.from && run.until > span.until;
    let ran = runs.iter().any(serves) && !draining;
    let Some(answer) = exchange.answer else {
        let lasts = span.until.saturating_sub(span.from);
        let frozen = history.is_frozen(gateway, span);
        let waits = exchange.over() == FOREVER && lasts > LONGEST;
        let broken = exchange.broken.is_some();
        return (ran && !frozen && (waits || broken)).then(|| {
            (
                ON_FAILURE,
                format!("{name} got no response within {lasts:?}"),
            )
        });
    };
    let route = history.route(exchange)?;
    let memory = history.scenario.store.topology == Topology::Memory;
    let deny = history.scenario.store.on_failure == OnFailure::Deny && !memory;
    let outage = history.is_outage(gateway, span);
    let places = route.limits.iter().any(|one| {
        let limit = history
            .scenario
            .configurations
            .first()
            .and_then(|all| all.limit(&one.limit));
        limit.is_some_and(|limit| limit.algorithm == Algorithm::InFlight)
    });
    let explained = match answer.status {
        200 => exchange.reached.is_some() || route.on_denied == OnDenied::Shadow,
        500 => exchange.reached.is_some() && exchange.request.status == 500,
        410 => history
            .scenario
            .configurations
            .iter()
            .any(|one| !one.bans.is_empty()),
        403 => exchange.reached.is_none() && never_fits(history, exchange),
        429 => exchange.reached.is_none() && answer.retry_after().is_some(),
        503 => exchange.reached.is_none() && (outage && (deny || places) || draining),
        502 | 504 => draining,
        _ => false,
    };
    let promise = match answer.status {
        410 => BANNED,
        403 | 429 => REJECT,
        503 => DENY,
        _ => ON_FAILURE,
    };
    let status = answer.status;
    (!explained).then(|| (promise, format!("{name} got {status} without a reason")))
}

/// Whether a request costs more than one of its limits holds, which no wait changes.
fn never_fits(history: &History<'_>, exchange: &Exchange<'_>) -> bool {
    let uses = history
        .route(exchange)
        .map_or(&[][..], |route| &route.limits[..]);
    uses.iter().any(|one| {
        history.scenario.configurations.iter().any(|configuration| {
            let limit = configuration.limit(&one.limit);
            let least = limit.map(|limit| {
                let own = limit.overrides.iter().map(|other| other.parameters.burst);
                own.chain([limit.parameters.burst]).min().unwrap_or(0)
            });
            least.is_some_and(|burst| exchange.cost(one) > burst)
        }) || history.operations.iter().any(|operated| {
            matches!(&operated.operation.act, Act::SetOverride { limit, parameters, .. }
                if *limit == one.limit && exchange.cost(one) > parameters.burst)
        })
    })
}
