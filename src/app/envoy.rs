//! The stack of Envoy's rate limit service, on the listener that decides about requests which other
//! proxies forward. Its calls are logged and counted as requests are; lists, bans and upstreams
//! have nothing to do with them.

use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;
use weir_config::{EnvoyService, Settings};
use weir_http::request::HttpRequest;
use weir_limit::time::Clock;
use weir_middleware::{
    BackgroundTasks, Domains, EnvoyLayer, EnvoyRateLimit, ForwardAuthLayer, KnownBans,
    SHOULD_RATE_LIMIT, TarpitSlots, UpstreamRouter, WaitSpreader,
};
use weir_rules::AccountRules;
use weir_store::Store;
use weir_telemetry::events::LastWarning;
use weir_telemetry::{ListenerKind, Metrics, Tracer};

use super::forward_auth::refusal;
use super::stack::{Checked, Layers};

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
    waits: WaitSpreader,
}

impl EnvoyLayers {
    /// Prepares all that workers share, from the same values as [`Layers::new`].
    pub(super) fn new(
        settings: &Settings,
        service: &EnvoyService,
        (tarpit_slots, bans): (&TarpitSlots, &KnownBans),
        metrics: &Arc<Metrics>,
        tracer: Option<Arc<Tracer>>,
    ) -> Self {
        let calls = settings.for_calls(&service.route);
        let listener = ListenerKind::Decide;
        let layers = Layers::on(listener, &calls, &[], tarpit_slots, bans, metrics, tracer);
        Self {
            trusted: ForwardAuthLayer::new(settings.decides_for().unwrap_or_default()),
            layers: layers.refusing(refusal),
            domains: Arc::clone(&service.domains),
            accounts: settings.account.clone(),
            warned: Arc::default(),
            waits: WaitSpreader::default(),
        }
    }

    /// The same layers, as [`Layers::spreading_waits`] makes them.
    pub(super) fn spreading_waits(self, waits: &WaitSpreader) -> Self {
        let waits = waits.clone();
        Self { waits, ..self }
    }

    /// Stacks the layers on a worker's store, as [`Layers::stack`] does.
    pub(super) fn stack<S>(
        &self,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        tasks: &BackgroundTasks,
    ) -> EnvoyStack<S> {
        let (domains, warned) = (Arc::clone(&self.domains), Arc::clone(&self.warned));
        let layer = EnvoyLayer::new(store, domains, self.accounts.clone(), warned);
        let layer = layer.with_wait_spreader(self.waits.clone());
        let service = layer.with_clock(clock, tasks.clone()).service();
        TrustedPeers {
            inner: self.layers.checked(service),
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
