//! Finds a request's route, on which all that is known before its first request is one value, and
//! routes the request to the route's upstream.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, Version, request};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use weir_http::request::HttpRequest;
use weir_rules::{Captures, KeySource, RouteId, RouteMatcher, RouteTable, SubjectHash};
use weir_telemetry::{Disposition, ListenerKind, Metrics, RouteMetrics};

use super::access::AccessControl;
use super::identify::RequestHead;
use super::overload::RouteShedding;
use super::rate_limit::policy::{PreparedLimit, RoutePolicy};
use super::rejection::no_route;
use super::request_bounds::RequestBounds;
use super::route_action::{RequestAction, RouteAction};
use super::route_decoys::RouteDecoys;
use super::steps::ResponseSteps;
use super::{RequestContext, ResponseBody, Verdict};

/// A route's policy, metrics and decoys, made once for a configuration.
#[derive(Clone)]
pub struct RouteState {
    pub(super) policy: RoutePolicy<PreparedLimit>,
    pub(super) metrics: Arc<RouteMetrics>,
    /// The decoys of limits, bans and the block list, which learn from this route's responses; most
    /// routes have none.
    pub(super) decoys: Option<RouteDecoys>,
    /// The route, for what is below to know it by; none of a state that no [`RouteLayer`] finds.
    id: Option<RouteId>,
    /// The version of HTTP by which the upstream's responses come.
    #[cfg_attr(
        not(feature = "decoys"),
        expect(dead_code, reason = "decoys alone imitate it")
    )]
    pub(super) upstream_version: Version,
    pub(super) shedding: RouteShedding,
    /// None where requests go to the upstream as they are.
    before_upstream: Option<Arc<RequestAction>>,
    /// How large requests may be.
    bounds: RequestBounds,
    /// What is done with responses.
    response_steps: ResponseSteps,
    /// Whether that begins with edits of the app's fields.
    pub(super) edits_app_fields: bool,
    /// Whether requests need an account, whatever lists and bans go by.
    needs_account: bool,
    /// Whether a limit counts clients by their addresses.
    pub(super) counts_addresses: bool,
    /// Headers of the upstream's responses that are not for clients.
    concealed: Vec<HeaderName>,
}

#[derive(Clone)]
pub(super) struct Routed {
    pub(super) route: Arc<RouteState>,
    /// The captured segments of the path.
    pub(super) captures: Captures,
    /// The upstream that the request is diverted to, by its name; none if it takes its route.
    pub(super) diverted_to: Option<Arc<str>>,
}

impl RouteState {
    /// A route with this policy and action, behind these lists and bans.
    pub fn new(
        policy: RoutePolicy,
        action: &RouteAction,
        access: &AccessControl,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let before_upstream = action.before_upstream();
        let counts_accounts = policy.counts_by(|source| *source == KeySource::Account);
        let route = Self::without_access_control(policy, metrics).with_access_control(access);
        Arc::new(Self {
            before_upstream,
            needs_account: action.needs_account() || counts_accounts,
            ..route
        })
    }

    /// A route that leads to whatever service is below.
    pub(super) fn without_access_control(policy: RoutePolicy, metrics: &Metrics) -> Self {
        Self {
            metrics: Arc::new(metrics.route(&policy.name)),
            counts_addresses: policy
                .counts_by(|source| matches!(source, KeySource::Address { .. })),
            concealed: policy.cost_headers(),
            decoys: RouteDecoys::new(&policy.on_denied, None),
            policy: policy.prepare(metrics),
            id: None,
            upstream_version: Version::HTTP_11,
            shedding: RouteShedding::default(),
            before_upstream: None,
            bounds: RequestBounds::default(),
            response_steps: ResponseSteps::default(),
            edits_app_fields: false,
            needs_account: true,
        }
    }

    /// The same route with requests that are shed so.
    #[must_use]
    pub fn with_shedding(self: Arc<Self>, shedding: RouteShedding) -> Arc<Self> {
        let mut route = Arc::unwrap_or_clone(self);
        route.needs_account |= shedding.concerns_accounts();
        route.shedding = shedding;
        Arc::new(route)
    }

    /// The same route with this bound of its requests, which a layer holds them to that stands above.
    #[must_use]
    pub fn with_bounds(self: Arc<Self>, bounds: RequestBounds) -> Arc<Self> {
        let mut route = Arc::unwrap_or_clone(self);
        route.bounds = bounds;
        Arc::new(route)
    }

    /// The same route with these steps for its responses, which a layer takes that stands above.
    #[must_use]
    pub fn with_response_steps(self: Arc<Self>, steps: ResponseSteps) -> Arc<Self> {
        let mut route = Arc::unwrap_or_clone(self);
        route.edits_app_fields = steps.edit_app_fields();
        route.response_steps = steps;
        Arc::new(route)
    }

    /// The same route to an upstream that responds by this version of HTTP.
    #[must_use]
    pub fn with_upstream_version(self: Arc<Self>, upstream_version: Version) -> Arc<Self> {
        let route = Arc::unwrap_or_clone(self);
        Arc::new(Self {
            upstream_version,
            ..route
        })
    }

    /// The same route as the table knows it.
    fn with_id(self: Arc<Self>, id: RouteId) -> Arc<Self> {
        let mut route = Arc::unwrap_or_clone(self);
        route.id = Some(id);
        Arc::new(route)
    }

    /// The same route behind these lists and bans.
    pub(super) fn with_access_control(self, access: &AccessControl) -> Self {
        Self {
            decoys: RouteDecoys::new(&self.policy.on_denied, Some(access)),
            ..self
        }
    }

    /// The same route on this kind of listener.
    #[must_use]
    pub fn on(&self, listener: ListenerKind) -> Arc<Self> {
        Arc::new(Self {
            metrics: Arc::new(self.metrics.on(listener)),
            ..self.clone()
        })
    }

    /// A copy for one worker, so that workers do not contend for one reference count.
    fn unshared(&self) -> Self {
        Self {
            metrics: Arc::new(RouteMetrics::clone(&self.metrics)),
            policy: self.policy.unshared(),
            ..self.clone()
        }
    }

    /// How large requests may be.
    pub(super) fn bounds(&self) -> RequestBounds {
        self.bounds
    }

    /// Whether this route bounds requests beyond what the server does.
    pub fn bounds_requests(&self) -> bool {
        self.bounds != RequestBounds::default()
    }

    /// What is done with responses of this route.
    pub(super) fn response_steps(&self) -> &ResponseSteps {
        &self.response_steps
    }

    /// Whether a request that these lists and bans let through needs its account.
    pub(super) fn needs_account(&self, access: Option<&AccessControl>) -> bool {
        self.needs_account || access.is_some_and(AccessControl::concerns_accounts)
    }

    /// The same for requests that take no route, which get 404.
    pub(super) fn unrouted(self) -> Self {
        Self {
            needs_account: false,
            ..self
        }
    }

    /// Whether the upstream's responses may have headers that are not for clients.
    pub(super) fn conceals(&self) -> bool {
        !self.concealed.is_empty() || self.decoys.is_some()
    }

    /// Removes the headers that the upstream sends to Weir alone, and those that would tell decoys
    /// from real responses.
    pub(super) fn conceal(&self, headers: &mut HeaderMap) {
        for name in &self.concealed {
            headers.remove(name);
        }
        if let Some(decoys) = &self.decoys {
            decoys.conceal(headers);
        }
    }

    /// Whether something learns from all responses, whether a limit applied or not.
    pub(super) fn learns_from_all(&self) -> bool {
        let decoys = self.decoys.as_ref();
        decoys.is_some_and(RouteDecoys::learn_from_all)
    }

    /// Whether the requests in flight to the upstream are limited, so that each needs a slot.
    #[inline]
    pub(super) fn limits_concurrency(&self) -> bool {
        self.shedding.by_upstream.is_some()
    }

    pub(super) fn is_limited(&self) -> bool {
        !self.policy.limits.is_empty()
    }

    /// The route's name.
    pub fn name(&self) -> &str {
        &self.policy.name
    }
}

/// Finds the routes of requests and leaves them in the requests' [`RequestContext`]s.
#[derive(Clone)]
pub struct RouteLayer(Arc<Routes>);

struct Routes {
    table: Arc<RouteTable>,
    /// By the ids of the table, which is made of the same list.
    states: Vec<Arc<RouteState>>,
}

impl RouteLayer {
    /// Finds these routes.
    pub fn new(routes: impl IntoIterator<Item = (RouteMatcher, Arc<RouteState>)>) -> Self {
        let (matchers, states): (_, Vec<_>) = routes.into_iter().unzip();
        let table = Arc::new(RouteTable::new(matchers));
        let states = (0..).map(RouteId).zip(states);
        let states = states.map(|(id, state)| state.with_id(id)).collect();
        Self(Arc::new(Routes { table, states }))
    }

    /// All routes.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<RouteState>> {
        self.0.states.iter()
    }

    /// Takes over what the same routes have learnt so far from their responses.
    pub fn inherit(&self, earlier: &Self) {
        let earlier: HashMap<_, _> = earlier.routes().map(|it| (it.name(), it)).collect();
        for route in self.routes() {
            if let Some(before) = earlier.get(route.name())
                && let (Some(decoys), Some(before)) = (&route.decoys, &before.decoys)
            {
                decoys.inherit(before);
            }
        }
    }
}

impl<S> Layer<S> for RouteLayer {
    type Service = Route<S>;

    fn layer(&self, inner: S) -> Route<S> {
        let states = self.0.states.iter();
        let routes = Routes {
            table: Arc::clone(&self.0.table),
            states: states.map(|state| Arc::new(state.unshared())).collect(),
        };
        Route {
            inner,
            routes: Arc::new(routes),
        }
    }
}

/// A service whose requests know their route; see [`RouteLayer`].
#[derive(Clone)]
pub struct Route<S> {
    inner: S,
    routes: Arc<Routes>,
}

impl Routes {
    fn find<Q: HttpRequest>(&self, request: &Q) -> Option<Routed> {
        let (method, uri) = (request.method(), request.uri());
        let found = self.table.find(method, uri, request.headers())?;
        let route = Arc::clone(self.states.get(found.id.0)?);
        Some(Routed {
            diverted_to: None,
            captures: found.captures,
            route,
        })
    }
}

impl<S, Q> Service<Q> for Route<S>
where
    S: Service<Q>,
    Q: HttpRequest,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Q) -> S::Future {
        if let Some(found) = self.routes.find(&request) {
            RequestContext::entry(request.extensions_mut()).routed = Some(found);
        }
        self.inner.call(request)
    }
}

/// Routes a request to the service of its route, or of the upstream that it is diverted to, and
/// answers 404 where there is none. Clones share the services, which are cloned when they are called,
/// and have to be ready at all times, as the proxy is.
#[derive(Debug)]
pub struct UpstreamRouter<S> {
    /// None where another proxy forwards the requests that get here.
    services: Option<Arc<Services<S>>>,
}

#[derive(Debug)]
struct Services<S> {
    /// By the ids of the routes; none of a route that answers itself.
    of_routes: Vec<Option<S>>,
    /// Where requests are diverted to, by the upstream's name.
    diverted: HashMap<Arc<str>, S>,
}

impl<S> Clone for UpstreamRouter<S> {
    fn clone(&self) -> Self {
        let services = self.services.clone();
        Self { services }
    }
}

impl<S> UpstreamRouter<S> {
    /// The services of the routes, in the order in which [`RouteLayer::new`] takes them, with none for
    /// a route that answers itself; and those of the upstreams by their names, which requests may be
    /// diverted to.
    pub fn new(
        of_routes: impl IntoIterator<Item = Option<S>>,
        of_upstreams: impl IntoIterator<Item = (Arc<str>, S)>,
    ) -> Self {
        let services = Services {
            of_routes: of_routes.into_iter().collect(),
            diverted: of_upstreams.into_iter().collect(),
        };
        Self {
            services: Some(Arc::new(services)),
        }
    }

    /// Responds to each request that has a route with an empty 200, which is marked in its
    /// extensions.
    pub const fn admitting() -> Self {
        Self { services: None }
    }
}

impl<S> Services<S> {
    /// The service that the request goes to, if there is one, and whether it is diverted there.
    fn of(&self, routed: &Routed) -> (Option<&S>, bool) {
        match (&routed.diverted_to, routed.route.id) {
            (Some(upstream), _) => (self.diverted.get(upstream), true),
            (None, Some(id)) => (self.of_routes.get(id.0).and_then(Option::as_ref), false),
            (None, None) => (None, false),
        }
    }
}

/// In a response's extensions: nothing denied the request, which another proxy forwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted;

fn admission<R>() -> Response<ResponseBody<R>> {
    let mut response = Response::new(ResponseBody::full(Bytes::new()));
    response.extensions_mut().insert(Admitted);
    response
}

impl<S, Q, R> Service<Q> for UpstreamRouter<S>
where
    S: Service<Q, Response = Response<R>> + Clone,
    Q: HttpRequest<Body: Body>,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = UpstreamFuture<S::Future, R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Q) -> Self::Future {
        let Some(routed) = RequestContext::routed(request.extensions()) else {
            return UpstreamFuture::Unrouted;
        };
        let Some(services) = &self.services else {
            let response = Some(Box::new(admission()));
            return UpstreamFuture::Answered { response };
        };
        let (service, is_diverted) = services.of(routed);
        if let Some(action) = routed.route.before_upstream.clone()
            && let Some(response) = action.apply(&mut request, is_diverted)
        {
            let response = Some(response);
            return UpstreamFuture::Answered { response };
        }
        match service {
            Some(service) => UpstreamFuture::Routed {
                future: service.clone().call(request),
            },
            None => UpstreamFuture::Unrouted,
        }
    }
}

pin_project! {
    /// The response of [`UpstreamRouter`].
    #[project = UpstreamProjection]
    pub enum UpstreamFuture<F, R> {
        /// The upstream's service answers.
        Routed {
            #[pin]
            future: F,
        },
        /// The route answers in the place of an upstream.
        Answered {
            response: Option<Box<Response<ResponseBody<R>>>>,
        },
        Unrouted,
    }
}

impl<F, R, E> Future for UpstreamFuture<F, R>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            UpstreamProjection::Routed { future } => future
                .poll(cx)
                .map_ok(|response| response.map(ResponseBody::forwarded)),
            // A future that has answered is not polled again; if it is, it waits.
            UpstreamProjection::Answered { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(*response)),
                None => Poll::Pending,
            },
            UpstreamProjection::Unrouted => Poll::Ready(Ok(not_found())),
        }
    }
}

fn not_found<R>() -> Response<ResponseBody<R>> {
    let mut response = no_route();
    response
        .extensions_mut()
        .insert(Verdict::new(Disposition::Unrouted));
    response
}

/// The number of a request's subject, by which its server is chosen; none if it lacks what the
/// subject consists of.
pub fn upstream_key(hash: &SubjectHash, head: &request::Parts) -> Option<u64> {
    hash.hash(&RequestHead::from(head).attributes())
}
