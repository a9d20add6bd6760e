//! Which upstreams there are, and TLS to them.

use weir_testing::certificates::Certificate;

use super::*;

/// The findings of an upstream with these keys beside some files.
fn findings(upstream: &str) -> String {
    let pair = Certificate::of("gateway.internal");
    let gateway = format!("upstreams: {{app: {{{upstream}}}}}\n{ROUTE}");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
        ("ca.pem", &pair.certificate),
        ("own.pem", &pair.certificate),
        ("own.key", &pair.key),
    ]);
    folder.findings()
}

const ROUTE: &str =
    "routes: [{match: {path: \"/*\"}, upstream: app, limits: [RequestsPerAddress]}]\n";

#[test]
fn tls_may_say_whom_to_trust_and_what_to_show() {
    for tls in [
        "{}",
        "{ca: ca.pem}",
        "{server_name: app.internal}",
        "{server_name: 10.0.0.5}",
        "{ca: ca.pem, server_name: app.internal, certificate: own.pem, key: own.key}",
    ] {
        let found = findings(&format!("servers: [\"https://app:8443\"], tls: {tls}"));
        assert_eq!(found, "0 errors, 0 warnings", "{tls}");
    }
}

#[test]
fn what_tls_cannot_be_spoken_with_is_refused() {
    for (upstream, message) in [
        (
            "servers: [\"http://app\"], tls: {}",
            "no server of this upstream is reached by TLS",
        ),
        (
            "servers: [\"unix:///a\"], tls: {}",
            "no server of this upstream is reached by TLS",
        ),
        (
            "builtin: echo, tls: {}",
            "no server of this upstream is reached by TLS",
        ),
        (
            "servers: [\"https://app\"], tls: {ca: own.key}",
            "own.key contains no certificate",
        ),
        (
            "servers: [\"https://app\"], tls: {ca: none.pem}",
            "cannot be read",
        ),
        (
            "servers: [\"https://app\"], tls: {server_name: \"a b\"}",
            "`a b` is not a host name",
        ),
        (
            "servers: [\"https://app\"], tls: {server_name: \"a:443\"}",
            "is not a host name",
        ),
        (
            "servers: [\"https://app\"], tls: {key: own.key}",
            "belong together",
        ),
        (
            "servers: [\"https://app\"], tls: {certificate: own.pem}",
            "belong together",
        ),
        (
            "servers: [\"unix://run/a\"]",
            "a socket is named by its absolute path",
        ),
    ] {
        let found = findings(upstream);
        assert!(found.contains(message), "{upstream}: {found}");
    }
}

#[test]
fn another_certificate_makes_another_upstream() {
    let pairs = [(); 2].map(|()| Certificate::of("app.internal"));
    let gateway =
        format!("upstreams: {{app: {{servers: [\"https://app\"], tls: {{ca: ca.pem}}}}}}\n{ROUTE}");
    let upstream = |pair: &Certificate| {
        let folder = Folder::with(&[
            ("gateway.yaml", &gateway),
            ("limits/defaults.yaml", DEFAULTS),
            ("ca.pem", &pair.certificate),
        ]);
        let settings = folder.load().unwrap();
        settings.upstreams[0].settings.clone()
    };
    assert_eq!(upstream(&pairs[0]), upstream(&pairs[0]));
    assert_ne!(upstream(&pairs[0]), upstream(&pairs[1]));
}

#[test]
fn what_is_spoken_may_be_left_to_a_handshake_alone() {
    for upstream in [
        "servers: [\"https://app\"], protocol: auto",
        "servers: [\"https://app\"], protocol: http2",
        "servers: [\"http://app\"], protocol: http2",
        "servers: [\"unix:///run/app.sock\"], protocol: http2",
        "servers: [\"http://app\"], protocol: http1",
    ] {
        assert_eq!(findings(upstream), "0 errors, 0 warnings", "{upstream}");
    }
    for (upstream, message) in [
        (
            "servers: [\"http://app\"], protocol: auto",
            "a server without TLS does not tell what it speaks",
        ),
        (
            "servers: [\"https://app\", \"http://app\"], protocol: auto",
            "a server without TLS does not tell what it speaks",
        ),
        (
            "builtin: echo, protocol: http2",
            "the built-in upstream speaks HTTP/1.1",
        ),
        (
            "servers: [\"https://app\"], protocol: h2c",
            "is not known here",
        ),
    ] {
        let found = findings(upstream);
        assert!(found.contains(message), "{upstream}: {found}");
    }
}

#[test]
fn servers_are_told_the_client_on_connections_that_carry_one_request() {
    let of = |upstream: &str| findings(upstream);
    for version in ["v1", "v2"] {
        let found = of(&format!(
            "servers: [\"http://a:1\"], proxy_protocol: {version}"
        ));
        assert_eq!(found, "0 errors, 0 warnings");
    }
    let http2 = of("servers: [\"http://a:1\"], proxy_protocol: v1, protocol: http2");
    assert!(
        http2.contains("carries requests of many clients"),
        "{http2}"
    );
    let echo = of("builtin: echo, proxy_protocol: v1");
    assert!(echo.contains("reads no PROXY header"), "{echo}");
    assert!(of("servers: [\"http://a:1\"], proxy_protocol: v3").contains("v3"));
}

#[test]
fn redirects_and_fixed_responses_need_no_upstreams() {
    let gateway = "limits: {}\nroutes:\n  - {match: {path: /a}, redirect: /b}\n  \
                   - {match: {}, response: {status: 404}}\n";
    let folder = Folder::with(&[("gateway.yaml", gateway)]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    let folder = Folder::with(&[("gateway.yaml", &format!("limits: {{}}\n{ROUTE}"))]);
    let found = folder.findings();
    assert!(found.contains("unknown upstream \"app\""), "{found}");
    let help = "add it: `upstreams: {app: {servers: [\"http://127.0.0.1:3000\"]}}`";
    assert!(found.contains(help), "{found}");
    // One mistake is one error.
    let empty = format!("limits: {{}}\nupstreams:\n{ROUTE}");
    let found = Folder::with(&[("gateway.yaml", &empty)]).findings();
    assert!(found.contains("upstreams: there is no value"), "{found}");
    assert!(!found.contains("unknown upstream"), "{found}");
}

#[test]
fn connections_are_bounded_where_each_carries_one_request() {
    let of = |keys: &str| timeouts_and_bodies::folder(&format!(", {keys}"), "").findings();
    assert_eq!(of("max_connections: 1"), "0 errors, 0 warnings");
    assert!(of("max_connections: 0").contains("needs at least one connection"));
    let http2 = of("max_connections: 9, protocol: http2");
    assert!(
        http2.contains("which carry one request at a time"),
        "{http2}"
    );
}
