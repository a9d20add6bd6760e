//! How upstreams share requests among their servers, as it is written.

use std::time::Duration;

use http::StatusCode;
use weir_proxy::Balance;

use super::*;

fn gateway(upstream: &str) -> Folder {
    let gateway = format!(
        "upstreams:\n  app: {{{upstream}}}\nroutes:\n  - {{match: {{path: \"/*\"}}, upstream: app, limits: []}}\n"
    );
    Folder::with(&[("gateway.yaml", &gateway)])
}

const TWO: &str = r#"servers: ["http://a:1", {url: "http://b:2", weight: 3}]"#;

#[test]
fn servers_are_balanced_ejected_and_retried_by_default() {
    let settings = gateway(TWO).settings();
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    let app = &settings.upstreams[0].settings;
    let names: Vec<_> = app.servers.iter().map(|server| &**server.name()).collect();
    assert_eq!(names, ["a:1", "b:2"]);
    assert_eq!(app.servers[1], app.servers[1].clone().with_weight(3));
    assert_eq!(app.balance, Balance::RoundRobin);
    let ejection = app.ejection.as_ref().unwrap();
    assert!(ejection.status.contains(StatusCode::INTERNAL_SERVER_ERROR));
    assert_eq!((ejection.failures, ejection.max_ejected), (5, 50));
    let retries = app.retries.as_ref().unwrap();
    assert!(retries.on_closed && retries.on_timeout && retries.on_status.is_empty());
}

#[test]
fn a_hash_by_account_needs_accounts() {
    let hashed = |more: &str| {
        let folder = gateway(&format!("{TWO}, balance: {{hash: account}}"));
        let text = fs::read_to_string(folder.gateway()).unwrap();
        folder.write("gateway.yaml", &format!("{more}{text}"));
        folder.findings()
    };
    let found = hashed("");
    assert!(
        found.contains("a hash of the account, which is never there"),
        "{found}"
    );
    assert!(found.contains("say under `account`"), "{found}");
    let found = hashed("account: [{header: x-account}]\nhash_key: {env: PATH}\n");
    assert_eq!(found, "0 errors, 0 warnings");
}

#[test]
fn everything_can_be_set_or_turned_off() {
    let off = gateway(&format!("{TWO}, ejection: off, retries: off")).settings();
    let off = &off.upstreams[0].settings;
    assert_eq!((&off.ejection, &off.retries), (&None, &None));
    let set = gateway(&format!(
        "{TWO}, balance: least_requests, slow_start: 10s, \
         ejection: {{failures: 2, status: 503, base_time: 3s, max_time: 9s, max_ejected: 100%}}, \
         retries: {{budget: 5%, on: [timeout, 502-503]}}"
    ));
    let set = set.settings();
    let set = &set.upstreams[0].settings;
    assert_eq!(set.balance, Balance::LeastRequests);
    assert_eq!(set.slow_start, Duration::from_secs(10));
    let ejection = set.ejection.as_ref().unwrap();
    let times = (ejection.base_time.as_secs(), ejection.max_time.as_secs());
    assert_eq!(
        (ejection.failures, ejection.max_ejected, times),
        (2, 100, (3, 9))
    );
    assert!(!ejection.status.contains(StatusCode::INTERNAL_SERVER_ERROR));
    let retries = set.retries.as_ref().unwrap();
    assert!(!retries.on_closed && retries.on_timeout);
    assert!(retries.on_status.contains(StatusCode::BAD_GATEWAY));
    assert_eq!(retries.budget, 5);
}

#[test]
fn a_hash_has_the_sources_of_limits() {
    let settings = gateway(&format!(
        "{TWO}, balance: {{hash: [address, \"cookie:s\"]}}"
    ))
    .settings();
    let app = &settings.upstreams[0];
    assert_eq!(app.settings.balance, Balance::Hash);
    let sources = app.hash.as_ref().unwrap().sources();
    let sources: Vec<_> = sources.iter().map(ToString::to_string).collect();
    assert_eq!(sources, ["address/64", "cookie:s"]);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_remedy() {
    let one = r#"servers: ["http://a:1"]"#;
    for (upstream, message) in [
        (format!("{TWO}, balance: fastest"), "fastest"),
        (
            format!("{TWO}, balance: {{hash: colour}}"),
            "unknown source \"colour\"",
        ),
        (
            format!("{TWO}, balance: {{hash: address}}, slow_start: 3s"),
            "do not go together",
        ),
        (
            format!("{TWO}, ejection: on"),
            "`on` is neither `off` nor keys and values",
        ),
        (
            format!("{TWO}, ejection: {{failures: 0}}"),
            "no failures eject no server",
        ),
        (
            format!("{TWO}, ejection: {{base_time: 5m, max_time: 1m}}"),
            "`base_time` exceeds `max_time`",
        ),
        (
            format!("{TWO}, ejection: {{max_ejected: half}}"),
            "`half` is not a percentage",
        ),
        (
            format!("{TWO}, retries: {{budget: 120%}}"),
            "`120%` is not a percentage",
        ),
        (
            format!("{TWO}, retries: {{on: []}}"),
            "there is nothing to retry on",
        ),
        (
            format!("{TWO}, retries: {{on: connect}}"),
            "`connect` is not a reason to retry",
        ),
        (
            r#"servers: [{url: "http://a:1", weight: 0}]"#.to_owned(),
            "a weight is a number",
        ),
        (
            format!("{one}, balance: least_requests"),
            "the upstream has one server",
        ),
    ] {
        let findings = gateway(&upstream).findings();
        assert!(findings.contains(message), "{upstream}: {findings}");
    }
}

#[test]
fn servers_are_checked_if_a_path_says_how() {
    let settings = gateway(&format!("{TWO}, health_check: {{path: /health}}")).settings();
    let check = settings.upstreams[0]
        .settings
        .health_check
        .as_ref()
        .unwrap();
    assert_eq!(
        (
            &*check.path,
            check.interval.as_secs(),
            check.timeout.as_secs()
        ),
        ("/health", 5, 1)
    );
    assert_eq!((check.healthy_after, check.unhealthy_after), (2, 3));
    let settings = gateway(&format!(
        "{TWO}, health_check: {{path: \"/h?x\", interval: 2s, timeout: 3s, healthy_after: 4, \
         unhealthy_after: 5, expect: 204}}"
    ));
    let settings = settings.settings();
    let check = settings.upstreams[0]
        .settings
        .health_check
        .as_ref()
        .unwrap();
    assert_eq!(
        (
            &*check.path,
            check.interval.as_secs(),
            check.timeout.as_secs()
        ),
        ("/h?x", 2, 3)
    );
    assert_eq!((check.healthy_after, check.unhealthy_after), (4, 5));
    assert!(
        check.expect.contains(StatusCode::NO_CONTENT) && !check.expect.contains(StatusCode::OK)
    );
    for (check, message) in [
        ("path: health", "`health` is not a path"),
        ("path: \"/ok now\"", "`/ok now` is not a path"),
        ("path: /, healthy_after: 0", "no checks decide nothing"),
        ("interval: 1s", "path"),
    ] {
        let findings = gateway(&format!("{TWO}, health_check: {{{check}}}")).findings();
        assert!(findings.contains(message), "{check}: {findings}");
    }
}

#[test]
fn a_cookie_that_anybody_could_sign_or_that_two_upstreams_share_is_refused() {
    let found = |sticky: &str| {
        let folder = gateway(&format!("{TWO}, sticky: {{{sticky}}}"));
        folder.write("short.key", "0123456789abcde\n");
        folder.write("sticky.key", "0123456789abcdef\n");
        folder.findings()
    };
    assert_eq!(
        found("cookie: own, key: {file: sticky.key}, max_age: 1h"),
        "0 errors, 0 warnings"
    );
    assert_eq!(
        found("cookie: own, key: [{env: PATH}, {file: sticky.key}]"),
        "0 errors, 0 warnings"
    );
    for (sticky, message) in [
        ("cookie: own", "the key \"key\" is missing"),
        ("cookie: own, key: []", "no key to sign cookies with"),
        ("cookie: own, key: {file: short.key}", "fewer than 16 bytes"),
        (
            "cookie: own, key: [{file: sticky.key}, {file: short.key}]",
            "fewer than 16 bytes",
        ),
        ("cookie: own, key: 0123456789abcdef", "sticky.key"),
        (
            "cookie: \"a b\", key: {file: sticky.key}",
            "is not the name of a cookie",
        ),
        (
            "cookie: \"\", key: {file: sticky.key}",
            "is not the name of a cookie",
        ),
        (
            "cookie: own, key: {file: sticky.key}, max_age: 0s",
            "leaves no time",
        ),
    ] {
        let found = found(sticky);
        assert!(found.contains(message), "{message}: {found}");
    }
    let sticky = "sticky: {cookie: own, key: {env: PATH}}";
    let folder = gateway(&format!("{TWO}, {sticky}}}\n  api: {{{TWO}, {sticky}"));
    let found = folder.findings();
    assert!(
        found.contains("upstream \"app\" sets the cookie `own` too"),
        "{found}"
    );
}

#[test]
fn a_file_of_servers_is_checked_as_the_list_is_that_it_stands_for() {
    let found = |upstream: &str, text: Option<&str>| {
        let folder = gateway(upstream);
        if let Some(text) = text {
            folder.write("servers.yaml", text);
        }
        folder.findings()
    };
    let file = "servers_file: servers.yaml";
    let servers = "- http://a:1\n- {url: \"http+srv://_http._tcp.b\"}\n- unix:///c.sock\n";
    assert_eq!(found(file, Some(servers)), "0 errors, 0 warnings");
    assert_eq!(
        found(file, Some("[\"http://a:1\"]")),
        "0 errors, 0 warnings"
    );
    for (upstream, text, message) in [
        (file, None, "servers.yaml: there is no such file"),
        (
            file,
            Some("# none yet\n"),
            "servers.yaml: the file is empty",
        ),
        (file, Some("[]"), "an upstream needs at least one server"),
        (
            file,
            Some("- http://a:1\n- a:2\n"),
            "servers.yaml:2:3: [1]: `a:2` lacks its scheme",
        ),
        (file, Some("app: [\"http://a:1\"]"), "servers.yaml:1:1"),
        (
            file,
            Some("- http://127.0.0.1:8080"),
            "the gateway itself listens there",
        ),
        (
            "servers_file: servers.yaml, builtin: echo",
            Some("- http://a:1"),
            "one of `servers`",
        ),
        (
            "servers_file: servers.yaml, servers: [\"http://a:1\"]",
            None,
            "one of `servers`",
        ),
    ] {
        let found = found(upstream, text);
        assert!(found.contains(message), "{message}: {found}");
    }
}
