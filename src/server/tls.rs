//! TLS on a listener: the certificates in force, and handshakes, each in its connection's own task.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConnection;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificates::Certificates;
use super::connection_limit::ConnectionLimit;
use super::connection_state::HEAD_WHILE_OTHERS_WAIT;
use super::drain::Draining;
use crate::telemetry::Handshake;

/// The first byte of every TLS connection (RFC 8446, section 5.1); no request of HTTP begins so.
const HANDSHAKE: u8 = 22;

/// What a record can hold, in bytes.
const RECORD: usize = 16 * 1024;

/// What a client gets that takes the listener for one without TLS.
pub(super) const PLAIN_HTTP_RESPONSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
content-length: 55\r\nconnection: close\r\n\r\n\
This port speaks HTTPS; the request came in plain HTTP\n";

/// The TLS of one listener, shared by all workers. A new connection gets the certificates that
/// were brought into force last.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ArcSwap<Certificates>>);

impl Tls {
    /// These certificates are in force.
    pub fn new(certificates: Certificates) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(certificates)))
    }

    /// Brings other certificates into force. Clients may resume their sessions unless the
    /// certificates are others.
    pub fn renew(&self, certificates: Certificates) {
        if **self.0.load() != certificates {
            self.0.store(Arc::new(certificates));
        }
    }

    /// When the first of the certificates in force expires, after the Unix epoch.
    pub fn expires(&self) -> Option<Duration> {
        self.0.load().expires()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.0.load().config().into()
    }
}

/// Why there is no connection over TLS.
#[derive(Debug, Error)]
pub(super) enum HandshakeError {
    #[error("the client begins in plain text")]
    Plain(TcpStream),
    #[error("the handshake takes too long")]
    TooSlow,
    #[error("the gateway drains")]
    Drains,
    #[error("another connection needs its place")]
    Evicted,
    #[error(transparent)]
    Failed(#[from] io::Error),
}

impl HandshakeError {
    pub(super) fn kind(&self) -> Handshake {
        match self {
            Self::Plain(_) => Handshake::Plain,
            Self::TooSlow => Handshake::TooSlow,
            Self::Drains | Self::Evicted | Self::Failed(_) => Handshake::Failed,
        }
    }
}

/// How long a handshake may take.
pub(super) struct HandshakeBounds<'a> {
    /// At all times.
    pub(super) timeout: Duration,
    /// Once the drain has begun.
    pub(super) linger: Duration,
    /// Once others wait for its place, and when they do.
    pub(super) when_full: Duration,
    pub(super) limit: &'a ConnectionLimit,
}

/// Shakes hands with a client.
pub(super) async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    bounds: HandshakeBounds<'_>,
    draining: &mut Draining,
) -> Result<TlsStream<TcpStream>, HandshakeError> {
    tokio::select! {
        biased;
        shaken = shake(acceptor, stream, &bounds) => shaken,
        () = sleep(bounds.timeout) => Err(HandshakeError::TooSlow),
        () = async { draining.begun().await; sleep(bounds.linger).await } => Err(HandshakeError::Drains),
    }
}

/// Whoever waits for a flush does not see how much of it is gone. With a record at most to flush, a
/// client that takes little at a time is not mistaken for one that takes nothing.
fn bounded(session: &mut ServerConnection) {
    session.set_buffer_limit(Some(RECORD));
}

async fn shake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    bounds: &HandshakeBounds<'_>,
) -> Result<TlsStream<TcpStream>, HandshakeError> {
    let mut first = [0];
    let peeked = tokio::select! {
        biased;
        peeked = stream.peek(&mut first) => peeked?,
        () = bounds.limit.evicted_after(HEAD_WHILE_OTHERS_WAIT) => return Err(HandshakeError::Evicted),
    };
    match (peeked, first) {
        (0, _) => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
        (_, [HANDSHAKE]) => tokio::select! {
            biased;
            shaken = acceptor.accept_with(stream, bounded) => Ok(shaken?),
            // From here on, its packets have to cross the network several times.
            () = bounds.limit.evicted_after(bounds.when_full) => Err(HandshakeError::Evicted),
        },
        _ => Err(HandshakeError::Plain(stream)),
    }
}
