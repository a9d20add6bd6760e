//! Serving HTTP/1.1 and HTTP/2 on one listener, from the first connection to the end of the drain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use super::accept::Acceptor;
use super::accepted::{Accepted, Open};
use super::activity::Timeouts;
use super::connection_limit::ConnectionLimit;
use super::conversation::Protocols;
use super::drain::{DrainSettings, Draining};
use super::service::ConnectionService;
use super::settings::HttpSettings;
use super::tls::Tls;
use crate::telemetry::{GaugeGuard, ServerMetrics};

/// A client's connection, as far as a service may want to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The address at the other end: a client's, or a proxy's before us.
    pub peer: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// Whether it is encrypted.
    pub secure: bool,
}

/// Serves HTTP; shared by all workers.
#[derive(Clone, Debug)]
pub struct Http(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) protocols: Arc<Protocols>,
    pub(super) patience: Timeouts,
    pub(super) stall_timeout: Duration,
    pub(super) max_headers: usize,
    pub(super) drain: DrainSettings,
    pub(super) limit: ConnectionLimit,
    pub(super) metrics: ServerMetrics,
}

impl Http {
    /// Prepares everything that connections have in common.
    pub fn new(settings: &HttpSettings, metrics: ServerMetrics) -> Self {
        Self(Arc::new(Shared {
            protocols: Arc::new(settings.protocols()),
            patience: settings.patience(),
            stall_timeout: settings.stall_timeout,
            max_headers: settings.max_headers,
            drain: settings.drain,
            limit: ConnectionLimit::new(settings.max_connections),
            metrics,
        }))
    }

    /// Accepts connections and serves each with what `make` makes for it, until the drain begins
    /// and every connection is closed or the grace period is over. Returns how many connections
    /// were cut off.
    ///
    /// To be called on the runtime of the worker whose listener it is.
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
        let begin = |stream, accepted: Accepted<S>| accepted.converse(stream, None);
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
            accepted.converse_over_tls(stream, tls.acceptor());
        };
        serving.run(listener, begin).await
    }

    fn serving<M>(&self, secure: bool, make: M, draining: Draining) -> Serving<'_, M> {
        Serving {
            shared: &self.0,
            secure,
            make,
            open: watch::Sender::new(()),
            cut_off: Arc::default(),
            draining,
        }
    }
}

impl Shared {
    /// Waits until there may be a connection more.
    async fn permit(&self, draining: &mut Draining) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            permit = self.limit.permit() => permit,
            // In a drain nobody comes after this one.
            () = draining.begun() => None,
        }
    }
}

/// The connections of one listener.
struct Serving<'a, M> {
    shared: &'a Arc<Shared>,
    secure: bool,
    make: M,
    /// Every open connection holds a receiver.
    open: watch::Sender<()>,
    cut_off: Arc<AtomicUsize>,
    draining: Draining,
}

impl<M> Serving<'_, M> {
    /// Accepts connections, each of which `begin` begins to serve, until all is over.
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
        if draining.keeps(acceptor.address()) {
            drop(acceptor);
            return Ok(self.finished().await);
        }
        // These connections exist already; to hold them back would not make them fewer.
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
        // Answers are written whole; there is nothing to gain from waiting for more.
        let _ = stream.set_nodelay(true);
        let connection = Connection {
            peer,
            // A socket that cannot say its own address is broken already.
            local: stream.local_addr().ok()?,
            secure: self.secure,
        };
        Some(Accepted {
            peer,
            service: (self.make)(&connection),
            open: self.open(permit),
            shared: Arc::clone(self.shared),
            draining: self.draining.clone(),
            cut_off: Arc::clone(&self.cut_off),
        })
    }

    fn open(&self, permit: Option<OwnedSemaphorePermit>) -> Open {
        self.shared.metrics.accepted.inc();
        Open {
            _gauge: GaugeGuard::new(&self.shared.metrics.open),
            _permit: permit,
            _held: self.open.subscribe(),
        }
    }

    /// Waits until all connections are closed, upgraded ones included. Returns how many were cut
    /// off.
    async fn finished(self) -> usize {
        // Connections keep to the grace period by themselves, except those that are no longer
        // HTTP; a moment more lets the former be the first.
        let moment = Duration::from_millis(100);
        let _ = timeout(self.shared.drain.grace + moment, self.open.closed()).await;
        self.cut_off.load(Ordering::Relaxed) + self.open.receiver_count()
    }
}
