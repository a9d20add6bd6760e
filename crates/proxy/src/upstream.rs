//! An upstream: a request goes in, the head of a response comes out.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use tokio::time::Instant;

use super::attempt::{UpstreamInner, UpstreamResponse};
use super::balance::UpstreamState;
use super::endpoint::{Affinity, ConnectionBudget, Endpoints};
use super::error::ProxyError;
use super::request::Outbound;
use super::retry::Attempts;
use super::settings::{Timeouts, UpstreamSettings};
use super::sticky::StickyCookies;
use super::tls::Protocol;
use super::websocket::ShutdownSignal;

/// An upstream with its connections. Clones share them.
///
/// Each worker thread has one of its own, so that a request never leaves its thread.
#[derive(Clone)]
pub struct Upstream(Arc<UpstreamInner>);

impl Upstream {
    /// An upstream of the servers in `settings`, with no connection yet.
    pub fn new(settings: UpstreamSettings) -> Self {
        let state = UpstreamState::new(&settings);
        Self::with_state(
            ConnectionBudget::default(),
            ShutdownSignal::never(),
            state,
            settings,
        )
    }

    /// An upstream with no more connections than `budget` has left, whose WebSockets are closed in
    /// order at `shutdown`. All workers share `state`.
    pub fn with_state(
        budget: ConnectionBudget,
        shutdown: ShutdownSignal,
        state: Arc<UpstreamState>,
        settings: UpstreamSettings,
    ) -> Self {
        let endpoints = Endpoints::new(&settings, &budget, &state, None);
        Self::with_endpoints(endpoints, budget, shutdown, state, settings)
    }

    /// The upstream that takes the place of this one. Servers whose state has stayed keep their
    /// connections; others get no new requests, and those in flight go on.
    #[must_use]
    pub fn replaced(&self, state: Arc<UpstreamState>, settings: UpstreamSettings) -> Self {
        let (budget, shutdown) = (self.0.budget.clone(), self.0.shutdown.clone());
        let endpoints = Endpoints::new(&settings, &budget, &state, Some(&self.0.endpoints));
        Self::with_endpoints(endpoints, budget, shutdown, state, settings)
    }

    fn with_endpoints(
        endpoints: Endpoints,
        budget: ConnectionBudget,
        shutdown: ShutdownSignal,
        state: Arc<UpstreamState>,
        settings: UpstreamSettings,
    ) -> Self {
        let sticky = settings.sticky.as_ref();
        let sticky = sticky.map(|sticky| StickyCookies::new(sticky, &settings));
        Self(Arc::new(UpstreamInner {
            endpoints: Arc::new(endpoints),
            state,
            sticky: sticky.map(Arc::new),
            budget,
            name: settings.name.into(),
            timeouts: settings.timeouts,
            retries: settings.retries,
            host: settings.host,
            shutdown,
        }))
    }

    /// The cookies that lead clients back to their servers, if it sets some.
    pub(super) fn sticky(&self) -> Option<&StickyCookies> {
        self.0.sticky.as_deref()
    }

    /// An upstream with other timeouts that shares these connections.
    #[must_use]
    pub fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        let shared = UpstreamInner::clone(&self.0);
        Self(Arc::new(UpstreamInner { timeouts, ..shared }))
    }

    /// The end of the total timeout of a request that arrived at this time, if there is one.
    pub(super) fn deadline(&self, arrived: Instant) -> Option<Instant> {
        self.0.timeouts.total.map(|total| arrived + total)
    }

    /// How long nothing may pass through a tunnel, and the signal of the gateway's shutdown.
    pub(super) fn tunnel_bounds(&self) -> (Duration, ShutdownSignal) {
        (self.0.timeouts.body, self.0.shutdown.clone())
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Sends the request to the next server, or to the one that its `affinity` leads to, on a
    /// kept-alive connection if there is one, and awaits the head of the response.
    ///
    /// A request of which part was sent is sent again only if it is idempotent and has no body:
    /// when a reused connection closes before the first byte of a response, as the server most
    /// likely closed it while the request was on its way; and otherwise as the upstream's
    /// [`Retries`](super::Retries) say.
    pub(super) async fn send<B>(
        &self,
        mut outbound: Box<Outbound<B>>,
        affinity: Affinity,
        arrived: Instant,
    ) -> Result<UpstreamResponse, ProxyError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let upstream = &*self.0;
        let picked = upstream.endpoints.pick_any(affinity, arrived);
        let picked = picked.ok_or(ProxyError::NoServer)?;
        let is_upgrade = outbound.upgrade.is_some();
        if is_upgrade && picked.endpoint.server().protocol() == Protocol::Http2 {
            let server = Arc::clone(picked.endpoint.server().name());
            return Err(ProxyError::UpgradeByHttp2 { server });
        }
        let repeatable = outbound.is_repeatable();
        let exchanged = match picked.endpoint.idle(arrived, is_upgrade) {
            None => None,
            Some(channel) => {
                let endpoint = picked.endpoint;
                let exchange = upstream.exchange(endpoint, channel, &mut outbound, arrived);
                match exchange.await {
                    Ok(exchanged) if !upstream.retries_status(exchanged.status()) => {
                        return Ok(upstream.respond(exchanged, picked, outbound, arrived, None));
                    }
                    exchanged => Some(exchanged),
                }
            }
        };
        let attempts = Attempts::new(upstream, repeatable, outbound, affinity, arrived);
        Box::pin(attempts.run(picked, exchanged)).await
    }
}
