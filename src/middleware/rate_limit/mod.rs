//! Limits requests.
//!
//! For each request the layer names the buckets of its route's limits, asks the store about all
//! of them at once, and then forwards the request, rejects it, or has a decoy answer it. The
//! response says where the client stands, allowed or denied, unless the route is to be silent.
//!
//! The layer works on any tower service. It reads what [`IdentifyLayer`] and [`RouteLayer`] left
//! in the request's extensions.
//!
//! [`IdentifyLayer`]: crate::middleware::IdentifyLayer
//! [`RouteLayer`]: crate::middleware::RouteLayer

mod background;
mod call;
mod fields;
mod future;
mod gate;
mod leasing;
mod metered;
mod passage;
mod plan;
mod policy;
mod question;
mod reject;
mod settlement;
mod unsettled;

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::{Layer, Service};

use self::background::Background;
pub use self::future::ResponseFuture;
pub use self::gate::{Gate, GateSettings};
pub use self::leasing::InFlight;
use self::leasing::Leasing;
pub use self::metered::Metered;
use self::plan::Prepared;
pub use self::policy::{HeaderForms, OnDenied, Rejection, RoutePolicy};
use self::settlement::{Due, Dues};
pub use self::unsettled::Unsettled;
use crate::limit::{Batch, Claim};
use crate::middleware::Answer;
use crate::rules::RouteMatch;
use crate::store::{Leases, MemoryLeases, Store};
use crate::telemetry::Metrics;
use crate::time::{Clock, SystemClock, Timestamp};

/// Puts limits on a service.
#[derive(Clone)]
pub struct RateLimitLayer(Arc<Settings>);

#[derive(Clone)]
struct Settings {
    background: Background,
    policies: Policies,
    /// None where everybody may come.
    gate: Option<Gate>,
}

#[derive(Clone)]
enum Policies {
    /// One for all requests.
    Same(Prepared),
    /// One for each route, in the order of the routes.
    PerRoute(Vec<Prepared>),
}

impl RateLimitLayer {
    /// Holds every request to the same policy, with buckets in `store`.
    pub fn new(store: Arc<dyn Store>, policy: RoutePolicy, metrics: &Metrics) -> Self {
        Self::build(store, Policies::Same(Prepared::new(policy, metrics)))
    }

    /// Holds each request to the policy of its route, the policies being in the order of the
    /// routes. A request without a route passes unlimited.
    pub fn per_route(
        store: Arc<dyn Store>,
        policies: impl IntoIterator<Item = RoutePolicy>,
        metrics: &Metrics,
    ) -> Self {
        let prepared = policies
            .into_iter()
            .map(|policy| Prepared::new(policy, metrics));
        Self::build(store, Policies::PerRoute(prepared.collect()))
    }

    fn build(store: Arc<dyn Store>, policies: Policies) -> Self {
        let background = Background {
            store,
            leases: Arc::new(MemoryLeases::default()),
            clock: Arc::new(SystemClock),
            unsettled: Unsettled::default(),
        };
        Self(Arc::new(Settings {
            background,
            policies,
            gate: None,
        }))
    }

    /// The same limits behind a gate, which must be one before as many routes.
    #[must_use]
    pub fn behind(self, gate: &Gate) -> Self {
        let mut settings = Settings::clone(&self.0);
        settings.gate = (!gate.is_open()).then(|| gate.clone());
        Self(Arc::new(settings))
    }

    /// The same limits, with places among the requests in flight had from `leases`. Without it
    /// this layer counts those that pass through it.
    #[must_use]
    pub fn with_leases(self, leases: Arc<dyn Leases>) -> Self {
        let mut settings = Settings::clone(&self.0);
        settings.background.leases = leases;
        Self(Arc::new(settings))
    }

    /// The same limits by another clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        let mut settings = Settings::clone(&self.0);
        settings.background.clock = clock;
        Self(Arc::new(settings))
    }

    /// The same limits, with `unsettled` to tell what is still under way at the store when all
    /// requests are answered.
    #[must_use]
    pub fn with_unsettled(self, unsettled: Unsettled) -> Self {
        let mut settings = Settings::clone(&self.0);
        settings.background.unsettled = unsettled;
        Self(Arc::new(settings))
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
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

impl Settings {
    fn policy(&self, extensions: &http::Extensions) -> Option<&Prepared> {
        match &self.policies {
            Policies::Same(policy) => Some(policy),
            Policies::PerRoute(policies) => policies.get(self.route(extensions)?),
        }
    }

    /// A request's route, by its place among the routes; none where no route matched.
    fn route(&self, extensions: &http::Extensions) -> Option<usize> {
        match &self.policies {
            Policies::Same(_) => Some(0),
            Policies::PerRoute(_) => extensions.get::<RouteMatch>().map(|found| found.id.0),
        }
    }

    fn leasing(
        &self,
        claims: Vec<Claim>,
        batch: &Batch,
        arrived: Timestamp,
    ) -> Option<Box<Leasing>> {
        (!claims.is_empty()).then(|| {
            Box::new(Leasing {
                claims: claims.into(),
                batch: batch.clone(),
                background: self.background.clone(),
                arrived,
            })
        })
    }

    fn dues(&self, all: Vec<Due>, arrived: Timestamp) -> Option<Box<Dues>> {
        (!all.is_empty()).then(|| {
            Box::new(Dues {
                all,
                background: self.background.clone(),
                arrived,
            })
        })
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<Metered<B>>, Response = Response<R>> + Clone,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<Answer<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.settings.gate.clone() {
            None => self.limit(request),
            Some(gate) => self.pass(&gate, request),
        }
    }
}

#[cfg(test)]
mod tests;
