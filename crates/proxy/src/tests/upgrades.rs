use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::support::*;
use crate::Server;
use crate::addresses::CachedAddresses;
use crate::stream::Stream;

const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\nsec-websocket-accept: y\r\n\r\n";

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nhost: app\r\nconnection: keep-alive, Upgrade\r\n\
                       upgrade: websocket\r\nsec-websocket-key: x\r\n\r\n";

#[tokio::test]
async fn a_websocket_passes_bytes_both_ways_until_one_side_closes() {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client.write(UPGRADE).await;
    let mut upstream = RawConnection::accept(&listener).await;
    let head = upstream.head().await;
    for line in [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-key: x",
    ] {
        assert!(has(&head, line), "{head}");
    }
    upstream
        .write(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             sec-websocket-accept: y\r\n\r\nhello",
        )
        .await;
    let head = client.head().await;
    assert!(
        head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"),
        "{head}"
    );
    for line in [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-accept: y",
    ] {
        assert!(has(&head, line), "{head}");
    }
    assert_eq!(client.read_to("hello").await, "hello");
    client.write("ping").await;
    assert_eq!(upstream.read_to("ping").await, "ping");
    upstream.write("pong").await;
    drop(upstream);
    assert_eq!(client.rest().await, "pong");
}

/// A client that vanished held its connections and its place among those in flight for ever.
#[tokio::test(start_paused = true)]
async fn a_websocket_ends_when_nothing_passes_for_the_body_timeout() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.timeouts.body = Duration::from_secs(100);
    let mut client = RawConnection::connect(gateway(settings).await).await;
    client.write(UPGRADE).await;
    let mut upstream = RawConnection::accept(&listener).await;
    upstream.head().await;
    upstream.write(AGREED).await;
    client.head().await;
    // Either direction keeps it open.
    for _ in 0..3 {
        sleep(Duration::from_secs(60)).await;
        client.write("ping").await;
        assert_eq!(upstream.read_to("ping").await, "ping");
        sleep(Duration::from_secs(60)).await;
        upstream.write("pong").await;
        assert_eq!(client.read_to("pong").await, "pong");
    }
    let quiet = Instant::now();
    assert_eq!(client.rest().await, "");
    assert_eq!(upstream.rest().await, "");
    assert!(quiet.elapsed() >= Duration::from_secs(100));
    assert!(quiet.elapsed() < Duration::from_secs(101));
}

#[tokio::test]
async fn a_connection_to_a_server_is_probed_while_it_is_quiet() {
    let (listener, server) = listen().await;
    let server = Server::from(server);
    let deadline = Instant::now() + Duration::from_secs(60);
    let addresses = CachedAddresses::default();
    let stream = Stream::connect(&server, &addresses, true, None, deadline);
    let (stream, _peer) = tokio::join!(stream, listener.accept());
    let Stream::Tcp(stream) = stream.unwrap() else {
        panic!("no TCP");
    };
    assert!(socket2::SockRef::from(&stream).keepalive().unwrap());
}

#[tokio::test]
async fn an_upstream_may_decline_to_upgrade() {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client.write(UPGRADE).await;
    let mut upstream = RawConnection::accept(&listener).await;
    upstream.head().await;
    upstream
        .write("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
        .await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
    assert_eq!(client.read_to("no").await, "no");
}

#[tokio::test]
async fn a_protocol_that_was_not_asked_for_is_not_let_through() {
    for answered in ["upgrade: h2c\r\n", ""] {
        let (gateway, listener) = gateway_and_upstream().await;
        let mut client = RawConnection::connect(gateway).await;
        client.write(UPGRADE).await;
        let mut upstream = RawConnection::accept(&listener).await;
        upstream.head().await;
        let head = format!("HTTP/1.1 101 X\r\nconnection: upgrade\r\n{answered}\r\nbytes");
        upstream.write(&head).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{head}");
    }
}

#[tokio::test]
async fn no_other_protocol_is_asked_for() {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client
        .write(
            "GET / HTTP/1.1\r\nhost: app\r\nconnection: upgrade, http2-settings\r\n\
             upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
        )
        .await;
    let head = RawConnection::accept(&listener).await.head().await;
    assert_eq!(head, "GET / HTTP/1.1\r\nhost: app\r\nvia: 1.1 weir\r\n\r\n");
}

#[tokio::test]
async fn a_websocket_is_asked_for_by_a_get_of_http_1_1_that_says_so_twice_or_not_at_all() {
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    for (line, fields) in [
        ("POST / HTTP/1.1", upgrade),
        ("GET / HTTP/1.0", upgrade),
        ("GET / HTTP/1.1", "upgrade: websocket\r\n"),
        ("GET / HTTP/1.1", "connection: upgrade\r\n"),
    ] {
        let (gateway, listener) = gateway_and_upstream().await;
        let mut client = RawConnection::connect(gateway).await;
        let request = format!("{line}\r\nhost: app\r\n{fields}\r\n");
        client.write(&request).await;
        let head = RawConnection::accept(&listener).await.head().await;
        assert!(!head.contains("upgrade"), "{request}{head}");
    }
}
