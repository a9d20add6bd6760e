//! Redis fails under load: nobody hangs, what is configured for that holds, exactness returns, and
//! the log says so once.

use std::time::Duration;

use crate::redis::{by_path, store};
use crate::support::*;

const OUT_OF_REACH: &str = "the store is out of reach";
const BACK: &str = "the store is within reach again";

/// What a call of Redis may take: more than a busy machine ever makes of it.
const DEADLINE: &str = "2s";

/// What no request may exceed: the deadline, and what a busy machine adds to it.
const TOO_LONG: Duration = Duration::from_secs(20);

/// How a Redis is lost, and comes back.
#[derive(Clone, Copy)]
enum Loss {
    Killed,
    Stopped,
}

impl Loss {
    fn begin(self, redis: &mut RedisServer) {
        match self {
            Self::Killed => redis.kill(),
            Self::Stopped => redis.stop(),
        }
    }

    fn end(self, redis: &mut RedisServer) {
        match self {
            Self::Killed => redis.restart(),
            Self::Stopped => redis.resume(),
        }
    }
}

fn start(redis: &RedisServer, upstream: &Upstream, on_failure: &str) -> Gateway {
    let url = redis.url();
    by_path(
        upstream,
        "L: {per: \"path:id\", burst: 5, count: 1, period: 1000h}",
    )
    .key(&format!(
        "store: {{redis: {{url: \"{url}\", timeout: {DEADLINE}, on_failure: {on_failure}}}}}"
    ))
    .start()
}

fn buckets(client: usize, count: usize) -> Request {
    get(&format!("/b/load-{client}-{count}"))
}

/// Loses Redis under load, calls `meanwhile`, and brings it back.
fn survives(loss: Loss, on_failure: &str, while_lost: &[u16], meanwhile: impl FnOnce(&Gateway)) {
    let mut redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = start(&redis, &upstream, on_failure);
    let load = Load::start(gateway.address(), 8, buckets);
    load.go_on_for(50);

    loss.begin(&mut redis);
    gateway.logs(OUT_OF_REACH, 1);
    load.go_on_for(50);
    meanwhile(&gateway);
    loss.end(&mut redis);
    gateway.logs(BACK, 1);
    load.go_on_for(50);

    let report = load.stop();
    assert_eq!(report.failures, [""; 0]);
    assert!(report.slowest < TOO_LONG, "{:?}", report.slowest);
    for status in report.statuses {
        assert!(while_lost.contains(&status), "{status}");
    }
    let statuses = gateway.statuses(&get("/b/afterwards"), 10);
    assert_eq!(statuses, [[200; 5], [429; 5]].concat());
    assert!(redis.command(&["KEYS", "*"]).contains("weir:L:afterwards"));
    let told = [OUT_OF_REACH, BACK].map(|message| gateway.times_logged(message));
    assert_eq!(told, [1, 1], "once each");
}

fn requests_pass(gateway: &Gateway) {
    assert_eq!(gateway.statuses(&get("/b/meanwhile"), 10), [200; 10]);
    let logged = eventually("ten lines of the access log", || {
        Some(gateway.access("/b/meanwhile")).filter(|lines| lines.len() == 10)
    });
    for line in logged {
        assert_eq!(line["decision"], "failed_open");
    }
    let metric = "weir_requests_total{route=\"/b/{id}\",status=\"2xx\",decision=\"failed_open\"}";
    assert!(gateway.metric(metric).unwrap_or_default() >= 10.0);
}

fn requests_get_503(gateway: &Gateway) {
    let response = gateway.send(&get("/b/meanwhile"));
    assert_eq!(response.status, 503);
    let seconds = response.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds), "{seconds}");
    assert_eq!(
        response.field("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(
        response.json()["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
}

fn requests_are_counted_by_the_memory_store(gateway: &Gateway) {
    let statuses = gateway.statuses(&get("/b/meanwhile"), 10);
    assert_eq!(statuses, [[200; 5], [429; 5]].concat());
}

/// A Redis that comes and goes wrote a dozen pairs of lines in six seconds.
#[test]
fn a_flapping_redis_is_told_once_and_shown_each_time() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 1, count: 1, period: 1000h}",
    )
    .key(&store(&server.url()))
    .start();
    let reachable = |value: f64| {
        eventually("the state of the store", || {
            (gateway.metric("weir_store_reachable") == Some(value)).then_some(())
        });
    };
    for _ in 0..3 {
        server.kill();
        reachable(0.0);
        server.restart();
        reachable(1.0);
    }
    let told = [OUT_OF_REACH, BACK].map(|message| gateway.times_logged(message));
    assert_eq!(told, [1, 1]);
}

#[test]
fn requests_pass_while_redis_is_dead_with_on_failure_allow() {
    survives(Loss::Killed, "allow", &[200], requests_pass);
}

#[test]
fn requests_pass_while_redis_is_stopped_with_on_failure_allow() {
    survives(Loss::Stopped, "allow", &[200], requests_pass);
}

#[test]
fn requests_get_503_while_redis_is_dead_with_on_failure_deny() {
    survives(Loss::Killed, "deny", &[200, 503], requests_get_503);
}

#[test]
fn requests_get_503_while_redis_is_stopped_with_on_failure_deny() {
    survives(Loss::Stopped, "deny", &[200, 503], requests_get_503);
}

#[test]
fn the_memory_store_decides_while_redis_is_dead_with_on_failure_local() {
    let meanwhile = requests_are_counted_by_the_memory_store;
    survives(Loss::Killed, "local", &[200], meanwhile);
}

#[test]
fn the_memory_store_decides_while_redis_is_stopped_with_on_failure_local() {
    let meanwhile = requests_are_counted_by_the_memory_store;
    survives(Loss::Stopped, "local", &[200], meanwhile);
}

#[test]
fn a_flush_under_load_fails_no_request_and_fills_the_buckets() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = start(&redis, &upstream, "deny");
    let load = Load::start(gateway.address(), 4, buckets);
    assert_eq!(gateway.statuses(&get("/b/one"), 6).last(), Some(&429));
    load.go_on_for(50);
    redis.command(&["FLUSHALL"]);
    load.go_on_for(50);
    // The denial is remembered for a moment yet.
    eventually("a request that the flushed bucket admits", || {
        (gateway.send(&get("/b/one")).status == 200).then_some(())
    });
    let statuses = gateway.statuses(&get("/b/one"), 6);
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    let report = load.stop();
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.count(200), report.statuses.len());
    assert_eq!(gateway.times_logged(OUT_OF_REACH), 0);
}

#[test]
fn a_gateway_starts_without_its_redis_and_finds_it_later() {
    let mut redis = RedisServer::start();
    redis.kill();
    let upstream = Upstream::start();
    let gateway = start(&redis, &upstream, "local");
    gateway.logs(OUT_OF_REACH, 1);
    requests_are_counted_by_the_memory_store(&gateway);
    assert_eq!(gateway.admin(&get("/readyz")).status, 503);
    redis.restart();
    gateway.logs(BACK, 1);
    let statuses = gateway.statuses(&get("/b/afterwards"), 10);
    assert_eq!(statuses, [[200; 5], [429; 5]].concat());
    assert!(redis.command(&["KEYS", "*"]).contains("weir:L:afterwards"));
}

/// What a limit on addresses has left for ours, by the store.
fn remaining(gateway: &Gateway) -> serde_json::Value {
    let bucket = get("/v1/buckets/L/127.0.0.1").with("host", "127.0.0.1");
    gateway.admin(&bucket).json()["remaining"].clone()
}

fn until_remaining(gateway: &Gateway, units: u64) {
    eventually("what is left of the limit", || {
        (remaining(gateway) == units).then_some(())
    });
}

/// Five requests that a stalled Redis left with a 503 used to be charged when it went on: the sixth
/// got 429 for an hour.
#[test]
fn requests_that_got_503_are_not_charged_when_their_late_answers_come() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    for algorithm in [
        "burst: 5, count: 1",
        "algorithm: fixed_window, count: 5",
        "algorithm: fixed_window, align: first_request, count: 5",
        "algorithm: sliding_window, count: 5",
        "algorithm: sliding_log, count: 5",
    ] {
        redis.command(&["FLUSHALL"]);
        let url = redis.url();
        let gateway = Setup::before(&upstream)
            .limits(&[&format!("L: {{per: address, {algorithm}, period: 1000h}}")])
            .limited_by("L")
            .key(&format!(
                "store: {{redis: {{url: \"{url}\", timeout: 1s, on_failure: deny}}}}"
            ))
            .start();
        until_remaining(&gateway, 5);
        redis.stop();
        let statuses = gateway.statuses(&get("/"), 5);
        redis.resume();
        assert_eq!(statuses, [503; 5], "{algorithm}");
        gateway.logs(BACK, 1);
        until_remaining(&gateway, 5);
        let statuses = gateway.statuses(&get("/"), 6);
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429], "{algorithm}");
    }
}

#[test]
fn places_that_redis_gave_too_late_are_free_again() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let url = redis.url();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, in_flight: 1}"])
        .limited_by("L")
        .key(&format!(
            "store: {{redis: {{url: \"{url}\", timeout: 1s, on_failure: deny, lease: 1h}}}}"
        ))
        .start();
    assert_eq!(gateway.send(&get("/")).status, 200);
    redis.stop();
    let statuses = gateway.statuses(&get("/"), 5);
    redis.resume();
    assert_eq!(statuses, [503; 5]);
    gateway.logs(BACK, 1);
    eventually("a free place", || {
        (gateway.send(&get("/")).status == 200).then_some(())
    });
}

#[test]
fn a_client_that_leaves_before_its_late_answer_is_charged() {
    let redis = RedisServer::start();
    let tap = tap::Tap::before(&redis);
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 5, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(&store(&tap.url()))
        .start();
    until_remaining(&gateway, 5);
    redis.stop();
    let asked = || tap.decisions().len();
    let before = asked();
    let mut client = gateway.client();
    client.write(&get("/left").bytes()).unwrap();
    // One that leaves before Redis is asked takes nothing.
    eventually("the question to Redis", || (asked() > before).then_some(()));
    drop(client);
    let line = eventually("the line of a client that left", || {
        gateway.access("/left").pop()
    });
    redis.resume();
    assert_eq!(line["status"], 499);
    until_remaining(&gateway, 4);
    assert_eq!(gateway.send(&get("/")).status, 200);
    assert_eq!(remaining(&gateway), 3);
}

/// The worker without traffic used not to notice that its connection was lost. The other one found
/// Redis back, the log said so, and the next request got 503 from the first.
#[test]
fn every_worker_decides_as_soon_as_redis_is_said_to_be_back() {
    let mut redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = start(&redis, &upstream, "deny");
    // What is said in the log is said once a minute at most; the metric changes at the same moment.
    let reachable = |value: f64| {
        eventually("the state of the store", || {
            (gateway.metric("weir_store_reachable") == Some(value)).then_some(())
        });
    };
    for round in 1..=5 {
        redis.kill();
        assert_eq!(gateway.send(&get("/b/lost")).status, 503);
        reachable(0.0);
        redis.restart();
        reachable(1.0);
        // Connections spread over the workers.
        for request in 0..8 {
            let status = gateway.send(&get(&format!("/b/{round}-{request}"))).status;
            assert_eq!(status, 200, "in round {round}");
        }
    }
}

/// Ten requests a second for one such key ended the connection each time, and with it nearly all
/// requests of all others.
#[test]
fn keys_with_foreign_contents_fail_their_own_subjects_alone_and_each_is_named() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = by_path(
        &upstream,
        "L: {per: \"path:id\", algorithm: sliding_log, count: 100, period: 1000h}",
    )
    .key(&store(&server.url()))
    .start();
    for name in ["one", "other"] {
        server.command(&["ZADD", &format!("weir:L:{name}%l"), "0", "foreign"]);
    }
    for count in 0..20 {
        for name in ["one", "other"] {
            assert_eq!(gateway.send(&get(&format!("/b/{name}"))).status, 503);
        }
        let path = format!("/b/client-{}", count % 4);
        assert_eq!(gateway.send(&get(&path)).status, 200);
    }
    for name in ["one", "other"] {
        gateway.log_tells(&format!(
            "L:{name}: it holds what Weir does not write there"
        ));
    }
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
    assert_eq!(gateway.times_logged(OUT_OF_REACH), 0);
}
