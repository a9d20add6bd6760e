//! What `weir explain` says is what becomes of such a request: the same limits count it, in the same
//! buckets in Redis, and the same missing value refuses it.

use std::collections::BTreeSet;

use serde_json::json;

use super::redis::store;
use crate::support::*;

const LIMITS: [&str; 13] = [
    "Address: {per: address, burst: 100, count: 100, period: 1h}",
    "Network: {per: address/24/56, burst: 100, count: 100, period: 1h}",
    "Team: {per: \"path:team\", burst: 100, count: 100, period: 1h}",
    "Account: {per: account, burst: 100, count: 100, period: 1h}",
    "Pair: {per: [account, address], burst: 100, count: 100, period: 1h}",
    "Needed: {per: \"header:x-tenant\", burst: 100, count: 100, period: 1h, missing: deny}",
    "InTrial: {per: \"header:x-tenant\", burst: 9, count: 9, period: 1h, missing: deny, enforce: false}",
    "Trial: {per: address, burst: 100, count: 100, period: 1h, enforce: false}",
    "Window: {per: address, algorithm: sliding_window, count: 100, period: 1h}",
    "Log: {per: address, algorithm: sliding_log, count: 100, period: 1h}",
    "Places: {per: address, in_flight: 5}",
    "Off: {per: address, burst: 100, count: 100, period: 1h, enabled: false}",
    "Raised: {per: address, burst: 1, count: 1, period: 1h}",
];

const OVERRIDES: &str = "\
- Raised: {burst: 7, count: 7, period: 1h, ids: [127.0.0.0/8]}
- OnlyOverrides: {burst: 7, count: 7, period: 1h, ids: [192.0.2.1]}
";

const ROUTES: [&str; 7] = [
    "{name: plain, match: {path: /plain}, upstream: app, limits: [Address, Network, Trial]}",
    "{name: teams, match: {path: \"/teams/{team}\"}, upstream: app, limits: [Team, Account, Pair]}",
    "{name: needed, match: {path: /needed}, upstream: app, limits: [Address, Needed]}",
    "{name: trial, match: {path: /trial}, upstream: app, limits: [Address, InTrial]}",
    "{name: windows, match: {path: /windows}, upstream: app, limits: [Window, Log, Places]}",
    "{name: overridden, match: {path: /overridden}, upstream: app,
       limits: [Off, Raised, {limit: OnlyOverrides, per: address}]}",
    "{name: delayed, match: {path: /delayed}, upstream: app, limits: [Address],
       on_denied: {delay: {up_to: 1s}}}",
];

/// A path, and headers.
const REQUESTS: [(&str, &[&str]); 11] = [
    ("/plain", &[]),
    ("/teams/red", &[]),
    ("/teams/red", &["x-api-key: acme"]),
    ("/needed", &[]),
    ("/needed", &["x-tenant: blue"]),
    ("/trial", &[]),
    ("/trial", &["x-tenant: blue"]),
    ("/windows", &[]),
    ("/overridden", &[]),
    ("/delayed", &[]),
    ("/nowhere", &[]),
];

/// What is said of a request.
struct Explained {
    /// The limits that count it, or would deny it.
    limits: BTreeSet<String>,
    /// Its buckets, but for the places in flight.
    buckets: BTreeSet<String>,
    status: u16,
}

impl Explained {
    fn parse(text: &str) -> Self {
        let limits = text.lines().filter_map(|line| {
            let (name, what) = line.strip_prefix("limit ")?.split_once(": ")?;
            let counts = what == "applies" || what.starts_with("would deny");
            counts.then(|| name.to_owned())
        });
        let buckets = text
            .lines()
            .filter_map(|line| line.strip_prefix("  bucket "));
        let buckets = buckets.filter(|key| !key.starts_with("Places:"));
        let is_denied = text.contains(": denies, as");
        let is_unrouted = text.contains("route: none");
        Self {
            limits: limits.collect(),
            buckets: buckets.map(str::to_owned).collect(),
            status: match (is_denied, is_unrouted) {
                (true, _) => 403,
                (_, true) => 404,
                _ => 200,
            },
        }
    }
}

fn explained(gateway: &Gateway, path: &str, headers: &[&str]) -> Explained {
    let mut all = vec!["host: app.example.com"];
    all.extend(headers);
    let body = json!({"path": path, "ip": "127.0.0.1", "headers": all}).to_string();
    let ask = post("/v1/explain", &body).with("host", "127.0.0.1:9901");
    let response = gateway.admin(&ask);
    Explained::parse(response.json()["explanation"].as_str().unwrap())
}

/// The limits that have decided.
fn deciding(gateway: &Gateway) -> BTreeSet<String> {
    let metrics = gateway.metrics();
    let decisions = metrics.lines().filter_map(|line| {
        let (name, rest) = line
            .strip_prefix("weir_decisions_total{limit=\"")?
            .split_once('"')?;
        (!rest.ends_with(" 0")).then(|| name.to_owned())
    });
    decisions.collect()
}

/// The buckets in Redis, which says of those of windows by a mark what they are.
fn buckets(redis: &RedisServer) -> BTreeSet<String> {
    let keys = redis.command(&["KEYS", "weir:[A-Z]*"]);
    let keys = keys.lines().filter_map(|key| key.strip_prefix("weir:"));
    let keys = keys.map(|key| key.trim_end_matches("%w").trim_end_matches("%l"));
    // Places are given back some time after the response.
    let keys = keys.filter(|key| !key.starts_with("Places:"));
    keys.map(str::to_owned).collect()
}

#[test]
fn what_explain_says_of_a_request_is_never_other_than_what_becomes_of_it() {
    let upstream = Upstream::start();
    for (path, headers) in REQUESTS {
        let redis = RedisServer::start();
        let gateway = Setup::before(&upstream)
            .limits(&LIMITS)
            .overrides(OVERRIDES)
            .routes(&ROUTES)
            .key("account: [header: x-api-key]")
            .key("hash_key: {file: hash.key}")
            .file("hash.key", "0123456789abcdef0123456789abcdef\n")
            .key(&store(&redis.url()))
            .start();
        let said = explained(&gateway, path, headers);
        let mut request = get(path);
        for header in headers {
            let (name, value) = header.split_once(": ").unwrap();
            request = request.with(name, value);
        }
        let response = gateway.send(&request);
        let case = format!("{path} {headers:?}");
        assert_eq!(response.status, said.status, "{case}");
        assert_eq!(buckets(&redis), said.buckets, "{case}");
        eventually(&case, || (deciding(&gateway) == said.limits).then_some(()));
    }
}
