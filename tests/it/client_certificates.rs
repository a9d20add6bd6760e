//! Clients that show certificates.

use crate::support::tls::{self, Authority, Certificate};
use crate::support::*;

/// One request per account, which the common name says; whoever has none is refused.
fn setup(upstream: &Upstream, server: &Certificate, authority: &Authority, auth: &str) -> Setup {
    Setup::before(upstream)
        .file("1.pem", &server.certificate)
        .file("1.key", &server.key)
        .file("ca.pem", &authority.pem())
        .listening(&format!(
            "[{{address: \"127.0.0.1:0\", tls: {{certificate: 1.pem, key: 1.key}}, \
             client_auth: {auth}}}]"
        ))
        .key("account: [certificate: subject_cn]")
        .limits(&["L: {per: account, missing: deny, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
}

/// The status of a request by this client; none if the gateway does not accept it.
fn status(gateway: &Gateway, config: &std::sync::Arc<rustls::ClientConfig>) -> Option<u16> {
    let mut client = tls::connect(gateway.address(), "a.example.com", config).ok()?;
    let claim = get("/").with("x-forwarded-client-cert", "Subject=\"CN=root\"");
    let claim = claim
        .with("client-cert", ":AAAA:")
        .with("client_cert", ":AAAA:");
    // With TLS 1.3, a client hears only now that its certificate is refused.
    client.try_send(&claim).ok().map(|answer| answer.status)
}

#[test]
fn a_certificate_names_the_account_over_http1_and_http2() {
    let upstream = Upstream::start();
    let server = Certificate::of("a.example.com");
    let authority = Authority::new("clients");
    let gateway = setup(&upstream, &server, &authority, "{ca: ca.pem}").start();
    let (red, blue) = (authority.sign("red", 1), authority.sign("blue", 2));
    let again = authority.sign("red", 3);
    assert_eq!(status(&gateway, &red.shown_to(&server, &[])), Some(200));
    let received = upstream.last();
    for header in ["x-forwarded-client-cert", "client-cert", "client_cert"] {
        assert!(received.lines(header).is_empty(), "{header}");
    }
    assert_eq!(status(&gateway, &again.shown_to(&server, &[])), Some(429));
    http2::run(async {
        let config = blue.shown_to(&server, &["h2"]);
        for expected in [200, 429] {
            let stream = tls::connect_async(gateway.address(), "a.example.com", &config).await;
            let mut sender = http2::over(stream).await;
            let answer = sender.send_request(http2::get("/")).await.unwrap();
            assert_eq!(answer.status(), expected, "also with a resumed session");
        }
    });
}

#[test]
fn clients_without_an_accepted_certificate_are_refused_unless_it_is_optional() {
    let upstream = Upstream::start();
    let server = Certificate::of("a.example.com");
    let authority = Authority::new("clients");
    let gateway = setup(&upstream, &server, &authority, "{ca: ca.pem}").start();
    let stranger = Authority::new("clients").sign("red", 1);
    let stranger = stranger.shown_to(&server, &[]);
    assert_eq!(status(&gateway, &server.trusted(&[])), None);
    assert_eq!(status(&gateway, &stranger), None);
    let failed = "weir_tls_handshakes_total{outcome=\"failed\"}";
    eventually(failed, || {
        (gateway.metric(failed) == Some(2.0)).then_some(())
    });
    assert_eq!(upstream.count(), 0);

    let auth = "{ca: ca.pem, mode: optional}";
    let gateway = setup(&upstream, &server, &authority, auth).start();
    let without = status(&gateway, &server.trusted(&[]));
    assert_eq!(without, Some(403), "it has no account");
    assert_eq!(status(&gateway, &stranger), None, "a wrong one is not none");
    let red = authority.sign("red", 1).shown_to(&server, &[]);
    assert_eq!(status(&gateway, &red), Some(200));
}

#[test]
fn a_revoked_certificate_is_refused_from_the_reload_on() {
    let upstream = Upstream::start();
    let server = Certificate::of("a.example.com");
    let authority = Authority::new("clients");
    let (red, blue) = (authority.sign("red", 1), authority.sign("blue", 2));
    let gateway = setup(
        &upstream,
        &server,
        &authority,
        "{ca: ca.pem, crl: revoked.pem}",
    )
    .file("revoked.pem", &authority.revoke(&[]))
    .start();
    let config = red.shown_to(&server, &[]);
    assert_eq!(status(&gateway, &config), Some(200));
    gateway.write("revoked.pem", &authority.revoke(&[&red]));
    gateway.reload();
    assert_eq!(status(&gateway, &config), None, "not even with a session");
    assert_eq!(status(&gateway, &blue.shown_to(&server, &[])), Some(200));
    // Another authority takes its place.
    let other = Authority::new("others");
    gateway.write("ca.pem", &other.pem());
    gateway.write("revoked.pem", &other.revoke(&[]));
    gateway.reload();
    assert_eq!(status(&gateway, &blue.shown_to(&server, &[])), None);
    let green = other.sign("green", 1).shown_to(&server, &[]);
    assert_eq!(status(&gateway, &green), Some(200));
}
