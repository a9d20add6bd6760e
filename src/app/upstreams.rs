//! The upstreams of a configuration, as all workers share them.

use std::sync::Arc;

use weir_config::Settings;
use weir_middleware::{ConcurrencyLimiter, RouteShedding, Shedding};
use weir_proxy::{UpstreamState, start_health_checks};
use weir_telemetry::{ConcurrencySample, Metrics, UpstreamSample};

/// An upstream as all workers share it.
#[derive(Clone)]
pub struct ActiveUpstream {
    pub(super) upstream: Arc<weir_config::Upstream>,
    pub(super) state: Arc<UpstreamState>,
    /// The limit on its requests in flight, if there is one.
    limiter: Option<ConcurrencyLimiter>,
}

impl ActiveUpstream {
    /// The upstreams of the settings, in their order. What is known of those that stay as they were
    /// among the `earlier` ones is kept, and limits on requests in flight go on from what they were.
    pub(super) fn all(settings: &Settings, earlier: &[Self]) -> Vec<Self> {
        let upstreams = settings.upstreams.iter();
        upstreams
            .map(|upstream| Self::new(upstream, earlier))
            .collect()
    }

    fn new(upstream: &Arc<weir_config::Upstream>, earlier: &[Self]) -> Self {
        let wanted = &upstream.settings;
        let mut others = earlier.iter();
        let before = others.find(|before| before.upstream.settings.name == wanted.name);
        let limiter = before.and_then(|before| before.limiter.as_ref());
        let limiter = upstream.concurrency.map(|settings| match limiter {
            Some(limiter) => limiter.with_settings(settings),
            None => ConcurrencyLimiter::new(&wanted.name, settings),
        });
        let same = before.filter(|before| before.upstream.settings == *wanted);
        let state = same.map(|same| Arc::clone(&same.state));
        let state = state.unwrap_or_else(|| {
            let before = before.map(|before| (&before.upstream.settings, &*before.state));
            let state = UpstreamState::replacing(wanted, before);
            start_health_checks(wanted, &state);
            state
        });
        Self {
            upstream: Arc::clone(upstream),
            state,
            limiter,
        }
    }

    /// What a route and its upstream, if it has one, say about requests that are shed.
    pub(super) fn shedding(
        upstream: Option<&Self>,
        shedding: &Shedding,
        route: &weir_config::Route,
    ) -> RouteShedding {
        let limiter = upstream.and_then(|upstream| upstream.limiter.as_ref());
        let reads_bodies_first = route.request_buffering.is_some();
        let name = &route.policy.name;
        shedding.of_route(name, route.priority, limiter, reads_bodies_first)
    }

    /// Its state at a scrape.
    pub(super) fn sample(&self) -> UpstreamSample {
        self.state.sample()
    }

    /// The state of the limit on its requests in flight, if there is one.
    pub(super) fn limit_sample(&self) -> Option<ConcurrencySample> {
        self.limiter.as_ref().map(ConcurrencyLimiter::sample)
    }

    /// Shows, at every scrape, what is known of the upstreams of then.
    pub(super) fn show<U>(metrics: &Metrics, upstreams: U)
    where
        U: Fn() -> Vec<Self> + Clone + Send + Sync + 'static,
    {
        let all = upstreams.clone();
        metrics.upstreams(move || all().iter().map(Self::sample).collect());
        let limited = |active: &Self| Some((active.name(), active.limit_sample()?));
        metrics.limited_upstreams(move || upstreams().iter().filter_map(limited).collect());
    }

    fn name(&self) -> Arc<str> {
        self.upstream.settings.name.as_str().into()
    }
}
