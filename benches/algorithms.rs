//! What each algorithm costs in Redis: bytes a bucket and CPU a decision, for a site with so many
//! users whose limit is 500 requests a day, and who each make 500 requests, evenly over a day.
//!
//! It starts a `redis-server` of its own, plays the day through at a given time of each request,
//! and asks Redis for its memory and its CPU. Without cargo's `--bench`, as with `cargo test`, all
//! is only tried, with very few users. Run it by
//!
//! ```text
//! cargo bench --bench algorithms            # 10,000 users, some minutes
//! USERS=1000 cargo bench --bench algorithms
//! ```
//!
//! `docs/ALGORITHMS.md` shows the results.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement prints, and ends when something is wrong"
)]

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use weir::limit::{Algorithm, Alignment, Batch, Calendar, CalendarUnit, Quota, Transaction};
use weir::store::{Redis, RedisSettings, Store, Unobserved};
use weir::time::{Nanos, Timestamp};
use weir_testing::RedisServer;

const REQUESTS: u64 = 500;
const DAY: Duration = Duration::from_secs(86_400);

/// Midnight of a day of the year 2025, UTC.
const MIDNIGHT: Timestamp = Timestamp::from_nanos(1_749_945_600_000_000_000);

/// So many requests are under way at once, as they would be from a busy gateway.
const AT_ONCE: u64 = 100;

fn quotas() -> [(&'static str, Quota); 5] {
    let day = Calendar::new(CalendarUnit::Day, "UTC").unwrap();
    let windowed = |algorithm| Quota::windowed(algorithm, REQUESTS, DAY).unwrap();
    [
        ("gcra", Quota::new(REQUESTS, REQUESTS, DAY).unwrap()),
        (
            "fixed_window",
            windowed(Algorithm::FixedWindow(Alignment::Period)),
        ),
        (
            "fixed_window, calendar",
            windowed(Algorithm::FixedWindow(Alignment::Calendar(day))),
        ),
        (
            "sliding_window",
            windowed(Algorithm::SlidingWindow {
                count_denied: false,
            }),
        ),
        (
            "sliding_log",
            windowed(Algorithm::SlidingLog {
                count_denied: false,
            }),
        ),
    ]
}

fn main() {
    let measures = std::env::args().any(|argument| argument == "--bench");
    let users = if measures { 10_000 } else { 2 };
    let users = std::env::var("USERS").map_or(users, |text| text.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    println!("{users} users, {REQUESTS} requests each\n");
    println!("| algorithm | bytes a bucket | all buckets | Redis CPU a decision |");
    println!("|---|---|---|---|");
    for (name, quota) in quotas() {
        let [bytes, cpu] = runtime.block_on(measure(quota, users));
        let total = bytes * users as f64 / 1e6;
        println!("| {name} | {bytes:.0} | {total:.1} MB | {cpu:.1} us |");
    }
}

/// Bytes a bucket, and microseconds a decision.
async fn measure(quota: Quota, users: u64) -> [f64; 2] {
    let server = RedisServer::start();
    let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    redis.connected(Duration::from_secs(20)).await.unwrap();
    let memory = info(&server, "memory", "used_memory");
    let cpu = cpu(&server);
    let between = Nanos::from(DAY / u32::try_from(REQUESTS).unwrap());
    for request in 0..REQUESTS {
        let start = MIDNIGHT + Nanos::new(request * between.get());
        for first in (0..users).step_by(usize::try_from(AT_ONCE).unwrap()) {
            let some = first..users.min(first + AT_ONCE);
            let asked = some.map(|user| {
                // Users are spread over the time between two requests of one.
                let now = start + Nanos::new(user * between.get() / users);
                redis.decide(&batch(quota, user), now)
            });
            for outcome in join_all(asked).await {
                assert!(outcome.unwrap().is_allowed());
            }
        }
    }
    let decisions = (users * REQUESTS) as f64;
    [
        (info(&server, "memory", "used_memory") - memory) / users as f64,
        (self::cpu(&server) - cpu) * 1e6 / decisions,
    ]
}

fn batch(quota: Quota, user: u64) -> Batch {
    let key = format!("RequestsPerAccount:user-{user:06}");
    let transaction = Transaction::new(key.as_str().into(), quota, NonZeroU64::MIN);
    [transaction].into_iter().collect()
}

fn cpu(server: &RedisServer) -> f64 {
    info(server, "cpu", "used_cpu_user") + info(server, "cpu", "used_cpu_sys")
}

/// A number that Redis tells of itself.
fn info(server: &RedisServer, section: &str, key: &str) -> f64 {
    let text = server.command(&["INFO", section]);
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.expect(key).trim().parse().unwrap()
}
