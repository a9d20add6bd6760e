//! The world: gateways, servers, the network between them, clients and operators, on one thread and
//! one clock.
//!
//! The world is a queue of events in the order of their times. Before an event happens, every
//! gateway runs until that moment, or until it does something first, which becomes an event of its
//! own. So nothing depends on which gateway runs before another.
//!
//! A gateway is a runtime of its own whose time is paused (`process`), so that clocks drift apart
//! and a process is killed, frozen and thawed as a whole. `turmoil` has runtimes in the same way,
//! but takes the place of tokio's types for sockets, which the product's one seam, the connections
//! of its Redis client, does not need; it steps all hosts by one fixed tick, has no clocks that
//! drift, no process that stops and goes on, and no stream that is cut in the middle of a reply;
//! and it leaves hash seeds and the choices of `select!` to chance, which `os` does not.

mod app;
mod failover;
mod faults;
mod host;
mod idle;
mod log;
mod network;
mod operators;
mod os;
mod port;
mod process;
mod servers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use self::app::Slowness;
use self::failover::Step;
use self::faults::{ActiveLink, FaultEvent};
use self::host::{Call, ClockRate, Host};
use self::log::Lines;
use self::network::{Connections, NetworkEvent};
use self::port::{Emission, RequestId};
use self::servers::{ServerEvent, Servers};
use crate::random::Random;
use crate::scenario::client::{Request, Runner};
use crate::scenario::{FaultKind, Scenario};
use crate::trace::{Event, Trace, What};

/// The stream of randomness for latencies and breaks, and that of the gateways themselves.
const OF_NETWORK: u64 = 1;
const OF_PROCESSES: u64 = 2;

/// How long a gateway that is told to end waits for requests.
const GRACE: Duration = Duration::from_secs(10);

/// How much further the world goes at a time where there are several gateways.
const STEP: Duration = Duration::from_millis(1);

/// The same while no request is open, so that what a gateway does concerns no client.
const IDLE_STEP: Duration = Duration::from_millis(50);

/// Tells the folders of simulations apart that run at the same time.
static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// Runs a scenario on a thread of its own.
///
/// # Errors
/// When the system refuses a thread or files.
pub fn run(scenario: &Scenario) -> io::Result<Trace> {
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("weir-sim-{}-{number}", std::process::id()));
    let ran = thread::scope(|scope| {
        let thread = thread::Builder::new().name(format!("seed-{}", scenario.seed));
        let ran = thread.spawn_scoped(scope, || simulate(scenario, &folder))?;
        ran.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let removed = fs::remove_dir_all(&folder);
    let trace = ran?;
    removed?;
    Ok(trace)
}

fn simulate(scenario: &Scenario, folder: &Path) -> io::Result<Trace> {
    os::seed(Random::new(scenario.seed, OF_PROCESSES));
    weir::internals::run_inline();
    let _log = tracing::subscriber::set_default(Lines);
    let mut world = World::new(scenario, folder);
    world.plan();
    world.proceed()?;
    world.end();
    Ok(Trace {
        events: world.events,
    })
}

/// Something that is going to happen.
enum Planned {
    Client(usize),
    Leave(RequestId),
    /// What a gateway did, and in which of its lives.
    Emitted(usize, u64, Emission),
    Start(usize),
    /// A gateway that was told to end waits no longer.
    EndOfGrace(usize, u64),
    /// An operator or a deployment does something.
    Operation(usize),
    Fault(FaultEvent),
    Network(NetworkEvent),
    Server(ServerEvent),
    /// A step of a failover, or of slots that move.
    Failover(Step),
    /// Clients, operators and faults are over.
    Quiet,
}

struct Gateway {
    host: Option<Host>,
    /// Counts its lives.
    life: u64,
    /// The configuration that it starts with next.
    configuration: usize,
    /// By how much its wall clock was stepped.
    stepped: i64,
}

/// A request that is not over.
struct Open {
    client: usize,
    gateway: usize,
    response: Option<(u16, Option<u64>)>,
}

struct World<'s> {
    scenario: &'s Scenario,
    folder: &'s Path,
    now: Duration,
    queue: BTreeMap<(Duration, u64), Planned>,
    planned: u64,
    random: Random,
    slowness: Slowness,
    gateways: Vec<Gateway>,
    clients: Vec<Runner>,
    open: BTreeMap<RequestId, Open>,
    /// The gateway of each operation that is not answered.
    operations: BTreeMap<usize, usize>,
    connections: Connections,
    servers: Servers,
    links: Vec<ActiveLink>,
    events: Vec<Event>,
    folders: BTreeSet<PathBuf>,
}

impl<'s> World<'s> {
    fn new(scenario: &'s Scenario, folder: &'s Path) -> Self {
        let gateways = scenario.gateways.iter().map(|gateway| Gateway {
            host: None,
            life: 0,
            configuration: gateway.configuration,
            stepped: 0,
        });
        let clients = scenario.clients.iter();
        let clients = clients.map(|client| Runner::new(scenario.seed, client.clone()));
        Self {
            scenario,
            folder,
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            planned: 0,
            random: Random::new(scenario.seed, OF_NETWORK),
            slowness: Slowness::default(),
            gateways: gateways.collect(),
            clients: clients.collect(),
            open: BTreeMap::new(),
            operations: BTreeMap::new(),
            connections: Connections::default(),
            servers: Servers::new(scenario),
            links: Vec::new(),
            events: Vec::new(),
            folders: BTreeSet::new(),
        }
    }

    fn plan(&mut self) {
        for (index, gateway) in self.scenario.gateways.iter().enumerate() {
            self.at(gateway.starts, Planned::Start(index));
        }
        for (index, operation) in self.scenario.operations.iter().enumerate() {
            self.at(operation.at, Planned::Operation(index));
        }
        self.plan_faults();
        self.at(Duration::ZERO, Planned::Server(ServerEvent::Expire));
        for client in 0..self.clients.len() {
            self.plan_client(client);
        }
        self.at(self.scenario.duration, Planned::Quiet);
    }

    fn plan_client(&mut self, client: usize) {
        if let Some(at) = self.clients.get(client).and_then(Runner::next) {
            self.at(at.max(self.now), Planned::Client(client));
        }
    }

    /// Something happens at this time, or now if that is over, after all else that was planned for
    /// it.
    fn at(&mut self, at: Duration, planned: Planned) {
        self.planned += 1;
        self.queue.insert((at.max(self.now), self.planned), planned);
    }

    fn after(&mut self, wait: Duration, planned: Planned) {
        self.at(self.now + wait, planned);
    }

    fn note(&mut self, what: What) {
        let at = self.now;
        self.events.push(Event { at, what });
    }

    fn proceed(&mut self) -> io::Result<()> {
        let end = self.scenario.duration + self.scenario.quiet;
        loop {
            // What one gateway does may concern another soon: none is further ahead than a step.
            let alive = self
                .gateways
                .iter()
                .filter(|gateway| gateway.host.is_some());
            let step = match alive.count() {
                0 | 1 => end,
                _ if self.open.is_empty() => IDLE_STEP,
                _ => STEP,
            };
            let target = end.min(self.now + step);
            let next = |world: &Self| world.queue.first_key_value().map(|((at, _), _)| *at);
            let until = next(self).unwrap_or(end).min(target);
            self.run_gateways(until);
            let until = next(self).unwrap_or(end).min(until);
            self.now = self.now.max(until);
            if until >= end {
                return Ok(());
            }
            while let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= self.now
            {
                let planned = entry.remove();
                self.happen(planned)?;
            }
        }
    }

    /// Runs each gateway until this time, or until one does something.
    fn run_gateways(&mut self, until: Duration) {
        let mut until = until;
        for index in 0..self.gateways.len() {
            let Some(gateway) = self.gateways.get_mut(index) else {
                continue;
            };
            let (life, Some(host)) = (gateway.life, &mut gateway.host) else {
                continue;
            };
            let stopped = host.run(until);
            let emissions = host.port.take_emissions();
            if !emissions.is_empty() {
                until = until.min(stopped.max(self.now));
            }
            for emission in emissions {
                self.at(stopped, Planned::Emitted(index, life, emission));
            }
        }
    }

    fn happen(&mut self, planned: Planned) -> io::Result<()> {
        match planned {
            Planned::Client(client) => self.client_sends(client),
            Planned::Leave(request) => self.client_leaves(request),
            Planned::Emitted(gateway, life, emission) => {
                if self
                    .gateways
                    .get(gateway)
                    .is_some_and(|own| own.life == life)
                {
                    self.emitted(gateway, emission);
                }
            }
            Planned::Start(gateway) => self.start(gateway)?,
            Planned::EndOfGrace(gateway, life) => {
                if self
                    .gateways
                    .get(gateway)
                    .is_some_and(|own| own.life == life)
                {
                    self.call(gateway, Call::Drain);
                }
            }
            Planned::Operation(operation) => self.operate(operation)?,
            Planned::Fault(event) => self.fault(event)?,
            Planned::Network(event) => self.network(event),
            Planned::Server(event) => self.server(event),
            Planned::Failover(step) => self.step(step),
            Planned::Quiet => self.note(What::Quiet),
        }
        Ok(())
    }

    fn host(&mut self, gateway: usize) -> Option<&mut Host> {
        self.gateways.get_mut(gateway)?.host.as_mut()
    }

    fn call(&mut self, gateway: usize, call: Call) {
        if let Some(host) = self.host(gateway) {
            host.call(call);
        }
    }

    fn client_sends(&mut self, client: usize) {
        let count = self.gateways.len();
        let now = self.now;
        let Some(runner) = self.clients.get_mut(client) else {
            return;
        };
        if runner.next().is_none_or(|at| at > now) {
            return;
        }
        for request in runner.send(now, count) {
            self.send(client, request);
        }
        self.plan_client(client);
    }

    fn send(&mut self, client: usize, request: Request) {
        self.note(What::Sent(request.clone()));
        let (id, gateway) = (request.id, request.gateway);
        let address = self
            .scenario
            .clients
            .get(client)
            .map(|client| client.address);
        let host = self.host(gateway).filter(|host| host.is_serving);
        let (Some(host), Some(address)) = (host, address) else {
            self.note(What::Broken { request: id });
            return self.over(client, None);
        };
        let leaves_after = request.leaves_after;
        host.call(Call::Request(Arc::new(request), address));
        let open = Open {
            client,
            gateway,
            response: None,
        };
        self.open.insert(id, open);
        if let Some(after) = leaves_after {
            self.after(after, Planned::Leave(id));
        }
    }

    fn client_leaves(&mut self, request: RequestId) {
        if let Some(open) = self.open.remove(&request) {
            self.note(What::Left { request });
            if let Some(host) = self.host(open.gateway) {
                host.abandon(request);
            }
            self.over(open.client, None);
            self.drain_if_done(open.gateway);
        }
    }

    fn over(&mut self, client: usize, response: Option<(u16, Option<u64>)>) {
        let now = self.now;
        if let Some(runner) = self.clients.get_mut(client) {
            runner.over(now, response);
            self.plan_client(client);
        }
    }

    fn emitted(&mut self, gateway: usize, emission: Emission) {
        match emission {
            Emission::Dialed(pipe, address) => self.dialed((gateway, pipe), address),
            Emission::Wrote(pipe, bytes) => self.wrote((gateway, pipe), bytes),
            Emission::Closed(pipe) => self.closed((gateway, pipe)),
            Emission::Started => self.started(gateway),
            Emission::Refused(why) => {
                let line = format!("the gateway does not start: {why}");
                self.log(gateway, "ERROR".to_owned(), &line);
                self.ended(gateway);
            }
            Emission::Drained => self.ended(gateway),
            Emission::ReachedApp(request) => self.note(What::ReachedApp { request, gateway }),
            Emission::Answered(request, status, headers) => {
                let seconds = headers.iter().find(|(name, _)| name == "retry-after");
                let seconds = seconds.and_then(|(_, value)| value.parse().ok());
                if let Some(open) = self.open.get_mut(&request) {
                    open.response = Some((status, seconds));
                    self.note(What::Answered {
                        request,
                        status,
                        headers,
                    });
                }
            }
            Emission::Finished(request, is_whole) => {
                if let Some(host) = self.host(gateway) {
                    host.finished(request);
                }
                if let Some(open) = self.open.remove(&request) {
                    self.note(match is_whole {
                        true => What::Finished { request },
                        false => What::Broken { request },
                    });
                    self.over(open.client, open.response.filter(|_| is_whole));
                }
                self.drain_if_done(gateway);
            }
            Emission::Operated(operation, status, body) => {
                self.operations.remove(&operation);
                self.note(What::OperationAnswered {
                    operation,
                    status,
                    body,
                });
            }
            Emission::Logged(level, line) => self.log(gateway, level, &line),
        }
    }

    fn log(&mut self, gateway: usize, level: String, line: &str) {
        if line.starts_with("configuration reloaded") || line.starts_with("configuration unchanged")
        {
            let configuration = self.gateways.get(gateway).map(|own| own.configuration);
            self.note(What::InForce {
                gateway,
                configuration: configuration.unwrap_or(0),
            });
        }
        // The same simulation says the same in every folder.
        let line = line.replace(&self.folder.display().to_string(), "");
        self.note(What::Log {
            gateway,
            level,
            line,
        });
    }

    fn start(&mut self, index: usize) -> io::Result<()> {
        let (Some(gateway), Some(settings)) =
            (self.gateways.get(index), self.scenario.gateways.get(index))
        else {
            return Ok(());
        };
        if let Some(host) = &gateway.host {
            // One that drains makes place for the next.
            if !host.is_serving {
                self.after(Duration::from_millis(10), Planned::Start(index));
            }
            return Ok(());
        }
        let (configuration, stepped) = (gateway.configuration, gateway.stepped);
        let folder = self.write(index, configuration)?;
        let drift = settings.clock.drift;
        let machine = ClockRate {
            began: Duration::ZERO,
            drift,
        };
        let passed = i64::try_from(machine.own(self.now).as_nanos()).unwrap_or(i64::MAX);
        let epoch = i64::try_from(self.scenario.epoch).unwrap_or(i64::MAX);
        let wall = epoch + settings.clock.ahead + stepped + passed;
        let pace = ClockRate {
            began: self.now,
            drift,
        };
        let number = self.random.between(0, 7);
        let host = Host::start(&folder, configuration, pace, wall, number, &self.slowness)?;
        if let Some(gateway) = self.gateways.get_mut(index) {
            gateway.host = Some(host);
        }
        Ok(())
    }

    /// Writes a configuration of a gateway, and tells into which folder.
    fn write(&mut self, gateway: usize, configuration: usize) -> io::Result<PathBuf> {
        let folder = self.folder.join(gateway.to_string());
        if self.folders.insert(folder.clone()) {
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("hash.key"), "0".repeat(64))?;
        }
        let text = self.scenario.configurations.get(configuration);
        let redis = self.servers.yaml();
        let text = text.map(|text| text.yaml(&self.scenario.store, &redis));
        fs::write(folder.join("gateway.yaml"), text.unwrap_or_default())?;
        Ok(folder)
    }

    fn started(&mut self, gateway: usize) {
        let Some(host) = self.host(gateway) else {
            return;
        };
        host.is_serving = true;
        let configuration = host.configuration;
        self.note(What::Started {
            gateway,
            configuration,
        });
        // A reload while it started waits until it serves.
        if self
            .gateways
            .get(gateway)
            .is_some_and(|own| own.configuration != configuration)
        {
            self.call(gateway, Call::Reload);
        }
    }

    /// A gateway ends, or dies.
    fn ended(&mut self, index: usize) {
        let Some(gateway) = self.gateways.get_mut(index) else {
            return;
        };
        let Some(host) = gateway.host.take() else {
            return;
        };
        gateway.life += 1;
        let requests: Vec<_> = host.requests().collect();
        host.kill();
        self.note(What::Ended { gateway: index });
        for request in requests {
            self.broken(request);
        }
        // What was sent to it while it was frozen is lost as well.
        let lost = self.open.iter().filter(|(_, open)| open.gateway == index);
        let lost: Vec<_> = lost.map(|(request, _)| *request).collect();
        for request in lost {
            self.broken(request);
        }
        let unanswered = self
            .operations
            .extract_if(.., |_, gateway| *gateway == index);
        for (operation, _) in unanswered.collect::<Vec<_>>() {
            self.unanswered(operation);
        }
        self.vanished(index);
    }

    fn broken(&mut self, request: RequestId) {
        if let Some(open) = self.open.remove(&request) {
            self.note(What::Broken { request });
            self.over(open.client, None);
        }
    }

    /// Tells a gateway to end.
    fn stop(&mut self, gateway: usize) {
        let Some(own) = self.gateways.get_mut(gateway) else {
            return;
        };
        let life = own.life;
        if let Some(host) = &mut own.host {
            host.is_serving = false;
            self.after(GRACE, Planned::EndOfGrace(gateway, life));
            self.drain_if_done(gateway);
        }
    }

    fn drain_if_done(&mut self, gateway: usize) {
        let is_busy = self.open.values().any(|open| open.gateway == gateway);
        if let Some(host) = self.host(gateway)
            && !host.is_serving
            && !is_busy
        {
            host.call(Call::Drain);
        }
    }

    /// What gateways hold when everything has been quiet.
    fn end(&mut self) {
        for gateway in 0..self.gateways.len() {
            let Some(host) = self.host(gateway) else {
                continue;
            };
            let counts = host.holds();
            self.note(What::Holds { gateway, counts });
        }
        for gateway in &mut self.gateways {
            if let Some(host) = gateway.host.take() {
                host.kill();
            }
        }
    }

    /// Whether a fault is in the scenario, by its number.
    fn fault_kind(&self, number: usize) -> Option<&'s FaultKind> {
        Some(&self.scenario.faults.get(number)?.kind)
    }
}
