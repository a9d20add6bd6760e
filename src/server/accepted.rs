//! A connection that was accepted, up to its conversation: at once, or after a handshake.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::HandshakeKind;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_rustls::TlsAcceptor;

use super::activity::ConnectionState;
use super::connection::{Driver, End};
use super::conversation::{Protocol, ServerConnection};
use super::drain::Draining;
use super::io::ClientIo;
use super::serve::Shared;
use super::service::{ConnectionService, Counted};
use super::tls::{HandshakeBounds, NO_TLS, NoTls, handshake};
use crate::telemetry::{GaugeGuard, Handshake, NoHandshake};

/// Held as long as a connection is open.
pub(super) struct Open {
    pub(super) _gauge: GaugeGuard,
    pub(super) _permit: Option<OwnedSemaphorePermit>,
    pub(super) _held: watch::Receiver<()>,
}

/// All that it takes to serve a connection but its bytes.
pub(super) struct Accepted<S> {
    pub(super) peer: SocketAddr,
    pub(super) service: S,
    pub(super) open: Open,
    pub(super) shared: Arc<Shared>,
    pub(super) draining: Draining,
    pub(super) cut_off: Arc<AtomicUsize>,
}

impl<S: ConnectionService> Accepted<S> {
    /// Serves what comes over this stream, in a task of its own; what it is, where that was agreed on.
    pub(super) fn converse<IO>(self, stream: IO, agreed: Option<Protocol>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = ConnectionState::new();
        let stall_timeout = self.shared.stall_timeout;
        let service = Counted {
            inner: self.service,
            activity: Arc::clone(&activity),
            drain: self.draining.flag(),
            metrics: self.shared.metrics.clone(),
            stall_timeout,
            max_headers: self.shared.max_headers,
            requests: Cell::default(),
        };
        let io = ClientIo::new(stream, Arc::clone(&activity), stall_timeout, self.open);
        let protocols = Arc::clone(&self.shared.protocols);
        let mut connection =
            ServerConnection::new(io, service, Arc::clone(&activity), protocols, agreed);
        let mut driver = Driver {
            activity,
            draining: self.draining,
            shared: self.shared,
        };
        let cut_off = self.cut_off;
        tokio::spawn(async move {
            if driver.drive(&mut connection).await == End::CutOff {
                cut_off.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Shakes hands in a task of its own, and serves what comes then in another: what a handshake
    /// needs is given back after it.
    pub(super) fn converse_over_tls(mut self, stream: TcpStream, acceptor: TlsAcceptor) {
        tokio::spawn(async move {
            let shared = Arc::clone(&self.shared);
            let bounds = HandshakeBounds {
                patience: shared.patience.head,
                linger: shared.drain.linger.min(shared.drain.grace / 2),
                when_full: shared.patience.rest,
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
                    let agreed = session.alpn_protocol().and_then(Protocol::named);
                    self.converse(stream, agreed);
                }
                Err(cause) => self.refuse(cause).await,
            }
        });
    }

    async fn refuse(self, cause: NoTls) {
        let event = NoHandshake {
            peer: self.peer,
            how: cause.kind(),
            cause: &cause,
        };
        event.emit(&self.shared.metrics);
        if let NoTls::RoomWanted = cause {
            self.shared.metrics.evicted.inc();
        }
        if let NoTls::Plain(stream) = cause {
            let stall_timeout = self.shared.stall_timeout;
            let mut io = ClientIo::new(stream, ConnectionState::new(), stall_timeout, self.open);
            // Whoever does not take it has lost nothing.
            let _ = io.write_all(NO_TLS).await;
            let _ = io.shutdown().await;
        }
    }
}
