//! A gateway whose user has the rights that docs/REDIS.md lists, and no others, is refused nothing.

use serde_json::json;

use crate::redis_cluster;
use crate::support::*;

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
