//! Whose word on a client's address is taken, and what the upstream is told of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::*;

/// One request per address, with these rules about addresses.
fn start(upstream: &Upstream, rules: &str) -> Gateway {
    Setup::before(upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&format!("client_address: {rules}"))
        .start()
}

/// The same without limits.
fn unlimited(upstream: &Upstream, rules: &str) -> Gateway {
    Setup::before(upstream)
        .key(&format!("client_address: {rules}"))
        .start()
}

/// The client's address as the log has it.
fn logged(gateway: &Gateway, request: &Request) -> String {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    // Lines of requests before it may come later.
    let host = format!("{}.example.com", CALLS.fetch_add(1, Ordering::Relaxed));
    gateway.send(&request.clone().with("host", &host));
    let line = eventually("a line of the access log", || {
        let mut lines = gateway.access("/").into_iter();
        lines.find(|line| line["host"] == *host)
    });
    line["client"].as_str().expect("an address").to_owned()
}

#[test]
fn nobodys_forwarding_fields_are_believed_by_default() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "{}");
    for (number, status) in [(1, 200), (2, 429), (3, 429)] {
        let claim = format!("192.0.2.{number}");
        let request = get("/")
            .with("x-forwarded-for", &claim)
            .with("x-real-ip", &claim)
            .with("forwarded", &format!("for={claim}"));
        assert_eq!(gateway.send(&request).status, status);
    }
    assert_eq!(logged(&gateway, &get("/")), "127.0.0.1");
}

#[test]
fn only_a_peer_that_is_a_trusted_proxy_is_believed() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "{trusted_proxies: [127.0.0.2]}");
    let claim = get("/").with("x-forwarded-for", "192.0.2.1");
    let send_from = |last: u8| {
        let mut client = Client::connect_from(Ipv4Addr::new(127, 0, 0, last), gateway.address());
        client.send(&claim).status
    };
    assert_eq!([send_from(2), send_from(2)], [200, 429], "for 192.0.2.1");
    assert_eq!([send_from(3), send_from(3)], [200, 429], "for itself");
    assert_eq!([send_from(4), send_from(4)], [200, 429], "for itself");
}

#[test]
fn the_client_is_the_first_from_the_right_that_is_no_trusted_proxy() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "{trusted_proxies: [127.0.0.1, 10.0.0.0/8]}");
    let chain = |lines: &[&str]| {
        let add = |request: Request, line: &&str| request.with("x-forwarded-for", line);
        lines.iter().fold(get("/"), add)
    };
    let cases: [(&[&str], &str); 6] = [
        (&["192.0.2.1"], "192.0.2.1"),
        (&["6.6.6.6, 192.0.2.1, 10.1.2.3"], "192.0.2.1"),
        (&["6.6.6.6, 192.0.2.1", "10.1.2.3", "10.9.9.9"], "192.0.2.1"),
        (&["192.0.2.1:4711"], "192.0.2.1"),
        (&["[2001:db8::1]:4711"], "2001:db8::1"),
        (&["::ffff:192.0.2.1"], "192.0.2.1"),
    ];
    for (lines, client) in cases {
        assert_eq!(logged(&gateway, &chain(lines)), client, "{lines:?}");
    }
}

#[test]
fn forwarded_is_read_in_all_of_its_forms() {
    let upstream = Upstream::start();
    let gateway = start(
        &upstream,
        "{trusted_proxies: [127.0.0.1], header: forwarded}",
    );
    let cases = [
        ("for=192.0.2.1", "192.0.2.1"),
        ("For=\"192.0.2.1:4711\";proto=https", "192.0.2.1"),
        ("for=\"[2001:db8::1]:4711\"", "2001:db8::1"),
        ("for=6.6.6.6, for=192.0.2.1;host=\"a,b;c\"", "192.0.2.1"),
        // Beyond what is hidden nobody knows who is who.
        ("for=6.6.6.6, for=unknown", "127.0.0.1"),
        ("for=6.6.6.6, for=_hidden", "127.0.0.1"),
    ];
    for (value, client) in cases {
        let request = get("/")
            .with("forwarded", value)
            .with("x-forwarded-for", "7.7.7.7");
        assert_eq!(logged(&gateway, &request), client, "{value}");
    }
}

#[test]
fn a_header_of_a_single_address_is_read_where_it_is_configured() {
    let upstream = Upstream::start();
    let gateway = start(
        &upstream,
        "{trusted_proxies: [127.0.0.1], header: x-real-ip}",
    );
    let request = get("/")
        .with("x-real-ip", "192.0.2.1")
        .with("x-forwarded-for", "6.6.6.6");
    assert_eq!(logged(&gateway, &request), "192.0.2.1");
}

#[test]
fn the_upstream_gets_no_claims_of_an_untrusted_peer() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "{}");
    let request = get("/")
        .with("x-forwarded-for", "6.6.6.6")
        .with("x-forwarded-for", "7.7.7.7")
        .with("x-forwarded-proto", "https")
        .with("x-forwarded-host", "evil.example")
        .with("x-forwarded-port", "1")
        .with("x-real-ip", "6.6.6.6")
        .with("forwarded", "for=6.6.6.6;proto=https");
    gateway.send(&request);
    let received = upstream.last();
    assert_eq!(received.lines("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(received.lines("x-forwarded-proto"), ["http"]);
    assert_eq!(received.lines("x-forwarded-host"), ["app.example.com"]);
    assert_eq!(
        received.lines("forwarded"),
        ["for=127.0.0.1;host=app.example.com;proto=http"]
    );
    assert_eq!(received.lines("x-forwarded-port"), [""; 0]);
    assert_eq!(received.lines("x-real-ip"), [""; 0]);
}

#[test]
fn the_upstream_gets_what_a_trusted_proxy_said_continued() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "{trusted_proxies: [127.0.0.1]}");
    let request = get("/")
        .with("x-forwarded-for", "192.0.2.1")
        .with("x-forwarded-for", "10.0.0.1")
        .with("x-forwarded-proto", "https")
        .with("x-forwarded-host", "outside.example")
        .with("forwarded", "for=6.6.6.6");
    gateway.send(&request);
    let received = upstream.last();
    assert_eq!(
        received.lines("x-forwarded-for"),
        ["192.0.2.1, 10.0.0.1, 127.0.0.1"]
    );
    assert_eq!(received.lines("x-forwarded-proto"), ["https"]);
    assert_eq!(received.lines("x-forwarded-host"), ["outside.example"]);
    assert_eq!(
        received.lines("forwarded"),
        ["for=10.0.0.1;host=outside.example;proto=https, \
             for=127.0.0.1;host=outside.example;proto=https"],
        "nobody vouches for what came in the other field"
    );
}

/// Apps that prefer `Forwarded` were told http, and redirected to HTTPS for ever: by the first
/// element, by the last one, or by the one of the client.
#[test]
fn forwarded_never_says_http_behind_a_trusted_proxy_that_ends_tls() {
    let upstream = Upstream::start();
    for (header, value, kept) in [
        ("x-forwarded-for", "192.0.2.1", None),
        ("forwarded", "for=192.0.2.1", None),
        (
            "forwarded",
            "for=192.0.2.1;proto=https",
            Some("for=192.0.2.1;proto=https;host="),
        ),
        ("x-real-ip", "192.0.2.1", None),
        ("cf-connecting-ip", "192.0.2.1", None),
    ] {
        let rules = format!("{{trusted_proxies: [127.0.0.1], header: {header}}}");
        let gateway = unlimited(&upstream, &rules);
        for (outside, host) in [
            (None, "app.example.com"),
            (Some("outside.example"), "outside.example"),
        ] {
            let request = get("/")
                .with(header, value)
                .with("x-forwarded-proto", "https");
            let request = match outside {
                Some(outside) => request.with("x-forwarded-host", outside),
                None => request,
            };
            gateway.send(&request);
            let received = upstream.last();
            let client = match kept {
                Some(kept) => format!("{kept}{host}"),
                None => format!("for=192.0.2.1;host={host};proto=https"),
            };
            let expected = format!("{client}, for=127.0.0.1;host={host};proto=https");
            assert_eq!(received.lines("forwarded"), [expected], "{header}: {value}");
            assert_eq!(received.lines("x-forwarded-proto"), ["https"]);
            assert_eq!(received.lines("x-forwarded-host"), [host]);
        }
    }
}

#[test]
fn forwarded_never_says_http_behind_two_trusted_proxies_of_which_the_first_ends_tls() {
    let upstream = Upstream::start();
    let asked = "host=app.example.com;proto=https";
    for (header, value, forwarded) in [
        (
            "x-forwarded-for",
            "192.0.2.1, 10.0.0.1",
            format!("for=192.0.2.1;{asked}, for=127.0.0.1;{asked}"),
        ),
        (
            "forwarded",
            "for=192.0.2.1, for=10.0.0.1",
            format!("for=192.0.2.1;{asked}, for=10.0.0.1, for=127.0.0.1;{asked}"),
        ),
    ] {
        let rules = format!("{{trusted_proxies: [127.0.0.1, 10.0.0.0/8], header: {header}}}");
        let gateway = unlimited(&upstream, &rules);
        let request = get("/").with(header, value);
        gateway.send(&request.with("x-forwarded-proto", "https, http"));
        assert_eq!(upstream.last().lines("forwarded"), [forwarded], "{header}");
    }
}

#[test]
fn what_a_trusted_proxy_says_in_forwarded_alone_is_told_in_the_other_fields_too() {
    let upstream = Upstream::start();
    let said = "for=192.0.2.1;host=\"outside.example:8443\";proto=https";
    let forged = format!("for=6.6.6.6;host=evil.example;proto=http, {said}");
    let outside = "outside.example:8443";
    // A proxy that writes another header may have passed on what its client wrote.
    for (header, said, host) in [
        ("x-forwarded-for", said, "app.example.com"),
        ("forwarded", said, outside),
        ("forwarded", &forged, outside),
    ] {
        let rules = format!("{{trusted_proxies: [127.0.0.1], header: {header}}}");
        let gateway = unlimited(&upstream, &rules);
        gateway.send(&get("/said").with("forwarded", said));
        let received = upstream.last();
        assert_eq!(received.lines("x-forwarded-proto"), ["https"], "{header}");
        assert_eq!(received.lines("x-forwarded-host"), [host], "{header}");
        assert_eq!(gateway.logged("/said")["scheme"], "https");
    }
    let gateway = unlimited(&upstream, "{}");
    gateway.send(&get("/").with("forwarded", "for=192.0.2.1;proto=https"));
    assert_eq!(upstream.last().lines("x-forwarded-proto"), ["http"]);
}

#[test]
fn a_connection_field_cannot_take_away_who_the_client_is() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "{}");
    gateway.send(&get("/").with(
        "connection",
        "x-forwarded-for, forwarded, x-forwarded-proto",
    ));
    let received = upstream.last();
    assert_eq!(received.lines("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(received.lines("x-forwarded-proto"), ["http"]);
    assert_eq!(received.lines("forwarded").len(), 1);
}

#[test]
fn a_client_of_ipv4_is_one_on_a_listener_for_both_families_too() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .listening("[{address: \"[::]:0\"}]")
        .start();
    let address = SocketAddr::from(([127, 0, 0, 1], gateway.address().port()));
    let mut one = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), address);
    assert_eq!(one.send(&get("/")).status, 200);
    assert_eq!(upstream.last().lines("x-forwarded-for"), ["127.0.0.2"]);
    // As addresses of IPv6, all of IPv4 would be in one network.
    let mut other = Client::connect_from(Ipv4Addr::new(127, 0, 0, 3), address);
    assert_eq!(other.send(&get("/")).status, 200);
    assert_eq!(one.send(&get("/")).status, 429);
}

/// All clients of a balancer that `trusted_proxies` lacks share one bucket, and nobody was told.
#[test]
fn a_forgotten_proxy_never_goes_unnoticed_and_is_logged_once() {
    let upstream = Upstream::start();
    // Most of what it sends may be denied: its clients share the limit.
    let rules = |trusted: &str, burst: u32| {
        Setup::before(&upstream)
            .limits(&[&format!(
                "L: {{per: address, burst: {burst}, count: 1, period: 1h}}"
            )])
            .limited_by("L")
            .key(&format!("client_address: {{trusted_proxies: {trusted}}}"))
            .start()
    };
    for (trusted, burst, times) in [("[]", 100, 1), ("[]", 3, 1), ("[127.0.0.1]", 3, 0)] {
        let gateway = rules(trusted, burst);
        for client in 0..80 {
            let claim = format!("192.0.2.{}", client % 40);
            gateway.send(&get("/").with("x-forwarded-for", &claim));
        }
        eventually("all lines of the access log", || {
            (gateway.access("/").len() == 80).then_some(())
        });
        let log = gateway.log();
        let told = log.iter().filter(|line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.contains("client_address.trusted_proxies") && line["peer"] == "127.0.0.1"
        });
        assert_eq!(told.count(), times, "{trusted} {burst}");
    }
}
