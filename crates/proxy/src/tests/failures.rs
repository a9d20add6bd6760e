use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use socket2::{Domain, Socket, Type};
use tokio::time::Instant;
use weir_http::request::HttpRequest;
use weir_telemetry::UpstreamFailed;

use super::support::*;
use crate::endpoint::Affinity;
use crate::request::Outbound;
use crate::{Proxy, ProxyBody, Upstream};

type Sized = Proxy;

/// Whether the client is told to come back within a few seconds.
pub(super) fn is_soon(response: &Response<ProxyBody>) -> bool {
    let seconds = response.headers()["retry-after"].to_str().unwrap();
    (1..=5).contains(&seconds.parse::<u64>().unwrap())
}

pub(super) fn reason(response: &Response<ProxyBody>) -> &'static str {
    response
        .extensions()
        .get::<UpstreamFailed>()
        .unwrap()
        .reason
}

/// The status and reason that come of an upstream that writes `bytes` and hangs up.
async fn answering(bytes: &str) -> (u16, &'static str) {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.retries = None;
    let proxy: Sized = proxy(settings);
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(bytes).await;
    };
    let (response, ()) = tokio::join!(send(&proxy, get("/")), upstream);
    (response.status().as_u16(), reason(&response))
}

#[tokio::test]
async fn an_upstream_that_refuses_connections_is_a_bad_gateway() {
    let proxy: Sized = proxy(settings(&[refusing_address()]));
    let response = send(&proxy, get("/")).await;
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(reason(&response), "connect");
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    assert!(text(response).await.contains("cannot be reached"));
}

#[tokio::test]
async fn an_upstream_that_hangs_up_is_a_bad_gateway() {
    assert_eq!(answering("").await, (502, "closed"));
    assert_eq!(answering("HTTP/1.1 200 O").await, (502, "closed"));
    assert_eq!(
        answering("HTTP/1.1 200 OK\r\nserver: x\r\n").await,
        (502, "closed")
    );
}

#[tokio::test]
async fn an_upstream_that_hangs_up_at_once_is_a_bad_gateway() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.retries = None;
    let proxy: Sized = proxy(settings);
    let upstream = async { drop(RawConnection::accept(&listener).await) };
    let (response, ()) = tokio::join!(send(&proxy, get("/")), upstream);
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn an_upstream_that_talks_nonsense_is_a_bad_gateway() {
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    for nonsense in [
        "220 smtp.example.com ESMTP\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad name: 1\r\n\r\n",
    ] {
        assert_eq!(answering(nonsense).await, (502, "bad_response"));
    }
    // Hanging up on it may be noticed before the bytes that could not be written.
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        let _ = tokio::io::AsyncWriteExt::write_all(&mut peer.0, huge.as_bytes()).await;
    };
    let (response, ()) = tokio::join!(send(&proxy, get("/")), upstream);
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
}

/// The lines of a head, and then some of another.
fn with_lines(begin: &str, count: usize) -> String {
    format!("{begin}{}\r\n", "set-cookie: a=1\r\n".repeat(count))
}

/// From 101 lines on it was 502.
#[tokio::test]
async fn a_response_may_have_a_thousand_header_lines_and_so_may_one_before_it_and_its_trailers() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let hints = with_lines("HTTP/1.1 103 Early Hints\r\n", 1000);
    let begin = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n";
    let head = with_lines(begin, 999);
    let trailers = with_lines("2\r\nok\r\n0\r\n", 120);
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(&format!("{hints}{head}{trailers}")).await;
        peer.head().await;
        peer.write(OK).await;
    };
    let client = async {
        let response = send(&proxy, get("/")).await;
        assert_eq!(response.status(), 200);
        let cookies = response.headers().get_all("set-cookie");
        assert_eq!(cookies.iter().count(), 999);
        assert_eq!(text(response).await, "ok");
        assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
    };
    tokio::join!(client, upstream);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_a_bad_gateway_of_its_own_kind() {
    let many = with_lines("HTTP/1.1 200 OK\r\n", 1001);
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n", "x".repeat(257 * 1024));
    for head in [many, long] {
        assert_eq!(answering(&head).await, (502, "head_too_large"));
    }
}

#[tokio::test]
async fn a_change_of_protocol_that_was_not_asked_for_is_a_bad_gateway() {
    let change = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    assert_eq!(answering(change).await, (502, "bad_response"));
}

#[tokio::test]
async fn a_response_that_breaks_off_is_an_error_of_its_body() {
    for begun in [
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let (listener, server) = listen().await;
        let proxy: Sized = proxy(settings(&[server]));
        let upstream = async {
            let mut peer = RawConnection::accept(&listener).await;
            peer.head().await;
            peer.write(begun).await;
        };
        let (response, ()) = tokio::join!(send(&proxy, get("/")), upstream);
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.into_body().collect().await.is_err());
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_respond_is_a_gateway_timeout() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.timeouts.response = Duration::from_secs(60);
    let proxy: Sized = proxy(settings);
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        tokio::time::pause();
        peer.rest().await
    };
    let (response, rest) = tokio::join!(send(&proxy, get("/")), upstream);
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(reason(&response), "response_timeout");
    assert_eq!(rest, "", "the connection is closed");
}

#[tokio::test]
async fn the_upstreams_turn_begins_when_it_is_connected_to() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.timeouts.response = Duration::from_secs(60);
    let upstream = Upstream::new(settings);
    let outbound = Outbound::from_request(get("/").into_boxed(), false).unwrap();
    let long_ago = Instant::now() - Duration::from_secs(61);
    let server = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
    };
    let (answer, ()) = tokio::join!(
        upstream.send(outbound, Affinity::default(), long_ago),
        server
    );
    assert_eq!(answer.ok().unwrap().head.status(), StatusCode::OK);
}

/// Otherwise a server that answers early and reads no more would hold the rest of the request
/// forever.
#[tokio::test]
async fn the_rest_of_a_request_that_is_answered_is_not_held_for_a_server_that_does_not_take_it() {
    let (listener, server) = listen().await;
    let proxy = proxy(settings(&[server]));
    let (body, chunks) = chunks();
    let request = Request::post("/").header("host", "app.example.com");
    let request = request.body(chunks).unwrap();
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
        peer
    };
    let (response, _wire) = tokio::join!(send(&proxy, request), upstream);
    assert_eq!(text(response).await, "ok");
    let much = Bytes::from(vec![b'x'; 64 << 20]);
    body.send(Ok(Frame::data(much))).unwrap();
    tokio::time::pause();
    body.closed().await;
}

#[tokio::test]
async fn a_client_whose_body_breaks_off_is_a_bad_request() {
    let (listener, server) = listen().await;
    let proxy = proxy(settings(&[server]));
    let (body, chunks) = chunks();
    body.send(data("half")).unwrap();
    let request = Request::post("/").header("host", "app.example.com");
    let request = request.body(chunks).unwrap();
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.read_to("half\r\n").await;
        body.send(Err(std::io::ErrorKind::UnexpectedEof.into()))
            .unwrap();
        assert_eq!(peer.rest().await, "");
    };
    let (response, ()) = tokio::join!(send(&proxy, request), upstream);
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(reason(&response), "request_body");
}

#[tokio::test]
async fn methods_that_no_reverse_proxy_forwards_are_not_implemented() {
    let proxy: Sized = proxy(settings(&[refusing_address()]));
    for method in [Method::CONNECT, Method::TRACE] {
        let mut request = get("/");
        *request.method_mut() = method;
        let response = send(&proxy, request).await;
        assert_eq!(response.status(), StatusCode::NOT_IMPLEMENTED);
    }
}

#[tokio::test]
async fn an_upstream_without_servers_is_unavailable() {
    let proxy: Sized = proxy(settings(&[]));
    let response = send(&proxy, get("/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(is_soon(&response));
}

/// A server that accepts no connection: its queue is full. It is one as long as the sockets live.
fn deaf() -> (SocketAddr, Vec<Socket>) {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let listener = socket();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut sockets = vec![listener];
    for _ in 0..8 {
        let client = socket();
        client.set_nonblocking(true).unwrap();
        let _ = client.connect(&address);
        sockets.push(client);
    }
    (address.as_socket().unwrap(), sockets)
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_cannot_be_connected_to_in_time_is_a_gateway_timeout() {
    let (address, _sockets) = deaf();
    let mut settings = settings(&[address]);
    settings.timeouts.connect = Duration::from_secs(5);
    let proxy: Sized = proxy(settings);
    let start = Instant::now();
    let response = send(&proxy, get("/")).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(reason(&response), "connect_timeout");
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_leaves_time_for_the_next() {
    let (address, _sockets) = deaf();
    let mut settings = settings(&[address, refusing_address()]);
    settings.timeouts.connect = Duration::from_secs(5);
    let proxy: Sized = proxy(settings);
    let start = Instant::now();
    let response = send(&proxy, get("/")).await;
    assert_eq!(
        reason(&response),
        "connect",
        "the error of the last one tried"
    );
    assert_eq!(start.elapsed().as_millis(), 2500);
}

/// It closes with what it did not read still in the socket, and so resets the connection.
#[tokio::test]
async fn an_answer_arrives_that_a_server_gives_before_it_resets_the_connection() {
    for connection in ["close", "keep-alive"] {
        let (listener, server) = listen().await;
        let proxy = proxy(settings(&[server]));
        let much = Full::from(vec![b'x'; 16 << 20]);
        let request = Request::post("/").header("host", "app.example.com");
        let request = request.body(much).unwrap();
        let upstream = async {
            let mut peer = RawConnection::accept(&listener).await;
            peer.head().await;
            let head = "HTTP/1.1 413 Too Much\r\ncontent-length: 2\r\n";
            peer.write(&format!("{head}connection: {connection}\r\n\r\nno"))
                .await;
        };
        let (response, ()) = tokio::join!(send(&proxy, request), upstream);
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(text(response).await, "no");
    }
}

#[tokio::test]
async fn the_upload_ends_with_an_answer_that_ends_the_connection_or_is_given_up() {
    for head in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
    ] {
        let (listener, server) = listen().await;
        let proxy = proxy(settings(&[server]));
        let (body, chunks) = chunks();
        let request = Request::post("/").header("host", "app.example.com");
        let request = request.body(chunks).unwrap();
        let upstream = async {
            let mut peer = RawConnection::accept(&listener).await;
            peer.head().await;
            peer.write(head).await;
            peer
        };
        let (response, mut peer) = tokio::join!(send(&proxy, request), upstream);
        drop(response);
        body.closed().await;
        assert_eq!(peer.rest().await, "");
    }
}

#[tokio::test]
async fn a_request_that_breaks_off_after_its_answer_ends_the_connection() {
    let (listener, server) = listen().await;
    let proxy = proxy(settings(&[server]));
    let (body, chunks) = chunks();
    let request = Request::post("/").header("host", "app.example.com");
    let request = request.body(chunks).unwrap();
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
        peer
    };
    let (response, mut peer) = tokio::join!(send(&proxy, request), upstream);
    assert_eq!(text(response).await, "ok");
    body.send(data("half")).unwrap();
    body.send(Err(std::io::ErrorKind::UnexpectedEof.into()))
        .unwrap();
    assert_eq!(peer.rest().await, "4\r\nhalf\r\n", "and no last chunk");
}

#[tokio::test]
async fn an_upstream_that_sends_little_by_little_has_no_more_time_for_it() {
    for little in [
        "HTTP/1.1 103 Early Hints\r\n\r\n",
        "HTTP/1.1 200 OK\r\n",
        "\r\n",
    ] {
        let (listener, server) = listen().await;
        let mut settings = settings(&[server]);
        settings.timeouts.response = Duration::from_secs(60);
        let proxy: Sized = proxy(settings);
        let upstream = async {
            let mut peer = RawConnection::accept(&listener).await;
            peer.head().await;
            tokio::time::pause();
            peer.write(little).await;
            loop {
                tokio::time::sleep(Duration::from_secs(20)).await;
                let more = if little.contains("200") {
                    "x: y\r\n"
                } else {
                    little
                };
                peer.write(more).await;
            }
        };
        let start = Instant::now();
        let response = tokio::select! {
            response = send(&proxy, get("/")) => response,
            () = upstream => unreachable!(),
        };
        assert_eq!(reason(&response), "response_timeout", "{little:?}");
        assert!(start.elapsed() < Duration::from_secs(80));
        tokio::time::resume();
    }
}
