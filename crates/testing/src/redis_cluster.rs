//! A real Redis Cluster on loopback.

use std::time::Duration;

use crate::{RedisServer, eventually, free_port};

const SLOTS: usize = 16_384;

/// How long a node may be silent before the others take it for gone.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Primaries that share all slots alike, and replicas of them. Its servers end with it, and at the
/// latest with the process.
pub struct RedisCluster {
    nodes: Vec<Node>,
    primaries: usize,
}

struct Node {
    server: RedisServer,
    port: u16,
    /// Where it listens for other servers.
    bus: u16,
}

impl RedisCluster {
    /// Starts three primaries, and as many replicas of each as asked for; returns when all slots
    /// are served and all replicas are in step.
    pub fn start(replicas: usize) -> Self {
        let primaries = 3;
        let nodes = (0..primaries * (1 + replicas)).map(|_| Node::launch());
        let mut nodes: Vec<_> = nodes.collect();
        for node in &mut nodes {
            node.server.await_ready();
        }
        let cluster = Self { nodes, primaries };
        cluster.create();
        cluster
    }

    fn create(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            node.done(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        for primary in 0..self.primaries {
            let (first, last) = self.slots(primary);
            let (first, last) = (first.to_string(), last.to_string());
            self.nodes[primary].done(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for node in &self.nodes[1..] {
            let (port, bus) = (node.port.to_string(), node.bus.to_string());
            self.nodes[0].done(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let all = self.nodes.len();
        self.await_all("all nodes know each other", |node| {
            let known = node.command(&["CLUSTER", "NODES"]);
            let met = known.lines().filter(|line| line.contains(" connected"));
            met.filter(|line| !line.contains("handshake")).count() == all
        });
        for replica in self.primaries..all {
            let primary = self.id(replica % self.primaries);
            self.nodes[replica].done(&["CLUSTER", "REPLICATE", &primary]);
        }
        let ids: Vec<_> = (0..self.primaries).map(|node| self.id(node)).collect();
        self.await_all("the Cluster works", |node| {
            let slots = node.command(&["CLUSTER", "SLOTS"]);
            node.command(&["CLUSTER", "INFO"])
                .contains("cluster_state:ok")
                && ids.iter().all(|id| slots.contains(id.as_str()))
        });
        self.await_replicas();
    }

    /// Waits until all replicas are in step.
    pub fn await_replicas(&self) {
        let replicas = &self.nodes[self.primaries..];
        let is_in_step = |node: &Node| {
            let state = node.command(&["INFO", "replication"]);
            state.contains("master_link_status:up")
        };
        eventually("replicas are in step", || {
            replicas.iter().all(is_in_step).then_some(())
        });
    }

    /// Waits until a replica has got all that its primary has done.
    pub fn await_in_step(&self, primary: usize, replica: usize) {
        let done = |node: usize| {
            let told = self.command(node, &["INFO", "replication"]);
            let offset = |line: &str| Some(line.strip_prefix("master_repl_offset:")?.to_owned());
            told.lines().find_map(offset)
        };
        eventually("the replica is in step", || {
            (done(primary) == done(replica)).then_some(())
        });
    }

    fn await_all(&self, what: &str, holds: impl Fn(&Node) -> bool) {
        eventually(what, || self.nodes.iter().all(&holds).then_some(()));
    }

    /// The first and the last slot of a primary, at the start.
    pub fn slots(&self, primary: usize) -> (usize, usize) {
        let of = |primary| primary * SLOTS / self.primaries;
        (of(primary), of(primary + 1) - 1)
    }

    /// Which primary serves a slot, at the start.
    pub fn primary_of(&self, slot: u16) -> usize {
        let serves = |primary: &usize| self.slots(*primary).1 >= usize::from(slot);
        (0..self.primaries).find(serves).expect("a slot")
    }

    /// The URLs of the primaries.
    pub fn urls(&self) -> Vec<String> {
        let primaries = self.nodes[..self.primaries].iter();
        primaries
            .map(|node| format!("redis://127.0.0.1:{}", node.port))
            .collect()
    }

    /// The address of a server.
    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].port)
    }

    /// The replicas of a primary, at the start.
    pub fn replicas_of(&self, primary: usize) -> impl Iterator<Item = usize> {
        let (primaries, all) = (self.primaries, self.nodes.len());
        (primaries..all).filter(move |node| node % primaries == primary)
    }

    /// The reply of a server to a command, as it wrote it.
    pub fn command(&self, node: usize, words: &[&str]) -> String {
        self.nodes[node].command(words)
    }

    /// Kills a server at once.
    pub fn kill(&self, node: usize) {
        self.nodes[node].server.signal("KILL");
    }

    /// Stops a server without closing its connections.
    pub fn stop(&self, node: usize) {
        self.nodes[node].server.stop();
    }

    /// Lets a stopped server go on.
    pub fn resume(&self, node: usize) {
        self.nodes[node].server.resume();
    }

    /// The id of a server.
    fn id(&self, node: usize) -> String {
        let reply = self.nodes[node].command(&["CLUSTER", "MYID"]);
        reply.lines().nth(1).expect("an id").to_owned()
    }

    /// Begins to move a slot from one primary to another: from now on keys that are not there any
    /// more are asked for at the other.
    pub fn begin_migration(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (from_id, to_id) = (self.id(from), self.id(to));
        self.nodes[to].done(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        self.nodes[from].done(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Moves the keys of a slot.
    pub fn migrate_keys(&self, slot: u16, from: usize, to: usize) {
        let port = self.nodes[to].port.to_string();
        let slot = slot.to_string();
        let found = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
        let lines: Vec<_> = found.lines().collect();
        let keys = lines.iter().filter(|line| line.contains(':'));
        for key in keys.filter(|line| !line.starts_with(['$', '*', ':', '+'])) {
            let moved = ["MIGRATE", "127.0.0.1", &port, key, "0", "10000"];
            let reply = self.nodes[from].command(&moved);
            assert!(
                reply.starts_with("+OK") || reply.starts_with("+NOKEY"),
                "{reply}"
            );
        }
    }

    /// Ends a migration.
    pub fn end_migration(&self, slot: u16, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to));
        for node in [to, from] {
            self.nodes[node].done(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    /// How often all servers together have carried out a command.
    pub fn calls(&self, command: &str) -> u64 {
        let nodes = self.nodes.iter();
        nodes.map(|node| node.server.calls(command)).sum()
    }
}

impl Node {
    fn launch() -> Self {
        let (port, bus) = (free_port(), free_port());
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let server = RedisServer::launch(|_| {
            let words = [
                ("--port", port.to_string().as_str()),
                ("--cluster-port", &bus.to_string()),
                ("--bind", "127.0.0.1"),
                ("--cluster-enabled", "yes"),
                ("--cluster-node-timeout", &timeout),
                ("--cluster-require-full-coverage", "no"),
                ("--cluster-allow-replica-migration", "no"),
                ("--repl-diskless-sync-delay", "0"),
                ("--enable-debug-command", "yes"),
            ]
            .map(|(key, value)| [key.to_owned(), value.to_owned()]);
            words.into_iter().flatten().collect()
        });
        Self { server, port, bus }
    }

    fn done(&self, words: &[&str]) {
        let reply = self.command(words);
        assert!(reply.starts_with("+OK"), "{words:?}: {reply}");
    }

    fn command(&self, words: &[&str]) -> String {
        self.server.command(words)
    }
}
