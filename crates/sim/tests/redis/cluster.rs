//! A node of a Cluster: what it says about keys of others, and of slots that are on their way.

use std::collections::BTreeMap;

use weir_sim::random::Random;
use weir_sim::redis::{ClusterNode, ClusterView, Config, Role, Server, slot_of};
use weir_testing::{RedisServer, eventually, free_port};

use super::peers::Peers;
use super::sequences::{Seed, run, seeds};

struct Node {
    server: RedisServer,
    port: u16,
    bus: u16,
}

impl Node {
    fn start() -> Self {
        let (port, bus) = (free_port(), free_port());
        let (port_text, bus_text) = (port.to_string(), bus.to_string());
        let words = [
            "--port",
            &port_text,
            "--cluster-port",
            &bus_text,
            "--bind",
            "127.0.0.1",
            "--cluster-enabled",
            "yes",
            "--cluster-require-full-coverage",
            "no",
            "--cluster-allow-replica-migration",
            "no",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let server = RedisServer::start_with(|_| words.map(str::to_owned).into());
        Self { server, port, bus }
    }

    fn id(&self) -> String {
        let reply = self.server.command(&["CLUSTER MYID"]);
        reply.lines().nth(1).unwrap().to_owned()
    }

    fn done(&self, text: &str) {
        let reply = self.server.command(&[text]);
        assert!(reply.starts_with("+OK"), "{text}: {reply}");
    }

    fn await_state(&self, text: &'static str) {
        eventually(text, || {
            let is_so = |command, text| self.server.command(&[command]).contains(text);
            is_so("CLUSTER INFO", text).then_some(())
        });
    }
}

/// Two primaries. Some slots have none.
struct Cluster {
    nodes: [Node; 2],
    view: ClusterView,
}

impl Cluster {
    fn start() -> Self {
        let nodes = [Node::start(), Node::start()];
        let [first, second] = &nodes;
        first.done("CLUSTER ADDSLOTSRANGE 0 8191 12000 12000");
        second.done("CLUSTER ADDSLOTSRANGE 8192 11999 12001 16000");
        first.done(&format!(
            "CLUSTER MEET 127.0.0.1 {} {}",
            second.port, second.bus
        ));
        let members = nodes.iter().map(|node| ClusterNode {
            id: node.id(),
            host: "127.0.0.1".to_owned(),
            port: node.port,
            primary: None,
        });
        let mut view = ClusterView::new(0, members.collect());
        view.assign(0..=8191, 0);
        view.assign(8192..=11_999, 1);
        view.assign(12_000..=12_000, 0);
        view.assign(12_001..=16_000, 1);
        for (node, other) in [(first, second), (second, first)] {
            eventually("a node knows the other", || {
                let slots = node.server.command(&["CLUSTER SLOTS"]);
                let both =
                    [node.port, other.port].map(|port| slots.contains(&format!(":{port}\r\n")));
                (both == [true; 2] && slots.matches("127.0.0.1").count() == 4).then_some(())
            });
            node.await_state("cluster_state:ok");
        }
        Self { nodes, view }
    }

    fn peers(&self) -> Peers {
        let mut simulated = Server::new(Config::default());
        simulated.set_cluster(Some(self.view.clone()));
        Peers::new(&self.nodes[0].server, simulated)
    }

    fn compare(&self, purpose: u64) {
        for seed in seeds(8) {
            let _seed = Seed(seed);
            let mut peers = self.peers();
            peers.check("FLUSHALL");
            peers.check("CLUSTER SLOTS");
            peers.check("CLUSTER MYID");
            run(&mut peers, &mut Random::new(seed, purpose), 250);
        }
    }
}

#[test]
fn keys_of_other_nodes_are_redirected_and_slots_on_their_way_asked_for() {
    let mut cluster = Cluster::start();
    cluster.compare(10);

    // Keys of one slot each, as the random commands have them.
    let slots: BTreeMap<&str, u16> = ["a", "b", "weir:L:a", "weir:L:a%w", ""]
        .into_iter()
        .map(|key| (key, slot_of(key.as_bytes())))
        .collect();
    let other = cluster.nodes[1].id();
    for slot in slots.values() {
        let is_own = cluster.view.owners.get(slot) == Some(&0);
        let state = if is_own { "MIGRATING" } else { "IMPORTING" };
        cluster.nodes[0].done(&format!("CLUSTER SETSLOT {slot} {state} {other}"));
        let open = if is_own {
            &mut cluster.view.migrating
        } else {
            &mut cluster.view.importing
        };
        open.insert(*slot, 1);
    }
    assert!(!cluster.view.migrating.is_empty() && !cluster.view.importing.is_empty());
    cluster.compare(11);

    // Several keys of one slot, of which some are there and some are not.
    let mut peers = cluster.peers();
    peers.check("FLUSHALL");
    let leaving = slots["b"];
    cluster.nodes[0].done(&format!("CLUSTER SETSLOT {leaving} STABLE"));
    peers
        .simulated
        .cluster_mut()
        .unwrap()
        .migrating
        .remove(&leaving);
    peers.check("SET {b}1 x");
    cluster.nodes[0].done(&format!("CLUSTER SETSLOT {leaving} MIGRATING {other}"));
    let view = peers.simulated.cluster_mut().unwrap();
    view.migrating.insert(leaving, 1);
    assert!(peers.check("EXISTS {b}1 {b}2").starts_with("-TRYAGAIN"));
    for tag in ["a", "b"] {
        for text in [
            "ASKING".to_owned(),
            format!("SET {{{tag}}}1 x"),
            format!("SET {{{tag}}}1 x"),
            format!("DEL {{{tag}}}1 {{{tag}}}2"),
            format!("EXISTS {{{tag}}}1 {{{tag}}}1"),
            "ASKING".to_owned(),
            format!("DEL {{{tag}}}1 {{{tag}}}2"),
            "ASKING".to_owned(),
            format!("DEL {{{tag}}}1 other"),
            "MULTI".to_owned(),
            format!("GET {{{tag}}}1"),
            format!("GET {{{tag}}}2"),
            "EXEC".to_owned(),
        ] {
            peers.check(&text);
        }
    }

    cluster.nodes[0].done("CONFIG SET cluster-require-full-coverage yes");
    // A node looks at its slots when one of them changes.
    cluster.nodes[0].done("CLUSTER SETSLOT 1 STABLE");
    cluster.nodes[0].await_state("cluster_state:fail");
    cluster.view.is_down = true;
    cluster.compare(12);
}

#[test]
fn a_replica_of_a_cluster_sends_clients_to_its_primary_unless_they_only_read() {
    let cluster = Cluster::start();
    let replica = Node::start();
    replica.done(&format!(
        "CLUSTER MEET 127.0.0.1 {0} {1}",
        cluster.nodes[0].port, cluster.nodes[0].bus
    ));
    let primary = cluster.nodes[0].id();
    eventually("it may become a replica", || {
        let reply = replica
            .server
            .command(&[&format!("CLUSTER REPLICATE {primary}")]);
        reply.starts_with("+OK").then_some(())
    });
    eventually("it is linked, and listed", || {
        let info = replica.server.command(&["INFO replication"]);
        let slots = replica.server.command(&["CLUSTER SLOTS"]);
        let is_listed = slots.matches(&format!(":{}\r\n", replica.port)).count() == 2;
        (info.contains("master_link_status:up") && is_listed).then_some(())
    });
    replica.await_state("cluster_state:ok");

    let mut view = cluster.view.clone();
    view.nodes.push(ClusterNode {
        id: replica.id(),
        host: "127.0.0.1".to_owned(),
        port: replica.port,
        primary: Some(0),
    });
    view.myself = 2;
    let mut simulated = Server::new(Config::default());
    simulated.set_cluster(Some(view));
    simulated.set_role(Role::Replica {
        host: "127.0.0.1".to_owned(),
        port: cluster.nodes[0].port,
        is_linked: true,
    });
    let mut peers = Peers::new(&replica.server, simulated);
    peers.check("CLUSTER SLOTS");
    for seed in seeds(4) {
        let _seed = Seed(seed);
        let mut random = Random::new(seed, 13);
        peers.check("READWRITE");
        run(&mut peers, &mut random, 100);
        peers.check("READONLY");
        run(&mut peers, &mut random, 100);
    }
}
