//! Overrides of many subjects, overrides that end, and limits with a number for their name.

use std::process::Command;

use serde_json::{Value, json};

use crate::redis::store;
use crate::support::gateway::WEIR;
use crate::support::*;

/// One request a subject.
fn one_per(upstream: &Upstream, per: &str) -> Setup {
    Setup::before(upstream)
        .limits(&[&format!(
            "L: {{per: {per}, burst: 1, count: 1, period: 1000h}}"
        )])
        .limited_by("L")
        .key("client_address: {trusted_proxies: [127.0.0.0/8]}")
        .key("account: [header: x-api-key]")
}

/// Overrides, each of an id and a burst.
fn overrides(all: &[(&str, u64)]) -> String {
    let one = |(id, burst): &(&str, u64)| {
        format!("- L: {{burst: {burst}, count: 1, period: 1000h, ids: [{{id: \"{id}\"}}]}}\n")
    };
    all.iter().map(one).collect()
}

/// So many pass, and not one more.
fn admits(gateway: &Gateway, request: &Request, burst: usize) {
    let statuses = gateway.statuses(request, burst + 1);
    let expected: Vec<u16> = (0..burst).map(|_| 200).chain([429]).collect();
    assert_eq!(statuses, expected, "{request:?}");
}

fn from(address: &str) -> Request {
    get("/").with("x-forwarded-for", address)
}

fn account(name: &str) -> Request {
    get("/").with("x-api-key", name)
}

#[test]
fn a_network_gives_each_of_its_addresses_a_greater_bucket() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "address")
        .overrides(&overrides(&[
            ("10.0.0.0/8", 2),
            ("10.1.0.0/16", 3),
            ("10.1.2.3", 4),
            ("2001:db8::/32", 2),
        ]))
        .start();
    for (address, burst) in [
        ("10.1.2.3", 4),
        ("10.1.2.4", 3),
        ("10.1.2.5", 3),
        ("10.2.0.1", 2),
        ("11.0.0.1", 1),
        ("2001:db8:0:1::1", 2),
        ("2001:db8:0:2::1", 2),
    ] {
        admits(&gateway, &from(address), burst);
    }
}

#[test]
fn a_wildcard_is_held_against_the_name_of_an_account_before_it_is_hashed() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "account")
        .overrides(&overrides(&[
            ("acme-*", 2),
            ("acme-eu-*", 3),
            ("acme-eu-7", 4),
        ]))
        .start();
    for (name, burst) in [
        ("acme-us", 2),
        ("acme-eu-1", 3),
        ("acme-eu-7", 4),
        ("acme", 1),
    ] {
        admits(&gateway, &account(name), burst);
    }
}

#[test]
fn a_wildcard_covers_all_hosts_below_a_domain() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "host")
        .overrides(&overrides(&[("*.example.com", 3)]))
        .start();
    let host = |host| get("/").with("host", host);
    admits(&gateway, &host("a.example.com"), 3);
    admits(&gateway, &host("A.b.example.com:80"), 3);
    admits(&gateway, &host("example.com"), 1);
}

#[test]
fn the_first_part_of_a_subject_may_be_overridden_alone() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "[account, host]")
        .overrides(&overrides(&[("acme", 2), ("acme:app.example.com", 3)]))
        .start();
    let request = |name, host| account(name).with("host", host);
    admits(&gateway, &request("acme", "app.example.com"), 3);
    admits(&gateway, &request("acme", "b.example.com"), 2);
    admits(&gateway, &request("acme", "c.example.com"), 2);
    admits(&gateway, &request("other", "c.example.com"), 1);
}

#[test]
fn an_override_that_has_ended_is_told_and_does_not_apply() {
    let upstream = Upstream::start();
    let setup = one_per(&upstream, "account").overrides(
        "- L: {burst: 3, count: 1, period: 1000h, until: 2001-12-31, ids: [{id: old, comment: trial}]}\n\
         - L: {burst: 2, count: 1, period: 1000h, until: 2200-12-31, ids: [new]}\n",
    );
    let gateway = setup.start();
    admits(&gateway, &account("old"), 1);
    admits(&gateway, &account("new"), 2);

    let folder = setup.written();
    let weir = |arguments: &[&str]| {
        let mut command = Command::new(WEIR);
        let output = command
            .current_dir(&folder)
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let checked = weir(&["check"]);
    assert!(
        checked.contains("this override ended at 2002-01-01T00:00:00Z"),
        "{checked}"
    );
    let explained = |name: &str| {
        let header = format!("--header=x-api-key: {name}");
        weir(&["explain", "--path=/", "--ip=192.0.2.1", &header])
    };
    let old = explained("old");
    let ended = "the override for old ended at 2002-01-01T00:00:00Z, and does not apply";
    assert!(
        old.contains(ended) && !old.contains("overridden for"),
        "{old}"
    );
    let new = explained("new");
    assert!(
        new.contains("overridden for new, until 2201-01-01T00:00:00Z\n"),
        "{new}"
    );
}

fn bucket(gateway: &Gateway, path: &str) -> Value {
    let response = gateway.admin(&get(path).with("host", "127.0.0.1:9901"));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

#[test]
fn operators_are_shown_which_override_a_bucket_has() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "[account, address]")
        .overrides(
            "- L: {burst: 3, count: 1, period: 1000h, until: 2200-12-31, ids: \
             [{id: 'acme-*:10.0.0.0/8', comment: the office}]}\n",
        )
        .start();
    let shown = bucket(&gateway, "/v1/buckets/L/acme-1:10.1.2.3");
    let expected = json!({
        "id": "acme-*:10.0.0.0/8", "comment": "the office", "until": "2201-01-01T00:00:00Z",
        "origin": "file",
    });
    assert_eq!(
        (&shown["override"], &shown["burst"]),
        (&expected, &json!(3))
    );
    let other = bucket(&gateway, "/v1/buckets/L/acme-1:11.1.2.3");
    assert_eq!(
        (&other["override"], &other["burst"]),
        (&json!(null), &json!(1))
    );
    // A subject may have a star in its name.
    let star = bucket(&gateway, "/v1/buckets/L/acme-*:10.0.0.1");
    assert_eq!(star["burst"], json!(3));
}

#[test]
fn who_is_not_overridden_has_no_bucket_of_a_limit_with_overrides_alone() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "account")
        .overrides("- Some: {burst: 2, count: 1, period: 1000h, ids: [acme]}\n")
        .limited_by("{limit: Some, per: account}")
        .start();
    admits(&gateway, &account("acme"), 2);
    assert_eq!(gateway.statuses(&account("other"), 5), [200; 5]);
    assert_eq!(
        bucket(&gateway, "/v1/buckets/Some/acme")["remaining"],
        json!(0)
    );
    let none = gateway.admin(&get("/v1/buckets/Some/other").with("host", "127.0.0.1:9901"));
    assert_eq!(none.status, 404);
    assert!(
        none.text()
            .contains("applies only to subjects with an override"),
        "{}",
        none.text()
    );
}

#[test]
fn a_wildcard_for_accounts_holds_from_a_reload_on() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "account").start();
    admits(&gateway, &account("acme-1"), 1);
    gateway.write("limits/overrides.yaml", &overrides(&[("acme-*", 3)]));
    gateway.reload();
    let mut client = gateway.client();
    // Each worker follows by itself; until then the old limit denies.
    eventually("the override", || {
        (client.send(&account("acme-1")).status == 200).then_some(())
    });
    // One was spent before, and one just now.
    let statuses = [(); 2].map(|()| client.send(&account("acme-1")).status);
    assert_eq!(statuses, [200, 429]);
}

#[test]
fn a_limit_with_a_number_has_it_in_its_keys_and_keeps_its_buckets_when_it_is_renamed() {
    let upstream = Upstream::start();
    let redis = RedisServer::start();
    let limit =
        |name: &str| format!("{name}: {{per: address, id: 6, burst: 3, count: 1, period: 1000h}}");
    let gateway = |name: &str| {
        Setup::before(&upstream)
            .limits(&[&limit(name)])
            .limited_by(name)
            .key(&store(&redis.url()))
            .start()
    };
    let before = gateway("OrdersPerAddress");
    assert_eq!(before.statuses(&get("/"), 2), [200, 200]);
    let keys = redis.command(&["KEYS", "*"]);
    assert!(keys.contains("\nweir:6:127.0.0.1\r"), "{keys}");
    let after = gateway("NewOrdersPerAddress");
    let last = after.send(&get("/"));
    assert_eq!(
        last.field("ratelimit-policy"),
        Some("\"NewOrdersPerAddress\";q=3;w=10800000")
    );
    assert_eq!(last.status, 200);
    admits(&after, &get("/"), 0);
}
