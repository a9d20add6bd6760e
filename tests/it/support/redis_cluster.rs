//! A real Redis Cluster on loopback, for tests.

#![allow(
    dead_code,
    reason = "no one of the tests that share this uses all of it"
)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test without its servers fails"
)]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::redis_server::free_port;

const START_DEADLINE: Duration = Duration::from_secs(60);

const SLOTS: usize = 16_384;

/// How long a node may be silent before the others take it for gone.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Primaries that share all slots alike, and replicas of them. Its servers end with it, and at the
/// latest with the process.
pub(crate) struct RedisCluster {
    _folder: TempDir,
    nodes: Vec<ClusterServer>,
    primaries: usize,
}

/// One server of it.
struct ClusterServer {
    port: u16,
    /// Where it listens for other servers.
    bus: u16,
    pid: u32,
    keeper: Child,
    /// When this is closed, the server is killed.
    _alive: ChildStdin,
}

impl RedisCluster {
    /// Starts three primaries, and as many replicas of each as asked for; returns when all slots
    /// are served and all replicas are in step.
    pub(crate) fn start(replicas: usize) -> Self {
        let folder = TempDir::with_prefix("weir-cluster-").expect("a temporary folder");
        let primaries = 3;
        let nodes = (0..primaries * (1 + replicas)).map(|_| ClusterServer::start(&folder));
        let nodes: Vec<_> = nodes.collect();
        let cluster = Self {
            nodes,
            _folder: folder,
            primaries,
        };
        cluster.create();
        cluster
    }

    fn create(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            node.await_ready();
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
        self.eventually("all nodes know each other", |node| {
            let known = node.command(&["CLUSTER", "NODES"]);
            let met = known.lines().filter(|line| line.contains(" connected"));
            met.filter(|line| !line.contains("handshake")).count() == all
        });
        for replica in self.primaries..all {
            let primary = self.id(replica % self.primaries);
            self.nodes[replica].done(&["CLUSTER", "REPLICATE", &primary]);
        }
        let ids: Vec<_> = (0..self.primaries).map(|node| self.id(node)).collect();
        self.eventually("the Cluster works", |node| {
            let slots = node.command(&["CLUSTER", "SLOTS"]);
            node.command(&["CLUSTER", "INFO"])
                .contains("cluster_state:ok")
                && ids.iter().all(|id| slots.contains(id.as_str()))
        });
        self.await_replicas();
    }

    /// Waits until all replicas are in step.
    pub(crate) fn await_replicas(&self) {
        let replicas = &self.nodes[self.primaries..];
        eventually("replicas are in step", || {
            replicas.iter().all(|node| {
                node.command(&["INFO", "replication"])
                    .contains("master_link_status:up")
            })
        });
    }

    /// Waits until a replica has got all that its primary has done.
    pub(crate) fn await_in_step(&self, primary: usize, replica: usize) {
        let done = |node: usize| {
            let told = self.command(node, &["INFO", "replication"]);
            let offset = |line: &str| Some(line.strip_prefix("master_repl_offset:")?.to_owned());
            told.lines().find_map(offset)
        };
        eventually("the replica is in step", || done(primary) == done(replica));
    }

    fn eventually(&self, what: &str, holds: impl Fn(&ClusterServer) -> bool) {
        eventually(what, || self.nodes.iter().all(&holds));
    }

    /// The first and the last slot of a primary, at the start.
    pub(crate) fn slots(&self, primary: usize) -> (usize, usize) {
        let of = |primary| primary * SLOTS / self.primaries;
        (of(primary), of(primary + 1) - 1)
    }

    /// Which primary serves a slot, at the start.
    pub(crate) fn primary_of(&self, slot: u16) -> usize {
        let serves = |primary: &usize| self.slots(*primary).1 >= usize::from(slot);
        (0..self.primaries).find(serves).expect("a slot")
    }

    /// The URLs of the primaries.
    pub(crate) fn urls(&self) -> Vec<String> {
        let primaries = self.nodes[..self.primaries].iter();
        primaries
            .map(|node| format!("redis://127.0.0.1:{}", node.port))
            .collect()
    }

    /// The address of a server.
    pub(crate) fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].port)
    }

    /// The replicas of a primary, at the start.
    pub(crate) fn replicas_of(&self, primary: usize) -> impl Iterator<Item = usize> {
        let (primaries, all) = (self.primaries, self.nodes.len());
        (primaries..all).filter(move |node| node % primaries == primary)
    }

    /// The reply of a server to a command, as it wrote it.
    pub(crate) fn command(&self, node: usize, words: &[&str]) -> String {
        self.nodes[node].command(words)
    }

    /// Kills a server at once.
    pub(crate) fn kill(&self, node: usize) {
        self.signal(node, "KILL");
    }

    /// Stops a server without closing its connections.
    pub(crate) fn stop(&self, node: usize) {
        self.signal(node, "STOP");
    }

    /// Lets a stopped server go on.
    pub(crate) fn resume(&self, node: usize) {
        self.signal(node, "CONT");
    }

    fn signal(&self, node: usize, name: &str) {
        let pid = self.nodes[node].pid.to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.expect("the kill command").success());
    }

    /// The id of a server.
    fn id(&self, node: usize) -> String {
        let reply = self.nodes[node].command(&["CLUSTER", "MYID"]);
        reply.lines().nth(1).expect("an id").to_owned()
    }

    /// Begins to move a slot from one primary to another: from now on keys that are not there any
    /// more are asked for at the other.
    pub(crate) fn begin_migration(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (from_id, to_id) = (self.id(from), self.id(to));
        self.nodes[to].done(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        self.nodes[from].done(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Moves the keys of a slot.
    pub(crate) fn migrate_keys(&self, slot: u16, from: usize, to: usize) {
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
    pub(crate) fn end_migration(&self, slot: u16, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to));
        for node in [to, from] {
            self.nodes[node].done(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    /// How often all servers together have carried out a command.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let start = format!("cmdstat_{command}:calls=");
        let calls = |node: &ClusterServer| {
            let stats = node.command(&["INFO", "commandstats"]);
            let line = stats.lines().find_map(|line| line.strip_prefix(&start));
            let count = line.and_then(|line| line.split(',').next()?.parse::<u64>().ok());
            count.unwrap_or(0)
        };
        self.nodes.iter().map(calls).sum()
    }
}

impl ClusterServer {
    fn start(folder: &TempDir) -> Self {
        let (port, bus) = (free_port(), free_port());
        let mut script = String::from("redis-server");
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let (port_text, bus_text) = (port.to_string(), bus.to_string());
        let file = format!("nodes-{port}.conf");
        for (key, value) in [
            ("port", port_text.as_str()),
            ("cluster-port", &bus_text),
            ("bind", "127.0.0.1"),
            ("save", "''"),
            ("appendonly", "no"),
            ("cluster-enabled", "yes"),
            ("cluster-config-file", &file),
            ("cluster-node-timeout", &timeout),
            ("cluster-require-full-coverage", "no"),
            ("cluster-allow-replica-migration", "no"),
            ("repl-diskless-sync-delay", "0"),
            ("enable-debug-command", "yes"),
        ] {
            let _ = write!(script, " --{key} {value}");
        }
        script.push_str(" >/dev/null 2>&1 & echo $!; cat >/dev/null; kill -s KILL $!");
        let keeper = Command::new("sh")
            .current_dir(folder)
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut keeper = keeper.expect("sh");
        let mut pid = String::new();
        let output = keeper.stdout.take().expect("its output");
        let read = BufReader::new(output).read_line(&mut pid);
        read.expect("the id of redis-server");
        Self {
            port,
            bus,
            pid: pid.trim().parse().expect("a process id"),
            _alive: keeper.stdin.take().expect("its input"),
            keeper,
        }
    }

    fn await_ready(&self) {
        eventually(
            "redis-server is ready: install it by `apt-get install redis-server`",
            || {
                self.try_command(&["PING"])
                    .is_ok_and(|reply| reply.starts_with("+PONG"))
            },
        );
    }

    fn done(&self, words: &[&str]) {
        let reply = self.command(words);
        assert!(reply.starts_with("+OK"), "{words:?}: {reply}");
    }

    fn command(&self, words: &[&str]) -> String {
        self.try_command(words).expect("redis-server answers")
    }

    fn try_command(&self, words: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        // After QUIT the server closes the connection, which ends the reply.
        stream.write_all(format!("{}\r\nQUIT\r\n", words.join(" ")).as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok(reply)
    }
}

impl Drop for ClusterServer {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-s", "KILL", &self.pid.to_string()])
            .stderr(Stdio::null())
            .status();
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + START_DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "did not happen in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
