//! The PROXY protocol: headers within bounds, and nothing lost in a drain.

use std::io::Write;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use super::super::{HttpSettings, ProxyProtocol, Transport};
use super::{PATIENTLY, Server, ask, is_cut_off, rest, settings, start_over};

const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 80\r\n";

/// A server to which this machine is a load balancer.
fn start(settings: &HttpSettings) -> Server {
    let trusted = vec!["127.0.0.0/8".parse().unwrap()];
    let transport = Transport {
        proxy_protocol: Some(ProxyProtocol::new(trusted)),
        ..Transport::default()
    };
    start_over(settings, Duration::ZERO, transport)
}

impl Server {
    /// Waits until the page of metrics has this line.
    fn shows(&self, line: &str) {
        let end = Instant::now() + PATIENTLY;
        while !self.metrics.encode().unwrap().contains(line) {
            assert!(Instant::now() < end, "{line}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_header_that_does_not_go_on_is_cut_off() {
    let server = start(&HttpSettings {
        header_timeout: Duration::from_millis(50),
        ..settings(PATIENTLY)
    });
    for begin in [&[][..], &HEADER[..20]] {
        let mut stream = server.connect();
        // Where this thread pauses, the server has closed the connection before.
        let _ = stream.write_all(begin);
        match begin {
            [] => assert_eq!(rest(&mut stream), [0; 0]),
            _ => assert!(is_cut_off(&mut stream)),
        }
    }
    server.shows("weir_proxy_headers_total{outcome=\"too_slow\"} 2\n");
}

#[test]
fn a_connection_without_its_header_makes_room_for_another() {
    let server = start(&HttpSettings {
        header_timeout: PATIENTLY,
        max_connections: NonZeroUsize::new(1),
        ..settings(PATIENTLY)
    });
    for (before, begin) in [(0, &[][..]), (2, &HEADER[..20])] {
        let mut first = server.connect();
        first.write_all(begin).unwrap();
        server.shows(&format!("weir_connections_accepted_total {}\n", before + 1));
        let mut second = server.connect();
        second.write_all(HEADER).unwrap();
        assert!(ask(&mut second).unwrap());
        assert!(is_cut_off(&mut first));
    }
}

#[test]
fn a_connection_is_parked_and_served_again() {
    let server = start(&HttpSettings {
        park_after: Duration::from_millis(1),
        ..settings(PATIENTLY)
    });
    let mut stream = server.connect();
    stream.write_all(HEADER).unwrap();
    for _ in 0..20 {
        assert!(ask(&mut stream).unwrap());
        std::thread::yield_now();
    }
    server.shows("weir_proxy_headers_total{outcome=\"proxied\"} 1\n");
}

#[test]
fn a_drain_answers_those_who_sent_a_header_and_does_not_wait_for_those_who_do_not() {
    let server = start(&settings(Duration::from_secs(2)));
    let mut known = server.connect();
    known.write_all(HEADER).unwrap();
    assert!(ask(&mut known).unwrap());
    let mut silent = server.connect();
    let mut half = server.connect();
    half.write_all(&HEADER[..20]).unwrap();
    server.drain.start();
    assert!(!ask(&mut known).unwrap());
    drop(known);
    for stream in [&mut silent, &mut half] {
        assert!(is_cut_off(stream));
    }
    assert_eq!(server.ended(), 0);
}
