//! A drain loses no request.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Barrier;
use tokio::time::timeout;

use super::{PATIENTLY, ask, is_cut_off, read_answer, rest, settings, start};
use crate::supervise;

#[test]
fn a_connection_that_was_idle_when_the_drain_began_still_gets_an_answer() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    let mut idle = server.connect();
    assert!(ask(&mut idle).unwrap());
    server.drain.start();
    assert!(!ask(&mut idle).unwrap(), "and is told to close");
    assert_eq!(rest(&mut idle), [0; 0]);
    drop(idle);
    assert_eq!(server.ended(), 0);
}

#[test]
fn a_connection_that_has_sent_nothing_yet_still_gets_an_answer() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    let mut fresh = server.connect();
    // Half of a request is in the socket when the drain begins.
    fresh.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut silent = server.connect();
    server.drain.start();
    fresh.write_all(b"host: a\r\n\r\n").unwrap();
    assert!(!read_answer(&mut fresh).unwrap());
    assert!(!ask(&mut silent).unwrap());
    drop((fresh, silent));
    assert_eq!(server.ended(), 0);
}

#[test]
fn a_head_that_never_ends_does_not_hold_up_a_drain() {
    let mut settings = settings(Duration::from_millis(1));
    settings.header_timeout = Duration::from_millis(20);
    let server = start(&settings, Duration::ZERO);
    let mut slow = server.connect();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    server.drain.start();
    assert!(is_cut_off(&mut slow));
    assert_eq!(
        server.ended(),
        0,
        "it was cut off at the end of the grace period only"
    );
}

/// Requests one after the other on one HTTP/2 connection, until the server says that it goes away.
async fn http2_client(address: SocketAddr, served: Arc<Barrier>) -> usize {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (executor, io) = (TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = http2::handshake(executor, io).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut answered = 0;
    while sender.ready().await.is_ok() {
        let request = Request::get("http://a/").body(Empty::<Bytes>::new());
        match sender.send_request(request.unwrap()).await {
            Ok(response) => {
                let body = response.into_body().collect().await.unwrap();
                assert_eq!(body.to_bytes(), "hello");
                answered += 1;
                if answered == 1 {
                    served.wait().await;
                }
            }
            // It was never sent.
            Err(error) if error.is_canceled() => break,
            Err(error) => panic!("request {answered} failed: {error:?}"),
        }
    }
    connection.await.unwrap().unwrap();
    answered
}

/// Its connection was closed, with all tunnels and other streams in it.
#[test]
fn a_connect_with_a_length_is_reset_and_the_other_streams_go_on() {
    let server = start(&settings(PATIENTLY), Duration::from_millis(100));
    let runtime = supervise::runtime().unwrap();
    let client = async {
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let get = || Request::get("http://a/").body(()).unwrap();
        let mut sender = sender.ready().await.unwrap();
        let (first, _) = sender.send_request(get(), true).unwrap();
        while !sender.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        let (other, _) = sender.send_request(get(), true).unwrap();
        for _ in 0..3 {
            let mut connect = Request::connect("http://a/chat").body(()).unwrap();
            let protocol = h2::ext::Protocol::from_static("websocket");
            connect.extensions_mut().insert(protocol);
            let length = http::HeaderValue::from_static("5");
            connect.headers_mut().insert("content-length", length);
            let (refused, _body) = sender.send_request(connect, false).unwrap();
            let error = refused.await.unwrap_err();
            assert!(error.is_reset(), "{error}");
        }
        let (later, _) = sender.send_request(get(), true).unwrap();
        for response in [first, other, later] {
            assert_eq!(response.await.unwrap().status(), 200);
        }
        server.drain.start();
        drop(sender);
        connection.await.unwrap().unwrap();
    };
    let done = runtime.block_on(async { timeout(PATIENTLY, client).await });
    done.expect("an end in time");
    assert_eq!(server.ended(), 0);
}

#[test]
fn no_request_over_http2_fails_in_a_drain() {
    for _ in 0..5 {
        let server = start(&settings(PATIENTLY), Duration::ZERO);
        let runtime = supervise::runtime().unwrap();
        let clients = async {
            let served = Arc::new(Barrier::new(9));
            let clients: Vec<_> = (0..8)
                .map(|_| tokio::spawn(http2_client(server.address, Arc::clone(&served))))
                .collect();
            served.wait().await;
            server.drain.start();
            let mut answered = 0;
            for client in clients {
                answered += client.await.unwrap();
            }
            answered
        };
        let answered = runtime.block_on(async { timeout(PATIENTLY, clients).await });
        assert!(answered.expect("an end in time") >= 8);
        assert_eq!(server.ended(), 0, "connections were cut off");
    }
}
