//! Upstreams that speak HTTP/2.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::http2::{self, with_trailers};
use crate::support::tls::Certificate;
use crate::support::upstream::{Body, Received, full, text};
use crate::support::*;

const NAME: &str = "app.internal";

/// A gateway before servers that speak HTTP/2 without TLS.
fn plain(upstream: &Upstream) -> Setup {
    let server = format!("http://{}", upstream.address());
    Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"{server}\"], protocol: http2}}}}"
    ))
}

/// A gateway that speaks this protocol to an upstream that can speak those, over TLS.
fn secure(protocol: &str, speaks: &[&str]) -> (Gateway, Upstream) {
    let certificate = Certificate::of(NAME);
    let config = certificate.server(speaks, None);
    let upstream = Upstream::behind(Entrance::Tls(config), version);
    let server = format!("https://{}", upstream.address());
    let tls = format!("{{ca: ca.pem, server_name: {NAME}}}");
    let app = format!("{{servers: [\"{server}\"], tls: {tls}, protocol: {protocol}}}");
    let setup = Setup::with_upstreams(&format!("{{app: {app}}}"));
    let setup = setup.file("ca.pem", &certificate.certificate);
    (setup.start(), upstream)
}

/// Answers with what tells the versions apart: only HTTP/1.1 has a `Host` field.
fn version(received: &Received) -> Response<Body> {
    let is_http1 = received.headers.contains_key("host");
    text(if is_http1 { "HTTP/1.1" } else { "HTTP/2" })
}

#[test]
fn requests_of_many_clients_share_a_connection_per_worker() {
    let upstream = Upstream::behind(Entrance::Http2, version);
    let gateway = plain(&upstream).start();
    let mut clients: Vec<_> = (0..20).map(|_| gateway.client()).collect();
    for _ in 0..3 {
        for client in &mut clients {
            let answer = client.send(&post("/a", "body"));
            assert_eq!((answer.status, answer.text()), (200, "HTTP/2"));
        }
    }
    assert_eq!(upstream.count(), 60);
    assert!(upstream.connections() <= 2, "{}", upstream.connections());
    assert_eq!(upstream.last().body, "body");
}

#[test]
fn what_is_spoken_over_tls_is_agreed_upon_in_the_handshake() {
    let both: &[&str] = &["h2", "http/1.1"];
    for (protocol, speaks, expected) in [
        ("http2", both, "HTTP/2"),
        ("auto", both, "HTTP/2"),
        ("auto", &["http/1.1"], "HTTP/1.1"),
        ("auto", &[], "HTTP/1.1"),
        ("http1", both, "HTTP/1.1"),
    ] {
        let (gateway, upstream) = secure(protocol, speaks);
        let mut client = gateway.client();
        for _ in 0..3 {
            let answer = client.send(&get("/"));
            let got = (answer.status, answer.text());
            assert_eq!(got, (200, expected), "{protocol} {speaks:?}");
        }
        assert_eq!(upstream.connections(), 1, "{protocol} {speaks:?}");
    }
}

#[test]
fn a_server_that_declines_http_2_gets_no_request_when_nothing_else_is_allowed() {
    for speaks in [&["http/1.1"][..], &[]] {
        let (gateway, upstream) = secure("http2", speaks);
        assert_eq!(gateway.send(&get("/")).status, 502);
        let line = gateway.logged("/");
        assert_eq!(line["upstream_error"], "tls");
        assert_eq!(upstream.count(), 0);
    }
}

#[test]
fn trailers_pass_both_ways_between_http_2_clients_and_upstreams() {
    let upstream = Upstream::behind(Entrance::Http2, |_| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("x-forwarded-for", HeaderValue::from_static("a stranger"));
        let frames = [
            Ok(Frame::data(Bytes::from_static(b"answer"))),
            Ok(Frame::trailers(trailers)),
        ];
        Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed())
    });
    let gateway = plain(&upstream).start();
    http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("1"));
        let mut request = http2::get("/").map(|_| with_trailers("question", trailers));
        *request.method_mut() = http::Method::POST;
        request
            .headers_mut()
            .insert("te", HeaderValue::from_static("trailers"));
        let answer = sender.send_request(request).await.unwrap();
        let answer = http2::read(answer).await;
        assert_eq!(answer.body, "answer");
        let trailers = answer.trailers.expect("trailers");
        assert_eq!(trailers.len(), 1, "{trailers:?}");
        assert_eq!(trailers["grpc-status"], "0");
    });
    let received = upstream.last();
    assert_eq!(received.body, "question");
    assert_eq!(received.trailers.unwrap()["x-sum"], "1");
    assert_eq!(received.headers["te"], "trailers");
}

/// The method and the path, the client's HTTP and what it accepts; the status, the length and the
/// tag that it is told.
type Told = (u16, Option<String>, Option<String>);

/// What is told of a body that is not there.
fn told_without_body(gateway: &Gateway, method: &str, path: &str, over_http2: bool) -> Told {
    if over_http2 {
        let answer = http2::run(async {
            let mut sender = http2::connect(gateway.address()).await;
            let mut request = http2::get(path);
            *request.method_mut() = method.parse().unwrap();
            let gzip = HeaderValue::from_static("gzip");
            request.headers_mut().insert("accept-encoding", gzip);
            http2::read(sender.send_request(request).await.unwrap()).await
        });
        assert!(answer.body.is_empty(), "{method} {path}");
        let field = |name: &str| {
            let value = answer.head.headers.get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        let (length, tag) = (field("content-length"), field("etag"));
        return (answer.head.status.as_u16(), length, tag);
    }
    let answer = gateway.send(&request(method, path).with("accept-encoding", "gzip"));
    let field = |name| answer.field(name).map(str::to_owned);
    assert_eq!(field("transfer-encoding"), None, "{method} {path}");
    (answer.status, field("content-length"), field("etag"))
}

/// A 204 kept the length of the server, a 304 the one of the plain body beside another one's tag.
#[test]
fn no_response_without_a_body_tells_a_length_that_its_client_must_not_take_for_true() {
    let answer = |received: &Received| {
        let (_, page) = received.target.rsplit_once('/').unwrap();
        let (status, length) = match page {
            "none" => (204, "0"),
            "same" => (304, "5000"),
            _ => (200, "5000"),
        };
        let head = Response::builder()
            .status(status)
            .header("content-type", "text/html")
            .header("content-length", length)
            .header("etag", "\"v1\"");
        head.body(full("")).unwrap()
    };
    for entrance in [Entrance::Http2, Entrance::Tcp] {
        let is_http2 = matches!(entrance, Entrance::Http2);
        let upstream = Upstream::behind(entrance, answer);
        let gateway = match is_http2 {
            true => plain(&upstream),
            false => Setup::before(&upstream),
        };
        let gateway = gateway
            .routes(&[
                "{match: {path: /plain/*}, upstream: app}",
                "{match: {}, upstream: app, compression: {}}",
            ])
            .start();
        let (own, coded) = (Some("\"v1\"".to_owned()), Some("W/\"v1\"".to_owned()));
        for over_http2 in [true, false] {
            let told = |method, path| told_without_body(&gateway, method, path, over_http2);
            for method in ["GET", "HEAD"] {
                for (path, tag) in [("/none", &own), ("/plain/none", &own)] {
                    assert_eq!(
                        told(method, path),
                        (204, None, tag.clone()),
                        "{method} {path}"
                    );
                }
                assert_eq!(
                    told(method, "/same"),
                    (304, None, coded.clone()),
                    "{method}"
                );
                let (status, length, tag) = told(method, "/plain/same");
                assert_eq!((status, &tag), (304, &own), "{method}");
                assert!(length.is_none_or(|length| length == "5000"), "{method}");
            }
            assert_eq!(told("HEAD", "/"), (200, None, coded.clone()));
            assert_eq!(
                told("HEAD", "/plain/"),
                (200, Some("5000".into()), own.clone())
            );
        }
    }
}

#[test]
fn long_bodies_pass_both_ways() {
    let upstream = Upstream::behind(Entrance::Http2, |received| {
        let whole = http_body_util::Full::new(received.body.clone());
        Response::new(whole.map_err(|never: Infallible| match never {}).boxed())
    });
    let gateway = plain(&upstream).start();
    let body = "0123456789".repeat(500_000);
    let mut client = gateway.client();
    for _ in 0..2 {
        let answer = client.send(&post("/", &body));
        assert_eq!(answer.status, 200);
        assert!(answer.text() == body, "{} bytes", answer.text().len());
    }
}

#[test]
fn a_websocket_is_refused_before_an_upstream_that_speaks_http_2_alone() {
    let upstream = Upstream::behind(Entrance::Http2, |_| text("real"));
    let server = format!("http://{}", upstream.address());
    let app = format!("{{app: {{servers: [\"{server}\"], protocol: http2}}}}");
    let gateway = Setup::with_upstreams(&app).start();
    let mut client = gateway.client();
    let ask = get("/socket")
        .with("connection", "Upgrade")
        .with("upgrade", "websocket");
    let answer = client.send(&ask);
    assert_eq!(answer.status, 501);
    assert!(
        answer.text().contains("WebSockets are not forwarded"),
        "{}",
        answer.text()
    );
    assert_eq!(upstream.count(), 0);
    assert_eq!(gateway.send(&get("/")).status, 200);
}

#[test]
fn a_stream_of_http_2_becomes_a_websocket_of_an_upstream_that_speaks_http_1() {
    let upstream = WebSocket::start();
    let server = format!("http://{}", upstream.address());
    let setup = Setup::with_upstreams(&format!("{{app: {{servers: [\"{server}\"]}}}}"));
    let gateway = setup.start();
    http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        // With its first bytes the gateway says that it takes such requests; a refused one shows
        // that they are there.
        let mut refused = http2::get("/");
        *refused.method_mut() = http::Method::TRACE;
        let answer = sender.send_request(refused).await.unwrap();
        assert_eq!(answer.status(), 501);
        let mut request = http2::get("/chat");
        *request.method_mut() = http::Method::CONNECT;
        let protocol = hyper::ext::Protocol::from_static("websocket");
        request.extensions_mut().insert(protocol);
        let version = HeaderValue::from_static("13");
        request
            .headers_mut()
            .insert("sec-websocket-version", version);
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        for absent in ["connection", "upgrade", "sec-websocket-accept"] {
            assert!(!answer.headers().contains_key(absent), "{absent}");
        }
        let mut tunnel = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        for _ in 0..2 {
            tunnel.write_all(b"ping").await.unwrap();
            let mut echo = [0; 4];
            tunnel.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, b"ping");
        }
        tunnel.shutdown().await.unwrap();
        assert_eq!(tunnel.read(&mut [0; 4]).await.unwrap(), 0);
    });
    let head = upstream.ended();
    assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
    for line in [
        "connection: upgrade\r\n",
        "upgrade: websocket\r\n",
        "sec-websocket-key: ",
    ] {
        assert!(head.contains(line), "{head}");
    }
    let line = gateway.logged("/chat");
    assert_eq!(line["method"], "GET");
}

#[test]
fn a_connection_that_was_unused_for_a_while_is_closed() {
    let upstream = Upstream::behind(Entrance::Http2, version);
    let server = format!("http://{}", upstream.address());
    let app = format!("{{servers: [\"{server}\"], protocol: http2, idle_timeout: 1ms}}");
    let setup = Setup::with_upstreams(&format!("{{app: {app}}}"));
    let gateway = setup.start();
    let mut client = gateway.client();
    eventually("another connection", || {
        assert_eq!(client.send(&get("/")).status, 200);
        (upstream.connections() > 1).then_some(())
    });
}

#[test]
fn an_upstream_that_takes_too_long_is_answered_for() {
    let upstream = Upstream::behind_after(Entrance::Http2, Duration::from_secs(60), version);
    let server = format!("http://{}", upstream.address());
    let app = format!("{{servers: [\"{server}\"], protocol: http2, response_timeout: 100ms}}");
    let gateway = Setup::with_upstreams(&format!("{{app: {app}}}")).start();
    assert_eq!(gateway.send(&get("/")).status, 504);
}
