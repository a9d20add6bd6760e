//! WebSockets over HTTP/2 (RFC 8441), before an app that speaks HTTP/1.1.

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Version};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::*;

fn before(app: &WebSocket) -> Setup {
    let servers = format!("{{app: {{servers: [\"http://{}\"]}}}}", app.address());
    Setup::with_upstreams(&servers)
}

/// A client that shows what becomes of each stream.
struct Client {
    sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Client {
    async fn connect(gateway: &Gateway) -> Self {
        let stream = TcpStream::connect(gateway.address()).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        let sender = sender.ready().await.unwrap();
        // With its first bytes the gateway says that it takes such requests.
        while !sender.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        Self { sender, driver }
    }

    /// Asks for a WebSocket. The status of the response, and both directions.
    async fn ask(&mut self, path: &str) -> (u16, SendStream<Bytes>, RecvStream) {
        let request = Request::builder()
            .method(Method::CONNECT)
            .version(Version::HTTP_2)
            .uri(format!("http://app.example.com{path}"))
            .extension(Protocol::from_static("websocket"))
            .header("sec-websocket-version", "13");
        let request = request.body(()).unwrap();
        let (response, sender) = self.sender.send_request(request, false).unwrap();
        let response = response.await.unwrap();
        let status = response.status().as_u16();
        (status, sender, response.into_body())
    }
}

async fn read(stream: &mut RecvStream, length: usize) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < length {
        read.extend(stream.data().await.expect("more").unwrap());
    }
    read
}

/// What comes until the end of the stream, which is one in order.
async fn rest(stream: &mut RecvStream) -> Vec<u8> {
    let mut rest = Vec::new();
    while let Some(bytes) = stream.data().await {
        rest.extend(bytes.unwrap());
    }
    rest
}

/// It was written when the session began, with no bytes.
#[test]
fn the_line_of_a_session_is_written_at_its_end_with_the_bytes_of_both_directions() {
    let app = WebSocket::start();
    let gateway = before(&app).start();
    http2::run(async {
        let mut client = Client::connect(&gateway).await;
        let (status, mut to, mut from) = client.ask("/chat").await;
        assert_eq!(status, 200);
        to.send_data(Bytes::from_static(b"\x82\x03abc"), false)
            .unwrap();
        assert_eq!(read(&mut from, 5).await, b"\x82\x03abc");
        assert!(gateway.access("/chat").is_empty(), "before its end");
        to.send_data(Bytes::new(), true).unwrap();
        assert_eq!(rest(&mut from).await, b"", "an end in order");
    });
    app.ended();
    let line = gateway.logged("/chat");
    assert_eq!((&line["bytes"], &line["received"]), (&5.into(), &5.into()));
    assert_eq!(
        (&line["status"], &line["version"]),
        (&200.into(), &"2".into())
    );
    assert_eq!(line.get("aborted"), None);
    assert_eq!(gateway.access("/chat").len(), 1);
    let counted = "weir_requests_total{route=\"all\",status=\"2xx\",decision=\"unlimited\"}";
    assert_eq!(gateway.metric(counted), Some(1.0), "{}", gateway.metrics());
}

/// Its client cannot verify the handshake, which Weir makes: it got 200.
#[test]
fn a_handshake_that_a_client_has_to_fail_is_a_bad_gateway() {
    for head in [
        "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: xyz\r\n\r\n",
        "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 X\r\nupgrade: websocket\r\n\r\n",
    ] {
        let app = WebSocket::answering(head);
        let gateway = before(&app).start();
        http2::run(async {
            let mut client = Client::connect(&gateway).await;
            let (status, _to, mut from) = client.ask("/chat").await;
            assert_eq!(status, 502, "{head}");
            let problem = from.data().await.expect("a problem").unwrap();
            assert!(problem.starts_with(b"{"), "{problem:?}");
        });
        let line = gateway.logged("/chat");
        assert_eq!(line["upstream_error"], "bad_response");
        gateway.logs("upstream request failed", 1);
    }
}

/// It was an end in order, as if the app had closed (RFC 8441, section 5).
#[test]
fn a_reset_by_the_app_is_a_reset_of_the_stream() {
    let app = WebSocket::resetting_after(b"\x82\x03abc");
    let gateway = before(&app).start();
    http2::run(async {
        let mut client = Client::connect(&gateway).await;
        let (status, mut to, mut from) = client.ask("/chat").await;
        assert_eq!(status, 200);
        assert_eq!(read(&mut from, 5).await, b"\x82\x03abc");
        to.send_data(Bytes::from_static(b"x"), false).unwrap();
        let error = from.data().await.expect("no end in order").unwrap_err();
        assert!(error.is_reset() && error.is_remote(), "{error}");
        assert_eq!(error.reason(), Some(Reason::CANCEL));
        // The connection goes on.
        let (status, ..) = client.ask("/chat").await;
        assert_eq!(status, 502, "the app is gone");
        client.driver.abort();
    });
    let lines = gateway.logged_times("/chat", 2);
    let session = lines.iter().find(|line| line["status"] == 200);
    let session = session.expect("a session");
    assert_eq!(
        (&session["bytes"], &session["aborted"]),
        (&5.into(), &true.into())
    );
}

/// Once both have said Close, the app may end its connection in any way.
#[test]
fn a_reset_after_the_close_frame_of_the_app_is_an_end_in_order() {
    let app = WebSocket::resetting_after(b"\x88\x02\x03\xe8");
    let gateway = before(&app).start();
    http2::run(async {
        let mut client = Client::connect(&gateway).await;
        let (_, mut to, mut from) = client.ask("/chat").await;
        assert_eq!(read(&mut from, 4).await, b"\x88\x02\x03\xe8");
        to.send_data(Bytes::from_static(b"x"), false).unwrap();
        assert_eq!(rest(&mut from).await, b"");
        // The gateway waits for this two seconds at most.
        let _ = to.send_data(Bytes::new(), true);
    });
    assert_eq!(gateway.logged("/chat").get("aborted"), None);
}

/// It held the process until the end of `grace`.
#[test]
fn a_client_that_says_nothing_holds_up_no_drain_for_long() {
    let app = WebSocket::start();
    let mut gateway = before(&app).key("grace: 1h").start();
    http2::run(async {
        let mut client = Client::connect(&gateway).await;
        let (_, _to, mut from) = client.ask("/chat").await;
        gateway.signal("TERM");
        assert_eq!(read(&mut from, 4).await, [0x88, 2, 0x03, 0xe9]);
        assert_eq!(rest(&mut from).await, b"", "an end in order");
        let _ = client.driver.await;
    });
    assert_eq!(gateway.ended().code(), Some(0));
    gateway.logs("drained", 1);
    assert_eq!(gateway.logged("/chat")["bytes"], 4);
}
