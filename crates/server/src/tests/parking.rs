//! Parked connections, in paused time: nothing that a client sends or is sent gets lost.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::join;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};
use tokio_rustls::{TlsConnector, client};
use weir_telemetry::{Metrics, StripedGauge};
use weir_testing::certificates::Certificate;

use super::super::client_io::ClientIo;
use super::super::connection::{PollConnection, Protocol, ServerConnection};
use super::super::connection_state::ConnectionState;
use super::super::drain::{Drain, DrainSettings};
use super::super::driver::{Driver, End};
use super::super::http2_frames::PREFACE;
use super::super::request_body::RequestBody;
use super::super::serve::Http;
use super::super::service::{TrackRequests, service_fn};
use super::super::settings::HttpSettings;
use super::super::tls::Tls;
use super::certificates::certificates;

/// No plain request.
const FOR_HYPER: &str = "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n";

const REQUEST: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const CLOSE: &str = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
/// An HTTP/2 client's first SETTINGS frame, without a setting.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const LARGE: usize = 1_000_000;
/// Long enough for a connection to be parked, but not for a timeout.
const WHILE: Duration = Duration::from_secs(5);

/// A client, and what can be seen of the server from inside.
struct Client<S = DuplexStream> {
    stream: S,
    served: JoinHandle<End>,
    seen: Arc<Seen>,
    drain: Drain,
}

#[derive(Default)]
struct Seen {
    is_parked: AtomicBool,
    parks: AtomicUsize,
    /// Lets go of the body that a handler holds.
    let_go: Notify,
}

/// Tells what happens to a connection.
struct Observed<C> {
    connection: C,
    seen: Arc<Seen>,
}

impl<C: PollConnection> PollConnection for Observed<C> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.connection.poll(cx);
        self.seen.is_parked.store(self.is_parked(), SeqCst);
        polled
    }

    fn is_parked(&self) -> bool {
        self.connection.is_parked()
    }

    fn park(&mut self) {
        self.connection.park();
        self.seen.parks.fetch_add(1, SeqCst);
        self.seen.is_parked.store(self.is_parked(), SeqCst);
    }

    fn close(&mut self) {
        self.connection.close();
    }
}

async fn answer(mut request: Request<RequestBody>, seen: Arc<Seen>) -> Response<Full<Bytes>> {
    match request.uri().path() {
        "/large" => Response::new(Full::from(vec![b'x'; LARGE])),
        "/echo" => {
            let body = request.into_body().collect().await.unwrap();
            Response::new(Full::from(body.to_bytes()))
        }
        "/refuse" => Response::new(Full::from("no")),
        "/hold" => {
            tokio::spawn(async move {
                seen.let_go.notified().await;
                drop(request);
            });
            Response::new(Full::from("hello"))
        }
        "/socket" => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let (mut read, mut write) = split(TokioIo::new(upgrade.await.unwrap()));
                tokio::io::copy(&mut read, &mut write).await.unwrap();
            });
            let switching = Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("connection", "upgrade")
                .header("upgrade", "websocket");
            switching.body(Full::default()).unwrap()
        }
        _ => Response::new(Full::from("hello")),
    }
}

fn connect() -> Client {
    connect_with(&HttpSettings::default())
}

fn connect_with(settings: &HttpSettings) -> Client {
    let (stream, server) = duplex(4096);
    connected(stream, server, settings)
}

/// The same over TLS.
async fn connect_by_tls() -> Client<client::TlsStream<DuplexStream>> {
    let pair = Certificate::of("a.example.com");
    let (stream, server) = duplex(4096);
    let acceptor = Tls::new(certificates(&[&pair])).acceptor();
    let connector = TlsConnector::from(pair.trusted(&[]));
    let name = "a.example.com".try_into().unwrap();
    let (stream, server) = join!(connector.connect(name, stream), acceptor.accept(server));
    connected(stream.unwrap(), server.unwrap(), &HttpSettings::default())
}

fn connected<S, IO>(stream: S, server: IO, settings: &HttpSettings) -> Client<S>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (drain, draining) = Drain::new();
    let seen = Arc::<Seen>::default();
    let bounds = settings.client_bounds();
    let state = ConnectionState::new(draining, StripedGauge::default(), bounds);
    let seen_inside = Arc::clone(&seen);
    let inner = service_fn(move |request| {
        let seen = Arc::clone(&seen_inside);
        async move { Ok::<_, Infallible>(answer(request, seen).await) }
    });
    let service = TrackRequests {
        inner,
        challenges: None,
        state: Arc::clone(&state),
    };
    let io = ClientIo::new(server, Arc::clone(&state), ());
    let protocols = Arc::new(settings.protocols());
    let mut connection = Observed {
        connection: ServerConnection::new(io, service, protocols, None),
        seen: Arc::clone(&seen),
    };
    let driver = Driver {
        state,
        context: Http::new(settings, Metrics::new().server()).0,
    };
    Client {
        stream,
        served: tokio::spawn(async move { driver.drive(&mut connection).await }),
        seen,
        drain,
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// Reads an answer, to the end of a body that ends like this.
    async fn read(&mut self, end: &str) -> String {
        let mut answer = Vec::new();
        // One by one, since the next answer may have come with this one.
        while !answer.ends_with(end.as_bytes()) {
            answer.push(self.stream.read_u8().await.unwrap());
        }
        String::from_utf8(answer).unwrap()
    }

    /// Sends a request, and reads its answer.
    async fn ask(&mut self) {
        self.send(REQUEST).await;
        let answer = self.read("\r\n\r\nhello").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }

    /// Waits until the connection must be parked.
    async fn pause(&self) {
        sleep(WHILE).await;
        assert!(self.is_parked());
    }

    fn is_parked(&self) -> bool {
        self.seen.is_parked.load(SeqCst)
    }

    /// Reads the body of `/large`.
    async fn read_large(&mut self) {
        let mut body = vec![0; LARGE];
        self.stream.read_exact(&mut body).await.unwrap();
        assert!(body.iter().all(|byte| *byte == b'x'));
    }

    fn parks(&self) -> usize {
        self.seen.parks.load(SeqCst)
    }

    /// Waits for the server to close the connection, and returns what it sent and how long it took.
    async fn closed(&mut self) -> (String, Duration) {
        let start = Instant::now();
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.unwrap();
        (String::from_utf8(rest).unwrap(), start.elapsed())
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_parked_between_requests_and_serves_the_next() {
    let mut client = connect();
    client.pause().await;
    for served in 0..3 {
        assert_eq!(client.parks(), served);
        client.ask().await;
        assert!(!client.is_parked(), "the next request may follow at once");
        client.pause().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_connection_is_not_parked() {
    let mut client = connect();
    for _ in 0..100 {
        client.ask().await;
        sleep(HttpSettings::default().park_after * 9 / 10).await;
    }
    assert_eq!(client.parks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_a_parked_connection_is_not_waited_for() {
    let mut client = connect();
    client.ask().await;
    client.pause().await;
    let start = Instant::now();
    drop(client.stream);
    assert_eq!(client.served.await.unwrap(), End::Closed);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn requests_are_answered_wherever_a_pause_falls() {
    let post = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nfirst";
    let chunked = "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                   6\r\nsecond\r\n0\r\n\r\n";
    let requests = [post, chunked, REQUEST].concat();
    for at in 0..=requests.len() {
        let mut client = connect();
        let (before, after) = requests.split_at(at);
        client.send(before).await;
        sleep(WHILE).await;
        client.send(after).await;
        for body in ["first", "second", "hello"] {
            let answer = client.read(&format!("\r\n\r\n{body}")).await;
            assert_eq!(
                answer.matches("HTTP/1.1 200 OK").count(),
                1,
                "{at}: {answer}"
            );
        }
        client.pause().await;
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_request_that_came_with_the_one_before_survives_parking() {
    let (half, other_half) = REQUEST.split_at(10);
    for (first, parks) in [(REQUEST, 0), (FOR_HYPER, 1)] {
        let mut client = connect();
        client.send([first, half].concat()).await;
        client.read("hello").await;
        sleep(WHILE).await;
        assert_eq!(client.parks(), parks, "hyper's buffer was looked into");
        assert!(!client.is_parked(), "and was not empty");
        client.send(other_half).await;
        client.read("hello").await;
        client.pause().await;
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_request_that_came_with_the_one_before_must_go_on() {
    let mut client = connect();
    client.send([REQUEST, "GET / "].concat()).await;
    client.read("hello").await;
    let (said, after) = client.closed().await;
    assert_eq!(said, "");
    let settings = HttpSettings::default();
    assert!(
        after <= settings.park_after + settings.header_timeout,
        "{after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_take_its_answer_loses_nothing_of_it() {
    let mut client = connect();
    client.send("GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await;
    sleep(WHILE).await;
    assert_eq!(client.parks(), 0);
    let answer = client.read("\r\n\r\n").await;
    assert!(answer.contains("content-length: 1000000\r\n"), "{answer}");
    client.read_large().await;
    client.pause().await;
    client.ask().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_a_body_that_is_still_read_is_not_parked() {
    let mut client = connect();
    let head = "POST /hold HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n";
    client.send(head).await;
    client.read("hello").await;
    sleep(WHILE).await;
    assert_eq!(client.parks(), 0);
    // What would come now is no request.
    client.seen.let_go.notify_one();
    assert_eq!(client.closed().await.0, "");
    assert_eq!(client.parks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_whose_request_was_refused_just_before_parking_is_not_the_next_request() {
    let mut client = connect();
    client.ask().await;
    // A task, so that it has its turn after the connection's, whose timer is the older one, and
    // before the connection looks at its socket once more.
    let closed = tokio::spawn(async move {
        sleep(HttpSettings::default().park_after).await;
        let head = "POST /refuse HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n";
        client.send(head).await;
        client.read("\r\n\r\nno").await;
        client.send(REQUEST).await;
        client.closed().await
    });
    assert_eq!(closed.await.unwrap().0, "");
}

#[tokio::test(start_paused = true)]
async fn empty_lines_after_a_request_are_not_the_beginning_of_the_next() {
    let mut client = connect();
    client.send([REQUEST, "\r\n"].concat()).await;
    client.read("hello").await;
    client.pause().await;
    client.ask().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_being_closed_is_not_parked() {
    let mut client = connect();
    client.send([CLOSE, REQUEST].concat()).await;
    let (said, _) = client.closed().await;
    assert_eq!(said.matches("200 OK").count(), 1, "{said}");
    // It lingers for two seconds, and what comes in that time is thrown away.
    client.send(REQUEST).await;
    assert_eq!(client.served.await.unwrap(), End::Closed);
    assert_eq!(client.seen.parks.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_parked_connection_is_closed_when_it_has_been_idle_for_too_long() {
    let (mut fresh, mut used) = (connect(), connect());
    used.ask().await;
    let idle = HttpSettings::default().idle_timeout;
    assert_eq!(fresh.closed().await, (String::new(), idle));
    assert_eq!(used.closed().await, (String::new(), Duration::ZERO));
    assert_eq!(used.parks(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_begins_after_parking_must_end_in_its_time() {
    let (mut fresh, mut used) = (connect(), connect());
    used.ask().await;
    used.pause().await;
    for client in [&mut fresh, &mut used] {
        client.send("GET / HT").await;
        let (_, after) = client.closed().await;
        assert_eq!(after, HttpSettings::default().header_timeout);
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_connection_is_closed_in_a_drain() {
    let (fresh, mut used) = (connect(), connect());
    used.ask().await;
    used.pause().await;
    for mut client in [fresh, used] {
        client.drain.start();
        let (said, after) = client.closed().await;
        assert_eq!((&*said, after), ("", DrainSettings::default().idle_grace));
        // As for others: it ends when the client closes too.
        drop(client.stream);
        assert_eq!(client.served.await.unwrap(), End::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_parked_connection_is_answered_in_a_drain() {
    let idle_grace = DrainSettings::default().idle_grace;
    // In the socket when the drain begins; while the connection is waited for; at the last moment.
    for late in [Duration::ZERO, idle_grace / 2, idle_grace] {
        let (fresh, mut used) = (connect(), connect());
        used.ask().await;
        used.pause().await;
        for mut client in [fresh, used] {
            client.drain.start();
            if !late.is_zero() {
                tokio::task::yield_now().await;
                advance(late).await;
            }
            client.send(REQUEST).await;
            let (answer, _) = client.closed().await;
            assert!(answer.contains("connection: close\r\n"), "{answer}");
            assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http2_is_known_by_its_preface_however_late_and_slowly_it_comes() {
    for piece in [1, 5, PREFACE.len(), PREFACE.len() + SETTINGS.len()] {
        let mut client = connect();
        sleep(Duration::from_secs(60)).await;
        for piece in [PREFACE, SETTINGS].concat().chunks(piece) {
            client.send(piece).await;
            sleep(Duration::from_millis(100)).await;
        }
        let mut frame = [0; 9];
        client.stream.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame[3], 4, "SETTINGS");
        sleep(WHILE).await;
        assert_eq!((client.parks(), client.is_parked()), (0, false));
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_preface_is_waited_for_as_long_as_half_a_head() {
    let mut slow = connect();
    slow.send(&PREFACE[..10]).await;
    let settings = HttpSettings::default();
    assert_eq!(
        slow.closed().await,
        (String::new(), settings.header_timeout)
    );

    let mut broken_off = connect();
    broken_off.send(&PREFACE[..10]).await;
    broken_off.stream.shutdown().await.unwrap();
    assert_eq!(broken_off.closed().await, (String::new(), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_spoken_http1_does_not_come_to_speak_http2() {
    let (mut awake, mut parked) = (connect(), connect());
    parked.ask().await;
    parked.pause().await;
    awake.ask().await;
    for client in [&mut awake, &mut parked] {
        client.send([PREFACE, SETTINGS].concat()).await;
        assert_eq!(client.closed().await, (String::new(), Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_can_be_upgraded_after_parking() {
    let mut client = connect();
    client.ask().await;
    client.pause().await;
    let upgrade =
        "GET /socket HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    // What comes with the request belongs to the tunnel already.
    client.send([upgrade, "early"].concat()).await;
    let answer = client.read("\r\n\r\nearly").await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    assert_eq!(client.served.await.unwrap(), End::Closed);
    sleep(Duration::from_secs(3600)).await;
    client.stream.write_all(b"late").await.unwrap();
    let mut echo = [0; 4];
    client.stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"late");
}

#[test]
fn a_protocol_is_known_as_soon_as_the_bytes_tell() {
    for at in 1..PREFACE.len() {
        assert_eq!(Protocol::detect(&PREFACE[..at]), None);
        let other = [&PREFACE[..at], b"x"].concat();
        assert_eq!(Protocol::detect(&other), Some(Protocol::Http1));
    }
    assert_eq!(Protocol::detect(PREFACE), Some(Protocol::Http2));
    let more = [PREFACE, SETTINGS].concat();
    assert_eq!(Protocol::detect(&more), Some(Protocol::Http2));
    assert_eq!(Protocol::detect(b"PRI / HTTP/1.1"), Some(Protocol::Http1));
}

/// What comes in one record of TLS has left the socket at once, however much of it hyper reads.
#[tokio::test(start_paused = true)]
async fn requests_in_one_record_of_tls_are_answered_before_and_after_parking() {
    let mut client = connect_by_tls().await;
    client.pause().await;
    for served in 0..3 {
        assert_eq!(client.parks(), served);
        // More than is read ahead, and than hyper reads at once.
        let large = format!(
            "GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n",
            "x".repeat(7000)
        );
        client.send([REQUEST, &large, REQUEST].concat()).await;
        for _ in 0..3 {
            let answer = client.read("\r\n\r\nhello").await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
        client.pause().await;
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_request_in_a_record_of_tls_survives_parking() {
    let mut client = connect_by_tls().await;
    for at in 0..REQUEST.len() {
        let (half, other_half) = REQUEST.split_at(at);
        client.send([REQUEST, half].concat()).await;
        client.read("hello").await;
        sleep(WHILE).await;
        client.send(other_half).await;
        client.read("hello").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_take_its_answer_by_tls_loses_nothing_of_it() {
    let mut client = connect_by_tls().await;
    client.send("GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await;
    sleep(WHILE).await;
    assert_eq!(client.parks(), 0);
    client.read("\r\n\r\n").await;
    client.read_large().await;
    client.pause().await;
    client.ask().await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_connection_by_tls_says_goodbye() {
    let mut client = connect_by_tls().await;
    client.ask().await;
    client.pause().await;
    // Without a close_notify, this would be an error.
    let (said, after) = client.closed().await;
    let idle = HttpSettings::default().idle_timeout;
    assert_eq!((&*said, after), ("", idle - WHILE));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_connection_is_closed_before_it_would_be_cut_off_however_short_the_grace_is() {
    let drain = DrainSettings {
        grace: Duration::from_secs(1),
        idle_grace: Duration::from_secs(10),
    };
    let mut client = connect_with(&HttpSettings {
        drain,
        ..HttpSettings::default()
    });
    client.ask().await;
    client.drain.start();
    let (said, after) = client.closed().await;
    assert_eq!((&*said, after), ("", drain.grace / 2));
    drop(client.stream);
    assert_eq!(client.served.await.unwrap(), End::Closed);
}
