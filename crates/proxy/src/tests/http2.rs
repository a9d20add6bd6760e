//! HTTP/2 to a server that answers frame by frame.

use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::StatusCode;
use http_body_util::Full;
use tokio::task::{JoinHandle, yield_now};

use super::failures::is_soon;
use super::failures::reason;
use super::support::*;
use crate::{Protocol, Proxy, Server, UpstreamSettings};

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Peer = Connection<TcpStream, Bytes>;
type Call = (Request<RecvStream>, SendResponse<Bytes>);

fn http2(server: SocketAddr) -> Proxy {
    proxy(http2_settings(server))
}

fn http2_settings(server: SocketAddr) -> UpstreamSettings {
    let mut settings = settings(&[]);
    settings.servers = vec![Server::from(server).with_protocol(Protocol::Http2)];
    settings.timeouts.response = Duration::from_secs(30);
    settings
}

async fn upstream() -> (Proxy, TcpListener) {
    let (listener, server) = listen().await;
    (http2(server), listener)
}

async fn accept(listener: &TcpListener) -> Peer {
    accept_with(listener, &h2::server::Builder::new()).await
}

async fn accept_with(listener: &TcpListener, builder: &h2::server::Builder) -> Peer {
    let (stream, _) = listener.accept().await.unwrap();
    builder.handshake(stream).await.unwrap()
}

async fn call(peer: &mut Peer) -> Call {
    peer.accept().await.expect("a request").unwrap()
}

/// Goes on to speak, until the gateway closes the connection.
fn serve(mut peer: Peer) -> JoinHandle<()> {
    tokio::spawn(async move { while peer.accept().await.is_some() {} })
}

fn ok(respond: &mut SendResponse<Bytes>) {
    respond.send_response(Response::new(()), true).unwrap();
}

fn begin(proxy: &Proxy, request: Request<Full<Bytes>>) -> JoinHandle<Response<crate::ProxyBody>> {
    let proxy = proxy.clone();
    tokio::spawn(async move { send(&proxy, request).await })
}

fn post(body: &'static str) -> Request<Full<Bytes>> {
    let request = Request::post("/call").header("host", "app.example.com");
    request.body(Full::from(body)).unwrap()
}

async fn text_of(mut body: RecvStream) -> String {
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        text.extend_from_slice(&data);
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_request_has_its_host_in_the_target_and_says_nothing_of_a_connection() {
    let (proxy, listener) = upstream().await;
    let request = Request::post("/a?b=c")
        .header("host", "app.example.com:8080")
        .header("connection", "keep-alive, x-own")
        .header("x-own", "1")
        .header("te", "trailers")
        .body(Full::from("body"))
        .unwrap();
    let response = begin(&proxy, request);
    let mut peer = accept(&listener).await;
    let (request, mut respond) = call(&mut peer).await;
    assert_eq!(request.uri(), "http://app.example.com:8080/a?b=c");
    let headers = request.headers();
    for absent in ["host", "connection", "x-own", "transfer-encoding"] {
        assert!(!headers.contains_key(absent), "{absent}");
    }
    assert_eq!(
        (&headers["te"], &headers["via"]),
        (&"trailers".parse().unwrap(), &"1.1 weir".parse().unwrap())
    );
    assert_eq!(headers["content-length"], "4");
    ok(&mut respond);
    let served = serve(peer);
    assert_eq!(text_of(request.into_body()).await, "body");
    let response = response.await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()["via"]),
        (StatusCode::OK, &"2 weir".parse().unwrap())
    );
    drop((proxy, response));
    served.await.unwrap();
}

#[tokio::test]
async fn requests_at_the_same_time_share_a_connection_as_far_as_the_server_allows() {
    let (proxy, listener) = upstream().await;
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(2);
    // With the response to the first, the gateway knows what is allowed.
    let first = begin(&proxy, get("/first"));
    let mut peer = accept_with(&listener, &builder).await;
    ok(&mut call(&mut peer).await.1);
    let (held, calls) = tokio::join!(
        async {
            assert_eq!(first.await.unwrap().status(), 200);
            [begin(&proxy, get("/")), begin(&proxy, get("/"))]
        },
        async { [call(&mut peer).await, call(&mut peer).await] }
    );
    let third = begin(&proxy, get("/third"));
    let mut other = accept_with(&listener, &builder).await;
    let (request, mut respond) = call(&mut other).await;
    assert_eq!(request.uri().path(), "/third");
    ok(&mut respond);
    serve(other);
    assert_eq!(third.await.unwrap().status(), 200);
    for (_, mut respond) in calls {
        ok(&mut respond);
    }
    serve(peer);
    for held in held {
        assert_eq!(held.await.unwrap().status(), 200);
    }
}

/// The second request waited for the first one to end, and then got 504.
#[tokio::test]
async fn a_server_that_allows_one_stream_gets_another_connection_for_the_next_request() {
    let (proxy, listener) = upstream().await;
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(1);
    let begun = ["/one", "/two", "/three"].map(|path| begin(&proxy, get(path)));
    let mut calls = Vec::new();
    for _ in 0..begun.len() {
        let mut peer = accept_with(&listener, &builder).await;
        calls.push(call(&mut peer).await.1);
        serve(peer);
    }
    for mut respond in calls {
        ok(&mut respond);
    }
    for response in begun {
        assert_eq!(response.await.unwrap().status(), 200);
    }
}

/// Requests waited for the response timeout.
#[tokio::test]
async fn a_connection_whose_server_allows_no_more_streams_gets_no_further_request() {
    const NO_STREAMS: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0];
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let (proxy, listener) = upstream().await;
    let warm = begin(&proxy, get("/"));
    let mut server = RawConnection::accept(&listener).await.0;
    server
        .write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    let mut preface = [0; PREFACE.len()];
    server.read_exact(&mut preface).await.unwrap();
    assert_eq!(preface, PREFACE);
    let mut acknowledged = 0;
    while acknowledged < 2 {
        let mut frame = [0; 9];
        server.read_exact(&mut frame).await.unwrap();
        let [_, high, low, kind, flags, stream @ ..] = frame;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        server.read_exact(&mut payload).await.unwrap();
        acknowledged += usize::from(kind == SETTINGS && flags == 1);
        if kind == HEADERS {
            let ok = [&[0, 0, 1, HEADERS, 5], &stream[..], &[0x88]].concat();
            server.write_all(&[&ok, NO_STREAMS].concat()).await.unwrap();
        }
    }
    assert_eq!(warm.await.unwrap().status(), 200);
    let next = begin(&proxy, get("/next"));
    let mut peer = accept(&listener).await;
    ok(&mut call(&mut peer).await.1);
    serve(peer);
    assert_eq!(next.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_server_that_allows_no_stream_at_all_is_passed_over_and_refused_where_it_is_the_only_one()
{
    let (full, at_full) = listen().await;
    tokio::spawn(async move {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(0);
        loop {
            serve(accept_with(&full, &builder).await);
        }
    });
    let refused = begin(&http2(at_full), get("/")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(is_soon(&refused));
    let (other, at_other) = listen().await;
    tokio::spawn(async move {
        let mut peer = accept(&other).await;
        while let Some(call) = peer.accept().await {
            ok(&mut call.unwrap().1);
        }
    });
    let mut settings = http2_settings(at_full);
    settings.servers.extend(http2_settings(at_other).servers);
    let proxy = proxy(settings);
    for _ in 0..4 {
        assert_eq!(begin(&proxy, get("/")).await.unwrap().status(), 200);
    }
}

/// A connection whose server can be made to write what h2 would not.
async fn accept_raw(listener: &TcpListener) -> (Peer, TcpStream) {
    let (stream, _) = listener.accept().await.unwrap();
    let stream = stream.into_std().unwrap();
    let raw = TcpStream::from_std(stream.try_clone().unwrap()).unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    (h2::server::handshake(stream).await.unwrap(), raw)
}

async fn write_raw(raw: &TcpStream, bytes: &[u8]) {
    raw.writable().await.unwrap();
    assert_eq!(raw.try_write(bytes).unwrap(), bytes.len());
}

/// The head of a response, as HPACK, and a body of a byte.
async fn write_response(raw: &TcpStream, respond: &SendResponse<Bytes>, block: &[u8]) {
    let (stream, length) = (respond.stream_id().as_u32().to_be_bytes(), block.len());
    let headers = [
        &[0, 0, u8::try_from(length).unwrap(), 1, 4],
        &stream[..],
        block,
    ];
    let data = [&[0, 0, 1, 0, 1], &stream[..], b"x"];
    write_raw(raw, &[headers.concat(), data.concat()].concat()).await;
}

/// The others in flight got 502, and the faulty one was sent three times by connections that others
/// shared.
#[tokio::test]
async fn a_fault_in_one_response_does_not_fail_the_other_requests_of_its_connection() {
    for (fault, block) in [
        ("an upper-case name", &b"\x88\x00\x01X\x01y"[..]),
        ("a line break in a value", b"\x88\x00\x01x\x04a\r\nb"),
        ("status 0", b"\x08\x010"),
        ("status 101", b"\x08\x03101"),
    ] {
        let (proxy, listener) = upstream().await;
        let warm = begin(&proxy, get("/warm"));
        let (mut peer, raw) = accept_raw(&listener).await;
        ok(&mut call(&mut peer).await.1);
        let responses = ["/faulty", "/other"].map(|path| begin(&proxy, get(path)));
        let mut calls = [call(&mut peer).await, call(&mut peer).await];
        calls.sort_by_key(|(request, _)| request.uri().path().to_owned());
        write_response(&raw, &calls[0].1, block).await;
        serve(peer);
        assert_eq!(warm.await.unwrap().status(), 200);
        for _ in 0..2 {
            let (mut peer, raw) = accept_raw(&listener).await;
            let (request, mut respond) = call(&mut peer).await;
            match request.uri().path() {
                "/faulty" => write_response(&raw, &respond, block).await,
                _ => ok(&mut respond),
            }
            tokio::spawn(async move {
                let _held = respond;
                while peer.accept().await.is_some() {}
            });
        }
        let [faulty, other] = responses;
        assert_eq!(other.await.unwrap().status(), 200, "{fault}");
        assert_eq!(faulty.await.unwrap().status(), 502, "{fault}");
    }
}

/// What is wrong with the response to `/faulty`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A head of more frames than h2 reads.
    Head,
    Trailers,
}

impl Fault {
    async fn write(self, raw: &TcpStream, respond: &mut SendResponse<Bytes>) {
        match self {
            Self::Head => {
                respond.send_response(large_head("~", 300), true).unwrap();
            }
            Self::Trailers => {
                let stream = respond.stream_id().as_u32().to_be_bytes();
                let frames = [
                    [&[0, 0, 1, 1, 4], &stream[..], b"\x88"].concat(),
                    [&[0, 0, 1, 0, 0], &stream[..], b"x"].concat(),
                    [&[0, 0, 5, 1, 5], &stream[..], b"\x00\x01X\x01y"].concat(),
                ];
                write_raw(raw, &frames.concat()).await;
            }
        }
    }
}

/// Fields of 4 KB: 100 take 40 frames if they are full of tildes, which HPACK makes longer, and 15
/// if they are full of zeros.
fn large_head(full_of: &str, fields: usize) -> Response<()> {
    let mut response = Response::new(());
    for number in 0..fields {
        let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
        let value = full_of.repeat(4000).parse().unwrap();
        response.headers_mut().insert(name, value);
    }
    response
}

/// Answers `/faulty` by a fault, and other requests in order, except those that share the
/// connection with it. Returns the paths that were asked for.
fn serve_faults(listener: TcpListener, fault: Fault) -> Arc<Mutex<Vec<String>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut peer, raw) = accept_raw(&listener).await;
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut held = Vec::new();
                while let Some(Ok((request, mut respond))) = peer.accept().await {
                    let path = request.uri().path().to_owned();
                    seen.lock().unwrap().push(path.clone());
                    if path == "/warm" || connection > 0 && path != "/faulty" {
                        ok(&mut respond);
                        continue;
                    }
                    held.push((path, request, respond));
                    if connection > 0 || held.len() == 2 {
                        let faulty = held.iter_mut().find(|(path, ..)| path == "/faulty");
                        fault.write(&raw, &mut faulty.unwrap().2).await;
                    }
                }
            });
        }
    });
    asked
}

/// They all got 502.
#[tokio::test]
async fn who_shares_a_connection_that_a_fault_ends_is_asked_for_once_more_if_that_is_safe() {
    for fault in [Fault::Head, Fault::Trailers] {
        for (other, times, status) in [(get("/call"), 2, 200), (post("body"), 1, 502)] {
            let (proxy, listener) = upstream().await;
            let asked = serve_faults(listener, fault);
            assert_eq!(send(&proxy, get("/warm")).await.status(), 200);
            let [faulty, other] = [get("/faulty"), other].map(|request| begin(&proxy, request));
            assert_eq!(other.await.unwrap().status(), status, "{fault:?}");
            let faulty = faulty.await.unwrap();
            match fault {
                Fault::Head => assert_eq!(faulty.status(), 502),
                Fault::Trailers => assert!(faulty.into_body().collect().await.is_err()),
            }
            let asked = asked.lock().unwrap().clone();
            let count = |path: &str| asked.iter().filter(|asked| *asked == path).count();
            assert_eq!(count("/call"), times, "{fault:?}: {asked:?}");
            assert!(count("/faulty") <= 2, "{fault:?}: {asked:?}");
        }
    }
}

/// From 256 KiB on, and some frames more, it ended the connection.
#[tokio::test]
async fn a_head_that_is_too_large_for_the_gateway_alone_fails_no_other_request() {
    let many = (0..1001).map(|_| ("set-cookie", "a=1"));
    let mut many_lines = Response::new(());
    for (name, value) in many {
        let value = http::HeaderValue::from_static(value);
        many_lines.headers_mut().append(name, value);
    }
    for head in [large_head("0", 70), large_head("~", 100), many_lines] {
        let (proxy, listener) = upstream().await;
        let warm = begin(&proxy, get("/warm"));
        let mut peer = accept(&listener).await;
        ok(&mut call(&mut peer).await.1);
        let responses = ["/faulty", "/other"].map(|path| begin(&proxy, get(path)));
        let mut calls = [call(&mut peer).await, call(&mut peer).await];
        calls.sort_by_key(|(request, _)| request.uri().path().to_owned());
        let [(_, mut faulty), (_, mut other)] = calls;
        faulty.send_response(head, true).unwrap();
        serve(peer);
        let [faulty_response, other_response] = responses;
        assert_eq!(warm.await.unwrap().status(), 200);
        let faulty_response = faulty_response.await.unwrap();
        assert_eq!(
            (faulty_response.status().as_u16(), reason(&faulty_response)),
            (502, "head_too_large")
        );
        ok(&mut other);
        assert_eq!(other_response.await.unwrap().status(), 200);
    }
}

/// It got such a request three times.
#[tokio::test]
async fn a_server_that_closes_on_a_request_gets_it_once_more() {
    let (proxy, listener) = upstream().await;
    let warm = begin(&proxy, get("/"));
    let mut peer = accept(&listener).await;
    ok(&mut call(&mut peer).await.1);
    let closing = tokio::spawn(async move {
        let response = begin(&proxy, get("/"));
        let call = call(&mut peer).await;
        drop((call, peer));
        let mut asked = 1;
        let closed = async {
            loop {
                let mut peer = accept(&listener).await;
                peer.accept().await;
                asked += 1;
            }
        };
        tokio::select! {
            () = closed => {}
            response = response => assert_eq!(response.unwrap().status(), 502),
        }
        asked
    });
    assert_eq!(warm.await.unwrap().status(), 200);
    assert_eq!(closing.await.unwrap(), 2);
}

#[tokio::test]
async fn a_refused_request_is_sent_again_with_its_body() {
    let (proxy, listener) = upstream().await;
    // So that the connection is one that is used again.
    let warm = begin(&proxy, get("/"));
    let mut peer = accept(&listener).await;
    ok(&mut call(&mut peer).await.1);
    let response = {
        let response = begin(&proxy, post("once"));
        let (_, mut respond) = call(&mut peer).await;
        respond.send_reset(Reason::REFUSED_STREAM);
        serve(peer);
        response
    };
    assert_eq!(warm.await.unwrap().status(), 200);
    let mut peer = accept(&listener).await;
    let (request, mut respond) = call(&mut peer).await;
    ok(&mut respond);
    serve(peer);
    assert_eq!(text_of(request.into_body()).await, "once");
    assert_eq!(response.await.unwrap().status(), 200);
}

/// When a server goes away under load, a request may have that happen to it several times.
#[tokio::test]
async fn a_request_that_was_never_processed_does_not_fail_while_connections_come_and_go() {
    let (proxy, listener) = upstream().await;
    let response = begin(&proxy, post("again"));
    for _ in 0..5 {
        let mut peer = accept(&listener).await;
        peer.abrupt_shutdown(Reason::NO_ERROR);
        serve(peer);
    }
    let mut peer = accept(&listener).await;
    let (request, mut respond) = call(&mut peer).await;
    ok(&mut respond);
    serve(peer);
    assert_eq!(text_of(request.into_body()).await, "again");
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_request_that_was_left_behind_does_not_go_back_to_a_server_that_did_not_answer_it() {
    let (listeners, servers): (Vec<_>, Vec<_>) =
        [listen().await, listen().await].into_iter().unzip();
    let mut settings = settings(&[]);
    let http2 = |server| Server::from(server).with_protocol(Protocol::Http2);
    settings.servers = servers.into_iter().map(http2).collect();
    settings.timeouts.response = Duration::from_secs(2);
    let proxy = proxy(settings);
    let silent = Arc::new(OnceLock::new());
    for (place, listener) in listeners.into_iter().enumerate() {
        let silent = Arc::clone(&silent);
        tokio::spawn(async move {
            let mut is_first = true;
            loop {
                let mut peer = accept(&listener).await;
                if *silent.get_or_init(|| place) == place {
                    serve(peer);
                } else if std::mem::take(&mut is_first) {
                    peer.abrupt_shutdown(Reason::NO_ERROR);
                    serve(peer);
                } else {
                    ok(&mut call(&mut peer).await.1);
                    serve(peer);
                }
            }
        });
    }
    assert_eq!(begin(&proxy, get("/")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_server_that_refuses_everything_is_not_asked_for_ever() {
    let (proxy, listener) = upstream().await;
    let asked = tokio::spawn(async move {
        let mut asked = 0;
        let refused = async {
            loop {
                let mut peer = accept(&listener).await;
                call(&mut peer).await.1.send_reset(Reason::REFUSED_STREAM);
                asked += 1;
                serve(peer);
            }
        };
        tokio::select! {
            () = refused => {}
            response = begin(&proxy, post("x")) => assert_eq!(response.unwrap().status(), 503),
        }
        asked
    });
    assert_eq!(asked.await.unwrap(), 2);
}

#[tokio::test]
async fn a_request_that_comes_after_the_last_that_is_served_goes_to_another_connection() {
    let (proxy, listener) = upstream().await;
    let warm = begin(&proxy, get("/"));
    let mut peer = accept(&listener).await;
    ok(&mut call(&mut peer).await.1);
    tokio::spawn(async move {
        // It takes no more, and answers what it has.
        peer.graceful_shutdown();
        while peer.accept().await.is_some() {}
    });
    assert_eq!(warm.await.unwrap().status(), 200);
    let response = begin(&proxy, post("after"));
    let mut peer = accept(&listener).await;
    let (request, mut respond) = call(&mut peer).await;
    ok(&mut respond);
    serve(peer);
    assert_eq!(text_of(request.into_body()).await, "after");
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_request_that_was_begun_is_not_sent_again() {
    let (proxy, listener) = upstream().await;
    let warm = begin(&proxy, get("/"));
    let mut peer = accept(&listener).await;
    ok(&mut call(&mut peer).await.1);
    let response = begin(&proxy, post("twice?"));
    let (_, mut respond) = call(&mut peer).await;
    respond.send_reset(Reason::INTERNAL_ERROR);
    let served = serve(peer);
    assert_eq!(warm.await.unwrap().status(), 200);
    assert_eq!(response.await.unwrap().status(), 502);
    drop(proxy);
    served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_too_slow_gets_a_reset_and_no_other_request_on_that_connection() {
    let (proxy, listener) = upstream().await;
    let response = begin(&proxy, get("/slow"));
    let mut peer = accept(&listener).await;
    let (_, mut respond) = call(&mut peer).await;
    let reset = tokio::spawn(async move {
        let served = serve(peer);
        let reason = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        served.abort();
        reason.unwrap()
    });
    assert_eq!(response.await.unwrap().status(), 504);
    assert_eq!(reset.await.unwrap(), Reason::CANCEL);
    let next = begin(&proxy, get("/next"));
    let mut peer = accept(&listener).await;
    ok(&mut call(&mut peer).await.1);
    serve(peer);
    assert_eq!(next.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_response_that_breaks_off_is_not_ended_as_if_it_were_whole() {
    let (proxy, listener) = upstream().await;
    let response = begin(&proxy, get("/"));
    let mut peer = accept(&listener).await;
    let (_, mut respond) = call(&mut peer).await;
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    body.send_data("beg".into(), false).unwrap();
    let served = serve(peer);
    let mut body_of_response = response.await.unwrap().into_body();
    let frame = body_of_response.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "beg");
    body.send_reset(Reason::INTERNAL_ERROR);
    assert!(body_of_response.frame().await.unwrap().is_err());
    drop((proxy, body_of_response));
    served.await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_resets_its_stream_alone() {
    let (proxy, listener) = upstream().await;
    let (left, stays) = (begin(&proxy, get("/left")), begin(&proxy, get("/stays")));
    let mut peer = accept(&listener).await;
    let mut calls = [call(&mut peer).await, call(&mut peer).await];
    calls.sort_by_key(|(request, _)| request.uri().path().to_owned());
    let [(_, mut first), (_, mut second)] = calls;
    let served = serve(peer);
    left.abort();
    let reason = std::future::poll_fn(|cx| first.poll_reset(cx)).await;
    assert_eq!(reason.unwrap(), Reason::CANCEL);
    ok(&mut second);
    assert_eq!(stays.await.unwrap().status(), 200);
    yield_now().await;
    drop(proxy);
    served.await.unwrap();
}

#[tokio::test]
async fn a_server_that_speaks_http_1_is_no_server_of_http_2() {
    let (proxy, listener) = upstream().await;
    let response = begin(&proxy, get("/"));
    let mut server = RawConnection::accept(&listener).await;
    server
        .write("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert_eq!(response.await.unwrap().status(), 502);
}
