//! Requests that are not answered.

use super::*;

fn start_at_once() -> Server {
    start(&settings(Duration::from_millis(10)), Duration::ZERO)
}

#[test]
fn the_connection_of_a_request_without_an_answer_is_closed_and_nothing_is_sent() {
    let server = start_at_once();
    for body in ["", "content-length: 9\r\n"] {
        let mut stream = server.connect();
        let head = format!("POST /none HTTP/1.1\r\nhost: a\r\n{body}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut sent = Vec::new();
        // Whether it ends in order or by a reset, which unread bytes cause, is the kernel's to say.
        if let Err(error) = stream.read_to_end(&mut sent) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        assert_eq!(sent, b"", "{body}");
    }
    server.drain.start();
    assert_eq!(server.ended(), 0);
}

#[test]
fn an_answer_from_before_arrives() {
    let server = start_at_once();
    let mut stream = server.connect();
    assert!(ask(&mut stream).unwrap());
    stream
        .write_all(b"GET /none HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    assert_eq!(rest(&mut stream), [0; 0]);
    server.drain.start();
    assert_eq!(server.ended(), 0);
}
