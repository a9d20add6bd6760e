//! Scenarios that are about one thing between gateways and their store: denials that are
//! remembered, nodes that answer late, primaries that come back.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{
    Algorithm, Behaviour, Client, Clock, Configuration, Cost, Fault, FaultKind, Gateway, Limit,
    LimitUse, LinkFault, OnDenied, OnFailure, Parameters, Per, Scenario, Topology,
};
use crate::random::Random;

/// Clients that hammer, with varying costs, limits of which one denies often and shortly, and
/// another one for long.
pub(super) fn hidden_denials(scenario: &mut Scenario, random: &mut Random) {
    scenario.duration = random.millis(3_000, 6_000);
    plain_store(scenario, Topology::Single);
    let often = Parameters {
        burst: random.between(4, 6),
        count: random.between(2, 8),
        period: Duration::from_secs(random.between(1, 3)),
    };
    let seldom = Parameters {
        burst: random.between(4, 10),
        count: random.between(2, 4),
        period: Duration::from_secs(random.between(10, 60)),
    };
    let windowed = Parameters {
        burst: seldom.burst,
        count: seldom.burst,
        ..seldom
    };
    let long = match random.chance(70) {
        true => Limit::new(1, Per::Address, Algorithm::Gcra, seldom),
        false => Limit::new(1, Per::Address, Algorithm::FixedWindow, windowed),
    };
    let limits = vec![Limit::new(0, Per::Account, Algorithm::Gcra, often), long];
    let mut cost = || match random.chance(80) {
        true => Cost::RequestHeader { default: 1 },
        false => Cost::Fixed(1),
    };
    let costs = [cost(), cost()];
    plain_configuration(scenario, limits, &costs);
    let count = random.between(1, 2);
    scenario.clients = (0..count)
        .map(|id| Client {
            interval: random.millis(20, 120),
            behaviour: Behaviour::Hammers,
            cost: 4,
            ..client(id, 0, scenario.duration)
        })
        .collect();
}

/// Nodes of a Cluster that answer late again and again, and gateways that answer 503 without them.
pub(super) fn short_stalls(scenario: &mut Scenario, random: &mut Random) {
    scenario.duration = random.millis(7_000, 10_000);
    let primaries = 3;
    let cluster = Topology::Cluster {
        primaries,
        replicas: 1,
        lag: random.millis(0, 10),
    };
    plain_store(scenario, cluster);
    slow_limits(scenario, random);
    scenario.clients = (0..random.between(1, 3))
        .map(|id| Client {
            interval: random.millis(60, 200),
            at_once: 4,
            ..client(id, id, scenario.duration)
        })
        .collect();
    for _ in 0..random.between(3, 6) {
        let lasts = random.millis(30, 300);
        let server = random.index(primaries);
        let stall = FaultKind::Link {
            gateway: None,
            server: Some(server),
            lasts,
            what: LinkFault::Stall,
        };
        let freeze = FaultKind::FreezeServer { server, lasts };
        scenario.faults.push(Fault {
            at: random.millis(1_000, 4_500),
            kind: if random.chance(40) { stall } else { freeze },
        });
    }
}

/// A primary that stands still until another server is in its place, and then answers what it was
/// asked before.
pub(super) fn thawing_primaries(scenario: &mut Scenario, random: &mut Random) {
    scenario.duration = random.millis(9_000, 11_000);
    let sentinel = Topology::Sentinel {
        replicas: random.index(2) + 1,
        sentinels: 3,
        lag: random.millis(0, 10),
    };
    plain_store(scenario, sentinel);
    slow_limits(scenario, random);
    let at = random.millis(2_000, 3_000);
    let lasts = random.millis(1_200, 5_000);
    scenario.faults.push(Fault {
        at,
        kind: FaultKind::FreezeServer { server: 0, lasts },
    });
    // Who asks while two servers take writes hides what is lost and what is not.
    let until = if random.chance(80) {
        at + lasts
    } else {
        scenario.duration
    };
    scenario.clients = (0..random.between(2, 4))
        .map(|id| Client {
            interval: random.millis(150, 400),
            at_once: 12,
            ..client(id, id % 2, until)
        })
        .collect();
}

/// Servers whose clocks are right, without which requests get 503, and gateways that run all the
/// time; and nothing that goes wrong yet.
fn plain_store(scenario: &mut Scenario, topology: Topology) {
    scenario.faults.clear();
    scenario.operations.clear();
    scenario.store.topology = topology;
    scenario.store.on_failure = OnFailure::Deny;
    scenario.store.clocks = vec![Clock::default(); topology.servers()];
    scenario.store.latency = (Duration::from_micros(50), Duration::from_micros(300));
    for gateway in &mut scenario.gateways {
        *gateway = Gateway {
            clock: gateway.clock,
            starts: Duration::ZERO,
            configuration: 0,
        };
    }
}

fn plain_configuration(scenario: &mut Scenario, limits: Vec<Limit>, costs: &[Cost]) {
    let uses = limits.iter().zip(costs);
    let uses = uses.map(|(limit, cost)| LimitUse::new(limit, *cost));
    let uses = uses.collect();
    scenario.configurations = vec![Configuration::new(limits, uses, OnDenied::Reject)];
}

/// Limits to which nothing comes back by itself in the time of a simulation, and that deny nobody:
/// each unit that is missing or too much can be seen at the end.
fn slow_limits(scenario: &mut Scenario, random: &mut Random) {
    let parameters = Parameters {
        burst: 5_000,
        count: 60,
        period: Duration::from_secs(600),
    };
    let pers = [Per::Account, Per::Address, Per::Global];
    let count = random.between(1, 2);
    let limits = (0..).zip(pers).take(usize::try_from(count).unwrap_or(1));
    let limits: Vec<Limit> = limits
        .map(|(index, per)| Limit::new(index, per, Algorithm::Gcra, parameters))
        .collect();
    plain_configuration(scenario, limits, &[Cost::Fixed(1), Cost::Fixed(1)]);
}

/// A client that asks each gateway in turn.
fn client(id: u64, subject: u64, until: Duration) -> Client {
    let last = u8::try_from(subject + 1).unwrap_or(1);
    Client {
        id,
        address: IpAddr::V4(Ipv4Addr::new(10, 1, 0, last)),
        account: Some(format!("account-{subject}")),
        route: 0,
        gateway: None,
        from: Duration::from_millis(500),
        until,
        interval: Duration::from_millis(100),
        at_once: 1,
        behaviour: Behaviour::Steady,
        app_takes: (Duration::from_millis(1), Duration::from_millis(5)),
        app_fails: 0,
        cost: 1,
    }
}
