//! The smallest part of a scenario that still fails (delta debugging). The kind of store stays:
//! with another one, other code would fail.

#![expect(
    clippy::indexing_slicing,
    reason = "routes are the same in all configurations"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use crate::scenario::{Act, Clock, Cost, FaultKind, Scenario};

/// Leaves out of a scenario what `fails` does not need. It is called at most `tries` times.
pub fn shrink(
    scenario: &Scenario,
    tries: usize,
    mut fails: impl FnMut(&Scenario) -> bool,
) -> Scenario {
    let mut smallest = scenario.clone();
    let mut left = tries;
    loop {
        let before = smallest.clone();
        let mut attempt = |candidate: Scenario, smallest: &mut Scenario| {
            if left == 0 || candidate == *smallest {
                return false;
            }
            left -= 1;
            let better = fails(&candidate);
            if better {
                *smallest = candidate;
            }
            better
        };
        shorten(&mut smallest, &mut attempt);
        leave_out(&mut smallest, |one| &mut one.faults, &mut attempt);
        leave_out(&mut smallest, |one| &mut one.clients, &mut attempt);
        leave_out(&mut smallest, |one| &mut one.operations, &mut attempt);
        leave_out_gateways(&mut smallest, &mut attempt);
        leave_out_rules(&mut smallest, &mut attempt);
        leave_out_unused(&mut smallest, &mut attempt);
        simplify(&mut smallest, &mut attempt);
        if smallest == before || left == 0 {
            return smallest;
        }
    }
}

/// Leaves out items: first half of them, at last one by one.
fn leave_out<T>(
    smallest: &mut Scenario,
    list: impl Fn(&mut Scenario) -> &mut Vec<T>,
    attempt: &mut impl FnMut(Scenario, &mut Scenario) -> bool,
) {
    let mut chunk = list(smallest).len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        while from < list(smallest).len() {
            let mut candidate = smallest.clone();
            let items = list(&mut candidate);
            items.drain(from..(from + chunk).min(items.len()));
            if !attempt(candidate, smallest) {
                from += chunk;
            }
        }
        chunk = if chunk == 1 { 0 } else { chunk.div_ceil(2) };
    }
}

/// Ends the scenario earlier. What operators look at afterwards, they look at as long after the
/// end.
fn shorten(smallest: &mut Scenario, attempt: &mut impl FnMut(Scenario, &mut Scenario) -> bool) {
    for percent in [30, 50, 70, 85, 95] {
        let mut candidate = smallest.clone();
        let (old, new) = (candidate.duration, candidate.duration * percent / 100);
        candidate.duration = new;
        candidate.faults.retain(|fault| fault.at < new);
        candidate
            .operations
            .retain(|operation| operation.at < new || operation.at >= old);
        for operation in candidate
            .operations
            .iter_mut()
            .filter(|operation| operation.at >= old)
        {
            operation.at = operation.at - old + new;
        }
        for client in &mut candidate.clients {
            client.until = client.until.min(new);
        }
        if attempt(candidate, smallest) {
            return;
        }
    }
}

/// Leaves out the last gateways. Clients that had one of them for their own ask the first one.
fn leave_out_gateways(
    smallest: &mut Scenario,
    attempt: &mut impl FnMut(Scenario, &mut Scenario) -> bool,
) {
    while smallest.gateways.len() > 1 {
        let mut candidate = smallest.clone();
        candidate.gateways.pop();
        let last = candidate.gateways.len();
        for client in &mut candidate.clients {
            client.gateway = client
                .gateway
                .map(|gateway| if gateway == last { 0 } else { gateway });
        }
        candidate
            .operations
            .retain(|operation| operation.gateway != last);
        candidate
            .faults
            .retain(|fault| gateway_of(&fault.kind) != Some(last));
        if !attempt(candidate, smallest) {
            return;
        }
    }
}

fn gateway_of(fault: &FaultKind) -> Option<usize> {
    match fault {
        FaultKind::Link { gateway, .. } => *gateway,
        FaultKind::KillGateway { gateway, .. }
        | FaultKind::StopGateway { gateway, .. }
        | FaultKind::FreezeGateway { gateway, .. }
        | FaultKind::StepGatewayClock { gateway, .. } => Some(*gateway),
        _ => None,
    }
}

/// Leaves out bans, overrides of the configuration, and limits of routes.
fn leave_out_rules(
    smallest: &mut Scenario,
    attempt: &mut impl FnMut(Scenario, &mut Scenario) -> bool,
) {
    let mut candidate = smallest.clone();
    for configuration in &mut candidate.configurations {
        configuration.bans.clear();
    }
    let of_bans = |act: &Act| {
        matches!(
            act,
            Act::Ban { .. } | Act::Lift { .. } | Act::ShowBan { .. }
        )
    };
    candidate
        .operations
        .retain(|operation| !of_bans(&operation.act));
    attempt(candidate, smallest);
    let mut candidate = smallest.clone();
    for limit in candidate
        .configurations
        .iter_mut()
        .flat_map(|one| &mut one.limits)
    {
        limit.overrides.clear();
    }
    attempt(candidate, smallest);
    let routes = smallest
        .configurations
        .first()
        .map_or(0, |one| one.routes.len());
    for route in 0..routes {
        let mut index = 0;
        while smallest.configurations[0].routes[route].limits.len() > 1
            && index < smallest.configurations[0].routes[route].limits.len()
        {
            let mut candidate = smallest.clone();
            let name = &smallest.configurations[0].routes[route].limits[index].limit;
            for configuration in &mut candidate.configurations {
                configuration.routes[route]
                    .limits
                    .retain(|one| one.limit != *name);
            }
            if !attempt(candidate, smallest) {
                index += 1;
            }
        }
    }
}

/// Leaves out what nothing uses: configurations that are never in force, routes that nobody asks
/// for, and limits of no route.
fn leave_out_unused(
    smallest: &mut Scenario,
    attempt: &mut impl FnMut(Scenario, &mut Scenario) -> bool,
) {
    let mut candidate = smallest.clone();
    let gateways = candidate.gateways.iter_mut();
    let gateways = gateways.map(|gateway| &mut gateway.configuration);
    let reloads = candidate.operations.iter_mut();
    let reloads = reloads.filter_map(|operation| match &mut operation.act {
        Act::Reload { configuration } => Some(configuration),
        _ => None,
    });
    keep_used(&mut candidate.configurations, gateways.chain(reloads));
    attempt(candidate, smallest);
    let mut candidate = smallest.clone();
    for configuration in &mut candidate.configurations {
        let mut clients = smallest.clients.clone();
        let routes = clients.iter_mut().map(|client| &mut client.route);
        keep_used(&mut configuration.routes, routes);
        candidate.clients = clients;
    }
    attempt(candidate, smallest);
    let mut candidate = smallest.clone();
    let routes = smallest.configurations.iter().flat_map(|one| &one.routes);
    let uses = routes.flat_map(|route| &route.limits);
    let used: BTreeSet<&str> = uses.map(|one| one.limit.as_str()).collect();
    for configuration in &mut candidate.configurations {
        let limits = &mut configuration.limits;
        limits.retain(|limit| used.contains(limit.name.as_str()));
        for ban in &mut configuration.bans {
            ban.strikes
                .limits
                .retain(|name| used.contains(name.as_str()));
        }
    }
    candidate
        .operations
        .retain(|operation| limit_of(&operation.act).is_none_or(|name| used.contains(name)));
    attempt(candidate, smallest);
}

/// Leaves out the items that no index names, and moves the indices.
fn keep_used<'i, T>(items: &mut Vec<T>, indices: impl Iterator<Item = &'i mut usize>) {
    let indices: Vec<&mut usize> = indices.collect();
    let used: BTreeSet<usize> = indices.iter().map(|index| **index).collect();
    let mut own = 0..;
    items.retain(|_| own.next().is_some_and(|index| used.contains(&index)));
    for index in indices {
        *index = used.range(..*index).count();
    }
}

fn limit_of(act: &Act) -> Option<&str> {
    match act {
        Act::SetOverride { limit, .. }
        | Act::DeleteOverride { limit, .. }
        | Act::Refund { limit, .. }
        | Act::Reset { limit, .. }
        | Act::Show { limit, .. } => Some(limit),
        Act::Reload { .. } | Act::Ban { .. } | Act::Lift { .. } | Act::ShowBan { .. } => None,
    }
}

/// Makes what is left plainer, one property after the other.
fn simplify(smallest: &mut Scenario, attempt: &mut impl FnMut(Scenario, &mut Scenario) -> bool) {
    let steps: [fn(&mut Scenario); 8] = [
        |one| {
            for gateway in &mut one.gateways {
                gateway.clock = Clock::default();
            }
        },
        |one| {
            one.store
                .clocks
                .iter_mut()
                .for_each(|clock| *clock = Clock::default());
        },
        |one| {
            one.gateways
                .iter_mut()
                .for_each(|gateway| gateway.starts = Duration::ZERO);
        },
        |one| {
            for limit in one
                .configurations
                .iter_mut()
                .flat_map(|one| &mut one.limits)
            {
                limit.prefetch = None;
            }
        },
        |one| {
            let routes = one
                .configurations
                .iter_mut()
                .flat_map(|one| &mut one.routes);
            for limit in routes.flat_map(|route| &mut route.limits) {
                limit.cost = Cost::Fixed(1);
            }
        },
        |one| {
            one.clients
                .iter_mut()
                .for_each(|client| client.app_fails = 0);
        },
        |one| {
            one.clients.iter_mut().for_each(|client| client.at_once = 1);
        },
        |one| {
            let most = one.clients.iter().map(|client| client.app_takes.1).max();
            for client in &mut one.clients {
                client.app_takes = (most.unwrap_or_default(), most.unwrap_or_default());
            }
        },
    ];
    for step in steps {
        let mut candidate = smallest.clone();
        step(&mut candidate);
        attempt(candidate, smallest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Fault, LinkFault};

    #[test]
    fn what_a_failure_does_not_need_is_left_out() {
        let mut scenario = Scenario::generate(7);
        let needed = Fault {
            at: Duration::from_secs(1),
            kind: FaultKind::Link {
                gateway: None,
                server: None,
                lasts: Duration::from_secs(1),
                what: LinkFault::HalfOpen,
            },
        };
        let other = |at| Fault {
            at: Duration::from_millis(at),
            kind: FaultKind::SlowApp {
                lasts: Duration::from_secs(1),
                by: Duration::from_secs(1),
            },
        };
        scenario.faults = (2000..2020).map(other).collect();
        scenario.faults.insert(5, needed.clone());
        let client = scenario.clients[0].id;
        let smallest = shrink(&scenario, 1000, |candidate| {
            candidate.faults.contains(&needed)
                && candidate.clients.iter().any(|one| one.id == client)
        });
        assert_eq!(smallest.faults, [needed]);
        assert_eq!(smallest.clients.len(), 1);
        assert_eq!(smallest.gateways.len(), 1);
        assert!(smallest.operations.is_empty());
        assert!(smallest.duration < Duration::from_secs(2));
    }

    #[test]
    fn what_nothing_uses_is_left_out_and_the_kind_of_store_stays() {
        let seeds = (0..).map(Scenario::generate);
        let mut large = seeds.filter(|one| {
            let first = &one.configurations[0];
            let is_used = |name: &str| {
                let mut uses = first.routes.iter().flat_map(|route| &route.limits);
                uses.any(|one| one.limit == name)
            };
            one.configurations.len() > 2
                && first.routes.len() > 1
                && first.limits.iter().any(|limit| !is_used(&limit.name))
                && one.store.topology.servers() > 1
        });
        let scenario = large.next().unwrap();
        let last = scenario.configurations.last().unwrap().limits[0].clone();
        let reloads = |one: &Scenario| {
            let mut acts = one.operations.iter().map(|operation| &operation.act);
            acts.find_map(|act| match act {
                Act::Reload { configuration } => one.configurations.get(*configuration).cloned(),
                _ => None,
            })
        };
        let smallest = shrink(&scenario, 1000, |candidate| {
            let loaded = reloads(candidate);
            !candidate.clients.is_empty() && loaded.is_some_and(|one| one.limits.contains(&last))
        });
        assert_eq!(smallest.configurations.len(), 2);
        assert_eq!(smallest.configurations[0].routes.len(), 1);
        assert_eq!(smallest.store.topology, scenario.store.topology);
        assert_eq!(reloads(&smallest).map(|one| one.limits), Some(vec![last]));
    }

    #[test]
    fn shrinking_ends_after_its_tries() {
        let scenario = Scenario::generate(11);
        let mut tries = 0;
        shrink(&scenario, 20, |_| {
            tries += 1;
            true
        });
        assert!(tries <= 20);
    }
}
