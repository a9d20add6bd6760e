//! A drain loses no request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Barrier;
use tokio::time::timeout;

use super::{PATIENTLY, ask, read_answer, settings, start};
use crate::supervise;

/// A client that keeps its connection as long as it may, and connects again until it is refused.
/// Returns how many requests were answered; a failed one is a panic.
fn client(address: SocketAddr, requests_per_connection: usize) -> usize {
    let mut answered = 0;
    let deadline = Instant::now() + PATIENTLY;
    loop {
        let mut stream = match TcpStream::connect(address) {
            Ok(stream) => stream,
            // The listener is closed: this was never accepted.
            Err(_) => return answered,
        };
        stream.set_read_timeout(Some(PATIENTLY)).unwrap();
        for _ in 0..requests_per_connection {
            assert!(Instant::now() < deadline, "the drain does not end");
            let stays = ask(&mut stream).unwrap_or_else(|error| {
                panic!("request {answered} failed: {error}");
            });
            answered += 1;
            if !stays {
                break;
            }
        }
    }
}

fn no_request_fails_in_a_drain(requests_per_connection: usize, pause: Duration) {
    for _ in 0..5 {
        // Every client sends something at once, so that none is ever waited for in vain.
        let server = start(&settings(PATIENTLY), pause);
        let address = server.address;
        let clients: Vec<_> = (0..16)
            .map(|_| thread::spawn(move || client(address, requests_per_connection)))
            .collect();
        // One client that is known to be served: from here on the others are under way.
        for _ in 0..50 {
            ask(&mut server.connect()).unwrap();
        }
        server.drain.start();
        assert_eq!(server.ended(), 0, "connections were cut off");
        for client in clients {
            client.join().unwrap();
        }
    }
}

#[test]
fn no_request_on_kept_alive_connections_fails_in_a_drain() {
    no_request_fails_in_a_drain(usize::MAX, Duration::ZERO);
}

#[test]
fn no_request_on_connections_of_its_own_fails_in_a_drain() {
    no_request_fails_in_a_drain(1, Duration::ZERO);
}

#[test]
fn no_slow_request_fails_in_a_drain() {
    no_request_fails_in_a_drain(3, Duration::from_millis(5));
}

#[test]
fn a_connection_that_was_idle_when_the_drain_began_still_gets_an_answer() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    let mut idle = server.connect();
    assert!(ask(&mut idle).unwrap());
    server.drain.start();
    assert!(!ask(&mut idle).unwrap(), "and is told to close");
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
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
fn an_idle_connection_is_closed_in_a_drain() {
    let server = start(&settings(Duration::from_millis(1)), Duration::ZERO);
    let mut idle = server.connect();
    assert!(ask(&mut idle).unwrap());
    server.drain.start();
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    drop(idle);
    assert_eq!(server.ended(), 0);
}

#[test]
fn what_is_not_done_by_the_end_of_the_grace_period_is_cut_off() {
    let mut settings = settings(Duration::from_millis(1));
    settings.drain.grace = Duration::from_millis(10);
    let server = start(&settings, Duration::from_secs(3600));
    let mut slow = server.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    server.drain.start();
    assert!(matches!(slow.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert_eq!(server.ended(), 1);
}

#[test]
fn a_head_that_never_ends_does_not_hold_up_a_drain() {
    let mut settings = settings(Duration::from_millis(1));
    settings.header_timeout = Duration::from_millis(20);
    let server = start(&settings, Duration::ZERO);
    let mut slow = server.connect();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    server.drain.start();
    assert!(matches!(slow.read(&mut [0; 1]), Ok(0) | Err(_)));
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
