//! How often the gateway allocates for a request that it limits and forwards, once it is warm, and
//! what it keeps for a connection without one.
//!
//! The gateway is the real one, over TCP, on a thread of its own; client and upstream are plain
//! sockets with fixed buffers, so that all that is counted is the gateway's. The count is the same
//! on every machine, which a time never is.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use weir::internals::{ActiveUpstreams, Layers, SharedState};
use weir::rules::HashKey;
use weir::telemetry::Metrics;

#[path = "../benches/support/gateway.rs"]
mod gateway;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// What one request may cost, without any room.
/// Lower it when it gets better; raise it only for a reason that is worth telling in the commit.
const MOST_ALLOCATIONS: u64 = 10;
const MOST_BYTES: u64 = 2_108;

/// What one that its limit denies may cost.
const MOST_DENIED_ALLOCATIONS: u64 = 6;

/// What a connection may keep when it rests, in bytes of the heap; 1,140 when this was written.
const MOST_KEPT: usize = 1_160;

const REQUESTS: u64 = 200;
const CONNECTIONS: usize = 200;

/// There is one heap, and so one test at a time.
static TURN: Mutex<()> = Mutex::new(());

const REQUEST: &[u8] =
    b"GET /hello?x=1 HTTP/1.1\r\nhost: app.example.com\r\nuser-agent: bench/1.0\r\n\
    accept: */*\r\naccept-encoding: gzip, deflate\r\n\r\n";

fn layers() -> Layers {
    layers_with("burst: 1000000, count: 1000000, period: 1h")
}

fn denying() -> Layers {
    layers_with("burst: 1, count: 1, period: 24h")
}

fn layers_with(quota: &str) -> Layers {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("limits")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "gateway.yaml",
        "upstreams: {app: {servers: ['http://127.0.0.1:1']}}\n\
         routes: [{match: {path: '/*'}, upstream: app, limits: [RequestsPerAddress]}]",
    );
    write(
        "limits/defaults.yaml",
        &format!("RequestsPerAddress: {{per: address, {quota}}}"),
    );
    let path = folder.path().join("gateway.yaml");
    let settings = weir::internals::load(&path, &HashKey::random()).unwrap();
    let metrics = Metrics::new();
    Layers::new(
        &settings,
        &ActiveUpstreams::default(),
        &SharedState::new(&settings.process, &metrics, None),
    )
}

/// Sends one request and reads its response, which ends with `hello`.
fn exchange(stream: &mut TcpStream) {
    exchange_until(stream, "200 OK", b"hello");
}

fn exchange_until(stream: &mut TcpStream, status: &str, end: &[u8]) {
    stream.write_all(REQUEST).unwrap();
    let mut buffer = [0; 4096];
    let mut read = 0;
    while !buffer[..read].ends_with(end) {
        let more = stream.read(&mut buffer[read..]).unwrap();
        assert!(
            more > 0,
            "the gateway hung up: {}",
            String::from_utf8_lossy(&buffer[..read])
        );
        read += more;
    }
    assert!(buffer.starts_with(format!("HTTP/1.1 {status}\r\n").as_bytes()));
}

/// The allocations of one of many requests, and their bytes. They are rounded, and the least of some
/// rounds: what happens but now and then, such as a clock's tick, or parking a connection whose client
/// was held up, is no request's.
fn counted(mut exchange: impl FnMut()) -> (u64, u64) {
    (0..REQUESTS).for_each(|_| exchange());
    let mut round = || {
        let before = dhat::HeapStats::get();
        (0..REQUESTS).for_each(|_| exchange());
        let after = dhat::HeapStats::get();
        let each = |total: u64| (total + REQUESTS / 2) / REQUESTS;
        let allocations = each(after.total_blocks - before.total_blocks);
        (allocations, each(after.total_bytes - before.total_bytes))
    };
    let (allocations, bytes) = (0..5).map(|_| round()).min().unwrap();
    assert!(allocations > 0, "nothing was counted");
    (allocations, bytes)
}

#[test]
fn a_limited_request_is_forwarded_with_few_allocations() {
    let _turn = TURN.lock();
    let _profiler = dhat::Profiler::builder().testing().build();
    let mut client = TcpStream::connect(gateway::start(layers, Duration::ZERO)).unwrap();
    let (allocations, bytes) = counted(|| exchange(&mut client));
    assert!(
        allocations <= MOST_ALLOCATIONS,
        "{allocations} allocations a request"
    );
    assert!(bytes <= MOST_BYTES, "{bytes} bytes a request");
}

#[test]
fn a_flood_of_denied_requests_makes_few_allocations() {
    let _turn = TURN.lock();
    let _profiler = dhat::Profiler::builder().testing().build();
    let mut client = TcpStream::connect(gateway::start(denying, Duration::ZERO)).unwrap();
    exchange(&mut client);
    let (allocations, _) = counted(|| {
        exchange_until(
            &mut client,
            "429 Too Many Requests",
            b"\"RequestsPerAddress\"]}",
        );
    });
    assert!(
        allocations <= MOST_DENIED_ALLOCATIONS,
        "{allocations} allocations a request"
    );
}

/// Waits until the connections, which are all that was added to the heap, take no more than they
/// may.
fn at_rest(before: usize) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let kept = dhat::HeapStats::get().curr_bytes.saturating_sub(before) / CONNECTIONS;
        if kept <= MOST_KEPT {
            return;
        }
        assert!(Instant::now() < end, "{kept} bytes a connection");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_connection_without_a_request_takes_little_memory() {
    let _turn = TURN.lock();
    let _profiler = dhat::Profiler::builder().testing().build();
    let address = gateway::start(layers, Duration::ZERO);
    let connect = || TcpStream::connect(address).unwrap();
    let mut warm = connect();
    exchange(&mut warm);
    let before = dhat::HeapStats::get().curr_bytes;

    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
    // Connections are accepted in their turn.
    exchange(clients.last_mut().unwrap());
    at_rest(before);
    for _ in 0..2 {
        clients.iter_mut().for_each(exchange);
        at_rest(before);
    }
}
