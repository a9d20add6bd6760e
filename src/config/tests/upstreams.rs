//! TLS to upstreams.

use super::*;
use crate::server::testing::Pair;

/// The findings of an upstream with these keys beside some files.
fn findings(upstream: &str) -> String {
    let pair = Pair::of(&["gateway.internal"], 30);
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
    let pairs = [(); 2].map(|()| Pair::of(&["app.internal"], 30));
    let gateway =
        format!("upstreams: {{app: {{servers: [\"https://app\"], tls: {{ca: ca.pem}}}}}}\n{ROUTE}");
    let upstream = |pair: &Pair| {
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
