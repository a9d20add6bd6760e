//! What leads clients to HTTPS and keeps them there.

use crate::support::tls::{self, Certificate};
use crate::support::*;

const HSTS: &str = "max-age=31536000; includeSubDomains";

fn setup(upstream: &Upstream, redirect: &str) -> Setup {
    let listener = format!("[{{address: \"127.0.0.1:0\", redirect_to_https: {redirect}}}]");
    Setup::before(upstream)
        .listening(&listener)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1000h}"])
        .limited_by("L")
        .key("client_address: {trusted_proxies: [127.0.0.2]}")
}

#[test]
fn requests_in_plain_text_are_redirected_and_not_counted() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream, "true").start();
    let plain = get("//evil.example/a%2Fb?c=d").with("host", "App.Example.com:8080");
    for _ in 0..2 {
        let redirect = gateway.send(&plain);
        assert_eq!(redirect.status, 308);
        let location = "https://app.example.com/evil.example/a%2Fb?c=d";
        assert_eq!(redirect.field("location"), Some(location));
        assert_eq!(redirect.field("strict-transport-security"), None);
    }
    let asterisk = gateway.send(&request("OPTIONS", "*"));
    assert_eq!(asterisk.field("location"), Some("https://app.example.com/"));
    let posted = gateway.send(&post("/", "a body"));
    assert_eq!(
        (posted.status, posted.field("location")),
        (308, Some("https://app.example.com/"))
    );
    // What is not a request is not redirected.
    assert_eq!(gateway.send(&get("/").with("host", "a, b")).status, 400);
    assert_eq!(gateway.send(&get("/../x")).status, 400);
    let mut client = gateway.client();
    client.write(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(client.read("GET").unwrap().status, 400);
    http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        let answer = sender.send_request(http2::get("/x")).await.unwrap();
        let head = http2::read(answer).await.head;
        assert_eq!(
            (head.status.as_u16(), &head.headers["location"]),
            (308, &"https://app.example.com/x".parse().unwrap())
        );
    });
    assert_eq!(upstream.count(), 0);
    let line = gateway.logged("/x");
    assert_eq!(
        (&line["status"], &line["decision"]),
        (&308.into(), &"unlimited".into())
    );
}

/// `https://[::1/x` was a target.
#[test]
fn no_redirect_leads_to_a_host_that_is_none() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream, "true")
        .routes(&["{match: {path: /*}, redirect: {to: \"https://{{ host }}/new\"}}"])
        .start();
    let mut behind_tls = Client::connect_from([127, 0, 0, 2].into(), gateway.address());
    let secure = get("/x").with("x-forwarded-proto", "https");
    for host in [
        "::1", "a:x", "a:80:90", "[zz]", "[::1", "%zz", "a%2", "user@a",
    ] {
        for refused in [
            gateway.send(&get("/x").with("host", host)),
            behind_tls.send(&secure.clone().with("host", host)),
        ] {
            assert_eq!(
                (refused.status, refused.field("location")),
                (400, None),
                "{host}"
            );
        }
    }
    for (host, sent_to) in [
        ("[2001:DB8::1]:8080", "[2001:db8::1]"),
        ("My_App.Example.", "my_app.example"),
        ("xn--bcher-kva.example:", "xn--bcher-kva.example"),
        ("%61pp.example", "app.example"),
    ] {
        let redirect = gateway.send(&get("/x").with("host", host));
        let expected = format!("https://{sent_to}/x");
        assert_eq!(redirect.field("location"), Some(&*expected), "{host}");
        let redirect = behind_tls.send(&secure.clone().with("host", host));
        let expected = format!("https://{sent_to}/new");
        assert_eq!(redirect.field("location"), Some(&*expected), "{host}");
    }
}

/// A proxy that terminates TLS sends everything in plain text. It would get redirects for ever.
#[test]
fn what_a_trusted_proxy_was_sent_by_https_is_served_and_no_other_peer_is_believed() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream, "{port: 8443}")
        .key("hsts: {max_age: 365d, include_subdomains: true}")
        .start();
    let claimed = get("/").with("x-forwarded-proto", "https");
    let stranger = gateway.send(&claimed);
    assert_eq!(
        (stranger.status, stranger.field("location")),
        (308, Some("https://app.example.com:8443/"))
    );
    let mut proxy = Client::connect_from([127, 0, 0, 2].into(), gateway.address());
    let served = proxy.send(&claimed);
    assert_eq!(
        (served.status, served.field("strict-transport-security")),
        (200, Some(HSTS))
    );
    let denied = proxy.send(&claimed);
    assert_eq!(
        (denied.status, denied.field("strict-transport-security")),
        (429, Some(HSTS))
    );
    for request in [get("/"), get("/").with("x-forwarded-proto", "http")] {
        let redirect = proxy.send(&request);
        assert_eq!(
            (redirect.status, redirect.field("strict-transport-security")),
            (308, None)
        );
    }
    let forwarded = get("/").with("forwarded", "for=192.0.2.1;proto=https");
    // It is served, and so counted.
    assert_eq!(proxy.send(&forwarded).status, 429);
}

/// Traefik names the schemes of WebSockets. A handshake on a listener that redirects got 308.
#[test]
fn a_websocket_by_tls_is_never_taken_for_one_in_plain_text() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .listening("[{address: \"127.0.0.1:0\", redirect_to_https: true}]")
        .routes(&["{match: {path: /*}, upstream: app, \
                   request_headers: {set: {x-scheme: \"{{ scheme }}\"}}}"])
        .key("client_address: {trusted_proxies: [127.0.0.2]}")
        .key("hsts: {max_age: 365d, include_subdomains: true}")
        .start();
    let mut proxy = Client::connect_from([127, 0, 0, 2].into(), gateway.address());
    let told = |proto| {
        let request = get("/chat").with("x-forwarded-proto", proto);
        request.with("forwarded", "for=192.0.2.1")
    };
    let served = proxy.send(&told("wss"));
    assert_eq!(
        (served.status, served.field("strict-transport-security")),
        (200, Some(HSTS))
    );
    let received = upstream.last();
    assert_eq!(received.lines("x-scheme"), ["https"]);
    assert_eq!(
        received.lines("forwarded"),
        ["for=127.0.0.2;host=app.example.com;proto=https"]
    );
    assert_eq!(gateway.logged("/chat")["scheme"], "https");
    let redirect = proxy.send(&told("ws"));
    assert_eq!(
        (redirect.status, redirect.field("strict-transport-security")),
        (308, None)
    );
}

#[test]
fn hsts_is_told_by_tls_alone_and_the_app_has_the_last_word() {
    let app = |received: &upstream::Received| {
        let mut answer = upstream::text("real");
        if received.target == "/own" {
            let own = "max-age=0".parse().unwrap();
            answer
                .headers_mut()
                .insert("strict-transport-security", own);
        }
        answer
    };
    let upstream = Upstream::answering(app);
    let certificate = Certificate::of("a.example.com");
    let gateway = Setup::before(&upstream)
        .listening("[{address: \"127.0.0.1:0\", tls: {certificate: 1.pem, key: 1.key}}]")
        .file("1.pem", &certificate.certificate)
        .file("1.key", &certificate.key)
        .key("hsts: {max_age: 365d, include_subdomains: true}")
        .start();
    let config = certificate.trusted(&["http/1.1"]);
    let mut client = tls::connect(gateway.address(), "a.example.com", &config).unwrap();
    let lines = |response: &Response| response.lines("strict-transport-security").join(",");
    assert_eq!(lines(&client.send(&get("/"))), HSTS);
    assert_eq!(lines(&client.send(&get("/own"))), "max-age=0");
    assert_eq!(lines(&client.send(&get("/../x"))), HSTS);
    let gateway = setup(&upstream, "false").key("hsts: {max_age: 1d}").start();
    assert_eq!(lines(&gateway.send(&get("/"))), "");
}
