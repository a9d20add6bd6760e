//! A client's connection: plain HTTP/1.1, HTTP/1.1 by hyper, HTTP/2, or parked, which takes no
//! buffers.
//!
//! hyper keeps two buffers and the space for a request for each connection, 20 KB and more. Plain
//! requests do not need them (see [`Http1`]), and no HTTP/1.1 connection does between requests: it
//! is parked until the first bytes of the next request arrive. Every connection begins parked.

use std::future::Future as _;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use weir_runtime::loop_time::PollClock;

use super::client_io::ClientIo;
use super::http1::{Handoff, HeadBounds, Http1, without_empty_lines};
use super::http2_frames::PREFACE;
use super::service::{ConnectionService, TrackRequests};
use super::stream_tasks::StreamExecutor;

/// hyper's own settings, and what of them concerns plain requests.
#[derive(Debug)]
pub(super) struct Protocols {
    pub(super) plain: HeadBounds,
    pub(super) http1: http1::Builder,
    pub(super) http2: http2::Builder<StreamExecutor>,
}

/// A connection as its driver sees it.
pub trait PollConnection {
    /// Serves; ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Whether it is parked, so that hyper does not own the socket.
    fn is_parked(&self) -> bool {
        false
    }

    /// Takes the socket from hyper until bytes arrive. Call it only when the connection has
    /// settled, hyper was polled after that, and it has stayed settled.
    fn park(&mut self) {}

    /// Closes it once its requests are answered.
    fn close(&mut self);
}

/// How often hyper is polled before its connection is taken to be over.
const MAX_POLLS_OF_ENDED: usize = 64;

/// hyper resets a CONNECT whose length is not 0 and then says that the connection is over, which it
/// is not: the other streams go on, and so does hyper when it is polled again. One that is over
/// says so each time.
fn poll_http2<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    for _ in 0..MAX_POLLS_OF_ENDED {
        if ready!(connection.as_mut().poll(cx)).is_err() {
            break;
        }
    }
    Poll::Ready(())
}

/// One connection. `G` is held while its socket is open.
pub(super) struct ServerConnection<IO, G, S: ConnectionService> {
    phase: Phase<IO, G, S>,
    protocols: Arc<Protocols>,
}

enum Phase<IO, G, S: ConnectionService> {
    Parked(Parked<IO, G, S>),
    Plain(Box<Http1<IO, G, S>>),
    Hyper1(Box<Hyper1<IO, G, S>>),
    Hyper2(Pin<Box<Hyper2<IO, G, S>>>),
    Closing(ClientIo<IO, G>),
    Ended,
}

type Hyper1<IO, G, S> = http1::UpgradeableConnection<TokioIo<ClientIo<IO, G>>, TrackRequests<S>>;
type Hyper2<IO, G, S> =
    http2::Connection<TokioIo<ClientIo<IO, G>>, TrackRequests<S>, StreamExecutor>;

/// A connection between requests.
struct Parked<IO, G, S> {
    io: ClientIo<IO, G>,
    service: TrackRequests<S>,
    /// What ALPN or an earlier request has fixed: a client cannot change its protocol.
    agreed: Option<Protocol>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// The protocol of this ALPN name (RFC 7301, section 6).
    pub(super) fn from_alpn(name: &[u8]) -> Option<Self> {
        match name {
            b"h2" => Some(Self::Http2),
            b"http/1.1" => Some(Self::Http1),
            _ => None,
        }
    }

    /// The protocol of a client that begins with these bytes, once they determine it.
    pub(super) fn detect(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(PREFACE) {
            Some(Self::Http2)
        } else if PREFACE.starts_with(bytes) {
            None
        } else {
            Some(Self::Http1)
        }
    }
}

impl<IO: AsyncRead + Unpin, G, S> Parked<IO, G, S> {
    /// Waits until the bytes determine a protocol; none if the client closes first.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Protocol>>> {
        loop {
            let more = ready!(self.io.poll_read_ahead(cx))?;
            let begun = self.io.read_ahead();
            let protocol = match (more, begun) {
                (false, []) => return Poll::Ready(Ok(None)),
                // If a client breaks the agreement, hyper answers with the protocol's own error.
                (_, _) if self.agreed.is_some() => self.agreed,
                // hyper handles a request that ends too early.
                (false, _) => Some(Protocol::Http1),
                (true, _) => Protocol::detect(begun),
            };
            if protocol.is_some() {
                return Poll::Ready(Ok(protocol));
            }
        }
    }
}

impl<IO, G, S: ConnectionService> ServerConnection<IO, G, S> {
    /// A new connection, whose protocol ALPN may have fixed.
    pub(super) fn new(
        io: ClientIo<IO, G>,
        service: TrackRequests<S>,
        protocols: Arc<Protocols>,
        agreed: Option<Protocol>,
    ) -> Self {
        Self {
            phase: Phase::Parked(Parked {
                io,
                service,
                agreed,
            }),
            protocols,
        }
    }
}

impl<IO, G, S> ServerConnection<IO, G, S>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    G: Unpin + Send + 'static,
    S: ConnectionService,
{
    /// Serves what arrives on a connection that was parked.
    fn unpark(&mut self, mut parked: Parked<IO, G, S>, protocol: Protocol) {
        self.phase = match protocol {
            Protocol::Http1 => {
                let (bounds, input) = (self.protocols.plain, parked.io.take_read_ahead());
                let connection = Http1::new(parked.io, parked.service, bounds, input);
                Phase::Plain(Box::new(connection))
            }
            Protocol::Http2 => {
                parked.io.begin_http2();
                let io = TokioIo::new(parked.io);
                let connection = self.protocols.http2.serve_connection(io, parked.service);
                Phase::Hyper2(Box::pin(connection))
            }
        };
    }

    /// Has hyper serve HTTP/1.1.
    fn give_to_hyper(&mut self, io: ClientIo<IO, G>, service: TrackRequests<S>) {
        let io = TokioIo::new(io);
        let connection = self.protocols.http1.serve_connection(io, service);
        self.phase = Phase::Hyper1(Box::new(connection.with_upgrades()));
    }

    /// Does what a plain connection cannot do by itself.
    fn end_plain(&mut self, connection: Http1<IO, G, S>, handoff: Handoff) {
        let (mut io, service, input) = connection.into_parts();
        match handoff {
            Handoff::Hyper => {
                io.put_back_for_hyper(input);
                self.give_to_hyper(io, service);
            }
            Handoff::Close => self.phase = Phase::Closing(io),
            Handoff::Drop => {}
        }
    }

    /// Takes the socket back from hyper. If hyper has already read part of the next request, it
    /// gets that part again.
    fn take_from_hyper(&mut self, connection: Hyper1<IO, G, S>) {
        // An upgraded connection has no parts: it has ended.
        let Some(parts) = connection.into_parts() else {
            return;
        };
        let mut parked = Parked {
            io: parts.io.into_inner(),
            service: parts.service,
            agreed: Some(Protocol::Http1),
        };
        let next = without_empty_lines(parts.read_buf);
        if next.is_empty() {
            self.phase = Phase::Parked(parked);
        } else {
            parked.io.put_back(next);
            self.give_to_hyper(parked.io, parked.service);
        }
    }

    fn take(&mut self) -> Phase<IO, G, S> {
        mem::replace(&mut self.phase, Phase::Ended)
    }
}

impl<IO, G, S> PollConnection for ServerConnection<IO, G, S>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    G: Unpin + Send + 'static,
    S: ConnectionService,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _clock = PollClock::begin();
        loop {
            match &mut self.phase {
                Phase::Plain(connection) => {
                    let handoff = ready!(connection.poll(cx));
                    if let Phase::Plain(connection) = self.take() {
                        self.end_plain(*connection, handoff);
                    }
                }
                Phase::Parked(parked) => {
                    let begun = ready!(parked.poll(cx));
                    if let (Phase::Parked(parked), Ok(Some(protocol))) = (self.take(), begun) {
                        self.unpark(parked, protocol);
                    }
                }
                Phase::Hyper1(connection) => return Pin::new(connection).poll(cx).map(drop),
                Phase::Hyper2(connection) => return poll_http2(connection.as_mut(), cx),
                Phase::Closing(io) => return Pin::new(io).poll_shutdown(cx).map(drop),
                Phase::Ended => return Poll::Ready(()),
            }
        }
    }

    fn is_parked(&self) -> bool {
        matches!(self.phase, Phase::Parked(_))
    }

    fn park(&mut self) {
        match self.take() {
            Phase::Plain(connection) if connection.is_idle() => {
                let (io, service, _) = connection.into_parts();
                self.phase = Phase::Parked(Parked {
                    io,
                    service,
                    agreed: Some(Protocol::Http1),
                });
            }
            Phase::Hyper1(connection) => self.take_from_hyper(*connection),
            other => self.phase = other,
        }
    }

    fn close(&mut self) {
        match &mut self.phase {
            Phase::Hyper1(connection) => Pin::new(connection.as_mut()).graceful_shutdown(),
            Phase::Hyper2(connection) => connection.as_mut().graceful_shutdown(),
            // It sees that at its next poll.
            Phase::Plain(connection) => connection.close(),
            Phase::Parked(_) => {
                if let Phase::Parked(parked) = self.take() {
                    self.phase = Phase::Closing(parked.io);
                }
            }
            Phase::Closing(_) | Phase::Ended => {}
        }
    }
}
