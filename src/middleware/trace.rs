//! Begins the trace of each request, or continues that of its client, and has the upstream continue
//! it (W3C Trace Context).

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tower::{Layer, Service};

use super::{ClientIdentity, RequestContext};
use crate::telemetry::Tracer;

/// Traces requests, if there is something that traces.
#[derive(Clone, Debug, Default)]
pub struct TraceLayer(Option<Arc<Tracer>>);

impl TraceLayer {
    /// Traces by this tracer.
    pub fn new(tracer: Option<Arc<Tracer>>) -> Self {
        Self(tracer)
    }

    /// Whether requests have traces.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }
}

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Trace<S> {
        Trace {
            inner,
            tracer: self.0.clone(),
        }
    }
}

/// A service whose requests are traced; see [`TraceLayer`].
#[derive(Clone, Debug)]
pub struct Trace<S> {
    inner: S,
    tracer: Option<Arc<Tracer>>,
}

impl<S, B> Service<Request<B>> for Trace<S>
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
        if let Some(tracer) = &self.tracer {
            let identity = ClientIdentity::of(request.extensions());
            let is_trusted = identity.is_some_and(|identity| identity.client.peer_is_trusted);
            let trace = tracer.begin(request.headers(), is_trusted);
            trace.inject(request.headers_mut());
            RequestContext::of(request.extensions_mut()).trace = Some(Arc::new(trace));
        }
        self.inner.call(request)
    }
}
