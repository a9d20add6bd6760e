//! What a primary tells its replica, by what the replica has then.

use weir_sim::random::Random;
use weir_sim::redis::{Config, Role, Server};
use weir_testing::{RedisServer, eventually, free_port};

use super::peers::{Peers, now};
use super::sequences::{Seed, read_back, run, seeds};

#[test]
fn a_replica_has_what_its_primary_has_and_goes_on_with_that() {
    let port = free_port();
    let start = |words: [String; 4]| RedisServer::start_with(|_| words.into());
    let diskless = ["--repl-diskless-sync-delay", "0"].map(str::to_owned);
    let [delay, zero] = diskless.clone();
    let real = start(["--port".into(), port.to_string(), delay, zero]);
    let [delay, zero] = diskless;
    let replica = RedisServer::start_with(|_| {
        let of = format!("127.0.0.1 {port}");
        vec![
            "--port".into(),
            "0".into(),
            "--replicaof".into(),
            of,
            delay,
            zero,
        ]
    });
    // A replica that links up later gets a copy, in which is also what a primary tells no replica:
    // a string that grew for a write which then failed.
    let is_linked = || {
        let reply = real.command(&["SET marker 1\r\nWAIT 1 1000"]);
        reply.contains(":1\r\n").then_some(())
    };
    eventually("the replica is linked", is_linked);
    let all: Vec<u64> = seeds(12).collect();
    for seed in &all {
        let _seed = Seed(*seed);
        let mut random = Random::new(*seed, 20);
        let mut simulated = Server::new(Config::default());
        simulated.set_role(Role::Replica {
            host: "127.0.0.1".to_owned(),
            port,
            is_linked: true,
        });
        let mut replicas = Peers::new(&replica, simulated);
        let replicated = Config {
            is_replicated: true,
            ..Config::default()
        };
        let mut primaries = Peers::new(&real, Server::new(replicated));
        primaries.check("FLUSHALL");
        for _ in 0..3 {
            run(&mut primaries, &mut random, 100);
            eventually("the replica has it", is_linked);
            for effect in primaries.simulated.drain_replication() {
                replicas.simulated.apply(&effect, now());
            }
            read_back(&mut replicas);
            run(&mut replicas, &mut random, 30);
            replicas.check("SELECT 0");
        }
        if all.last() == Some(seed) {
            let replicas_of = Vec::new();
            replica.command(&["REPLICAOF NO ONE"]);
            replicas.simulated.set_role(Role::Primary {
                replicas: replicas_of,
            });
            replica.command(&["DEL marker"]);
            run(&mut replicas, &mut random, 200);
            replicas.check("SELECT 0");
            read_back(&mut replicas);
        }
    }
}
