//! The app behind all gateways: answers as its requests say.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};
use tower::Service;
use weir::internals::HttpRequest;

use super::port::{Emission, Port};
use crate::scenario::client;

/// By how much longer than its requests say the app of all gateways takes, in nanoseconds.
pub(super) type Slowness = Arc<AtomicU64>;

/// The app as one gateway reaches it.
#[derive(Clone)]
pub(super) struct App {
    port: Arc<Port>,
    slowness: Slowness,
}

impl App {
    pub(super) const fn new(port: Arc<Port>, slowness: Slowness) -> Self {
        Self { port, slowness }
    }
}

/// What the app does about a request, which travels in its extensions.
#[derive(Clone)]
pub(super) struct Script(pub(super) Arc<client::Request>);

impl<Q: HttpRequest> Service<Q> for App {
    type Response = Response<AppBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let script = request.extensions().get::<Script>().cloned();
        let slowness = Duration::from_nanos(self.slowness.load(Ordering::Relaxed));
        let port = Arc::clone(&self.port);
        Box::pin(async move {
            let Some(Script(script)) = script else {
                return Ok(Response::new(AppBody::new(Duration::ZERO)));
            };
            port.emit(Emission::ReachedApp(script.id));
            let takes = script.app_takes + slowness;
            if !takes.is_zero() {
                sleep(takes).await;
            }
            let mut response = Response::builder().status(script.status);
            if let Some(cost) = script.response_cost {
                response = response.header("x-cost", cost);
            }
            let body = AppBody::new(script.body_lasts);
            Ok(response
                .body(body)
                .unwrap_or_else(|_| Response::new(AppBody::new(Duration::ZERO))))
        })
    }
}

/// A body in two pieces, the second of which comes later.
pub(super) struct AppBody {
    first: Option<Bytes>,
    lasts: Option<Pin<Box<Sleep>>>,
    last: Option<Bytes>,
}

impl AppBody {
    fn new(lasts: Duration) -> Self {
        let is_split = !lasts.is_zero();
        Self {
            first: Some(Bytes::from_static(b"first")),
            lasts: is_split.then(|| Box::pin(sleep(lasts))),
            last: is_split.then_some(Bytes::from_static(b"last")),
        }
    }
}

impl Body for AppBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Some(lasts) = &mut self.lasts {
            std::task::ready!(lasts.as_mut().poll(cx));
        }
        self.lasts = None;
        Poll::Ready(self.last.take().map(|last| Ok(Frame::data(last))))
    }
}
