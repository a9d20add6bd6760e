//! Against a server in the same process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustls::{ServerConnection, StreamOwned};

use super::*;
use crate::wire::tests::{Own, server_config};

const SPAN: Duration = Duration::from_millis(60);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server that answers every request, and counts its connections.
struct Server {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
}

impl Server {
    /// The first `silent` connections are closed in the place of an answer.
    fn start(tls: Option<&Own>, silent: u64) -> Self {
        let config = tls.map(|own| Arc::new(server_config(own)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::new(AtomicU64::new(0)),
        };
        let connections = Arc::clone(&server.connections);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = config.clone();
                let is_silent = connections.fetch_add(1, Ordering::SeqCst) < silent;
                thread::spawn(move || match config {
                    Some(config) => {
                        let session = ServerConnection::new(config).unwrap();
                        answer(StreamOwned::new(session, stream), is_silent)
                    }
                    None => answer(stream, is_silent),
                });
            }
        });
        server
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    fn options(&self, words: &str) -> Options {
        let words = format!("--target {} --connections 3 {words}", self.address);
        Options::parse(words.split_whitespace().map(String::from)).unwrap()
    }
}

/// Until the client closes.
fn answer<S: Read + Write>(mut stream: S, is_silent: bool) -> Option<()> {
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let bytes = stream.read(&mut buffer).ok().filter(|bytes| *bytes > 0)?;
        head.extend_from_slice(&buffer[..bytes]);
        if head.ends_with(b"\r\n\r\n") {
            if is_silent {
                return None;
            }
            head.clear();
            stream.write_all(ANSWER).ok()?;
            stream.flush().ok()?;
        }
    }
}

fn closed(options: &Options) -> Report {
    let dialler = Dialler::new(options).unwrap();
    Load::connect(options, &dialler)
        .unwrap()
        .closed(SPAN)
        .unwrap()
}

#[test]
fn a_closed_loop_uses_its_connections_again() {
    let server = Server::start(None, 0);
    let report = closed(&server.options(""));
    assert!(report.answered >= 3);
    assert_eq!(
        (report.unexpected, report.lost, report.unanswered),
        (0, 0, 0)
    );
    assert_eq!(server.connections(), 3);
}

#[test]
fn another_status_than_the_one_expected_is_counted() {
    let server = Server::start(None, 0);
    let report = closed(&server.options("--expect 429"));
    assert!(report.answered >= 3);
    assert_eq!(report.unexpected, report.answered);
}

#[test]
fn a_request_is_lost_with_its_connection_and_the_load_goes_on() {
    let server = Server::start(None, 2);
    let report = closed(&server.options(""));
    assert_eq!(report.lost, 2);
    assert!(report.answered >= 3);
}

#[test]
fn an_open_loop_sends_as_many_requests_as_the_rate_says() {
    let server = Server::start(None, 0);
    let options = server.options("");
    let dialler = Dialler::new(&options).unwrap();
    let mut load = Load::connect(&options, &dialler).unwrap();
    let report = load.open(Duration::from_millis(500), 200.0).unwrap();
    assert_eq!((report.answered, report.unanswered), (100, 0));
    assert!(
        report.took >= Duration::from_millis(490),
        "{:?}",
        report.took
    );
}

#[test]
fn every_request_has_a_connection_of_its_own_if_asked_for() {
    let server = Server::start(None, 0);
    let report = closed(&server.options("--reconnect full"));
    assert!(report.answered >= 3);
    assert_eq!((report.lost, server.connections()), (0, report.answered));
}

#[test]
fn full_handshakes_resume_nothing() {
    let own = Own::new("full");
    let server = Server::start(Some(&own), 0);
    let certificate = own.certificate();
    let words = format!("--reconnect full --tls {}", certificate.display());
    let report = closed(&server.options(&words));
    assert!(report.answered >= 3);
    assert_eq!((report.lost, report.resumed), (0, 0));
    assert_eq!(server.connections(), report.answered);
}

#[test]
fn every_connection_but_the_first_resumes_the_session_before_it() {
    let own = Own::new("resumed");
    let server = Server::start(Some(&own), 0);
    let certificate = own.certificate();
    let words = format!("--reconnect resumed --tls {}", certificate.display());
    let options = server.options(&words);
    let dialler = Dialler::new(&options).unwrap();
    let mut load = Load::connect(&options, &dialler).unwrap();
    let first = load.closed(SPAN).unwrap();
    assert_eq!((first.lost, first.resumed), (0, first.answered - 3));
    let then = load.closed(SPAN).unwrap();
    assert!(then.answered >= 3);
    assert_eq!((then.lost, then.resumed), (0, then.answered));
    assert_eq!(server.connections(), first.answered + then.answered);
}

#[test]
fn a_count_of_requests_is_sent_and_no_more() {
    let server = Server::start(None, 0);
    let options = server.options("");
    let dialler = Dialler::new(&options).unwrap();
    let report = Load::connect(&options, &dialler)
        .unwrap()
        .count(50)
        .unwrap();
    assert_eq!(
        (report.answered, report.lost, report.unanswered),
        (50, 0, 0)
    );
}
