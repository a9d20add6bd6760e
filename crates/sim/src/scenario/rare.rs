//! What few scenarios have. It is drawn by randomness of its own, so the scenarios of all other
//! seeds stay as they were.

use std::time::Duration;

use super::{
    Clock, Cost, Fault, FaultKind, LimitKind, LimitUse, OnDenied, Route, Scenario, Topology,
};
use crate::random::Random;

/// By how many nanoseconds the clocks of gateways are off that decide by them: well below two
/// thirds of a lease, up to which the docs promise that others do not take it for expired.
const OFF: u64 = 250_000_000;

pub(super) fn rare(scenario: &mut Scenario, random: &mut Random) {
    if random.chance(8) {
        looks_only(scenario, random);
    }
    if scenario.store.topology == Topology::Memory {
        return;
    }
    if random.chance(8) {
        eviction(scenario, random);
    }
    if random.chance(8) {
        local_clocks(scenario, random);
    }
}

/// One more route, which denies by the limits of another one and takes nothing.
fn looks_only(scenario: &mut Scenario, random: &mut Random) {
    let route = random.index(
        scenario
            .configurations
            .first()
            .map_or(0, |one| one.routes.len()),
    );
    let cost = Cost::Fixed(random.between(1, 2));
    let mut added = None;
    for configuration in &mut scenario.configurations {
        let uses = configuration.routes.get(route).map(|route| &route.limits);
        let limits = uses.into_iter().flatten();
        let looks = limits.map(|one| LimitUse {
            limit: one.limit.clone(),
            kind: LimitKind::CheckOnly,
            cost,
            spend_on_errors: false,
            refund_on_5xx: false,
            enforce: true,
        });
        let limits = looks.collect();
        added = Some(configuration.routes.len());
        configuration.routes.push(Route {
            limits,
            on_denied: OnDenied::Reject,
        });
    }
    let spending = scenario.clients.iter().filter(|one| one.route == route);
    let mut looking: Vec<_> = spending.take(2).cloned().collect();
    for (client, id) in looking.iter_mut().zip(100..) {
        client.id = id;
        client.route = added.unwrap_or(route);
    }
    scenario.clients.extend(looking);
}

/// Configurations without a limit that the first one has: a reload drops it, or brings it back.
pub(super) fn dropped(scenario: &mut Scenario, random: &mut Random) {
    let Some((first, others)) = scenario.configurations.split_first_mut() else {
        return;
    };
    let (routes, bans) = (&first.routes, &first.bans);
    // A route that delays needs its limit, and a ban those that it counts.
    let is_needed = |name: &String| {
        let uses = |route: &Route| route.limits.iter().any(|one| one.limit == *name);
        let mut delaying = routes.iter().filter(|route| !route.delay().is_zero());
        delaying.any(uses) || bans.iter().any(|ban| ban.strikes.limits.contains(name))
    };
    let names = first.limits.iter().map(|limit| limit.name.clone());
    let names: Vec<String> = names.filter(|name| !is_needed(name)).collect();
    let Some(name) = names.get(random.index(names.len().max(1))) else {
        return;
    };
    if !random.chance(10) {
        return;
    }
    for configuration in others.iter_mut().filter(|_| random.chance(70)) {
        configuration.limits.retain(|limit| limit.name != *name);
        for route in &mut configuration.routes {
            route.limits.retain(|one| one.limit != *name);
        }
    }
}

/// Servers that evict, once or a few times.
fn eviction(scenario: &mut Scenario, random: &mut Random) {
    for _ in 0..random.between(1, 3) {
        let at = random.duration(Duration::from_secs(1), scenario.duration);
        let server = random.index(scenario.store.topology.servers());
        let left = random.between(10, 90);
        let kind = FaultKind::Evict { server, left };
        scenario.faults.push(Fault { at, kind });
    }
}

/// Gateways that decide by their own clocks, which are kept by NTP.
fn local_clocks(scenario: &mut Scenario, random: &mut Random) {
    scenario.store.local_clock = true;
    scenario.store.clocks.fill(Clock::default());
    for gateway in &mut scenario.gateways {
        let ahead = i64::try_from(random.between(0, 2 * OFF)).unwrap_or(0);
        gateway.clock.ahead = ahead - i64::try_from(OFF).unwrap_or(0);
    }
    let sets_a_clock = |kind: &FaultKind| {
        matches!(
            kind,
            FaultKind::StepServerClock { .. } | FaultKind::StepGatewayClock { .. }
        )
    };
    scenario.faults.retain(|fault| !sets_a_clock(&fault.kind));
}
