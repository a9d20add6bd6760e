//! Limits requests.
//!
//! For each request the layer names the buckets of its route's limits, asks the store about all
//! of them at once, and then forwards the request, rejects it, or has a decoy answer it. The
//! response shows where the client stands, allowed or denied, unless the route is to be silent.
//!
//! The layer works on any tower service. It reads what [`IdentifyLayer`] and [`RouteLayer`] left
//! in the request's extensions.
//!
//! [`IdentifyLayer`]: crate::IdentifyLayer
//! [`RouteLayer`]: crate::RouteLayer

mod borrowing;
mod decide;
mod decisions;
mod deferred_charge;
mod deferred_slot;
mod delay;
#[cfg(feature = "gateway")]
mod envoy;
mod header_fields;
mod in_flight;
mod lease_request;
mod pending_decision;
mod plan;
pub(super) mod policy;
mod response_context;
mod response_cost;
mod shed;
#[cfg(feature = "gateway")]
mod simulation;
mod spent;
mod waits;

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use weir_http::request::{BoxedRequest, HttpRequest};
use weir_limit::time::Clock;
use weir_limit::{Quota, QuotaError};
use weir_rules::{HashKey, KeySource, Limit, LimitNameError, LimitUse, Missing};
use weir_store::{Leases, Memory, MemorySettings, Store};
use weir_telemetry::Metrics;

pub use self::delay::Delay;
#[cfg(feature = "gateway")]
pub use self::envoy::{Domains, EnvoyFuture, EnvoyLayer, EnvoyRateLimit, SHOULD_RATE_LIMIT};
pub use self::header_fields::{HeaderForm, HeaderForms};
pub use self::in_flight::InFlight;
pub use self::policy::{BodyBytes, LimitHook, OnDenied, RoutePolicy};
pub use self::response_context::Metered;
#[cfg(feature = "gateway")]
pub(super) use self::response_context::PendingFields;
use self::response_context::ResponseContext;
#[cfg(feature = "gateway")]
pub use self::simulation::{LimitDecision, Progress, Simulated, Simulation, Waiting};
pub use self::waits::WaitSpreader;
use super::backend::{Backend, BackgroundTasks, PendingTasks};
use super::bans::AccessControl;
use super::identify::{Identification, KeyExtractor, peer};
use super::overload::OverloadShedding;
use super::route::{RouteState, Routed};
use super::{HasVerdict, RequestContext, ResponseBody, Verdict};

/// Puts limits on a service.
#[derive(Clone)]
pub struct RateLimitLayer(Arc<Settings>);

#[derive(Clone)]
struct Settings {
    backend: Backend,
    /// The route of all requests; none where [`RouteLayer`](crate::RouteLayer) finds
    /// it.
    route: Option<Arc<RouteState>>,
    /// What holds for requests that take no route: no limit, but bans.
    unrouted: Arc<RouteState>,
    /// None where all clients may come.
    access: Option<AccessControl>,
    /// None where [`IdentifyLayer`](crate::IdentifyLayer) stands above.
    identification: Option<Identification>,
    /// The only limit, of a layer that makes it; its name may be chosen later.
    only: Option<(KeySource, Quota)>,
    /// Whether clients of unknown addresses are counted together.
    shares_unknown: bool,
    /// Whether a password may have to be verified before the account of a request is known.
    verifies_passwords: bool,
    /// What notices proxies that nobody trusts, also where they are denied.
    #[cfg(feature = "gateway")]
    forwarded: Option<super::ForwardedLayer>,
    /// None where requests are not shed for the sake of their worker.
    overload: Option<Arc<OverloadShedding>>,
    waits: WaitSpreader,
    /// What makes the answer to a denied request; none for that of the policy.
    respond: Option<Arc<Respond>>,
}

type Respond = dyn Fn(&Denied<'_>) -> Response<Bytes> + Send + Sync;

/// A denial, for a response of the caller's own.
#[derive(Clone, Copy, Debug)]
pub struct Denied<'d> {
    /// The name of the limit that denied the request, the strictest one where several did.
    pub limit: &'d str,
    /// How long the client is to wait: at least until the request would be allowed. None where no
    /// wait would help.
    pub retry_after: Option<Duration>,
}

impl RateLimitLayer {
    /// Limits each client address, IPv6 ones by their /64, with buckets in memory.
    ///
    /// ```
    /// # mod weir {
    /// #     pub use weir_limit as limit;
    /// #     pub mod middleware { pub use weir_middleware::*; }
    /// # }
    /// use std::convert::Infallible;
    ///
    /// use http::{Request, Response, StatusCode};
    /// use http_body_util::Full;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use weir::limit::Quota;
    /// use weir::middleware::{Metered, Peer, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = service_fn(|_: Request<Metered<Full<bytes::Bytes>>>| async {
    ///     Ok::<_, Infallible>(Response::new(Full::from("hello")))
    /// });
    /// let service = RateLimitLayer::per_address(Quota::per_minute(100).burst(2))?.layer(service);
    ///
    /// let peer = Peer { address: "203.0.113.9".parse()?, secure: false };
    /// for status in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
    ///     let request = Request::builder().extension(peer).body(Full::default())?;
    ///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The server has to leave the address in the request's extensions, as a
    /// [`Peer`](crate::Peer) or a [`SocketAddr`](std::net::SocketAddr); for another
    /// type see [`with_peer`](Self::with_peer). A request without an address gets 500, unless
    /// [`sharing_unknown`](Self::sharing_unknown) says otherwise.
    ///
    /// # Errors
    /// When the rate is zero, or beyond what a quota can hold.
    pub fn per_address<Q>(quota: Q) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        let source = KeySource::Address {
            v4_prefix: 32,
            v6_prefix: 64,
        };
        let layer = Self::of_one("RequestsPerAddress", source, quota)?;
        let identification = Identification::by_address(peer);
        Ok(layer.with(|settings| settings.identification = Some(identification)))
    }

    /// Limits each key that `extractor` finds in requests, with buckets in memory. A request
    /// without one gets 403.
    ///
    /// # Errors
    /// When the rate is zero, or beyond what a quota can hold.
    pub fn per_key<Q>(quota: Q, extractor: impl KeyExtractor) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        let layer = Self::of_one("RequestsPerKey", KeySource::Account, quota)?;
        let identification = Identification::by_key(extractor);
        Ok(layer.with(|settings| settings.identification = Some(identification)))
    }

    #[expect(clippy::expect_used, reason = "the names are good ones")]
    fn of_one<Q>(name: &str, per: KeySource, quota: Q) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        let quota = quota.try_into().map_err(Into::into)?;
        let limit = only_limit(name, per.clone(), quota).expect("a good name");
        let store = Arc::new(Memory::new(MemorySettings::default()));
        let layer = Self::new(store, only(limit.with_rate_in_keys()), &Metrics::new());
        Ok(layer.with(|settings| settings.only = Some((per, quota))))
    }

    /// The same limit by another name, which clients are shown, and which is in the keys of its
    /// buckets. Two layers with the same store share the buckets of a name, so each needs its own,
    /// unless they are to count together. Without a name of their own, layers with the same rate
    /// share.
    ///
    /// It is for [`per_address`](Self::per_address) and [`per_key`](Self::per_key); the limits of a
    /// [`RoutePolicy`] have their names.
    ///
    /// ```
    /// # mod weir {
    /// #     pub use {weir_limit as limit, weir_store as store};
    /// #     pub mod middleware { pub use weir_middleware::*; }
    /// # }
    /// # use std::sync::Arc;
    /// # use weir::limit::Quota;
    /// # use weir::middleware::RateLimitLayer;
    /// # use weir::store::{Memory, MemorySettings};
    /// let store = Arc::new(Memory::new(MemorySettings::default()));
    /// let searches = RateLimitLayer::per_address(Quota::per_minute(10))?
    ///     .named("Searches")?
    ///     .with_store(Arc::clone(&store) as _);
    /// let pages = RateLimitLayer::per_address(Quota::per_minute(100))?
    ///     .named("Pages")?
    ///     .with_store(store);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the name cannot stand in headers and bucket keys.
    pub fn named(self, name: &str) -> Result<Self, LimitNameError> {
        let Some((per, quota)) = self.0.only.clone() else {
            return Ok(self);
        };
        let policy = only(only_limit(name, per, quota)?);
        let route = RouteState::without_access_control(policy, &Metrics::new());
        Ok(self.with(|settings| settings.route = Some(Arc::new(route))))
    }

    /// Holds every request to the same policy, with buckets in `store`.
    pub fn new(store: Arc<dyn Store>, policy: RoutePolicy, metrics: &Metrics) -> Self {
        let route = RouteState::without_access_control(policy, metrics);
        let layer = Self::by_route(store, metrics);
        layer.with(|settings| settings.route = Some(Arc::new(route)))
    }

    /// Holds each request to the policy of its route. A request without a route passes unlimited.
    pub fn by_route(store: Arc<dyn Store>, metrics: &Metrics) -> Self {
        let unrouted = RoutePolicy {
            header_forms: HeaderForms::NONE,
            ..RoutePolicy::default()
        };
        let unrouted = RouteState::without_access_control(unrouted, metrics).unrouted();
        Self(Arc::new(Settings {
            backend: Backend::new(store),
            route: None,
            unrouted: Arc::new(unrouted),
            access: None,
            identification: None,
            only: None,
            shares_unknown: false,
            verifies_passwords: true,
            #[cfg(feature = "gateway")]
            forwarded: None,
            overload: None,
            waits: WaitSpreader::default(),
            respond: None,
        }))
    }

    /// The same limits behind these lists and bans, which must be those of the routes where there
    /// are several.
    #[must_use]
    pub fn with_access_control(self, access: &AccessControl) -> Self {
        self.with(|settings| {
            let route = settings.route.take();
            let with_access =
                |route: Arc<RouteState>| Arc::unwrap_or_clone(route).with_access_control(access);
            settings.route = route.map(with_access).map(Arc::new);
            settings.access = (!access.is_empty()).then(|| access.clone());
        })
    }

    /// The same limits, with buckets in `store`. Layers that have one together need
    /// [names](Self::named), and layers per key of several processes the same
    /// [hash key](Self::with_hash_key).
    #[must_use]
    pub fn with_store(self, store: Arc<dyn Store>) -> Self {
        self.with(|settings| settings.backend.store = store)
    }

    /// The same limits per key, with keys hashed by this one, as they are in the store. All
    /// processes that share a store need the same; by default a process has a random one, and so
    /// buckets of its own.
    ///
    /// ```
    /// # mod weir {
    /// #     pub use {weir_limit as limit, weir_rules as rules};
    /// #     pub mod middleware { pub use weir_middleware::*; }
    /// # }
    /// # use weir::limit::Quota;
    /// # use weir::middleware::{KeyExtractor, RateLimitLayer};
    /// use weir::rules::HashKey;
    /// # fn per_key(by_api_key: impl KeyExtractor) -> Result<(), Box<dyn std::error::Error>> {
    /// let secret = std::env::var("HASH_KEY")?;
    /// let key = HashKey::from_bytes(secret.as_bytes()).ok_or("HASH_KEY needs 16 bytes")?;
    /// let limits = RateLimitLayer::per_key(Quota::per_minute(60), by_api_key)?.with_hash_key(key);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_hash_key(self, key: HashKey) -> Self {
        self.with(|settings| {
            let identification = settings.identification.take();
            settings.identification =
                identification.map(|identification| identification.with_hash_key(key));
        })
    }

    /// The same limits, with the client's address found in what the server leaves in requests, such
    /// as axum's `ConnectInfo<SocketAddr>`.
    ///
    /// ```
    /// # mod weir {
    /// #     pub use weir_limit as limit;
    /// #     pub mod middleware { pub use weir_middleware::*; }
    /// # }
    /// # use std::net::SocketAddr;
    /// # use axum::extract::ConnectInfo;
    /// # use weir::{limit::Quota, middleware::RateLimitLayer};
    /// let limits = RateLimitLayer::per_address(Quota::per_minute(100).burst(20))?
    ///     .with_peer(|info: &ConnectInfo<SocketAddr>| info.0.ip());
    /// # Ok::<(), weir::limit::QuotaError>(())
    /// ```
    #[must_use]
    pub fn with_peer<T: Send + Sync + 'static>(
        self,
        address: impl Fn(&T) -> IpAddr + Send + Sync + 'static,
    ) -> Self {
        let found = move |extensions: &Extensions| extensions.get::<T>().map(&address);
        let identification = Identification::by_address(found);
        self.with(|settings| settings.identification = Some(identification))
    }

    /// The same limits, which count all clients of unknown addresses together in place of refusing
    /// them.
    #[must_use]
    pub fn sharing_unknown(self) -> Self {
        self.with(|settings| settings.shares_unknown = true)
    }

    /// The same limits, with `respond` to make the answer to a denied request. The headers that
    /// show where the client stands are added to it.
    ///
    /// ```
    /// # mod weir {
    /// #     pub use weir_limit as limit;
    /// #     pub mod middleware { pub use weir_middleware::*; }
    /// # }
    /// # use bytes::Bytes;
    /// # use http::{Response, StatusCode};
    /// # use weir::{limit::Quota, middleware::RateLimitLayer};
    /// let limits = RateLimitLayer::per_address(Quota::per_second(5))?.with_response(|denied| {
    ///     let mut response = Response::new(Bytes::from(format!("{}: slow down", denied.limit)));
    ///     *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    ///     response
    /// });
    /// # Ok::<(), weir::limit::QuotaError>(())
    /// ```
    #[must_use]
    pub fn with_response(
        self,
        respond: impl Fn(&Denied<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.respond = Some(Arc::new(respond)))
    }

    /// The same limits, with places among the requests in flight had from `leases`. Without it
    /// this layer counts those that pass through it.
    #[must_use]
    pub fn with_leases(self, leases: Arc<dyn Leases>) -> Self {
        self.with(|settings| settings.backend.leases = leases)
    }

    /// The same limits, with waits of denials spread over the clients of all layers that share
    /// `waits`. Without it this layer spreads those of its own.
    #[must_use]
    pub fn with_wait_spreader(self, waits: WaitSpreader) -> Self {
        self.with(|settings| settings.waits = waits)
    }

    /// The same limits by another clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        self.with(|settings| settings.backend.clock = clock)
    }

    /// The same limits, with `tasks` to track what is still under way at the store when all
    /// requests are answered.
    #[must_use]
    pub fn with_tasks(self, tasks: BackgroundTasks) -> Self {
        self.with(|settings| settings.backend.tasks = tasks)
    }

    /// The same layer below an [`IdentifyLayer`](crate::IdentifyLayer) whose rules verify
    /// passwords or do not.
    #[cfg(feature = "gateway")]
    pub fn verifying_passwords(self, verifies_passwords: bool) -> Self {
        self.with(|settings| settings.verifies_passwords = verifies_passwords)
    }

    /// The same layer, which sheds requests of workers that are overloaded.
    #[cfg(feature = "gateway")]
    pub fn with_overload_shedding(self, overload: Option<Arc<OverloadShedding>>) -> Self {
        self.with(|settings| settings.overload = overload)
    }

    /// The same layer above this one, which is told of the requests that are denied.
    #[cfg(feature = "gateway")]
    pub fn above(self, forwarded: &super::ForwardedLayer) -> Self {
        self.with(|settings| settings.forwarded = Some(forwarded.clone()))
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

fn only_limit(name: &str, per: KeySource, quota: Quota) -> Result<Limit, LimitNameError> {
    Limit::new(name, vec![per], quota, Missing::Deny, HashKey::random())
}

fn only(limit: Limit) -> RoutePolicy {
    RoutePolicy {
        limits: vec![LimitUse::new(Arc::new(limit))],
        ..RoutePolicy::default()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        let identification = self.0.identification.as_ref();
        if self.0.backend.store.is_shared()
            && identification.is_some_and(Identification::is_of_this_process)
        {
            tracing::warn!(
                target: "weir::middleware::rate_limit",
                "keys are hashed by a random key of this process, so other processes with the same \
                 store count them apart: give all of them one by RateLimitLayer::with_hash_key"
            );
        }
        RateLimit {
            inner,
            settings: Arc::clone(&self.0),
        }
    }
}

/// A service with limits on it; see [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<Settings>,
}

/// A body of a request that limits are put on.
pub trait RequestBody: Body<Data: Send> + Send + 'static {}

impl<B: Body<Data: Send> + Send + 'static> RequestBody for B {}

/// A request that limits are put on. Implemented for every suitable [`HttpRequest`].
pub trait LimitedRequest: HttpRequest<Body: RequestBody> + Send + 'static {}

impl<Q: HttpRequest<Body: RequestBody> + Send + 'static> LimitedRequest for Q {}

/// A service that limits are put on. Implemented for every suitable service.
pub trait LimitedService<Q: HttpRequest>:
    Service<MeteredRequest<Q>, Response = Response<<Self as LimitedService<Q>>::ResponseBody>>
    + Clone
    + Send
    + 'static
{
    /// The body of its responses.
    type ResponseBody: Body<Data = Bytes> + Send + 'static;
}

/// The request that the inner service gets: `Q`, with its body metered.
type MeteredRequest<Q> = <Q as HttpRequest>::With<Metered<<Q as HttpRequest>::Body>>;

impl<S, Q, R> LimitedService<Q> for S
where
    S: Service<MeteredRequest<Q>, Response = Response<R>> + Clone + Send + 'static,
    Q: HttpRequest,
    R: Body<Data = Bytes> + Send + 'static,
{
    type ResponseBody = R;
}

// Two, and not one for any request: the type of the request then follows from the inner service,
// where a caller does not name it.
impl<S: LimitedService<Request<B>>, B: RequestBody> Service<Request<B>> for RateLimit<S> {
    type Response = Response<ResponseBody<S::ResponseBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, S::ResponseBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.respond(request)
    }
}

impl<S, B> Service<BoxedRequest<B>> for RateLimit<S>
where
    S: LimitedService<BoxedRequest<B>>,
    B: RequestBody,
{
    type Response = Response<ResponseBody<S::ResponseBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, S::ResponseBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: BoxedRequest<B>) -> Self::Future {
        self.respond(request)
    }
}

impl<S> RateLimit<S> {
    fn respond<Q: LimitedRequest>(
        &mut self,
        mut request: Q,
    ) -> ResponseFuture<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        if let Some(identification) = &self.settings.identification {
            identification.identify(&mut request);
        }
        ResponseFuture {
            state: self.start(request, true),
        }
    }
}

impl Settings {
    /// A request's route; that of none where no route matched.
    fn route_or_none<'s>(&'s self, extensions: &'s Extensions) -> &'s Arc<RouteState> {
        self.route_of(RequestContext::routed(extensions))
    }

    fn route_of<'s>(&'s self, routed: Option<&'s Routed>) -> &'s Arc<RouteState> {
        let routed = routed.map(|routed| &routed.route);
        self.route.as_ref().or(routed).unwrap_or(&self.unrouted)
    }
}

pin_project! {
    /// The response of [`RateLimit`].
    pub struct ResponseFuture<F, R> {
        #[pin]
        state: ResponseState<F, R>,
    }
}

pin_project! {
    /// State of the request being served. It is small, because layer after layer moves it.
    #[project = StateProjection]
    enum ResponseState<F, R> {
        /// The store has to decide.
        Waiting {
            decision: Pin<Box<dyn Future<Output = ResponseState<F, R>> + Send>>,
        },
        /// The inner service answers.
        Forwarding {
            #[pin]
            future: F,
            context: Box<ResponseContext>,
        },
        /// Something else does.
        Answering {
            answer: Pin<Box<dyn Future<Output = Response<ResponseBody<R>>> + Send>>,
            context: Box<ResponseContext>,
        },
        /// The answer is there, and waits for what it has changed at the store.
        Answered {
            response: Option<Box<Response<ResponseBody<R>>>>,
            pending: PendingTasks,
        },
    }
}

impl<F, R> ResponseState<F, R> {
    /// A response that waits for what it has changed at the store.
    fn answered(response: Response<ResponseBody<R>>, pending: PendingTasks) -> Self {
        Self::Answered {
            response: Some(Box::new(response)),
            pending,
        }
    }
}

impl<F, R> HasVerdict for ResponseFuture<F, R> {
    fn verdict(&self) -> Option<&Verdict> {
        match &self.state {
            ResponseState::Waiting { .. } => None,
            ResponseState::Forwarding { context, .. }
            | ResponseState::Answering { context, .. } => Some(&context.verdict),
            ResponseState::Answered { response, .. } => response.as_ref()?.extensions().get(),
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Waiting { decision } => ready!(decision.as_mut().poll(cx)),
                StateProjection::Forwarding { future, context } => {
                    let mut response = match future.poll(cx) {
                        Poll::Pending => match ready!(context.poll_slot(cx)) {
                            Ok(()) => continue,
                            Err(shed) => {
                                let next = context.shed_at_gate(shed);
                                state.set(next);
                                continue;
                            }
                        },
                        Poll::Ready(Ok(response)) => response,
                        Poll::Ready(Err(error)) => {
                            context.fail();
                            return Poll::Ready(Err(error));
                        }
                    };
                    let (pending, reader) = context.pass(&mut response);
                    let in_flight = context.in_flight.take();
                    let response = response.map(|body| {
                        let body = ResponseBody::forwarded(body).holding(in_flight);
                        match reader {
                            Some(reader) => body.read_by(reader),
                            None => body,
                        }
                    });
                    if pending.is_empty() {
                        return Poll::Ready(Ok(response));
                    }
                    ResponseState::answered(response, pending)
                }
                StateProjection::Answering { answer, context } => {
                    let mut response = ready!(answer.as_mut().poll(cx));
                    let (mut pending, _) = context.charge(&response);
                    context.add_verdict_and_headers(&mut response);
                    pending.append(&mut context.strikes());
                    ResponseState::answered(response, pending)
                }
                StateProjection::Answered { response, pending } => {
                    // A client that asks again upon this response is to find it counted, through
                    // another gateway too. The store's calls have a deadline, so this has.
                    pending.retain(|task| Pin::new(task).poll(cx).is_pending());
                    if !pending.is_empty() {
                        return Poll::Pending;
                    }
                    // A future that has answered is not polled again; if it is, it waits.
                    let response = response.take();
                    return response.map_or(Poll::Pending, |made| Poll::Ready(Ok(*made)));
                }
            };
            state.set(next);
        }
    }
}

#[cfg(test)]
mod tests;
