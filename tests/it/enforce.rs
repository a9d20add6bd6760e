//! Limits that are tried without acting upon them, on all or on a share of the subjects.

use crate::redis::store;
use crate::support::*;

const LIMIT: &str = "New: {per: global, burst: 2, count: 1, period: 1h}";

fn access_of(gateway: &Gateway, path: &str, count: usize) -> Vec<serde_json::Value> {
    eventually("the access log", || {
        let lines = gateway.access(path);
        (lines.len() == count).then_some(lines)
    })
}

#[test]
fn a_dry_run_shows_in_the_log_and_the_metrics_and_nowhere_else() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let plain = Setup::before(&upstream).limits(&[LIMIT]).limited_by("New");
    let in_redis = plain.clone().key(&store(&redis.url()));
    for setup in [plain, in_redis] {
        let gateway = setup.key("enforce: false").start();
        for _ in 0..5 {
            let passed = gateway.send(&get("/"));
            assert_eq!(passed.status, 200);
            assert_eq!(passed.field("ratelimit"), None);
            assert_eq!(passed.field("ratelimit-policy"), None);
        }
        let lines = access_of(&gateway, "/", 5);
        let mut told: Vec<_> = lines
            .iter()
            .map(|line| (line["decision"].as_str().unwrap(), line["limit"].as_str()))
            .collect();
        // A worker may write its line later than another one that got the next request.
        told.sort_unstable();
        assert_eq!(told[..2], [("allowed", None); 2]);
        assert_eq!(told[2..], [("would_deny", Some("New")); 3]);
        let counted = |decision: &str| {
            let labels = format!("{{limit=\"New\",decision=\"{decision}\"}} ");
            gateway.metric(&format!("weir_decisions_total{labels}"))
        };
        assert_eq!(counted("allowed"), Some(2.0));
        assert_eq!(counted("would_deny"), Some(3.0));
        assert_eq!(counted("denied"), Some(0.0));
    }
}

#[test]
fn a_dry_run_may_be_of_a_limit_a_use_or_a_route() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "Tried: {per: route, burst: 1, count: 1, period: 1h, enforce: false}",
            "Firm: {per: route, burst: 1, count: 1, period: 1h}",
        ])
        .routes(&[
            "{match: {path: /limit}, upstream: app, limits: [Tried]}",
            "{match: {path: /use}, upstream: app, limits: [{limit: Firm, enforce: false}]}",
            "{match: {path: /route}, upstream: app, limits: [Firm], enforce: false}",
            "{match: {path: /both}, upstream: app, limits: [Tried, Firm]}",
        ])
        .start();
    for path in ["/limit", "/use", "/route"] {
        assert_eq!(gateway.statuses(&get(path), 3), [200; 3], "{path}");
    }
    let both = [gateway.send(&get("/both")), gateway.send(&get("/both"))];
    assert_eq!(both.each_ref().map(|it| it.status), [200, 429]);
    let policy = both[1].field("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"Firm\"") && !policy.contains("Tried"));
    let body: serde_json::Value = serde_json::from_slice(&both[1].body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["Firm"]));
}

#[test]
fn a_shadow_ban_is_not_acted_upon_in_a_dry_run_either() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("decoys: {sent: {status: 200, body: invented}}")
        .limits(&[LIMIT])
        .routes(&[
            "{match: {}, upstream: app, limits: [New], on_denied: {shadow: sent}, enforce: false}",
        ])
        .start();
    for _ in 0..4 {
        assert_eq!(gateway.send(&get("/")).text(), "real");
    }
    assert_eq!(upstream.count(), 4);
}

/// The subjects, of a hundred, whose second request is denied.
fn acted_on(gateway: &Gateway) -> Vec<usize> {
    let second = |number: &usize| {
        let request = get(&format!("/{number}"));
        gateway.statuses(&request, 2)[1] == 429
    };
    (0..100).filter(second).collect()
}

#[test]
fn a_share_is_the_same_on_every_gateway_and_grows_without_letting_anybody_go() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream)
        .limits(&["L: {per: \"path:id\", burst: 1, count: 1, period: 1h}"])
        .routes(&["{match: {path: \"/{id}\"}, upstream: app, limits: [L]}"]);
    let with = |share: &str| setup.clone().key(&format!("enforce: {share}")).start();
    let (few, same, more) = (with("10%"), with("10%"), with("60%"));
    let few = acted_on(&few);
    assert!((1..30).contains(&few.len()), "{few:?}");
    assert_eq!(acted_on(&same), few);
    let more = acted_on(&more);
    assert!((40..80).contains(&more.len()), "{more:?}");
    assert!(few.iter().all(|it| more.contains(it)), "{few:?} {more:?}");
}

#[test]
fn a_dry_run_passes_without_its_store() {
    let upstream = Upstream::start();
    let nowhere = free_port();
    let gateway = Setup::before(&upstream)
        .limits(&[LIMIT])
        .limited_by("New")
        .key(&store(&format!("redis://127.0.0.1:{nowhere}/0")))
        .key("enforce: false")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 4), [200; 4]);
    let lines = access_of(&gateway, "/", 4);
    assert!(
        lines.iter().all(|it| it["decision"] == "failed_open"),
        "{lines:?}"
    );
}

#[test]
fn a_reload_ends_a_dry_run_and_the_buckets_stay() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[LIMIT])
        .limited_by("New")
        .key("enforce: false")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 4), [200; 4]);
    let yaml = gateway.read("gateway.yaml");
    gateway.write(
        "gateway.yaml",
        &yaml.replace("enforce: false", "enforce: true"),
    );
    gateway.reload();
    assert_eq!(gateway.statuses(&get("/"), 2), [429; 2]);
}
