//! Limits that are counted in windows, in memory and through gateways that share a Redis.

use std::process::Command;
use std::thread;

use crate::redis::{by_path, store};
use crate::support::gateway::WEIR;
use crate::support::*;

/// Each with windows so long that none ends during a test.
const ALGORITHMS: [&str; 6] = [
    "algorithm: token_bucket, burst: 20, period: 20000h",
    "algorithm: fixed_window, period: 20000h",
    "algorithm: fixed_window, align: first_request, period: 20000h",
    "algorithm: fixed_window, calendar: month, time_zone: Europe/Berlin",
    "algorithm: sliding_window, period: 1000h",
    "algorithm: sliding_log, period: 1000h",
];

fn limit(parameters: &str) -> String {
    format!("L: {{per: \"path:id\", count: 20, {parameters}}}")
}

#[test]
fn every_algorithm_admits_its_count_and_denies_the_rest() {
    let upstream = Upstream::start();
    for parameters in ALGORITHMS {
        let gateway = by_path(&upstream, &limit(parameters)).start();
        assert_eq!(
            gateway.statuses(&get("/b/a"), 20),
            [200; 20],
            "{parameters}"
        );
        let denied = gateway.send(&get("/b/a"));
        assert_eq!(denied.status, 429, "{parameters}");
        assert!(denied.field("retry-after").is_some(), "{parameters}");
        assert_eq!(gateway.send(&get("/b/b")).status, 200, "{parameters}");
    }
}

#[test]
fn every_algorithm_admits_exactly_its_count_through_two_gateways_on_one_redis() {
    const CLIENTS: usize = 4;
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    for (number, parameters) in ALGORITHMS.into_iter().enumerate() {
        let setup = by_path(&upstream, &limit(parameters)).key(&store(&redis.url()));
        let gateways = [setup.start(), setup.start()];
        for round in 0..5 {
            let request = &get(&format!("/b/{number}-{round}"));
            let admitted: usize = thread::scope(|scope| {
                let clients: Vec<_> = (0..CLIENTS)
                    .map(|client| {
                        let mut connection = gateways[client % 2].client();
                        scope.spawn(move || {
                            let statuses = (0..10).map(|_| connection.send(request).status);
                            statuses.filter(|status| *status == 200).count()
                        })
                    })
                    .collect();
                clients.into_iter().map(|it| it.join().unwrap()).sum()
            });
            assert_eq!(admitted, 20, "{parameters}");
        }
    }
}

#[test]
fn a_windows_policy_tells_its_count_and_its_period() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, algorithm: sliding_log, count: 3, period: 1h}"])
        .limited_by("L")
        .start();
    let response = gateway.send(&get("/"));
    assert_eq!(response.field("ratelimit-policy"), Some("\"L\";q=3;w=3600"));
    assert_eq!(response.field("ratelimit"), Some("\"L\";r=2;t=3600"));
}

#[test]
fn limits_of_different_algorithms_take_together_or_not_at_all() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    for key in [String::new(), store(&redis.url())] {
        let gateway = Setup::before(&upstream)
            .limits(&[
                "A: {per: address, burst: 2, count: 1, period: 1000h}",
                "B: {per: global, algorithm: fixed_window, align: first_request, count: 9, period: 1000h}",
                "C: {per: global, algorithm: sliding_window, count: 9, period: 1000h}",
                "D: {per: global, algorithm: sliding_log, count: 9, period: 1000h}",
            ])
            .routes(&[
                "{match: {path: /all}, upstream: app, limits: [A, B, C, D]}",
                "{match: {path: /rest}, upstream: app, limits: [B, C, D]}",
            ])
            .key(&key)
            .start();
        assert_eq!(gateway.statuses(&get("/all"), 4), [200, 200, 429, 429]);
        let rest = gateway.statuses(&get("/rest"), 8);
        assert_eq!(rest, [200, 200, 200, 200, 200, 200, 200, 429], "{key}");
    }
}

#[test]
fn explain_says_how_a_limit_counts() {
    let upstream = Upstream::start();
    let folder = Setup::before(&upstream)
        .limits(&[
            "A: {per: global, algorithm: fixed_window, calendar: week, time_zone: Europe/Berlin, count: 9}",
            "B: {per: global, algorithm: fixed_window, align: first_request, count: 9, period: 1h}",
            "C: {per: global, algorithm: sliding_window, count: 9, period: 1d, count_denied: true}",
        ])
        .limited_by("A, B, C")
        .written();
    let explained = Command::new(WEIR)
        .args(["explain", "--path", "/", "--ip", "127.0.0.1", "--config"])
        .arg(folder.path().join("gateway.yaml"))
        .output()
        .unwrap();
    let explained = String::from_utf8(explained.stdout).unwrap();
    for line in [
        "  fixed_window: 9 each week in Europe/Berlin, cost 1\n  what it denies is not counted\n",
        "  fixed_window: 9 in the 1h from a first request on, cost 1\n",
        "  sliding_window: 9 in any 1d, cost 1\n  what it denies is counted as well\n",
    ] {
        assert!(explained.contains(line), "{explained}");
    }
}
