//! The log: a line for the start, and one for each request.

use serde_json::Value;

use crate::support::*;

#[test]
fn the_start_is_told_to_machines_and_to_people() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "L: {per: address, burst: 3, count: 1, period: 1h}",
            "M: {per: global, algorithm: fixed_window, calendar: month, count: 9}",
        ])
        .limited_by("L, M")
        .start();
    let started = &gateway.log()[0];
    assert_eq!(started["message"], "started");
    assert_eq!(started["level"], "INFO");
    assert_eq!(
        (&started["routes"], &started["limits"]),
        (&1.into(), &2.into())
    );
    let address = gateway.address();
    let told = gateway.tells("try:");
    for part in [
        format!("weir listens on http://{address}"),
        "all: /* -> app, L, M, rejects with 429".to_owned(),
        "L: 3 at once, then one each 1h, per address".to_owned(),
        "M: 9 each month in UTC, per global".to_owned(),
        format!("try: curl -i http://{address}/"),
    ] {
        assert!(told.contains(&part), "{part} in {told}");
    }
}

#[test]
fn a_request_is_a_line_with_all_that_became_of_it() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .start();
    gateway.send(&get("/path?secret=1").with("user-agent", "test"));
    let allowed = gateway.logged("/path");
    let server = upstream.address().to_string();
    for (field, value) in [
        ("client", Value::from("127.0.0.1")),
        ("method", "GET".into()),
        ("status", 200.into()),
        ("route", "all".into()),
        ("decision", "allowed".into()),
        ("bytes", 4.into()),
        ("version", "1.1".into()),
        ("upstream", server.into()),
        ("upstream_status", 200.into()),
        ("level", "INFO".into()),
    ] {
        assert_eq!(allowed[field], value, "{field} in {allowed}");
    }
    for duration in ["duration_ms", "upstream_ms", "store_ms"] {
        assert!(allowed[duration].is_number(), "{duration} in {allowed}");
    }
    for absent in ["account", "limit", "aborted"] {
        assert!(allowed.get(absent).is_none(), "{absent} in {allowed}");
    }
    assert!(
        !gateway.log_text().contains("secret"),
        "queries may be secrets"
    );

    gateway.send(&get("/denied"));
    let denied = gateway.logged("/denied");
    assert_eq!(denied["status"], 429);
    assert_eq!(
        (&denied["decision"], &denied["limit"]),
        (&"denied".into(), &"L".into())
    );
    assert!(denied.get("upstream").is_none(), "{denied}");
}

#[test]
fn a_line_says_who_asked_for_what_and_what_it_cost() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "L: {per: address, burst: 10, count: 1, period: 1000h}",
            "M: {per: global, burst: 100, count: 1, period: 1000h}",
        ])
        .limited_by("M, {limit: L, cost: 3}")
        .start();
    let sent = |path: &str| {
        get(path)
            .with("host", "app.example.com:8080")
            .with("user-agent", "test/1.0")
            .with("referer", "https://other.example/page?token=sesame#part")
            .with("x-request-id", "abc-123")
            .with("x-forwarded-proto", "https")
    };
    gateway.send(&sent("/one?secret=1"));
    let one = gateway.logged("/one");
    for (field, value) in [
        ("host", Value::from("app.example.com:8080")),
        // The peer is no trusted proxy.
        ("scheme", "http".into()),
        ("user_agent", "test/1.0".into()),
        ("referer", "https://other.example/page".into()),
        ("request_id", "abc-123".into()),
        ("cost", 3.into()),
        ("remaining", 7.into()),
    ] {
        assert_eq!(one[field], value, "{field} in {one}");
    }
    assert!(one.get("query").is_none(), "{one}");
    for secret in ["secret", "sesame"] {
        assert!(!gateway.log_text().contains(secret), "{secret}");
    }
    assert_eq!(gateway.statuses(&sent("/two"), 3), [200, 200, 429]);
    let denied = eventually("a denied request", || {
        let mut lines = gateway.access("/two").into_iter();
        lines.find(|line| line["decision"] == "denied")
    });
    assert_eq!(
        (&denied["cost"], &denied["remaining"]),
        (&3.into(), &1.into())
    );
}

#[test]
fn a_query_is_logged_where_the_operator_wants_it_and_a_proxy_is_believed_its_scheme() {
    let upstream = Upstream::answering(|_| {
        let mut answer = upstream::text("real");
        answer
            .headers_mut()
            .insert("x-request-id", "of-the-app".parse().unwrap());
        answer
    });
    let gateway = Setup::before(&upstream)
        .key("log: {query: true}")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .start();
    let long = "x".repeat(2000);
    let request = get("/path?a=1")
        .with("x-forwarded-proto", "https")
        .with("referer", "https://other.example/?q=2")
        .with("user-agent", &long);
    gateway.send(&request);
    let line = gateway.logged("/path");
    for (field, value) in [
        ("query", "a=1"),
        ("scheme", "https"),
        ("referer", "https://other.example/?q=2"),
        ("request_id", "of-the-app"),
        ("user_agent", &long[..512]),
    ] {
        assert_eq!(line[field], value, "{field} in {line}");
    }
}

#[test]
fn the_cost_in_the_log_is_what_the_response_said_and_nothing_for_what_did_not_count() {
    let upstream = Upstream::answering(|request| {
        let mut answer = upstream::text("real");
        let cost = if request.target == "/said" { "4" } else { "0" };
        answer.headers_mut().insert("x-cost", cost.parse().unwrap());
        answer
    });
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 10, count: 1, period: 1000h}"])
        .limited_by("{limit: L, cost: {response_header: x-cost}}")
        .start();
    gateway.send(&get("/said"));
    let said = gateway.logged("/said");
    assert_eq!((&said["cost"], &said["remaining"]), (&4.into(), &6.into()));
    gateway.send(&get("/free"));
    let free = gateway.logged("/free");
    assert_eq!((&free["cost"], &free["remaining"]), (&0.into(), &6.into()));
}

#[test]
fn an_answer_to_head_is_complete_without_its_body() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .start();
    for path in ["/head", "/denied"] {
        gateway.send(&request("HEAD", path));
    }
    let denied = gateway.logged("/denied");
    assert_eq!(denied["status"], 429);
    assert!(denied.get("aborted").is_none(), "{denied}");
    let line = gateway.logged("/head");
    assert_eq!(
        (&line["method"], &line["bytes"]),
        (&"HEAD".into(), &0.into())
    );
    assert!(line.get("aborted").is_none(), "{line}");
}

#[test]
fn a_client_that_leaves_before_the_answer_is_logged_as_499() {
    let upstream = Upstream::serving(|_| std::future::pending());
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    client.write(&get("/left").bytes()).unwrap();
    eventually("the request at the upstream", || {
        (upstream.count() == 1).then_some(())
    });
    drop(client);
    let line = gateway.logged("/left");
    assert_eq!(
        (&line["status"], &line["aborted"]),
        (&499.into(), &true.into())
    );
}

/// A limit has taken from its bucket, although nobody gets the answer.
#[test]
fn what_was_decided_about_a_client_that_left_is_logged_and_counted() {
    let upstream = Upstream::serving(|_| std::future::pending());
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h, enforce: false}"])
        .limited_by("L")
        .start();
    for (path, decision) in [("/first", "allowed"), ("/second", "would_deny")] {
        let before = upstream.count();
        let mut client = gateway.client();
        client.write(&get(path).bytes()).unwrap();
        eventually("the request at the upstream", || {
            (upstream.count() > before).then_some(())
        });
        drop(client);
        let line = gateway.logged(path);
        assert_eq!(
            (&line["status"], &line["decision"]),
            (&499.into(), &decision.into())
        );
        let counted = format!("status=\"4xx\",decision=\"{decision}\"}} 1");
        eventually(&counted, || {
            gateway.metrics().contains(&counted).then_some(())
        });
    }
}

#[test]
fn a_request_without_a_route_is_logged_as_unrouted() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .routes(&["{match: {path: /only}, upstream: app}"])
        .start();
    gateway.send(&get("/other"));
    let line = gateway.logged("/other");
    assert_eq!(
        (&line["status"], &line["decision"]),
        (&404.into(), &"unrouted".into())
    );
    assert_eq!(line["route"], "-");
}

#[test]
fn the_access_log_can_be_switched_off() {
    let upstream = Upstream::start();
    let mut gateway = Setup::before(&upstream).key("log: {access: false}").start();
    gateway.send(&get("/quiet"));
    // All of the log is written when the process has ended.
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));
    gateway.logs("drained", 1);
    assert_eq!(gateway.access("/quiet").len(), 0);
}

#[test]
fn no_level_leaves_out_lines_of_the_access_log() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("log: {level: \"off,weir::telemetry=info\"}")
        .start();
    gateway.send(&get("/quiet"));
    gateway.logged("/quiet");
}

#[test]
fn a_template_is_for_lines_of_the_access_log_and_no_others() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("log: {access_format: \"{status} {path}\"}")
        .start();
    gateway.send(&get("/formatted"));
    eventually("a line by the template", || {
        let text = gateway.log_text();
        text.lines()
            .any(|line| line == "200 /formatted")
            .then_some(())
    });
    gateway.signal("HUP");
    gateway.logs("configuration unchanged", 1);
}

#[test]
fn a_path_cannot_forge_a_line() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let path = "/\"},{\"message\":\"forged";
    let mut client = gateway.client();
    client.write(&get(path).bytes()).unwrap();
    let _ = client.read("GET");
    gateway.send(&get("/after"));
    gateway.logged("/after");
    assert_eq!(gateway.times_logged("forged"), 0);
}

#[test]
fn a_failure_of_the_upstream_is_logged_with_its_cause() {
    let gone = Upstream::start();
    let address = gone.address();
    drop(gone);
    let gateway =
        Setup::with_upstreams(&format!("{{app: {{servers: [\"http://{address}\"]}}}}")).start();
    gateway.send(&get("/failed"));
    let access = gateway.logged("/failed");
    assert_eq!(access["status"], 502);
    let lines = gateway.log();
    let warning = lines
        .iter()
        .find(|line| line["message"] == "upstream request failed")
        .expect("a warning");
    assert_eq!(warning["level"], "WARN");
    assert!(
        warning["error"]
            .as_str()
            .unwrap()
            .contains(&address.to_string())
    );
    assert!(
        warning["cause"].as_str().unwrap().contains("refused"),
        "{warning}"
    );
}
