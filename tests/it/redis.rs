//! Several gateways on one Redis: exact, one round trip a request, no secrets.

use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::gateway::WEIR;
use crate::support::tap::Tap;
use crate::support::*;

/// A deadline that no machine misses, for tests that are not about deadlines.
pub(crate) fn store(url: &str) -> String {
    format!("store: {{redis: {{url: \"{url}\", timeout: 10s, on_failure: deny}}}}")
}

/// A setup whose buckets are named in the path: `/b/NAME`.
pub(crate) fn by_path(upstream: &Upstream, limit: &str) -> Setup {
    Setup::before(upstream)
        .limits(&[limit])
        .routes(&["{match: {path: \"/b/{id}\"}, upstream: app, limits: [L]}"])
}

#[test]
fn a_bucket_of_100_hit_by_8_clients_through_two_gateways_admits_exactly_100_each_time() {
    const ROUNDS: usize = 100;
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 14;
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let setup = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 100, count: 1, period: 1000h}",
    )
    .key(&store(&redis.url()))
    .key("log: {access: false}");
    let gateways = [setup.start(), setup.start()];

    let start = Arc::new(Barrier::new(CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let start = Arc::clone(&start);
            let mut connections = [gateways[0].client(), gateways[1].client()];
            thread::spawn(move || {
                let mut round = |round: usize| {
                    start.wait();
                    let request = get(&format!("/b/round-{round}"));
                    let statuses = (0..REQUESTS)
                        .map(|count| connections[(number + count) % 2].try_send(&request));
                    // A client that failed here would leave the others waiting at the start.
                    let admitted =
                        statuses.filter(|it| it.as_ref().is_ok_and(|it| it.status == 200));
                    admitted.count()
                };
                (0..ROUNDS).map(&mut round).collect::<Vec<_>>()
            })
        })
        .collect();
    let admitted: Vec<_> = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .collect();

    for round in 0..ROUNDS {
        let all: usize = admitted.iter().map(|client| client[round]).sum();
        assert_eq!(all, 100, "in round {round}");
    }
    assert_eq!(upstream.count(), 100 * ROUNDS);
}

#[test]
fn an_allowed_request_with_three_limits_is_one_write_to_redis() {
    let redis = RedisServer::start();
    let tap = Tap::before(&redis);
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "A: {per: address, burst: 100, count: 1, period: 1h}",
            "B: {per: method, burst: 100, count: 1, period: 1h}",
            "C: {per: global, burst: 100, count: 1, period: 1h}",
        ])
        .limited_by("A, B, C")
        .key(&store(&tap.url()))
        .start();
    assert_eq!(gateway.statuses(&get("/"), 20), [200; 20]);

    let writes = tap.decisions();
    assert_eq!(writes.len(), 20, "{writes:#?}");
    for (number, write) in writes.iter().enumerate() {
        assert_eq!(write.matches("BITFIELD").count(), 3, "{write}");
        // A bucket that takes an hour to fill has its expiry set once a minute.
        let expiries = if number == 0 { 3 } else { 0 };
        assert_eq!(write.matches("PEXPIRE").count(), expiries, "{write}");
    }
}

#[test]
fn a_remembered_denial_costs_redis_nothing() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: global, burst: 1, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(&store(&redis.url()))
        .start();
    assert_eq!(gateway.statuses(&get("/"), 2), [200, 429]);

    // A denial is remembered for a second; so the first after that is asked about again.
    let mut client = gateway.client();
    let unasked = eventually("ten denials that Redis was not asked about", || {
        let before = redis.calls("bitfield");
        let denied: Vec<_> = (0..10).map(|_| client.send(&get("/"))).collect();
        (redis.calls("bitfield") == before).then_some(denied)
    });
    for denied in unasked {
        assert_eq!(denied.status, 429);
        assert!(denied.field("retry-after").is_some());
        assert_eq!(
            denied
                .field("ratelimit")
                .map(|it| it.starts_with("\"L\";r=0;t=")),
            Some(true)
        );
    }
    assert!(
        redis.calls("bitfield") >= 2,
        "the first two were asked about"
    );
}

#[test]
fn what_one_limit_denies_is_given_back_to_the_others() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "Tight: {per: \"path:id\", burst: 1, count: 1, period: 1000h}",
            "Wide: {per: global, burst: 10, count: 1, period: 1000h}",
        ])
        .routes(&["{match: {path: \"/b/{id}\"}, upstream: app, limits: [Wide, Tight]}"])
        .key(&store(&redis.url()))
        .start();
    assert_eq!(gateway.statuses(&get("/b/one"), 6)[1..], [429; 5]);
    // The refund is made off the response's path.
    eventually("a refund of what was taken from Wide", || {
        let wide = redis.command(&["BITFIELD", "weir:Wide:*", "GET", "u63", "0"]);
        let tight = redis.command(&["BITFIELD", "weir:Tight:one", "GET", "u63", "0"]);
        (tat(&wide) / HOURS_1000 == tat(&tight) / HOURS_1000).then_some(())
    });
    let admitted = (0..20).filter(|id| gateway.send(&get(&format!("/b/{id}"))).status == 200);
    assert_eq!(admitted.count(), 9);
}

const HOURS_1000: u64 = 1000 * 3600 * 1_000_000_000;

/// The number in the reply to a `GET` of `BITFIELD`.
fn tat(reply: &str) -> u64 {
    let number = reply.lines().find_map(|line| line.strip_prefix(':'));
    number.expect("a number").trim().parse().unwrap()
}

#[test]
fn buckets_expire_in_redis_when_they_are_full_again_and_no_sooner() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 60, count: 60, period: 1m}",
    )
    .key(&store(&redis.url()))
    .start();
    let since = Instant::now();
    gateway.send(&get("/b/one"));
    let lifetime = Duration::from_millis(tat(&redis.command(&["PTTL", "weir:L:one"])));
    // A minute to fill, as much to spare, and some for clocks that differ.
    let (least, most) = (Duration::from_secs(115), Duration::from_secs(125));
    assert!(
        lifetime <= most && lifetime + since.elapsed() >= least,
        "{lifetime:?}"
    );
}

#[test]
fn no_secret_is_in_redis_in_the_log_or_among_the_metrics() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "A: {per: account, burst: 1, count: 1, period: 1h}",
            "H: {per: \"header:x-token\", burst: 5, count: 1, period: 1h}",
            "C: {per: \"cookie:session\", burst: 5, count: 1, period: 1h}",
            "Q: {per: \"query:key\", burst: 5, count: 1, period: 1h}",
        ])
        .limited_by("A, H, C, Q")
        .key("account: [header: x-api-key]")
        .key("hash_key: {file: hash.key}")
        .file("hash.key", "0123456789abcdef0123456789abcdef\n")
        .key(&store(&redis.url()))
        .key("log: {level: trace}")
        .start();
    let secrets = ["sesame-1", "sesame-2", "sesame-3", "sesame-4"];
    let request = get("/path?key=sesame-4")
        .with("x-api-key", "sesame-1")
        .with("x-token", "sesame-2")
        .with("cookie", "session=sesame-3");
    assert_eq!(gateway.statuses(&request, 2), [200, 429]);

    let keys = redis.command(&["KEYS", "*"]);
    for limit in ["A", "H", "C", "Q"] {
        let start = format!("weir:{limit}:");
        let hash = keys.lines().find_map(|key| key.strip_prefix(&start));
        let hash = hash.unwrap_or_else(|| panic!("no bucket of {limit} in {keys}"));
        assert_eq!(hash.len(), 32, "{hash}");
        assert!(hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
    }
    let logged = eventually("two lines of the access log", || {
        Some(gateway.access("/path")).filter(|lines| lines.len() == 2)
    });
    assert_eq!(logged[0]["account"].as_str().map(str::len), Some(32));
    let (log, metrics) = (gateway.log_text(), gateway.metrics());
    for secret in secrets {
        assert!(!keys.contains(secret) && !log.contains(secret) && !metrics.contains(secret));
    }
}

#[test]
fn gateways_with_the_same_hash_key_share_an_accounts_bucket() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream)
        .limits(&["A: {per: account, burst: 3, count: 1, period: 1h}"])
        .limited_by("A")
        .key("account: [header: x-api-key]")
        .key("hash_key: {file: hash.key}")
        .file("hash.key", "0123456789abcdef")
        .key(&store(&redis.url()));
    let (one, other) = (setup.start(), setup.start());
    let acme = get("/").with("x-api-key", "acme");
    assert_eq!(one.statuses(&acme, 2), [200, 200]);
    assert_eq!(other.statuses(&acme, 2), [200, 429]);
    assert_eq!(one.statuses(&acme, 1), [429]);
}

#[test]
fn a_password_from_a_file_and_a_prefix_of_ones_own_are_used() {
    let redis = RedisServer::start_with(|_| {
        ["--port", "0", "--requirepass", "sesame"]
            .map(Into::into)
            .into()
    });
    let upstream = Upstream::start();
    let url = redis.url();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: global, burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&format!(
            "store: {{redis: {{url: \"{url}\", password: {{file: redis.password}}, \
             prefix: shop, timeout: 10s, on_failure: deny}}}}"
        ))
        .file("redis.password", "sesame\n")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
    let keys = redis.command(&["AUTH", "sesame\r\nKEYS", "*"]);
    assert!(keys.contains("shop:L:*"), "{keys}");
    assert!(!gateway.log_text().contains("sesame"));
}

/// It said that the store is out of reach, and never why.
#[test]
fn the_log_says_why_a_tls_url_leads_to_nothing_and_later_that_the_reason_is_another() {
    let port = free_port().to_string();
    let arguments = ["--port".to_owned(), port.clone()];
    let mut redis = RedisServer::start_with(|_| arguments.into());
    let upstream = Upstream::start();
    let gateway = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 10, count: 10, period: 1h}",
    )
    .key(&format!(
        "store: {{redis: {{url: \"rediss://127.0.0.1:{port}\", on_failure: deny}}}}"
    ))
    .start();
    let told = |reason: &str| {
        let lines = gateway.log();
        let of_store = lines.iter().filter(|line| {
            let message = line["message"].as_str();
            message.is_some_and(|message| message.starts_with("the store "))
        });
        let causes = of_store.filter_map(|line| line["cause"].as_str());
        causes.filter(|cause| cause.contains(reason)).count()
    };
    eventually("the reason", || {
        (told("does not answer in TLS") > 0).then_some(())
    });
    redis.kill();
    eventually("the other reason", || (told("refused") > 0).then_some(()));
    for _ in 0..20 {
        assert_eq!(gateway.send(&get("/b/a")).status, 503);
    }
    assert_eq!((told("does not answer in TLS"), told("refused")), (1, 1));
    assert_eq!(gateway.times_logged("the store is out of reach"), 1);
}

#[test]
fn a_limit_that_was_lowered_takes_effect_on_buckets_in_redis_at_once() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 10, count: 10, period: 1000h}",
    )
    .key(&store(&redis.url()))
    .start();
    assert_eq!(gateway.statuses(&get("/b/one"), 10), [200; 10]);
    gateway.write(
        "limits/defaults.yaml",
        "L: {per: \"path:id\", burst: 1, count: 1000, period: 200s}",
    );
    gateway.reload();
    // Not the old debt of a thousand hours counts, but what the new limit can have caused: 200 ms.
    eventually("a request that passes the new limit", || {
        (gateway.send(&get("/b/one")).status == 200).then_some(())
    });
}

#[test]
fn redis_is_reached_by_tcp_and_in_the_database_that_the_url_names() {
    let port = free_port().to_string();
    let redis = RedisServer::start_with(|_| vec!["--port".to_owned(), port.clone()]);
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: global, burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&store(&format!("redis://127.0.0.1:{port}/3")))
        .start();
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
    assert!(
        redis
            .command(&["SELECT", "3\r\nKEYS", "*"])
            .contains("weir:L:*")
    );
    assert!(!redis.command(&["KEYS", "*"]).contains("weir:L:*"));
}

#[test]
fn a_password_that_redis_refuses_is_told_as_the_cause_and_not_shown() {
    let redis = RedisServer::start_with(|_| {
        ["--port", "0", "--requirepass", "sesame"]
            .map(Into::into)
            .into()
    });
    let upstream = Upstream::start();
    let url = redis.url();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: global, burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&format!(
            "store: {{redis: {{url: \"{url}\", password: {{file: redis.password}}}}}}"
        ))
        .file("redis.password", "open-barley\n")
        .start();
    gateway.logs("the store is out of reach", 1);
    let log = eventually("the cause", || {
        let log = gateway.log_text();
        let is_told = log.contains("WRONGPASS") || log.contains("uthentication");
        is_told.then_some(log)
    });
    assert!(
        !log.contains("open-barley") && !log.contains("sesame"),
        "{log}"
    );
    // `local` is what happens unless told otherwise.
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
}

#[test]
fn explain_names_the_bucket_that_a_request_really_has() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: [address, account], burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .key("account: [header: x-api-key]")
        .key("hash_key: {file: hash.key}")
        .file("hash.key", "0123456789abcdef")
        .key(&store(&redis.url()))
        .start();
    gateway.send(&get("/").with("x-api-key", "acme"));
    let explained = Command::new(WEIR)
        .current_dir(gateway.folder())
        .args(["explain", "--path", "/", "--ip", "127.0.0.1"])
        .args(["--header", "x-api-key:acme"])
        .output()
        .expect("the weir binary");
    let explained = String::from_utf8(explained.stdout).unwrap();
    let lines = explained.lines().map(str::trim);
    let buckets: Vec<_> = lines
        .filter_map(|line| line.strip_prefix("bucket "))
        .collect();
    assert_eq!(buckets.len(), 1, "{explained}");
    let keys = redis.command(&["KEYS", "*"]);
    assert!(
        keys.contains(&format!("weir:{}\r\n", buckets[0])),
        "{keys} {explained}"
    );
}

#[test]
fn a_right_that_is_missing_is_named_and_fails_only_the_limit_that_needs_it() {
    let redis = RedisServer::start();
    redis.command(&["ACL", "SETUSER", "default", "-hincrby"]);
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "Plain: {per: global, burst: 100, count: 1, period: 1000h}",
            "Sliding: {per: global, algorithm: sliding_window, count: 100, period: 1h}",
        ])
        .routes(&[
            "{match: {path: \"/plain\"}, upstream: app, limits: [Plain]}",
            "{match: {path: \"/both\"}, upstream: app, limits: [Plain, Sliding]}",
        ])
        .key(&store(&redis.url()))
        .start();
    assert_eq!(gateway.statuses(&get("/both"), 20), [503; 20]);
    assert_eq!(gateway.statuses(&get("/plain"), 20), [200; 20]);
    gateway.log_tells("to run the 'hincrby' command");
    assert_eq!(gateway.metric("weir_store_reachable"), Some(1.0));
    // What got 503 took nothing.
    let plain = gateway.send(&get("/plain"));
    let left = plain.field("ratelimit").map(|it| it.contains(";r=79;"));
    assert_eq!(left, Some(true), "{plain:?}");
    redis.command(&["ACL", "SETUSER", "default", "+hincrby"]);
    assert_eq!(gateway.send(&get("/both")).status, 200);
}

#[test]
fn the_offset_of_the_clock_is_among_the_metrics() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 5, count: 1, period: 1h}",
    )
    .key(&store(&redis.url()))
    .start();
    let offset = eventually("the clock is measured", || {
        let offset = gateway.metric("weir_store_clock_offset_seconds");
        // One machine has one clock, which is read twice.
        offset.filter(|offset| *offset != 0.0)
    });
    assert!(offset.abs() < 10.0, "{offset}");
}
