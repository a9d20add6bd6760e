//! One attempt at a request: it goes out to one server, and the head of a response comes back.

use std::error::Error as StdError;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use tokio::time::Instant;
use weir_http::request::give_back;
use weir_runtime::loop_time;
use weir_telemetry::UpstreamOutcome;

use super::balance::{Retries, UpstreamState};
use super::channel::{Channel, ChannelResponse};
use super::endpoint::{ConnectionBudget, Endpoint, Endpoints, Picked};
use super::error::ProxyError;
use super::exchange::Exchanged;
use super::hop_by_hop;
use super::http1::RequestWriter;
use super::outgoing_body::OutgoingBody;
use super::request::Outbound;
use super::response_body::{PendingUpload, ResponseReader, UpstreamBody};
use super::settings::{HostHeader, Server, Timeouts};
use super::sticky::StickyCookies;
use super::websocket::{ShutdownSignal, Upgrade};

/// What the clones of an upstream share, and copies with other timeouts have in common.
#[derive(Clone)]
pub(super) struct UpstreamInner {
    pub(super) name: Arc<str>,
    pub(super) endpoints: Arc<Endpoints>,
    pub(super) state: Arc<UpstreamState>,
    pub(super) sticky: Option<Arc<StickyCookies>>,
    pub(super) budget: ConnectionBudget,
    pub(super) timeouts: Timeouts,
    pub(super) retries: Option<Retries>,
    pub(super) host: HostHeader,
    pub(super) shutdown: ShutdownSignal,
}

impl UpstreamInner {
    pub(super) fn retries_status(&self, status: StatusCode) -> bool {
        let retries = self.retries.as_ref();
        retries.is_some_and(|retries| retries.on_status.contains(status))
    }

    /// Sends the request on `channel`. The response timeout counts from `now` on.
    pub(super) async fn exchange<B>(
        &self,
        endpoint: &Endpoint,
        channel: Channel,
        outbound: &mut Outbound<B>,
        now: Instant,
    ) -> Result<ChannelResponse, ProxyError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let server = endpoint.server();
        set_host(&mut outbound.head.headers, &self.host, server);
        let exchange = channel.exchange(outbound, server.is_secure(), self.timeouts.response, now);
        let exchanged = exchange.await;
        exchanged.map_err(|error| ProxyError::from_exchange(error, Arc::clone(server.name())))
    }

    #[expect(clippy::boxed_local, reason = "taking it out of its box would copy it")]
    pub(super) fn respond<B>(
        &self,
        exchanged: ChannelResponse,
        picked: Picked<'_>,
        mut outbound: Box<Outbound<B>>,
        arrived: Instant,
        connect: Option<Duration>,
    ) -> UpstreamResponse
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let (status, now) = (exchanged.status(), loop_time::now());
        let Picked {
            endpoint,
            mut attempt,
            index,
        } = picked;
        attempt.responded(status, now);
        let outcome = UpstreamOutcome {
            server: Arc::clone(endpoint.server().name()),
            status,
            connect,
            arrived,
            head: now.saturating_duration_since(arrived),
        };
        let (head, has_hop_by_hop, body) = match exchanged {
            ChannelResponse::Http1(exchanged) => {
                let Exchanged {
                    head,
                    mut connection,
                    sent,
                } = exchanged;
                let timeout = self.timeouts.response;
                let pending = connection.writer.take_if(|_| !sent);
                let pending = pending.map(|writer| {
                    let request = mem::replace(
                        &mut outbound.writer,
                        RequestWriter::new(OutgoingBody::none()),
                    );
                    PendingUpload::send(request, writer, timeout)
                });
                connection.attempt = Some(attempt);
                connection
                    .reader
                    .reuse(mem::take(&mut outbound.head.headers));
                let (body, keep_alive) = (head.body, head.keep_alive);
                let timeout = self.timeouts.body;
                let body = ResponseReader::new(body, connection, pending, keep_alive, timeout);
                let body = UpstreamBody::Http1(body);
                let mut response = head.response;
                let extensions = mem::take(response.extensions_mut());
                *response.extensions_mut() = mem::take(&mut outbound.head.extensions);
                response.extensions_mut().clear();
                response.extensions_mut().extend(extensions);
                (response, head.has_hop_by_hop, body)
            }
            ChannelResponse::Http2(response) => {
                let (head, mut body) = response.into_parts();
                body.keep(attempt);
                let head = Response::from_parts(head, ());
                let has_hop_by_hop = hop_by_hop::has_any(head.headers());
                let body = UpstreamBody::http2(body, self.timeouts.body);
                (head, has_hop_by_hop, body)
            }
        };
        give_back(outbound.head);
        UpstreamResponse {
            head,
            has_hop_by_hop,
            body,
            upgrade: outbound.upgrade,
            outcome,
            server: index,
        }
    }
}

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
    pub(super) body: UpstreamBody,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) outcome: UpstreamOutcome,
    /// The index of the server among those of the upstream.
    pub(super) server: usize,
}
