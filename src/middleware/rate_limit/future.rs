//! The response of [`RateLimit`](super::RateLimit): the store's answer, then the inner service's or
//! one that is made here.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use super::response_context::ResponseContext;
use crate::middleware::backend::PendingTasks;
use crate::middleware::{HasVerdict, ResponseBody, Verdict};

pin_project! {
    /// The response of [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<F, R> {
        #[pin]
        pub(super) state: State<F, R>,
    }
}

pin_project! {
    /// How far a request is.
    #[project = StateProjection]
    pub(super) enum State<F, R> {
        /// The store has to decide.
        Waiting {
            decision: Pin<Box<dyn Future<Output = State<F, R>> + Send>>,
        },
        /// The inner service answers.
        Forwarding {
            #[pin]
            future: F,
            context: ResponseContext,
        },
        /// Something else does.
        Answering {
            answer: Pin<Box<dyn Future<Output = Response<ResponseBody<R>>> + Send>>,
            context: ResponseContext,
        },
        /// The answer is there, and waits for what it has changed at the store.
        Answered {
            response: Option<Response<ResponseBody<R>>>,
            pending: PendingTasks,
        },
    }
}

impl<F, R> State<F, R> {
    /// A response that waits for what it has changed at the store.
    pub(super) fn answered(response: Response<ResponseBody<R>>, pending: PendingTasks) -> Self {
        Self::Answered {
            response: Some(response),
            pending,
        }
    }
}

impl<F, R> HasVerdict for ResponseFuture<F, R> {
    fn verdict(&self) -> Option<&Verdict> {
        match &self.state {
            State::Waiting { .. } => None,
            State::Forwarding { context, .. } | State::Answering { context, .. } => {
                Some(&context.verdict)
            }
            State::Answered { response, .. } => response.as_ref()?.extensions().get(),
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
                    let mut response = match ready!(future.poll(cx)) {
                        Ok(response) => response,
                        Err(error) => {
                            context.fail();
                            return Poll::Ready(Err(error));
                        }
                    };
                    let pending = context.pass(&mut response);
                    let in_flight = context.in_flight.take();
                    let response =
                        response.map(|body| ResponseBody::forwarded(body).holding(in_flight));
                    if pending.is_empty() {
                        return Poll::Ready(Ok(response));
                    }
                    State::answered(response, pending)
                }
                StateProjection::Answering { answer, context } => {
                    let mut response = ready!(answer.as_mut().poll(cx));
                    context.mark(&mut response);
                    State::answered(response, context.strikes())
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
                    return response.map_or(Poll::Pending, |made| Poll::Ready(Ok(made)));
                }
            };
            state.set(next);
        }
    }
}
