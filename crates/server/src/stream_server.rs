//! For a protocol of another crate whose connections serve many requests at a time, each on a
//! stream of its own: HTTP/3.
//!
//! Its connections have the places, the records, the time-outs, the drain, the checks and the
//! service of all others. The other crate does handshakes, and reads and writes streams.

use std::error::Error;
use std::fmt::Display;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::OwnedSemaphorePermit;
use weir_http::request::HttpRequest;
use weir_telemetry::{Handshake, events};

use super::alt_svc::AltSvc;
use super::connection::PollConnection;
use super::connection_state::{ConnectionState, MAX_HEADS_IN_FLIGHT, ServedRequest};
use super::drain::Draining;
use super::driver::{ConnectionContext, Driver, End};
use super::open_connections::OpenConnections;
use super::request_body::{DrainOnDrop, RequestBody};
use super::serve::{Connection, Http};
use super::service::{ConnectionService, StreamHead, TrackRequests, Unanswered, head_bytes};

type BoxError = Box<dyn Error + Send + Sync>;

/// Serves connections of such a protocol on one listener and worker.
pub struct StreamServer<M> {
    context: Arc<ConnectionContext>,
    make: M,
    alt_svc: Option<AltSvc>,
    open: OpenConnections,
    draining: Draining,
}

/// The place of one connection below the limit of connections.
pub struct ClientPlace(Option<OwnedSemaphorePermit>);

/// Bounds on what clients do with streams.
#[derive(Clone, Copy, Debug)]
pub struct StreamBounds {
    /// How long a handshake may take, and a head.
    pub head_timeout: Duration,
    /// How long a client may accept nothing of a response.
    pub stall_timeout: Duration,
    /// How large a head may be that is served.
    pub max_head_bytes: u32,
    /// How many bytes of heads a connection may have in flight or incomplete.
    pub max_heads_bytes: u32,
    /// How many requests a connection may have in flight.
    pub max_streams: u32,
    /// How long a drain may take.
    pub grace: Duration,
}

impl StreamBounds {
    /// Whether a head may wait before it is counted among those in flight: if as many as there may
    /// be requests are within the bound of all.
    pub fn may_keep<B>(&self, request: &Request<B>) -> bool {
        head_bytes(request) <= self.max_heads_bytes / self.max_streams.max(1)
    }
}

/// Why a request gets no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is malformed.
    Malformed,
    /// It was not begun: the client may send it again.
    NotBegun,
    /// Its sender is to get none.
    Unanswered,
}

impl From<Unanswered> for Refusal {
    fn from(why: Unanswered) -> Self {
        let reason = match &why {
            Unanswered::Closed => None,
            Unanswered::Reset(error) => error.reason(),
        };
        match reason {
            Some(h2::Reason::PROTOCOL_ERROR) => Self::Malformed,
            Some(h2::Reason::REFUSED_STREAM) => Self::NotBegun,
            _ => Self::Unanswered,
        }
    }
}

impl Http {
    /// Serves connections with what `make` makes for each, whose responses say the listener's
    /// `alt_svc`. The drain must be waited for by [`StreamServer::finished`].
    pub fn stream_server<M>(
        &self,
        make: M,
        alt_svc: Option<AltSvc>,
        draining: Draining,
    ) -> StreamServer<M> {
        StreamServer {
            context: Arc::clone(&self.0),
            make,
            alt_svc,
            open: OpenConnections::new(&self.0),
            draining,
        }
    }
}

impl<M> StreamServer<M> {
    /// The bounds of its connections.
    pub fn bounds(&self) -> StreamBounds {
        let (bounds, timeouts) = (self.context.client_bounds, self.context.timeouts);
        StreamBounds {
            head_timeout: timeouts.head,
            stall_timeout: bounds.stall_timeout,
            max_head_bytes: bounds.max_head_bytes,
            max_heads_bytes: bounds.max_head_bytes.saturating_mul(MAX_HEADS_IN_FLIGHT),
            max_streams: self.context.max_streams,
            grace: self.context.drain.grace,
        }
    }

    /// Waits until the drain begins.
    pub async fn drain_begun(&self) {
        self.draining.begun().await;
    }

    /// Waits for the place of a new connection, for which an idle one may be closed.
    pub async fn place(&self) -> ClientPlace {
        ClientPlace(self.context.permit(&self.draining).await)
    }

    /// Counts a handshake that led to a connection.
    pub fn handshake_done(&self) {
        self.context.metrics.handshakes(Handshake::Full).inc();
    }

    /// Counts a handshake that failed. It is logged, for those who debug, if its peer is known to
    /// have its address.
    pub fn handshake_failed(&self, peer: Option<SocketAddr>, is_slow: bool, cause: &impl Display) {
        let outcome = match is_slow {
            true => Handshake::TooSlow,
            false => Handshake::Failed,
        };
        let metrics = &self.context.metrics;
        match peer {
            Some(peer) => events::handshake_failed(metrics, peer, outcome, cause),
            None => {
                metrics.handshakes(outcome).inc();
            }
        }
    }

    /// Waits until all connections are closed. Returns how many were aborted.
    pub async fn finished(&self) -> usize {
        self.open.finished().await
    }
}

impl<M, S> StreamServer<M>
where
    M: Fn(&Connection) -> S,
    S: ConnectionService + Sync,
{
    /// Serves the connection that `begin` makes in a task of its own, until it ends.
    pub fn serve<C>(
        &self,
        connection: &Connection,
        place: ClientPlace,
        begin: impl FnOnce(StreamService<S>) -> C,
    ) where
        C: PollConnection + Send + 'static,
    {
        let requests = self.context.metrics.in_flight.clone();
        let bounds = self.context.client_bounds;
        let (alt_svc, draining) = (self.alt_svc.clone(), self.draining.clone());
        let state = ConnectionState::telling(alt_svc, draining, requests, bounds);
        state.set_multiplexed();
        let service = TrackRequests {
            inner: (self.make)(connection),
            challenges: None,
            state: Arc::clone(&state),
        };
        let mut connection = begin(StreamService(Arc::new(service)));
        let driver = Driver {
            state,
            context: Arc::clone(&self.context),
        };
        let (open, aborted) = (self.open.begin(place.0), self.open.aborted());
        tokio::spawn(async move {
            if driver.drive(&mut connection).await == End::Aborted {
                aborted.fetch_add(1, Ordering::Relaxed);
            }
            drop(connection);
            drop(open);
        });
    }
}

/// The service of one connection, for each of its streams.
pub struct StreamService<S>(Arc<TrackRequests<S>>);

impl<S> Clone for StreamService<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Held while a stream is served, from its first byte to the last that its client has accepted.
pub struct BusyStream {
    _served: ServedRequest,
}

impl<S: ConnectionService> StreamService<S> {
    /// A stream has begun: the connection is busy as long as the guard is held.
    pub fn stream(&self) -> BusyStream {
        BusyStream {
            _served: self.0.state.request(),
        }
    }

    /// Responds to a request, which has no body if there is none here. A body that is dropped
    /// before its end is read and discarded for a moment.
    pub fn respond<B>(
        &self,
        request: Request<()>,
        body: Option<B>,
    ) -> impl Future<
        Output = Result<Response<impl Body<Data = Bytes, Error = BoxError> + use<S, B>>, Refusal>,
    > + Send
    + use<S, B>
    where
        B: Body<Data = Bytes, Error = BoxError> + Send + 'static,
    {
        let head = StreamHead::of(&request);
        let refusal = self.0.refusal(&request, head);
        let head = match refusal {
            Some(_) => head.refused(),
            None => head,
        };
        let stall_timeout = self.0.state.bounds.stall_timeout;
        let body = match body {
            Some(body) => RequestBody::new(DrainOnDrop::of_stream(body), stall_timeout),
            None => RequestBody::buffered(Bytes::new()),
        };
        let response = self
            .0
            .track(request.map(|()| body).into_boxed(), refusal, head);
        async { response.await.map_err(Refusal::from) }
    }
}
