//! TLS for clients.

use crate::support::tls::{self, Certificate};
use crate::support::*;

/// A gateway that speaks TLS with these certificates, `1.pem` with `1.key` and so on.
fn setup(upstream: &Upstream, certificates: &[&Certificate]) -> Setup {
    let mut setup = Setup::before(upstream);
    let mut pairs = Vec::new();
    for (number, it) in (1..).zip(certificates) {
        let (certificate, key) = (format!("{number}.pem"), format!("{number}.key"));
        pairs.push(format!("{{certificate: {certificate}, key: {key}}}"));
        setup = setup
            .file(&certificate, &it.certificate)
            .file(&key, &it.key);
    }
    let tls = pairs.join(", ");
    setup.listening(&format!("[{{address: \"127.0.0.1:0\", tls: [{tls}]}}]"))
}

#[test]
fn requests_over_tls_are_forwarded_and_the_upstream_hears_of_it() {
    let upstream = Upstream::start();
    let certificate = Certificate::of("a.example.com");
    let gateway = setup(&upstream, &[&certificate]).start();
    let config = certificate.trusted(&["http/1.1"]);
    let mut client = tls::connect(gateway.address(), "a.example.com", &config).unwrap();
    for _ in 0..3 {
        assert_eq!(client.send(&get("/")).status, 200);
        let received = upstream.last();
        assert_eq!(received.lines("x-forwarded-proto"), ["https"]);
    }
    let answer = client.send(&post("/", &"x".repeat(1_000_000)));
    assert_eq!(answer.status, 200);
    assert_eq!(upstream.last().body.len(), 1_000_000);
}

#[test]
fn http2_is_agreed_upon_in_the_handshake() {
    let upstream = Upstream::start();
    let certificate = Certificate::of("a.example.com");
    let gateway = setup(&upstream, &[&certificate]).start();
    let config = certificate.trusted(&["h2", "http/1.1"]);
    http2::run(async {
        let stream = tls::connect_async(gateway.address(), "a.example.com", &config).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut sender = http2::over(stream).await;
        for _ in 0..3 {
            let answer = sender.send_request(http2::get("/")).await.unwrap();
            let answer = http2::read(answer).await;
            assert_eq!(answer.head.status, 200);
        }
    });
    let received = upstream.last();
    assert_eq!(received.lines("x-forwarded-proto"), ["https"]);
}
