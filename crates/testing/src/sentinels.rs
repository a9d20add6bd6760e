//! A primary, two replicas, and three Sentinels that watch them: real servers on free ports.

use std::fs;
use std::path::Path;

use crate::{RedisServer, eventually, free_port};

/// How soon Sentinels do what they do; the usual times would make for slow tests. A busy machine
/// must not make them take a server for dead, so that is left to [`Sentinels::fail_over_from`]; nor
/// make one that has not heard of a failover for four times the `publish-period` undo it.
const TIMES: &str = "SENTINEL DEBUG info-period 100 ping-period 100 ask-period 100 \
                     publish-period 1000 tilt-trigger 60000 tilt-period 100 \
                     min-link-reconnect-period 200 election-timeout 1000";

/// What the Sentinels know the primary by.
pub const PRIMARY: &str = "main";

/// What the servers are started with.
#[derive(Default)]
pub struct Options {
    /// Everything uses TLS, with `cert.pem` and `key.pem` of each folder.
    pub certify: Option<fn(&Path)>,
}

/// The servers. All of them end when this is dropped.
pub struct Sentinels {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
    pub ports: Vec<u16>,
    pub sentinel_ports: Vec<u16>,
    is_tls: bool,
}

impl Sentinels {
    pub fn start() -> Self {
        Self::start_with(&Options::default())
    }

    pub fn start_with(options: &Options) -> Self {
        let ports: Vec<_> = (0..3).map(|_| free_port()).collect();
        let sentinel_ports: Vec<_> = (0..3).map(|_| free_port()).collect();
        let first = ports[0];
        let server = |port: u16| {
            RedisServer::launch(|folder| {
                let mut words = listen(options, folder.path(), port);
                words.extend(["--repl-diskless-sync-delay", "0"].map(str::to_owned));
                if port != first {
                    let primary = format!("127.0.0.1 {first}");
                    words.extend(["--replicaof".to_owned(), primary]);
                }
                words
            })
        };
        let sentinel = |port: u16| {
            RedisServer::launch(|folder| {
                let text = format!(
                    "sentinel monitor {PRIMARY} 127.0.0.1 {first} 2\n\
                     sentinel down-after-milliseconds {PRIMARY} 60000\n\
                     sentinel failover-timeout {PRIMARY} 3000\n\
                     sentinel parallel-syncs {PRIMARY} 2\n"
                );
                fs::write(folder.path().join("sentinel.conf"), text).expect("a file");
                let mut words = vec!["sentinel.conf".to_owned(), "--sentinel".to_owned()];
                words.extend(listen(options, folder.path(), port));
                words
            })
        };
        let mut sentinels = Self {
            servers: ports.iter().map(|&port| server(port)).collect(),
            sentinels: sentinel_ports.iter().map(|&port| sentinel(port)).collect(),
            ports,
            sentinel_ports,
            is_tls: options.certify.is_some(),
        };
        let (servers, watchers) = (&mut sentinels.servers, &mut sentinels.sentinels);
        for server in servers.iter_mut().chain(watchers) {
            server.await_ready();
        }
        for sentinel in &sentinels.sentinels {
            sentinel.command(&[TIMES]);
        }
        sentinels.await_ready();
        sentinels
    }

    /// The URLs of the Sentinels.
    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        let ports = self.sentinel_ports.iter();
        ports
            .map(|port| format!("{scheme}://127.0.0.1:{port}"))
            .collect()
    }

    /// The server that is the primary, by what this Sentinel says.
    pub fn primary_by(&self, sentinel: usize) -> usize {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY];
        let reply = self.sentinels[sentinel].command(&words);
        let named = |port: &u16| reply.contains(&format!("\r\n{port}\r\n"));
        self.ports.iter().position(named).expect("a primary")
    }

    /// Waits until the replicas have what the primary has.
    pub fn await_replicated(&self, primary: usize) {
        let replicas = self.servers.len() - 1;
        await_that("the replicas have everything", || {
            let words = format!("SET marker 1\r\nWAIT {replicas} 100");
            let reply = self.servers[primary].command(&[&words]);
            reply.contains(&format!(":{replicas}\r\n"))
        });
    }

    /// Whether a server is a replica by now, by its own word.
    pub fn is_replica(&self, server: usize) -> bool {
        self.servers[server].command(&["ROLE"]).contains("slave")
    }

    /// Lets a Sentinel carry out a planned failover.
    pub fn fail_over(&self, sentinel: usize) {
        let patient = ["SENTINEL", "SET", PRIMARY, "failover-timeout", "60000"];
        self.sentinels[sentinel].command(&patient);
        let before = self.primary_by(sentinel);
        let port = self.ports[before].to_string();
        await_that("a planned failover", || {
            // On a busy machine the Sentinel finds no replica that has answered of late, gives up,
            // and nobody tries again.
            let state = self.sentinels[sentinel].command(&["SENTINEL", "MASTER", PRIMARY]);
            let is_old = field(&state, "port") == Some(&port);
            if is_old && !state.contains("failover_in_progress") {
                self.sentinels[sentinel].command(&["SENTINEL", "FAILOVER", PRIMARY]);
            }
            self.primary_by(sentinel) != before
        });
    }

    /// Lets the Sentinels find out that the primary is silent, and waits until each of them knows
    /// another one. The new one may be silent for as long as a busy machine makes it.
    pub fn fail_over_from(&self, primary: usize) {
        self.set_down_after("400");
        await_that("each Sentinel knows another primary", || {
            (0..self.sentinels.len()).all(|sentinel| self.primary_by(sentinel) != primary)
        });
        self.set_down_after("60000");
    }

    fn set_down_after(&self, milliseconds: &str) {
        for sentinel in &self.sentinels {
            let set = ["SENTINEL", "SET", PRIMARY, "down-after-milliseconds"];
            sentinel.command(&[&set[..], &[milliseconds]].concat());
        }
    }

    /// Waits until each Sentinel knows all others and all replicas, and the replicas are in step.
    fn await_ready(&self) {
        for sentinel in &self.sentinels {
            await_that("a Sentinel knows all the others", || {
                let reply = sentinel.command(&["SENTINEL", "MASTER", PRIMARY]);
                field(&reply, "num-slaves") == Some("2")
                    && field(&reply, "num-other-sentinels") == Some("2")
            });
            await_that("a Sentinel knows the replicas to be fit", || {
                let reply = sentinel.command(&["SENTINEL", "REPLICAS", PRIMARY]);
                reply.matches("\r\nok\r\n").count() == 2
            });
        }
    }
}

/// The arguments that say where to listen.
fn listen(options: &Options, folder: &Path, port: u16) -> Vec<String> {
    let port = port.to_string();
    let Some(certify) = options.certify else {
        return vec!["--port".to_owned(), port];
    };
    certify(folder);
    let words = ["--port", "0", "--tls-port", &port]
        .into_iter()
        .chain(["--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem"])
        .chain(["--tls-ca-cert-file", "ca.pem", "--tls-auth-clients", "no"])
        .chain(["--tls-replication", "yes"]);
    words.map(str::to_owned).collect()
}

/// A field of a flat list of bulk strings.
fn field<'r>(reply: &'r str, name: &str) -> Option<&'r str> {
    let mut lines = reply.split("\r\n").skip_while(|line| *line != name);
    lines.nth(2)
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}
