//! The network between gateways and servers: connections that delay, lose and break what is sent.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use super::port::PipeId;
use super::servers::Node;
use super::{Planned, World};
use crate::redis::{ClientId, Output};
use crate::scenario::LinkFault;

/// A connection: the gateway, and the number of the connection there.
pub(super) type ConnectionId = (usize, PipeId);

/// Connections of gateways that live, and the latest of each.
#[derive(Default)]
pub(super) struct Connections {
    open: BTreeMap<(ConnectionId, u64), Connection>,
}

/// A connection with the life of the gateway that it belongs to.
type Key = (ConnectionId, u64);

struct Connection {
    node: Node,
    /// None before the server has accepted it.
    client: Option<ClientId>,
    to_server: Direction,
    to_gateway: Direction,
}

#[derive(Default)]
struct Direction {
    /// What is sent vanishes.
    is_lost: bool,
    /// When the last of what was sent arrives.
    arrives: Duration,
    /// What is on its way, in the order in which it was sent: what has to wait is not overtaken.
    sent: VecDeque<NetworkEvent>,
}

impl Connection {
    fn direction(&mut self, event: &NetworkEvent) -> Option<&mut Direction> {
        match event {
            NetworkEvent::Dial(_) => None,
            NetworkEvent::ToServer(..) | NetworkEvent::EndAtServer(_) => Some(&mut self.to_server),
            NetworkEvent::Accepted(_)
            | NetworkEvent::ToGateway(..)
            | NetworkEvent::EndAtGateway(..) => Some(&mut self.to_gateway),
        }
    }
}

/// Something that arrives.
#[derive(Clone)]
pub(super) enum NetworkEvent {
    /// A connection, at the server.
    Dial(Key),
    /// Word that the server has accepted it.
    Accepted(Key),
    ToServer(Key, Bytes),
    ToGateway(Key, Bytes),
    EndAtServer(Key),
    /// The end of a connection, at the gateway, and why.
    EndAtGateway(Key, ErrorKind),
}

impl NetworkEvent {
    fn key(&self) -> Key {
        match self {
            Self::Dial(key)
            | Self::Accepted(key)
            | Self::ToServer(key, _)
            | Self::ToGateway(key, _)
            | Self::EndAtServer(key)
            | Self::EndAtGateway(key, _) => *key,
        }
    }
}

/// How a connection is at present.
struct Condition {
    slow: Duration,
    /// What arrives has to wait until then.
    stalled_until: Duration,
    /// What is sent is lost: in both directions, or to the gateway alone.
    is_black_hole: bool,
    loses_replies: bool,
    is_refused: bool,
    /// How many of 100 writes break it.
    breaks: u64,
}

impl World<'_> {
    fn key(&self, id: ConnectionId) -> Key {
        (
            id,
            self.gateways.get(id.0).map_or(0, |gateway| gateway.life),
        )
    }

    fn condition(&self, gateway: usize, node: Node) -> Condition {
        let mut condition = Condition {
            slow: Duration::ZERO,
            stalled_until: Duration::ZERO,
            is_black_hole: false,
            loses_replies: false,
            is_refused: false,
            breaks: 0,
        };
        for link in &self.links {
            if !link.concerns(gateway, node) {
                continue;
            }
            match link.what {
                LinkFault::Slow(by) => condition.slow = condition.slow.max(by),
                LinkFault::Stall => {
                    condition.stalled_until = condition.stalled_until.max(link.until);
                }
                LinkFault::HalfOpen => condition.is_black_hole = true,
                LinkFault::Refused => condition.is_refused = true,
                LinkFault::Lossy(percent) => condition.breaks = condition.breaks.max(percent),
                LinkFault::RepliesLost => condition.loses_replies = true,
                LinkFault::Reset => {}
            }
        }
        condition
    }

    /// When something that is sent now arrives.
    fn arrival(&mut self, condition: &Condition) -> Duration {
        let (least, most) = self.scenario.store.latency;
        let latency = self.random.duration(least, most.max(least));
        let more = self.random.duration(Duration::ZERO, condition.slow);
        (self.now + latency + more).max(condition.stalled_until)
    }

    pub(super) fn dialed(&mut self, id: ConnectionId, address: SocketAddr) {
        let key = self.key(id);
        let Some(node) = self.servers.at(address) else {
            return self.refuse(id);
        };
        let condition = self.condition(id.0, node);
        let direction = || Direction {
            is_lost: condition.is_black_hole,
            ..Direction::default()
        };
        let connection = Connection {
            node,
            client: None,
            to_server: direction(),
            to_gateway: direction(),
        };
        self.connections.open.insert(key, connection);
        let at = self.arrival(&condition);
        self.at(at, Planned::Network(NetworkEvent::Dial(key)));
    }

    fn refuse(&mut self, id: ConnectionId) {
        let key = self.key(id);
        let end = NetworkEvent::EndAtGateway(key, ErrorKind::ConnectionRefused);
        self.after(Duration::from_micros(100), Planned::Network(end));
    }

    pub(super) fn wrote(&mut self, id: ConnectionId, bytes: Bytes) {
        let key = self.key(id);
        let Some(connection) = self.connections.open.get(&key) else {
            return;
        };
        let condition = self.condition(id.0, connection.node);
        if self.random.chance(condition.breaks) {
            let part = self.part(&bytes);
            self.send_over(&condition, NetworkEvent::ToServer(key, part));
            return self.break_off(key);
        }
        self.send_over(&condition, NetworkEvent::ToServer(key, bytes));
    }

    pub(super) fn closed(&mut self, id: ConnectionId) {
        let key = self.key(id);
        if let Some(connection) = self.connections.open.get(&key) {
            let condition = self.condition(id.0, connection.node);
            self.send_over(&condition, NetworkEvent::EndAtServer(key));
        }
    }

    /// A gateway died: its machine closes its connections.
    pub(super) fn vanished(&mut self, gateway: usize) {
        let of_it = self.connections.open.keys();
        let of_it = of_it.filter(|((of, _), _)| *of == gateway);
        let keys: Vec<_> = of_it.copied().collect();
        for key in keys {
            if let Some(connection) = self.connections.open.get(&key) {
                let condition = self.condition(gateway, connection.node);
                self.send_over(&condition, NetworkEvent::EndAtServer(key));
            }
        }
    }

    /// Sends something over its connection.
    fn send_over(&mut self, condition: &Condition, event: NetworkEvent) {
        let arrival = self.arrival(condition);
        let connection = self.connections.open.get_mut(&event.key());
        let direction = connection.and_then(|connection| connection.direction(&event));
        if let Some(direction) = direction.filter(|direction| !direction.is_lost) {
            let at = arrival.max(direction.arrives);
            direction.arrives = at;
            direction.sent.push_back(event.clone());
            self.at(at, Planned::Network(event));
        }
    }

    /// What a server does, towards its clients.
    pub(super) fn outputs(&mut self, node: Node, outputs: Vec<Output>) {
        for output in outputs {
            let (Output::Write(client, _) | Output::Close(client)) = &output;
            let mut open = self.connections.open.iter();
            let found = open.find(|(_, connection)| {
                connection.node == node && connection.client == Some(*client)
            });
            let Some((&key, connection)) = found else {
                continue;
            };
            let condition = self.condition(key.0.0, connection.node);
            match output {
                Output::Write(_, bytes) => self.replied(key, &condition, bytes),
                Output::Close(_) => {
                    let end = NetworkEvent::EndAtGateway(key, ErrorKind::UnexpectedEof);
                    self.send_over(&condition, end);
                }
            }
        }
    }

    fn replied(&mut self, key: Key, condition: &Condition, bytes: Bytes) {
        if condition.loses_replies
            && let Some(connection) = self.connections.open.get_mut(&key)
        {
            // What comes after lost bytes never gets to the reader of a stream.
            connection.to_gateway.is_lost = true;
        }
        if self.random.chance(condition.breaks) {
            let part = self.part(&bytes);
            self.send_over(condition, NetworkEvent::ToGateway(key, part));
            return self.break_off(key);
        }
        self.send_over(condition, NetworkEvent::ToGateway(key, bytes));
    }

    fn part(&mut self, bytes: &Bytes) -> Bytes {
        let length = self.random.index(bytes.len());
        bytes.slice(..length)
    }

    /// Both ends of a connection find that it is broken.
    fn break_off(&mut self, key: Key) {
        if let Some(connection) = self.connections.open.get(&key) {
            let condition = self.condition(key.0.0, connection.node);
            self.send_over(&condition, NetworkEvent::EndAtServer(key));
            let end = NetworkEvent::EndAtGateway(key, ErrorKind::ConnectionReset);
            self.send_over(&condition, end);
        }
    }

    /// Breaks the connections that this is true of.
    pub(super) fn break_where(&mut self, is_broken: impl Fn(usize, Node) -> bool) {
        let open = self.connections.open.iter();
        let broken = open.filter(|((id, _), connection)| is_broken(id.0, connection.node));
        let broken: Vec<_> = broken.map(|(key, _)| *key).collect();
        for key in broken {
            self.break_off(key);
        }
    }

    /// What is sent from now on over the connections that this is true of is lost for good.
    pub(super) fn lose_where(&mut self, is_lost: impl Fn(usize, Node) -> bool) {
        for ((id, _), connection) in &mut self.connections.open {
            if is_lost(id.0, connection.node) {
                connection.to_server.is_lost = true;
                connection.to_gateway.is_lost = true;
            }
        }
    }

    /// What arrives instead of this, in the order in which all was sent; nothing if that has to
    /// wait.
    fn arriving(&mut self, event: NetworkEvent) -> Option<NetworkEvent> {
        let key = event.key();
        let Some(connection) = self.connections.open.get(&key) else {
            return Some(event);
        };
        let (node, is_lost) = (connection.node, connection.to_server.is_lost);
        let condition = self.condition(key.0.0, node);
        if condition.stalled_until > self.now {
            self.at(condition.stalled_until, Planned::Network(event));
            return None;
        }
        let at_server = matches!(
            event,
            NetworkEvent::ToServer(..) | NetworkEvent::EndAtServer(_)
        );
        if at_server
            && !is_lost
            && let Some(until) = self.servers.frozen_until(node, self.now)
        {
            self.at(until, Planned::Network(event));
            return None;
        }
        // What was sent before it and had to wait for longer comes first.
        let connection = self.connections.open.get_mut(&key);
        let direction = connection.and_then(|connection| connection.direction(&event));
        let first = direction.and_then(|direction| direction.sent.pop_front());
        Some(first.unwrap_or(event))
    }

    pub(super) fn network(&mut self, event: NetworkEvent) {
        let Some(event) = self.arriving(event) else {
            return;
        };
        let key = event.key();
        let Some(connection) = self.connections.open.get(&key) else {
            // The server knows nothing of it, or no more.
            if let NetworkEvent::EndAtGateway(_, why) = event {
                self.end_at_gateway(key, why);
            }
            return;
        };
        let (node, client) = (connection.node, connection.client);
        let is_lost = (connection.to_server.is_lost, connection.to_gateway.is_lost);
        match event {
            NetworkEvent::Dial(_) => self.dial(key, node, is_lost.0),
            NetworkEvent::Accepted(_) if !is_lost.1 => {
                let (gateway, pipe) = key.0;
                if self.is_alive(key)
                    && let Some(host) = self.host(gateway)
                {
                    host.port.accepted(pipe);
                    host.wake();
                }
            }
            NetworkEvent::ToServer(_, bytes) if !is_lost.0 => {
                if let Some(client) = client {
                    self.receive(node, client, &bytes);
                }
            }
            NetworkEvent::ToGateway(_, bytes) if !is_lost.1 => {
                let (gateway, pipe) = key.0;
                if self.is_alive(key)
                    && let Some(host) = self.host(gateway)
                {
                    host.port.received(pipe, bytes);
                    host.wake();
                }
            }
            NetworkEvent::EndAtServer(_) if !is_lost.0 => {
                if let Some(client) = client {
                    self.servers.close(node, client);
                }
                self.connections.open.remove(&key);
            }
            NetworkEvent::EndAtGateway(_, why) if !is_lost.1 => self.end_at_gateway(key, why),
            _ => {}
        }
    }

    /// Whether the process that a connection belongs to lives.
    fn is_alive(&self, (id, life): Key) -> bool {
        self.gateways
            .get(id.0)
            .is_some_and(|gateway| gateway.life == life)
    }

    fn end_at_gateway(&mut self, key: Key, why: ErrorKind) {
        let (gateway, pipe) = key.0;
        if self.is_alive(key)
            && let Some(host) = self.host(gateway)
        {
            host.port.ended(pipe, why);
            host.wake();
        }
    }

    fn dial(&mut self, key: Key, node: Node, is_lost: bool) {
        if is_lost {
            return;
        }
        let condition = &self.condition(key.0.0, node);
        if condition.is_refused || self.servers.is_down(node) {
            let end = NetworkEvent::EndAtGateway(key, ErrorKind::ConnectionRefused);
            return self.send_over(condition, end);
        }
        // The system accepts for a server that is frozen.
        let accepted = NetworkEvent::Accepted(key);
        self.send_over(condition, accepted);
        match self.servers.open(node) {
            Ok(client) => {
                if let Some(connection) = self.connections.open.get_mut(&key) {
                    connection.client = Some(client);
                }
            }
            Err(refusal) => {
                self.send_over(condition, NetworkEvent::ToGateway(key, refusal));
                let end = NetworkEvent::EndAtGateway(key, ErrorKind::UnexpectedEof);
                self.send_over(condition, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::{Fault, FaultKind, Scenario, Topology};

    /// A gateway's connection to its only server, and what slows it down at times.
    fn scenario() -> Scenario {
        let seeds = (0..).map(Scenario::generate);
        let mut scenarios = seeds.filter(|one| one.store.topology == Topology::Single);
        let mut scenario = scenarios.next().unwrap();
        let link = |at, lasts, what| Fault {
            at: Duration::from_millis(at),
            kind: FaultKind::Link {
                gateway: None,
                server: None,
                lasts: Duration::from_millis(lasts),
                what,
            },
        };
        let freeze = |at, lasts| Fault {
            at: Duration::from_millis(at),
            kind: FaultKind::FreezeServer {
                server: 0,
                lasts: Duration::from_millis(lasts),
            },
        };
        scenario.faults = vec![
            link(20, 60, LinkFault::Slow(Duration::from_millis(50))),
            link(50, 40, LinkFault::Stall),
            freeze(70, 50),
            link(110, 30, LinkFault::Stall),
            freeze(150, 20),
            link(160, 25, LinkFault::Slow(Duration::from_millis(9))),
        ];
        scenario
    }

    /// Bytes that overtake others of their connection have once made a server refuse commands.
    #[test]
    fn nothing_overtakes_what_was_sent_before_it_in_one_direction() {
        let scenario = scenario();
        let mut world = World::new(&scenario, Path::new(""));
        world.plan_faults();
        let id: ConnectionId = (0, 0);
        let key = world.key(id);
        world.dialed(id, "10.0.0.1:6379".parse().unwrap());
        let (mut at_server, mut at_gateway) = (Vec::new(), Vec::new());
        let sent: Vec<u8> = (0..=255).collect();
        for milli in 0..1000 {
            let now = Duration::from_millis(milli);
            while let Some(entry) = world.queue.first_entry()
                && entry.key().0 <= now
            {
                world.now = entry.key().0;
                match entry.remove() {
                    Planned::Network(event) => match world.arriving(event) {
                        Some(NetworkEvent::ToServer(_, bytes)) => at_server.extend(bytes),
                        Some(NetworkEvent::ToGateway(_, bytes)) => at_gateway.extend(bytes),
                        _ => {}
                    },
                    Planned::Fault(event) => world.fault(event).unwrap(),
                    _ => {}
                }
            }
            world.now = now;
            if let Ok(number) = u8::try_from(milli) {
                let bytes = Bytes::copy_from_slice(&[number]);
                world.wrote(id, bytes.clone());
                world.replied(key, &world.condition(0, Node::Server(0)), bytes);
            }
        }
        assert_eq!(at_server, sent);
        assert_eq!(at_gateway, sent);
    }
}
