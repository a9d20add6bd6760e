//! Upstreams reached by TLS.

use crate::support::tls::Certificate;
use crate::support::upstream::text;
use crate::support::*;

const NAME: &str = "app.internal";

/// An upstream with this certificate.
fn upstream(certificate: &Certificate) -> Upstream {
    let config = certificate.server(&["http/1.1"], None);
    Upstream::behind(Entrance::Tls(config), |_| text("real"))
}

/// A gateway before it that trusts what `ca.pem` holds, with these keys in `tls`.
fn setup(upstream: &Upstream, ca: &Certificate, keys: &str) -> Setup {
    let server = format!("https://{}", upstream.address());
    let app = format!("{{servers: [\"{server}\"], tls: {{ca: ca.pem, {keys}}}}}");
    Setup::with_upstreams(&format!("{{app: {app}}}")).file("ca.pem", &ca.certificate)
}

fn named(upstream: &Upstream, ca: &Certificate) -> Setup {
    setup(upstream, ca, &format!("server_name: {NAME}"))
}

/// What the access log says of the first request for a path.
fn upstream_error(gateway: &Gateway, path: &str) -> serde_json::Value {
    eventually("a line of the access log", || {
        let line = gateway.access(path).into_iter().next()?;
        Some(line["upstream_error"].clone())
    })
}

#[test]
fn requests_are_forwarded_by_tls_on_kept_connections() {
    let certificate = Certificate::of(NAME);
    let upstream = upstream(&certificate);
    let gateway = named(&upstream, &certificate).start();
    let mut client = gateway.client();
    for length in [0, 10, 1_000_000] {
        let answer = client.send(&post("/", &"x".repeat(length)));
        assert_eq!((answer.status, answer.text()), (200, "real"));
        assert_eq!(upstream.last().body.len(), length);
    }
    let handshakes = upstream.handshakes();
    assert_eq!((handshakes.len(), upstream.connections()), (1, 1));
    assert_eq!(handshakes[0].server_name.as_deref(), Some(NAME));
    assert!(handshakes[0].client.is_none());
}

#[test]
fn a_websocket_passes_by_tls_to_the_upstream() {
    let certificate = Certificate::of(NAME);
    let upstream = WebSocket::start_tls(certificate.server(&["http/1.1"], None));
    let server = format!("https://{}", upstream.address());
    let app = format!("{{servers: [\"{server}\"], tls: {{ca: ca.pem, server_name: {NAME}}}}}");
    let gateway = Setup::with_upstreams(&format!("{{app: {app}}}"))
        .file("ca.pem", &certificate.certificate)
        .start();
    let mut client = gateway.client();
    let ask = get("/socket")
        .with("connection", "Upgrade")
        .with("upgrade", "websocket");
    client.write(&ask.bytes()).unwrap();
    assert_eq!(client.read_head().unwrap().status, 101);
    for frame in [vec![b'x'; 5], vec![b'y'; 100_000]] {
        client.write(&frame).unwrap();
        let mut echo = vec![0; frame.len()];
        client.read_exact(&mut echo).unwrap();
        assert!(echo == frame);
    }
    drop(client);
    assert!(upstream.ended().contains("upgrade: websocket\r\n"));
}

#[test]
fn a_body_that_comes_slowly_is_not_held_back_in_records() {
    let certificate = Certificate::of(NAME);
    let upstream = upstream(&certificate);
    let gateway = named(&upstream, &certificate).start();
    let mut client = gateway.client();
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    client.write(head.as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x1_0000));
    for _ in 0..50 {
        client.write(chunk.as_bytes()).unwrap();
    }
    client.write(b"0\r\n\r\n").unwrap();
    assert_eq!(client.read("POST").unwrap().status, 200);
    assert_eq!(upstream.last().body.len(), 50 * 0x1_0000);
}

#[test]
fn a_certificate_that_is_not_trusted_gets_no_request() {
    let (certificate, other) = (Certificate::of(NAME), Certificate::of(NAME));
    let upstream = upstream(&certificate);
    let gateway = named(&upstream, &other).start();
    let answer = gateway.send(&get("/secret"));
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("TLS"), "{}", answer.text());
    gateway.logs("upstream request failed", 1);
    let log = gateway.log_text();
    assert!(log.contains("invalid peer certificate"), "{log}");
    assert_eq!(upstream_error(&gateway, "/secret"), "tls");
    assert_eq!((upstream.count(), upstream.handshakes().len()), (0, 0));
}

#[test]
fn public_authorities_do_not_sign_for_everybody() {
    let certificate = Certificate::of(NAME);
    let upstream = upstream(&certificate);
    let server = format!("https://{}", upstream.address());
    let gateway = Setup::with_upstreams(&format!("{{app: {{servers: [\"{server}\"]}}}}")).start();
    assert_eq!(gateway.send(&get("/")).status, 502);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_certificate_for_another_name_gets_no_request() {
    let certificate = Certificate::of("another.internal");
    let upstream = upstream(&certificate);
    let gateway = named(&upstream, &certificate).start();
    assert_eq!(gateway.send(&get("/")).status, 502);
    gateway.logs("upstream request failed", 1);
    let log = gateway.log_text();
    assert!(log.contains("not valid for name"), "{log}");
    assert_eq!(upstream.count(), 0);
}

/// As in the example of the documentation.
#[test]
fn a_certificate_is_trusted_that_openssl_makes_of_itself() {
    let certificate = Certificate::of_authority(NAME);
    let upstream = upstream(&certificate);
    let gateway = named(&upstream, &certificate).start();
    assert_eq!(gateway.send(&get("/")).status, 200);
    let gateway = setup(&upstream, &certificate, "server_name: another.internal").start();
    assert_eq!(gateway.send(&get("/")).status, 502);
}

#[test]
fn another_server_answers_for_one_whose_certificate_is_not_trusted() {
    let (certificate, other) = (Certificate::of(NAME), Certificate::of(NAME));
    let (good, bad) = (upstream(&certificate), upstream(&other));
    let servers = format!(
        "\"https://{}\", \"https://{}\"",
        bad.address(),
        good.address()
    );
    let tls = format!("{{ca: ca.pem, server_name: {NAME}}}");
    let setup = Setup::with_upstreams(&format!("{{app: {{servers: [{servers}], tls: {tls}}}}}"));
    let gateway = setup.file("ca.pem", &certificate.certificate).start();
    for _ in 0..4 {
        assert_eq!(gateway.send(&get("/")).status, 200);
    }
    assert_eq!((good.count(), bad.count()), (4, 0));
}

#[test]
fn a_server_that_speaks_plain_http_is_told_apart_from_one_out_of_reach() {
    let upstream = Upstream::start();
    let certificate = Certificate::of(NAME);
    let gateway = named(&upstream, &certificate).start();
    assert_eq!(gateway.send(&get("/")).status, 502);
    assert_eq!(upstream_error(&gateway, "/"), "tls");
    assert_eq!(upstream.count(), 0);
}

#[test]
fn the_gateway_shows_its_own_certificate_to_a_server_that_asks() {
    let (certificate, own) = (Certificate::of(NAME), Certificate::of("gateway.internal"));
    let config = certificate.server(&["http/1.1"], Some(&own));
    let upstream = Upstream::behind(Entrance::Tls(config), |_| text("real"));
    let keys = format!("server_name: {NAME}, certificate: own.pem, key: own.key");
    let setup = setup(&upstream, &certificate, &keys)
        .file("own.pem", &own.certificate)
        .file("own.key", &own.key);
    assert_eq!(setup.start().send(&get("/")).status, 200);
    assert_eq!(upstream.handshakes()[0].client, Some(own.der()));
    // Without it there is no answer.
    let gateway = named(&upstream, &certificate).start();
    assert_eq!(gateway.send(&get("/")).status, 502);
    assert_eq!(upstream_error(&gateway, "/"), "tls");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn another_connection_resumes_the_session() {
    let certificate = Certificate::of(NAME);
    let config = certificate.server(&["http/1.1"], None);
    let upstream = Upstream::behind(Entrance::Tls(config), |_| {
        let mut answer = text("real");
        let close = "close".parse().unwrap();
        answer.headers_mut().insert("connection", close);
        answer
    });
    let gateway = named(&upstream, &certificate).start();
    assert_eq!(gateway.statuses(&get("/"), 3), [200; 3]);
    let handshakes = upstream.handshakes();
    let resumed: Vec<_> = handshakes.iter().map(|it| it.is_resumed).collect();
    assert_eq!(resumed, [false, true, true]);
}

#[test]
fn new_authorities_are_trusted_after_a_reload() {
    let (certificate, other) = (Certificate::of(NAME), Certificate::of(NAME));
    let upstream = upstream(&certificate);
    let gateway = named(&upstream, &other).start();
    assert_eq!(gateway.send(&get("/")).status, 502);
    gateway.write("ca.pem", &certificate.certificate);
    gateway.reload();
    assert_eq!(gateway.send(&get("/")).status, 200);
    gateway.write("ca.pem", &other.certificate);
    gateway.reload();
    assert_eq!(
        gateway.send(&get("/")).status,
        502,
        "an old connection is trusted no longer"
    );
}

#[test]
fn a_file_that_changes_is_read_again() {
    let (certificate, other) = (Certificate::of(NAME), Certificate::of(NAME));
    let upstream = upstream(&certificate);
    let gateway = named(&upstream, &other).watching().start();
    assert_eq!(gateway.send(&get("/")).status, 502);
    gateway.write("ca.pem", &certificate.certificate);
    gateway.logs("configuration reloaded", 1);
    assert_eq!(gateway.send(&get("/")).status, 200);
}
