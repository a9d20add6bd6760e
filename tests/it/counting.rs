//! Limits that count by the response, by what a request says of itself, or by its body.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use http::{HeaderValue, Response, StatusCode};

use crate::redis::store;
use crate::support::upstream::{Body, Received, full, text};
use crate::support::*;

/// An app where the password is `right`.
fn logins() -> Upstream {
    Upstream::answering(|request: &Received| {
        let mut response = text("welcome");
        if request.lines("x-password") != ["right"] {
            *response.status_mut() = StatusCode::UNAUTHORIZED;
        }
        response
    })
}

fn login(account: &str, password: &str) -> Request {
    post("/login", "")
        .with("x-account", account)
        .with("x-password", password)
}

/// Five failed logins an hour, for each account.
fn failed_logins(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .key("account: [{header: x-account}]")
        .key("hash_key: {file: hash.key}")
        .file("hash.key", "0123456789abcdef0123456789abcdef")
        .limits(&["FailedLogins: {per: account, burst: 5, count: 5, period: 1h}"])
        .limited_by("{limit: FailedLogins, spend_on: {status: [401, 403]}}")
}

/// Waits until so much was done after the responses of these gateways.
fn settled(gateways: &[&Gateway], outcome: &str, times: f64) {
    let limit = format!("outcome=\"{outcome}\"}} ");
    eventually(&format!("{times} of {outcome}"), || {
        let all = gateways.iter().map(|gateway| {
            let page = gateway.metrics();
            let lines = page.lines().filter(|line| {
                line.starts_with("weir_settlements_total{") && line.contains(&limit)
            });
            let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            values.sum::<f64>()
        });
        (all.sum::<f64>() >= times).then_some(())
    });
}

#[test]
fn the_sixth_failed_login_of_an_account_is_denied_through_two_gateways_on_one_redis() {
    let redis = RedisServer::start();
    let upstream = logins();
    let setup = failed_logins(&upstream).key(&store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let try_from = |number: u8, request: &Request| {
        let address = Ipv4Addr::new(127, 0, 0, 10 + number);
        let gateway = &gateways[usize::from(number) % 2];
        let mut client = Client::connect_from(address, gateway.address());
        client.send(request)
    };
    for number in 0..20 {
        assert_eq!(try_from(number, &login("alice", "right")).status, 200);
    }
    for number in 0..5 {
        let failed = try_from(number, &login("alice", "wrong"));
        assert_eq!(failed.status, 401);
        let left = format!("\"FailedLogins\";r={};t=", 4 - number);
        assert!(failed.field("ratelimit").unwrap().starts_with(&left));
    }
    let reached = upstream.count();
    for number in 0..4 {
        let denied = try_from(number, &login("alice", "wrong"));
        assert_eq!(denied.status, 429);
        assert!(denied.field("retry-after").is_some());
        assert_eq!(try_from(number, &login("alice", "right")).status, 429);
    }
    assert_eq!(upstream.count(), reached);
    assert_eq!(try_from(0, &login("bob", "wrong")).status, 401);
    assert_eq!(try_from(1, &login("bob", "right")).status, 200);
}

/// What a response has cost is in Redis before the response is on its way to the client.
#[test]
fn who_fails_again_through_another_gateway_at_once_finds_each_failure_counted() {
    let redis = RedisServer::start();
    let upstream = logins();
    // A deadline that no machine misses.
    let store = format!(
        "store: {{redis: {{url: \"{}\", timeout: 10s}}}}",
        redis.url()
    );
    let setup = failed_logins(&upstream).key(&store);
    let gateways = [setup.start(), setup.start()];
    let mut clients = gateways.each_ref().map(Gateway::client);
    for account in 0..100 {
        let request = login(&account.to_string(), "wrong");
        let mut statuses = [0; 6];
        for (number, status) in statuses.iter_mut().enumerate() {
            *status = clients[number % 2].send(&request).status;
        }
        assert_eq!(statuses, [401, 401, 401, 401, 401, 429], "{account}");
    }
}

#[test]
fn who_fails_again_upon_each_failure_is_denied_by_memory_at_the_sixth() {
    let upstream = logins();
    let gateway = failed_logins(&upstream).start();
    let failures = gateway.statuses(&login("alice", "wrong"), 7);
    assert_eq!(failures, [401, 401, 401, 401, 401, 429, 429]);
}

#[test]
fn a_failed_upstream_gives_back_what_was_taken_even_if_nobody_is_there() {
    let gateway = Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .limits(&["Calls: {per: global, burst: 3, count: 1, period: 1h}"])
        .limited_by("{limit: Calls, refund_on: {status: 500-599}}")
        .start();
    let answers = gateway.statuses(&get("/"), 10);
    assert!(
        answers.iter().all(|it| [502, 503].contains(it)),
        "{answers:?}"
    );
    let last = gateway.send(&get("/"));
    assert!(
        last.field("ratelimit")
            .unwrap()
            .starts_with("\"Calls\";r=3;")
    );
}

/// An app that says what its answer has cost, as it is asked to.
fn tokens() -> Upstream {
    Upstream::answering(|request: &Received| {
        let mut response: Response<Body> = Response::new(full("42"));
        if let Some(tokens) = request.headers.get("x-think") {
            response.headers_mut().insert("x-tokens", tokens.clone());
        }
        if request.target == "/fail" {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            let cost = HeaderValue::from_static("1");
            response.headers_mut().insert("x-tokens", cost);
        }
        response
    })
}

fn think(tokens: &str) -> Request {
    get("/").with("x-think", tokens)
}

#[test]
fn tokens_are_charged_by_the_response_up_to_the_burst_in_redis_and_not_shown() {
    let redis = RedisServer::start();
    let upstream = tokens();
    let setup = Setup::before(&upstream)
        .limits(&["Tokens: {per: global, burst: 1000, count: 1, period: 1h}"])
        .limited_by(
            "{limit: Tokens, cost: {response_header: x-tokens, default: 10}, \
             refund_on: {status: 5xx}}",
        )
        .key(&store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let both = [&gateways[0], &gateways[1]];
    let first = gateways[0].send(&think("700"));
    assert_eq!((first.status, first.field("x-tokens")), (200, None));
    assert!(
        first
            .field("ratelimit")
            .unwrap()
            .starts_with("\"Tokens\";r=300;")
    );
    settled(&both, "spent", 1.0);
    assert_eq!(gateways[1].send(&get("/fail")).status, 500);
    let second = gateways[1].send(&get("/"));
    assert!(
        second
            .field("ratelimit")
            .unwrap()
            .starts_with("\"Tokens\";r=290;")
    );
    settled(&both, "spent", 2.0);
    // More than is left: all of it is taken, and no debt is left behind.
    let third = gateways[0].send(&think("5000"));
    assert!(
        third
            .field("ratelimit")
            .unwrap()
            .starts_with("\"Tokens\";r=0;")
    );
    settled(&both, "spent", 3.0);
    let denied = gateways[1].send(&get("/"));
    assert_eq!(denied.status, 429);
    let retry: u64 = denied.field("retry-after").unwrap().parse().unwrap();
    assert!((35_900..=36_000).contains(&retry), "{retry}");
}

/// A model that streams its answer, or sends it at once, and says at its end what it has used.
fn model() -> Upstream {
    Upstream::answering(|request| {
        let (content_type, text) = match request.target.as_str() {
            "/stream" => (
                "text/event-stream",
                "data: {\"delta\":\"for\"}\n\ndata: {\"delta\":\"ty-two\",\
                 \"usage\":{\"total_tokens\":600}}\n\ndata: [DONE]\n\n",
            ),
            _ => (
                "application/json",
                "{\"text\":\"forty-two\",\"usage\":{\"total_tokens\":350}}",
            ),
        };
        let mut response: Response<Body> = Response::new(full(text));
        let content_type = HeaderValue::from_static(content_type);
        response.headers_mut().insert("content-type", content_type);
        response
    })
}

#[test]
fn tokens_that_a_body_states_are_counted_when_the_client_has_it_all() {
    let redis = RedisServer::start();
    let upstream = model();
    let setup = Setup::before(&upstream)
        .limits(&["Tokens: {per: global, burst: 1000, count: 1, period: 1h}"])
        .limited_by("{limit: Tokens, cost: {response_json: /usage/total_tokens, default: 10}}")
        .key(&store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let gzip = |path: &str| get(path).with("accept-encoding", "gzip");
    // Whoever has the whole response finds it counted, through the other gateway too.
    for (path, gateway, left) in [("/", 0, "r=990"), ("/stream", 1, "r=640"), ("/", 0, "r=40")] {
        let response = gateways[gateway].send(&gzip(path));
        assert_eq!(response.status, 200);
        assert!(response.text().contains("total_tokens"));
        assert!(
            response.field("ratelimit").unwrap().contains(left),
            "{response:?}"
        );
        assert_eq!(upstream.last().headers.get("accept-encoding"), None);
    }
    assert_eq!(gateways[1].send(&gzip("/")).status, 429);
}

#[test]
fn delayed_requests_never_pass_faster_than_their_rate_through_two_gateways() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream)
        .limits(&["Slow: {per: global, burst: 1, count: 10, period: 1s}"])
        .routes(&["{match: {}, upstream: app, limits: [Slow], on_denied: {delay: 2s}}"])
        .key(&store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let start = Instant::now();
    for turn in 0..6 {
        assert_eq!(gateways[turn % 2].send(&get("/")).status, 200);
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(500), "{took:?}");
}

#[test]
fn bodies_cost_by_their_size_known_or_not() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["Kilobytes: {per: global, burst: 10, count: 1, period: 1h}"])
        .limited_by("{limit: Kilobytes, cost: {request_bytes: 1KiB}}")
        .start();
    let left = |response: &crate::support::Response| {
        let field = response.field("ratelimit").unwrap_or("none").to_owned();
        field.split(';').nth(1).unwrap_or("none").to_owned()
    };
    let known = gateway.send(&post("/", &"x".repeat(2049)));
    assert_eq!((known.status, left(&known).as_str()), (200, "r=7"));
    let mut client = gateway.client();
    let head = "POST / HTTP/1.1\r\nhost: a.example\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("600\r\n{}\r\n", "x".repeat(0x600));
    client
        .write(format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes())
        .unwrap();
    assert_eq!(client.read("POST").unwrap().status, 200);
    assert_eq!(upstream.last().body.len(), 2 * 0x600);
    settled(&[&gateway], "spent", 1.0);
    // A body that is none costs nothing, and is told what is left.
    assert_eq!(left(&gateway.send(&get("/"))), "r=4");
    assert_eq!(gateway.send(&post("/", &"x".repeat(4097))).status, 429);
    let rest = gateway.send(&post("/", &"x".repeat(4096)));
    assert_eq!((rest.status, left(&rest).as_str()), (200, "r=0"));
}

#[test]
fn a_route_checks_what_another_route_spends() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["Uploads: {per: global, burst: 2, count: 1, period: 1h}"])
        .routes(&[
            "{match: {path: /upload}, upstream: app, limits: [{limit: Uploads, kind: spend_only}]}",
            "{match: {path: /list}, upstream: app, limits: [{limit: Uploads, kind: check_only}]}",
            "{match: {path: /off}, upstream: app, limits: [{limit: Uploads, enabled: false}]}",
        ])
        .start();
    assert_eq!(gateway.statuses(&get("/list"), 5), [200; 5]);
    assert_eq!(gateway.statuses(&get("/upload"), 4), [200; 4]);
    assert_eq!(gateway.statuses(&get("/list"), 2), [429; 2]);
    assert_eq!(gateway.statuses(&get("/off"), 2), [200; 2]);
}

#[test]
fn every_algorithm_counts_by_the_response_in_both_stores() {
    const ALGORITHMS: [&str; 4] = ["gcra", "fixed_window", "sliding_window", "sliding_log"];
    let redis = RedisServer::start();
    let upstream = tokens();
    let limits = ALGORITHMS.map(|it| {
        let burst = if it == "gcra" { "burst: 10, " } else { "" };
        format!("{it}: {{per: global, algorithm: {it}, {burst}count: 10, period: 100h}}")
    });
    let routes = ALGORITHMS.map(|it| {
        let cost = "cost: {response_header: x-tokens}";
        format!("{{match: {{path: /{it}}}, upstream: app, limits: [{{limit: {it}, {cost}}}]}}")
    });
    let setup = Setup::before(&upstream)
        .limits(&limits.each_ref().map(String::as_str))
        .routes(&routes.each_ref().map(String::as_str));
    for setup in [setup.clone(), setup.key(&store(&redis.url()))] {
        let gateway = setup.start();
        for (index, algorithm) in ALGORITHMS.iter().enumerate() {
            let request = |tokens| get(&format!("/{algorithm}")).with("x-think", tokens);
            let spent = |more: usize| {
                settled(
                    &[&gateway],
                    "spent",
                    f64::from(u32::try_from(2 * index + more).unwrap()),
                );
            };
            assert_eq!(gateway.send(&request("7")).status, 200, "{algorithm}");
            spent(1);
            let last = gateway.send(&request("99"));
            let field = last.field("ratelimit").unwrap();
            assert!(field.contains(";r=0;"), "{algorithm}: {field}");
            spent(2);
            assert_eq!(gateway.send(&request("0")).status, 429, "{algorithm}");
        }
    }
}

#[test]
fn what_is_left_to_settle_is_settled_before_a_drain_ends() {
    let redis = RedisServer::start();
    let upstream = logins();
    let setup = failed_logins(&upstream).key(&store(&redis.url()));
    let mut first = setup.start();
    let mut client = first.client();
    for _ in 0..5 {
        assert_eq!(client.send(&login("alice", "wrong")).status, 401);
    }
    first.signal("TERM");
    drop(client);
    assert!(first.ended().success());
    let second = setup.start();
    assert_eq!(second.send(&login("alice", "right")).status, 429);
}
