//! Heads of HTTP/2: how large they may be, alone and together.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::time::timeout;
use weir_telemetry::{Metrics, StripedGauge};

use super::super::client_io::ClientIo;
use super::super::connection::ServerConnection;
use super::super::connection_state::ConnectionState;
use super::super::drain::Drain;
use super::super::driver::Driver;
use super::super::http2_frames::PREFACE;
use super::super::request_body::RequestBody;
use super::super::serve::Http;
use super::super::service::{TrackRequests, service_fn};
use super::super::settings::HttpSettings;
use super::PATIENTLY;

/// What a head may have by default.
const MOST: usize = 64 * 1024;

/// What all heads of a connection may have together.
const MOST_TOGETHER: usize = 2 * 1024 * 1024;

/// The requests that the service has.
#[derive(Default)]
struct Held {
    requests: AtomicUsize,
    /// Bytes of values of their headers.
    bytes: AtomicUsize,
    let_go: Notify,
}

/// A request that is counted while it is served.
struct Counted(Arc<Held>, usize);

impl Counted {
    fn new(held: Arc<Held>, request: &Request<RequestBody>) -> Self {
        let bytes = request.headers().values().map(HeaderValue::len).sum();
        held.requests.fetch_add(1, SeqCst);
        held.bytes.fetch_add(bytes, SeqCst);
        Self(held, bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, SeqCst);
        self.0.bytes.fetch_sub(self.1, SeqCst);
    }
}

async fn answer(request: Request<RequestBody>, held: Arc<Held>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let counted = Counted::new(Arc::clone(&held), &request);
    match path.as_str() {
        "/wait" => held.let_go.notified().await,
        "/forever" => pending().await,
        _ => {}
    }
    drop(counted);
    Response::new(Full::default())
}

/// A connection to a server with the usual settings, and what that has.
fn serve() -> (DuplexStream, Arc<Held>) {
    let (near, far) = duplex(1 << 20);
    let settings = HttpSettings::default();
    let (drain, draining) = Drain::new();
    let held = Arc::<Held>::default();
    let bounds = settings.client_bounds();
    let state = ConnectionState::new(draining, StripedGauge::default(), bounds);
    let of_service = Arc::clone(&held);
    let inner = service_fn(move |request| {
        let held = Arc::clone(&of_service);
        async move { Ok::<_, Infallible>(answer(request, held).await) }
    });
    let service = TrackRequests {
        inner,
        challenges: None,
        state: Arc::clone(&state),
    };
    let io = ClientIo::new(far, Arc::clone(&state), ());
    let protocols = Arc::new(settings.protocols());
    let mut connection = ServerConnection::new(io, service, protocols, None);
    let driver = Driver {
        state,
        context: Http::new(&settings, Metrics::new().server()).0,
    };
    tokio::spawn(async move {
        let _drain = drain;
        driver.drive(&mut connection).await
    });
    (near, held)
}

/// A client of it.
async fn connect() -> (SendRequest<Bytes>, Arc<Held>) {
    let (near, held) = serve();
    let (sender, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    (sender.ready().await.unwrap(), held)
}

/// Sends a request with this header so many times, and perhaps a body that does not come.
async fn send(
    sender: &SendRequest<Bytes>,
    path: &str,
    value: &str,
    times: usize,
    has_body: bool,
) -> (ResponseFuture, SendStream<Bytes>) {
    let mut sender = sender.clone().ready().await.unwrap();
    let mut request = Request::new(());
    *request.uri_mut() = format!("http://a{path}").parse().unwrap();
    for _ in 0..times {
        request.headers_mut().append("x", value.parse().unwrap());
    }
    sender.send_request(request, !has_body).unwrap()
}

async fn status(response: ResponseFuture) -> u16 {
    let response = timeout(PATIENTLY, response).await.expect("in time");
    response.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_head_may_be_as_large_as_is_told_and_no_larger() {
    let (sender, _held) = connect().await;
    let pseudo = [":methodGET", ":schemehttp", ":authoritya", ":path/", "x"];
    let others: usize = pseudo.iter().map(|line| line.len() + 32).sum();
    for (length, expected) in [(MOST - others, 200), (MOST - others + 1, 431)] {
        let (response, _) = send(&sender, "/", &"y".repeat(length), 1, false).await;
        assert_eq!(status(response).await, expected, "{length}");
    }
}

/// From 112 KiB on it ended the connection, and took the responses to other requests with it.
#[tokio::test]
async fn a_head_that_is_far_too_large_is_refused_and_takes_no_other_response_with_it() {
    let (sender, held) = connect().await;
    let (waiting, _) = send(&sender, "/wait", "", 0, false).await;
    for length in [70_000, 120_000, 200_000, 250_000, 320_000] {
        // A byte that HPACK does not shorten.
        let value = "X".repeat(length);
        let (response, _) = send(&sender, "/", &value, 1, false).await;
        assert_eq!(status(response).await, 431, "{length}");
    }
    held.let_go.notify_one();
    assert_eq!(status(waiting).await, 200);
}

/// A few bytes for each stream, which refer to a field that was sent once, held as much as they
/// liked: 15 MiB by 14 kB.
#[tokio::test]
async fn all_heads_of_a_connection_together_have_a_bound_and_those_beyond_are_refused() {
    let (sender, held) = connect().await;
    let value = "z".repeat(2900);
    let mut streams = Vec::new();
    for _ in 0..190 {
        streams.push(send(&sender, "/forever", &value, 20, true).await);
    }
    // The service has the ones before it, when this one is answered.
    let (last, _) = send(&sender, "/", "", 0, false).await;
    assert_eq!(status(last).await, 200, "a small one has room");
    let bytes = held.bytes.load(SeqCst);
    assert!(bytes <= MOST_TOGETHER, "{bytes}");
    assert!(bytes > MOST_TOGETHER - 2 * MOST, "{bytes}");
    let served = held.requests.load(SeqCst);
    let mut held = Vec::new();
    for (number, (response, body)) in streams.into_iter().enumerate() {
        if number < served {
            held.push((response, body));
            continue;
        }
        let error = timeout(PATIENTLY, response).await.expect("in time");
        let error = error.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM), "{number}");
    }
}

#[tokio::test]
async fn a_request_that_is_over_makes_room_for_the_head_of_another() {
    let (sender, held) = connect().await;
    let value = "z".repeat(2900);
    // More than there is room for at a time.
    for _ in 0..100 {
        let (response, _) = send(&sender, "/", &value, 20, false).await;
        assert_eq!(status(response).await, 200);
    }
    assert_eq!(held.requests.load(SeqCst), 0);
}

/// A HEADERS frame of a GET for this path, with one more line in HPACK.
fn headers(stream: u8, path: &[u8], line: &[u8]) -> Vec<u8> {
    let length = |of: &[u8]| u8::try_from(of.len()).unwrap();
    let block = [
        &[0x82, 0x86, 0x04, length(path)],
        path,
        &[0x01, 1, b'a'],
        line,
    ]
    .concat();
    let head = [0, 0, length(&block), 1, 5, 0, 0, 0, stream];
    [&head, &*block].concat()
}

/// The type, stream and error code of the frame that ends a stream or the connection.
async fn next_error(stream: &mut DuplexStream) -> (u8, u32, u32) {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, _, of @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        let code = match kind {
            3 => &payload[..4],
            7 => &payload[4..8],
            _ => continue,
        };
        let code = u32::from_be_bytes(code.try_into().unwrap());
        return (kind, u32::from_be_bytes(of), code);
    }
}

/// How h2 0.4.20 treats what RFC 9113 calls errors of one stream. docs/CONFORMANCE.md and
/// docs/OPERATIONS.md tell it; if this fails with another h2, they have to be changed.
#[tokio::test]
async fn a_fault_that_h2_finds_while_it_decodes_ends_the_connection_and_later_ones_the_stream() {
    const RST_STREAM: u8 = 3;
    const GOAWAY: u8 = 7;
    let protocol_error = u32::from(Reason::PROTOCOL_ERROR);
    let cases: [(&[u8], _); 5] = [
        (b"\0\x01X\x01y", (GOAWAY, 0, protocol_error)),
        (b"\0\x01x\x04a\r\nb", (GOAWAY, 0, protocol_error)),
        (b"\0\x02:q\x01y", (GOAWAY, 0, protocol_error)),
        (b"\0\x02te\x04gzip", (RST_STREAM, 3, protocol_error)),
        (b"\0\x01x\x02 y", (RST_STREAM, 3, protocol_error)),
    ];
    for (line, expected) in cases {
        let (mut stream, _held) = serve();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let frames = [
            PREFACE,
            &settings,
            &headers(1, b"/wait", b""),
            &headers(3, b"/", line),
        ];
        stream.write_all(&frames.concat()).await.unwrap();
        let error = timeout(PATIENTLY, next_error(&mut stream)).await;
        assert_eq!(error.expect("in time"), expected, "{line:?}");
    }
}
