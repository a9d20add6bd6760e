//! An upstream: a request goes in, the head of a response comes out.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, UPGRADE};
use http::{HeaderMap, Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::connection::{Connection, Release};
use super::error::ProxyError;
use super::peer::Peer;
use super::peers::{Peers, connect};
use super::request::Outbound;
use super::server::Server;
use super::settings::{HostHeader, UpstreamSettings};
use super::upload::{OutOfPatience, Turn, Upload, with_patience};
use crate::telemetry::Upstreamed;

/// From when on an idle connection may be one that its server is about to close. Busy connections are
/// used again much sooner, so that under load no request is copied in vain.
const STALE: Duration = Duration::from_secs(1);

/// An upstream with its connections. Clones share them.
///
/// Each worker thread has one of its own, so that a request never leaves its thread.
pub struct Upstream<B>(Arc<Inner<B>>);

struct Inner<B> {
    name: String,
    peers: Peers<B>,
    connect_timeout: Duration,
    response_timeout: Duration,
    host: HostHeader,
}

impl<B> Upstream<B> {
    /// An upstream of the servers in `settings`, with no connection yet.
    pub fn new(settings: UpstreamSettings) -> Self {
        Self(Arc::new(Inner {
            peers: Peers::new(&settings),
            name: settings.name,
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            host: settings.host,
        }))
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl<B> Clone for Upstream<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Upstream<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Sends the request to the server whose turn it is, on a kept-alive connection if there is
    /// one, and awaits the head of the response.
    ///
    /// A request of which something was sent is not sent again, with one exception: when a
    /// connection that had rested for a while closes without an answer, the server most likely
    /// gave it up while the request was on its way, and a request that may be repeated is.
    pub(super) async fn send(&self, outbound: Outbound<B>) -> Result<Answer, ProxyError> {
        let Outbound {
            mut request, turn, ..
        } = outbound;
        let (arrived, turn) = (Instant::now(), turn.as_deref());
        let peers = self.0.peers.in_turn(arrived);
        let peer = peers.clone().next().ok_or(ProxyError::NoServer)?;
        if let Some(connection) = peer.idle(arrived) {
            let stale = connection.rested(arrived) >= STALE;
            let spare = stale.then(|| repeatable(&request)).flatten();
            let link = Link::new(peer, connection, arrived, None);
            request = match (self.exchange(link, request, turn).await, spare) {
                (Ok(Exchange::Answered(answer)), _) => return Ok(answer),
                (Ok(Exchange::NotSent(given_back, _)), _) => given_back,
                (Err(ProxyError::Closed { .. }), Some(spare)) => spare,
                (Err(error), _) => return Err(error),
            };
        }
        let start = Instant::now();
        let (peer, connection) = connect(peers, self.0.connect_timeout).await?;
        let link = Link::new(peer, connection, arrived, Some(start.elapsed()));
        match self.exchange(link, request, turn).await? {
            Exchange::Answered(answer) => Ok(answer),
            Exchange::NotSent(_, source) => Err(ProxyError::Closed {
                server: Arc::clone(peer.server().name()),
                source,
            }),
        }
    }

    async fn exchange(
        &self,
        mut link: Link<'_, B>,
        mut request: Request<Upload<B>>,
        turn: Option<&Turn>,
    ) -> Result<Exchange<B>, ProxyError> {
        let server = link.peer.server();
        let name = || Arc::clone(server.name());
        set_host(request.headers_mut(), &self.0.host, server);
        let sent = link.connection.send(request);
        match with_patience(sent, self.0.response_timeout, turn).await {
            Ok(Ok(response)) => Ok(Exchange::Answered(link.answer(response))),
            Ok(Err(mut error)) => match error.take_message() {
                Some(request) => Ok(Exchange::NotSent(request, error.into_error())),
                None => Err(ProxyError::of_exchange(error.into_error(), name())),
            },
            Err(OutOfPatience) => Err(ProxyError::ResponseTimeout { server: name() }),
        }
    }
}

/// A copy of a request that may be sent twice: it asks for nothing to be done that is not done
/// already when it arrives again (RFC 9110 section 9.2.2), and has no body.
fn repeatable<B: Body<Data = Bytes>>(request: &Request<Upload<B>>) -> Option<Request<Upload<B>>> {
    let may_be = request.method().is_idempotent() && request.body().is_end_stream();
    let may_be = may_be && !request.headers().contains_key(UPGRADE);
    may_be.then(|| {
        let mut copy = Request::new(Upload::none());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    })
}

/// Sets what the upstream is to see as the host.
fn set_host(headers: &mut HeaderMap, host: &HostHeader, server: &Server) {
    match host {
        // An HTTP/1.0 client need not name a host.
        HostHeader::Preserve if headers.contains_key(HOST) => return,
        HostHeader::Preserve | HostHeader::Upstream => {
            headers.insert(HOST, server.host_header().clone())
        }
        HostHeader::Fixed(host) => headers.insert(HOST, host.clone()),
    };
}

/// What became of a request that was given to a connection.
enum Exchange<B> {
    Answered(Answer),
    /// Nothing was sent: the connection had been closed.
    NotSent(Request<Upload<B>>, hyper::Error),
}

/// The head of a response, the connection that its body comes from, and how it came about.
pub(super) struct Answer {
    pub(super) response: Response<Incoming>,
    pub(super) connection: Box<dyn Release>,
    pub(super) upstreamed: Upstreamed,
}

/// A connection taken for one request.
struct Link<'p, B> {
    peer: &'p Arc<Peer<B>>,
    connection: Box<Connection<B>>,
    arrived: Instant,
    connect: Option<Duration>,
}

impl<'p, B> Link<'p, B> {
    fn new(
        peer: &'p Arc<Peer<B>>,
        connection: Box<Connection<B>>,
        arrived: Instant,
        connect: Option<Duration>,
    ) -> Self {
        Self {
            peer,
            connection,
            arrived,
            connect,
        }
    }
}

impl<B: Send + 'static> Link<'_, B> {
    fn answer(self, response: Response<Incoming>) -> Answer {
        let upstreamed = Upstreamed {
            server: Arc::clone(self.peer.server().name()),
            status: response.status(),
            connect: self.connect,
            head: self.arrived.elapsed(),
        };
        Answer {
            response,
            connection: self.connection,
            upstreamed,
        }
    }
}
