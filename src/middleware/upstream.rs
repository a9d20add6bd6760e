//! Brings a request to the service of its upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::util::Oneshot;
use tower::{Service, ServiceExt};

use super::rejection::no_route;
use super::route_state::Routed;
use super::{ResponseBody, Verdict};
use crate::telemetry::Disposition;

/// Brings a request to the service of its route's upstream, or of that to which it is diverted, and
/// answers 404 where there is none. Clones share the services; they are cloned when they are called.
#[derive(Debug)]
pub struct ToUpstream<S>(Arc<[S]>);

impl<S> Clone for ToUpstream<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> ToUpstream<S> {
    /// The services of all upstreams, in the order that their ids count.
    pub fn new(services: impl IntoIterator<Item = S>) -> Self {
        Self(services.into_iter().collect())
    }

    fn service(&self, extensions: &http::Extensions) -> Option<&S> {
        let upstream = extensions.get::<Routed>()?.upstream?;
        self.0.get(upstream.0)
    }
}

impl<S, B, R> Service<Request<B>> for ToUpstream<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = UpstreamFuture<S, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // Each call waits for the readiness of its own clone.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> UpstreamFuture<S, B> {
        match self.service(request.extensions()) {
            Some(service) => UpstreamFuture::Routed {
                future: service.clone().oneshot(request),
            },
            None => UpstreamFuture::Unrouted,
        }
    }
}

pin_project! {
    /// The response of [`ToUpstream`].
    #[project = UpstreamProjection]
    pub enum UpstreamFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        /// The upstream's service answers.
        Routed {
            #[pin]
            future: Oneshot<S, Request<B>>,
        },
        /// There is no such upstream.
        Unrouted,
    }
}

impl<S, B, R> Future for UpstreamFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            UpstreamProjection::Routed { future } => future
                .poll(cx)
                .map_ok(|response| response.map(ResponseBody::forwarded)),
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
