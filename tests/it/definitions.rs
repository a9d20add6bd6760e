//! Gateways that have different definitions of a limit, for each way to change one.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::redis::{by_path, store};
use crate::support::*;

const OVERRIDE: &str = "/v1/overrides/L/one";

/// A hundred an hour, of which so many may come at once.
fn limit(burst: u64) -> String {
    format!("L: {{per: \"path:id\", burst: {burst}, count: 100, period: 1h}}")
}

fn admitted(gateway: &Gateway, requests: usize) -> usize {
    let statuses = gateway.statuses(&get("/b/one"), requests);
    statuses.iter().filter(|status| **status == 200).count()
}

/// What passes when all of these are asked in turn, more often than the burst and for longer than
/// denials are remembered: units were handed out twice about once a second.
fn admitted_in_turn(gateways: &[Gateway], span: Duration) -> usize {
    let began = Instant::now();
    let (mut all, mut rounds) = (0, 0);
    while began.elapsed() < span || rounds < 12 {
        rounds += 1;
        all += gateways
            .iter()
            .map(|gateway| admitted(gateway, 5))
            .sum::<usize>();
    }
    all
}

/// The bursts of both, and what comes back meanwhile.
fn most(began: Instant) -> usize {
    let minutes = began.elapsed().as_secs() / 36;
    usize::try_from(100 + 10 + minutes + 1).unwrap()
}

fn admin(gateway: &Gateway, request: Request) {
    let response = gateway.admin(&request.with("host", "127.0.0.1:9901"));
    assert_eq!(response.status, 200, "{}", response.text());
}

#[test]
fn an_old_and_a_new_gateway_of_a_rolling_deploy_admit_no_more_than_both_bursts() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let began = Instant::now();
    let gateways = [100, 10].map(|burst| {
        let setup = by_path(&upstream, &limit(burst));
        setup.key(&store(&redis.url())).start()
    });
    let admitted = admitted_in_turn(&gateways, Duration::from_millis(3500));
    assert!(admitted >= 100 && admitted <= most(began), "{admitted}");
}

#[test]
fn a_limit_that_one_of_two_gateways_lowers_and_raises_by_reloads_hands_out_nothing_twice() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let began = Instant::now();
    let setup = by_path(&upstream, &limit(100)).key(&store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let mut all = admitted_in_turn(&gateways, Duration::from_millis(100));
    for burst in [10, 100, 10, 100] {
        gateways[0].write("limits/defaults.yaml", &limit(burst));
        gateways[0].reload();
        all += admitted_in_turn(&gateways, Duration::from_millis(1200));
    }
    assert!(all >= 100 && all <= most(began), "{all}");
}

#[test]
fn a_limit_in_memory_that_is_lowered_and_raised_by_an_override_file_hands_out_nothing_twice() {
    let upstream = Upstream::start();
    let began = Instant::now();
    let gateway = by_path(&upstream, &limit(100)).start();
    let mut all = admitted(&gateway, 120);
    let lower = "- L: {burst: 10, count: 100, period: 1h, ids: [{id: \"one\"}]}\n";
    for overrides in [lower, "[]", lower, "[]"] {
        gateway.write("limits/overrides.yaml", overrides);
        gateway.reload();
        all += admitted(&gateway, 120);
    }
    assert!(all >= 100 && all <= most(began), "{all}");
}

#[test]
fn an_override_by_the_admin_api_hands_out_nothing_twice_while_another_gateway_does_not_know_it() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let began = Instant::now();
    let setup = by_path(&upstream, &limit(100)).key(&store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let mut all = admitted_in_turn(&gateways, Duration::from_millis(100));
    let body = json!({"burst": 10, "count": 100, "period": "1h"}).to_string();
    for _ in 0..2 {
        admin(&gateways[0], put(OVERRIDE, &body));
        all += admitted_in_turn(&gateways, Duration::from_millis(1200));
        admin(&gateways[0], request("DELETE", OVERRIDE));
        all += admitted_in_turn(&gateways, Duration::from_millis(1200));
    }
    assert!(all >= 100 && all <= most(began), "{all}");
}

#[test]
fn a_limit_that_is_lowered_from_days_to_seconds_locks_nobody_out_for_days() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let old = "L: {per: \"path:id\", burst: 100, count: 100, period: 24h}";
    let setup = by_path(&upstream, old).key(&store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    assert_eq!(admitted(&gateways[0], 110), 100);
    let new = "L: {per: \"path:id\", burst: 2, count: 10, period: 1s}";
    gateways[0].write("limits/defaults.yaml", new);
    gateways[0].reload();
    eventually("a unit by the new rate", || {
        (admitted(&gateways[0], 1) == 1).then_some(())
    });
    assert_eq!(
        admitted(&gateways[1], 5),
        0,
        "the old one's bucket is empty"
    );
}
