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
use super::endpoint::{ConnectionBudget, Endpoint, Endpoints, connect};
use super::error::ProxyError;
use super::exchange::{Exchange, Exchanged};
use super::request::Outbound;
use super::response_body::{PendingUpload, ResponseReader};
use super::settings::{HostHeader, Server, UpstreamSettings};
use super::websocket::{ShutdownSignal, Upgrade};
use crate::telemetry::UpstreamOutcome;
use crate::turn;

/// An upstream with its connections. Clones share them.
///
/// Each worker thread has one of its own, so that a request never leaves its thread.
#[derive(Clone)]
pub struct Upstream(Arc<Shared>);

struct Shared {
    name: String,
    endpoints: Endpoints,
    budget: ConnectionBudget,
    connect_timeout: Duration,
    response_timeout: Duration,
    host: HostHeader,
    shutdown: ShutdownSignal,
}

impl Upstream {
    /// An upstream of the servers in `settings`, with no connection yet.
    pub fn new(settings: UpstreamSettings) -> Self {
        Self::within(
            ConnectionBudget::default(),
            ShutdownSignal::never(),
            settings,
        )
    }

    /// The same with no more connections than `budget` has left, whose WebSockets are closed in
    /// order at `shutdown`.
    pub fn within(
        budget: ConnectionBudget,
        shutdown: ShutdownSignal,
        settings: UpstreamSettings,
    ) -> Self {
        Self(Arc::new(Shared {
            endpoints: Endpoints::new(&settings, &budget),
            budget,
            name: settings.name,
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            host: settings.host,
            shutdown,
        }))
    }

    pub(super) fn shutdown(&self) -> &ShutdownSignal {
        &self.0.shutdown
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Sends the request to the server whose turn it is, on a kept-alive connection if there is
    /// one, and awaits the head of the response.
    ///
    /// A request is not sent again once part of it was sent, with one exception: when a reused
    /// connection closes before the first byte of a response, the server most likely closed it
    /// while the request was on its way, so an idempotent request is repeated.
    pub(super) async fn send<B>(
        &self,
        mut outbound: Outbound<B>,
        arrived: Instant,
    ) -> Result<UpstreamResponse, ProxyError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let endpoints = self.0.endpoints.in_turn(arrived);
        let endpoint = endpoints.clone().next().ok_or(ProxyError::NoServer)?;
        let repeatable = is_repeatable(&outbound);
        if let Some(connection) = endpoint.idle(arrived) {
            match self
                .exchange(endpoint, connection, &mut outbound, arrived)
                .await
            {
                Ok(exchanged) => {
                    return Ok(self.respond(exchanged, endpoint, outbound, arrived, None));
                }
                Err(ProxyError::Closed { .. }) if !outbound.writer.has_begun() => {}
                Err(ProxyError::Closed { .. }) if repeatable => {}
                Err(error) => return Err(error),
            }
        }
        let start = Instant::now();
        let (endpoint, connection) = Box::pin(self.connect(endpoints)).await?;
        let connected = Instant::now();
        let exchange = self.exchange(endpoint, connection, &mut outbound, connected);
        let exchanged = exchange.await?;
        Ok(self.respond(
            exchanged,
            endpoint,
            outbound,
            arrived,
            Some(connected - start),
        ))
    }

    /// Opens a connection, as soon as there may be another.
    async fn connect<'e>(
        &self,
        endpoints: impl Iterator<Item = &'e Endpoint> + Clone,
    ) -> Result<(&'e Endpoint, Box<Connection>), ProxyError> {
        let within = self.0.connect_timeout;
        let permit = self.0.budget.permit(within).await?;
        let (endpoint, mut connection) = connect(endpoints, within).await?;
        connection.permit = permit;
        Ok((endpoint, connection))
    }

    /// Sends the request on `connection`, where the upstream's turn begins `now`.
    fn exchange<'o, B>(
        &self,
        endpoint: &Endpoint,
        connection: Box<Connection>,
        outbound: &'o mut Outbound<B>,
        now: Instant,
    ) -> impl Future<Output = Result<Exchanged, ProxyError>> + use<'o, B>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Outbound { head, writer, .. } = outbound;
        set_host(&mut head.headers, &self.0.host, endpoint.server());
        writer.begin(head, now);
        let server = Arc::clone(endpoint.server().name());
        Exchange::new(connection, writer, &head.method, self.0.response_timeout)
            .map_err(|error| ProxyError::from_exchange(error, server))
    }

    fn respond<B>(
        &self,
        exchanged: Exchanged,
        endpoint: &Endpoint,
        outbound: Outbound<B>,
        arrived: Instant,
        connect: Option<Duration>,
    ) -> UpstreamResponse
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Exchanged {
            head,
            mut connection,
            sent,
        } = exchanged;
        let pending = match connection.writer.take_if(|_| !sent) {
            Some(writer) => Some(PendingUpload::send(
                outbound.writer,
                writer,
                self.0.response_timeout,
            )),
            None => None,
        };
        let outcome = UpstreamOutcome {
            server: Arc::clone(endpoint.server().name()),
            status: head.response.status(),
            connect,
            head: turn::now().saturating_duration_since(arrived),
        };
        UpstreamResponse {
            head: head.response,
            has_hop_by_hop: head.has_hop_by_hop,
            body: ResponseReader::new(head.body, connection, pending, head.keep_alive),
            upgrade: outbound.upgrade,
            outcome,
        }
    }
}

/// Whether a request may be sent twice: it asks for nothing to be done that is not done already
/// when it arrives again (RFC 9110 section 9.2.2), and has no body.
fn is_repeatable<B>(outbound: &Outbound<B>) -> bool {
    outbound.head.method.is_idempotent()
        && !outbound.writer.has_body()
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
pub(super) struct UpstreamResponse {
    pub(super) head: Response<()>,
    /// Whether some of its headers concern the connection only.
    pub(super) has_hop_by_hop: bool,
    pub(super) body: ResponseReader,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) outcome: UpstreamOutcome,
}
