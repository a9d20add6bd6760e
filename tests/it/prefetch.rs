//! Hot buckets, of which gateways take units ahead of their requests.
//!
//! Units may be held for seconds here, and not for a tenth of one as by default, so that a slow
//! machine has hot buckets as well.

use crate::redis::store;
use crate::support::*;

const BUCKET: &str = "/v1/buckets/L/127.0.0.1";

/// Gateways that share one limit, which they prefetch.
fn gateways<const N: usize>(redis: &RedisServer, upstream: &Upstream, limit: &str) -> [Gateway; N] {
    let setup = Setup::before(upstream)
        .limits(&[&format!("L: {{per: address, {limit}}}")])
        .limited_by("L")
        .key(&store(&redis.url()));
    std::array::from_fn(|_| setup.start())
}

/// Two clients on each gateway, who send until there have been so many requests on each; all
/// answers, in the order in which they came.
fn send_to_all(gateways: &[Gateway], requests: usize) -> Vec<Answered> {
    let loads: Vec<_> = gateways
        .iter()
        .map(|gateway| Load::start(gateway.address(), 2, |_, _| get("/")))
        .collect();
    loads.iter().for_each(|load| load.go_on_for(requests));
    let reports = loads.into_iter().map(Load::stop);
    let mut answers: Vec<_> = reports.flat_map(|report| report.answers).collect();
    answers.sort_by_key(|answer| answer.received);
    answers
}

fn admitted(answers: &[Answered]) -> Vec<&Answered> {
    let admitted = answers.iter().filter(|answer| answer.status == 200);
    admitted.collect()
}

/// Commands that touch buckets.
fn commands(redis: &RedisServer) -> u64 {
    redis.calls("bitfield") + redis.calls("pexpire")
}

fn remaining(gateway: &Gateway) -> u64 {
    let shown = gateway.admin(&get(BUCKET).with("host", "localhost"));
    shown.json()["remaining"].as_u64().expect("a bucket")
}

#[test]
fn a_hot_bucket_costs_redis_a_twentieth_of_a_command_for_each_request_at_most() {
    const REQUESTS: usize = 3000;
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let limit = "burst: 20000, count: 20000, period: 1s, prefetch: {units: 1%, max_age: 10s}";
    let gateways: [Gateway; 2] = gateways(&redis, &upstream, limit);
    let before = commands(&redis);
    let answers = send_to_all(&gateways, REQUESTS);
    let sent = answers.len();
    assert_eq!(admitted(&answers).len(), sent);
    let commands = commands(&redis) - before;
    assert!(commands * 20 <= sent as u64, "{commands} for {sent}");
}

#[test]
fn gateways_that_prefetch_admit_no_more_than_the_bucket_holds_and_ask_little_when_it_is_empty() {
    const BURST: usize = 2000;
    const HELD: usize = 2 * 100;
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let limit = "burst: 2000, count: 1, period: 1h, prefetch: {units: 100, max_age: 10s}";
    let gateways: [Gateway; 2] = gateways(&redis, &upstream, limit);
    let before = commands(&redis);
    let answers = send_to_all(&gateways, 2000);
    let (sent, admitted) = (answers.len(), admitted(&answers).len());
    assert!((BURST - HELD..=BURST).contains(&admitted), "{admitted}");
    let commands = commands(&redis) - before;
    assert!(commands * 20 <= sent as u64, "{commands} for {sent}");
}

#[test]
fn over_admission_stays_within_what_check_says_in_every_time() {
    const BURST: usize = 100;
    const A_SECOND: f64 = 200.0;
    const HELD: usize = 2 * 50;
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let limit = "burst: 100, count: 200, period: 1s, prefetch: {units: 50, max_age: 1s}";
    let gateways: [Gateway; 2] = gateways(&redis, &upstream, limit);
    let answers = send_to_all(&gateways, 1500);
    let admitted = admitted(&answers);
    assert!(admitted.len() > BURST, "{}", admitted.len());
    for (first, start) in admitted.iter().enumerate() {
        let mut within = 0;
        for end in &admitted[first..] {
            within += usize::from(end.sent >= start.sent);
            let span = end.received - start.sent;
            let bound = BURST as f64 + A_SECOND * span.as_secs_f64() + HELD as f64;
            assert!(within as f64 <= bound, "{within} in {span:?}, of {bound}");
        }
    }
}

#[test]
fn a_drain_gives_back_what_is_held_and_a_crash_loses_no_more_than_that() {
    const BURST: u64 = 2000;
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let limit = "burst: 2000, count: 1, period: 1h, prefetch: {units: 100, max_age: 10s}";
    let [mut drained, mut killed, other] = gateways(&redis, &upstream, limit);
    assert_eq!(drained.statuses(&get("/"), 300), [200; 300]);
    assert!(remaining(&other) < BURST - 300, "nothing is held");
    drained.signal("TERM");
    assert!(drained.ended().success());
    assert_eq!(remaining(&other), BURST - 300);

    assert_eq!(killed.statuses(&get("/"), 300), [200; 300]);
    killed.signal("KILL");
    killed.ended();
    let left = remaining(&other);
    assert!((BURST - 600 - 100..=BURST - 600).contains(&left), "{left}");
}

#[test]
fn headers_and_the_log_show_what_the_store_has_and_what_is_held() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let limit = "burst: 2000, count: 1, period: 1h, prefetch: {units: 100, max_age: 10s}";
    let [gateway] = gateways(&redis, &upstream, limit);
    let mut client = gateway.client();
    let shown: Vec<String> = (0..100)
        .map(|_| {
            let response = client.send(&get("/"));
            let field = response.field("ratelimit").expect("a header").to_owned();
            field.split(';').nth(1).expect("what is left").to_owned()
        })
        .collect();
    let expected: Vec<_> = (1900..2000).rev().map(|left| format!("r={left}")).collect();
    assert_eq!(shown, expected);
    let lines = eventually("a line of the log for each request", || {
        let lines = gateway.access("/");
        (lines.len() == 100).then_some(lines)
    });
    assert_eq!(lines[0]["decided_by"], serde_json::Value::Null);
    assert_eq!(lines[99]["decided_by"], "prefetched");
}

#[test]
fn a_limit_that_stops_prefetching_is_exact_from_the_next_request_on() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let limit = "burst: 2000, count: 1, period: 1h, prefetch: {units: 100, max_age: 1s}";
    let [gateway, other] = gateways(&redis, &upstream, limit);
    assert_eq!(gateway.statuses(&get("/"), 300), [200; 300]);
    let exact = "L: {per: address, burst: 2000, count: 1, period: 1h}\n";
    gateway.write("limits/defaults.yaml", exact);
    gateway.reload();
    let before = redis.calls("bitfield");
    assert_eq!(gateway.statuses(&get("/"), 10), [200; 10]);
    assert!(redis.calls("bitfield") >= before + 10);
    eventually("what was held is given back", || {
        (remaining(&other) == 2000 - 310).then_some(())
    });
}
