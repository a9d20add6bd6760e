//! Random sequences of commands on one connection.

use std::env;

use weir_sim::random::Random;
use weir_sim::redis::{Config, Server};
use weir_testing::RedisServer;

use super::commands::{command, is_exact, words};
use super::peers::{Likeness, Peers, Words, are_alike};

/// How many commands a sequence has.
const COMMANDS: usize = 400;

/// The seeds of this run.
pub(crate) fn seeds(usual: u64) -> impl Iterator<Item = u64> {
    let number = |name| env::var(name).ok().map(|text| text.parse().expect(name));
    let first: u64 = number("WEIR_SIM_REDIS_SEED").unwrap_or(0);
    first..first + number("WEIR_SIM_REDIS_SEEDS").unwrap_or(usual)
}

/// Prints the seed of a sequence if that fails.
pub(crate) struct Seed(pub(crate) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("WEIR_SIM_REDIS_SEED={} WEIR_SIM_REDIS_SEEDS=1", self.0);
        }
    }
}

/// Sends a random sequence in batches of some commands, some of them in transactions, and some that
/// come after an `ASKING`.
pub(crate) fn run(peers: &mut Peers, random: &mut Random, commands: usize) {
    let mut sent = 0;
    while sent < commands {
        let mut batch: Vec<(Words, Likeness)> = Vec::new();
        let count = random.between(1, 9);
        let is_transaction = random.chance(25);
        if is_transaction {
            if random.chance(20) {
                batch.push((words("ASKING"), Likeness::Same));
            }
            batch.push((words("MULTI"), Likeness::Same));
        }
        for _ in 0..count {
            let (words, likeness) = command(random);
            if !is_transaction && random.chance(8) {
                batch.push((self::words("ASKING"), Likeness::Same));
            }
            if !is_transaction || is_exact(likeness) {
                batch.push((words, likeness));
            }
        }
        if is_transaction {
            let end = ["EXEC", "EXEC", "EXEC", "DISCARD", "MULTI"][random.index(5)];
            batch.push((words(end), Likeness::Same));
            if end == "MULTI" {
                batch.push((words("EXEC"), Likeness::Same));
            }
        } else if random.chance(3) {
            batch.push((words(["EXEC", "DISCARD"][random.index(2)]), Likeness::Same));
        }
        sent += batch.len();
        peers.check_all(&batch, Some(random));
    }
}

/// Reads all of what the keys hold.
pub(crate) fn read_back(peers: &mut Peers) {
    for key in ["a", "b", "c{x}", "weir:L:a", "weir:L:a%w"] {
        let reads = ["TYPE", "PTTL", "GET", "HGETALL"].map(|name| format!("{name} {key}"));
        let range = format!("ZRANGE {key} 0 -1 WITHSCORES");
        for text in reads.into_iter().chain([range]) {
            let likeness = match text.starts_with("PTTL") {
                true => Likeness::Near(2000),
                false => Likeness::Same,
            };
            // A key that expires after one server was asked and before the other gets a second
            // look.
            let replies = peers.replies(&text);
            if !are_alike(&replies[0], &replies[1], likeness) {
                peers.check_all(&[(words(&text), likeness)], None);
            }
        }
    }
}

fn differential(hello: &str) {
    let real = RedisServer::start();
    for seed in seeds(40) {
        let _seed = Seed(seed);
        let mut random = Random::new(seed, 2);
        let mut peers = Peers::new(&real, Server::new(Config::default()));
        peers.check("FLUSHALL");
        peers.check_all(&[(words(hello), Likeness::Form)], None);
        run(&mut peers, &mut random, COMMANDS);
        peers.check("SELECT 0");
        read_back(&mut peers);
    }
}

#[test]
fn random_commands_are_answered_as_redis_answers_them() {
    differential("HELLO 2");
}

#[test]
fn random_commands_are_answered_in_resp3_as_redis_answers_them() {
    differential("HELLO 3");
}
