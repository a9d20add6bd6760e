//! One connection of a client: accepts its requests, each of which is served in a task of its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use h3::error::Code;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use weir_server::{ConnectionService, PollConnection, StreamBounds, StreamService};

use crate::early_data::HandshakeEnd;
use crate::exchange::{Exchange, Outcome};
use crate::frames::FrameBudget;
use crate::quic::{self, Shared, number};

/// How many times larger a head may be than one that is served, to get a response: as over HTTP/2.
const HEAD_FACTOR: u32 = 4;

/// How many more requests a client may waste than it has responses, as a multiple of those that it
/// may have in flight. Browsers cancel what a page needs no more; the kind of a rapid reset does
/// nothing else, or has the gateway reset what is malformed.
const WASTED_FACTOR: u32 = 4;

/// A connection, and how its driver has it closed.
pub(crate) struct ClientConnection {
    serving: Pin<Box<dyn Future<Output = ()> + Send>>,
    closing: Arc<Closing>,
    connection: quinn::Connection,
}

#[derive(Default)]
struct Closing {
    is_asked: AtomicBool,
    asked: Notify,
}

impl ClientConnection {
    pub(crate) fn new<S>(
        connection: quinn::Connection,
        service: StreamService<S>,
        bounds: StreamBounds,
        handshake: HandshakeEnd,
    ) -> Self
    where
        S: ConnectionService + Sync,
    {
        let closing = Arc::<Closing>::default();
        let largest = bounds.max_head_bytes.saturating_mul(HEAD_FACTOR);
        let budget = FrameBudget::new(largest, bounds.max_heads_bytes);
        let shared = Shared::new(connection.clone(), bounds.stall_timeout, budget, handshake);
        let serving = serve(shared, largest, service, bounds, Arc::clone(&closing));
        Self {
            serving: Box::pin(serving),
            closing,
            connection,
        }
    }
}

impl PollConnection for ClientConnection {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.serving.as_mut().poll(cx)
    }

    fn close(&mut self) {
        if !self.closing.is_asked.swap(true, Relaxed) {
            self.closing.asked.notify_one();
        }
    }
}

impl Drop for ClientConnection {
    /// Ends what its streams still do, if anything.
    fn drop(&mut self) {
        close(&self.connection, Code::H3_NO_ERROR);
    }
}

pub(crate) fn close(connection: &quinn::Connection, code: Code) {
    connection.close(number(code.value()), b"");
}

/// Serves until either side closes, or until it was asked to close and all that was begun is done.
async fn serve<S>(
    shared: Shared,
    largest: u32,
    service: StreamService<S>,
    bounds: StreamBounds,
    closing: Arc<Closing>,
) where
    S: ConnectionService + Sync,
{
    let quic = quic::Connection::new(shared.clone());
    let mut builder = h3::server::builder();
    builder
        .max_field_section_size(u64::from(largest))
        .send_grease(false);
    // An error closes the connection.
    let Ok(mut h3) = builder.build::<_, Bytes>(quic).await else {
        return;
    };
    let wasted = Wasted::new(shared.connection.clone(), bounds.max_streams);
    let streams = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = closing.asked.notified() => break,
            accepted = h3.accept() => accepted,
        };
        let (Ok(Some(request)), Some(beside)) = (accepted, shared.take_beside()) else {
            return;
        };
        let exchange = Exchange {
            busy: service.stream(),
            service: service.clone(),
            bounds,
            beside,
        };
        let wasted = wasted.clone();
        streams.spawn(async move {
            let outcome = exchange.serve(request).await;
            wasted.count(outcome);
        });
    }
    shared.close();
    // The id of the first request that is not served, which h3 counts from the last one that was.
    let _ = h3.shutdown(1).await;
    streams.close();
    tokio::select! {
        () = streams.wait() => {}
        // Reads what the client still says, and rejects further requests.
        _ = h3.accept() => {}
    }
}

/// Requests that a client wasted, less those that it let end.
#[derive(Clone)]
struct Wasted {
    connection: quinn::Connection,
    count: Arc<AtomicU32>,
    most: u32,
}

impl Wasted {
    fn new(connection: quinn::Connection, max_streams: u32) -> Self {
        Self {
            connection,
            count: Arc::default(),
            most: max_streams.saturating_mul(WASTED_FACTOR),
        }
    }

    fn count(&self, outcome: Outcome) {
        let before = self.count.load(Relaxed);
        match outcome {
            Outcome::Ended => self.count.store(before.saturating_sub(1), Relaxed),
            Outcome::Wasted if before < self.most => self.count.store(before + 1, Relaxed),
            Outcome::Wasted => close(&self.connection, Code::H3_EXCESSIVE_LOAD),
        }
    }
}
