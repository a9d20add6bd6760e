//! The server over loopback: a drain loses no request, and slow clients are put an end to.

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tower::service_fn;

use super::*;
use crate::telemetry::Metrics;

/// Longer than anything here takes on the slowest machine.
const PATIENTLY: Duration = Duration::from_secs(60);

struct Server {
    address: SocketAddr,
    drain: Drain,
    workers: JoinHandle<Result<(), WorkerFailed>>,
    cut_off: mpsc::UnboundedReceiver<usize>,
}

fn settings(linger: Duration) -> HttpSettings {
    HttpSettings {
        drain: DrainSettings {
            grace: PATIENTLY,
            linger,
        },
        ..HttpSettings::default()
    }
}

/// Two workers that answer every request after `pause`.
fn start(settings: &HttpSettings, pause: Duration) -> Server {
    let two = NonZeroUsize::new(2).unwrap();
    let listeners = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], two).unwrap();
    let address = listeners.addresses()[0];
    let (drain, draining) = Drain::new();
    let http = Http::new(settings, Metrics::new().server());
    let (tell, cut_off) = mpsc::unbounded_channel();
    let mut workers = Workers::spawn(listeners.into_workers(), move |_, mut own| {
        let (http, draining, tell) = (http.clone(), draining.clone(), tell.clone());
        async move {
            let make = move |_: &Connection| service_fn(move |it| answer(it, pause));
            let served = http.serve(own.remove(0), make, draining).await;
            tell.send(served?).unwrap();
            Ok(())
        }
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    Server {
        address,
        drain,
        workers: thread::spawn(move || runtime.block_on(workers.finished())),
        cut_off,
    }
}

async fn answer(
    _: Request<Incoming>,
    pause: Duration,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    Ok(Response::new(Full::from("hello")))
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENTLY)).unwrap();
        stream
    }

    /// Waits for the end and returns how many connections were cut off.
    fn ended(mut self) -> usize {
        self.workers.join().unwrap().unwrap();
        let mut cut_off = 0;
        while let Some(one) = self.cut_off.blocking_recv() {
            cut_off += one;
        }
        cut_off
    }
}

/// Sends a request, and reads its answer to the end. Returns whether the connection stays open.
fn ask(stream: &mut TcpStream) -> std::io::Result<bool> {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    read_answer(stream)
}

fn read_answer(stream: &mut TcpStream) -> std::io::Result<bool> {
    let mut answer = Vec::new();
    let mut bytes = [0; 1024];
    while !answer.ends_with(b"\r\n\r\nhello") {
        match stream.read(&mut bytes)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            some => answer.extend_from_slice(&bytes[..some]),
        }
    }
    let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    Ok(!answer.contains("connection: close"))
}

/// A client that keeps its connection as long as it may, and connects again until it is refused.
/// Returns how many requests were answered; a failed one is a panic.
fn client(address: SocketAddr, requests_per_connection: usize) -> usize {
    let mut answered = 0;
    loop {
        let mut stream = match TcpStream::connect(address) {
            Ok(stream) => stream,
            // The listener is closed: this was never accepted.
            Err(_) => return answered,
        };
        stream.set_read_timeout(Some(PATIENTLY)).unwrap();
        for _ in 0..requests_per_connection {
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
        let server = start(&settings(Duration::from_millis(200)), pause);
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
fn pipelined_requests_are_answered_one_after_the_other() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    let mut stream = server.connect();
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    stream.write_all(&request.repeat(20)).unwrap();
    let mut text = String::new();
    while text.matches("hello").count() < 20 {
        let mut bytes = [0; 4096];
        let some = stream.read(&mut bytes).unwrap();
        assert_ne!(some, 0, "closed after {text}");
        text.push_str(std::str::from_utf8(&bytes[..some]).unwrap());
    }
}

#[test]
fn an_answer_survives_the_request_body_that_nobody_read() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    let mut stream = server.connect();
    let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    // Without lingering, this fails with a reset, or reading the answer does.
    for _ in 0..80 {
        stream.write_all(&[b'x'; 100_000]).unwrap();
    }
    read_answer(&mut stream).unwrap();
}

#[test]
fn a_client_that_does_not_finish_its_head_is_cut_off() {
    let mut settings = settings(PATIENTLY);
    settings.header_timeout = Duration::from_millis(20);
    let server = start(&settings, Duration::ZERO);
    let mut slow = server.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nx: ").unwrap();
    assert!(matches!(slow.read(&mut [0; 1]), Ok(0) | Err(_)));
}

#[test]
fn a_connection_without_requests_is_closed_in_the_end() {
    let mut settings = settings(PATIENTLY);
    settings.idle_timeout = Duration::from_millis(20);
    let server = start(&settings, Duration::ZERO);
    let (mut silent, mut served) = (server.connect(), server.connect());
    assert!(ask(&mut served).unwrap());
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(served.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn connections_above_the_most_wait_for_one_to_close() {
    let mut settings = settings(PATIENTLY);
    settings.max_connections = NonZeroUsize::new(1);
    let server = start(&settings, Duration::ZERO);
    for _ in 0..20 {
        let (mut first, mut second) = (server.connect(), server.connect());
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        first.write_all(request).unwrap();
        second.write_all(request).unwrap();
        // Whichever is served keeps the other out until it is closed.
        let (served, mut waiting) = either(first, second);
        waiting.set_nonblocking(true).unwrap();
        let early = waiting.read(&mut [0; 1]).unwrap_err();
        assert_eq!(early.kind(), ErrorKind::WouldBlock);
        waiting.set_nonblocking(false).unwrap();
        drop(served);
        read_answer(&mut waiting).unwrap();
    }
}

/// The connection that was answered, then the other.
fn either(mut one: TcpStream, mut other: TcpStream) -> (TcpStream, TcpStream) {
    loop {
        one.set_nonblocking(true).unwrap();
        if one.peek(&mut [0; 1]).is_ok() {
            one.set_nonblocking(false).unwrap();
            read_answer(&mut one).unwrap();
            return (one, other);
        }
        std::mem::swap(&mut one, &mut other);
        thread::yield_now();
    }
}

/// Requests one after the other on one HTTP/2 connection, until the server says that it goes away.
async fn http2_client(address: SocketAddr) -> usize {
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
            }
            // It was never sent.
            Err(error) if error.is_canceled() => break,
            Err(error) => panic!("request {answered} failed: {error:?}"),
        }
    }
    connection.await.unwrap().unwrap();
    answered
}

#[test]
fn no_request_over_http2_fails_in_a_drain() {
    for _ in 0..5 {
        let server = start(&settings(PATIENTLY), Duration::ZERO);
        let runtime = workers::runtime().unwrap();
        let answered = runtime.block_on(async {
            let clients: Vec<_> = (0..8)
                .map(|_| tokio::spawn(http2_client(server.address)))
                .collect();
            // Until all of them are well under way.
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            server.drain.start();
            let mut answered = 0;
            for client in clients {
                answered += client.await.unwrap();
            }
            answered
        });
        assert!(answered > 0);
        assert_eq!(server.ended(), 0, "connections were cut off");
    }
}
