//! How limits are put on a service.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Response};
use tower::Layer;
use weir_limit::time::Clock;
use weir_limit::{Quota, QuotaError};
use weir_rules::{HashKey, KeySource, Limit, LimitNameError, LimitUse, Missing};
use weir_store::{Leases, Memory, MemorySettings, Store};
use weir_telemetry::Metrics;

use super::RateLimit;
use super::header_fields::HeaderForms;
use super::policy::RoutePolicy;
use super::wait_spreader::WaitSpreader;
use crate::RequestContext;
use crate::access::AccessControl;
use crate::backend::{Backend, BackgroundTasks};
use crate::identify::{Identification, KeyExtractor, peer};
use crate::overload::OverloadShedding;
use crate::route::{RouteState, Routed};
use crate::steps::UnreadableDenials;

/// Puts limits on a service.
#[derive(Clone)]
pub struct RateLimitLayer(pub(super) Arc<Settings>);

/// What a layer and its services share.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) backend: Backend,
    /// The route of all requests; none where [`RouteLayer`](crate::RouteLayer) finds
    /// it.
    pub(super) route: Option<Arc<RouteState>>,
    /// What holds for requests that take no route: no limit, but bans.
    pub(super) unrouted: Arc<RouteState>,
    /// None where all clients may come.
    pub(super) access: Option<AccessControl>,
    /// None where [`IdentifyLayer`](crate::IdentifyLayer) stands above.
    pub(super) identification: Option<Identification>,
    /// The only limit, of a layer that makes it; its name may be chosen later.
    pub(super) only: Option<(KeySource, Quota)>,
    /// Whether clients of unknown addresses are counted together.
    pub(super) shares_unknown: bool,
    /// What notices proxies that nobody trusts, also where they are denied.
    pub(super) forwarded: Option<crate::ForwardedLayer>,
    /// None where workers that have too much to do shed no requests.
    pub(super) overload: Option<Arc<OverloadShedding>>,
    pub(super) waits: WaitSpreader,
    /// Limits whose denials web pages cannot read.
    pub(super) unreadable: Arc<UnreadableDenials>,
    /// What makes the answer to a denied request; none for that of the policy.
    pub(super) respond: Option<Arc<Respond>>,
}

pub(super) type Respond = dyn Fn(&Denied<'_>) -> Response<Bytes> + Send + Sync;

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
            overload: None,
            unrouted: Arc::new(unrouted),
            access: None,
            identification: None,
            only: None,
            shares_unknown: false,
            forwarded: None,
            waits: WaitSpreader::default(),
            unreadable: Arc::default(),
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

    /// The same limits, which ask all of this. For the gateway.
    #[doc(hidden)]
    #[must_use]
    pub fn with_backend(self, backend: Backend) -> Self {
        self.with(|settings| settings.backend = backend)
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

    /// The same layer, which notes here which limits deny requests of pages that cannot read it.
    pub fn noting_unreadable_denials(self, unreadable: &Arc<UnreadableDenials>) -> Self {
        self.with(|settings| settings.unreadable = Arc::clone(unreadable))
    }

    /// The same layer above this one, which is told of the requests that are denied.
    pub fn above(self, forwarded: &crate::ForwardedLayer) -> Self {
        self.with(|settings| settings.forwarded = Some(forwarded.clone()))
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
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
                target: "weir::middleware::rate_limit::layer",
                "keys are hashed by a random key of this process, so other processes with the same \
                 store count them apart: give all of them one by RateLimitLayer::with_hash_key"
            );
        }
        RateLimit::new(inner, Arc::clone(&self.0))
    }
}

impl Settings {
    /// A request's route; that of none where no route matched.
    pub(super) fn route_or_none<'s>(&'s self, extensions: &'s Extensions) -> &'s Arc<RouteState> {
        self.route_of(RequestContext::routed(extensions))
    }

    pub(super) fn route_of<'s>(&'s self, routed: Option<&'s Routed>) -> &'s Arc<RouteState> {
        let routed = routed.map(|routed| &routed.route);
        self.route.as_ref().or(routed).unwrap_or(&self.unrouted)
    }
}
