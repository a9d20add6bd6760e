//! Plain requests beside requests that hyper serves: a client sees no difference.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::ext::ReasonPhrase;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::yield_now;
use tokio::time::timeout;
use weir_telemetry::{Metrics, StripedGauge};

use super::super::client_io::ClientIo;
use super::super::connection::{PollConnection, ServerConnection};
use super::super::connection_state::ConnectionState;
use super::super::drain::Draining;
use super::super::driver::Driver;
use super::super::request_body::RequestBody;
use super::super::serve::Http;
use super::super::service::{TrackRequests, service_fn};
use super::super::settings::HttpSettings;

type Pieces = StreamBody<stream::Iter<std::vec::IntoIter<io::Result<Frame<Bytes>>>>>;

/// A body of these pieces, whose length is not known beforehand.
fn pieces(pieces: &[&[u8]]) -> Pieces {
    let frames = pieces
        .iter()
        .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
    StreamBody::new(stream::iter(frames.collect::<Vec<_>>()))
}

fn with_trailers() -> Pieces {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("5"));
    let frames = vec![
        Ok(Frame::data(Bytes::from_static(b"hello"))),
        Ok(Frame::trailers(trailers)),
    ];
    StreamBody::new(stream::iter(frames))
}

fn built(head: response::Builder, body: Pieces) -> Response<Pieces> {
    head.body(body).unwrap()
}

/// What the service answers to a path.
fn answer(path: &str) -> Response<Pieces> {
    let response = Response::builder();
    let long = vec![b'x'; 1_000_000];
    match path {
        "/empty" => built(response, pieces(&[])),
        "/one" => built(response, pieces(&[b"hello"])),
        "/several" => built(response, pieces(&[b"a", b"", b"bc", &long[..5000], b"d"])),
        "/many" => built(response, pieces(&[&b"0123456789abcdef"[..]; 5000])),
        "/long" => built(response, pieces(&[&long])),
        "/length" => {
            let response = response.header("content-length", "5");
            built(response, pieces(&[b"he", b"llo"]))
        }
        "/long-length" => {
            let response = response.header("content-length", "1000000");
            built(response, pieces(&[&long[..999_999], b"y"]))
        }
        "/short" => {
            let response = response.header("content-length", "6");
            built(response, pieces(&[b"hello"]))
        }
        "/broken" => {
            let frames = vec![
                Ok(Frame::data(Bytes::from_static(b"hello"))),
                Err(io::Error::other("gone")),
            ];
            let response = response.header("content-length", "6");
            built(response, StreamBody::new(stream::iter(frames)))
        }
        "/none" => built(response.status(204), pieces(&[])),
        "/none-length" => {
            let response = response.status(204).header("content-length", "0");
            built(response, pieces(&[]))
        }
        "/unmodified" => {
            let response = response.status(304).header("content-length", "5");
            built(response.header("etag", "\"a\""), pieces(&[]))
        }
        "/headers" => {
            let response = response.status(404).header("set-cookie", "a=1");
            let response = response.header("x-other", "v").header("set-cookie", "b=2");
            built(response.header("date", "yesterday"), pieces(&[b"x"]))
        }
        "/obs-text" => {
            let value = HeaderValue::from_bytes(b"caf\xe9").unwrap();
            built(response.header("x-text", value), pieces(&[b"x"]))
        }
        "/unknown-status" => built(response.status(599), pieces(&[b"x"])),
        "/reason" => {
            let reason = ReasonPhrase::from_static(b"All is well");
            built(response.extension(reason), pieces(&[b"x"]))
        }
        "/close" => built(response.header("connection", "close"), pieces(&[b"x"])),
        "/trailers" => built(response.header("trailer", "x-sum"), with_trailers()),
        "/zero" => {
            let response = response.header("content-length", "0");
            built(response.header("x-other", "v"), pieces(&[]))
        }
        "/upgrade" => built(response.status(101), pieces(&[])),
        _ => built(response.status(StatusCode::NOT_FOUND), pieces(&[])),
    }
}

const PATHS: [&str; 17] = [
    "/zero",
    "/empty",
    "/one",
    "/several",
    "/many",
    "/long",
    "/length",
    "/long-length",
    "/none",
    "/none-length",
    "/unmodified",
    "/headers",
    "/obs-text",
    "/unknown-status",
    "/reason",
    "/close",
    "/trailers",
];

fn connect(buffer: usize) -> DuplexStream {
    let (stream, mut connection, driver) = connection(buffer);
    tokio::spawn(async move { driver.drive(&mut connection).await });
    stream
}

/// A client's end of a connection, and the server's, which is not driven yet.
fn connection(buffer: usize) -> (DuplexStream, impl PollConnection + Send, Driver) {
    let (stream, server) = duplex(buffer);
    let settings = HttpSettings::default();
    let draining = Draining::never();
    let bounds = settings.client_bounds();
    let state = ConnectionState::new(draining, StripedGauge::default(), bounds);
    let service = TrackRequests {
        inner: service_fn(async |request: Request<RequestBody>| {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            if path == "/never" {
                pending::<()>().await;
            }
            Ok::<_, Infallible>(match body.is_empty() {
                true => answer(&path),
                false => built(Response::builder(), pieces(&[&body])),
            })
        }),
        challenges: None,
        state: Arc::clone(&state),
    };
    let io = ClientIo::new(server, Arc::clone(&state), ());
    let protocols = Arc::new(settings.protocols());
    let connection = ServerConnection::new(io, service, protocols, None);
    let driver = Driver {
        state,
        context: Http::new(&settings, Metrics::new().server()).0,
    };
    (stream, connection, driver)
}

/// All that comes back, and whether the connection is closed then.
async fn exchange(buffer: usize, request: &[u8]) -> (Vec<u8>, bool) {
    let mut stream = connect(buffer);
    stream.write_all(request).await.unwrap();
    read(&mut stream).await
}

async fn read(stream: &mut DuplexStream) -> (Vec<u8>, bool) {
    let mut answer = Vec::new();
    loop {
        // Time is paused: it goes on when there is nothing left to do.
        match timeout(Duration::from_millis(10), stream.read_buf(&mut answer)).await {
            Ok(Ok(0) | Err(_)) => return (answer, true),
            Ok(Ok(_)) => {}
            Err(_) => return (answer, false),
        }
    }
}

/// The text without the time of day.
fn without_date(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer);
    let lines = text.split_inclusive('\n');
    lines
        .map(|line| match line.strip_prefix("date: ") {
            Some(value) if value.contains("GMT") => "date: now\r\n",
            _ => line,
        })
        .collect()
}

fn request(method: &str, path: &str, connection: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: {connection}\r\n\r\n")
}

#[tokio::test(start_paused = true)]
async fn a_client_cannot_tell_whether_hyper_serves_it() {
    for path in PATHS {
        for method in ["GET", "HEAD", "POST"] {
            for connection in ["keep-alive", "close"] {
                // One that takes little at a time, and one that takes all.
                for buffer in [100, 1 << 21] {
                    let plain = request(method, path, connection);
                    // Another option of the connection is not plain.
                    let other = request(method, path, &format!("{connection}, x"));
                    let (by_us, us_closed) = exchange(buffer, plain.as_bytes()).await;
                    let (by_hyper, hyper_closed) = exchange(buffer, other.as_bytes()).await;
                    let (by_us, by_hyper) = (without_date(&by_us), without_date(&by_hyper));
                    assert!(
                        by_us == by_hyper,
                        "{plain}{by_us:.500}\nhyper: {by_hyper:.500}"
                    );
                    assert_eq!(us_closed, hyper_closed, "{plain}");
                    assert!(by_us.starts_with("HTTP/1.1 "), "{by_us:.500}");
                }
            }
        }
    }
}

/// RFC 9110 section 8.6.
#[tokio::test(start_paused = true)]
async fn a_status_without_content_tells_no_length() {
    for method in ["GET", "HEAD"] {
        for connection in ["keep-alive", "keep-alive, x"] {
            let request = request(method, "/none-length", connection);
            let (answer, _) = exchange(1 << 21, request.as_bytes()).await;
            let answer = without_date(&answer);
            assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
            assert!(!answer.contains("content-length"), "{request}{answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_of_a_pipeline_is_lost_whoever_serves_it() {
    let post = |length, body| {
        format!("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let chunked = "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n0\r\n\r\n";
    let plain = request("GET", "/length", "keep-alive");
    let requests = [
        plain.as_str(),
        &post(4, "echo"),
        "\r\n",
        &plain,
        chunked,
        &post(2, "hi"),
        &plain,
    ];
    let requests = requests.concat();
    for at in 0..=requests.len() {
        let mut stream = connect(1 << 16);
        let (first, second) = requests.split_at(at);
        stream.write_all(first.as_bytes()).await.unwrap();
        let (mut answers, closed) = read(&mut stream).await;
        assert!(!closed, "{at}");
        stream.write_all(second.as_bytes()).await.unwrap();
        answers.extend(read(&mut stream).await.0);
        let text = without_date(&answers);
        let mut rest = text.as_str();
        for body in ["hello", "echo", "hello", "abc", "hi", "hello"] {
            let start = rest
                .find(body)
                .unwrap_or_else(|| panic!("{at}: no {body} in {text}"));
            rest = &rest[start..];
        }
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 6, "{at}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_is_not_taken_for_a_whole_one() {
    let get = request("GET", "/short", "keep-alive");
    let (answer, closed) = exchange(1 << 16, get.as_bytes()).await;
    assert!(closed, "{}", String::from_utf8_lossy(&answer));
}

/// Where head and body have arrived at once, they must not be lost together.
#[tokio::test(start_paused = true)]
async fn what_has_arrived_of_a_body_that_breaks_off_is_not_kept_from_the_client() {
    for connection in ["keep-alive", "keep-alive, x"] {
        let get = request("GET", "/broken", connection);
        let (answer, closed) = exchange(1 << 16, get.as_bytes()).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(
            closed && text.starts_with("HTTP/1.1 200"),
            "{connection}: {text}"
        );
        assert!(text.ends_with("\r\n\r\nhello"), "{connection}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_refused_as_hyper_does() {
    let long = "x".repeat(300_000);
    let many = "a: b\r\n".repeat(200);
    for bad in [
        "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\nx".to_owned(),
        "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx".to_owned(),
        "GET / HTTP/1.1\r\nhost: a\r\n x: folded\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost : a\r\n\r\n".to_owned(),
        "GET /\x01 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "G@T / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET / HTTP/3.1\r\nhost: a\r\n\r\n".to_owned(),
        format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"),
    ] {
        let (answer, closed) = exchange(1 << 20, bad.as_bytes()).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(closed, "{bad:.100}: {text}");
        assert!(text.starts_with("HTTP/1.1 4"), "{bad:.100}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_carriage_return_before_a_request_is_refused_behind_every_request() {
    for connection in ["keep-alive", "keep-alive, x"] {
        for before in ["\r", "\r\r\n", "\r\n\r", "\n\r"] {
            let get = request("GET", "/length", connection);
            let (answer, closed) =
                exchange(1 << 16, [&*get, before, &*get].concat().as_bytes()).await;
            let text = String::from_utf8_lossy(&answer);
            assert!(closed, "{before:?}: {text}");
            assert_eq!(
                text.matches("HTTP/1.1 200").count(),
                1,
                "{before:?}: {text}"
            );
            assert_eq!(
                text.matches("HTTP/1.1 400").count(),
                1,
                "{before:?}: {text}"
            );
        }
        for before in ["\r\n", "\n", "\r\n\r\n\n"] {
            let get = request("GET", "/length", connection);
            let (answer, closed) =
                exchange(1 << 16, [&*get, before, &*get].concat().as_bytes()).await;
            let text = String::from_utf8_lossy(&answer);
            assert!(!closed, "{before:?}: {text}");
            assert_eq!(text.matches("hello").count(), 2, "{before:?}: {text}");
        }
    }
}

/// Polls once.
async fn poll_once(connection: &mut impl PollConnection) -> Poll<()> {
    poll_fn(|cx| Poll::Ready(connection.poll(cx))).await
}

/// What has been sent to the client.
async fn sent(stream: &mut DuplexStream) -> String {
    let mut sent = vec![0; 1 << 20];
    let some = stream.read(&mut sent).await.unwrap();
    String::from_utf8_lossy(&sent[..some]).into_owned()
}

#[tokio::test]
async fn a_client_that_pipelines_without_end_does_not_keep_others_from_their_turn() {
    let (mut stream, mut connection, _driver) = connection(1 << 20);
    // No read ends in the middle of one, or hyper would serve all others.
    let get = request("GET", "/length", "keep-alive\r\nx: yz");
    assert_eq!(get.len(), 64);
    stream.write_all(get.repeat(1000).as_bytes()).await.unwrap();
    let mut answers = 0;
    for _ in 0..200 {
        // The runtime lets a task do only so much at once, and this is one.
        yield_now().await;
        assert!(poll_once(&mut connection).await.is_pending());
        let some = sent(&mut stream).await.matches("hello").count();
        assert!((1..=16).contains(&some), "{some}");
        answers += some;
        if answers == 1000 {
            return;
        }
    }
    panic!("{answers} of 1000");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_an_empty_line_and_leaves_is_not_served_on() {
    let (mut stream, mut connection, _driver) = connection(1 << 16);
    let get = request("GET", "/never", "keep-alive");
    stream.write_all(get.as_bytes()).await.unwrap();
    assert!(poll_once(&mut connection).await.is_pending());
    stream.write_all(b"\r\n").await.unwrap();
    drop(stream);
    let ended = timeout(Duration::from_secs(1), poll_fn(|cx| connection.poll(cx)));
    ended.await.expect("the end of the connection");
}

#[tokio::test]
async fn a_tunnel_is_not_searched_for_requests() {
    let (mut stream, mut connection, driver) = connection(1 << 16);
    let upgrade = "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n\
                   upgrade: websocket\r\n\r\n";
    assert!(driver.state.is_http1());
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    let _ = poll_once(&mut connection).await;
    assert!(sent(&mut stream).await.starts_with("HTTP/1.1 101"));
    assert!(!driver.state.is_http1());
}
