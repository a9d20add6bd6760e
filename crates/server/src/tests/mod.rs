//! The server over loopback, with clients that speak bytes.

mod bounds;
pub(crate) mod certificates;
mod client_io;
mod drain;
mod http1;
mod http2_heads;
mod no_answer;
mod parking;
mod proxy_protocol;
mod tls;
mod unread_uploads;

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use weir_http::problem::NoResponse;
use weir_telemetry::Metrics;
use weir_testing::eventually;

use super::*;

/// Longer than anything here takes on the slowest machine.
const PATIENTLY: Duration = Duration::from_secs(60);

struct Server {
    address: SocketAddr,
    drain: Drain,
    /// How it ended.
    workers: mpsc::Receiver<Result<(), WorkerFailed>>,
    aborted: UnboundedReceiver<usize>,
    metrics: Arc<Metrics>,
}

fn settings(idle_grace: Duration) -> HttpSettings {
    HttpSettings {
        drain: DrainSettings {
            grace: PATIENTLY,
            idle_grace,
        },
        ..HttpSettings::default()
    }
}

/// Two workers that answer every request after `pause`.
fn start(settings: &HttpSettings, pause: Duration) -> Server {
    start_with(settings, pause, None)
}

/// The same over TLS.
fn start_with(settings: &HttpSettings, pause: Duration, tls: Option<Tls>) -> Server {
    let transport = Transport {
        tls,
        ..Transport::default()
    };
    start_over(settings, pause, transport)
}

/// The same after what comes before HTTP.
fn start_over(settings: &HttpSettings, pause: Duration, transport: Transport) -> Server {
    let two = NonZeroUsize::new(2).unwrap();
    let listeners = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], two).unwrap();
    let address = listeners.addresses()[0];
    let (drain, draining) = Drain::new();
    let metrics = Metrics::new();
    let http = Http::new(settings, metrics.server());
    let (sender, aborted) = unbounded_channel();
    let mut workers = Workers::spawn(listeners.into_workers(), move |_, mut own| {
        let (http, draining, sender) = (http.clone(), draining.clone(), sender.clone());
        let transport = transport.clone();
        async move {
            let make = move |_: &Connection| service_fn(move |request| answer(request, pause));
            let listener = own.remove(0).1;
            let served = http.serve(listener, &transport, make, draining).await;
            sender.send(served?).unwrap();
            Ok(())
        }
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (end, ended) = mpsc::channel();
    thread::spawn(move || end.send(runtime.block_on(workers.finished())));
    Server {
        address,
        drain,
        workers: ended,
        aborted,
        metrics,
    }
}

async fn answer(
    request: Request<RequestBody>,
    pause: Duration,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri() == "/none" {
        let mut response = Response::new(Full::from("never seen"));
        response.extensions_mut().insert(NoResponse);
        return Ok(response);
    }
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    Ok(Response::new(Full::from("hello")))
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENTLY)).unwrap();
        stream.set_write_timeout(Some(PATIENTLY)).unwrap();
        stream
    }

    /// Waits until so many connections in all have had a place.
    fn has_accepted(&self, connections: u64) {
        eventually("places for connections", || {
            (self.metrics.server().accepted.get() >= connections).then_some(())
        });
    }

    /// Waits for the end and returns how many connections were cut off.
    fn ended(mut self) -> usize {
        // Those who are cut off at the end of the grace period have ended by then.
        let ended = self.workers.recv_timeout(2 * PATIENTLY);
        ended.expect("an end in time").unwrap();
        let mut aborted = 0;
        while let Some(one) = self.aborted.blocking_recv() {
            aborted += one;
        }
        aborted
    }
}

/// Sends a request, and reads its answer to the end. Returns whether the connection stays open.
fn ask(stream: &mut (impl Read + Write)) -> std::io::Result<bool> {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    read_answer(stream)
}

/// Sends twenty requests at once, and reads all their answers.
fn ask_at_once(stream: &mut (impl Read + Write)) {
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    stream.write_all(&request.repeat(20)).unwrap();
    for _ in 0..20 {
        assert!(read_answer(stream).unwrap());
    }
}

fn read_answer(stream: &mut impl Read) -> std::io::Result<bool> {
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\nhello") {
        stream.read_exact(&mut byte)?;
        answer.extend_from_slice(&byte);
    }
    let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    Ok(!answer.contains("connection: close"))
}

/// What the server still sends before it closes the connection.
fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    rest
}

/// Whether the server ends the connection without another byte, be it by a reset.
fn is_cut_off(stream: &mut impl Read) -> bool {
    let end = stream.read_exact(&mut [0]).map_err(|error| error.kind());
    matches!(
        end,
        Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
    )
}
