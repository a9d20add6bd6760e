//! Serves HTTP/1.1 and HTTP/2 on one listener, from the first connection to the end of the drain.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::HandshakeKind;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use weir_telemetry::{Handshake, ProxyHeader, ServerMetrics, StripedGauge, events};

use super::accept::Acceptor;
use super::alt_svc::AltSvc;
use super::challenges::Challenges;
use super::client_io::ClientIo;
use super::connection::{Protocol, ServerConnection};
use super::connection_limit::ConnectionLimit;
use super::connection_state::ConnectionState;
use super::drain::Draining;
use super::driver::{ConnectionContext, Driver, End};
use super::open_connections::{Open, OpenConnections};
use super::peer_filter::PeerFilter;
use super::proxy_protocol::{ProxyHeaderError, ProxyProtocol, read_proxy_header};
use super::service::{ConnectionService, TrackRequests};
use super::settings::HttpSettings;
use super::tls::{HandshakeError, PLAIN_HTTP_RESPONSE, Tls, handshake};

/// The target of log lines, which filters name.
const TARGET: &str = "weir::server::serve";

/// A client's connection, as a service sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The address of the other end: a client, or a proxy in front of the gateway. If a proxy
    /// forwards connections and says so by the PROXY protocol, the address of its client.
    pub peer: SocketAddr,
    /// The gateway's address.
    pub local: SocketAddr,
    /// Whether it is encrypted.
    pub secure: bool,
    /// The certificate of the client, in DER, if it has shown one that is accepted.
    pub certificate: Option<CertificateDer<'static>>,
}

/// The protocols below HTTP on a listener; none by default.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    /// The PROXY protocol, before anything else.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// TLS.
    pub tls: Option<Tls>,
    /// Challenges of ACME servers on its connections.
    pub challenges: Challenges,
    /// What responses say of the listener's other services, if it may have some.
    pub alt_svc: Option<AltSvc>,
    /// Refuses connections of some peers.
    pub peer_filter: Option<PeerFilter>,
}

impl Transport {
    /// Whether to begin a connection of UDP with a peer.
    pub fn admits(&self, peer: IpAddr) -> bool {
        let filter = self.peer_filter.as_ref();
        filter.is_none_or(|filter| filter.admits(peer))
    }

    /// Has the kernel drop what begins connections with peers that are not admitted, as far as it
    /// does that, on a socket of UDP on which QUIC is spoken. Never ends.
    pub async fn guard(&self, socket: UdpSocket) -> Infallible {
        match &self.peer_filter {
            Some(filter) => filter.follow_long_headers(socket).await,
            None => std::future::pending().await,
        }
    }
}

/// Serves HTTP; shared by all workers.
#[derive(Clone, Debug)]
pub struct Http(pub(super) Arc<ConnectionContext>);

impl Http {
    /// Prepares what all connections share.
    pub fn new(settings: &HttpSettings, metrics: ServerMetrics) -> Self {
        Self(Arc::new(ConnectionContext {
            protocols: Arc::new(settings.protocols()),
            timeouts: settings.timeouts(),
            client_bounds: settings.client_bounds(),
            drain: settings.drain,
            limit: ConnectionLimit::new(settings.max_connections),
            max_streams: settings.max_streams,
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
    /// out instead. A PROXY header or a handshake that fails is counted, and logged for those who
    /// debug.
    pub async fn serve<M, S>(
        &self,
        listener: std::net::TcpListener,
        transport: &Transport,
        make: M,
        draining: Draining,
    ) -> io::Result<usize>
    where
        M: Fn(&Connection) -> S + Clone + Send + 'static,
        S: ConnectionService,
    {
        let serving = Serving {
            context: &self.0,
            transport,
            make,
            open: OpenConnections::new(&self.0),
            draining,
        };
        serving.run(listener).await
    }
}

struct Serving<'a, M> {
    context: &'a Arc<ConnectionContext>,
    transport: &'a Transport,
    make: M,
    open: OpenConnections,
    draining: Draining,
}

impl<M, S> Serving<'_, M>
where
    M: Fn(&Connection) -> S + Clone + Send + 'static,
    S: ConnectionService,
{
    /// Accepts and starts connections until the drain is over.
    async fn run(self, listener: std::net::TcpListener) -> io::Result<usize> {
        let mut acceptor = Acceptor::new(
            listener,
            self.context.client_bounds.stall_timeout,
            self.transport.peer_filter.as_ref(),
            self.context.metrics.clone(),
        )?;
        let draining = self.draining.clone();
        loop {
            tokio::select! {
                biased;
                () = draining.begun() => break,
                (stream, peer) = acceptor.next() => {
                    let permit = self.context.permit(&draining).await;
                    self.start(stream, peer, permit);
                }
            }
        }
        if draining.keeps_open(acceptor.address()) {
            acceptor.hand_over().await;
            return Ok(self.open.finished().await);
        }
        // These connections exist already; waiting for permits would not reduce them.
        acceptor
            .close(|stream, peer| self.start(stream, peer, None))
            .await;
        Ok(self.open.finished().await)
    }

    fn start(&self, stream: TcpStream, peer: SocketAddr, permit: Option<OwnedSemaphorePermit>) {
        // Responses are written whole, so Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        // A socket without a local address is already broken.
        let Ok(local) = stream.local_addr() else {
            return;
        };
        let Transport {
            proxy_protocol,
            tls,
            challenges,
            alt_svc,
            ..
        } = self.transport;
        let accepted = Accepted {
            connection: Connection {
                peer,
                local,
                secure: tls.is_some(),
                certificate: None,
            },
            challenges: challenges.for_connection(),
            alt_svc: alt_svc.clone(),
            open: self.open.begin(permit),
            context: Arc::clone(self.context),
            draining: self.draining.clone(),
            aborted: self.open.aborted(),
        };
        let sends_header = |protocol: &&ProxyProtocol| protocol.trusts(peer.ip());
        match (proxy_protocol.as_ref().filter(sends_header), tls) {
            (None, None) => accepted.spawn(stream, None, &self.make),
            (None, Some(tls)) => {
                tokio::spawn(accepted.shake_hands(stream, tls.acceptor(), self.make.clone()));
            }
            (Some(protocol), tls) => {
                let (protocol, tls) = (protocol.clone(), tls.clone());
                let make = self.make.clone();
                tokio::spawn(accepted.begin_proxied(stream, protocol, tls, make));
            }
        }
    }
}

/// Everything needed to serve a connection, except its stream and its service.
struct Accepted {
    connection: Connection,
    challenges: Option<Challenges>,
    alt_svc: Option<AltSvc>,
    open: Open,
    context: Arc<ConnectionContext>,
    draining: Draining,
    aborted: Arc<AtomicUsize>,
}

impl Accepted {
    /// Serves the stream in its own task, with the protocol that ALPN has fixed, if any.
    fn spawn<IO, S>(self, stream: IO, agreed: Option<Protocol>, make: impl FnOnce(&Connection) -> S)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: ConnectionService,
    {
        let requests = self.context.metrics.in_flight.clone();
        let bounds = self.context.client_bounds;
        let state = ConnectionState::telling(self.alt_svc, self.draining, requests, bounds);
        let service = TrackRequests {
            inner: make(&self.connection),
            challenges: self.challenges,
            state: Arc::clone(&state),
        };
        let io = ClientIo::new(stream, Arc::clone(&state), self.open);
        let protocols = Arc::clone(&self.context.protocols);
        let mut connection = ServerConnection::new(io, service, protocols, agreed);
        let driver = Driver {
            state,
            context: self.context,
        };
        let aborted = self.aborted;
        tokio::spawn(async move {
            if driver.drive(&mut connection).await == End::Aborted {
                aborted.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Reads the PROXY header, and goes on with the client that it names.
    async fn begin_proxied<S: ConnectionService>(
        mut self,
        mut stream: TcpStream,
        protocol: ProxyProtocol,
        tls: Option<Tls>,
        make: impl FnOnce(&Connection) -> S,
    ) {
        let context = Arc::clone(&self.context);
        let bounds = context.handshake_bounds();
        match read_proxy_header(&mut stream, bounds, &self.draining).await {
            Ok(client) => {
                let outcome = client.map_or(ProxyHeader::Local, |_| ProxyHeader::Proxied);
                self.context.metrics.proxy_headers(outcome).inc();
                self.connection.peer = client.unwrap_or(self.connection.peer);
            }
            Err(cause) => return self.refuse_proxied(&cause, &protocol),
        }
        match tls {
            None => self.spawn(stream, None, make),
            Some(tls) => self.shake_hands(stream, tls.acceptor(), make).await,
        }
    }

    fn refuse_proxied(self, cause: &ProxyHeaderError, protocol: &ProxyProtocol) {
        let outcome = cause.kind();
        let warn = outcome == ProxyHeader::Malformed && protocol.may_warn();
        let metrics = &self.context.metrics;
        events::proxy_header_refused(metrics, self.connection.peer, outcome, cause, warn);
        if let ProxyHeaderError::Evicted = cause {
            self.context.metrics.evicted.inc();
        }
    }

    /// Does the handshake, and serves the stream in another task, so that the memory of the
    /// handshake is freed.
    async fn shake_hands<S: ConnectionService>(
        mut self,
        stream: TcpStream,
        acceptor: TlsAcceptor,
        make: impl FnOnce(&Connection) -> S,
    ) {
        let context = Arc::clone(&self.context);
        let bounds = context.handshake_bounds();
        let challenges = self.challenges.as_ref();
        match handshake(acceptor, challenges, stream, bounds, &self.draining).await {
            Ok(None) => {
                self.context.metrics.handshakes(Handshake::Full).inc();
                let peer = self.connection.peer;
                tracing::debug!(target: TARGET, %peer, "answered an ACME challenge by TLS");
            }
            Ok(Some(stream)) => {
                let (_, session) = stream.get_ref();
                let how = match session.handshake_kind() {
                    Some(HandshakeKind::Resumed) => Handshake::Resumed,
                    _ => Handshake::Full,
                };
                self.context.metrics.handshakes(how).inc();
                let certificate = session.peer_certificates().and_then(<[_]>::first);
                self.connection.certificate = certificate.cloned();
                let agreed = session.alpn_protocol().and_then(Protocol::from_alpn);
                self.spawn(stream, agreed, make);
            }
            Err(cause) => self.refuse(cause).await,
        }
    }

    async fn refuse(self, cause: HandshakeError) {
        let metrics = &self.context.metrics;
        events::handshake_failed(metrics, self.connection.peer, cause.kind(), &cause);
        if let HandshakeError::Evicted = cause {
            self.context.metrics.evicted.inc();
        }
        if let HandshakeError::Plain(stream) = cause {
            let bounds = self.context.client_bounds;
            let state = ConnectionState::new(self.draining, StripedGauge::default(), bounds);
            let mut io = ClientIo::new(stream, state, self.open);
            // It does not matter if the client does not read it.
            let _ = io.write_all(PLAIN_HTTP_RESPONSE).await;
            let _ = io.shutdown().await;
        }
    }
}
