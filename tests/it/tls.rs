//! TLS for clients.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::tls::{self, Certificate, shown, trusting};
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

#[test]
fn a_client_must_speak_the_protocol_that_was_agreed_upon() {
    let upstream = Upstream::start();
    let certificate = Certificate::of("a.example.com");
    let gateway = setup(&upstream, &[&certificate]).start();
    let said = |protocols: &[&str], bytes: &[u8]| {
        let config = certificate.trusted(protocols);
        let mut client = tls::connect(gateway.address(), "a.example.com", &config).unwrap();
        client.write(bytes).unwrap();
        client.rest()
    };
    let (request, preface) = (get("/").bytes(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    // The other's bytes are no beginning of the protocol at hand, so the connection ends there.
    let answer = said(&["h2"], &request);
    assert!(!answer.starts_with(b"HTTP/1.1"), "{answer:?}");
    let settings = [preface.as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let answer = said(&["http/1.1"], &settings);
    assert!(
        !answer.starts_with(&[0, 0]),
        "no frame of HTTP/2: {answer:?}"
    );
    assert_eq!(upstream.count(), 0);
    // Without an agreement the first bytes tell.
    let config = certificate.trusted(&[]);
    http2::run(async {
        let stream = tls::connect_async(gateway.address(), "a.example.com", &config).await;
        let mut sender = http2::over(stream).await;
        let answer = sender.send_request(http2::get("/")).await.unwrap();
        assert_eq!(http2::read(answer).await.head.status, 200);
    });
}

#[test]
fn a_client_gets_the_certificate_of_the_name_it_asks_for() {
    let upstream = Upstream::start();
    let (a, b) = (
        Certificate::of("a.example.com"),
        Certificate::of("*.example.org"),
    );
    let gateway = setup(&upstream, &[&a, &b]).start();
    let config = trusting(&[&a, &b], &[]);
    for (name, certificate) in [
        ("a.example.com", &a),
        ("b.example.org", &b),
        ("www.example.org", &b),
    ] {
        let mut client = tls::connect(gateway.address(), name, &config).unwrap();
        assert_eq!(shown(&client), certificate.der(), "{name}");
        assert_eq!(client.send(&get("/")).status, 200);
    }
    // Nobody has this name, so it is the first, which has another.
    let refused = tls::connect(gateway.address(), "c.example.net", &config);
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("a.example.com"), "{refused}");
}

#[test]
fn a_renewed_certificate_is_shown_to_new_clients_and_the_old_ones_go_on() {
    let upstream = Upstream::start();
    let (old, new) = (
        Certificate::of("a.example.com"),
        Certificate::of("a.example.com"),
    );
    let gateway = setup(&upstream, &[&old]).watching().start();
    let config = trusting(&[&old, &new], &["http/1.1"]);
    let connect = || tls::connect(gateway.address(), "a.example.com", &config).unwrap();
    let mut before = connect();
    assert_eq!(before.send(&get("/")).status, 200);

    // A certificate without its key changes nothing, and is told of.
    gateway.write("1.pem", &new.certificate);
    gateway.logs("configuration not reloaded", 1);
    let why = "1.key is not the key of the certificate";
    gateway.log_tells(why);
    let mut between = connect();
    assert_eq!(shown(&between), old.der());
    gateway.write("1.key", &new.key);
    gateway.logs("configuration reloaded", 1);
    let mut after = connect();
    assert_eq!(shown(&after), new.der());
    for client in [&mut before, &mut between, &mut after] {
        assert_eq!(client.send(&get("/")).status, 200);
    }
    assert_eq!(gateway.times_logged("listen keeps its old value"), 0);
}

#[test]
fn when_the_first_certificate_expires_is_on_the_page_of_metrics() {
    const EXPIRY: &str = "weir_tls_certificate_expiry_timestamp_seconds";
    let upstream = Upstream::start();
    let (long, short, renewed) = (
        Certificate::lasting("a.example.com", 90),
        Certificate::lasting("b.example.com", 20),
        Certificate::lasting("b.example.com", 60),
    );
    let gateway = setup(&upstream, &[&long, &short]).watching().start();
    let days = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let left = gateway.metric(EXPIRY).unwrap() - now.as_secs_f64();
        (left / 86_400.0).round()
    };
    assert_eq!(days(), 20.0);
    gateway.write("2.pem", &renewed.certificate);
    gateway.write("2.key", &renewed.key);
    gateway.logs("configuration reloaded", 1);
    assert_eq!(days(), 60.0);

    let plain = Setup::before(&upstream).start();
    assert_eq!(plain.metric(EXPIRY), None);
}

#[test]
fn whether_a_listener_speaks_tls_is_changed_by_a_restart_alone() {
    let upstream = Upstream::start();
    let certificate = Certificate::of("a.example.com");
    let gateway = setup(&upstream, &[&certificate]).start();
    let yaml = gateway.read("gateway.yaml");
    let without = yaml.replace(", tls: [{certificate: 1.pem, key: 1.key}]", "");
    assert_ne!(yaml, without);
    gateway.write("gateway.yaml", &without);
    gateway.reload();
    gateway.logs("listen keeps its old value until a restart", 1);
    let log = gateway.log();
    let told = log.iter().find(|line| {
        line["message"]
            .as_str()
            .is_some_and(|it| it.starts_with("listen keeps"))
    });
    assert_eq!(told.unwrap()["kept"], "127.0.0.1:0 with TLS");
    assert_eq!(told.unwrap()["ignored"], "127.0.0.1:0");
    let config = certificate.trusted(&[]);
    let mut client = tls::connect(gateway.address(), "a.example.com", &config).unwrap();
    assert_eq!(client.send(&get("/")).status, 200);
}

#[test]
fn handshakes_are_counted_and_sessions_resumed() {
    let upstream = Upstream::start();
    let certificate = Certificate::of("a.example.com");
    let gateway = setup(&upstream, &[&certificate]).start();
    let config = certificate.trusted(&[]);
    for _ in 0..3 {
        // Whichever worker it is: tickets are good for all.
        let mut client = tls::connect(gateway.address(), "a.example.com", &config).unwrap();
        assert_eq!(client.send(&get("/")).status, 200);
    }
    assert_eq!(gateway.send(&get("/")).status, 400);
    let stranger = Certificate::of("a.example.com").trusted(&[]);
    assert!(tls::connect(gateway.address(), "a.example.com", &stranger).is_err());
    for (outcome, count) in [
        ("full", 1.0),
        ("resumed", 2.0),
        ("plain_text", 1.0),
        ("failed", 1.0),
    ] {
        let metric = format!("weir_tls_handshakes_total{{outcome=\"{outcome}\"}}");
        eventually(&metric, || {
            (gateway.metric(&metric) == Some(count)).then_some(())
        });
    }
}

#[test]
fn a_websocket_over_tls_becomes_a_tunnel() {
    let upstream = WebSocket::start();
    let certificate = Certificate::of("a.example.com");
    let upstreams = format!("{{app: {{servers: [\"http://{}\"]}}}}", upstream.address());
    let gateway = Setup::with_upstreams(&upstreams)
        .file("1.pem", &certificate.certificate)
        .file("1.key", &certificate.key)
        .listening("[{address: \"127.0.0.1:0\", tls: {certificate: 1.pem, key: 1.key}}]")
        .start();
    let config = certificate.trusted(&["http/1.1"]);
    let mut client = tls::connect(gateway.address(), "a.example.com", &config).unwrap();
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
    upstream.ended();
}
