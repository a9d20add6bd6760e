//! A gateway whose user has the rights that docs/REDIS.md lists, and no others, is refused nothing;
//! one whose user lacks some says so before requests come.

use serde_json::json;

use crate::support::*;
use crate::{redis, redis_cluster};

const PAGE: &str = include_str!("../../docs/REDIS.md");

/// What makes the documented user, with the rights of the limits below as well.
fn documented(right: &str) -> Vec<&'static str> {
    let line = PAGE
        .lines()
        .find(|line| line.starts_with("ACL SETUSER weir") && line.contains(right));
    let rows = PAGE.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.filter(|line| line.contains("`+multi +exec"));
    let words = rows.flat_map(|line| line.split(['`', ' ']));
    let others = words.filter(|word| word.starts_with('+'));
    line.unwrap().split(' ').chain(others).collect()
}

const LIMITS: [&str; 6] = [
    "G: {per: \"path:id\", burst: 3, count: 1, period: 1000h}",
    "F: {per: \"path:id\", algorithm: fixed_window, count: 3, period: 20000h}",
    "W: {per: \"path:id\", algorithm: sliding_window, count: 3, period: 1000h}",
    "S: {per: \"path:id\", algorithm: sliding_log, count: 3, period: 1000h}",
    "P: {per: \"path:id\", burst: 3, count: 1, period: 1000h}",
    "I: {per: \"path:id\", in_flight: 2}",
];

fn setup(upstream: &Upstream, store: &str) -> Setup {
    let route = |name: &str, limits: &str| {
        format!("{{match: {{path: \"/{name}/{{id}}\"}}, upstream: app, limits: [{limits}]}}")
    };
    let each = ["G", "F", "W", "S", "I"].map(|name| route(name, name));
    // Failed ones are given back, and one of them denies what others have taken.
    let all = route("all", "G, F, W, S, I, P");
    let trap = "{match: {path: /trap}, upstream: app}".to_owned();
    let routes: Vec<&str> = each
        .iter()
        .chain([&all, &trap])
        .map(String::as_str)
        .collect();
    Setup::before(upstream)
        .limits(&LIMITS)
        .routes(&routes)
        .key(
            "bans: {traps: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, for: 1h}}",
        )
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .file("redis.password", "PASSWORD\n")
        .key(store)
}

/// Does what a gateway can do with its store.
fn everything(gateway: &Gateway) {
    for limit in ["G", "F", "W", "S"] {
        let statuses = gateway.statuses(&get(&format!("/{limit}/a")), 4);
        assert_eq!(statuses, [200, 200, 200, 429], "{limit}");
    }
    assert_eq!(gateway.statuses(&get("/I/a"), 2), [200, 200]);
    assert_eq!(
        gateway.statuses(&get("/all/b"), 4),
        [200, 200, 200, 429],
        "all limits at once"
    );
    assert_eq!(
        gateway.statuses(&get("/all/a"), 1),
        [429],
        "some limits deny"
    );
    let ask = |request: Request| {
        let response = gateway.admin(&request.with("host", "localhost"));
        assert_eq!(response.status, 200, "{}", response.text());
    };
    for limit in ["G", "F", "W", "S", "I"] {
        ask(get(&format!("/v1/buckets/{limit}/a")));
        if limit != "I" {
            ask(post(
                &format!("/v1/buckets/{limit}/a/refund"),
                "{\"cost\": 1}",
            ));
        }
        ask(request("DELETE", &format!("/v1/buckets/{limit}/a")));
        ask(get(&format!("/v1/buckets/{limit}")));
    }
    let body = json!({ "burst": 5, "count": 1, "period": "1000h" }).to_string();
    ask(put("/v1/overrides/G/a", &body));
    ask(get("/v1/overrides"));
    ask(request("DELETE", "/v1/overrides/G/a"));
    gateway.send(&get("/trap").with("x-forwarded-for", "203.0.113.1"));
    gateway.logs("ban begun", 1);
    ask(put("/v1/bans/traps/203.0.113.2", "{\"for\": \"30m\"}"));
    ask(put(
        "/v1/bans/traps/198.51.100.0%2F24",
        "{\"for\": \"forever\"}",
    ));
    ask(get("/v1/bans"));
    ask(get("/v1/bans/traps/203.0.113.1"));
    ask(request("DELETE", "/v1/bans/traps/203.0.113.1"));
    ask(request("DELETE", "/v1/bans/traps/198.51.100.0%2F24"));
    ask(get("/v1/bans"));
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
}

#[test]
fn the_documented_user_of_one_redis_is_refused_nothing() {
    let server = RedisServer::start();
    assert!(server.command(&documented("+select")).starts_with("+OK"));
    let upstream = Upstream::start();
    let url = server.url();
    let gateway = setup(
        &upstream,
        &format!(
            "store: {{redis: {{url: \"{url}?db=3\", username: weir, \
             password: {{file: redis.password}}, timeout: 10s, on_failure: deny}}}}"
        ),
    )
    .start();
    everything(&gateway);
    assert_eq!(server.command(&["ACL", "LOG"]).lines().next(), Some("*0"));
}

#[test]
fn the_documented_user_of_a_cluster_is_refused_nothing() {
    let cluster = RedisCluster::start(0);
    for node in 0..3 {
        let made = cluster.command(node, &documented("+cluster|slots"));
        assert!(made.starts_with("+OK"), "{made}");
    }
    let upstream = Upstream::start();
    let store = redis_cluster::store(&cluster, "deny");
    let login = "username: weir, password: {file: redis.password}, timeout";
    let gateway = setup(&upstream, &store.replace("timeout", login)).start();
    everything(&gateway);
    for node in 0..3 {
        let log = cluster.command(node, &["ACL", "LOG"]);
        assert_eq!(log.lines().next(), Some("*0"), "{log}");
    }
}

/// Waits until `/readyz` says this, in part; the whole of it.
fn readiness(gateway: &Gateway, status: u16, part: &str) -> String {
    eventually(&format!("/readyz with {status} and {part:?}"), || {
        let response = gateway.admin(&get("/readyz"));
        let text = response.text().to_owned();
        (response.status == status && text.contains(part)).then_some(text)
    })
}

fn without(server: &RedisServer, rights: &[&str]) {
    let words = ["ACL", "SETUSER", "default"];
    let words: Vec<_> = words.iter().chain(rights).copied().collect();
    assert!(server.command(&words).starts_with("+OK"));
}

/// A rolling deployment went on, and then all requests got 503, or each gateway counted alone.
#[test]
fn a_gateway_that_lacks_a_right_of_all_limits_is_not_ready_before_a_request_comes() {
    for on_failure in ["deny", "local"] {
        let server = RedisServer::start();
        without(&server, &["-bitfield"]);
        let upstream = Upstream::start();
        let url = server.url();
        let gateway = Setup::before(&upstream)
            .limits(&["L: {per: global, burst: 2, count: 1, period: 1h}"])
            .limited_by("L")
            .key(&format!(
                "store: {{redis: {{url: \"{url}\", timeout: 10s, on_failure: {on_failure}}}}}"
            ))
            .start();
        let why = readiness(&gateway, 503, "BITFIELD");
        assert!(why.contains("`+bitfield` by ACL SETUSER"), "{why}");
        assert!(why.contains("Redis says \"NOPERM "), "{why}");
        gateway.log_tells("no right to BITFIELD");
        without(&server, &["+bitfield"]);
        readiness(&gateway, 200, "ready");
        assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
    }
}

#[test]
fn a_gateway_that_lacks_a_right_of_some_limits_is_not_ready_while_it_has_such_limits() {
    const REFUSED: &str = "the store does not carry out all commands that the limits need; the \
                           gateway is not ready";
    const AGAIN: &str = "the store carries out all commands that the limits need";
    let server = RedisServer::start();
    without(&server, &["-hincrby", "-zadd"]);
    let upstream = Upstream::start();
    let limits = |algorithm: &str| {
        [
            "L: {per: global, burst: 2, count: 1, period: 1h}".to_owned(),
            format!("W: {{per: global, count: 2, period: 1h, algorithm: {algorithm}}}"),
        ]
    };
    let written = limits("sliding_window");
    let gateway = Setup::before(&upstream)
        .limits(&[&written[0], &written[1]])
        .routes(&[
            "{match: {path: /l}, upstream: app, limits: [L]}",
            "{match: {path: /w}, upstream: app, limits: [W]}",
        ])
        .key(&redis::store(&server.url()))
        .start();
    let why = readiness(&gateway, 503, "HINCRBY");
    assert!(!why.contains("ZADD"), "{why}");
    gateway.logs(REFUSED, 1);
    assert_eq!(gateway.statuses(&get("/l"), 3), [200, 200, 429]);
    assert_eq!(gateway.statuses(&get("/w"), 1), [503]);
    gateway.write("limits/defaults.yaml", &limits("sliding_log").join("\n"));
    gateway.reload();
    readiness(&gateway, 503, "ZADD");
    gateway.write("limits/defaults.yaml", &limits("fixed_window").join("\n"));
    gateway.reload();
    readiness(&gateway, 200, "ready");
    gateway.logs(AGAIN, 1);
    gateway.write("limits/defaults.yaml", &written.join("\n"));
    gateway.reload();
    readiness(&gateway, 503, "HINCRBY");
    without(&server, &["+hincrby"]);
    readiness(&gateway, 200, "ready");
    assert_eq!(gateway.statuses(&get("/w"), 1), [200]);
}

/// What a server does not know is told as that, and not as a right to be granted.
#[test]
fn a_command_that_the_server_does_not_know_is_told_with_another_remedy_than_a_right() {
    let server = RedisServer::start_with(|_| {
        ["--port", "0", "--rename-command", "BITFIELD", ""]
            .map(Into::into)
            .into()
    });
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: global, burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&redis::store(&server.url()))
        .start();
    let why = readiness(&gateway, 503, "does not know BITFIELD");
    assert!(why.contains("rename-command"), "{why}");
    assert!(!why.contains("ACL SETUSER"), "{why}");
}

/// One line a minute for all of them let a list hide what fails each request.
#[test]
fn each_command_that_is_refused_is_told_whatever_was_told_before() {
    let server = RedisServer::start();
    without(&server, &["-zrangebyscore", "-zscore"]);
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["W: {per: global, count: 5, period: 1h, algorithm: sliding_window}"])
        .limited_by("W")
        .key(&redis::store(&server.url()))
        .start();
    gateway.log_tells("no right to ZSCORE");
    without(&server, &["-hincrby"]);
    gateway.send(&get("/"));
    gateway.log_tells("no right to HINCRBY");
}

#[test]
fn what_a_full_redis_says_is_in_the_log_as_it_says_it_and_nothing_of_rights() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: global, burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&redis::store(&server.url()))
        .start();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let why = eventually("the reason", || {
        assert_eq!(gateway.send(&get("/")).status, 503);
        let response = gateway.admin(&get("/readyz"));
        let text = response.text().to_owned();
        text.contains("memory is full").then_some(text)
    });
    let said = "Redis says \"OOM command not allowed when used memory > 'maxmemory'.\"";
    assert!(why.contains(said), "{why}");
    assert!(
        !gateway.log_text().contains("right"),
        "{}",
        gateway.log_text()
    );
}
