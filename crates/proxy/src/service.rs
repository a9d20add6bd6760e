//! The proxy as a tower service: a request goes to the upstream, and its response comes back fit
//! for the client.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{SET_COOKIE, VIA};
use http::{Extensions, Response, StatusCode, Version, request};
use http_body::Body;
use http_body_util::Full;
use tokio::time::timeout_at;
use tower::Service;
use weir_http::request::{BoxedRequest, HttpRequest, via};
use weir_runtime::loop_time;
use weir_runtime::send_gate::SendGate;
use weir_telemetry::RequestId;

use super::attempt::UpstreamResponse;
use super::endpoint::Affinity;
use super::error::ProxyError;
use super::hop_by_hop;
use super::proxy_header::ConnectionAddrs;
use super::request::{Outbound, max_forwards_reached, spend_max_forwards};
use super::request_buffering::RequestBuffering;
use super::response_body::ProxyBody;
use super::settings::Timeouts;
use super::upstream::Upstream;
use super::websocket;

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::service";

/// Forwards requests to an upstream.
///
/// Every request gets a response: the upstream's, with
/// [`UpstreamOutcome`](weir_telemetry::UpstreamOutcome) in its extensions, or a problem of the
/// proxy's own, with [`UpstreamFailed`](weir_telemetry::UpstreamFailed).
#[derive(Clone)]
pub struct Proxy(Arc<Forwarding>);

#[derive(Clone)]
struct Forwarding {
    upstream: Upstream,
    /// Whether [`refusal`](super::refusal) was asked about all requests.
    is_checked: bool,
    key: Option<RequestKey>,
    client: Option<ConnectionAddrsOf>,
    buffering: Option<Arc<RequestBuffering>>,
    request_id: Option<RequestIdOf>,
    is_secure: Option<IsSecure>,
}

/// The id of a request, if it has one.
pub type RequestIdOf = fn(&Extensions) -> Option<Arc<RequestId>>;

/// Whether a request's client has asked by TLS.
pub type IsSecure = fn(&Extensions) -> bool;

/// The hash of a request's subject, by which its server is chosen.
pub type RequestKey = Arc<dyn Fn(&request::Parts) -> Option<u64> + Send + Sync>;

/// The addresses of the client's connection, for the PROXY protocol.
pub type ConnectionAddrsOf = fn(&request::Parts) -> Option<ConnectionAddrs>;

impl Proxy {
    /// A proxy in front of `upstream`.
    pub fn new(upstream: Upstream) -> Self {
        Self(Arc::new(Forwarding {
            upstream,
            is_checked: false,
            key: None,
            client: None,
            buffering: None,
            request_id: None,
            is_secure: None,
        }))
    }

    /// Sends these ids to the upstream.
    #[must_use]
    pub fn with_request_ids(self, request_id: RequestIdOf) -> Self {
        self.with(|forwarding| forwarding.request_id = Some(request_id))
    }

    /// Chooses servers by this hash.
    #[must_use]
    pub fn with_key(self, key: RequestKey) -> Self {
        self.with(|forwarding| forwarding.key = Some(key))
    }

    /// Sets `Secure` cookies for clients that have asked by TLS.
    #[must_use]
    pub fn with_secure(self, is_secure: IsSecure) -> Self {
        self.with(|forwarding| forwarding.is_secure = Some(is_secure))
    }

    /// Sends these addresses to servers that get PROXY headers.
    #[must_use]
    pub fn with_connection_addrs(self, client: ConnectionAddrsOf) -> Self {
        self.with(|forwarding| forwarding.client = Some(client))
    }

    /// Reads request bodies before it sends them on, if `buffering` is set.
    #[must_use]
    pub fn with_request_buffering(self, buffering: Option<Arc<RequestBuffering>>) -> Self {
        self.with(|forwarding| forwarding.buffering = buffering)
    }

    /// Replaces the upstream's timeouts.
    #[must_use]
    pub fn with_timeouts(self, timeouts: Timeouts) -> Self {
        self.with(|forwarding| forwarding.upstream = forwarding.upstream.with_timeouts(timeouts))
    }

    /// Skips the checks of [`refusal`](super::refusal), which the caller has made.
    #[must_use]
    pub fn assume_checked(self) -> Self {
        self.with(|forwarding| forwarding.is_checked = true)
    }

    fn with(mut self, change: impl FnOnce(&mut Forwarding)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl<Q, B> Service<Q> for Proxy
where
    Q: HttpRequest<Body = B>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Q) -> ResponseFuture {
        let mut request = request.into_boxed();
        if spend_max_forwards(&mut request.head) {
            let response = max_forwards_reached().map(ProxyBody::full);
            return ResponseFuture(Box::pin(ready(response)));
        }
        let id = self.0.request_id.and_then(|of| of(request.extensions()));
        let forwarding = Arc::clone(&self.0);
        if forwarding.buffering.is_some() && !request.body().is_end_stream() {
            return forwarding.buffer(request, id);
        }
        // Before the future is made, which would otherwise have room for the request as well.
        let outbound = Outbound::from_request(request, forwarding.is_checked);
        ResponseFuture(Box::pin(async move {
            let forwarded = match outbound {
                Ok(outbound) => forwarding.forward(outbound, id.as_ref()).await,
                Err(error) => Err(error),
            };
            forwarded.unwrap_or_else(|error| forwarding.respond(error, id.as_deref()))
        }))
    }
}

/// The response to come. Dropping it gives the request up, and the connection that it is on.
pub struct ResponseFuture(Pin<Box<dyn Future<Output = Response<ProxyBody>> + Send>>);

impl Future for ResponseFuture {
    type Output = Result<Response<ProxyBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl Forwarding {
    /// Forwards a request whose body is read first. A gate holds it back until its server has room
    /// for it.
    fn buffer<B>(
        self: Arc<Self>,
        mut request: BoxedRequest<B>,
        id: Option<Arc<RequestId>>,
    ) -> ResponseFuture
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let gate = request.extensions_mut().remove::<SendGate>();
        let forward = async move |forwarding: &Self, id: Option<&Arc<RequestId>>| {
            let read = RequestBuffering::read(forwarding.buffering.as_deref(), request).await;
            let (request, replay) = read.map_err(ProxyError::from_request_body)?;
            if let Some(gate) = gate {
                gate.pass().await;
            }
            let mut outbound = Outbound::from_request(request, forwarding.is_checked)?;
            outbound.replay = replay;
            forwarding.forward(outbound, id).await
        };
        ResponseFuture(Box::pin(async move {
            let forwarded = forward(&self, id.as_ref()).await;
            forwarded.unwrap_or_else(|error| self.respond(error, id.as_deref()))
        }))
    }

    async fn forward<B>(
        &self,
        mut outbound: Box<Outbound<B>>,
        id: Option<&Arc<RequestId>>,
    ) -> Result<Response<ProxyBody>, ProxyError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        if let Some(id) = id {
            outbound.set_request_id(Arc::clone(id));
        }
        let arrived = loop_time::now();
        if let Some(client) = self.client {
            outbound.client = client(&outbound.head).map(Box::new);
        }
        let head = &mut outbound.head;
        let key = self.key.as_ref().and_then(|key| key(head));
        let sticky = self.upstream.sticky();
        let is_secure = self.is_secure.filter(|_| sticky.is_some());
        let is_secure = is_secure.is_some_and(|of| of(&head.extensions));
        let own = sticky.and_then(|sticky| sticky.take(&mut head.headers));
        let server = own.map(|own| own.index);
        let affinity = Affinity { key, server };
        let deadline = self.upstream.deadline(arrived);
        let sent = self.upstream.send(outbound, affinity, arrived);
        let response = match deadline {
            None => sent.await?,
            Some(deadline) => {
                let sent = Box::pin(timeout_at(deadline, sent)).await;
                sent.map_err(|_| ProxyError::TotalTimeout)??
            }
        };
        let keeps_cookie = own.is_some_and(|own| own.keeps(response.server));
        let sticky = sticky.filter(|_| !keeps_cookie);
        let cookie = sticky.and_then(|sticky| sticky.cookie(response.server, is_secure));
        let mut response = to_client(response, &self.upstream)?;
        if let Some(cookie) = cookie {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
        Ok(match deadline {
            None => response,
            Some(deadline) => response.map(|body| body.until(deadline)),
        })
    }

    /// The response to a request with this id that was not forwarded, or got none.
    fn respond(&self, error: ProxyError, id: Option<&RequestId>) -> Response<ProxyBody> {
        let upstream = self.upstream.name();
        let cause = error.source().map(tracing::field::display);
        let request_id = id.map(RequestId::text);
        if error.is_client_fault() {
            tracing::debug!(target: TARGET, upstream, %error, cause, request_id, "upstream request failed");
        } else {
            tracing::warn!(target: TARGET, upstream, %error, cause, request_id, "upstream request failed");
        }
        error.into_response().map(ProxyBody::full)
    }
}

/// Makes an upstream's response fit to be sent to the client.
fn to_client(
    response: UpstreamResponse,
    upstream: &Upstream,
) -> Result<Response<ProxyBody>, ProxyError> {
    let UpstreamResponse {
        mut head,
        has_hop_by_hop,
        body,
        upgrade,
        outcome,
        server: _,
    } = response;
    let is_upgrade = head.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let Some(upgrade) = upgrade.as_ref().filter(|_| is_upgrade) {
        let checked = upgrade.check(head.headers());
        let server = || Arc::clone(&outcome.server);
        checked.map_err(|source| ProxyError::Handshake {
            server: server(),
            source,
        })?;
    }
    set_headers(&mut head, has_hop_by_hop);
    if is_upgrade {
        let server = &outcome.server;
        let unasked = || ProxyError::Upgraded {
            server: server.clone(),
        };
        let (client, connection) = upgrade.zip(body.into_connection()).ok_or_else(unasked)?;
        let (idle_timeout, shutdown) = upstream.tunnel_bounds();
        let tunnel = websocket::begin(&mut head, client, connection, idle_timeout, shutdown);
        head.extensions_mut().insert(tunnel);
        head.extensions_mut().insert(outcome);
        return Ok(head.map(|()| ProxyBody::full(Full::default())));
    }
    // To a client that asks by a stream, it would say that the WebSocket has begun.
    if upgrade.is_some_and(|upgrade| upgrade.is_stream()) && head.status().is_success() {
        let server = outcome.server;
        return Err(ProxyError::NotUpgraded { server });
    }
    head.extensions_mut().insert(outcome);
    Ok(head.map(|()| ProxyBody::upstream(body)))
}

fn set_headers<B>(response: &mut Response<B>, has_hop_by_hop: bool) {
    let came_by = response.version();
    *response.version_mut() = Version::HTTP_11;
    let headers = response.headers_mut();
    if has_hop_by_hop {
        hop_by_hop::strip(headers);
    }
    headers.append(VIA, via(came_by));
}
