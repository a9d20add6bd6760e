//! TLS on a listener: the certificates in force, and the handshakes.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::server::Acceptor;
use rustls::{ServerConfig, ServerConnection};
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};
use weir_telemetry::Handshake;

use super::certificates::Certificates;
use super::challenges::Challenges;
use super::connection_limit::ConnectionLimit;
use super::connection_state::HEAD_WHILE_OTHERS_WAIT;
use super::drain::Draining;

/// The first byte of every TLS connection (RFC 8446, section 5.1). No HTTP request begins with it.
const HANDSHAKE: u8 = 22;

/// The size of a TLS record, in bytes.
const RECORD: usize = 16 * 1024;

/// The response to a client that speaks plain HTTP.
pub(super) const PLAIN_HTTP_RESPONSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
content-length: 55\r\nconnection: close\r\n\r\n\
This port speaks HTTPS; the request came in plain HTTP\n";

/// The TLS of one listener, shared by all workers. A new connection uses the current certificates.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ArcSwap<Certificates>>);

impl Tls {
    /// Uses these certificates.
    pub fn new(certificates: Certificates) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(certificates)))
    }

    /// Replaces the certificates. Clients can resume their sessions if the certificates are the
    /// same.
    pub fn renew(&self, certificates: Certificates) {
        if **self.0.load() != certificates {
            self.0.store(Arc::new(certificates));
        }
    }

    /// When the first of the current certificates expires, since the Unix epoch.
    pub fn expires(&self) -> Option<Duration> {
        self.0.load().expires()
    }

    /// How long the first of them is still valid at a time since the Unix epoch, if it is about to
    /// end.
    pub fn ends_soon(&self, now: Duration) -> Option<Duration> {
        self.0.load().ends_soon(now)
    }

    /// What new handshakes go by.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.load().config()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.config().into()
    }
}

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

/// How long a handshake may take, or a PROXY header.
pub(super) struct HandshakeBounds<'a> {
    pub(super) timeout: Duration,
    /// For a client that sends nothing, once the drain has begun.
    pub(super) idle_grace: Duration,
    /// Once new connections wait for a permit.
    pub(super) when_full: Duration,
    pub(super) limit: &'a ConnectionLimit,
}

/// Does the handshake with a client; none if it was a challenge of an ACME server, which is
/// answered.
pub(super) async fn handshake(
    acceptor: TlsAcceptor,
    challenges: Option<&Challenges>,
    stream: TcpStream,
    bounds: HandshakeBounds<'_>,
    draining: &Draining,
) -> Result<Option<TlsStream<TcpStream>>, HandshakeError> {
    tokio::select! {
        biased;
        accepted = accept(acceptor, challenges, stream, &bounds, draining) => accepted,
        () = sleep(bounds.timeout) => Err(HandshakeError::TooSlow),
    }
}

/// A flush does not show partial progress. With at most one record to flush, a client that reads
/// slowly is not mistaken for one that does not read.
fn limit_buffer(session: &mut ServerConnection) {
    session.set_buffer_limit(Some(RECORD));
}

async fn accept(
    acceptor: TlsAcceptor,
    challenges: Option<&Challenges>,
    stream: TcpStream,
    bounds: &HandshakeBounds<'_>,
    draining: &Draining,
) -> Result<Option<TlsStream<TcpStream>>, HandshakeError> {
    let mut first = [0];
    let peeked = tokio::select! {
        biased;
        peeked = stream.peek(&mut first) => peeked?,
        () = bounds.limit.evicted_after(HEAD_WHILE_OTHERS_WAIT) => return Err(HandshakeError::Evicted),
        () = async { draining.begun().await; sleep(bounds.idle_grace).await } => return Err(HandshakeError::Drains),
    };
    match (peeked, first) {
        (0, _) => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
        (_, [HANDSHAKE]) => tokio::select! {
            biased;
            agreed = agree(acceptor, challenges, stream) => Ok(agreed?),
            // From here on, the handshake needs several round trips.
            () = bounds.limit.evicted_after(bounds.when_full) => Err(HandshakeError::Evicted),
        },
        _ => Err(HandshakeError::Plain(stream)),
    }
}

async fn agree(
    acceptor: TlsAcceptor,
    challenges: Option<&Challenges>,
    stream: TcpStream,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    match challenges.filter(|challenges| challenges.are_waiting()) {
        None => acceptor.accept_with(stream, limit_buffer).await.map(Some),
        // Boxed, as all handshakes would need space for it.
        Some(challenges) => Box::pin(agree_or_answer(acceptor, challenges, stream)).await,
    }
}

/// Reads the first message of a client, and then does the handshake that it asks for.
async fn agree_or_answer(
    acceptor: TlsAcceptor,
    challenges: &Challenges,
    stream: TcpStream,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let Some(challenge) = challenges.tls(&begun.client_hello()) else {
        let config = Arc::clone(acceptor.config());
        return begun.into_stream_with(config, limit_buffer).await.map(Some);
    };
    let mut stream = begun.into_stream(challenge).await?;
    // The server has seen what it wants to see, and may be gone.
    let _ = stream.shutdown().await;
    Ok(None)
}
