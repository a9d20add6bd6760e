//! Accepts connections whose clients have the addresses that they come from.
//!
//! A first packet may have any source address. Until its sender has answered there, it is not
//! logged or decided about. When more than a few handshakes are under way, a sender is asked to
//! come again with a token (Retry, RFC 9000, section 8.1.2), for which nothing is kept.
//!
//! A handshake takes no place of a client, so that nobody can hold the places of all with a few
//! packets. All handshakes have a bound of their own, and count until they have led to a place.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use h3::error::Code;
use quinn::{Connecting, Endpoint, EndpointConfig, Incoming, TokioRuntime, TransportConfig};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use weir_server::{
    ClientPlace, Connection, ConnectionService, Draining, Http, StreamBounds, StreamServer, Tls,
    Transport,
};

use crate::connection::{ClientConnection, close};
use crate::early_data::{EarlyData, HandshakeEnd};
use crate::settings::{server, transport};
use crate::sockets::WorkerSocket;

/// How many handshakes of a worker may be under way before a sender's address has to be validated.
const MAX_UNVALIDATED: usize = 32;

/// How many may be under way at all. Whoever comes then is refused, and uses TCP.
const MAX_HANDSHAKES: usize = 256;

/// How long the last packets of connections may take when the drain is over.
const FAREWELL: Duration = Duration::from_millis(200);

/// Accepts connections on a socket and serves each with what `make` makes for it, until the drain
/// begins and every connection of all workers is closed or the grace period is over. Returns how
/// many connections were aborted.
///
/// Must be called on the runtime of the socket's worker.
///
/// # Errors
/// When the listener has no TLS, or the runtime cannot take the socket over.
pub async fn serve<M, S>(
    http: &Http,
    socket: WorkerSocket,
    transport: &Transport,
    early_data: Option<&EarlyData>,
    make: M,
    draining: Draining,
) -> io::Result<usize>
where
    M: Fn(&Connection) -> S + Send + Sync + 'static,
    S: ConnectionService + Sync,
{
    let (socket, group) = socket.into_parts();
    let local = socket.local_addr()?;
    let tls = transport.tls.clone();
    let tls = tls.ok_or_else(|| io::Error::other("HTTP/3 without TLS"))?;
    let server = Arc::new(http.stream_server(make, transport.alt_svc.clone(), draining));
    let mut configs = Configs::new(tls, &server.bounds(), early_data.cloned())?;
    let _guard = guard(transport.clone(), &socket)?;
    let runtime = Arc::new(TokioRuntime);
    let first = Some(configs.current());
    let endpoint = Endpoint::new(EndpointConfig::default(), first, socket, runtime)?;
    let listener = Listener {
        server,
        local,
        transport: transport.clone(),
        takes_early_data: early_data.is_some(),
        handshakes: Arc::default(),
    };
    loop {
        tokio::select! {
            biased;
            () = listener.server.drain_begun() => break,
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => listener.begin(incoming, configs.current()),
                None => break,
            }
        }
    }
    let finished = async {
        let aborted = listener.server.finished().await;
        let _ = timeout(FAREWELL, endpoint.wait_idle()).await;
        let _ = timeout(listener.server.bounds().grace, group.all_closed()).await;
        aborted
    };
    tokio::select! {
        aborted = finished => Ok(aborted),
        () = refuse(&endpoint) => Ok(0),
    }
}

/// Keeps peers that are not admitted away from a socket, until it is dropped.
fn guard(transport: Transport, socket: &UdpSocket) -> io::Result<AbortOnDropHandle<Infallible>> {
    let socket = socket.try_clone()?;
    let guarding = async move { transport.guard(socket).await };
    Ok(AbortOnDropHandle::new(tokio::spawn(guarding)))
}

/// Sends newcomers away at once, so that they try TCP. Never ends before the endpoint does.
async fn refuse(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
    std::future::pending::<()>().await;
}

/// What handshakes go by, made anew when the certificates are.
struct Configs {
    tls: Tls,
    made_of: Arc<rustls::ServerConfig>,
    transport: Arc<TransportConfig>,
    early_data: Option<EarlyData>,
    made: quinn::ServerConfig,
}

impl Configs {
    fn new(tls: Tls, bounds: &StreamBounds, early_data: Option<EarlyData>) -> io::Result<Self> {
        let (made_of, transport) = (tls.config(), Arc::new(transport(bounds)));
        let made = server(&made_of, &transport, early_data.as_ref());
        let made = made.ok_or_else(|| io::Error::other("TLS has no cipher of QUIC"))?;
        Ok(Self {
            tls,
            made_of,
            transport,
            early_data,
            made,
        })
    }

    fn current(&mut self) -> quinn::ServerConfig {
        let tls = self.tls.config();
        if !Arc::ptr_eq(&tls, &self.made_of) {
            // The ciphers are those of before.
            if let Some(made) = server(&tls, &self.transport, self.early_data.as_ref()) {
                self.made = made;
            }
            self.made_of = tls;
        }
        self.made.clone()
    }
}

struct Listener<M> {
    server: Arc<StreamServer<M>>,
    local: SocketAddr,
    transport: Transport,
    takes_early_data: bool,
    /// How many are under way.
    handshakes: Arc<AtomicUsize>,
}

/// Held during a handshake, and until its connection has a place.
struct Handshake(Arc<AtomicUsize>);

impl Handshake {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl<M, S> Listener<M>
where
    M: Fn(&Connection) -> S + Send + Sync + 'static,
    S: ConnectionService + Sync,
{
    fn begin(&self, incoming: Incoming, config: quinn::ServerConfig) {
        let peer = incoming.remote_address();
        if !self.transport.admits(peer.ip()) {
            // No answer, as from the kernel.
            incoming.ignore();
            return;
        }
        let is_validated = incoming.remote_address_validated();
        let under_way = self.handshakes.load(Relaxed);
        if under_way >= MAX_HANDSHAKES {
            incoming.refuse();
            return;
        }
        if under_way >= MAX_UNVALIDATED && !is_validated {
            // It may come again unless it was asked before, which a token would show.
            let _ = incoming.retry();
            return;
        }
        let handshake = Handshake::new(&self.handshakes);
        let known = is_validated.then_some(peer);
        match incoming.accept_with(Arc::new(config)) {
            Ok(connecting) if is_validated && self.takes_early_data => {
                self.serve_early(connecting, handshake, peer);
            }
            Ok(connecting) => self.shake_hands(connecting, handshake, known),
            Err(cause) => self.server.handshake_failed(known, false, &cause),
        }
    }

    /// Does the handshake in a task of its own. `known` is the peer if its address is validated.
    fn shake_hands(&self, connecting: Connecting, handshake: Handshake, known: Option<SocketAddr>) {
        let (server, local) = (Arc::clone(&self.server), self.local);
        tokio::spawn(async move {
            let bounds = server.bounds();
            match timeout(bounds.head_timeout, connecting).await {
                Ok(Ok(connection)) => {
                    server.handshake_done();
                    // Only who gets packets at an address can end a handshake from there.
                    serve_one(&server, connection, local, HandshakeEnd::REACHED).await;
                    drop(handshake);
                }
                Ok(Err(cause)) => server.handshake_failed(known, false, &cause),
                Err(cause) => server.handshake_failed(known, true, &cause),
            }
        });
    }

    /// Does the handshake while the connection is served already. `peer` is validated.
    fn serve_early(&self, connecting: Connecting, handshake: Handshake, peer: SocketAddr) {
        // A connection to a server always begins so.
        let (connection, over) = match connecting.into_0rtt() {
            Ok(begun) => begun,
            Err(connecting) => return self.shake_hands(connecting, handshake, Some(peer)),
        };
        let (server, local) = (Arc::clone(&self.server), self.local);
        let (done, is_done) = watch::channel(false);
        let shaking = connection.clone();
        tokio::spawn(async move {
            let serving = serve_one(&server, connection, local, HandshakeEnd::when(is_done));
            let over = timeout(server.bounds().head_timeout, over);
            let ((), over) = tokio::join!(serving, over);
            drop(handshake);
            match (over, shaking.close_reason()) {
                // A client may close as soon as it is over.
                (Ok(true), _) | (Ok(false), None) => {
                    server.handshake_done();
                    done.send_replace(true);
                }
                (Ok(false), Some(cause)) => server.handshake_failed(Some(peer), false, &cause),
                (Err(cause), _) => {
                    close(&shaking, Code::H3_NO_ERROR);
                    server.handshake_failed(Some(peer), true, &cause);
                }
            }
        });
    }
}

/// Serves a connection when it has a place, or closes it.
async fn serve_one<M, S>(
    server: &StreamServer<M>,
    connection: quinn::Connection,
    local: SocketAddr,
    handshake: HandshakeEnd,
) where
    M: Fn(&Connection) -> S,
    S: ConnectionService + Sync,
{
    let Some(place) = place(server, &connection).await else {
        close(&connection, Code::H3_NO_ERROR);
        return;
    };
    let client = described(&connection, local);
    server.serve(&client, place, |service| {
        ClientConnection::new(connection, service, server.bounds(), handshake)
    });
}

/// The place of a connection. It waits no longer than its client does, or than a head may take.
async fn place<M>(server: &StreamServer<M>, connection: &quinn::Connection) -> Option<ClientPlace> {
    tokio::select! {
        biased;
        place = timeout(server.bounds().head_timeout, server.place()) => place.ok(),
        _ = connection.closed() => None,
    }
}

fn described(connection: &quinn::Connection, local: SocketAddr) -> Connection {
    let identity = connection.peer_identity();
    let chain = identity.and_then(|identity| identity.downcast::<Vec<CertificateDer<'_>>>().ok());
    let local_ip = connection.local_ip();
    Connection {
        peer: connection.remote_address(),
        local: local_ip.map_or(local, |ip| SocketAddr::new(ip, local.port())),
        secure: true,
        certificate: chain.and_then(|chain| chain.into_iter().next()),
    }
}
