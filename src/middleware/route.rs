//! Finds a request's route, and brings the request to the service of its route.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::util::Oneshot;
use tower::{Layer, Service, ServiceExt};

use crate::middleware::{Answer, Diversion, Verdict};
use crate::problem::Problem;
use crate::rules::{RouteMatch, RouteTable};
use crate::telemetry::Disposition;

/// Finds the routes of requests and leaves a [`RouteMatch`] in their extensions.
#[derive(Clone, Debug)]
pub struct RouteLayer(Arc<RouteTable>);

impl RouteLayer {
    /// Finds routes in this table.
    pub fn new(table: Arc<RouteTable>) -> Self {
        Self(table)
    }
}

impl<S> Layer<S> for RouteLayer {
    type Service = Route<S>;

    fn layer(&self, inner: S) -> Route<S> {
        Route {
            inner,
            table: Arc::clone(&self.0),
        }
    }
}

/// A service whose requests know their route; see [`RouteLayer`].
#[derive(Clone, Debug)]
pub struct Route<S> {
    inner: S,
    table: Arc<RouteTable>,
}

impl<S, B> Service<Request<B>> for Route<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        let found = self
            .table
            .find(request.method(), request.uri(), request.headers());
        if let Some(found) = found {
            request.extensions_mut().insert(found);
        }
        self.inner.call(request)
    }
}

/// Brings a request to the service of its route, or to where it is diverted, and answers 404 where
/// it has neither.
#[derive(Debug)]
pub struct PerRoute<S> {
    services: Arc<[S]>,
    /// By the place that a [`Diversion`] names; none where nothing is ever diverted.
    diversions: Arc<[S]>,
}

/// Shares the services; they are cloned when they are called.
impl<S> Clone for PerRoute<S> {
    fn clone(&self) -> Self {
        Self {
            services: Arc::clone(&self.services),
            diversions: Arc::clone(&self.diversions),
        }
    }
}

impl<S> PerRoute<S> {
    /// The services in the order of the routes.
    pub fn new(services: impl IntoIterator<Item = S>) -> Self {
        Self {
            services: services.into_iter().collect(),
            diversions: Arc::new([]),
        }
    }

    /// Brings diverted requests to these services.
    #[must_use]
    pub fn with_diversions(self, diversions: impl IntoIterator<Item = S>) -> Self {
        Self {
            diversions: diversions.into_iter().collect(),
            ..self
        }
    }

    fn service(&self, extensions: &http::Extensions) -> Option<&S> {
        if !self.diversions.is_empty()
            && let Some(Diversion(place)) = extensions.get()
        {
            return self.diversions.get(*place);
        }
        let found = extensions.get::<RouteMatch>()?;
        self.services.get(found.id.0)
    }
}

impl<S, B, R> Service<Request<B>> for PerRoute<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
{
    type Response = Response<Answer<R>>;
    type Error = S::Error;
    type Future = PerRouteFuture<S, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // Each call waits for the readiness of its own clone.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> PerRouteFuture<S, B> {
        match self.service(request.extensions()) {
            Some(service) => PerRouteFuture::Routed {
                future: service.clone().oneshot(request),
            },
            None => PerRouteFuture::Unrouted,
        }
    }
}

pin_project! {
    /// The response of [`PerRoute`].
    #[project = PerRouteProjection]
    pub enum PerRouteFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        /// The route's service answers.
        Routed {
            #[pin]
            future: Oneshot<S, Request<B>>,
        },
        /// There is no route.
        Unrouted,
    }
}

impl<S, B, R> Future for PerRouteFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<Answer<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            PerRouteProjection::Routed { future } => future
                .poll(cx)
                .map_ok(|response| response.map(Answer::forwarded)),
            PerRouteProjection::Unrouted => Poll::Ready(Ok(not_found())),
        }
    }
}

/// What everybody gets who asks for what no route matches.
pub(super) fn no_route<R>() -> Response<Answer<R>> {
    let problem = Problem::new(StatusCode::NOT_FOUND, "No route of this gateway matches.");
    Answer::problem(problem)
}

fn not_found<R>() -> Response<Answer<R>> {
    let mut response = no_route();
    response
        .extensions_mut()
        .insert(Verdict::new(Disposition::Unrouted));
    response
}
