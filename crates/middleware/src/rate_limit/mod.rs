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
mod decision;
mod decisions;
mod deferred_charge;
mod deferred_slot;
mod delay;
mod denial_lines;
mod denial_response;
mod descriptors;
mod header_fields;
pub(super) mod held;
mod held_slot;
mod in_flight;
mod kept_out;
mod layer;
mod lease_request;
mod look_ahead;
mod metered;
pub(super) mod on_denied;
mod pipeline;
mod plan;
pub(super) mod policy;
mod response_context;
mod response_cost;
mod shed;
mod simulation;
mod spent;
mod wait_spreader;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::Service;
use weir_http::request::{BoxedRequest, HttpRequest};
use weir_telemetry::Disposition;

pub use self::delay::Delay;
pub use self::descriptors::{
    AskedDescriptor, DecidedDescriptors, DescriptorDecision, DescriptorLimits, Domains, ShownLimit,
};
pub use self::header_fields::{HeaderForm, HeaderForms};
pub use self::in_flight::InFlight;
use self::layer::Settings;
pub use self::layer::{Denied, RateLimitLayer};
pub use self::metered::Metered;
pub(super) use self::metered::UploadTime;
pub use self::on_denied::OnDenied;
#[cfg(feature = "config")]
pub use self::on_denied::OnDeniedKeys;
pub use self::policy::{BodyBytes, LimitHook, RoutePolicy};
pub(super) use self::response_context::PendingFields;
use self::response_context::ResponseContext;
pub use self::simulation::{LimitDecision, Progress, Simulated, Simulation, Waiting};
pub use self::wait_spreader::WaitSpreader;
use super::backend::PendingTasks;
use super::{HasVerdict, ResponseBody, Verdict};

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
    const fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }

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
            state: self.start(request, false),
        }
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
        /// The store has to decide, or the request waits for its turn, its places in flight or a slot:
        /// there is no verdict yet.
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

    /// Refuses a request about which nothing can decide.
    fn unavailable(mut response: Response<ResponseBody<R>>, store: Option<Duration>) -> Self {
        let verdict = Verdict {
            store,
            ..Verdict::new(Disposition::Unavailable)
        };
        response.extensions_mut().insert(verdict);
        Self::answered(response, PendingTasks::new())
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
                    let response = match future.poll(cx) {
                        Poll::Pending => match ready!(context.poll_held(cx)) {
                            Ok(()) => continue,
                            Err(refused) => {
                                let next = context.refuse(*refused);
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
                    let (response, pending) = context.pass(response);
                    if pending.is_empty() {
                        return Poll::Ready(Ok(response));
                    }
                    ResponseState::answered(response, pending)
                }
                StateProjection::Answering { answer, context } => {
                    let response = ready!(answer.as_mut().poll(cx));
                    let (response, pending) = context.pass_stand_in(response);
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
