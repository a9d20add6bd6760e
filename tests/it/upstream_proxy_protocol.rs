//! Upstreams that are told by the PROXY protocol from whom requests are.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use ppp::v2;

use crate::support::*;

/// A server that reads a PROXY header and one request from each connection. Returns the header and
/// the head of each request, which come in any order.
fn server(connections: usize) -> (SocketAddr, mpsc::Receiver<(Vec<u8>, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        for _ in 0..connections {
            let (stream, _) = listener.accept().unwrap();
            let sender = sender.clone();
            thread::spawn(move || serve(stream, &sender));
        }
    });
    (address, received)
}

fn serve(mut stream: TcpStream, received: &mpsc::Sender<(Vec<u8>, String)>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") || head == v2::PROTOCOL_PREFIX[..4] {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let begin = head.windows(4).rposition(|bytes| bytes == b"GET ").unwrap();
    let request = head.split_off(begin);
    received
        .send((head, String::from_utf8(request).unwrap()))
        .unwrap();
    // It would serve more requests.
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .unwrap();
    let _ = stream.read(&mut byte);
}

fn gateway(server: SocketAddr, version: &str, more: &str) -> Gateway {
    let app = format!("{{servers: [\"http://{server}\"], proxy_protocol: {version}{more}}}");
    Setup::with_upstreams(&format!("{{app: {app}}}"))
        .key("client_address: {trusted_proxies: [127.0.0.2]}")
        .start()
}

#[test]
fn each_connection_begins_with_the_client_that_it_is_for() {
    let (server, received) = server(3);
    let gateway = gateway(server, "v1", "");
    let port = gateway.address().port();
    let mut client = gateway.client();
    let own = client.stream().local_addr().unwrap().port();
    let mut proxied = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), gateway.address());
    let of_red = get("/red").with("x-forwarded-for", "192.0.2.1");
    for (answer, header, path) in [
        (
            client.send(&get("/1")),
            format!("PROXY TCP4 127.0.0.1 127.0.0.1 {own} {port}\r\n"),
            "/1",
        ),
        // Not by the connection that is told to be another client's.
        (
            proxied.send(&of_red),
            format!("PROXY TCP4 192.0.2.1 127.0.0.1 0 {port}\r\n"),
            "/red",
        ),
        (
            client.send(&get("/2")),
            format!("PROXY TCP4 127.0.0.1 127.0.0.1 {own} {port}\r\n"),
            "/2",
        ),
    ] {
        assert_eq!(answer.status, 200);
        let (told, request) = received.recv_timeout(PATIENCE).unwrap();
        assert_eq!(String::from_utf8(told).unwrap(), header);
        assert!(request.starts_with(&format!("GET {path} ")), "{request}");
    }
}

#[test]
fn the_second_version_is_binary_and_a_health_check_is_the_gateways_own() {
    let (server, received) = server(1000);
    let gateway = gateway(
        server,
        "v2",
        ", health_check: {path: /health, interval: 20ms}",
    );
    let mut client = gateway.client();
    let source = client.stream().local_addr().unwrap();
    assert_eq!(client.send(&get("/")).status, 200);
    let (mut of_client, mut of_check) = (false, false);
    while !of_client || !of_check {
        let (told, request) = received.recv_timeout(PATIENCE).unwrap();
        let header = v2::Header::try_from(&*told).unwrap();
        match request.starts_with("GET /health ") {
            true => {
                assert_eq!(header.command, v2::Command::Local);
                of_check = true;
            }
            false => {
                assert_eq!(header.command, v2::Command::Proxy);
                let expected: v2::Addresses = (source, gateway.address()).into();
                assert_eq!(header.addresses, expected);
                of_client = true;
            }
        }
    }
}
