//! TLS: handshakes within bounds, and nothing lost in a drain.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use weir_testing::certificates::Certificate;

use super::super::{Challenge, Challenges, HttpSettings, Tls, Transport};
use super::certificates::{certificates, knowing_rsa};
use super::{
    PATIENTLY, Server, ask, ask_at_once, is_cut_off, read_answer, rest, settings, start_over,
    start_with,
};

struct Secure {
    server: Server,
    pair: Certificate,
}

fn start(settings: &HttpSettings) -> Secure {
    let pair = Certificate::of("a.example.com");
    let tls = Tls::new(certificates(&[&pair]));
    Secure {
        server: start_with(settings, Duration::ZERO, Some(tls)),
        pair,
    }
}

impl Secure {
    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let name = "a.example.com".try_into().unwrap();
        let session = ClientConnection::new(self.pair.trusted(&[]), name).unwrap();
        StreamOwned::new(session, self.server.connect())
    }

    /// Waits until so many handshakes have come to this end; clients may hear of it first.
    fn counts(&self, outcome: &str, number: u32) {
        let outcome = format!("{{outcome=\"{outcome}\"}}");
        self.shows(&format!("weir_tls_handshakes_total{outcome} {number}\n"));
    }

    /// Waits until the page of metrics has this line.
    fn shows(&self, line: &str) {
        let end = Instant::now() + PATIENTLY;
        while !self.server.metrics.encode().unwrap().contains(line) {
            assert!(Instant::now() < end, "{line}");
            thread::yield_now();
        }
    }
}

/// The first bytes of a ClientHello, which says how many follow.
const HALF: &[u8] = &[22, 3, 1, 2, 0, 1, 0];

#[test]
fn a_handshake_that_does_not_go_on_is_cut_off() {
    let bounds = HttpSettings {
        header_timeout: Duration::from_millis(50),
        ..settings(PATIENTLY)
    };
    let secure = start(&bounds);
    for begin in [&[], HALF] {
        let mut stream = secure.server.connect();
        // Where this thread pauses, the server has closed the connection before.
        let _ = stream.write_all(begin);
        match begin {
            [] => assert_eq!(rest(&mut stream), [0; 0]),
            _ => assert!(is_cut_off(&mut stream)),
        }
    }
    secure.counts("too_slow", 2);
}

#[test]
fn a_handshake_counts_as_a_connection_until_it_fails() {
    // Nothing but its failure ends the first one.
    let bounds = HttpSettings {
        header_timeout: PATIENTLY,
        park_after: PATIENTLY,
        max_connections: NonZeroUsize::new(1),
        ..settings(PATIENTLY)
    };
    let secure = start(&bounds);
    let mut first = secure.server.connect();
    first.write_all(HALF).unwrap();
    secure.shows("weir_connections_accepted_total 1\n");
    // This one waits for its place.
    let mut second = secure.connect();
    first.write_all(&[0; 512]).unwrap();
    assert!(ask(&mut second).unwrap());
    secure.counts("failed", 1);
    secure.counts("full", 1);
}

#[test]
fn a_handshake_that_does_not_go_on_makes_room_for_another() {
    let bounds = HttpSettings {
        header_timeout: PATIENTLY,
        park_after: Duration::from_millis(1),
        max_connections: NonZeroUsize::new(1),
        ..settings(PATIENTLY)
    };
    let secure = start(&bounds);
    for (before, begin) in [(0, &[] as &[u8]), (2, HALF)] {
        let mut first = secure.server.connect();
        first.write_all(begin).unwrap();
        secure.shows(&format!("weir_connections_accepted_total {}\n", before + 1));
        assert!(ask(&mut secure.connect()).unwrap());
        assert_eq!(rest(&mut first), [0; 0]);
    }
}

#[test]
fn a_client_that_speaks_plain_http_is_told_so() {
    let secure = start(&settings(PATIENTLY));
    let mut stream = secure.server.connect();
    let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&[b'x'; 100_000]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let length = format!("content-length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}: {body}");
    secure.counts("plain_text", 1);
}

#[test]
fn requests_that_come_in_one_record_are_all_answered() {
    let secure = start(&settings(PATIENTLY));
    ask_at_once(&mut secure.connect());
}

#[test]
fn the_end_of_a_connection_is_told_to_the_client() {
    let secure = start(&settings(PATIENTLY));
    let mut stream = secure.connect();
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    assert!(!read_answer(&mut stream).unwrap());
    // Without a close_notify, rustls makes an error of it: the answer might have been cut short.
    assert_eq!(rest(&mut stream), [0; 0]);
}

#[test]
fn a_drain_answers_those_who_shook_hands_and_does_not_wait_for_those_who_do_not() {
    let bounds = HttpSettings {
        header_timeout: Duration::from_secs(3),
        ..settings(Duration::from_secs(2))
    };
    let secure = start(&bounds);
    let mut known = secure.connect();
    assert!(ask(&mut known).unwrap());
    let mut silent = secure.server.connect();
    let mut half = secure.server.connect();
    half.write_all(HALF).unwrap();
    secure.server.drain.start();
    assert!(!ask(&mut known).unwrap());
    drop(known);
    for stream in [&mut silent, &mut half] {
        assert!(is_cut_off(stream));
    }
    assert_eq!(secure.server.ended(), 0);
}

/// All that went on later than the grace for idle connections were cut off.
#[test]
fn a_handshake_that_has_begun_is_finished_in_a_drain_and_its_request_answered() {
    let idle_grace = Duration::from_millis(50);
    let secure = start(&settings(idle_grace));
    let mut idle = secure.server.connect();
    let mut begun = secure.connect();
    let mut hello = Vec::new();
    begun.conn.write_tls(&mut hello).unwrap();
    begun.sock.write_all(&hello[..1]).unwrap();
    secure.shows("weir_connections_accepted_total 2\n");
    secure.server.drain.start();
    // By the end of this one, that grace is over.
    assert!(is_cut_off(&mut idle));
    begun.sock.write_all(&hello[1..]).unwrap();
    assert!(!ask(&mut begun).unwrap());
    drop(begun);
    assert_eq!(secure.server.ended(), 0);
}

#[test]
fn a_client_gets_the_first_certificate_whose_signatures_it_knows() {
    let name = "a.example.com";
    let (ecdsa, rsa) = (Certificate::of(name), Certificate::rsa(name));
    let tls = Tls::new(certificates(&[&ecdsa, &rsa]));
    let server = start_with(&settings(PATIENTLY), Duration::ZERO, Some(tls));
    for config in [ecdsa.trusted(&[]), knowing_rsa(&rsa)] {
        for tells_name in [true, false] {
            let mut config = ClientConfig::clone(&config);
            config.enable_sni = tells_name;
            let name = "a.example.com".try_into().unwrap();
            let session = ClientConnection::new(Arc::new(config), name).unwrap();
            let mut stream = StreamOwned::new(session, server.connect());
            assert!(ask(&mut stream).unwrap());
        }
    }
}

#[test]
fn sessions_are_resumed_until_the_certificate_is_another() {
    let (old, new) = (
        Certificate::of("a.example.com"),
        Certificate::of("a.example.com"),
    );
    let tls = Tls::new(certificates(&[&old]));
    let server = start_with(&settings(PATIENTLY), Duration::ZERO, Some(tls.clone()));
    let config = old.trusted(&[]);
    let counted = |outcome: &str| {
        let name = "a.example.com".try_into().unwrap();
        let session = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(session, server.connect());
        let answered = ask(&mut stream).is_ok();
        let page = server.metrics.encode().unwrap();
        let start = format!("weir_tls_handshakes_total{{outcome=\"{outcome}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&start));
        (
            answered,
            value.map_or(0, |value| value.parse::<u32>().unwrap()),
        )
    };
    assert_eq!(counted("full"), (true, 1));
    assert_eq!(counted("resumed"), (true, 1));
    tls.renew(certificates(&[&old]));
    assert_eq!(counted("resumed"), (true, 2));
    tls.renew(certificates(&[&new]));
    let (answered, resumed) = counted("resumed");
    assert!(
        !answered && resumed == 2,
        "the client knows only the old one"
    );
}

#[test]
fn challenges_of_acme_servers_are_told_from_clients_and_no_one_else_is_shown_their_certificate() {
    let pair = Certificate::of("a.example.com");
    let challenges = Challenges::default();
    challenges.set_in_use(true);
    let transport = Transport {
        tls: Some(Tls::new(certificates(&[&pair]))),
        challenges: challenges.clone(),
        ..Transport::default()
    };
    let server = start_over(&settings(PATIENTLY), Duration::ZERO, transport);
    let end_of_handshake = |name: &'static str, protocols: &[&[u8]]| {
        let mut config = (*pair.trusted(&[])).clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let mut session = ClientConnection::new(config.into(), name.try_into().unwrap()).unwrap();
        let mut stream = server.connect();
        while session.is_handshaking() {
            if let Err(error) = session.complete_io(&mut stream) {
                return error.to_string();
            }
        }
        "agreed".to_owned()
    };
    let answered = challenges.answer(Challenge::TlsAlpn01 {
        domain: "a.example.com".to_owned(),
        digest: vec![7; 32],
    });
    let acme: &[&[u8]] = &[b"acme-tls/1"];
    let (found, other) = ("invalid peer certificate", "NoApplicationProtocol");
    for (name, protocols, end) in [
        ("a.example.com", acme, found),
        ("b.example.com", acme, other),
        ("a.example.com", &[b"http/1.1"], "agreed"),
        ("a.example.com", &[], "agreed"),
        ("a.example.com", &[b"acme-tls/1", b"http/1.1"], "agreed"),
    ] {
        let ended = end_of_handshake(name, protocols);
        assert!(ended.contains(end), "{name}, {protocols:?}: {ended}");
    }
    drop(answered);
    let ended = end_of_handshake("a.example.com", acme);
    assert!(ended.contains(other), "{ended}");
}
