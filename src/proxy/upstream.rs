//! An upstream: a request goes in, the head of a response comes out.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt;
use http::header::HOST;
use http::{HeaderMap, Response};
use http_body::Body;
use tokio::time::Instant;

use super::connection::Connection;
use super::connection_budget::ConnectionBudget;
use super::download::{ResponseReader, Rest};
use super::error::ProxyError;
use super::exchange::{Exchange, Exchanged};
use super::peer::Endpoint;
use super::peers::{Endpoints, connect};
use super::request::Outbound;
use super::server::Server;
use super::settings::{HostHeader, UpstreamSettings};
use super::upgrade::{Leaving, Upgrade};
use crate::telemetry::UpstreamOutcome;

/// An upstream with its connections. Clones share them.
///
/// Each worker thread has one of its own, so that a request never leaves its thread.
#[derive(Clone)]
pub struct Upstream(Arc<Inner>);

struct Inner {
    name: String,
    peers: Endpoints,
    budget: ConnectionBudget,
    connect_timeout: Duration,
    response_timeout: Duration,
    host: HostHeader,
    leaving: Leaving,
}

impl Upstream {
    /// An upstream of the servers in `settings`, with no connection yet.
    pub fn new(settings: UpstreamSettings) -> Self {
        Self::within(ConnectionBudget::default(), Leaving::never(), settings)
    }

    /// The same with no more connections than `budget` has left, whose WebSockets are closed in order when the
    /// gateway is `leaving`.
    pub fn within(budget: ConnectionBudget, leaving: Leaving, settings: UpstreamSettings) -> Self {
        Self(Arc::new(Inner {
            peers: Endpoints::new(&settings, &budget),
            budget,
            name: settings.name,
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            host: settings.host,
            leaving,
        }))
    }

    pub(super) fn leaving(&self) -> &Leaving {
        &self.0.leaving
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl Upstream {
    /// Sends the request to the server whose turn it is, on a kept-alive connection if there is
    /// one, and awaits the head of the response.
    ///
    /// A request of which something was sent is not sent again, with one exception: when a
    /// connection that was kept closes without a byte of an answer, the server most likely
    /// gave it up while the request was on its way, and a request that may be repeated is.
    pub(super) async fn send<B>(
        &self,
        mut outbound: Outbound<B>,
        arrived: Instant,
    ) -> Result<Answer, ProxyError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let peers = self.0.peers.in_turn(arrived);
        let peer = peers.clone().next().ok_or(ProxyError::NoServer)?;
        let repeatable = is_repeatable(&outbound);
        if let Some(connection) = peer.idle(arrived) {
            match self
                .exchange(peer, connection, &mut outbound, arrived)
                .await
            {
                Ok(exchanged) => return Ok(self.answer(exchanged, peer, outbound, arrived, None)),
                Err(ProxyError::Closed { .. }) if !outbound.sending.has_begun() => {}
                Err(ProxyError::Closed { .. }) if repeatable => {}
                Err(error) => return Err(error),
            }
        }
        let start = Instant::now();
        let (peer, connection) = Box::pin(self.connect(peers)).await?;
        let connected = Instant::now();
        let exchange = self.exchange(peer, connection, &mut outbound, connected);
        let exchanged = exchange.await?;
        Ok(self.answer(exchanged, peer, outbound, arrived, Some(connected - start)))
    }

    /// Opens a connection, as soon as there may be another.
    async fn connect<'p>(
        &self,
        peers: impl Iterator<Item = &'p Arc<Endpoint>> + Clone,
    ) -> Result<(&'p Arc<Endpoint>, Box<Connection>), ProxyError> {
        let within = self.0.connect_timeout;
        let permit = self.0.budget.permit(within).await?;
        let (peer, mut connection) = connect(peers, within).await?;
        connection.permit = permit;
        Ok((peer, connection))
    }

    /// Sends the request on `connection`, where the upstream's turn begins `now`.
    fn exchange<'o, B>(
        &self,
        peer: &Endpoint,
        connection: Box<Connection>,
        outbound: &'o mut Outbound<B>,
        now: Instant,
    ) -> impl Future<Output = Result<Exchanged, ProxyError>> + use<'o, B>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Outbound { head, sending, .. } = outbound;
        set_host(&mut head.headers, &self.0.host, peer.server());
        sending.begin(head, now);
        let server = Arc::clone(peer.server().name());
        Exchange::new(connection, sending, &head.method, self.0.response_timeout)
            .map_err(|error| ProxyError::of_exchange(error, server))
    }

    fn answer<B>(
        &self,
        exchanged: Exchanged,
        peer: &Endpoint,
        outbound: Outbound<B>,
        arrived: Instant,
        connect: Option<Duration>,
    ) -> Answer
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Exchanged {
            head,
            mut connection,
            sent,
        } = exchanged;
        let rest = match connection.writer.take_if(|_| !sent) {
            Some(writer) => Some(Rest::send(
                outbound.sending,
                writer,
                self.0.response_timeout,
            )),
            None => None,
        };
        let upstreamed = UpstreamOutcome {
            server: Arc::clone(peer.server().name()),
            status: head.response.status(),
            connect,
            head: arrived.elapsed(),
        };
        Answer {
            response: head.response,
            download: ResponseReader::new(head.body, connection, rest, head.persists),
            upgrade: outbound.upgrade,
            upstreamed,
        }
    }
}

/// Whether a request may be sent twice: it asks for nothing to be done that is not done already when
/// it arrives again (RFC 9110 section 9.2.2), and has no body.
fn is_repeatable<B>(outbound: &Outbound<B>) -> bool {
    outbound.head.method.is_idempotent()
        && !outbound.sending.has_body()
        && outbound.upgrade.is_none()
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

/// The head of a response, the body that is yet to come, and how it came about.
pub(super) struct Answer {
    pub(super) response: Response<()>,
    pub(super) download: ResponseReader,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) upstreamed: UpstreamOutcome,
}
