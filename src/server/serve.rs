//! Serves HTTP/1.1 and HTTP/2 on one listener, from the first connection to the end of the drain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::HandshakeKind;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::accept::Acceptor;
use super::client_io::ClientIo;
use super::connection::{Protocol, ServerConnection};
use super::connection_limit::ConnectionLimit;
use super::connection_state::ConnectionState;
use super::drain::Draining;
use super::driver::{Driver, End, Shared};
use super::service::{ConnectionService, TrackInFlight};
use super::settings::HttpSettings;
use super::tls::{HandshakeBounds, HandshakeError, PLAIN_HTTP_RESPONSE, Tls, handshake};
use crate::telemetry::{GaugeGuard, Handshake, HandshakeFailed, ServerMetrics};

/// What a service may need to know of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The address of the other end: a client, or a proxy in front of the gateway.
    pub peer: SocketAddr,
    /// The gateway's address.
    pub local: SocketAddr,
    /// Whether it is encrypted.
    pub secure: bool,
}

/// Serves HTTP; shared by all workers.
#[derive(Clone, Debug)]
pub struct Http(pub(super) Arc<Shared>);

impl Http {
    /// Prepares what all connections share.
    pub fn new(settings: &HttpSettings, metrics: ServerMetrics) -> Self {
        Self(Arc::new(Shared {
            protocols: Arc::new(settings.protocols()),
            timeouts: settings.timeouts(),
            stall_timeout: settings.stall_timeout,
            max_headers: settings.max_headers,
            drain: settings.drain,
            limit: ConnectionLimit::new(settings.max_connections),
            metrics,
        }))
    }

    /// Accepts connections and serves each with what `make` makes for it, until the drain begins
    /// and every connection is closed or the grace period is over. Returns how many connections
    /// were aborted.
    ///
    /// Must be called on the runtime of the listener's worker.
    ///
    /// # Errors
    /// When the runtime cannot take the listener over. Failures to accept are logged and waited
    /// out instead.
    pub async fn serve<M, S>(
        &self,
        listener: std::net::TcpListener,
        make: M,
        draining: Draining,
    ) -> io::Result<usize>
    where
        M: Fn(&Connection) -> S,
        S: ConnectionService,
    {
        let serving = self.serving(false, make, draining);
        let begin = |stream, accepted: Accepted<S>| accepted.spawn(stream, None);
        serving.run(listener, begin).await
    }

    /// Serves as [`serve`](Self::serve) does, over TLS.
    ///
    /// # Errors
    /// As there. A handshake that fails is counted, and logged for those who debug.
    pub async fn serve_tls<M, S>(
        &self,
        listener: std::net::TcpListener,
        tls: &Tls,
        make: M,
        draining: Draining,
    ) -> io::Result<usize>
    where
        M: Fn(&Connection) -> S,
        S: ConnectionService,
    {
        let serving = self.serving(true, make, draining);
        let begin = |stream, accepted: Accepted<S>| {
            accepted.spawn_with_handshake(stream, tls.acceptor());
        };
        serving.run(listener, begin).await
    }

    fn serving<M>(&self, secure: bool, make: M, draining: Draining) -> Serving<'_, M> {
        Serving {
            shared: &self.0,
            secure,
            make,
            open: TaskTracker::new(),
            aborted: Arc::default(),
            draining,
        }
    }
}

/// The connections of one listener.
struct Serving<'a, M> {
    shared: &'a Arc<Shared>,
    secure: bool,
    make: M,
    /// Every open connection holds a token.
    open: TaskTracker,
    aborted: Arc<AtomicUsize>,
    draining: Draining,
}

impl<M> Serving<'_, M> {
    /// Accepts connections and starts each with `begin`, until the drain is over.
    async fn run<S>(
        self,
        listener: std::net::TcpListener,
        begin: impl Fn(TcpStream, Accepted<S>),
    ) -> io::Result<usize>
    where
        M: Fn(&Connection) -> S,
    {
        let mut acceptor = Acceptor::new(listener, self.shared.metrics.clone())?;
        let start = |stream: TcpStream, peer, permit| {
            if let Some(accepted) = self.accepted(&stream, peer, permit) {
                begin(stream, accepted);
            }
        };
        let mut draining = self.draining.clone();
        loop {
            tokio::select! {
                biased;
                () = draining.begun() => break,
                (stream, peer) = acceptor.next() => {
                    let permit = self.shared.permit(&mut draining).await;
                    start(stream, peer, permit);
                }
            }
        }
        if draining.keeps_open(acceptor.address()) {
            drop(acceptor);
            return Ok(self.finished().await);
        }
        // These connections exist already; waiting for permits would not reduce them.
        acceptor
            .close(|stream, peer| start(stream, peer, None))
            .await;
        Ok(self.finished().await)
    }

    fn accepted<S>(
        &self,
        stream: &TcpStream,
        peer: SocketAddr,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Option<Accepted<S>>
    where
        M: Fn(&Connection) -> S,
    {
        // Responses are written whole, so Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        let connection = Connection {
            peer,
            // A socket without a local address is already broken.
            local: stream.local_addr().ok()?,
            secure: self.secure,
        };
        Some(Accepted {
            peer,
            service: (self.make)(&connection),
            open: self.open(permit),
            shared: Arc::clone(self.shared),
            draining: self.draining.clone(),
            aborted: Arc::clone(&self.aborted),
        })
    }

    fn open(&self, permit: Option<OwnedSemaphorePermit>) -> Open {
        self.shared.metrics.accepted.inc();
        Open {
            _gauge: GaugeGuard::new(&self.shared.metrics.open),
            _permit: permit,
            _token: self.open.token(),
        }
    }

    /// Waits until all connections are closed, including upgraded ones. Returns how many were
    /// aborted.
    async fn finished(self) -> usize {
        // Connections end with the grace period by themselves, except upgraded ones. The extra
        // moment lets them finish first.
        let moment = Duration::from_millis(100);
        self.open.close();
        let _ = timeout(self.shared.drain.grace + moment, self.open.wait()).await;
        self.aborted.load(Ordering::Relaxed) + self.open.len()
    }
}

/// Held while a connection is open.
struct Open {
    _gauge: GaugeGuard,
    _permit: Option<OwnedSemaphorePermit>,
    _token: TaskTrackerToken,
}

/// Everything needed to serve a connection, except its stream.
struct Accepted<S> {
    peer: SocketAddr,
    service: S,
    open: Open,
    shared: Arc<Shared>,
    draining: Draining,
    aborted: Arc<AtomicUsize>,
}

impl<S: ConnectionService> Accepted<S> {
    /// Serves the stream in its own task, with the protocol that ALPN has fixed, if any.
    pub(super) fn spawn<IO>(self, stream: IO, agreed: Option<Protocol>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let state = ConnectionState::new();
        let stall_timeout = self.shared.stall_timeout;
        let service = TrackInFlight {
            inner: self.service,
            state: Arc::clone(&state),
            drain: self.draining.flag(),
            metrics: self.shared.metrics.clone(),
            stall_timeout,
            max_headers: self.shared.max_headers,
        };
        let io = ClientIo::new(stream, Arc::clone(&state), stall_timeout, self.open);
        let protocols = Arc::clone(&self.shared.protocols);
        let mut connection =
            ServerConnection::new(io, service, Arc::clone(&state), protocols, agreed);
        let mut driver = Driver {
            state,
            draining: self.draining,
            shared: self.shared,
        };
        let aborted = self.aborted;
        tokio::spawn(async move {
            if driver.drive(&mut connection).await == End::Aborted {
                aborted.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Does the handshake in its own task, and serves the stream in another, so that the memory of
    /// the handshake is freed.
    pub(super) fn spawn_with_handshake(mut self, stream: TcpStream, acceptor: TlsAcceptor) {
        tokio::spawn(async move {
            let shared = Arc::clone(&self.shared);
            let bounds = HandshakeBounds {
                timeout: shared.timeouts.head,
                idle_grace: shared.drain.idle_grace.min(shared.drain.grace / 2),
                when_full: shared.timeouts.park,
                limit: &shared.limit,
            };
            match handshake(acceptor, stream, bounds, &mut self.draining).await {
                Ok(stream) => {
                    let (_, session) = stream.get_ref();
                    let how = match session.handshake_kind() {
                        Some(HandshakeKind::Resumed) => Handshake::Resumed,
                        _ => Handshake::Full,
                    };
                    self.shared.metrics.handshakes.ended(how);
                    let agreed = session.alpn_protocol().and_then(Protocol::from_alpn);
                    self.spawn(stream, agreed);
                }
                Err(cause) => self.refuse(cause).await,
            }
        });
    }

    async fn refuse(self, cause: HandshakeError) {
        let event = HandshakeFailed {
            peer: self.peer,
            how: cause.kind(),
            cause: &cause,
        };
        event.emit(&self.shared.metrics);
        if let HandshakeError::Evicted = cause {
            self.shared.metrics.evicted.inc();
        }
        if let HandshakeError::Plain(stream) = cause {
            let stall_timeout = self.shared.stall_timeout;
            let mut io = ClientIo::new(stream, ConnectionState::new(), stall_timeout, self.open);
            // It does not matter if the client does not read it.
            let _ = io.write_all(PLAIN_HTTP_RESPONSE).await;
            let _ = io.shutdown().await;
        }
    }
}
