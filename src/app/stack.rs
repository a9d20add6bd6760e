//! The tower stack: every layer of the gateway, in the order in which a request meets them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Response, StatusCode, request};
use http_body_util::Full;
use tower::ServiceBuilder;
use weir_config::{ProcessSettings, Settings, StoreSettings};
use weir_correlate::{Correlate, CorrelateLayer, ShowRequestId, ShowRequestIdLayer};
use weir_http::problem::Problem;
use weir_middleware::{
    AccessControl, AccessLog, AccessLogLayer, AccessState, Backend, BodyLimit, BodyLimitLayer,
    Forwarded, ForwardedLayer, HttpsRedirect, Identify, IdentifyLayer, RateLimit, RateLimitLayer,
    Refusal, RejectInvalid, RejectInvalidLayer, ResponseFormat, ResponseFormatLayer, ResponseSteps,
    Route, RouteLayer, RoutePolicy, RouteState, Shedding, UnreadableDenials, UpstreamRouter,
    WaitSpreader,
};
use weir_rules::{AccountSource, Cost, Enforcement, KeySource, PathFault, path_fault};
use weir_store::OnFailure;
use weir_telemetry::{Disposition, ListenerKind, Metrics, Tail, Tracer};

use super::upstreams::ActiveUpstreams;

/// The gateway as one service, over a service for each route.
pub type Stack<S> = Checked<RateLimit<Forwarded<UpstreamRouter<S>>>>;

/// What stands above the service that decides by limits.
pub(super) type Checked<L> = Identify<
    Correlate<Route<AccessLog<ResponseFormat<ShowRequestId<RejectInvalid<BodyLimit<L>>>>>>>,
>;

/// The layers of a configuration, to be put on each worker's own services.
pub struct Layers {
    identify: IdentifyLayer,
    correlate: CorrelateLayer,
    route: RouteLayer,
    access_log: AccessLogLayer,
    format: ResponseFormatLayer,
    show_request_id: ShowRequestIdLayer,
    refusal: Refusal,
    body_limit: BodyLimitLayer,
    forwarded: ForwardedLayer,
    access: AccessControl,
    shedding: Shedding,
    waits: WaitSpreader,
    unreadable: Arc<UnreadableDenials>,
    metrics: Arc<Metrics>,
}

/// What the layers of all listeners have in common, and what outlives reloads of them. Clones share
/// it.
#[derive(Clone)]
pub struct SharedState {
    /// What is known of clients that are kept out.
    pub(super) access: AccessState,
    /// The waits that denied clients were told.
    waits: WaitSpreader,
    /// Traces requests, if that is configured.
    tracer: Option<Arc<Tracer>>,
    /// Those who watch requests by the admin API, where there is one.
    tail: Option<Arc<Tail>>,
    pub(super) metrics: Arc<Metrics>,
}

impl SharedState {
    /// Nothing is known yet. Requests are traced if there is a tracer.
    pub fn new(
        settings: &ProcessSettings,
        metrics: &Arc<Metrics>,
        tracer: Option<Arc<Tracer>>,
    ) -> Self {
        let admin = settings.admin.as_ref();
        Self {
            access: AccessState::new(metrics),
            waits: WaitSpreader::default(),
            tracer,
            tail: admin.map(|_| Arc::clone(metrics.tail())),
            metrics: Arc::clone(metrics),
        }
    }
}

/// The services that requests go to: those of the upstreams by their names, where diverted requests
/// go, and of each route with an upstream that which `of_route` makes of it.
pub(super) fn services<S>(
    settings: &Settings,
    upstreams: impl Iterator<Item = (Arc<str>, S)>,
    of_route: impl Fn(&weir_config::Route, &S) -> S,
) -> UpstreamRouter<S> {
    let upstreams: HashMap<_, _> = upstreams.collect();
    let of_routes = settings.routes.iter().map(|route| {
        let upstream = upstreams.get(route.upstream_name()?)?;
        Some(of_route(route, upstream))
    });
    let of_routes: Vec<_> = of_routes.collect();
    UpstreamRouter::new(of_routes, upstreams)
}

/// What is answered without an upstream, to every client.
pub fn refusal(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
    let Some(fault) = path_fault(head.uri.path()) else {
        return weir_proxy::refusal(head);
    };
    let detail = match fault {
        PathFault::LeadsUpward => {
            "The path must not lead upward; resolve its `..` segments before you send it."
        }
        PathFault::Control => "The path must not have control characters; leave them out.",
        _ => {
            "A percent sign in the path must be followed by two hexadecimal digits; write `%25` for \
             the sign itself."
        }
    };
    Some(Problem::new(StatusCode::BAD_REQUEST, detail).into_response())
}

impl Layers {
    /// Prepares all that workers share, for listeners that forward.
    pub fn new(settings: &Settings, upstreams: &ActiveUpstreams, shared: &SharedState) -> Self {
        Self::on(ListenerKind::Forward, settings, upstreams, shared)
    }

    /// The same for a kind of listener.
    pub(super) fn on(
        listener: ListenerKind,
        settings: &Settings,
        upstreams: &ActiveUpstreams,
        shared: &SharedState,
    ) -> Self {
        let metrics = &shared.metrics;
        let correlate = CorrelateLayer::new(settings.request_id.clone(), shared.tracer.clone());
        let shedding = Shedding::new(&settings.shedding, metrics);
        let access = shared.access.control(settings.access.clone(), metrics);
        let of_all = ResponseSteps::of_all_responses().and(&settings.response_steps);
        let routes = settings.routes.iter().map(|route| {
            let route_metrics = metrics.route(&route.policy.name).on(listener);
            route_metrics.expect(possible_decisions(settings, &shedding, Some(route)));
            let policy = route.policy.clone();
            let state = RouteState::new(policy, &route.action, &access, metrics);
            let steps = route.response_steps.and(&of_all);
            let state = state
                .on(listener)
                .with_bounds(route.bounds)
                .with_response_steps(steps)
                .with_upstream_version(upstreams.version_on(route))
                .with_shedding(upstreams.shedding_on(route, &shedding));
            (route.matcher.clone(), state)
        });
        let route = RouteLayer::new(routes);
        let mut routes = settings.routes.iter();
        let formats_by_route = routes.any(|route| !route.response_steps.is_empty());
        let body_limit = BodyLimitLayer::new(route.routes().any(|route| route.bounds_requests()));
        metrics
            .unrouted()
            .on(listener)
            .expect(possible_decisions(settings, &shedding, None));
        Self {
            identify: IdentifyLayer::new(settings.client.clone(), settings.account.clone()),
            route,
            access_log: AccessLogLayer::new(
                listener,
                settings.log_queries,
                settings.log_denied_per_second,
                correlate.traces(),
                metrics,
            )
            .watched_by(shared.tail.clone()),
            show_request_id: ShowRequestIdLayer::new(correlate.makes_ids()),
            correlate,
            format: ResponseFormatLayer::new(of_all, formats_by_route),
            refusal,
            body_limit,
            forwarded: ForwardedLayer::new(
                settings.client.header().clone(),
                headers_read(settings),
            )
            .with_nat64_prefixes(settings.client.nat64_prefixes().clone()),
            access,
            shedding,
            waits: shared.waits.clone(),
            unreadable: Arc::default(),
            metrics: Arc::clone(metrics),
        }
    }

    /// The same layers, which refuse requests by the usual check and, where it lets one pass, redirect
    /// it if its listener redirects to HTTPS.
    pub(super) fn redirecting_to_https(self) -> Self {
        self.refusing(|head| refusal(head).or_else(|| HttpsRedirect::response(head)))
    }

    /// The same layers, which refuse requests by this alone: neither by the usual check nor by a
    /// redirect to HTTPS.
    pub(super) fn refusing(self, refusal: Refusal) -> Self {
        Self { refusal, ..self }
    }

    /// The waits that denied clients were told.
    pub(super) fn waits(&self) -> &WaitSpreader {
        &self.waits
    }

    /// The peers whose requests often name other clients, although nobody trusts them.
    pub(super) fn untrusted_forwarders(&self) -> Vec<IpAddr> {
        self.forwarded.untrusted_forwarders()
    }

    /// The limits whose denials web pages of other origins cannot read.
    pub(super) fn unreadable_denials(&self) -> Vec<Arc<str>> {
        self.unreadable.limits()
    }

    /// Lets routes take over what those of earlier layers have learnt.
    pub(super) fn inherit(&self, earlier: &Self) {
        self.route.inherit(&earlier.route);
    }

    /// Stacks the layers on a worker's services, with buckets in its store.
    pub fn stack<S>(&self, backend: Backend, services: UpstreamRouter<S>) -> Stack<S> {
        let rate_limit = RateLimitLayer::by_route(Arc::clone(&backend.store), &self.metrics)
            .with_backend(backend)
            .with_access_control(&self.access)
            .with_shedding(&self.shedding)
            .with_wait_spreader(self.waits.clone())
            .noting_unreadable_denials(&self.unreadable)
            .above(&self.forwarded);
        let limited = ServiceBuilder::new()
            // The only one to decide, about bans and limits at once: what passes here reaches the
            // upstream.
            .layer(rate_limit)
            // Inside of the limits, so that a flood of denied requests does not pay for it.
            .layer(self.forwarded.clone())
            .service(services);
        self.checked(limited)
    }

    /// Stacks the layers that stand above the service that decides by limits.
    pub(super) fn checked<L>(&self, limited: L) -> Checked<L> {
        ServiceBuilder::new()
            // Who sent it; the log, the limits and the forwarding fields all need to know. An
            // account that takes a password to verify is left to the limits.
            .layer(self.identify.clone())
            // Its id and its place in a trace, by whether its peer is trusted; the log tells them.
            .layer(self.correlate.clone())
            // Which route it takes; the log's labels and everything below depend on it.
            .layer(self.route.clone())
            // Outside of all that can answer, so that every answer is logged.
            .layer(self.access_log.clone())
            // Outside of all layers that respond, so that each response suits the client.
            .layer(self.format.clone())
            // Inside of the format: a page for people shows the id in its own way.
            .layer(self.show_request_id)
            // These two outside of the limits: a request that is never forwarded gets the same
            // response for every client; otherwise it would reveal a shadow ban.
            .layer(RejectInvalidLayer::new(self.refusal))
            .layer(self.body_limit)
            .service(limited)
    }
}

/// The headers that requests are identified, routed and counted by, and that their ids are in.
fn headers_read(settings: &Settings) -> HashSet<HeaderName> {
    let of_accounts = settings.account.sources.iter();
    let of_accounts = of_accounts.filter_map(AccountSource::header);
    let of_routes = settings.routes.iter();
    let of_routes = of_routes.flat_map(|route| route.matcher.headers.iter().map(|(name, _)| name));
    let limits = || {
        settings
            .routes
            .iter()
            .flat_map(|route| &route.policy.limits)
    };
    let of_costs = limits().filter_map(|limit| match &limit.cost {
        Cost::Measured(cost) => cost.request_header.as_ref(),
        Cost::Fixed(_) => None,
    });
    let of_access = settings.access.key_sources();
    let sources = limits().flat_map(|limit| limit.limit.per());
    let of_sources = sources.chain(of_access).filter_map(|source| match source {
        KeySource::Header(name) => Some(name),
        _ => None,
    });
    let all = of_accounts.chain(of_routes).chain(of_costs);
    let all = all.chain(of_sources).chain(&settings.request_id);
    all.cloned().collect()
}

/// The decisions that requests of a route can get, or those without a route, so that metrics show
/// them before the first is made.
fn possible_decisions(
    settings: &Settings,
    shedding: &Shedding,
    route: Option<&weir_config::Route>,
) -> Vec<Disposition> {
    let policy = route.map(|route| &route.policy);
    let limited = policy.filter(|policy| !policy.limits.is_empty());
    // What is refused before it is counted is unlimited on every route.
    let mut all = vec![Disposition::Unlimited];
    let upstream = route.and_then(|route| route.upstream.as_ref());
    all.extend(shedding.disposition(upstream.and_then(|it| it.concurrency.as_ref())));
    all.extend(route.is_none().then_some(Disposition::Unrouted));
    all.extend(limited.into_iter().flat_map(RoutePolicy::dispositions));
    all.extend(settings.access.dispositions());
    if limited.is_some() || settings.access.asks_store() {
        all.push(Disposition::Allowed);
        all.extend(decision_without_store(settings));
    }
    if settings.account.verifies_passwords() {
        all.push(Disposition::Unavailable);
    }
    if partly_enforced(settings, policy) {
        all.push(Disposition::WouldDeny);
        // A dry run stops no request, whatever the store does.
        all.extend(decision_without_store(settings).map(|_| Disposition::FailedOpen));
    }
    all
}

/// What requests can get while the store cannot be reached.
fn decision_without_store(settings: &Settings) -> Option<Disposition> {
    let StoreSettings::Redis(redis) = &settings.process.store else {
        return None;
    };
    match redis.guard.on_failure {
        OnFailure::Allow => Some(Disposition::FailedOpen),
        OnFailure::Deny => Some(Disposition::Unavailable),
        OnFailure::Local => None,
    }
}

fn partly_enforced(settings: &Settings, route: Option<&RoutePolicy>) -> bool {
    let limits = route.iter().flat_map(|route| &route.limits);
    limits
        .map(|limit| limit.enforcement)
        .chain(settings.access.enforcements())
        .any(Enforcement::is_partial)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Version};
    use tower::{ServiceExt, service_fn};
    use weir_http::request::BoxedRequest;

    use super::*;
    use weir_middleware::{LimitedBody, Metered};
    use weir_rules::HashKey;
    use weir_store::{Memory, MemorySettings};

    fn layers() -> Layers {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.yaml");
        let text = "upstreams: {app: {servers: ['http://127.0.0.1:1']}}\n\
             routes: [{match: {path: '/*'}, upstream: app, limits: []}]";
        std::fs::write(&path, text).unwrap();
        let settings = weir_config::load(&path, &HashKey::random()).unwrap();
        let metrics = Metrics::new();
        Layers::new(
            &settings,
            &ActiveUpstreams::default(),
            &SharedState::new(&settings.process, &metrics, None),
        )
    }

    /// The status that a request gets, from an upstream that answers everything with 200.
    async fn status(request: request::Builder) -> u16 {
        let store = Arc::new(Memory::new(MemorySettings::default()));
        let upstream = service_fn(|_: BoxedRequest<Metered<LimitedBody<Full<Bytes>>>>| async {
            Ok::<_, Infallible>(Response::new(Full::from("forwarded")))
        });
        let services = UpstreamRouter::new([Some(upstream)], []);
        let stack = layers().stack(Backend::new(store), services);
        let request = request.body(Full::<Bytes>::default()).unwrap();
        stack.oneshot(request).await.unwrap().status().as_u16()
    }

    /// The proxies below the stack do not check requests again.
    #[tokio::test]
    async fn nothing_that_must_not_be_forwarded_gets_to_an_upstream() {
        let get = |target| Request::get(target).header("host", "app");
        let of = |method| Request::builder().method(method).header("host", "app");
        assert_eq!(status(get("/")).await, 200);
        for (expected, refused) in [
            (400, Request::get("/")),
            (400, get("/").header("host", "app")),
            (400, Request::get("/").header("host", "app, evil")),
            (400, Request::get("/").version(Version::HTTP_2)),
            (400, get("/../secret")),
            (400, get("/a%00b")),
            (400, get("/%u006cogin")),
            (400, get("*")),
            (501, get("/").header("transfer-encoding", "gzip")),
            (
                501,
                get("/").header("transfer-encoding", "chunked, chunked"),
            ),
            (501, of("TRACE")),
            (501, of("post")),
            (501, of("pOST")),
            (501, of("connect").uri("app:443")),
            (501, of("CONNECT").uri("app:443")),
            (204, of("OPTIONS").header("max-forwards", "0")),
        ] {
            let request = format!("{refused:?}");
            assert_eq!(status(refused).await, expected, "{request}");
        }
    }
}
