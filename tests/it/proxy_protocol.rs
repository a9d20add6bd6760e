//! Load balancers that forward connections, and say by the PROXY protocol from whom they are.

use std::net::Ipv4Addr;

use tokio::io::AsyncWriteExt;

use crate::support::tls::{self, Certificate};
use crate::support::*;

const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Two clients of the balancer, who each say who they are in another version.
const RED: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 80\r\n";
const BLUE: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0f\xc0\0\x02\x02\xc6\x33\x64\x07\x12\x67\0\x50\x04\0\0";

/// One request per address; only 127.0.0.2 sends PROXY headers.
fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .listening("[{address: \"127.0.0.1:0\", proxy_protocol: {trusted: [127.0.0.2]}}]")
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
}

/// A connection of the balancer that begins like this.
fn balanced(gateway: &Gateway, header: &[u8]) -> Client {
    let mut client = Client::connect_from(BALANCER, gateway.address());
    client.write(header).unwrap();
    client
}

fn headers(gateway: &Gateway, outcome: &str) -> Option<f64> {
    gateway.metric(&format!(
        "weir_proxy_headers_total{{outcome=\"{outcome}\"}}"
    ))
}

#[test]
fn the_client_that_the_header_names_is_the_client_everywhere() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .key("block: {addresses: [192.0.2.2]}")
        .start();
    let mut red = balanced(&gateway, RED);
    assert_eq!(red.send(&get("/red")).status, 200);
    assert_eq!(upstream.last().lines("x-forwarded-for"), ["192.0.2.1"]);
    // By hyper, as a body in chunks is not plain.
    let chunked = request("POST", "/red").with("transfer-encoding", "chunked");
    red.write(&chunked.bytes()).unwrap();
    red.write(b"1\r\nx\r\n0\r\n\r\n").unwrap();
    assert_eq!(red.read("POST").unwrap().status, 200);
    assert_eq!(upstream.last().lines("x-forwarded-for"), ["192.0.2.1"]);
    assert_eq!(red.send(&get("/red")).status, 429, "of the connection");
    assert_eq!(balanced(&gateway, RED).send(&get("/red")).status, 429);
    assert_eq!(balanced(&gateway, BLUE).send(&get("/blue")).status, 403);
    let line = gateway.logged("/blue");
    assert_eq!(line["client"], "192.0.2.2");
    assert_eq!(headers(&gateway, "proxied"), Some(3.0));
}

#[test]
fn a_client_behind_a_translator_is_the_ipv4_client_that_it_is() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .key("block: {addresses: [192.0.2.2]}")
        .start();
    let header = |host: u8| format!("PROXY TCP6 64:ff9b::192.0.2.{host} 2001:db8::1 4711 80\r\n");
    let mut one = balanced(&gateway, header(1).as_bytes());
    assert_eq!(one.send(&get("/")).status, 200);
    assert_eq!(upstream.last().lines("x-forwarded-for"), ["192.0.2.1"]);
    let mut blocked = balanced(&gateway, header(2).as_bytes());
    assert_eq!(blocked.send(&get("/blocked")).status, 403);
    assert_eq!(gateway.logged("/blocked")["client"], "192.0.2.2");
    assert_eq!(
        balanced(&gateway, header(3).as_bytes())
            .send(&get("/"))
            .status,
        200
    );
}

#[test]
fn what_the_named_client_says_about_itself_is_not_believed() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .key("client_address: {trusted_proxies: [127.0.0.2, 203.0.113.0/24]}")
        .start();
    let claim = get("/").with("x-forwarded-for", "6.6.6.6");
    assert_eq!(balanced(&gateway, RED).send(&claim).status, 200);
    assert_eq!(upstream.last().lines("x-forwarded-for"), ["192.0.2.1"]);
    // Behind the balancer there is a proxy that is trusted.
    let proxy = b"PROXY TCP4 203.0.113.5 198.51.100.7 4711 80\r\n";
    assert_eq!(balanced(&gateway, proxy).send(&claim).status, 200);
    let chain = upstream.last().lines("x-forwarded-for").join(", ");
    assert_eq!(chain, "6.6.6.6, 203.0.113.5");
}

#[test]
fn a_peer_that_is_not_trusted_is_itself_whatever_header_it_sends() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for header in [RED, BLUE] {
        let mut client = gateway.client();
        client.write(header).unwrap();
        client.write(&get("/").bytes()).unwrap();
        let answer = String::from_utf8(client.rest()).unwrap();
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400 "),
            "{answer}"
        );
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(gateway.send(&get("/")).status, 200);
    assert_eq!(upstream.last().lines("x-forwarded-for"), ["127.0.0.1"]);
}

#[test]
fn a_trusted_peer_that_sends_no_header_is_cut_off_and_one_line_tells_of_it() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let wrong = b"PROXY TCP4 192.0.2.1 here 4711 80\r\n";
    for begin in [&get("/").bytes()[..], wrong, &[22, 3, 1, 2, 0, 1, 0]] {
        assert_eq!(balanced(&gateway, begin).rest(), b"");
    }
    // It looks whether the port is open.
    drop(Client::connect_from(BALANCER, gateway.address()));
    for (outcome, count) in [("malformed", 3.0), ("closed", 1.0)] {
        eventually(outcome, || {
            (headers(&gateway, outcome) == Some(count)).then_some(())
        });
    }
    let line = "a trusted peer sent no PROXY header";
    eventually("the log line", || {
        (gateway.times_logged(line) > 0).then_some(())
    });
    assert_eq!(gateway.times_logged(line), 1);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_health_check_of_the_balancer_is_its_own() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for header in [&local[..], b"PROXY UNKNOWN\r\n"] {
        assert_eq!(balanced(&gateway, header).send(&get("/")).status, 200);
        assert_eq!(upstream.last().lines("x-forwarded-for"), ["127.0.0.2"]);
    }
    assert_eq!(headers(&gateway, "local"), Some(2.0));
}

#[test]
fn the_header_comes_before_tls_and_http2() {
    let upstream = Upstream::start();
    let certificate = Certificate::of("a.example.com");
    let gateway = Setup::before(&upstream)
        .file("1.pem", &certificate.certificate)
        .file("1.key", &certificate.key)
        .listening(
            "[{address: \"127.0.0.1:0\", tls: {certificate: 1.pem, key: 1.key}, \
             proxy_protocol: {trusted: [127.0.0.0/8]}}]",
        )
        .start();
    for (protocol, header, client) in [("h2", RED, "192.0.2.1"), ("h2", BLUE, "192.0.2.2")] {
        let config = certificate.trusted(&[protocol]);
        http2::run(async {
            let stream = tokio::net::TcpStream::connect(gateway.address()).await;
            let mut stream = stream.unwrap();
            // In pieces, the last of which is not the header's alone.
            let (head, tail) = header.split_at(header.len() - 2);
            stream.write_all(head).await.unwrap();
            stream.write_all(tail).await.unwrap();
            let stream = tls::over_async(stream, "a.example.com", &config).await;
            let mut sender = http2::over(stream).await;
            let answer = sender.send_request(http2::get("/")).await.unwrap();
            assert_eq!(http2::read(answer).await.head.status, 200);
        });
        let received = upstream.last();
        assert_eq!(received.lines("x-forwarded-for"), [client]);
        assert_eq!(received.lines("x-forwarded-proto"), ["https"]);
    }
}

#[test]
fn a_reload_trusts_other_balancers_but_does_not_switch_the_protocol_off() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let text = gateway.read("gateway.yaml");
    gateway.write("gateway.yaml", &text.replace("[127.0.0.2]", "[127.0.0.3]"));
    gateway.reload();
    let mut client = Client::connect_from(Ipv4Addr::new(127, 0, 0, 3), gateway.address());
    client.write(RED).unwrap();
    assert_eq!(client.send(&get("/")).status, 200);
    assert_eq!(upstream.last().lines("x-forwarded-for"), ["192.0.2.1"]);
    let mut former = Client::connect_from(BALANCER, gateway.address());
    assert_eq!(former.send(&get("/")).status, 200);
    assert_eq!(upstream.last().lines("x-forwarded-for"), ["127.0.0.2"]);
    assert_eq!(gateway.times_logged("listen keeps its old value"), 0);

    let off = text.replace(", proxy_protocol: {trusted: [127.0.0.2]}", "");
    assert_ne!(off, text);
    gateway.write("gateway.yaml", &off);
    gateway.reload();
    gateway.logs("listen keeps its old value until a restart", 1);
}
