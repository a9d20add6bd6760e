//! The upstreams of a configuration, as all workers share them.

use std::collections::HashMap;
use std::sync::Arc;

use http::Version;
use weir_config::{Route, Settings, Upstream};
use weir_middleware::{ConcurrencyLimiter, RouteShedding, Shedding};
use weir_proxy::{Protocol, Server, UpstreamState, start_health_checks};
use weir_telemetry::{ConcurrencySample, Metrics, UpstreamSample};

/// An upstream as all workers share it.
pub struct ActiveUpstream {
    /// With what is not in its configuration.
    pub(super) upstream: Upstream,
    pub(super) state: Arc<UpstreamState>,
    /// The limit on its requests in flight, if there is one.
    limiter: Option<ConcurrencyLimiter>,
}

/// The upstreams of a configuration. Clones share them.
#[derive(Clone, Default)]
pub struct ActiveUpstreams {
    /// In the order of the settings.
    all: Arc<[Arc<ActiveUpstream>]>,
    by_name: Arc<HashMap<Arc<str>, Arc<ActiveUpstream>>>,
}

impl ActiveUpstream {
    /// An upstream that takes the place of the one `before`.
    fn new(upstream: Upstream, before: Option<&Self>) -> Self {
        let wanted = &upstream.settings;
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
            upstream,
            state,
            limiter,
        }
    }

    pub(super) fn name(&self) -> Arc<str> {
        self.upstream.settings.name.as_str().into()
    }

    /// The version of HTTP by which it responds. Where it is agreed upon with each server, HTTP/2 is
    /// what Weir asks for first.
    fn version(&self) -> Version {
        let server = self.upstream.settings.servers.first();
        match server.map(Server::protocol) {
            None | Some(Protocol::Http1) => Version::HTTP_11,
            Some(Protocol::Http2 | Protocol::Auto) => Version::HTTP_2,
        }
    }

    /// The state of the limit on its requests in flight, if there is one.
    fn limit_sample(&self) -> Option<ConcurrencySample> {
        self.limiter.as_ref().map(ConcurrencyLimiter::sample)
    }
}

impl ActiveUpstreams {
    /// The upstreams of the settings, each with what `complete` adds to it. What is known of those
    /// that stay as they were among the `earlier` ones is kept, and limits on requests in flight go
    /// on from what they were.
    pub(super) fn new(
        settings: &Settings,
        complete: impl Fn(&mut Upstream),
        earlier: Option<&Self>,
    ) -> Self {
        let all = settings.upstreams.iter().map(|upstream| {
            let mut upstream = Upstream::clone(upstream);
            complete(&mut upstream);
            let before = earlier.and_then(|earlier| earlier.named(&upstream.settings.name));
            Arc::new(ActiveUpstream::new(upstream, before))
        });
        let all: Arc<[_]> = all.collect();
        let by_name = all.iter().map(|one| (one.name(), Arc::clone(one)));
        Self {
            by_name: Arc::new(by_name.collect()),
            all,
        }
    }

    /// In the order of the settings.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ActiveUpstream> {
        self.all.iter().map(|one| &**one)
    }

    fn named(&self, name: &str) -> Option<&ActiveUpstream> {
        self.by_name.get(name).map(|one| &**one)
    }

    /// Where a route forwards to, if it does.
    fn of(&self, route: &Route) -> Option<&ActiveUpstream> {
        self.named(route.upstream_name()?)
    }

    /// The version of HTTP by which the upstream of a route responds.
    pub(super) fn version_on(&self, route: &Route) -> Version {
        let upstream = self.of(route);
        upstream.map_or(Version::HTTP_11, ActiveUpstream::version)
    }

    /// What a route and its upstream, if it has one, say about requests that are shed.
    pub(super) fn shedding_on(&self, route: &Route, shedding: &Shedding) -> RouteShedding {
        let limiter = self
            .of(route)
            .and_then(|upstream| upstream.limiter.as_ref());
        let reads_bodies_first = route.request_buffering.is_some();
        let name = &route.policy.name;
        shedding.of_route(name, route.priority, limiter, reads_bodies_first)
    }

    /// Their states at a scrape.
    pub(super) fn samples(&self) -> Vec<UpstreamSample> {
        self.iter().map(|one| one.state.sample()).collect()
    }

    /// The states of the limits on their requests in flight, by the names of those that have one.
    pub(super) fn limit_samples(&self) -> impl Iterator<Item = (Arc<str>, ConcurrencySample)> {
        let limited = |one: &ActiveUpstream| Some((one.name(), one.limit_sample()?));
        self.iter().filter_map(limited)
    }

    /// Shows, at every scrape, what is known of the upstreams of then.
    pub(super) fn show<U>(metrics: &Metrics, upstreams: U)
    where
        U: Fn() -> Self + Clone + Send + Sync + 'static,
    {
        let all = upstreams.clone();
        metrics.upstreams(move || all().samples());
        metrics.limited_upstreams(move || upstreams().limit_samples().collect());
    }
}
