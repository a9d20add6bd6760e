//! Clients that share a bucket, and are told different times to come back.

use std::time::Instant;

use crate::decide::DECIDE;
use crate::support::*;

/// Two requests, and another each half minute: longer than a slow machine takes.
const LIMIT: &str = "L: {per: address, burst: 2, count: 2, period: 1m}";
const INTERVAL: u64 = 30;

fn seconds(response: &Response) -> u64 {
    assert_eq!(response.status, 429);
    response.field("retry-after").unwrap().parse().unwrap()
}

/// The longest wait that is told is some five minutes. Each is told from its own moment on, all of
/// them after `since`.
fn follow_one_another(told: &[u64], since: Instant) -> bool {
    let apart = (INTERVAL - 1).saturating_sub(since.elapsed().as_secs());
    told[0] <= INTERVAL && told.windows(2).all(|two| two[1] >= two[0] + apart)
}

#[test]
fn no_two_clients_of_a_bucket_are_told_the_same_time_whichever_listener_and_worker_denies_them() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key(DECIDE)
        .limits(&[LIMIT])
        .limited_by("L")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 2), [200, 200]);
    let subrequest = get("/forward-auth")
        .with("x-forwarded-method", "GET")
        .with("x-forwarded-uri", "/")
        .with("x-forwarded-host", "localhost")
        .with("x-forwarded-proto", "http")
        .with("x-forwarded-for", "127.0.0.1");
    let decide = |_| seconds(&Client::connect(gateway.decides_at()).send(&subrequest));
    let since = Instant::now();
    let mut told: Vec<u64> = (0..4).map(|_| seconds(&gateway.send(&get("/")))).collect();
    told.extend((0..2).map(decide));
    gateway.write(
        "limits/defaults.yaml",
        &format!("{LIMIT}\nM: {{per: address, burst: 1, count: 1, period: 1h}}"),
    );
    gateway.reload();
    told.push(seconds(&gateway.send(&get("/"))));
    assert!(follow_one_another(&told, since), "{told:?}");
}

#[test]
fn all_forms_of_a_denial_show_the_wait_that_its_client_is_told() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[LIMIT])
        .key("defaults: {ratelimit_headers: [draft, x-ratelimit, retry-after-ms]}")
        .limited_by("L")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 2), [200, 200]);
    for turn in 1..=4 {
        let denied = gateway.send(&get("/"));
        let told = seconds(&denied);
        let number = |name| denied.field(name).unwrap().parse::<u64>().unwrap();
        assert!(
            told > (turn - 1) * INTERVAL && told <= turn * INTERVAL,
            "{told}"
        );
        assert_eq!(
            denied.field("ratelimit"),
            Some(&*format!("\"L\";r=0;t={told}"))
        );
        assert_eq!(number("x-ratelimit-reset"), told);
        assert_eq!(number("retry-after-ms").div_ceil(1000), told);
    }
}

/// Which commands a server has carried out, but for this one.
fn commands(redis: &RedisServer) -> Vec<String> {
    let stats = redis.command(&["INFO", "commandstats"]);
    let names = stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_"));
    let mut names: Vec<_> = names
        .filter_map(|line| line.split(':').next())
        .filter(|name| *name != "info")
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

#[test]
fn redis_is_not_asked_more_because_the_denied_are_told_different_times() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[LIMIT])
        .limited_by("L")
        .key(&format!(
            "store: {{redis: {{url: \"{}\", timeout: 10s, fleet: false}}}}",
            redis.url()
        ))
        .start();
    assert_eq!(gateway.statuses(&get("/"), 2), [200, 200]);
    let since = Instant::now();
    let mut told = vec![seconds(&gateway.send(&get("/")))];
    let (asked, known) = (redis.calls("bitfield"), commands(&redis));
    let expiries = redis.calls("pexpire");
    told.extend((0..20).map(|_| seconds(&gateway.send(&get("/")))));
    // The gateway remembers the denial for a second.
    let most = since.elapsed().as_secs() + 1;
    assert!(redis.calls("bitfield") - asked <= most);
    assert_eq!(
        (redis.calls("pexpire"), commands(&redis)),
        (expiries, known)
    );
    assert!(follow_one_another(&told[..9], since), "{told:?}");
    assert!(told.iter().all(|told| *told <= 330), "{told:?}");
}

/// Sends so many requests, all denied, and returns how often Redis carried out which commands for
/// them, but for those that a gateway sends by itself.
fn commands_for_denials(gateway: &Gateway, redis: &RedisServer, count: u64) -> Vec<(String, u64)> {
    let before = commands(redis);
    let calls = |name: &String| redis.calls(name);
    let counts: Vec<u64> = before.iter().map(calls).collect();
    let since = Instant::now();
    for _ in 0..count {
        seconds(&gateway.send(&get("/")));
    }
    // A gateway remembers a denial for a second, and asks again then.
    let most = since.elapsed().as_secs() + 1;
    assert_eq!(commands(redis), before);
    let own = ["ping", "quit", "time"];
    let after = before.iter().zip(counts).map(|(name, before)| {
        let more = calls(name) - before;
        (name.clone(), more.saturating_sub(most))
    });
    after
        .filter(|(name, more)| *more > 0 && !own.contains(&&**name))
        .collect()
}

/// Denials that tell a wait are no strikes until as many are outstanding as workers may share the
/// subject. What is remembered for that is no command.
#[test]
fn redis_is_asked_nothing_for_the_waits_that_a_ban_remembers_until_one_is_a_strike() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[LIMIT])
        .limited_by("L")
        .key(
            "bans: {abusers: {per: address, strikes: {limits: L, workers: 40, count: 30, period: \
             1m}, for: 1h}}",
        )
        .key(&format!(
            "store: {{redis: {{url: \"{}\", timeout: 10s, fleet: false}}}}",
            redis.url()
        ))
        .start();
    assert_eq!(gateway.statuses(&get("/"), 2), [200, 200]);
    seconds(&gateway.send(&get("/")));
    let keys = redis.command(&["DBSIZE"]);
    assert_eq!(commands_for_denials(&gateway, &redis, 39), []);
    assert_eq!(redis.command(&["DBSIZE"]), keys);
    seconds(&gateway.send(&get("/")));
    eventually("the strike has a bucket", || {
        (redis.command(&["DBSIZE"]) != keys).then_some(())
    });
}
