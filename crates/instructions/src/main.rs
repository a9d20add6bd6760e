//! How many instructions a decision and a request take, by callgrind: figures that compare across
//! machines, however busy they are.
//!
//! ```text
//! cargo run --release -p weir-instructions                # needs valgrind, and redis-server
//! cargo run --release -p weir-instructions -- --check     # as CI does
//! cargo run --release -p weir-instructions -- --record    # renews what CI checks
//! cargo run --release -p weir-instructions -- --walk target/debug/weir
//! ```
//!
//! `--check` fails if a case takes more than [`RECORDED`] says, and a little. Figures of the profile
//! `release` are higher than those of what is shipped, and quicker to get; `--profile bench` is closer.
//!
//! Each case runs in a process of its own, which is this program again with the case's name.
//!
//! `--walk` counts no instructions: it prints which files run for one request, and fails if
//! docs/WALKS.md lists others.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement prints, and ends when something is wrong"
)]

use std::collections::HashMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Builder;
use weir::limit::{Batch, Quota, Transaction};
use weir::store::{Memory, MemorySettings, Redis, RedisNodes, RedisSettings, Store, Unobserved};
use weir::time::{Clock, Nanos, SystemClock};
use weir_logging::{LogFormat, LogSettings};
use weir_testing::{RedisCluster, RedisServer};

#[path = "../../../benches/support/gateway.rs"]
mod gateway;
#[path = "../../../benches/support/stack.rs"]
mod support;
mod walk;

/// Tables, pools and buffers are as they stay after so many.
const WARM_UP: usize = 100;

const TIMES: usize = 1000;

/// How many responses come from the upstream before the first decoy.
const REAL_RESPONSES: usize = 300;

/// Names the process that is to run one case.
const CASE: &str = "--case";

/// Names the unoptimized gateway whose files are to be listed.
const WALK: &str = "--walk";

/// The compiler, and each case that is held to a bound with its instructions.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/recorded.csv");

/// The cases of [`RECORDED`]: the kinds of requests that a gateway has most of.
const BOUNDED: [&str; 9] = [
    "redis, 3 known",
    "/one",
    "/denied",
    "/decoy",
    "gateway, /one",
    "gateway, /denied",
    "gateway, /blocked",
    "gateway, /fixed",
    "gateway, /decoy",
];

/// How much more than recorded a case may take, in percent, if the same compiler has built it.
const TOLERANCE: usize = 2;

/// The same for another compiler, which inlines other functions, and for decoys: how often a thread
/// wakes while they wait depends on what else the machine does.
const GREATER_TOLERANCE: usize = 10;

/// What is counted beside a request for each path through the whole stack.
const DECISIONS: [&str; 7] = [
    "gcra alone",
    "memory, 1 known",
    "memory, 3 known",
    "memory, 1 denied",
    "memory, 1 new",
    "redis, 3 known",
    "cluster, 3 known",
];

/// What begins the name of a case that sends its path's requests to a whole gateway by TCP, whose
/// thread is counted, with the access log on.
const GATEWAY: &str = "gateway, ";

/// Whole gateways, and which of the threads that such a process starts is that of the gateway: the
/// first is its own, the second writes the log, and the third is the upstream.
const GATEWAYS: [&str; 7] = [
    "gateway, /none",
    "gateway, /one",
    "gateway, /three",
    "gateway, /denied",
    "gateway, /blocked",
    "gateway, /fixed",
    "gateway, /decoy",
];
const GATEWAY_THREAD: &str = "04";

/// Its clients are on the block list.
const BLOCKED: &str = "/blocked";

/// How many batches share a write to Redis, as they do in a gateway with some work to do.
const TOGETHER: usize = 8;

/// A burst that nothing here uses up.
const ENDLESS: u64 = 1 << 20;

/// No unit comes back while this runs.
const PERIOD: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let is_given = |wanted: &str| words.iter().any(|word| word == wanted);
    let after = |wanted: &str, at| words.get(words.iter().position(|word| word == wanted)? + at);
    if let Some(case) = after(CASE, 1) {
        run(
            case,
            after(CASE, 2).map_or(TIMES, |times| times.parse().unwrap()),
        );
    } else if let Some(binary) = after(WALK, 1) {
        return walk::check(binary);
    } else if is_given(WALK) {
        println!("{WALK} takes the path of an unoptimized gateway, such as target/debug/weir");
        return ExitCode::FAILURE;
    } else if is_given("--check") {
        return check();
    } else if is_given("--record") {
        record();
    } else {
        drop(measure(cases()));
    }
    ExitCode::SUCCESS
}

fn cases() -> impl Iterator<Item = &'static str> {
    let requests = support::PATHS.into_iter().chain([support::DECOY]);
    DECISIONS.into_iter().chain(requests).chain(GATEWAYS)
}

/// Prints the instructions of each of these cases, and returns them.
fn measure(cases: impl Iterator<Item = &'static str>) -> Vec<(&'static str, usize)> {
    let folder = tempfile::tempdir().unwrap();
    println!("| {:<16} | {:>12} |", "", "instructions");
    println!("| {:-<16} | {:->11}: |", "", "");
    let instructions = |case: &str| match case.starts_with(GATEWAY) {
        // All of the thread, without what it does before it is warm.
        true => {
            let count = |times| profiled(folder.path(), case, times, &["--separate-threads=yes"]);
            count(TIMES) - count(0)
        }
        false => profiled(folder.path(), case, TIMES, &["--toggle-collect=*counted*"]),
    };
    let shown = |case| {
        let instructions = instructions(case) / TIMES;
        println!("| {case:<16} | {instructions:>12} |");
        (case, instructions)
    };
    cases.map(shown).collect()
}

/// Writes the bounds.
fn record() {
    let measured = measure(BOUNDED.into_iter());
    let lines = measured
        .iter()
        .map(|(case, count)| format!("{case};{count}\n"));
    let text = format!("{}\n{}", compiler(), lines.collect::<String>());
    std::fs::write(RECORDED, text).unwrap();
}

/// Fails if a case takes more instructions than its bound.
fn check() -> ExitCode {
    let text = std::fs::read_to_string(RECORDED).unwrap();
    let (recorded_by, lines) = text.split_once('\n').unwrap();
    let is_same_compiler = recorded_by == compiler();
    let tolerance = |case: &str| match is_same_compiler && !case.ends_with(support::DECOY) {
        true => TOLERANCE,
        false => GREATER_TOLERANCE,
    };
    let recorded: HashMap<&str, usize> = lines
        .lines()
        .map(|line| line.rsplit_once(';').unwrap())
        .map(|(case, count)| (case, count.parse().unwrap()))
        .collect();
    let measured = measure(BOUNDED.into_iter());
    let mut code = ExitCode::SUCCESS;
    for (case, count) in measured {
        let bound = recorded[case] * (100 + tolerance(case)) / 100;
        if count > bound {
            println!("{case} takes {count} instructions, more than {bound}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// The version of the compiler in use.
fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The instructions of a process that runs a case.
fn profiled(folder: &Path, case: &str, times: usize, options: &[&str]) -> usize {
    let profile = folder.join("profile");
    let run = Command::new("valgrind")
        .arg("--tool=callgrind")
        .args(options)
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe().unwrap())
        .args([CASE, case, &times.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(run.expect("valgrind, installed").success(), "{case}");
    match case.starts_with(GATEWAY) {
        true => total(&folder.join(format!("profile-{GATEWAY_THREAD}"))),
        false => total(&profile),
    }
}

/// All instructions of a profile.
fn total(profile: &Path) -> usize {
    let text = std::fs::read_to_string(profile).unwrap();
    let mut lines = text.lines();
    let count = lines.find_map(|line| line.strip_prefix("totals: "));
    count.unwrap().trim().parse().unwrap()
}

fn run(case: &str, times: usize) {
    if let Some(path) = case.strip_prefix(GATEWAY) {
        return ask_gateway(path, warm_up(path) + times);
    }
    let mut action = action(case);
    (0..warm_up(case)).for_each(|_| action());
    counted(&mut *action, times);
}

/// After how many requests the next are as all that follow.
fn warm_up(case: &str) -> usize {
    match case == support::DECOY {
        true => REAL_RESPONSES + WARM_UP,
        false => WARM_UP,
    }
}

/// Callgrind counts from its beginning to its end.
#[inline(never)]
fn counted(action: &mut dyn FnMut(), times: usize) {
    (0..times).for_each(|_| action());
}

/// Sends requests by one connection to a gateway that logs them.
fn ask_gateway(path: &str, times: usize) {
    let settings = LogSettings {
        format: LogFormat::Json,
        ..LogSettings::default()
    };
    let _log = weir_logging::install(&settings).unwrap();
    let latency = match path == support::DECOY {
        true => support::DECOY_LATENCY,
        false => Duration::ZERO,
    };
    let layers = match path {
        BLOCKED => || support::layers_with("block: {addresses: [127.0.0.0/8]}"),
        _ => support::layers,
    };
    let mut client = TcpStream::connect(gateway::start(layers, latency)).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: app.example.com\r\nuser-agent: bench/1.0\r\naccept: */*\r\n\r\n"
    );
    let mut buffer = [0; 4096];
    for _ in 0..times {
        client.write_all(request.as_bytes()).unwrap();
        // It is written at once.
        let read = client.read(&mut buffer).unwrap();
        assert!(buffer.starts_with(b"HTTP/1.1 ") && read > 0);
    }
}

fn action(case: &str) -> Box<dyn FnMut() + '_> {
    match case {
        "gcra alone" => {
            let transaction = transaction("L:a", ENDLESS);
            Box::new(move || {
                black_box(black_box(&transaction).decide(black_box(Nanos::new(12_345))));
            })
        }
        "memory, 1 known" => decide(|_| [transaction("L:a", ENDLESS)].into_iter().collect()),
        "memory, 3 known" => {
            let keys = ["First:a", "Second:a", "Third:a"];
            decide(move |_| {
                keys.map(|key| transaction(key, ENDLESS))
                    .into_iter()
                    .collect()
            })
        }
        "memory, 1 denied" => decide(|_| [transaction("L:a", 1)].into_iter().collect()),
        "memory, 1 new" => {
            let key = |number| format!("L:{number}");
            decide(move |number| [transaction(&key(number), 1)].into_iter().collect())
        }
        "redis, 3 known" => {
            let server = RedisServer::start();
            let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
            let keys = ["First:a", "Second:a", "Third:a"].map(str::to_owned);
            decide_remotely(settings, keys, server)
        }
        "cluster, 3 known" => {
            let cluster = RedisCluster::start(0);
            let mut nodes = RedisNodes::default();
            nodes.add(cluster.urls().first().unwrap()).unwrap();
            let settings = RedisSettings::cluster(nodes).unwrap();
            let keys = [0, 1, 2].map(|primary| key_on(&cluster, primary));
            decide_remotely(settings, keys, cluster)
        }
        path => {
            let mut ask = support::asking();
            Box::new(move || {
                black_box(ask(path));
            })
        }
    }
}

fn transaction(key: &str, burst: u64) -> Transaction {
    let quota = Quota::new(burst, 1, PERIOD).unwrap();
    Transaction::new(key.into(), quota, NonZeroU64::MIN)
}

/// Decides batches that are made beforehand.
fn decide(batch: impl Fn(usize) -> Batch) -> Box<dyn FnMut()> {
    let max_buckets = NonZeroUsize::new(1_000_000).unwrap();
    let store = Memory::new(MemorySettings { max_buckets });
    let mut batches: Vec<Batch> = (0..WARM_UP + TIMES).map(batch).collect();
    Box::new(move || {
        let batch = batches.pop().unwrap();
        let outcome = store.decide(&batch, SystemClock.now()).now_or_never();
        black_box(outcome.unwrap().unwrap());
    })
}

/// A key of this primary.
fn key_on(cluster: &RedisCluster, primary: usize) -> String {
    let mut keys = (0..).map(|number| format!("L:{number}"));
    let is_there = |key: &String| {
        let reply = cluster.command(0, &["CLUSTER", "KEYSLOT", &format!("weir:{key}")]);
        let slot = reply.lines().next().unwrap().trim_start_matches(':');
        let slot = slot.parse().unwrap();
        cluster.primary_of(slot) == primary
    };
    keys.find(is_there).unwrap()
}

/// Decides batches of these keys by `servers`, of which each [`TOGETHER`] are asked at once.
fn decide_remotely(
    settings: RedisSettings,
    keys: [String; 3],
    servers: impl Sized + 'static,
) -> Box<dyn FnMut()> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(async {
        let store = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
        store.connected(Duration::from_secs(20)).await.unwrap();
        store
    });
    let batch = || keys.iter().map(|key| transaction(key, ENDLESS)).collect();
    let mut batches: Vec<Batch> = (0..WARM_UP + TIMES).map(|_| batch()).collect();
    let mut asked = 0;
    Box::new(move || {
        let _ = &servers;
        asked += 1;
        if asked % TOGETHER != 0 {
            return;
        }
        let first = batches.len() - TOGETHER;
        let now = SystemClock.now();
        // Each in a task of its own, as requests are.
        runtime.block_on(async {
            let asked = batches
                .drain(first..)
                .map(|batch| store.decide(&batch, now));
            let tasks: Vec<_> = asked.map(tokio::spawn).collect();
            for task in tasks {
                assert!(black_box(task.await.unwrap().unwrap()).is_allowed());
            }
        });
    })
}
