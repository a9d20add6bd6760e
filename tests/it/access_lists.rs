//! Lists of the allowed and the blocked.

use crate::support::upstream::text;
use crate::support::*;

const LIMIT: &str = "L: {per: address, burst: 1, count: 1, period: 1000h}";

fn setup(upstream: &Upstream, lists: &str) -> Setup {
    Setup::before(upstream)
        .limits(&[LIMIT])
        .limited_by("L")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key("account: [{header: x-api-key}]")
        .key(lists)
}

fn from(address: &str) -> Request {
    get("/").with("x-forwarded-for", address)
}

#[test]
fn the_allowed_have_no_limit_and_the_blocked_no_way_in() {
    let upstream = Upstream::start();
    let gateway = setup(
        &upstream,
        "allow: {addresses: [203.0.113.9], accounts: [acme]}\n\
         block: {addresses: [203.0.113.0/24, \"2001:db8::/32\"], accounts: [mallory]}",
    )
    .start();
    assert_eq!(gateway.statuses(&from("203.0.113.9"), 5), [200; 5]);
    let acme = from("203.0.113.8").with("x-api-key", "acme");
    assert_eq!(gateway.statuses(&acme, 5), [200; 5]);
    for blocked in [
        from("203.0.113.8"),
        from("2001:db8:1::1"),
        from("192.0.2.1").with("x-api-key", "mallory"),
    ] {
        let response = gateway.send(&blocked);
        assert_eq!(response.status, 403);
        assert_eq!(
            response.field("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(response.field("ratelimit"), None);
    }
    assert_eq!(gateway.statuses(&from("192.0.2.1"), 2), [200, 429]);
    assert_eq!(upstream.count(), 11);
    assert_eq!(gateway.metric("weir_blocked_requests_total"), Some(3.0));
    let lines = eventually("all lines of the access log", || {
        Some(gateway.access("/")).filter(|lines| lines.len() == 15)
    });
    let listed = |list: &str| lines.iter().filter(|line| line["list"] == list).count();
    assert_eq!((listed("allow"), listed("block")), (10, 3));
}

#[test]
fn the_blocked_get_what_is_configured() {
    let upstream = Upstream::start();
    let blocked = "block: {addresses: [203.0.113.9], on_denied: drop}";
    let gateway = setup(&upstream, blocked).start();
    assert!(gateway.client().try_send(&from("203.0.113.9")).is_err());
    assert_eq!(gateway.send(&from("203.0.113.8")).status, 200);
}

/// They used to learn nothing where nobody is banned.
#[test]
fn decoys_of_the_blocked_learn_from_the_answers_of_others() {
    let upstream = Upstream::answering(|_| {
        let mut answer = text("real");
        let powered = "app/1".parse().unwrap();
        answer.headers_mut().insert("x-powered-by", powered);
        answer
    });
    let blocked = "decoys: {sent: {body: decoy}}\n\
                   block: {addresses: [203.0.113.9], on_denied: {shadow: sent}}";
    let gateway = setup(&upstream, blocked)
        .routes(&["{match: {}, upstream: app}"])
        .start();
    let real = gateway.send(&from("203.0.113.8"));
    let decoy = gateway.send(&from("203.0.113.9"));
    assert_eq!((decoy.status, decoy.text()), (200, "decoy"));
    assert_eq!(decoy.names(), real.names());
    assert_eq!(decoy.field("x-powered-by"), Some("app/1"));
}

#[test]
fn a_file_that_changes_changes_the_list_and_one_in_error_changes_nothing() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream, "block: {addresses: [{file: blocked.txt}]}")
        .file("blocked.txt", "# nobody yet\n")
        .watching()
        .start();
    let is_blocked = |address: &str| {
        eventually(&format!("{address} to be blocked"), || {
            (gateway.send(&from(address)).status == 403).then_some(())
        });
    };
    assert_eq!(gateway.send(&from("203.0.113.9")).status, 200);
    gateway.write("blocked.txt", "203.0.113.0/24 # theirs\n");
    is_blocked("203.0.113.9");

    gateway.write("blocked.txt", "203.0.113.0/24\n198.51.100.256\n");
    gateway.logs("configuration not reloaded", 1);
    gateway.log_tells("blocked.txt:2:1:");
    is_blocked("203.0.113.9");

    gateway.write("blocked.txt", "198.51.100.0/24\n");
    is_blocked("198.51.100.9");
    eventually("who is no longer blocked", || {
        (gateway.send(&from("203.0.113.9")).status != 403).then_some(())
    });
}

/// A hundred thousand networks load and answer like any other list.
#[test]
fn long_lists_are_found_in_as_well() {
    let upstream = Upstream::start();
    let networks: String = (0..100_000_u32)
        .map(|index| {
            format!(
                "{}/30\n",
                std::net::Ipv4Addr::from_bits(0x0b00_0000 + index * 8)
            )
        })
        .collect();
    let gateway = setup(&upstream, "block: {addresses: [{file: blocked.txt}]}")
        .file("blocked.txt", &networks)
        .start();
    assert_eq!(gateway.send(&from("11.0.0.11")).status, 403);
    assert_eq!(gateway.send(&from("11.0.0.12")).status, 200);
    assert_eq!(gateway.send(&from("11.12.52.3")).status, 403);
}

/// An address behind a translator passed a block of its IPv4 network.
#[test]
fn a_list_holds_for_clients_behind_a_translator() {
    let upstream = Upstream::start();
    let lists = "allow: {addresses: [\"64:ff9b::203.0.113.9\"]}\n\
                 block: {addresses: [203.0.113.0/24, \"2001:db8:64::c612:0/111\"]}";
    let gateway = Setup::before(&upstream)
        .limits(&[LIMIT])
        .limited_by("L")
        .key(lists)
        .key(
            "client_address: {trusted_proxies: [127.0.0.1], \
             nat64_prefixes: [\"2001:db8:64::/96\"]}",
        )
        .start();
    for blocked in [
        "64:ff9b::203.0.113.8",
        "2001:db8:64::203.0.113.8",
        "::203.0.113.8",
        "198.19.0.1",
        "64:ff9b::198.18.0.1",
    ] {
        assert_eq!(gateway.send(&from(blocked)).status, 403, "{blocked}");
    }
    for allowed in [
        "203.0.113.9",
        "64:ff9b::203.0.113.9",
        "2001:db8:64::203.0.113.9",
    ] {
        assert_eq!(gateway.statuses(&from(allowed), 3), [200; 3], "{allowed}");
    }
    assert_eq!(gateway.send(&from("64:ff9b::198.20.0.1")).status, 200);
}
