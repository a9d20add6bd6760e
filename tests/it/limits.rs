//! Limits: each per what it is counted by, with overrides and costs, from all buckets or from none.

use std::time::{Duration, Instant};

use crate::support::*;

/// A gateway whose only limit admits one request per subject.
fn one_per(upstream: &Upstream, per: &str) -> Setup {
    Setup::before(upstream)
        .limits(&[&format!(
            "L: {{per: {per}, burst: 1, count: 1, period: 1h}}"
        )])
        .limited_by("L")
        .key("client_address: {trusted_proxies: [127.0.0.0/8]}")
}

fn from(address: &str) -> Request {
    get("/").with("x-forwarded-for", address)
}

/// Each of the requests is the first of its subject, and a second one like it is denied.
fn tells_apart(gateway: &Gateway, requests: &[Request]) {
    for request in requests {
        assert_eq!(gateway.send(request).status, 200, "{request:?}");
    }
    for request in requests {
        assert_eq!(gateway.send(request).status, 429, "{request:?}");
    }
}

/// All of the requests are one subject's.
fn takes_for_one(gateway: &Gateway, requests: &[Request]) {
    assert_eq!(gateway.send(&requests[0]).status, 200, "{:?}", requests[0]);
    for request in requests {
        assert_eq!(gateway.send(request).status, 429, "{request:?}");
    }
}

/// The requests, which lack what is counted by, are not counted.
fn does_not_count(gateway: &Gateway, request: &Request) {
    assert_eq!(gateway.statuses(request, 3), [200; 3], "{request:?}");
}

#[test]
fn a_bucket_admits_its_burst_and_then_what_comes_back() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1h}"])
        .limited_by("L")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 5), [200, 200, 200, 429, 429]);
    assert_eq!(upstream.count(), 3, "a denied request is not forwarded");
}

#[test]
fn a_body_that_comes_after_the_denial_costs_no_client_its_connection() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .start();
    let mut client = gateway.client();
    assert_eq!(client.send(&get("/")).status, 200);
    for _ in 0..20 {
        let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n";
        client.write(head.as_bytes()).unwrap();
        let denied = client.read("POST").unwrap();
        assert_eq!((denied.status, denied.closes()), (429, false));
        client.write(&[b'x'; 1000]).unwrap();
    }
    assert_eq!(client.send(&get("/")).status, 429);
}

#[test]
fn a_unit_comes_back_after_an_emission_interval() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 300ms}"])
        .limited_by("L")
        .start();
    let mut client = gateway.client();
    let start = Instant::now();
    for _ in 0..4 {
        eventually("a request that passes", || {
            (client.send(&get("/")).status == 200).then_some(())
        });
    }
    // One at once, and three that came back.
    let taken = start.elapsed();
    assert!(taken >= Duration::from_millis(900), "{taken:?}");
}

#[test]
fn per_address_tells_addresses_of_ipv4_apart_and_takes_an_ipv6_network_for_one() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "address").start();
    tells_apart(&gateway, &["192.0.2.1", "192.0.2.2"].map(from));
    takes_for_one(
        &gateway,
        &["2001:db8:1:2::1", "2001:db8:1:2:ffff::9"].map(from),
    );
    takes_for_one(&gateway, &["192.0.2.3", "::ffff:192.0.2.3"].map(from));
    tells_apart(&gateway, &["2001:db8:1:3::1", "2001:db8:1:4::1"].map(from));
}

/// All of IPv4 was one network behind a translator (NAT64, SIIT): one bucket, one ban, one entry.
#[test]
fn clients_behind_a_translator_are_never_one_client() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .key(
            "client_address: {trusted_proxies: [127.0.0.1], \
             nat64_prefixes: [\"2001:db8:64::/96\"]}",
        )
        .start();
    tells_apart(
        &gateway,
        &["64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2"].map(from),
    );
    takes_for_one(
        &gateway,
        &[
            "192.0.2.3",
            "64:ff9b::192.0.2.3",
            "::ffff:192.0.2.3",
            "2001:db8:64::192.0.2.3",
        ]
        .map(from),
    );
    tells_apart(
        &gateway,
        &["2001:db8:64::192.0.2.4", "2001:db8:64::c000:205"].map(from),
    );
    assert_eq!(gateway.send(&from("192.0.2.4")).status, 429);
    // `::192.0.2.6` was in one network with `::1`.
    tells_apart(&gateway, &["::192.0.2.6", "::192.0.2.7", "::1"].map(from));
    let sent = 4 + 5 + 4 + 1 + 6;
    let addresses = gateway.logged_times("/", sent);
    let known = addresses
        .iter()
        .filter(|line| line["client"] == "192.0.2.3");
    assert_eq!(known.count(), 5);
    let gateway = one_per(&upstream, "address").start();
    takes_for_one(
        &gateway,
        &["2001:db8:64::192.0.2.8", "2001:db8:64::192.0.2.9"].map(from),
    );
}

#[test]
fn per_address_with_prefixes_takes_networks_of_that_size_for_one() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "address/48").start();
    takes_for_one(&gateway, &["2001:db8:1:2::1", "2001:db8:1:3::1"].map(from));
    tells_apart(
        &gateway,
        &["192.0.2.1", "192.0.2.2", "2001:db8:2::1"].map(from),
    );
    let gateway = one_per(&upstream, "address/24/48").start();
    takes_for_one(&gateway, &["192.0.2.1", "192.0.2.200"].map(from));
    tells_apart(&gateway, &["192.0.3.1", "2001:db8:2::1"].map(from));
}

#[test]
fn per_address_follows_the_configured_prefix_of_ipv6() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .key("client_address: {trusted_proxies: [127.0.0.1], ipv6_prefix: 128}");
    let gateway = setup.start();
    tells_apart(&gateway, &["2001:db8::1", "2001:db8::2"].map(from));
}

#[test]
fn per_account_counts_accounts_and_nobody_else() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "account")
        .key("account: [header: x-api-key]")
        .start();
    let account = |name| get("/").with("x-api-key", name);
    tells_apart(&gateway, &["red", "blue", "Blue"].map(account));
    does_not_count(&gateway, &get("/"));
}

#[test]
fn per_host_takes_spellings_of_a_host_for_one() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "host").start();
    let host = |host| get("/").with("host", host);
    takes_for_one(
        &gateway,
        &["a.example.com", "A.Example.COM", "a.example.com:80"].map(host),
    );
    tells_apart(&gateway, &["b.example.com", "c.example.com"].map(host));
}

#[test]
fn per_domain_takes_hosts_below_one_registrable_domain_for_one() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "domain").start();
    let host = |host| get("/").with("host", host);
    takes_for_one(
        &gateway,
        &["a.example.co.uk", "b.example.co.uk", "example.co.uk"].map(host),
    );
    tells_apart(&gateway, &["a.other.co.uk", "example.com"].map(host));
}

#[test]
fn per_method_tells_methods_apart_and_takes_invented_ones_for_one() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "method").start();
    let method = |method| request(method, "/");
    tells_apart(&gateway, &["GET", "PUT", "DELETE"].map(method));
    takes_for_one(&gateway, &["FROB", "FRUB"].map(method));
}

#[test]
fn per_route_tells_routes_apart() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "route")
        .routes(&[
            "{name: a, match: {path: \"/a/*\"}, upstream: app, limits: [L]}",
            "{name: b, match: {path: \"/b/*\"}, upstream: app, limits: [L]}",
        ])
        .start();
    takes_for_one(&gateway, &["/a/1", "/a/2"].map(get));
    tells_apart(&gateway, &["/b/1"].map(get));
}

#[test]
fn per_header_counts_values_and_a_repeated_header_is_one_subject() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "\"header:x-token\"").start();
    let token = |value| get("/").with("x-token", value);
    tells_apart(&gateway, &["red", "blue"].map(token));
    takes_for_one(
        &gateway,
        &[
            token("1").with("x-token", "2"),
            token("3").with("x-token", "4"),
        ],
    );
    does_not_count(&gateway, &get("/"));
}

#[test]
fn per_cookie_counts_values_of_that_cookie() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "\"cookie:session\"").start();
    let cookie = |cookies| get("/").with("cookie", cookies);
    tells_apart(&gateway, &["session=red", "session=blue"].map(cookie));
    takes_for_one(
        &gateway,
        &["session=green", "a=b; session=green", "session=green; a=c"].map(cookie),
    );
    does_not_count(&gateway, &cookie("other=red"));
}

#[test]
fn per_query_counts_values_of_that_parameter_however_they_are_encoded() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "\"query:q\"").start();
    tells_apart(&gateway, &["/?q=red", "/?q=blue"].map(get));
    takes_for_one(
        &gateway,
        &["/?q=green", "/?q=gr%65en", "/?a=1&q=green"].map(get),
    );
    does_not_count(&gateway, &get("/?other=red"));
}

#[test]
fn per_path_counts_a_captured_segment_however_it_is_spelled() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "\"path:team\"")
        .routes(&["{match: {path: \"/teams/{team}/invites\"}, upstream: app, limits: [L]}"])
        .start();
    let team = |team| get(&format!("/teams/{team}/invites"));
    tells_apart(&gateway, &["red", "blue"].map(team));
    takes_for_one(&gateway, &["green", "gr%65en"].map(team));
}

#[test]
fn global_counts_everybody() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "global").start();
    takes_for_one(
        &gateway,
        &["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(from),
    );
}

#[test]
fn a_list_of_sources_counts_each_combination() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "[address, method]").start();
    let method = |method, address| request(method, "/").with("x-forwarded-for", address);
    let requests = [
        method("GET", "192.0.2.1"),
        method("PUT", "192.0.2.1"),
        method("GET", "192.0.2.2"),
        method("GET", "2001:db8::1"),
    ];
    tells_apart(&gateway, &requests);
}

#[test]
fn what_a_limit_is_counted_per_may_be_said_by_the_route() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {burst: 1, count: 1, period: 1h}"])
        .routes(&["{match: {}, upstream: app, limits: [{limit: L, per: method}]}"])
        .start();
    tells_apart(&gateway, &["GET", "PUT"].map(|method| request(method, "/")));
}

#[test]
fn a_path_spelled_otherwise_is_limited_by_the_same_bucket() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .routes(&[
            "{match: {}, upstream: app}",
            "{name: login, match: {path: /login}, upstream: app, limits: [L]}",
        ])
        .start();
    assert_eq!(gateway.send(&get("/login")).status, 200);
    let spelled = [
        "/%6cogin",
        "/%6Cogin",
        "//login",
        "/./login",
        "/%2e/login",
        "/login?a=b",
        "http://app.example.com/login",
        "/LOGIN",
        "/Log%49n",
        "/login%20",
        "/login.",
        "/login%2e%20",
        "/login%2f",
        "/login%5C",
        "/login%3b",
    ];
    for path in spelled {
        assert_eq!(gateway.send(&get(path)).status, 429, "{path}");
    }
    does_not_count(&gateway, &get("/logins"));
}

#[test]
fn a_route_for_one_case_leaves_the_others_to_the_next() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .routes(&[
            "{match: {}, upstream: app}",
            "{name: login, match: {path: /Login, case: sensitive}, upstream: app, limits: [L]}",
        ])
        .start();
    assert_eq!(gateway.statuses(&get("/Login"), 2), [200, 429]);
    does_not_count(&gateway, &get("/login"));
}

#[test]
fn a_path_that_leads_upward_or_has_control_characters_is_refused_before_anybody_counts_it() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .start();
    for path in [
        "/search/../x",
        "/search/%2e%2E/x",
        "/search/..;/x",
        "/search%2f..%2fx",
        "/search/..%5cx",
        "/search/..%20/x",
        "/x%00",
        "/x%0a",
        "/x/%7F",
    ] {
        let refused = gateway.send(&get(path));
        assert_eq!(refused.status, 400, "{path}");
        assert_eq!(
            refused.field("content-type"),
            Some("application/problem+json")
        );
    }
    assert_eq!(gateway.statuses(&get("/x"), 2), [200, 429]);
}

#[test]
fn a_cost_takes_that_many_units() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 10, count: 1, period: 1h}"])
        .routes(&[
            "{match: {path: /dear}, upstream: app, limits: [{limit: L, cost: 4}]}",
            "{match: {path: /cheap}, upstream: app, limits: [L]}",
            "{match: {path: /never}, upstream: app, limits: [{limit: L, cost: 10}]}",
        ])
        .start();
    assert_eq!(gateway.statuses(&get("/dear"), 3), [200, 200, 429]);
    assert_eq!(gateway.statuses(&get("/cheap"), 3), [200, 200, 429]);
    assert_eq!(gateway.statuses(&get("/never"), 1), [429]);
}

#[test]
fn a_request_that_one_limit_denies_takes_from_none() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "Wide: {per: global, burst: 3, count: 1, period: 1h}",
            "Tight: {per: \"header:x-token\", burst: 1, count: 1, period: 1h}",
        ])
        .limited_by("Wide, Tight")
        .start();
    let token = |value| get("/").with("x-token", value);
    assert_eq!(gateway.statuses(&token("red"), 10)[1..], [429; 9]);
    // Of the three that all have together, only one is gone.
    assert_eq!(gateway.send(&token("blue")).status, 200);
    assert_eq!(gateway.send(&token("green")).status, 200);
    assert_eq!(gateway.send(&token("white")).status, 429);
}

#[test]
fn an_override_gives_some_addresses_and_networks_other_parameters() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "address")
        .overrides(
            "- L: {burst: 3, count: 1, period: 1h, ids: [192.0.2.17, \
             {id: \"2001:db8:0:17::/64\", comment: the office}]}",
        )
        .start();
    let mut client = gateway.client();
    for address in ["192.0.2.17", "2001:db8:0:17::99"] {
        let statuses = [(); 4].map(|()| client.send(&from(address)).status);
        assert_eq!(statuses, [200, 200, 200, 429], "{address}");
    }
    tells_apart(&gateway, &["192.0.2.18", "2001:db8:0:18::1"].map(from));
}

#[test]
fn an_override_for_an_account_is_written_plain() {
    let upstream = Upstream::start();
    let gateway = one_per(&upstream, "account")
        .key("account: [header: x-api-key]")
        .overrides("- L: {burst: 2, count: 1, period: 1h, ids: [acme]}")
        .start();
    let account = |name| get("/").with("x-api-key", name);
    assert_eq!(gateway.statuses(&account("acme"), 3), [200, 200, 429]);
    assert_eq!(gateway.statuses(&account("other"), 2), [200, 429]);
}

#[test]
fn a_request_that_lacks_what_it_must_have_is_refused() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: account, missing: deny, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .key("account: [header: x-api-key]")
        .start();
    let refused = gateway.send(&get("/"));
    assert_eq!(refused.status, 403);
    assert_eq!(
        refused.field("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(upstream.count(), 0);
    let acme = get("/").with("x-api-key", "acme");
    assert_eq!(gateway.statuses(&acme, 2), [200, 429]);
}
