//! Limits on requests in flight, as they are written.

use std::time::Duration;

use weir_limit::Quota;
use weir_limit::time::Timestamp;

use super::*;

const GATEWAY: &str = r#"
store: {redis: {url: "redis://127.0.0.1:6379/0", lease: 5s}}
upstreams:
  app: {servers: ["http://127.0.0.1:3000"]}
routes:
  - match: {path: "/*"}
    upstream: app
    limits: [RequestsPerAddress, AtOncePerAddress]
"#;

const AT_ONCE: &str = "
RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
AtOncePerAddress: {per: address, in_flight: 10}
";

#[test]
fn a_limit_on_requests_in_flight_has_one_number_and_so_have_its_overrides() {
    let folder = Folder::with(&[
        ("gateway.yaml", GATEWAY),
        ("limits/defaults.yaml", AT_ONCE),
        (
            "limits/overrides.yaml",
            "- AtOncePerAddress: {in_flight: 99, ids: [192.0.2.17]}",
        ),
    ]);
    let settings = folder.settings();
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    let limit = settings.limit("AtOncePerAddress").unwrap();
    let overridden = |id: &str| limit.override_of(id, Timestamp::default()).unwrap();
    assert_eq!(limit.quota(), Some(Quota::in_flight(10).unwrap()));
    assert_eq!(overridden("192.0.2.1"), None);
    let quota = overridden("192.0.2.17").map(|overridden| overridden.quota);
    assert_eq!(quota, Some(Quota::in_flight(99).unwrap()));
    let StoreSettings::Redis(redis) = &settings.process.store else {
        panic!("{:?}", settings.process.store)
    };
    assert_eq!(redis.redis.lease, Duration::from_secs(5));
}

#[test]
fn what_makes_no_sense_beside_it_is_told_with_its_place() {
    let gateway = GATEWAY.replace("lease: 5s", "lease: 500ms").replace(
        "AtOncePerAddress]",
        "{limit: AtOncePerAddress, cost: 2}, AtOncePerAccount]",
    );
    let defaults = "
RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
AtOncePerAddress: {per: address, in_flight: 10, burst: 1, count: 1, period: 1s, algorithm: gcra}
AtOncePerAccount: {per: account, in_flight: 0, count_denied: true}
Neither: {per: account}
Ten: {per: account, in_flight: ten}
";
    let overrides = "
- AtOncePerAddress: {burst: 5, ids: [192.0.2.17]}
- AtOncePerAddress: {in_flight: 0, ids: [192.0.2.18]}
- RequestsPerAddress: {burst: 5, count: 5, period: 1s, in_flight: 5, ids: [192.0.2.17]}
";
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", defaults),
        ("limits/overrides.yaml", overrides),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:2:57: store.redis.lease: a lease must be at least 1s
      it is renewed three times in its length; leave it out for 30s
    gateway.yaml:8:66: routes[0].limits[1].cost: "AtOncePerAddress" counts requests, whatever they cost
      leave `cost` out
    limits/defaults.yaml:3:56: AtOncePerAddress.burst: `burst` does not apply beside `in_flight`
      leave it out, or use a limit of its own for the rate
    limits/defaults.yaml:3:66: AtOncePerAddress.count: `count` does not apply beside `in_flight`
      leave it out, or use a limit of its own for the rate
    limits/defaults.yaml:3:77: AtOncePerAddress.period: `period` does not apply beside `in_flight`
      leave it out, or use a limit of its own for the rate
    limits/defaults.yaml:3:92: AtOncePerAddress.algorithm: `algorithm` does not apply beside `in_flight`
      leave it out, or use a limit of its own for the rate
    limits/defaults.yaml:4:45: AtOncePerAccount.in_flight: in_flight must be at least 1
    limits/defaults.yaml:4:62: AtOncePerAccount.count_denied: `count_denied` does not apply beside `in_flight`
      leave it out, or use a limit of its own for the rate
    limits/defaults.yaml:5:1: Neither: the key "count" is missing
      write how many come back in a `period`, such as `count: 100`
    limits/defaults.yaml:5:1: Neither: the key "burst" is missing
      write how many pass at once: `burst: 100` for as many as the count, or fewer
    limits/defaults.yaml:5:1: Neither: the key "period" is missing
      write in which time `count` come back, such as `period: 1m`
    limits/defaults.yaml:6:32: Ten.in_flight: expected a whole number, found `ten`
    limits/overrides.yaml:2:3: [0].AtOncePerAddress: the key "in_flight" is missing
      write how many may be in flight, such as `in_flight: 10`
    limits/overrides.yaml:2:29: [0].AtOncePerAddress.burst: `burst` does not apply beside `in_flight`
      leave it out, or use a limit of its own for the rate
    limits/overrides.yaml:3:33: [1].AtOncePerAddress.in_flight: in_flight must be at least 1
    limits/overrides.yaml:4:67: [2].RequestsPerAddress.in_flight: this limit has a rate, and is not one on requests in flight
      leave `in_flight` out, or define another limit with it
    limits/defaults.yaml:5:1: warning: Neither: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:6:1: warning: Ten: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    16 errors, 2 warnings
    "#);
}

#[test]
fn a_limit_that_is_only_overridden_may_be_one_on_requests_in_flight() {
    let gateway = GATEWAY.replace("AtOncePerAddress", "{limit: Crawlers, per: address}");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", AT_ONCE),
        (
            "limits/overrides.yaml",
            "- Crawlers: {in_flight: 2, ids: [192.0.2.17]}\n- Crawlers: {in_flight: 3, ids: [192.0.2.18]}",
        ),
    ]);
    let settings = folder.settings();
    let limit = settings.limit("Crawlers").unwrap();
    let overridden = limit.override_of("192.0.2.18", Timestamp::default());
    let quota = overridden.unwrap().map(|overridden| overridden.quota);
    assert_eq!(quota, Some(Quota::in_flight(3).unwrap()));
    assert_eq!(limit.quota(), None);
}
