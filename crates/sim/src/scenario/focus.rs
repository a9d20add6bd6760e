//! Scenarios that are about one thing: what needs several circumstances at once, which the general
//! draw hardly ever brings together.

#![expect(
    clippy::indexing_slicing,
    reason = "an index that is out of range is a fault of these lines"
)]

use std::time::Duration;

use super::stores::{hidden_denials, short_stalls, thawing_primaries};
use super::{
    Act, Algorithm, Ban, Behaviour, Client, Clock, Configuration, Cost, Fault, FaultKind, Gateway,
    Limit, LimitUse, OnDenied, Operation, Parameters, Per, Scenario, Strikes, Topology,
};
use crate::random::Random;

/// Makes some scenarios be about one thing.
pub(super) fn focus(scenario: &mut Scenario, random: &mut Random) {
    match random.weighted(&[36, 7, 8, 9, 10, 10, 10, 10]) {
        1 => hidden_denials(scenario, random),
        2 => short_stalls(scenario, random),
        3 => thawing_primaries(scenario, random),
        4 => deployment(scenario, random),
        5 => leavers(scenario, random),
        6 => shorter_ban(scenario, random),
        7 => clock_at_start(scenario, random),
        _ => {}
    }
}

/// Gateways with different parameters of one limit, side by side for long. Little comes back
/// meanwhile, so that what is given out twice shows.
fn deployment(scenario: &mut Scenario, random: &mut Random) {
    at_least_two(scenario);
    let mut draw = || Parameters {
        burst: random.between(3, 40),
        count: random.between(2, 20),
        period: Duration::from_secs([60, 600, 3600][random.index(3)]),
    };
    let (before, after) = (draw(), draw());
    only(scenario, Algorithm::Gcra, before, OnDenied::Reject);
    change(scenario, |configuration| {
        for limit in &mut configuration.limits {
            limit.parameters = after;
        }
    });
    let last = scenario.gateways.len() - 1;
    let later = scenario.duration * 3 / 4;
    for gateway in 0..=last {
        let at = match gateway == last {
            true => later,
            false => random.millis(500, 3000),
        };
        reload(scenario, at, gateway);
    }
    crowd(scenario, random, 3, |random, client| {
        client.interval = random.millis(20, 120);
        client.behaviour = [Behaviour::Steady, Behaviour::Hammers][random.index(2)];
    });
    mostly_undisturbed(scenario, random);
}

/// Requests that wait for their turn, many of which leave before it comes, and newcomers.
fn leavers(scenario: &mut Scenario, random: &mut Random) {
    let parameters = Parameters {
        burst: random.between(1, 4),
        count: random.between(5, 20),
        period: Duration::from_secs(1),
    };
    let delay = OnDenied::Delay {
        up_to: random.millis(1000, 3000),
        max_requests: 100,
    };
    only(scenario, Algorithm::Gcra, parameters, delay);
    let gateway = random.index(scenario.gateways.len());
    crowd(scenario, random, 4, |random, client| {
        client.gateway = Some(gateway);
        if client.id % 2 == 0 {
            client.behaviour = Behaviour::Leaves(random.millis(200, 1500));
            client.at_once = u32::try_from(random.between(3, 12)).unwrap_or(3);
            client.interval = random.millis(500, 2000);
        } else {
            client.behaviour = Behaviour::Steady;
            client.at_once = u32::try_from(random.between(1, 4)).unwrap_or(1);
            client.interval = random.millis(100, 600);
        }
    });
    mostly_undisturbed(scenario, random);
}

/// Bans that hold while a configuration with shorter ones is put in place.
fn shorter_ban(scenario: &mut Scenario, random: &mut Random) {
    let parameters = Parameters {
        burst: random.between(2, 5),
        count: 2,
        period: Duration::from_secs(5),
    };
    only(scenario, Algorithm::Gcra, parameters, OnDenied::Reject);
    let length = Duration::from_secs(random.between(15, 120));
    let ban = Ban {
        name: "ban".into(),
        per: Per::Address,
        strikes: Strikes {
            limits: vec!["L0".into()],
            on_5xx: false,
            count: random.between(2, 4),
            period: Duration::from_secs(10),
        },
        length,
        factor: random.between(1, 2),
        max: length * 4,
    };
    for configuration in &mut scenario.configurations {
        configuration.bans = vec![ban.clone()];
    }
    let shorter = Duration::from_secs(random.between(1, 4));
    change(scenario, |configuration| {
        for ban in &mut configuration.bans {
            ban.length = shorter;
            ban.max = shorter * 2;
        }
    });
    let from = random.millis(6000, 8000);
    for gateway in 0..scenario.gateways.len() {
        reload(scenario, from + random.millis(0, 2000), gateway);
    }
    scenario.duration = scenario.duration.max(Duration::from_secs(20));
    crowd(scenario, random, 2, |random, client| {
        client.behaviour = Behaviour::Steady;
        client.interval = random.millis(100, 500);
    });
    mostly_undisturbed(scenario, random);
}

/// A gateway that starts about when the clock of Redis is set back.
fn clock_at_start(scenario: &mut Scenario, random: &mut Random) {
    if scenario.store.topology == Topology::Memory {
        scenario.store.topology = Topology::Single;
        scenario.store.clocks = vec![Clock::default()];
    }
    at_least_two(scenario);
    let algorithm = match random.weighted(&[60, 20, 20]) {
        0 => Algorithm::FixedWindow,
        1 => Algorithm::WindowFromFirst,
        _ => Algorithm::Gcra,
    };
    let count = random.between(5, 20);
    let parameters = Parameters {
        burst: count,
        count,
        period: Duration::from_secs([60, 600][random.index(2)]),
    };
    only(scenario, algorithm, parameters, OnDenied::Reject);
    let at = random.millis(3000, 8000);
    let by = -i64::try_from(random.between(700_000_000_000, 3_600_000_000_000)).unwrap_or(0);
    let kind = FaultKind::StepServerClock { server: None, by };
    scenario.faults = vec![Fault { at, kind }];
    let starts = at + random.millis(0, 900);
    for gateway in scenario.gateways.iter_mut().skip(1) {
        gateway.starts = starts;
    }
    crowd(scenario, random, 3, |random, client| {
        client.behaviour = Behaviour::Steady;
        client.interval = random.millis(8, 40);
    });
}

/// One limit per address, one route, no bans and no operators.
fn only(
    scenario: &mut Scenario,
    algorithm: Algorithm,
    parameters: Parameters,
    on_denied: OnDenied,
) {
    let limit = Limit::new(0, Per::Address, algorithm, parameters);
    let uses = vec![LimitUse::new(&limit, Cost::Fixed(1))];
    scenario.configurations = vec![Configuration::new(vec![limit], uses, on_denied)];
    scenario.operations = Vec::new();
    for gateway in &mut scenario.gateways {
        gateway.configuration = 0;
    }
}

/// Adds a configuration like the first one, but for some change.
fn change(scenario: &mut Scenario, by: impl FnOnce(&mut Configuration)) {
    let changed = scenario.configurations.first().cloned().map(|mut changed| {
        by(&mut changed);
        changed
    });
    scenario.configurations.extend(changed);
}

/// Puts the configuration that was added in force.
fn reload(scenario: &mut Scenario, at: Duration, gateway: usize) {
    let act = Act::Reload { configuration: 1 };
    scenario.operations.push(Operation { at, gateway, act });
}

/// Some clients with one address and one account, each request at the next gateway.
fn crowd(
    scenario: &mut Scenario,
    random: &mut Random,
    most: u64,
    mut shape: impl FnMut(&mut Random, &mut Client),
) {
    let Some(one) = scenario.clients.first().cloned() else {
        return;
    };
    let count = random.between(most.div_ceil(2), most);
    scenario.clients = (0..count)
        .map(|id| {
            let mut client = Client {
                id,
                route: 0,
                gateway: None,
                from: random.millis(0, 1000),
                until: scenario.duration,
                at_once: 1,
                app_takes: (Duration::ZERO, random.millis(1, 30)),
                app_fails: 0,
                ..one.clone()
            };
            shape(random, &mut client);
            client
        })
        .collect();
}

fn at_least_two(scenario: &mut Scenario) {
    let clock = Clock::default();
    for _ in scenario.gateways.len()..2 {
        scenario.gateways.push(Gateway {
            clock,
            starts: Duration::ZERO,
            configuration: 0,
        });
    }
}

/// What is disturbed excuses much.
fn mostly_undisturbed(scenario: &mut Scenario, random: &mut Random) {
    if random.chance(75) {
        scenario.faults.clear();
    }
}
