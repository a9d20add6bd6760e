//! A scenario from a seed: few limits, short periods, rates near the limits, some faults.

#![expect(
    clippy::indexing_slicing,
    reason = "an index that is out of range is a fault of these lines"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::focus::focus;
use super::rare::{dropped, rare};
use super::{
    Act, Algorithm, Ban, Behaviour, Client, Clock, Configuration, Cost, Fault, FaultKind, Gateway,
    Keeps, Limit, LimitKind, LimitUse, LinkFault, OnDenied, OnFailure, Operation, Override,
    Parameters, Per, Prefetch, Route, Scenario, Store, Strikes, Topology,
};
use crate::random::Random;

/// Between the end of all activity and the first look at buckets: refunds, leases and denials that
/// are remembered settle, and a breaker closes after at most five seconds of back-off.
const SETTLES: Duration = Duration::from_secs(8);

/// The stream of randomness for what is rare.
const RARE: u64 = 3;

/// The one for limits that reloads drop.
const DROPPED: u64 = 4;

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn generate(seed: u64) -> Self {
        Generator::new(seed).scenario()
    }
}

struct Generator {
    seed: u64,
    random: Random,
    duration: Duration,
    topology: Topology,
    gateways: usize,
}

impl Generator {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let lag = random.millis(0, 20);
        let topology = match random.weighted(&[15, 50, 18, 17]) {
            0 => Topology::Memory,
            1 => Topology::Single,
            2 => Topology::Sentinel {
                replicas: random.index(2) + 1,
                sentinels: 3,
                lag,
            },
            _ => Topology::Cluster {
                primaries: 3,
                replicas: 1,
                lag,
            },
        };
        let duration = random.millis(8_000, 40_000);
        let gateways = random.index(3) + 1;
        Self {
            seed,
            random,
            duration,
            topology,
            gateways,
        }
    }

    fn scenario(mut self) -> Scenario {
        let base = self.configuration();
        let mut configurations = vec![base];
        for _ in 0..self.random.weighted(&[50, 35, 15]) {
            let changed = self.changed(&configurations);
            configurations.push(changed);
        }
        let clients = self.clients(&configurations);
        let gateways = self.gateways(configurations.len());
        let operations = self.operations(&configurations, &clients);
        let faults = self.faults();
        let store = self.store();
        let mut scenario = Scenario {
            seed: self.seed,
            epoch: 1_800_000_000_000_000_000 + self.random.between(0, 86_400_000_000_000),
            duration: self.duration,
            quiet: SETTLES + Duration::from_secs(4),
            store,
            configurations,
            gateways,
            clients,
            operations,
            faults,
        };
        focus(&mut scenario, &mut self.random);
        rare(&mut scenario, &mut Random::new(self.seed, RARE));
        dropped(&mut scenario, &mut Random::new(self.seed, DROPPED));
        let looks = looks(&scenario);
        scenario.operations.extend(looks);
        scenario
    }

    fn store(&mut self) -> Store {
        let random = &mut self.random;
        let slowest = random.millis(0, 2);
        let clocks = (0..self.topology.servers())
            .map(|_| Clock {
                ahead: clock_error(random),
                drift: drift(random),
            })
            .collect();
        Store {
            topology: self.topology,
            on_failure: [OnFailure::Deny, OnFailure::Local, OnFailure::Allow]
                [random.weighted(&[50, 40, 10])],
            timeout: Duration::from_millis(20),
            lease: Duration::from_secs([1, 3, 9][random.index(3)]),
            local_clock: false,
            latency: (
                Duration::from_micros(50),
                Duration::from_micros(200) + slowest,
            ),
            clocks,
        }
    }

    fn gateways(&mut self, configurations: usize) -> Vec<Gateway> {
        let random = &mut self.random;
        (0..self.gateways)
            .map(|index| Gateway {
                clock: Clock {
                    ahead: clock_error(random),
                    drift: drift(random),
                },
                starts: if index > 0 && random.chance(15) {
                    random.duration(Duration::ZERO, self.duration / 2)
                } else {
                    Duration::ZERO
                },
                configuration: if random.chance(10) {
                    random.index(configurations)
                } else {
                    0
                },
            })
            .collect()
    }

    fn configuration(&mut self) -> Configuration {
        let count = self.random.weighted(&[0, 50, 35, 15]);
        let limits: Vec<Limit> = (0..count).map(|index| self.limit(index)).collect();
        let routes = (0..self.random.weighted(&[0, 60, 40]))
            .map(|_| self.route(&limits))
            .collect();
        let bans = if self.random.chance(35) {
            vec![self.ban(&limits)]
        } else {
            Vec::new()
        };
        Configuration {
            limits,
            routes,
            bans,
        }
    }

    fn limit(&mut self, index: usize) -> Limit {
        let random = &mut self.random;
        let algorithm = match random.weighted(&[50, 10, 8, 10, 10, 12]) {
            0 => Algorithm::Gcra,
            1 => Algorithm::FixedWindow,
            2 => Algorithm::WindowFromFirst,
            3 => Algorithm::SlidingWindow {
                count_denied: random.chance(25),
            },
            4 => Algorithm::SlidingLog {
                count_denied: random.chance(25),
            },
            _ => Algorithm::InFlight,
        };
        let per = [Per::Address, Per::Account, Per::Global][random.weighted(&[40, 40, 20])];
        let prefetched =
            algorithm == Algorithm::Gcra && self.topology != Topology::Memory && random.chance(20);
        let (parameters, prefetch) = if prefetched {
            let burst = random.between(20, 60);
            let (count, period) = (random.between(40, 150), Duration::from_secs(1));
            let units = random.between(8, burst / 2);
            let prefetch = Prefetch {
                units,
                max_age: random.millis(100, 500),
            };
            (
                Parameters {
                    burst,
                    count,
                    period,
                },
                Some(prefetch),
            )
        } else {
            (parameters(random, algorithm), None)
        };
        let overrides = if per == Per::Account && random.chance(25) {
            vec![Override {
                id: account(0),
                parameters: parameters_like(random, algorithm, parameters),
            }]
        } else {
            Vec::new()
        };
        Limit {
            prefetch,
            overrides,
            ..Limit::new(index, per, algorithm, parameters)
        }
    }

    fn route(&mut self, limits: &[Limit]) -> Route {
        let random = &mut self.random;
        let mut used: Vec<&Limit> = limits.iter().filter(|_| random.chance(70)).collect();
        if used.is_empty() {
            used.extend(limits.first());
        }
        let uses: Vec<LimitUse> = used.iter().map(|limit| limit_use(random, limit)).collect();
        let can_delay = used.iter().zip(&uses).any(|(limit, one)| {
            limit.algorithm == Algorithm::Gcra
                && one.kind == LimitKind::CheckAndSpend
                && one.enforce
        });
        let on_denied = match random.weighted(&[75, 15, 10]) {
            1 if can_delay => OnDenied::Delay {
                up_to: random.millis(200, 2000),
                max_requests: 100,
            },
            2 => OnDenied::Shadow,
            _ => OnDenied::Reject,
        };
        Route {
            limits: uses,
            on_denied,
        }
    }

    fn ban(&mut self, limits: &[Limit]) -> Ban {
        let random = &mut self.random;
        let by_limit = limits.first().filter(|_| random.chance(70));
        let length = Duration::from_secs(random.between(1, 6));
        let factor = random.between(1, 3);
        Ban {
            name: "ban".into(),
            per: [Per::Address, Per::Account][random.index(2)],
            strikes: Strikes {
                limits: by_limit
                    .map(|limit| limit.name.clone())
                    .into_iter()
                    .collect(),
                on_5xx: by_limit.is_none(),
                count: random.between(2, 8),
                period: Duration::from_secs(random.between(1, 10)),
            },
            length,
            factor,
            max: length * 10,
        }
    }

    /// Another configuration: the parameters of limits changed, a ban shortened, never the routes.
    fn changed(&mut self, before: &[Configuration]) -> Configuration {
        let random = &mut self.random;
        let mut changed = before[random.index(before.len())].clone();
        for limit in &mut changed.limits {
            if limit.prefetch.is_some() || random.chance(30) {
                continue;
            }
            limit.parameters = parameters_like(random, limit.algorithm, limit.parameters);
        }
        for ban in &mut changed.bans {
            ban.length = Duration::from_secs(random.between(1, 6));
            ban.max = ban.length * 10;
        }
        changed
    }

    fn clients(&mut self, configurations: &[Configuration]) -> Vec<Client> {
        let mut clients = Vec::new();
        let count = self.random.between(1, 5);
        let subjects = self.random.between(1, count);
        for id in 0..count {
            // Some share an address or an account.
            let subject = id % subjects;
            let random = &mut self.random;
            let route = random.index(configurations[0].routes.len());
            let natural = natural_interval(random, &configurations[0], route);
            let hot = natural < Duration::from_millis(30);
            let from = random.duration(Duration::ZERO, self.duration / 3);
            let behaviour = match random.weighted(&[35, 30, 10, 15, 10]) {
                0 => Behaviour::Steady,
                1 => Behaviour::Obeys,
                2 => Behaviour::Hammers,
                3 => Behaviour::Leaves(random.millis(1, 300)),
                _ => Behaviour::Lies,
            };
            let at_once = match behaviour {
                Behaviour::Obeys => 1,
                _ if hot => 1,
                _ => [1, 1, 1, 2, 5, 12][random.index(6)],
            };
            let interval = natural * u32::try_from(random.between(3, 25)).unwrap_or(10) / 10;
            let most = random.millis(0, 60);
            clients.push(Client {
                id,
                address: IpAddr::V4(Ipv4Addr::new(
                    10,
                    1,
                    0,
                    u8::try_from(subject + 1).unwrap_or(1),
                )),
                account: random.chance(85).then(|| account(subject)),
                route,
                gateway: if random.chance(40) {
                    Some(random.index(self.gateways))
                } else {
                    None
                },
                from,
                until: if random.chance(60) {
                    self.duration
                } else {
                    random.duration(from, self.duration)
                },
                interval: (interval * at_once).max(Duration::from_millis(4)),
                at_once,
                behaviour,
                app_takes: (most / 4, most),
                app_fails: [0, 0, 10, 40][random.index(4)],
                cost: random.between(1, 4),
            });
        }
        clients
    }

    fn operations(
        &mut self,
        configurations: &[Configuration],
        clients: &[Client],
    ) -> Vec<Operation> {
        let mut operations = Vec::new();
        for configuration in 1..configurations.len() {
            // A rolling update, now and then rolled back.
            let begins = self
                .random
                .duration(self.duration / 8, self.duration * 3 / 4);
            let back = self.random.chance(25);
            for gateway in 0..self.gateways {
                let at = begins + self.random.millis(0, 6000);
                let act = Act::Reload { configuration };
                operations.push(Operation { at, gateway, act });
                if back {
                    let at = at + self.random.millis(500, 4000);
                    operations.push(Operation {
                        at,
                        gateway,
                        act: Act::Reload { configuration: 0 },
                    });
                }
            }
        }
        if self.random.chance(45) {
            for _ in 0..self.random.between(1, 3) {
                let at = self.random.duration(Duration::ZERO, self.duration);
                let gateway = self.random.index(self.gateways);
                operations.extend(self.operator(at, gateway, &configurations[0], clients));
            }
        }
        operations
    }

    /// What an operator does to one of the subjects, and perhaps takes back.
    fn operator(
        &mut self,
        at: Duration,
        gateway: usize,
        configuration: &Configuration,
        clients: &[Client],
    ) -> Vec<Operation> {
        let random = &mut self.random;
        let client = &clients[random.index(clients.len())];
        let limit = &configuration.limits[random.index(configuration.limits.len())];
        let later = at + random.millis(200, 6000);
        let other = random.index(self.gateways);
        if random.chance(40)
            && let Some(ban) = configuration.bans.first()
            && let Some(subject) = subject(client, ban.per)
        {
            let name = ban.name.clone();
            let length = random
                .chance(85)
                .then(|| Duration::from_secs(random.between(1, 30)));
            let begin = Act::Ban {
                ban: name.clone(),
                subject: subject.clone(),
                length,
            };
            let mut both = vec![Operation {
                at,
                gateway,
                act: begin,
            }];
            if length.is_none() || random.chance(50) {
                let act = Act::Lift { ban: name, subject };
                both.push(Operation {
                    at: later,
                    gateway: other,
                    act,
                });
            }
            return both;
        }
        let name = limit.name.clone();
        let Some(subject) = subject(client, limit.per) else {
            return Vec::new();
        };
        if random.chance(45) && limit.per != Per::Global {
            let parameters = parameters_like(random, limit.algorithm, limit.parameters);
            let length = random
                .chance(50)
                .then(|| Duration::from_secs(random.between(1, 10)));
            let (limit, other_limit, id) = (name.clone(), name, subject.clone());
            let set = Act::SetOverride {
                limit,
                subject,
                parameters,
                length,
            };
            let mut both = vec![Operation {
                at,
                gateway,
                act: set,
            }];
            if length.is_none() && random.chance(60) {
                let act = Act::DeleteOverride {
                    limit: other_limit,
                    subject: id,
                };
                both.push(Operation {
                    at: later,
                    gateway: other,
                    act,
                });
            }
            return both;
        }
        let act = if limit.algorithm != Algorithm::InFlight && random.chance(60) {
            let cost = random.between(1, limit.parameters.burst);
            Act::Refund {
                limit: name,
                subject,
                cost,
            }
        } else {
            Act::Reset {
                limit: name,
                subject,
            }
        };
        vec![Operation { at, gateway, act }]
    }

    fn faults(&mut self) -> Vec<Fault> {
        let count = match self.random.weighted(&[25, 30, 20, 15, 10]) {
            4 => self.random.between(4, 10),
            few => few as u64,
        };
        (0..count)
            .map(|_| {
                let at = self
                    .random
                    .duration(Duration::from_millis(500), self.duration * 9 / 10);
                Fault {
                    at,
                    kind: self.fault(),
                }
            })
            .collect()
    }

    fn fault(&mut self) -> FaultKind {
        let servers = self.topology.servers();
        let random = &mut self.random;
        let gateway = random.index(self.gateways);
        let lasts = match random.weighted(&[40, 30, 30]) {
            0 => random.millis(20, 200),
            1 => random.millis(200, 1000),
            _ => random.millis(1000, 8000),
        };
        let restarts_after = Some(random.millis(10, 3000));
        let by = step(random);
        let own = [
            FaultKind::KillGateway {
                gateway,
                restarts_after,
            },
            FaultKind::StopGateway {
                gateway,
                restarts_after,
            },
            FaultKind::FreezeGateway { gateway, lasts },
            FaultKind::StepGatewayClock { gateway, by },
            FaultKind::SlowApp {
                lasts,
                by: random.millis(10, 400),
            },
        ];
        if servers == 0 || random.chance(35) {
            let [kill, stop, freeze, clock, slow] = own;
            return match random.weighted(&[25, 20, 25, 20, 10]) {
                0 => kill,
                1 => stop,
                2 => freeze,
                3 => clock,
                _ => slow,
            };
        }
        let server = random.index(servers);
        let primary = random.index(match self.topology {
            Topology::Cluster { primaries, .. } => primaries,
            _ => 1,
        });
        let failing = if random.chance(70) { primary } else { server };
        match (
            random.weighted(&[35, 12, 12, 10, 12, 7, 6, 3, 8, 10]),
            self.topology,
        ) {
            (0, _) => FaultKind::Link {
                gateway: random.chance(60).then_some(gateway),
                server: random.chance(60).then_some(failing),
                lasts,
                what: link_fault(random),
            },
            (1, _) => FaultKind::StepServerClock {
                server: random.chance(50).then_some(failing),
                by,
            },
            (2, _) => FaultKind::FreezeServer {
                server: failing,
                lasts,
            },
            (3, _) => FaultKind::RestartServer {
                server: failing,
                down: lasts,
                keeps: match random.index(3) {
                    0 => Keeps::Nothing,
                    1 => Keeps::Everything,
                    _ => Keeps::AllBut(random.millis(10, 3000)),
                },
            },
            (4 | 5, Topology::Cluster { primaries, .. }) => FaultKind::MoveSlots {
                slots: u16::try_from(random.between(1, 40)).unwrap_or(1),
                from: primary,
                to: (primary + 1) % primaries,
                lasts: random.millis(5, 300),
            },
            (6, _) => FaultKind::OutOfMemory {
                server: failing,
                lasts,
            },
            (7, _) => FaultKind::Flush { server: failing },
            (8, _) => {
                let command = ["BITFIELD", "PEXPIRE", "TIME", "MULTI", "ZADD"][random.index(5)];
                FaultKind::Refuse {
                    server: failing,
                    lasts,
                    command: command.into(),
                }
            }
            (_, Topology::Sentinel { .. } | Topology::Cluster { .. }) => {
                FaultKind::Failover { server: primary }
            }
            _ => FaultKind::Link {
                gateway: Some(gateway),
                server: None,
                lasts: random.millis(20, 300),
                what: LinkFault::Stall,
            },
        }
    }
}

/// A look at each bucket and ban when the last requests are settled, at one gateway or, where
/// each has buckets of its own, at all of them.
fn looks(scenario: &Scenario) -> Vec<Operation> {
    let (configuration, clients) = (&scenario.configurations[0], &scenario.clients);
    let mut looks = Vec::new();
    let mut at = scenario.duration + SETTLES;
    let mut look = |gateway, act| {
        at += Duration::from_millis(3);
        looks.push(Operation { at, gateway, act });
    };
    for gateway in 0..scenario.gateways.len() {
        for limit in &configuration.limits {
            for subject in subjects(clients, limit.per) {
                look(
                    gateway,
                    Act::Show {
                        limit: limit.name.clone(),
                        subject,
                    },
                );
            }
        }
        for ban in &configuration.bans {
            for subject in subjects(clients, ban.per) {
                look(
                    gateway,
                    Act::ShowBan {
                        ban: ban.name.clone(),
                        subject,
                    },
                );
            }
        }
    }
    looks
}

fn link_fault(random: &mut Random) -> LinkFault {
    match random.weighted(&[25, 25, 12, 10, 12, 10, 6]) {
        0 => LinkFault::Slow(random.millis(5, 80)),
        1 => LinkFault::Stall,
        2 => LinkFault::HalfOpen,
        3 => LinkFault::Refused,
        4 => LinkFault::Reset,
        5 => LinkFault::Lossy(random.between(1, 20)),
        _ => LinkFault::RepliesLost,
    }
}

fn limit_use(random: &mut Random, limit: &Limit) -> LimitUse {
    let mut one = LimitUse::new(limit, Cost::Fixed(1));
    if limit.algorithm == Algorithm::InFlight {
        return one;
    }
    match random.weighted(&[55, 10, 8, 8, 7, 6, 3, 3]) {
        1 => one.cost = Cost::Fixed(random.between(2, 3)),
        2 => one.cost = Cost::RequestHeader { default: 1 },
        3 => one.cost = Cost::ResponseHeader { default: 1 },
        4 => one.spend_on_errors = true,
        5 => one.refund_on_5xx = true,
        6 => one.kind = LimitKind::SpendOnly,
        7 => one.enforce = false,
        _ => {}
    }
    one
}

fn parameters(random: &mut Random, algorithm: Algorithm) -> Parameters {
    let period = Duration::from_secs(match random.weighted(&[70, 25, 5]) {
        0 => random.between(1, 5),
        1 => random.between(6, 30),
        _ => 600,
    });
    let count = random.between(3, 16);
    match algorithm {
        Algorithm::Gcra => Parameters {
            burst: random.between(3, 16),
            count,
            period,
        },
        Algorithm::InFlight => {
            let count = random.between(1, 4);
            Parameters {
                burst: count,
                count,
                period: Duration::from_secs(1),
            }
        }
        _ => Parameters {
            burst: count,
            count,
            period,
        },
    }
}

/// Others: less or more at once, or in another period.
fn parameters_like(random: &mut Random, algorithm: Algorithm, now: Parameters) -> Parameters {
    let other = parameters(random, algorithm);
    match (algorithm, random.index(3)) {
        (Algorithm::Gcra, 0) => Parameters {
            burst: other.burst,
            ..now
        },
        (_, 1) => Parameters {
            period: other.period,
            ..now
        },
        _ => other,
    }
}

/// The mean interval at which requests of a route meet one of its limits exactly.
fn natural_interval(random: &mut Random, configuration: &Configuration, route: usize) -> Duration {
    let route = configuration.routes.get(route);
    let uses = route.map_or(&[][..], |route| &route.limits[..]);
    let limits = uses
        .iter()
        .filter_map(|one| configuration.limit(&one.limit));
    let intervals = limits.map(|limit| match limit.algorithm {
        Algorithm::InFlight => Duration::from_millis(30),
        _ => limit.parameters.period / u32::try_from(limit.parameters.count).unwrap_or(1),
    });
    let intervals: Vec<Duration> = intervals.collect();
    let interval = intervals.get(random.index(intervals.len())).copied();
    interval
        .unwrap_or(Duration::from_millis(100))
        .min(Duration::from_secs(2))
}

/// How a machine's clock is off: hardly, by up to a second, or plainly wrong.
fn clock_error(random: &mut Random) -> i64 {
    let most = [5_000_000, 900_000_000, 3_600_000_000_000][random.weighted(&[70, 20, 10])];
    signed(random, most)
}

fn drift(random: &mut Random) -> i32 {
    i32::try_from(signed(random, 100)).unwrap_or(0)
}

/// By how much a clock is set: slewed by gateways, followed at once, or an hour.
fn step(random: &mut Random) -> i64 {
    let most = [1_900_000_000, 20_000_000_000, 3_600_000_000_000][random.weighted(&[60, 30, 10])];
    signed(random, most)
}

fn signed(random: &mut Random, most: u64) -> i64 {
    let size = i64::try_from(random.between(0, most)).unwrap_or(0);
    if random.chance(50) { size } else { -size }
}

fn account(subject: u64) -> String {
    format!("account-{subject}")
}

/// The subject of a client's requests.
#[must_use]
pub fn subject(client: &Client, per: Per) -> Option<String> {
    match per {
        Per::Address => Some(client.address.to_string()),
        Per::Account => client.account.clone(),
        Per::Global => Some("*".into()),
    }
}

fn subjects(clients: &[Client], per: Per) -> Vec<String> {
    let mut all: Vec<String> = clients
        .iter()
        .filter_map(|client| subject(client, per))
        .collect();
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_scenario_again_and_another_seed_another_one() {
        let scenarios: Vec<Scenario> = (0..200).map(Scenario::generate).collect();
        for (scenario, seed) in scenarios.iter().zip(0..) {
            assert_eq!(*scenario, Scenario::generate(seed));
            let text = serde_json::to_string(scenario).unwrap();
            assert_eq!(*scenario, serde_json::from_str::<Scenario>(&text).unwrap());
        }
        assert!(scenarios.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn every_kind_of_store_limit_and_fault_is_drawn() {
        let all: String = (0..3000)
            .map(|seed| format!("{:?}", Scenario::generate(seed)))
            .collect();
        for word in [
            "Memory",
            "Single",
            "Sentinel",
            "Cluster",
            "FixedWindow",
            "WindowFromFirst",
            "SlidingWindow",
            "SlidingLog",
            "InFlight",
            "Delay",
            "Shadow",
            "Leaves",
            "Hammers",
            "Obeys",
            "Lies",
            "Link",
            "KillGateway",
            "StopGateway",
            "FreezeGateway",
            "StepGatewayClock",
            "StepServerClock",
            "FreezeServer",
            "RestartServer",
            "Failover",
            "MoveSlots",
            "OutOfMemory",
            "Refuse",
            "Flush",
            "Evict",
            "local_clock: true",
            "CheckOnly",
            "SlowApp",
            "Reload",
            "SetOverride",
            "DeleteOverride",
            "Refund",
            "Reset",
            "ShowBan",
            "Lift",
            "prefetch: Some",
        ] {
            assert!(all.contains(word), "no scenario has {word}");
        }
    }
}
