//! What a decision costs Redis: Weir's `BITFIELD`, the same GCRA in Lua, and Boulder's way with two
//! round trips, at pipeline depths from 1 to 64.
//!
//! `cargo bench --bench redis -- [--rounds 7] [--seconds 0.2] [--csv FILE]`
//!
//! It starts a `redis-server` of its own. In each round every way has its turn at every depth, in
//! another order each time, so that noise hits all alike; a ratio is taken within a round. The
//! server's own CPU time is what `INFO cpu` says before and after.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench that cannot run may as well panic, and has its results to tell"
)]

mod client;
mod recorder;
mod report;
mod ways;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use client::Client;
use rand::seq::SliceRandom;
use report::Row;
use ways::{Outcome, Way};
use weir_testing::RedisServer;

const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

struct Options {
    rounds: usize,
    turn: Duration,
    csv: Option<PathBuf>,
}

impl Options {
    /// `cargo bench` says `--bench`; without it, as `cargo test` does, all is only tried once.
    fn read() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let is_bench = words.iter().any(|word| word == "--bench");
        let value = |name: &str| {
            let at = words.iter().position(|word| word == name)?;
            words.get(at + 1).map(String::as_str)
        };
        let (rounds, seconds) = if is_bench {
            ("7", "0.2")
        } else {
            ("1", "0.001")
        };
        let seconds = value("--seconds").unwrap_or(seconds).parse().unwrap();
        Self {
            rounds: value("--rounds").unwrap_or(rounds).parse().unwrap(),
            turn: Duration::from_secs_f64(seconds),
            csv: value("--csv").map(PathBuf::from),
        }
    }
}

fn main() {
    let options = Options::read();
    let server = RedisServer::start();
    let ways = Way::all(&server);
    let mut rows = Vec::new();
    for round in 1..=options.rounds {
        rows.extend(one_round(&server, &ways, round, options.turn));
    }
    println!("{}", report::table(&rows));
    if let Some(path) = options.csv {
        std::fs::write(path, report::csv(&rows)).unwrap();
    }
}

fn one_round(server: &RedisServer, ways: &[Way], round: usize, turn: Duration) -> Vec<Row> {
    let mut cells: Vec<_> = DEPTHS
        .iter()
        .flat_map(|&depth| Outcome::ALL.map(|outcome| (depth, outcome)))
        .collect();
    cells.shuffle(&mut rand::rng());
    let mut rows = Vec::new();
    for (depth, outcome) in cells {
        let mut ways: Vec<_> = ways.iter().filter(|way| way.outcome == outcome).collect();
        ways.shuffle(&mut rand::rng());
        for way in ways {
            let (decisions_a_second, cpu_micros) = cell(server, way, depth, turn);
            rows.push(Row {
                round,
                way: way.name,
                outcome,
                depth,
                decisions_a_second,
                cpu_micros,
            });
        }
    }
    rows
}

/// Decisions a second, and microseconds of the server's CPU time for each.
fn cell(server: &RedisServer, way: &Way, depth: usize, turn: Duration) -> (f64, f64) {
    let mut client = Client::connect(server);
    way.run(&mut client, depth, 1);
    let (start, before) = (Instant::now(), server_cpu_seconds(server));
    let mut decisions = 0_u32;
    while start.elapsed() < turn {
        decisions += way.run(&mut client, depth, 64_usize.div_ceil(depth));
    }
    let (took, after) = (start.elapsed(), server_cpu_seconds(server));
    let decisions = f64::from(decisions);
    let cpu = (after - before) / decisions;
    (decisions / took.as_secs_f64(), cpu * 1e6)
}

fn server_cpu_seconds(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "cpu"]);
    let figure = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse::<f64>().unwrap()
    };
    figure("used_cpu_user:") + figure("used_cpu_sys:")
}
