//! The Redis servers, and how they replicate.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;

use super::host::ClockRate;
use super::{Planned, World};
use crate::redis::{
    ClientId, ClusterNode, ClusterView, Config, EMPTY_BYTES, Effect, Eviction, Output, Role, SLOTS,
    Sentinel, Server, Snapshot, Watched,
};
use crate::scenario::{Scenario, Topology};

const PORT: u16 = 6379;

const SENTINEL_PORT: u16 = 26379;

/// The name by which Sentinels know the primary.
pub(super) const NAME: &str = "main";

/// How often a server looks for keys that have expired.
const EXPIRES_EVERY: Duration = Duration::from_secs(1);

/// A server, by its index in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    /// One that holds buckets.
    Server(usize),
    Sentinel(usize),
}

/// Something that happens at a server.
pub(super) enum ServerEvent {
    /// Looks for keys that have expired.
    Expire,
    /// A write of the primary, in its life, gets to the replica.
    Replicate(usize, u64, usize, Effect),
}

pub(super) struct Servers {
    all: Vec<Machine>,
    sentinels: Vec<Sentinel>,
    pub(super) topology: Topology,
    /// The primary of each share of the keys.
    primaries: Vec<usize>,
    pub(super) epoch_of_failover: u64,
    /// Wall time at the beginning.
    epoch: u64,
}

pub(super) struct Machine {
    pub(super) server: Server,
    pace: ClockRate,
    ahead: i64,
    /// Until when it is frozen.
    pub(super) frozen_until: Option<Duration>,
    /// How many faults keep it down.
    pub(super) downs: u32,
    /// Whether it has not answered for so long that others hold it for failed.
    pub(super) is_failed: bool,
    /// What was kept of its data, by the fault that keeps it.
    pub(super) kept: BTreeMap<usize, Snapshot>,
    pub(super) primary: Option<usize>,
    /// Counts the times that it began to be a primary.
    pub(super) reign: u64,
    /// When the last write that was sent to it arrives, if it is a replica.
    arrives: Duration,
    /// Writes that are on their way to it.
    pub(super) behind: u64,
}

impl Servers {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let topology = scenario.store.topology;
        let count = topology.servers();
        let all = (0..count).map(|index| {
            let clock = scenario.store.clocks.get(index).copied();
            let clock = clock.unwrap_or_default();
            Machine {
                server: Server::new(Config {
                    is_replicated: topology.replicas() > 0,
                    ..Config::default()
                }),
                pace: ClockRate {
                    began: Duration::ZERO,
                    drift: clock.drift,
                },
                ahead: clock.ahead,
                frozen_until: None,
                downs: 0,
                is_failed: false,
                kept: BTreeMap::new(),
                primary: topology.primary_of(index),
                reign: 0,
                arrives: Duration::ZERO,
                behind: 0,
            }
        });
        let sentinels = match topology {
            Topology::Sentinel { sentinels, .. } => sentinels,
            _ => 0,
        };
        let sentinels = (0..sentinels).map(|_| {
            let mut sentinel = Sentinel::new(Vec::new());
            let (host, port) = Self::address(0);
            sentinel.watch(NAME, Watched::new(&host, port));
            sentinel
        });
        let mut servers = Self {
            all: all.collect(),
            sentinels: sentinels.collect(),
            topology,
            primaries: (0..topology.primaries()).collect(),
            epoch_of_failover: 0,
            epoch: scenario.epoch,
        };
        servers.assign_roles();
        servers
    }

    fn assign_roles(&mut self) {
        let views = matches!(self.topology, Topology::Cluster { .. });
        let nodes = (0..self.all.len()).map(|index| {
            let (host, port) = Self::address(index);
            ClusterNode {
                id: format!("{:040x}", index + 1),
                host,
                port,
                primary: self.topology.primary_of(index),
            }
        });
        let nodes: Vec<_> = nodes.collect();
        let primaries = self.topology.primaries();
        for (index, machine) in self.all.iter_mut().enumerate() {
            if let Some(primary) = machine.primary {
                let (host, port) = Self::address(primary);
                machine.server.set_role(Role::Replica {
                    host,
                    port,
                    is_linked: true,
                });
            }
            if !views {
                continue;
            }
            let mut view = ClusterView::new(index, nodes.clone());
            for slot in 0..SLOTS {
                let owner = usize::from(slot) * primaries / usize::from(SLOTS);
                view.owners.insert(slot, owner);
            }
            machine.server.set_cluster(Some(view));
        }
    }

    /// Where a server is, as others say it.
    pub(super) fn address(index: usize) -> (String, u16) {
        (Self::host(index).to_string(), PORT)
    }

    pub(super) fn get_ref(&self, index: usize) -> Option<&Machine> {
        self.all.get(index)
    }

    pub(super) fn sentinels(&self) -> usize {
        self.sentinels.len()
    }

    /// Has a Sentinel do something.
    pub(super) fn sentinel(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut Sentinel) -> Vec<Output>,
    ) -> Vec<Output> {
        self.sentinels.get_mut(index).map(act).unwrap_or_default()
    }

    /// Which share of the keys a server has.
    fn share(&self, index: usize) -> usize {
        self.topology.primary_of(index).unwrap_or(index)
    }

    /// The primary of a server's share of the keys.
    pub(super) fn current(&self, index: usize) -> usize {
        let primary = self.primaries.get(self.share(index));
        primary.copied().unwrap_or(index)
    }

    pub(super) fn is_primary(&self, index: usize) -> bool {
        self.current(index) == index && self.get_ref(index).is_some_and(|own| !own.is_down())
    }

    /// Gives the replicas of a server all that it has.
    pub(super) fn synchronize(&mut self, primary: usize) {
        let Some(machine) = self.all.get_mut(primary) else {
            return;
        };
        // What is on its way is in the snapshot.
        machine.reign += 1;
        let snapshot = machine.server.snapshot();
        for replica in &mut self.all {
            if replica.primary == Some(primary) && !replica.is_down() {
                replica.server.load(&snapshot);
                replica.behind = 0;
            }
        }
    }

    /// A replica takes the place of a primary. Tells how many writes it has not heard of.
    pub(super) fn promote(&mut self, old: usize, new: usize) -> Option<u64> {
        let share = self.share(old);
        let current = self
            .primaries
            .get_mut(share)
            .filter(|current| **current == old)?;
        let machine = self.all.get_mut(new).filter(|machine| !machine.is_down())?;
        *current = new;
        machine.primary = None;
        machine.server.set_role(Role::Primary {
            replicas: Vec::new(),
        });
        let lost = std::mem::take(&mut machine.behind);
        for replica in &mut self.all {
            if replica.primary == Some(old) {
                replica.primary = Some(new);
            }
        }
        self.synchronize(new);
        Some(lost)
    }

    fn view(&mut self, node: usize) -> Option<&mut ClusterView> {
        self.all.get_mut(node)?.server.cluster_mut()
    }

    /// A node of a Cluster knows that one has taken another's place.
    pub(super) fn replace(&mut self, node: usize, old: usize, new: usize) {
        let Some(view) = self.view(node) else {
            return;
        };
        for owner in view.owners.values_mut() {
            if *owner == old {
                *owner = new;
            }
        }
        for (index, known) in view.nodes.iter_mut().enumerate() {
            if index == new {
                known.primary = None;
            } else if index == old || known.primary == Some(old) {
                known.primary = Some(new);
            }
        }
    }

    /// A node knows whose a slot is.
    pub(super) fn give(&mut self, node: usize, slot: u16, owner: usize) {
        if let Some(view) = self.view(node) {
            view.owners.insert(slot, owner);
            view.migrating.remove(&slot);
            view.importing.remove(&slot);
        }
    }

    /// A slot begins to move.
    pub(super) fn open_slot(&mut self, slot: u16, from: usize, to: usize) {
        if let Some(view) = self.view(to) {
            view.importing.insert(slot, from);
        }
        if let Some(view) = self.view(from) {
            view.migrating.insert(slot, to);
        }
    }

    /// A node knows whether slots have no primary.
    pub(super) fn cover(&mut self, node: usize, is_down: bool) {
        if let Some(view) = self.view(node) {
            view.is_down = is_down;
        }
    }

    pub(super) fn get(&mut self, index: usize) -> Option<&mut Machine> {
        self.all.get_mut(index)
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn host(index: usize) -> Ipv4Addr {
        let [.., own] = (index + 1).to_be_bytes();
        Ipv4Addr::new(10, 0, 0, own)
    }

    fn sentinel_host(index: usize) -> Ipv4Addr {
        let [.., own] = (index + 1).to_be_bytes();
        Ipv4Addr::new(10, 0, 1, own)
    }

    pub(super) fn at(&self, address: SocketAddr) -> Option<Node> {
        let is_server = |index: &usize| address == (Self::host(*index), PORT).into();
        let is_sentinel = |index: &usize| {
            let own = (Self::sentinel_host(*index), SENTINEL_PORT);
            address == own.into()
        };
        let server = (0..self.all.len()).find(is_server).map(Node::Server);
        let sentinel = || (0..self.sentinels.len()).find(is_sentinel);
        server.or_else(|| sentinel().map(Node::Sentinel))
    }

    /// Where Redis is, as the configurations say it.
    pub(super) fn yaml(&self) -> String {
        match self.topology {
            Topology::Memory => String::new(),
            Topology::Single => format!("url: redis://{}:{PORT}", Self::host(0)),
            Topology::Sentinel { sentinels, .. } => {
                let nodes = (0..sentinels).map(|index| {
                    let host = Self::sentinel_host(index);
                    format!("\"redis://{host}:{SENTINEL_PORT}\"")
                });
                let nodes: Vec<_> = nodes.collect();
                format!(
                    "sentinel: {{nodes: [{}], primary: {NAME}}}",
                    nodes.join(", ")
                )
            }
            Topology::Cluster { .. } => {
                let nodes = (0..self.all.len())
                    .map(|index| format!("\"redis://{}:{PORT}\"", Self::host(index)));
                let nodes: Vec<_> = nodes.collect();
                format!("cluster: {{nodes: [{}]}}", nodes.join(", "))
            }
        }
    }

    pub(super) fn clock(&self, index: usize, now: Duration) -> Duration {
        let Some(machine) = self.all.get(index) else {
            return now;
        };
        let passed = machine.pace.own(now);
        let ahead = Duration::from_nanos(machine.ahead.unsigned_abs());
        let unadjusted = Duration::from_nanos(self.epoch) + passed;
        match machine.ahead {
            0.. => unadjusted + ahead,
            _ => unadjusted.saturating_sub(ahead),
        }
    }

    /// Until when a server is frozen, if it is.
    pub(super) fn frozen_until(&self, node: Node, now: Duration) -> Option<Duration> {
        let Node::Server(index) = node else {
            return None;
        };
        let until = self.all.get(index)?.frozen_until;
        until.filter(|until| *until > now)
    }

    pub(super) fn is_down(&self, node: Node) -> bool {
        match node {
            Node::Server(index) => self.all.get(index).is_none_or(Machine::is_down),
            Node::Sentinel(_) => false,
        }
    }

    pub(super) fn open(&mut self, node: Node) -> Result<ClientId, Bytes> {
        let refused = Err(Bytes::new());
        match node {
            Node::Server(index) => {
                let machine = self.all.get_mut(index);
                machine.map_or(refused, |machine| machine.server.open())
            }
            Node::Sentinel(index) => {
                let sentinel = self.sentinels.get_mut(index);
                sentinel.map_or(refused, Sentinel::open)
            }
        }
    }

    pub(super) fn close(&mut self, node: Node, client: ClientId) {
        match node {
            Node::Server(index) => {
                if let Some(machine) = self.all.get_mut(index) {
                    machine.server.close(client);
                }
            }
            Node::Sentinel(index) => {
                if let Some(sentinel) = self.sentinels.get_mut(index) {
                    sentinel.close(client);
                }
            }
        }
    }

    /// Sets the clock of a server ahead.
    pub(super) fn step(&mut self, index: usize, by: i64) {
        if let Some(machine) = self.all.get_mut(index) {
            machine.ahead = machine.ahead.saturating_add(by);
        }
    }
}

impl Machine {
    pub(super) fn is_down(&self) -> bool {
        self.downs > 0
    }

    pub(super) fn is_frozen(&self, now: Duration) -> bool {
        self.frozen_until.is_some_and(|until| until > now)
    }
}

impl World<'_> {
    pub(super) fn receive(&mut self, node: Node, client: ClientId, bytes: &Bytes) {
        let index = match node {
            Node::Server(index) => index,
            Node::Sentinel(index) => {
                let now = Duration::from_nanos(self.scenario.epoch) + self.now;
                let receive = |own: &mut Sentinel| own.receive(client, bytes, now);
                let outputs = self.servers.sentinel(index, receive);
                return self.outputs(node, outputs);
            }
        };
        let now = self.servers.clock(index, self.now);
        let outputs = match self.servers.get(index) {
            Some(machine) if !machine.is_down() => machine.server.receive(client, bytes, now),
            _ => Vec::new(),
        };
        self.outputs(node, outputs);
        self.replicate(index);
    }

    /// Deletes all data of a server, as an operator does.
    pub(super) fn flush(&mut self, index: usize) {
        let now = self.servers.clock(index, self.now);
        if let Some(machine) = self.servers.get(index)
            && let Ok(client) = machine.server.open()
        {
            let flush = b"*1\r\n$8\r\nFLUSHALL\r\n";
            machine.server.receive(client, flush, now);
            machine.server.close(client);
        }
        self.replicate(index);
    }

    /// Has a primary evict the keys that expire next, until this much of its data is left. Replicas
    /// evict nothing by themselves (`replica-ignore-maxmemory`).
    pub(super) fn evict(&mut self, index: usize, percent: u64) {
        let now = self.servers.clock(index, self.now);
        if let Some(machine) = self.servers.get(index)
            && machine.server.is_primary()
            && let Ok(client) = machine.server.open()
        {
            let server = &mut machine.server;
            let before = server.config_mut().clone();
            let data = server.used_memory() - EMPTY_BYTES;
            let left = data * usize::try_from(percent).unwrap_or(100) / 100;
            server.config_mut().max_memory = Some(EMPTY_BYTES + left);
            server.config_mut().eviction = Eviction::VolatileTtl;
            server.receive(client, b"*1\r\n$4\r\nPING\r\n", now);
            server.close(client);
            *server.config_mut() = before;
        }
        self.replicate(index);
    }

    /// Sends what a server has changed to its replicas.
    pub(super) fn replicate(&mut self, from: usize) {
        let Some(lag) = self.servers.topology.lag() else {
            return;
        };
        let Some(primary) = self.servers.get(from) else {
            return;
        };
        let reign = primary.reign;
        let effects: Vec<Effect> = primary.server.drain_replication();
        for effect in effects {
            for to in 0..self.servers.count() {
                let late = self.random.duration(lag / 2, lag);
                let at = self.now + late;
                if let Some(replica) = self.servers.get(to)
                    && replica.primary == Some(from)
                {
                    replica.arrives = replica.arrives.max(at);
                    replica.behind += 1;
                    let at = replica.arrives;
                    let event = ServerEvent::Replicate(from, reign, to, effect.clone());
                    self.at(at, Planned::Server(event));
                }
            }
        }
    }

    pub(super) fn server(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Expire => {
                for index in 0..self.servers.count() {
                    let now = self.servers.clock(index, self.now);
                    let at = self.now;
                    if let Some(machine) = self.servers.get(index)
                        && !machine.is_down()
                        && machine.frozen_until.is_none_or(|until| until <= at)
                    {
                        machine.server.expire(now);
                    }
                    self.replicate(index);
                }
                self.after(EXPIRES_EVERY, Planned::Server(ServerEvent::Expire));
            }
            ServerEvent::Replicate(from, reign, to, effect) => {
                let now = self.servers.clock(to, self.now);
                let is_same = self
                    .servers
                    .get(from)
                    .is_some_and(|from| from.reign == reign);
                if let Some(replica) = self.servers.get(to)
                    && replica.primary == Some(from)
                    && is_same
                {
                    replica.behind = replica.behind.saturating_sub(1);
                    replica.server.apply(&effect, now);
                }
            }
        }
    }
}

impl Topology {
    /// How many replicas each primary has.
    fn replicas(self) -> usize {
        match self {
            Self::Memory | Self::Single => 0,
            Self::Sentinel { replicas, .. } | Self::Cluster { replicas, .. } => replicas,
        }
    }

    /// How long a write takes to a replica, at most.
    fn lag(self) -> Option<Duration> {
        match self {
            Self::Memory | Self::Single => None,
            Self::Sentinel { lag, .. } | Self::Cluster { lag, .. } => Some(lag),
        }
    }

    /// How many primaries there are at the beginning.
    pub(super) fn primaries(self) -> usize {
        match self {
            Self::Memory => 0,
            Self::Single | Self::Sentinel { .. } => 1,
            Self::Cluster { primaries, .. } => primaries,
        }
    }

    /// The primary of a server, if that is a replica at the beginning.
    fn primary_of(self, index: usize) -> Option<usize> {
        let replica = index.checked_sub(self.primaries())?;
        replica.checked_div(self.replicas())
    }
}
