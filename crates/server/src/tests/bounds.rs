//! Clients are kept within bounds, and those who keep to them are served.

use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::time::Duration;

use super::super::HttpSettings;
use super::{PATIENTLY, Server, ask, ask_at_once, is_cut_off, read_answer, rest, settings, start};

#[test]
fn pipelined_requests_are_answered_one_after_the_other() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    ask_at_once(&mut server.connect());
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
fn a_short_body_that_comes_after_its_answer_leaves_the_connection_open() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    let mut stream = server.connect();
    // It used to be closed without a word, and the next request with it.
    for length in [1, 1000, 65_536, 1] {
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        assert!(read_answer(&mut stream).unwrap());
        stream.write_all(&vec![b'x'; length]).unwrap();
    }
    assert!(ask(&mut stream).unwrap());
}

#[test]
fn an_answer_before_a_body_that_is_not_waited_for_says_that_the_connection_closes() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    for fields in [
        "content-length: 65537",
        "transfer-encoding: chunked",
        "content-length: 1\r\nexpect: 100-continue",
    ] {
        let mut stream = server.connect();
        write!(stream, "POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n").unwrap();
        assert!(!read_answer(&mut stream).unwrap(), "{fields}");
        assert_eq!(rest(&mut stream), [0; 0], "{fields}");
    }
}

#[test]
fn a_short_body_that_never_comes_is_not_waited_for_long() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    let mut stream = server.connect();
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n12345678";
    stream.write_all(head).unwrap();
    assert!(read_answer(&mut stream).unwrap());
    assert_eq!(rest(&mut stream), [0; 0]);
}

#[test]
fn a_client_that_does_not_finish_its_head_is_cut_off() {
    let mut settings = settings(PATIENTLY);
    settings.header_timeout = Duration::from_millis(20);
    let server = start(&settings, Duration::ZERO);
    let mut slow = server.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nx: ").unwrap();
    assert!(is_cut_off(&mut slow));
}

#[test]
fn a_client_that_takes_nothing_of_its_answers_is_cut_off() {
    let mut settings = settings(PATIENTLY);
    settings.stall_timeout = Duration::from_millis(20);
    let server = start(&settings, Duration::ZERO);
    let mut greedy = server.connect();
    greedy.set_write_timeout(Some(PATIENTLY)).unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(1000);
    // Sent without end and never read: were it not for the timeout, both would wait for each other.
    let aborted = (0..100_000).find_map(|_| greedy.write_all(&request).err());
    let aborted = aborted.unwrap().kind();
    assert!(
        matches!(aborted, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        "{aborted}"
    );
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    for head in [
        "x: y\r\n".repeat(101),
        format!("x: {}\r\n", "y".repeat(70_000)),
    ] {
        let mut stream = server.connect();
        // The answer may come before all of it is written.
        let _ = write!(stream, "GET / HTTP/1.1\r\nhost: a\r\n{head}\r\n");
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 431");
    }
}

#[test]
fn a_head_may_be_as_large_as_is_told_and_no_larger_however_it_arrives() {
    let server = start(&settings(PATIENTLY), Duration::ZERO);
    let most = HttpSettings::default().max_header_bytes;
    let (begin, end) = ("GET / HTTP/1.1\r\nhost: a\r\nx: ", "\r\n\r\n");
    for (length, status) in [(most, "200"), (most + 1, "431"), (most + 5000, "431")] {
        let head = format!(
            "{begin}{}{end}",
            "y".repeat(length - begin.len() - end.len())
        );
        for size in [1000, length] {
            let mut stream = server.connect();
            for part in head.as_bytes().chunks(size) {
                // The answer may come before all of it is written.
                if stream.write_all(part).is_err() {
                    break;
                }
            }
            let mut line = [0; 12];
            stream.read_exact(&mut line).unwrap();
            let line = String::from_utf8_lossy(&line);
            assert_eq!(line, format!("HTTP/1.1 {status}"), "{length} by {size}");
        }
    }
}

#[test]
fn a_connection_without_requests_is_closed_in_the_end() {
    let mut settings = settings(PATIENTLY);
    settings.idle_timeout = Duration::from_millis(20);
    let server = start(&settings, Duration::ZERO);
    let (mut silent, mut served) = (server.connect(), server.connect());
    // On a slow machine it may be closed before it has asked.
    let _ = ask(&mut served);
    assert_eq!(rest(&mut silent), [0; 0]);
    assert!(is_cut_off(&mut served));
}

/// A server that has room for so many connections, none of which is ever idle.
fn with_room_for(most: usize, pause: Duration) -> Server {
    let mut settings = settings(PATIENTLY);
    settings.max_connections = NonZeroUsize::new(most);
    settings.header_timeout = PATIENTLY;
    settings.park_after = PATIENTLY;
    start(&settings, pause)
}

#[test]
fn connections_above_the_most_wait_for_one_to_close() {
    let server = with_room_for(1, Duration::ZERO);
    let mut served = server.connect();
    assert!(ask(&mut served).unwrap());
    for _ in 0..20 {
        let mut waiting = server.connect();
        waiting
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .unwrap();
        assert!(ask(&mut served).unwrap());
        waiting.set_nonblocking(true).unwrap();
        let early = waiting.read(&mut [0; 1]).unwrap_err();
        assert_eq!(early.kind(), ErrorKind::WouldBlock);
        waiting.set_nonblocking(false).unwrap();
        drop(std::mem::replace(&mut served, waiting));
        read_answer(&mut served).unwrap();
    }
}

#[test]
fn connections_without_a_complete_head_make_room_and_busy_ones_do_not() {
    let server = with_room_for(2, Duration::from_millis(300));
    let mut busy = server.connect();
    busy.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    // Each of them used to keep its place until a time-out, and new clients out.
    let mut useless = Vec::new();
    for begin in [
        "",
        "G",
        "GET / HTTP/1.1\r\nhost: ",
        "PRI * HTTP/2.0\r\n\r\nSM",
    ] {
        let mut client = server.connect();
        client.write_all(begin.as_bytes()).unwrap();
        useless.push(client);
    }
    // As long as one of these waits for a place, a client that takes 50 ms to ask has to make room.
    server.has_accepted(5);
    assert!(ask(&mut server.connect()).unwrap());
    assert!(read_answer(&mut busy).unwrap());
}

/// A server that has room for one connection, and holds it idle that has no request.
fn with_room_for_one() -> Server {
    let mut settings = settings(PATIENTLY);
    settings.max_connections = NonZeroUsize::new(1);
    settings.header_timeout = PATIENTLY;
    settings.park_after = Duration::from_millis(1);
    start(&settings, Duration::ZERO)
}

#[test]
fn an_idle_connection_makes_room_for_a_new_one_and_is_not_waited_for() {
    let server = with_room_for_one();
    let mut silent = server.connect();
    // It has its place before the other comes, which would otherwise have to ask within 50 ms.
    server.has_accepted(1);
    let mut served = server.connect();
    assert!(ask(&mut served).unwrap());
    let mut next = server.connect();
    assert!(ask(&mut next).unwrap());
    // Their clients did not even close.
    for mut idle in [silent.try_clone().unwrap(), served] {
        assert_eq!(rest(&mut idle), [0; 0]);
    }
    assert!(is_cut_off(&mut silent));
    assert_eq!(server.metrics.server().evicted.get(), 2);
}

#[test]
fn a_connection_that_has_served_and_begins_another_head_makes_room() {
    let server = with_room_for_one();
    let mut begun_again = server.connect();
    assert!(ask(&mut begun_again).unwrap());
    begun_again.write_all(b"G").unwrap();
    assert!(ask(&mut server.connect()).unwrap());
    assert!(is_cut_off(&mut begun_again));
}

#[test]
fn an_idle_connection_over_http2_makes_room_as_well() {
    let server = with_room_for_one();
    let mut idle = server.connect();
    let settings_frame = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    idle.write_all(&settings_frame).unwrap();
    // It has its place before the other comes.
    idle.read_exact(&mut [0; 9]).unwrap();
    assert!(ask(&mut server.connect()).unwrap());
}
