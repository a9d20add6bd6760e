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

/// One of them says that this machine is asked, and the other what a web page asked for.
#[test]
fn no_request_to_the_admin_listener_may_have_two_hosts() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let one = get("/v1/config").with("host", "localhost");
    assert_eq!(gateway.admin(&one).status, 200);
    for other in ["rebound.example.com", "localhost"] {
        let two = one.clone().with("host", other);
        assert_eq!(gateway.admin(&two).status, 400, "{other}");
    }
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
    let reachable = |value: f64| {
        eventually("the state of the store", || {
            (gateway.metric("weir_store_reachable") == Some(value)).then_some(())
        });
    };
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
    reachable(1.0);
    server.kill();
    let response = eventually("a gateway that is not ready", || {
        Some(gateway.admin(&get("/readyz"))).filter(|it| it.status == 503)
    });
    let why = response.text();
    assert!(why.starts_with("the store is out of reach"), "{why}");
    eventually("the reason", || {
        let why = gateway.admin(&get("/readyz"));
        why.text()
            .starts_with("the store is out of reach: ")
            .then_some(())
    });
    reachable(0.0);
    assert_eq!(gateway.admin(&get("/livez")).status, 200);
    server.restart();
    eventually("a gateway that is ready", || {
        (gateway.admin(&get("/readyz")).status == 200).then_some(())
    });
    reachable(1.0);
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
    // Servers of upstreams are named, and they are on the same machine here.
    let lines = page.text().lines();
    let page: String = lines
        .filter(|line| !line.starts_with("weir_upstream_"))
        .collect();
    let line = gateway.logged("/secret-path");
    let hash = line["account"].clone();
    for subject in [
        "192.0.2.77",
        "127.0.0.1",
        "sesame",
        "secret-path",
        hash.as_str().unwrap(),
    ] {
        assert!(!page.contains(subject), "{subject}");
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
            .any(|line| line.starts_with(start) && !line.ends_with(" 0"))
            .then_some(())
    });
}

#[test]
fn metrics_are_for_every_scraper_and_in_openmetrics_for_those_who_ask_for_it() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
    let plain = gateway.admin(&get("/metrics"));
    let content_type = Some("text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(plain.field("content-type"), content_type);
    promtool::check_metrics(plain.text());
    let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let open = gateway.admin(&get("/metrics").with("accept", prometheus));
    let content_type = Some("application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert_eq!(open.field("content-type"), content_type);
    assert!(open.text().ends_with("# EOF\n"));
}

/// The counter of refused loads was on the page from its first event on, so that the documented
/// alert slept through it.
#[test]
fn the_first_refused_reload_is_an_alert_and_so_is_the_first_request_that_passes_unlimited() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let store = redis::store(&server.url()).replace("on_failure: deny", "on_failure: allow");
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: global, burst: 5, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&store)
        .start();
    assert_eq!(gateway.send(&get("/")).status, 200);
    let mut pages = vec![gateway.metrics(); 3];
    promtool::check_alerts(&pages, &[]);
    let right = gateway.read("limits/defaults.yaml");
    gateway.write("limits/defaults.yaml", "L: {per: nobody}");
    gateway.signal("HUP");
    gateway.logs("configuration not reloaded", 1);
    pages.push(gateway.metrics());
    promtool::check_alerts(&pages, &["WeirReloadRefused"]);
    gateway.write("limits/defaults.yaml", &right);
    gateway.signal("HUP");
    gateway.logs("configuration unchanged", 1);
    assert_eq!(
        gateway.metric("weir_config_last_load_successful"),
        Some(1.0)
    );

    let mut pages = vec![gateway.metrics(); 3];
    server.kill();
    gateway.logs("the store is out of reach", 1);
    assert_eq!(gateway.send(&get("/")).status, 200);
    let passed = eventually("a request that passed undecided", || {
        let page = gateway.metrics();
        let counted = |line: &str| line.contains("\"failed_open\"") && line.ends_with(" 1");
        page.lines().any(counted).then_some(page)
    });
    pages.push(passed.replace("weir_store_reachable 0", "weir_store_reachable 1"));
    promtool::check_alerts(&pages, &["WeirUnlimited"]);
}
