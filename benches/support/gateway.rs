//! The gateway on a thread of its own, between plain sockets: all that is counted of that thread is
//! the gateway's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tower::Service as _;
use weir::internals::{
    Backend, BoxedRequest, Connection, Draining, Http, HttpRequest, HttpSettings, Layers, Proxy,
    RequestBody, Transport, Upstream, UpstreamRouter, UpstreamSettings, service_fn,
};
use weir::middleware::{ClientConnection, Peer, RequestContext};
use weir::store::{Memory, MemorySettings};
use weir::telemetry::Metrics;

const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nserver: app\r\ndate: Sat, 21 Nov 2026 00:00:00 GMT\r\n\
    content-type: text/plain\r\ncontent-length: 5\r\n\r\nhello";

/// Starts a gateway of these layers before an upstream that takes `latency` for each response, and
/// returns its address.
pub(crate) fn start(layers: fn() -> Layers, latency: Duration) -> SocketAddr {
    let app = TcpListener::bind("127.0.0.1:0").unwrap();
    let app_address = app.local_addr().unwrap();
    thread::spawn(move || upstream(&app, latency));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || gateway(layers, listener, app_address));
    address
}

/// Answers the requests of one connection, which end with their head.
pub(crate) fn upstream(listener: &TcpListener, latency: Duration) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).unwrap() > 0 {
        thread::sleep(latency);
        stream.write_all(RESPONSE).unwrap();
    }
}

/// Serves the gateway on `listener`, on the caller's thread.
fn gateway(layers: fn() -> Layers, listener: TcpListener, upstream: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let max_buckets = 1000.try_into().unwrap();
        let store = Arc::new(Memory::new(MemorySettings { max_buckets }));
        let leases = Arc::new(store.leases().clone());
        let servers = vec![upstream.into()];
        let proxy =
            Proxy::new(Upstream::new(UpstreamSettings::new("app", servers))).assume_checked();
        let services = UpstreamRouter::new(vec![Some(proxy); 8], []);
        let backend = Backend {
            leases,
            ..Backend::new(store)
        };
        let stack = layers().stack(backend, services);
        // All connections of a worker share its stack.
        let stack = Arc::new(Mutex::new(stack));
        let make = move |connection: &Connection| {
            let stack = Arc::clone(&stack);
            let peer = Peer {
                address: connection.peer.ip(),
                secure: false,
            };
            service_fn(move |mut request: BoxedRequest<RequestBody>| {
                let connection = ClientConnection::of(peer);
                let context =
                    RequestContext::of_connection(connection, request.body().takes_lines());
                request.extensions_mut().insert(context);
                stack.lock().unwrap().call(request)
            })
        };
        let settings = HttpSettings {
            park_after: Duration::from_millis(100),
            ..HttpSettings::default()
        };
        let http = Http::new(&settings, Metrics::new().server());
        let transport = Transport::default();
        let serving = http.serve(listener, &transport, make, Draining::never());
        serving.await.unwrap();
    });
}
