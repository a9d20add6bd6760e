//! What no real server can be held to in a test: clocks that step, which key is evicted, what a
//! restart keeps.

use std::time::Duration;

use weir_sim::redis::{ClientId, Conditions, Config, Eviction, Role, Sentinel, Server};

use super::peers::{encode, written};

const DAY: Duration = Duration::from_secs(20_000 * 86_400);

/// A server, a client of it, and its clock.
struct Machine {
    server: Server,
    client: ClientId,
    now: Duration,
}

impl Machine {
    fn new(config: Config) -> Self {
        let mut server = Server::new(config);
        let client = server.open().unwrap();
        Self {
            server,
            client,
            now: DAY,
        }
    }

    fn ask(&mut self, text: &str) -> String {
        let words = text
            .split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect();
        let outputs = self.server.receive(self.client, &encode(&words), self.now);
        let reply = String::from_utf8(written(outputs)).unwrap();
        reply.replace("\r\n", " ").trim().to_owned()
    }

    fn become_replica(&mut self) {
        self.server.set_role(Role::Replica {
            host: "127.0.0.1".to_owned(),
            port: 1,
            is_linked: true,
        });
    }
}

fn replicated() -> Config {
    Config {
        is_replicated: true,
        ..Config::default()
    }
}

#[test]
fn a_key_expires_by_the_servers_own_clock_whichever_way_that_steps() {
    let mut machine = Machine::new(Config::default());
    machine.ask("SET a 1 PX 1000");
    machine.now -= Duration::from_secs(60);
    assert_eq!(machine.ask("PTTL a"), ":61000");
    machine.now = DAY + Duration::from_millis(1000);
    assert_eq!(machine.ask("PTTL a"), ":0");
    machine.now += Duration::from_millis(1);
    assert_eq!(machine.ask("GET a"), "$-1");
    // It is gone for good, since this is a primary.
    machine.now = DAY;
    assert_eq!(machine.ask("GET a"), "$-1");
}

#[test]
fn a_key_that_has_expired_takes_up_memory_until_it_is_used_or_looked_for() {
    let mut machine = Machine::new(replicated());
    let empty = machine.server.used_memory();
    machine.ask("SET a 1 PX 1000");
    machine.ask("SET b 1 PX 1000");
    machine.server.drain_replication();
    machine.now += Duration::from_secs(2);
    assert_eq!(machine.ask("DBSIZE"), ":2");
    assert_eq!(machine.ask("EXISTS a"), ":0");
    assert_eq!(machine.ask("DBSIZE"), ":1");
    machine.server.expire(machine.now);
    assert_eq!(machine.server.used_memory(), empty);
    assert_eq!(machine.server.drain_replication().len(), 2);
}

#[test]
fn a_replica_hides_a_key_that_has_expired_and_has_it_again_if_its_clock_steps_back() {
    let mut machine = Machine::new(Config::default());
    machine.ask("SET a 1 PX 1000");
    machine.become_replica();
    machine.now += Duration::from_secs(2);
    assert_eq!(machine.ask("GET a"), "$-1");
    machine.server.expire(machine.now);
    machine.now = DAY;
    assert_eq!(machine.ask("GET a"), "$1 1");
}

#[test]
fn a_replica_whose_clock_is_ahead_still_follows_its_primary() {
    let mut primary = Machine::new(replicated());
    let mut replica = Machine::new(Config::default());
    replica.become_replica();
    replica.now += Duration::from_secs(3600);
    primary.ask("HINCRBY h a 1");
    primary.ask("PEXPIRE h 1000");
    primary.ask("HINCRBY h a 1");
    for effect in primary.server.drain_replication() {
        replica.server.apply(&effect, replica.now);
    }
    assert_eq!(replica.ask("HGET h a"), "$-1");
    replica.now = DAY;
    assert_eq!(replica.ask("HGET h a"), "$1 2");
    assert_eq!(replica.server.offset(), primary.server.offset());
}

#[test]
fn a_transaction_reaches_replicas_whole_and_what_changes_nothing_not_at_all() {
    let mut machine = Machine::new(replicated());
    for text in ["MULTI", "ZADD z 1 a", "ZREM z b", "PEXPIRE z 1000", "EXEC"] {
        machine.ask(text);
    }
    machine.ask("BITFIELD n SET u8 0 5");
    assert_eq!(machine.server.drain_replication().len(), 2);
    for text in [
        "ZREM z b",
        "GET x",
        "BITFIELD x GET u8 0",
        "DEL x",
        "ZADD z 1 a",
        "BITFIELD n SET u8 0 5",
    ] {
        machine.ask(text);
    }
    assert!(machine.server.drain_replication().is_empty());
    // It creates the key, of which replicas hear nothing, as in Redis.
    machine.ask("BITFIELD x OVERFLOW FAIL INCRBY u8 0 -1");
    assert_eq!(machine.ask("EXISTS x"), ":1");
    assert!(machine.server.drain_replication().is_empty());
}

#[test]
fn the_key_that_was_not_used_for_the_longest_is_evicted_first() {
    let mut machine = Machine::new(replicated());
    for key in ["a", "b", "c"] {
        machine.ask(&format!("SET {key} 1 PX 1000000"));
    }
    machine.ask("SET d 1 PX 10000");
    machine.ask("SET e 1");
    machine.ask("GET a");
    let mut evicted = |policy, keys: &[&str]| {
        let most = machine.server.used_memory() - 1;
        machine.server.config_mut().eviction = policy;
        machine.server.config_mut().max_memory = Some(most);
        let before = machine.server.drain_replication().len();
        assert_eq!(machine.ask("PING"), "+PONG");
        assert!(machine.server.used_memory() <= most);
        let left: Vec<_> = machine.server.keys().map(|key| key.to_vec()).collect();
        assert_eq!(
            left,
            keys.iter()
                .map(|key| key.as_bytes().to_vec())
                .collect::<Vec<_>>()
        );
        (before, machine.server.drain_replication().len())
    };
    evicted(Eviction::AllKeysLru, &["a", "c", "d", "e"]);
    assert_eq!(evicted(Eviction::VolatileTtl, &["a", "c", "e"]), (0, 1));
    evicted(Eviction::VolatileLru, &["a", "e"]);
    evicted(Eviction::VolatileLru, &["e"]);
    machine.server.config_mut().max_memory = Some(1);
    assert!(machine.ask("SET f 1").starts_with("-OOM"));
    machine.server.config_mut().eviction = Eviction::AllKeysLru;
    assert!(
        machine.ask("SET f 1").starts_with("-OOM"),
        "nothing is left to be evicted"
    );
    assert_eq!(machine.ask("DBSIZE"), ":0");
}

#[test]
fn memory_is_accounted_for_whatever_happens_to_keys() {
    let mut machine = Machine::new(Config::default());
    let empty = machine.server.used_memory();
    for text in [
        "SET s abc",
        "SET s abcdef",
        "HSET h a 1 b 2",
        "HDEL h a",
        "ZADD z 1 a 2 b",
        "ZPOPMAX z",
        "BITFIELD b SET u63 63 1",
        "PEXPIRE b 100",
    ] {
        machine.ask(text);
        assert!(machine.server.used_memory() > empty);
    }
    machine.ask("DEL s h z b");
    assert_eq!(machine.server.used_memory(), empty);
}

#[test]
fn a_restart_keeps_what_is_on_the_disk_and_no_connection() {
    let mut machine = Machine::new(Config::default());
    machine.ask("SET a 1");
    let kept = machine.server.snapshot();
    machine.ask("SET a 2");
    machine.server.conditions = Conditions {
        is_loading: true,
        ..Conditions::default()
    };
    machine.server.restart(Some(&kept));
    assert_eq!(machine.ask("GET a"), "", "the connection is gone");
    machine.client = machine.server.open().unwrap();
    assert_eq!(machine.ask("GET a"), "$1 1");
    machine.server.restart(None);
    machine.client = machine.server.open().unwrap();
    assert_eq!(machine.ask("GET a"), "$-1");
}

#[test]
fn a_key_that_moves_expires_after_as_long_by_the_clock_of_its_new_node() {
    let mut source = Machine::new(replicated());
    let mut target = Machine::new(replicated());
    let mut replica = Machine::new(Config::default());
    replica.become_replica();
    target.now += Duration::from_secs(3600);
    source.ask("SET a 1 PX 5000");
    source.now += Duration::from_secs(2);
    let moved = source.server.take_key(b"a", source.now).unwrap();
    assert_eq!(source.ask("GET a"), "$-1");
    target.server.put_key(b"a", &moved, target.now);
    assert_eq!(target.ask("PTTL a"), ":3000");
    for effect in target.server.drain_replication() {
        replica.server.apply(&effect, target.now);
    }
    replica.now = target.now;
    assert_eq!(replica.ask("PTTL a"), ":3000");
    source.ask("SET b 1 PX 10");
    source.now += Duration::from_secs(1);
    assert!(source.server.take_key(b"b", source.now).is_none());
}

#[test]
fn too_many_clients_are_turned_away() {
    let mut machine = Machine::new(Config {
        max_clients: 1,
        ..Config::default()
    });
    let refusal = machine.server.open().unwrap_err();
    assert_eq!(refusal, "-ERR max number of clients reached\r\n");
    machine.server.close(machine.client);
    assert!(machine.server.open().is_ok());
    assert_eq!(machine.server.close_all().len(), 1);
}

#[test]
fn the_same_bytes_have_the_same_replies_and_effects_each_time() {
    let run = || {
        let mut machine = Machine::new(replicated());
        let mut random = weir_sim::random::Random::new(7, 40);
        let mut all = Vec::new();
        for _ in 0..2000 {
            let (words, _) = super::commands::command(&mut random);
            machine.now += Duration::from_millis(random.between(0, 3));
            all.push(
                machine
                    .server
                    .receive(machine.client, &encode(&words), machine.now),
            );
        }
        (all, format!("{:?}", machine.server.drain_replication()))
    };
    assert_eq!(run(), run());
}

/// What Weir sends is listed where operators are told which rights it needs.
#[test]
fn every_command_that_the_docs_have_weir_send_is_known() {
    const PAGE: &str = include_str!("../../../../docs/REDIS.md");
    let lines = PAGE.lines();
    let lines =
        lines.filter(|line| line.starts_with("ACL SETUSER weir") || line.contains("`+multi +exec"));
    let words = lines
        .flat_map(|line| line.split([' ', '`']))
        .filter_map(|word| word.strip_prefix('+'));
    let commands: std::collections::BTreeSet<&str> = words.collect();
    for known in [
        "bitfield",
        "zpopmax",
        "hincrby",
        "cluster|slots",
        "sentinel|master",
    ] {
        assert!(commands.contains(known), "{known}");
    }
    for command in commands {
        let words = command
            .split('|')
            .map(|word| word.as_bytes().to_vec())
            .collect();
        let mut sentinel = Sentinel::new(Vec::new());
        let client = sentinel.open().unwrap();
        let by_sentinel = sentinel.receive(client, &encode(&words), DAY);
        let by_sentinel = String::from_utf8(written(by_sentinel)).unwrap();
        let by_server = Machine::new(Config::default()).ask(&command.replace('|', " "));
        let is_unknown = |reply: &str| reply.starts_with("-ERR unknown");
        assert!(
            !is_unknown(&by_server) || !is_unknown(&by_sentinel),
            "{command}"
        );
    }
}
