//! Gateways whose machines' clocks differ, and a Redis whose clock is set.

use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use weir::limit::{Algorithm, Alignment, Batch, BucketKey, Quota, Transaction};
use weir::store::{Memory, MemorySettings, Store};
use weir::time::{Nanos, Timestamp};

use crate::redis::{by_path, store};
use crate::support::tap::Tap;
use crate::support::*;

/// By how many seconds the clocks of three gateways are off.
const OFFSETS: [i64; 3] = [-3600, 0, 3600];

const COUNT: u64 = 200;
const PERIOD: Duration = Duration::from_secs(2);

/// How long one bucket of each algorithm is asked about: seven periods and a half.
const ROUNDS_FOR: Duration = Duration::from_secs(15);

fn algorithms() -> Vec<(&'static str, Quota)> {
    let windowed = |algorithm| Quota::windowed(algorithm, COUNT, PERIOD).unwrap();
    let count_denied = false;
    vec![
        ("gcra", Quota::new(COUNT, COUNT, PERIOD).unwrap()),
        (
            "fixed_window",
            windowed(Algorithm::FixedWindow(Alignment::Period)),
        ),
        (
            "first_request",
            windowed(Algorithm::FixedWindow(Alignment::FirstRequest)),
        ),
        (
            "sliding_window",
            windowed(Algorithm::SlidingWindow { count_denied }),
        ),
        (
            "sliding_log",
            windowed(Algorithm::SlidingLog { count_denied }),
        ),
    ]
}

fn an_hour_apart(setup: &Setup) -> [Gateway; 3] {
    OFFSETS.map(|seconds| {
        let gateway = Gateway::start_with_clock_off_by(setup.written(), seconds);
        let shown = "weir_store_clock_offset_seconds";
        eventually("a clock that was measured", || {
            let offset = gateway.metric(shown)?;
            ((offset - seconds as f64).abs() < 1.0).then_some(())
        });
        gateway
    })
}

/// The wall clock of this machine, which is Redis's.
fn now() -> Timestamp {
    use weir::time::{Clock, SystemClock};
    SystemClock.now()
}

/// Whether a memory store with one clock lets the same request pass at that moment.
fn by_one_clock(memory: &Memory, name: &str, quota: Quota, at: Timestamp) -> bool {
    let transaction = Transaction::new(BucketKey::from(name), quota, 1.try_into().unwrap());
    let outcome = memory.decide(&Batch::from_iter([transaction]), at);
    outcome.now_or_never().unwrap().unwrap().is_allowed()
}

/// The reference is asked about the very same requests, at the moments at which the gateways
/// decided them, so it does not matter how fast this machine is.
#[test]
fn gateways_an_hour_apart_admit_what_one_clock_would_within_one_per_cent() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let count = format!("per: \"path:id\", count: {COUNT}, period: 2s");
    let setup = Setup::before(&upstream)
        .limits(&[
            &format!("G: {{burst: {COUNT}, {count}}}"),
            &format!("F: {{algorithm: fixed_window, {count}}}"),
            &format!("R: {{algorithm: fixed_window, align: first_request, {count}}}"),
            &format!("W: {{algorithm: sliding_window, {count}}}"),
            &format!("S: {{algorithm: sliding_log, {count}}}"),
        ])
        .routes(&[
            "{match: {path: \"/gcra/{id}\"}, upstream: app, limits: [G]}",
            "{match: {path: \"/fixed_window/{id}\"}, upstream: app, limits: [F]}",
            "{match: {path: \"/first_request/{id}\"}, upstream: app, limits: [R]}",
            "{match: {path: \"/sliding_window/{id}\"}, upstream: app, limits: [W]}",
            "{match: {path: \"/sliding_log/{id}\"}, upstream: app, limits: [S]}",
        ])
        .key(&store(&redis.url()))
        .key("log: {access: false}");
    let gateways = an_hour_apart(&setup);
    thread::scope(|scope| {
        for (name, quota) in algorithms() {
            let mut clients = gateways.each_ref().map(Gateway::client);
            scope.spawn(move || {
                let memory = Memory::new(MemorySettings::default());
                let request = get(&format!("/{name}/a"));
                let (begin, mut slowest) = (Instant::now(), Nanos::ZERO);
                let (mut admitted, mut expected) = (0_u64, 0_u64);
                for turn in 0.. {
                    if begin.elapsed() > ROUNDS_FOR {
                        break;
                    }
                    let sent = now();
                    admitted += u64::from(clients[turn % 3].send(&request).status == 200);
                    let took = now().since(sent);
                    slowest = slowest.max(took);
                    let middle = sent + Nanos::new(took.get() / 2);
                    expected += u64::from(by_one_clock(&memory, name, quota, middle));
                }
                println!("{name}: {admitted} admitted, {expected} by one clock");
                assert!(admitted > COUNT, "{name}: {admitted}");
                // A request may have been decided that much sooner or later.
                let blur = COUNT * slowest.get() / Nanos::from(PERIOD).get();
                assert!(
                    admitted.abs_diff(expected) <= expected / 100 + blur,
                    "{name}: {admitted} admitted, {expected} by one clock"
                );
            });
        }
    });
    for (gateway, seconds) in gateways.iter().zip(OFFSETS) {
        let told = gateway.times_logged("this gateway's clock and the store's differ");
        assert_eq!(told, usize::from(seconds != 0), "{seconds}");
        assert_eq!(gateway.times_logged("the store is out of reach"), 0);
    }
}

/// What one gateway bans, no other lets through, however long it takes for a ban to be over; and
/// nothing that the others deny or look at makes it shorter.
#[test]
fn a_ban_stays_on_gateways_an_hour_apart() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1000, count: 1000, period: 1h}"])
        .limited_by("L")
        .key(
            "bans: {trapped: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, \
             for: 30m}}",
        )
        .key(&store(&redis.url()));
    let gateways = an_hour_apart(&setup);
    for judge in &gateways {
        assert_eq!(judge.send(&get("/trap")).status, 200);
        judge.logs("ban begun", 1);
        for gateway in &gateways {
            // Denials are remembered for a second; the admin API reads Redis.
            for _ in 0..3 {
                let response = gateway.send(&get("/"));
                assert_eq!(response.status, 429);
                let retry: u64 = response.field("retry-after").unwrap().parse().unwrap();
                assert!((1700..=1800).contains(&retry), "{retry}");
            }
            let shown = gateway
                .admin(&get("/v1/bans/trapped/127.0.0.1").with("host", "localhost"))
                .json();
            assert_eq!(shown["banned"], true, "{shown}");
            let left = shown["ends_in"].as_f64().unwrap();
            assert!((1700.0..=1800.0).contains(&left), "{shown}");
        }
        let lift = request("DELETE", "/v1/bans/trapped/127.0.0.1").with("host", "localhost");
        let lifted = judge.admin(&lift);
        assert_eq!(lifted.status, 200);
        // Others may remember that it was in force.
        for gateway in &gateways {
            eventually("a ban that was lifted", || {
                (gateway.send(&get("/")).status == 200).then_some(())
            });
        }
    }
}

/// With clocks of their own they are refused the store, as before.
#[test]
fn by_its_own_clock_a_gateway_that_is_an_hour_off_does_not_use_the_store() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let url = redis.url();
    let setup = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 1, count: 1, period: 1h}",
    )
    .key(&format!(
        "store: {{redis: {{url: \"{url}\", on_failure: deny}}, clock: local}}"
    ));
    let gateway = Gateway::start_with_clock_off_by(setup.written(), -3600);
    gateway.logs("the store is out of reach", 1);
    assert_eq!(gateway.send(&get("/b/a")).status, 503);
    assert_eq!(redis.calls("bitfield"), 0);
}

#[test]
fn a_jump_of_redis_s_clock_is_followed_and_hands_out_nothing_when_it_goes_back() {
    let redis = RedisServer::start();
    let tap = Tap::before(&redis);
    let upstream = Upstream::start();
    let setup = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 5, count: 1, period: 30m}",
    )
    .key(&store(&tap.url()));
    let gateways = [setup.start(), setup.start()];
    let jumped = |times| {
        for gateway in &gateways {
            gateway.logs("the store's clock has jumped", times);
        }
    };
    let pass = |bucket: &str, requests| {
        let request = get(&format!("/b/{bucket}"));
        let statuses = gateways
            .each_ref()
            .map(|gateway| gateway.statuses(&request, requests));
        let passed = statuses.iter().flatten().filter(|status| **status == 200);
        passed.count()
    };
    assert_eq!(pass("a", 5), 5);
    // A bucket of 5 has debts of two hours and a half at most.
    tap.set_clock_ahead_by(-36_000);
    jumped(1);
    assert_eq!(pass("a", 5), 0);
    assert_eq!(pass("b", 5), 5);
    for gateway in &gateways {
        assert_eq!(gateway.times_logged("the store is out of reach"), 0);
        let offset = gateway.metric("weir_store_clock_offset_seconds").unwrap();
        assert!((offset - 36_000.0).abs() < 1.0, "{offset}");
    }
    // Forward, what would have come back is back.
    tap.set_clock_ahead_by(0);
    jumped(2);
    eventually("a bucket that is full again", || {
        (pass("b", 5) == 5).then_some(())
    });
}

#[test]
fn a_small_jump_of_redis_s_clock_is_slewed() {
    let redis = RedisServer::start();
    let tap = Tap::before(&redis);
    let upstream = Upstream::start();
    let setup = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 1, count: 1, period: 1h}",
    );
    let gateway = setup.key(&store(&tap.url())).start();
    let slew = || gateway.metric("weir_store_clock_slew_seconds");
    eventually("a clock that was measured", || {
        (slew()?.abs() < 0.3).then_some(())
    });
    tap.set_clock_ahead_by(-1);
    let first = eventually("a slew", || slew().filter(|slew| *slew > 0.3));
    assert!(first <= 1.1, "{first}");
    eventually("a smaller slew", || slew().filter(|slew| *slew < 0.25));
    assert_eq!(gateway.times_logged("the store's clock has jumped"), 0);
}
