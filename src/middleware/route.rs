//! Finds a request's route.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tower::{Layer, Service};

use super::route_state::{RouteState, Routed};
use crate::rules::{RouteMatcher, RouteTable};

/// Finds the routes of requests and leaves a [`Routed`] in their extensions.
#[derive(Clone)]
pub struct RouteLayer(Arc<Routes>);

struct Routes {
    table: RouteTable,
    /// By the ids of the table, which is made of the same list.
    states: Vec<Arc<RouteState>>,
}

impl RouteLayer {
    /// Finds these routes.
    pub fn new(routes: impl IntoIterator<Item = (RouteMatcher, Arc<RouteState>)>) -> Self {
        let (matchers, states) = routes.into_iter().unzip();
        let table = RouteTable::new(matchers);
        Self(Arc::new(Routes { table, states }))
    }

    /// All routes.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<RouteState>> {
        self.0.states.iter()
    }
}

impl<S> Layer<S> for RouteLayer {
    type Service = Route<S>;

    fn layer(&self, inner: S) -> Route<S> {
        Route {
            inner,
            routes: Arc::clone(&self.0),
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
    fn find<B>(&self, request: &Request<B>) -> Option<Routed> {
        let (method, uri) = (request.method(), request.uri());
        let found = self.table.find(method, uri, request.headers())?;
        let route = Arc::clone(self.states.get(found.id.0)?);
        Some(Routed {
            upstream: route.upstream,
            captures: found.captures,
            route,
        })
    }
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
        if let Some(found) = self.routes.find(&request) {
            request.extensions_mut().insert(found);
        }
        self.inner.call(request)
    }
}
