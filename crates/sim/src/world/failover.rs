//! Failovers and moving slots: what Sentinels and the nodes of a Cluster do among themselves. Who
//! is elected is the world's to say; here is who hears of it, and when.

use std::time::Duration;

use bytes::Bytes;

use super::servers::{NAME, Node, Servers};
use super::{Planned, World};
use crate::redis::{Role, slot_of};
use crate::scenario::Topology;
use crate::trace::What;

/// How long a primary has to be silent before it is replaced, and how much longer that may take.
const DOWN_AFTER: (Duration, Duration) = (Duration::from_millis(1000), Duration::from_millis(1800));

/// How long the steps of a failover by Sentinels take: until the chosen replica is the primary;
/// until the Sentinel that leads has seen that; until it says that the failover is over; until
/// another Sentinel has heard so.
const PROMOTES: (u64, u64) = (10, 150);
const SEES: (u64, u64) = (10, 1000);
const SWITCHES: (u64, u64) = (50, 1500);
const HEARS: (u64, u64) = (10, 2000);

/// How long a primary that was replaced takes writes after it is back: under Sentinels, and in a
/// Cluster, where its peers tell it.
const STAYS: (u64, u64) = (500, 4000);
const STAYS_IN_CLUSTER: (u64, u64) = (20, 1000);

/// How long news takes to a node of a Cluster.
const GOSSIP: (u64, u64) = (5, 800);

/// A step of a failover, or of slots that move.
pub(super) enum Step {
    /// A primary, in its reign, has been silent for long enough.
    Elect(usize, u64),
    /// A replica takes the place of a primary, in an epoch.
    Promote(usize, usize, u64),
    /// The Sentinel that leads sees that a replica is the primary since an epoch.
    Seen(usize, u64),
    /// A Sentinel says that a server is the primary since an epoch.
    Switch(usize, usize, u64),
    /// A server hears that it is not the primary any more.
    Demote(usize),
    /// A node hears that another has taken a third one's place.
    Replaced(usize, usize, usize),
    /// A node hears whose a slot is.
    Owner(usize, u16, usize),
    /// A node hears whether slots have no primary.
    Coverage(usize),
    MoveKey(usize, usize, Bytes),
    /// The first of these slots has moved.
    Moved(Slots),
}

/// Slots that move from one server to another.
pub(super) struct Slots {
    slots: Vec<u16>,
    from: usize,
    to: usize,
    lasts: Duration,
}

impl World<'_> {
    fn soon(&mut self, (least, most): (u64, u64), step: Step) {
        let wait = self.random.millis(least, most);
        self.after(wait, Planned::Failover(step));
    }

    /// A server does not answer for so long.
    pub(super) fn lacks(&mut self, server: usize, lasts: Duration) {
        let wait = self.random.duration(DOWN_AFTER.0, DOWN_AFTER.1);
        if let Some(machine) = self.servers.get(server)
            && lasts > wait
        {
            let step = Step::Elect(server, machine.reign);
            self.after(wait, Planned::Failover(step));
        }
    }

    /// A server answers again.
    pub(super) fn returned(&mut self, server: usize) {
        let current = self.servers.current(server);
        let machine = self.servers.get(server);
        let machine = machine.map(|machine| {
            machine.is_failed = false;
            &*machine
        });
        if machine.is_some_and(|machine| machine.primary.is_some()) {
            return self.servers.synchronize(current);
        }
        if current != server {
            return match self.servers.topology {
                Topology::Cluster { .. } => self.soon(STAYS_IN_CLUSTER, Step::Demote(server)),
                _ => self.soon(STAYS, Step::Demote(server)),
            };
        }
        self.servers.synchronize(server);
        self.tell_coverage();
    }

    /// An operator asks for a failover.
    pub(super) fn fail_over(&mut self, server: usize) {
        let primary = self.servers.current(server);
        if let Topology::Cluster { .. } = self.servers.topology {
            // The replica waits until it has everything.
            self.servers.synchronize(primary);
        }
        self.elect(primary);
        if let Topology::Cluster { .. } = self.servers.topology
            && self.servers.current(primary) != primary
        {
            self.demote(primary);
        }
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Elect(server, reign) => {
                let now = self.now;
                let is_lacking = self.servers.get(server).is_some_and(|machine| {
                    machine.reign == reign && (machine.is_down() || machine.is_frozen(now))
                });
                if is_lacking && self.servers.current(server) == server {
                    if let Some(machine) = self.servers.get(server) {
                        machine.is_failed = true;
                    }
                    self.elect(server);
                    self.tell_coverage();
                }
            }
            Step::Promote(server, replica, epoch) => self.promote(server, replica, epoch),
            Step::Seen(replica, epoch) => {
                let (host, port) = Servers::address(replica);
                let outputs = self
                    .servers
                    .sentinel(0, |sentinel| sentinel.promote(NAME, (&host, port), epoch));
                self.outputs(Node::Sentinel(0), outputs);
                self.soon(SWITCHES, Step::Switch(0, replica, epoch));
            }
            Step::Switch(sentinel, primary, epoch) => {
                let (host, port) = Servers::address(primary);
                let outputs = self.servers.sentinel(sentinel, |sentinel| {
                    sentinel.switch(NAME, (&host, port), epoch)
                });
                self.outputs(Node::Sentinel(sentinel), outputs);
                for other in 1..self.servers.sentinels() {
                    if sentinel == 0 {
                        self.soon(HEARS, Step::Switch(other, primary, epoch));
                    }
                }
            }
            Step::Demote(server) => self.demote(server),
            Step::Replaced(node, old, new) => self.servers.replace(node, old, new),
            // The owner may have been replaced since it was told of.
            Step::Owner(node, slot, owner) => {
                let owner = self.servers.current(owner);
                self.servers.give(node, slot, owner);
            }
            Step::Coverage(node) => self.servers.cover(node, self.lacks_primary()),
            Step::MoveKey(from, to, key) => self.move_key(from, to, &key),
            Step::Moved(slots) => self.end_move(slots),
        }
    }

    /// Chooses the replica that has heard the most.
    fn elect(&mut self, server: usize) {
        let now = self.now;
        let candidates = (0..self.servers.count()).filter(|index| {
            let machine = self.servers.get_ref(*index);
            machine.is_some_and(|machine| {
                machine.primary == Some(server) && !machine.is_down() && !machine.is_frozen(now)
            })
        });
        let behind = |index: &usize| self.servers.get_ref(*index).map(|machine| machine.behind);
        let Some(replica) = candidates.min_by_key(behind) else {
            return;
        };
        self.servers.epoch_of_failover += 1;
        let epoch = self.servers.epoch_of_failover;
        if let Topology::Cluster { .. } = self.servers.topology {
            return self.promote(server, replica, epoch);
        }
        let (host, port) = Servers::address(replica);
        let outputs = self
            .servers
            .sentinel(0, |sentinel| sentinel.choose(NAME, (&host, port)));
        self.outputs(Node::Sentinel(0), outputs);
        self.soon(PROMOTES, Step::Promote(server, replica, epoch));
    }

    fn promote(&mut self, old: usize, new: usize, epoch: u64) {
        let Some(lost_writes) = self.servers.promote(old, new) else {
            return;
        };
        self.note(What::Promoted {
            server: new,
            replaced: old,
            lost_writes,
        });
        if let Topology::Cluster { .. } = self.servers.topology {
            self.servers.replace(new, old, new);
            for node in 0..self.servers.count() {
                if node != old && node != new {
                    self.soon(GOSSIP, Step::Replaced(node, old, new));
                }
            }
        } else {
            self.cut_off(new);
            self.soon(SEES, Step::Seen(new, epoch));
        }
        let now = self.now;
        let is_back = self
            .servers
            .get(old)
            .is_some_and(|machine| !machine.is_down() && !machine.is_frozen(now));
        if is_back {
            self.returned(old);
        }
    }

    /// Closes the connections of a server, as Sentinels do when its role changes.
    fn cut_off(&mut self, server: usize) {
        if let Some(machine) = self.servers.get(server) {
            let outputs = machine.server.close_all();
            self.outputs(Node::Server(server), outputs);
        }
    }

    /// A server that was replaced becomes a replica, and takes the data of the primary.
    fn demote(&mut self, server: usize) {
        let current = self.servers.current(server);
        let now = self.now;
        let Some(machine) = self.servers.get(server) else {
            return;
        };
        if current == server || machine.is_down() || machine.is_frozen(now) {
            return;
        }
        let (host, port) = Servers::address(current);
        machine.primary = Some(current);
        machine.behind = 0;
        machine.server.set_role(Role::Replica {
            host,
            port,
            is_linked: true,
        });
        self.servers.synchronize(current);
        match self.servers.topology {
            Topology::Cluster { .. } => self.servers.replace(server, server, current),
            _ => self.cut_off(server),
        }
    }

    /// Nodes of a Cluster hear whether all slots have a primary.
    fn tell_coverage(&mut self) {
        if !matches!(self.servers.topology, Topology::Cluster { .. }) {
            return;
        }
        for node in 0..self.servers.count() {
            self.soon(GOSSIP, Step::Coverage(node));
        }
    }

    /// Whether slots have no primary: one that is silent for a moment still counts.
    fn lacks_primary(&self) -> bool {
        let mut shards = 0..self.servers.topology.primaries();
        shards.any(|shard| {
            let primary = self.servers.get_ref(self.servers.current(shard));
            primary.is_none_or(|machine| machine.is_failed)
        })
    }

    /// Slots that are in use move first.
    pub(super) fn move_slots(&mut self, count: u16, from: usize, to: usize, lasts: Duration) {
        let Some(machine) = self.servers.get(from) else {
            return;
        };
        let Some(view) = machine.server.cluster_mut() else {
            return;
        };
        let owned = view.owners.iter().filter(|(_, owner)| **owner == from);
        let owned: Vec<u16> = owned.map(|(slot, _)| *slot).collect();
        let used = machine.server.keys().map(|key| slot_of(key));
        let used: std::collections::BTreeSet<u16> = used.collect();
        let is_owned = |slot: &u16| owned.binary_search(slot).is_ok();
        let unused = owned.iter().filter(|slot| !used.contains(slot)).copied();
        let slots = used.iter().copied().filter(is_owned).chain(unused);
        let mut slots: Vec<u16> = slots.take(count.into()).collect();
        slots.reverse();
        self.begin_move(Slots {
            slots,
            from,
            to,
            lasts,
        });
    }

    fn begin_move(&mut self, slots: Slots) {
        let (from, to) = self.movers(&slots);
        let lasts = slots.lasts;
        let Some(slot) = slots.slots.last().copied() else {
            return;
        };
        if !self.servers.is_primary(from) || !self.servers.is_primary(to) {
            return;
        }
        self.servers.open_slot(slot, from, to);
        let Some(machine) = self.servers.get(from) else {
            return;
        };
        let keys = machine.server.keys().filter(|key| slot_of(key) == slot);
        let keys: Vec<Bytes> = keys.cloned().collect();
        for key in keys {
            let wait = self.random.duration(Duration::ZERO, lasts);
            let step = Step::MoveKey(from, to, key);
            self.after(wait, Planned::Failover(step));
        }
        self.after(lasts, Planned::Failover(Step::Moved(slots)));
    }

    /// From which primary slots move to which. Who moves them goes on with those that have taken the
    /// places of the ones that were named.
    fn movers(&self, slots: &Slots) -> (usize, usize) {
        (
            self.servers.current(slots.from),
            self.servers.current(slots.to),
        )
    }

    fn move_key(&mut self, from: usize, to: usize, key: &Bytes) {
        if !self.servers.is_primary(from) || !self.servers.is_primary(to) {
            return;
        }
        let (there, here) = (
            self.servers.clock(from, self.now),
            self.servers.clock(to, self.now),
        );
        let moved = self
            .servers
            .get(from)
            .and_then(|machine| machine.server.take_key(key, there));
        if let (Some(moved), Some(machine)) = (moved, self.servers.get(to)) {
            machine.server.put_key(key, &moved, here);
        }
        self.replicate(from);
        self.replicate(to);
    }

    fn end_move(&mut self, mut slots: Slots) {
        let (from, to) = self.movers(&slots);
        let Some(slot) = slots.slots.pop() else {
            return;
        };
        // What came since the slot was opened.
        if let Some(machine) = self.servers.get(from) {
            let keys = machine.server.keys().filter(|key| slot_of(key) == slot);
            let keys: Vec<Bytes> = keys.cloned().collect();
            for key in keys {
                self.move_key(from, to, &key);
            }
        }
        for node in [from, to] {
            self.servers.give(node, slot, to);
        }
        if slot == 0 {
            self.note(What::SlotZeroMoved { from, to });
        }
        for node in 0..self.servers.count() {
            if node != from && node != to {
                self.soon(GOSSIP, Step::Owner(node, slot, to));
            }
        }
        self.begin_move(slots);
    }
}
