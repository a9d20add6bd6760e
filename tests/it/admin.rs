//! The admin listener.

use crate::redis;
use crate::support::*;

#[test]
fn livez_and_readyz_say_that_all_is_well() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    for (path, text) in [("/livez", "alive\n"), ("/readyz", "ready\n")] {
        let response = gateway.admin(&get(path));
        assert_eq!((response.status, response.text()), (200, text));
    }
    assert_eq!(gateway.admin(&get("/other")).status, 404);
    let refused = gateway.admin(&post("/livez", "x"));
    assert_eq!(
        (refused.status, refused.field("allow")),
        (405, Some("GET, HEAD"))
    );
    assert_eq!(upstream.count(), 0);
}

#[test]
fn clients_do_not_get_at_the_pages_of_the_admin_listener() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    assert_eq!(gateway.send(&get("/metrics")).text(), "real");
}

#[test]
fn a_gateway_is_not_ready_while_redis_is_out_of_reach_but_alive() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: global, burst: 5, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&redis::store(&server.url()))
        .start();
    let reachable = "weir_store_reachable";
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
    assert_eq!(gateway.metric(reachable), Some(1.0));
    server.kill();
    let response = eventually("a gateway that is not ready", || {
        Some(gateway.admin(&get("/readyz"))).filter(|it| it.status == 503)
    });
    assert_eq!(response.text(), "the store is out of reach\n");
    assert_eq!(gateway.metric(reachable), Some(0.0));
    assert_eq!(gateway.admin(&get("/livez")).status, 200);
    server.restart();
    eventually("a gateway that is ready", || {
        (gateway.admin(&get("/readyz")).status == 200).then_some(())
    });
    assert_eq!(gateway.metric(reachable), Some(1.0));
}

#[test]
fn metrics_count_requests_and_decisions_and_name_no_subject() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: [address, account], burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .key("account: [header: x-api-key]")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .start();
    let request = get("/secret-path")
        .with("x-api-key", "sesame")
        .with("x-forwarded-for", "192.0.2.77");
    assert_eq!(gateway.statuses(&request, 3), [200, 200, 429]);
    let count = |status: &str, decision: &str| {
        format!("weir_requests_total{{route=\"all\",status=\"{status}\",decision=\"{decision}\"}}")
    };
    eventually("three requests", || {
        let allowed = gateway.metric(&count("2xx", "allowed"))?;
        let denied = gateway.metric(&count("4xx", "denied"))?;
        (allowed == 2.0 && denied == 1.0).then_some(())
    });
    let decision = |it: &str| format!("weir_decisions_total{{limit=\"L\",decision=\"{it}\"}}");
    assert_eq!(gateway.metric(&decision("allowed")), Some(2.0));
    assert_eq!(gateway.metric(&decision("denied")), Some(1.0));
    assert_eq!(gateway.metric("weir_memory_store_buckets"), Some(1.0));

    let page = gateway.admin(&get("/metrics"));
    assert_eq!(
        page.field("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(page.text().ends_with("# EOF\n"));
    let line = eventually("a line of the access log", || {
        gateway.access("/secret-path").pop()
    });
    let hash = line["account"].clone();
    for subject in [
        "192.0.2.77",
        "127.0.0.1",
        "sesame",
        "secret-path",
        hash.as_str().unwrap(),
    ] {
        assert!(!page.text().contains(subject), "{subject}");
    }
}

#[test]
fn metrics_count_the_calls_of_the_store_and_their_failures() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = redis::by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 1, count: 1, period: 1000h}",
    )
    .key(&redis::store(&server.url()))
    .start();
    assert_eq!(gateway.statuses(&get("/b/one"), 1), [200]);
    let calls = "weir_store_call_duration_seconds_count{call=\"decide\"}";
    assert_eq!(gateway.metric(calls), Some(1.0));
    server.stop();
    let mut client = gateway.client();
    client.write(&get("/b/two").bytes()).unwrap();
    server.kill();
    assert_eq!(client.read("GET").unwrap().status, 503);
    eventually("a failed call", || {
        let page = gateway.metrics();
        let start = "weir_store_errors_total{call=\"decide\",kind=\"";
        page.lines()
            .any(|line| line.starts_with(start))
            .then_some(())
    });
}
