//! The proxy as a tower service.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::time::Instant;
use tower::Service;

use super::body::ProxyBody;
use super::error::ProxyError;
use super::refusal::no_further;
use super::request::{self, Outbound};
use super::response;
use super::upstream::Upstream;

/// Forwards requests to an upstream.
///
/// Every request gets a response: the upstream's, with
/// [`UpstreamOutcome`](crate::telemetry::Upstreamed) in its extensions, or a problem of the proxy's own,
/// with [`UpstreamFailed`](crate::telemetry::UpstreamFailed).
#[derive(Clone)]
pub struct Proxy {
    upstream: Upstream,
}

impl Proxy {
    /// A proxy in front of `upstream`.
    pub fn new(upstream: Upstream) -> Self {
        Self { upstream }
    }
}

impl<B> Service<Request<B>> for Proxy
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let upstream = self.upstream.clone();
        ResponseFuture(Box::pin(async move {
            match forward(&upstream, request).await {
                Ok(response) => response,
                Err(error) => respond(upstream.name(), error),
            }
        }))
    }
}

/// The response to come. Dropping it gives the request up, and the connection that it is on.
pub struct ResponseFuture(Pin<Box<dyn Future<Output = Response<ProxyBody>> + Send>>);

impl Future for ResponseFuture {
    type Output = Result<Response<ProxyBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

async fn forward<B>(
    upstream: &Upstream,
    mut request: Request<B>,
) -> Result<Response<ProxyBody>, ProxyError>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    if request::ends_here(&mut request) {
        return Ok(no_further().map(ProxyBody::full));
    }
    let arrived = Instant::now();
    let outbound = Outbound::of(request)?;
    response::to_client(upstream.send(outbound, arrived).await?, upstream.leaving())
}

fn respond(upstream: &str, error: ProxyError) -> Response<ProxyBody> {
    let cause = error.source().map(tracing::field::display);
    if error.is_of_client() {
        tracing::debug!(upstream, %error, cause, "answered in the upstream's place");
    } else {
        tracing::warn!(upstream, %error, cause, "answered in the upstream's place");
    }
    error.into_response()
}
