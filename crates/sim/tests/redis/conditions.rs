//! Servers that refuse some commands, or most: no memory, no disk, no replicas, a replica, loading.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;

use weir_sim::random::Random;
use weir_sim::redis::{Config, Role, Server};
use weir_testing::{RedisServer, eventually};

use super::peers::Peers;
use super::sequences::{Seed, read_back, run, seeds};

/// Runs random sequences that find data on servers in some condition, and after that again.
fn differential(
    real: &RedisServer,
    enter: impl Fn(&RedisServer, &mut Server),
    leave: impl Fn(&RedisServer, &mut Server),
) {
    for seed in seeds(8) {
        let _seed = Seed(seed);
        let mut random = Random::new(seed, 3);
        let mut peers = Peers::new(real, Server::new(Config::default()));
        peers.check("FLUSHALL");
        run(&mut peers, &mut random, 100);
        enter(real, &mut peers.simulated);
        run(&mut peers, &mut random, 150);
        leave(real, &mut peers.simulated);
        run(&mut peers, &mut random, 50);
        peers.check("SELECT 0");
        read_back(&mut peers);
    }
}

#[test]
fn without_memory_what_could_grow_is_refused() {
    let enter = |real: &RedisServer, simulated: &mut Server| {
        real.command(&["CONFIG SET maxmemory 1"]);
        simulated.config_mut().max_memory = Some(1);
    };
    differential(&RedisServer::start(), enter, |real, simulated| {
        real.command(&["CONFIG SET maxmemory 0"]);
        simulated.config_mut().max_memory = None;
    });
}

#[test]
fn without_replicas_writes_are_refused() {
    let enter = |real: &RedisServer, simulated: &mut Server| {
        real.command(&["CONFIG SET min-replicas-to-write 1"]);
        simulated.conditions.lacks_replicas = true;
    };
    differential(&RedisServer::start(), enter, |real, simulated| {
        real.command(&["CONFIG SET min-replicas-to-write 0"]);
        simulated.conditions.lacks_replicas = false;
    });
}

#[test]
fn with_a_disk_that_fails_writes_are_refused() {
    let real = RedisServer::start();
    // A folder in the place of the file.
    fs::create_dir(real.socket().with_file_name("dump.rdb")).unwrap();
    real.command(&["BGSAVE"]);
    eventually("it cannot be saved", || {
        let info = real.command(&["INFO persistence"]);
        info.contains("rdb_last_bgsave_status:err").then_some(())
    });
    let enter = |real: &RedisServer, simulated: &mut Server| {
        real.command(&["CONFIG SET save \"100000000 1\""]);
        simulated.conditions.is_disk_failing = true;
    };
    differential(&real, enter, |real, simulated| {
        real.command(&["CONFIG SET save \"\""]);
        simulated.conditions.is_disk_failing = false;
    });
}

#[test]
fn a_replica_takes_no_writes_and_shows_no_key_that_has_expired() {
    let enter = |real: &RedisServer, simulated: &mut Server| {
        real.command(&["REPLICAOF 127.0.0.1 1"]);
        simulated.set_role(cut_off());
    };
    differential(&RedisServer::start(), enter, become_primary);
}

#[test]
fn a_replica_that_hears_nothing_answers_nothing_where_so_configured() {
    let enter = |real: &RedisServer, simulated: &mut Server| {
        real.command(&["CONFIG SET replica-serve-stale-data no"]);
        real.command(&["REPLICAOF 127.0.0.1 1"]);
        simulated.config_mut().serves_stale = false;
        simulated.set_role(cut_off());
    };
    differential(&RedisServer::start(), enter, become_primary);
}

fn cut_off() -> Role {
    Role::Replica {
        host: "127.0.0.1".to_owned(),
        port: 1,
        is_linked: false,
    }
}

fn become_primary(real: &RedisServer, simulated: &mut Server) {
    real.command(&["REPLICAOF NO ONE"]);
    let replicas = Vec::new();
    simulated.set_role(Role::Primary { replicas });
}

#[test]
fn while_a_script_runs_for_too_long_most_is_refused() {
    let real = RedisServer::start();
    real.command(&["CONFIG SET busy-reply-threshold 1"]);
    let enter = |real: &RedisServer, simulated: &mut Server| {
        let mut script = UnixStream::connect(real.socket()).unwrap();
        script
            .write_all(b"EVAL \"while true do end\" 0\r\n")
            .unwrap();
        eventually("the script runs for too long", || {
            real.command(&["PING"]).starts_with("-BUSY").then_some(())
        });
        simulated.conditions.is_busy = true;
    };
    differential(&real, enter, |real, simulated| {
        real.command(&["SCRIPT KILL"]);
        eventually("the script has ended", || {
            real.command(&["PING"]).starts_with("+PONG").then_some(())
        });
        simulated.conditions.is_busy = false;
    });
}

#[test]
fn while_data_is_loaded_most_is_refused() {
    let words = ["--port", "0", "--enable-debug-command", "yes"];
    let real = RedisServer::start_with(|_| words.map(str::to_owned).into());
    let mut peers = Peers::new(&real, Server::new(Config::default()));
    real.command(&["DEBUG POPULATE 4000 key 2000"]);
    real.command(&["CONFIG SET loading-process-events-interval-bytes 1024"]);
    real.command(&["CONFIG SET key-load-delay 20000"]);
    let mut reload = UnixStream::connect(real.socket()).unwrap();
    reload.write_all(b"DEBUG RELOAD\r\n").unwrap();
    eventually("it is loading", || {
        real.command(&["PING"])
            .starts_with("-LOADING")
            .then_some(())
    });
    peers.simulated.conditions.is_loading = true;
    for text in [
        "PING",
        "GET a",
        "SET a 1",
        "SELECT 1",
        "SELECT 0",
        "CLIENT GETNAME",
        "MULTI",
        "GET a",
        "EXEC",
        "MULTI",
        "EXEC",
        "ASKING",
        "EXEC",
        "GET",
        "nonsense",
        "CLUSTER SLOTS",
        "READONLY",
    ] {
        assert!(!peers.check(text).is_empty());
    }
    assert!(peers.check("GET a").starts_with("-LOADING"));
}
