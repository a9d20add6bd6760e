//! The stack of Envoy's rate limit service, on the listener that decides about requests which other
//! proxies forward. Its calls are logged and counted as requests are; lists, bans and upstreams
//! have nothing to do with them.

use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;
use weir_config::{EnvoyService, Settings};
use weir_envoy::{EnvoyLayer, EnvoyRateLimit, SHOULD_RATE_LIMIT};
use weir_http::request::HttpRequest;
use weir_middleware::{Backend, DescriptorLimits, Domains, ForwardAuthLayer, UpstreamRouter};
use weir_rules::AccountRules;
use weir_telemetry::ListenerKind;
use weir_telemetry::events::LastWarning;

use super::forward_auth::refusal;
use super::stack::{Checked, Layers, SharedState};
use super::upstreams::ActiveUpstreams;

/// The service for calls. `S` is the service of an upstream, which it never calls.
pub(super) type EnvoyStack<S> = TrustedPeers<Checked<EnvoyRateLimit<UpstreamRouter<S>>>>;

/// Whether a request to a listener for decisions is a call of the rate limit service.
pub(super) fn is_call<Q: HttpRequest>(request: &Q) -> bool {
    request.uri().path() == SHOULD_RATE_LIMIT
}

/// The layers of a configuration for calls.
pub(super) struct EnvoyLayers {
    trusted: ForwardAuthLayer,
    layers: Layers,
    domains: Arc<Domains>,
    accounts: AccountRules,
    warned: Arc<LastWarning>,
}

impl EnvoyLayers {
    /// Prepares all that workers share, from the same values as [`Layers::new`].
    pub(super) fn new(settings: &Settings, service: &EnvoyService, shared: &SharedState) -> Self {
        let calls = settings.for_calls(&service.route);
        let layers = Layers::on(
            ListenerKind::Decide,
            &calls,
            &ActiveUpstreams::default(),
            shared,
        );
        Self {
            trusted: ForwardAuthLayer::new(settings.decides_for().unwrap_or_default()),
            layers: layers.refusing(refusal),
            domains: Arc::clone(&service.domains),
            accounts: settings.account.clone(),
            warned: Arc::default(),
        }
    }

    /// Stacks the layers on a worker's store, as [`Layers::stack`] does.
    pub(super) fn stack<S>(&self, backend: Backend) -> EnvoyStack<S> {
        let (domains, warned) = (Arc::clone(&self.domains), Arc::clone(&self.warned));
        let limits = DescriptorLimits::new(backend.store, domains, self.accounts.clone())
            .with_wait_spreader(self.layers.waits().clone())
            .with_clock(backend.clock, backend.tasks);
        TrustedPeers {
            inner: self
                .layers
                .checked(EnvoyLayer::new(limits, warned).service()),
            trusted: self.trusted.clone(),
        }
    }
}

/// Marks the calls of peers that are not trusted, which [`refusal`] refuses.
pub(super) struct TrustedPeers<S> {
    inner: S,
    trusted: ForwardAuthLayer,
}

impl<S: Service<Q>, Q: HttpRequest> Service<Q> for TrustedPeers<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Q) -> S::Future {
        if let Err(untrusted) = self.trusted.require_trusted(request.extensions()) {
            request.extensions_mut().insert(untrusted);
        }
        self.inner.call(request)
    }
}
