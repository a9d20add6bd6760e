//! A request's way through the layer: the store's answer, then the inner service's or one of ours.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::Service;

use super::gate::{Gate, TreatmentContext, treat};
use super::leasing::AwaitingLease;
use super::metered::Metered;
use super::passage::ResponseContext;
use super::plan::{MissingValue, Prepared};
use super::question::{self, AwaitingDecision};
use super::settlement::Settling;
use crate::middleware::{Answer, Deciding, Verdict};
use crate::store::{Outcome, StoreFuture};
use crate::telemetry::Disposition;
use crate::time::Nanos;

/// What answers when it is not the inner service.
type Answering<R> = Pin<Box<dyn Future<Output = Response<Answer<R>>> + Send>>;

pin_project! {
    /// The response of [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<Metered<B>>>,
    {
        #[pin]
        progress: Progress<S, B, S::Future, R>,
    }
}

pin_project! {
    /// How far a request is.
    #[project = ProgressProjection]
    pub(super) enum Progress<S, B, F, R> {
        Asking {
            question: Option<AwaitingDecision<S, B>>,
            #[pin]
            pending: StoreFuture<Outcome>,
        },
        /// Apart, as few requests come this way.
        Leasing {
            question: Option<Box<AwaitingLease<S, B>>>,
        },
        Decided {
            #[pin]
            state: State<F, R>,
        },
    }
}

pin_project! {
    /// What becomes of a request that is decided about.
    #[project = StateProjection]
    pub(super) enum State<F, R> {
        /// The inner service answers it.
        Forwarding {
            #[pin]
            future: F,
            passage: ResponseContext,
        },
        /// Somebody else does.
        Answering {
            future: Answering<R>,
            passage: ResponseContext,
        },
        /// The answer is there, and waits for what it has changed at the store.
        Answered {
            response: Option<Response<Answer<R>>>,
            settling: Settling,
        },
    }
}

impl<S, B, F, R> Progress<S, B, F, R> {
    pub(super) fn decided(state: State<F, R>) -> Self {
        Self::Decided { state }
    }
}

impl<F, R> State<F, R> {
    pub(super) fn answered(response: Response<Answer<R>>) -> Self {
        Self::settling(response, Settling::new())
    }

    /// A response that waits for what it has changed at the store.
    pub(super) fn settling(response: Response<Answer<R>>, settling: Settling) -> Self {
        Self::Answered {
            response: Some(response),
            settling,
        }
    }
}

impl<F, R> State<F, R> {
    fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Forwarding { passage, .. } | Self::Answering { passage, .. } => {
                Some(&passage.verdict)
            }
            Self::Answered { response, .. } => response.as_ref()?.extensions().get(),
        }
    }
}

impl<S, B, R> Deciding for ResponseFuture<S, B, R>
where
    S: Service<Request<Metered<B>>>,
{
    fn verdict(&self) -> Option<&Verdict> {
        match &self.progress {
            Progress::Decided { state } => state.verdict(),
            Progress::Asking { .. } | Progress::Leasing { .. } => None,
        }
    }
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<Metered<B>>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    /// Forwards a request that no limit applies to.
    pub(super) fn unlimited(future: S::Future, policy: Option<Prepared>) -> Self {
        let passage = ResponseContext::of(Disposition::Unlimited, policy);
        Self::decided(State::Forwarding { future, passage })
    }

    /// Forwards a request of who is allowed in any case.
    pub(super) fn allowed(future: S::Future, policy: Option<Prepared>) -> Self {
        let mut passage = ResponseContext::of(Disposition::Unlimited, policy);
        passage.verdict.listed = Some("allow");
        Self::decided(State::Forwarding { future, passage })
    }

    /// Gives the blocked what they get.
    pub(super) fn blocked(
        gate: &Gate,
        route: Option<usize>,
        request: Request<B>,
        inner: S,
    ) -> Self {
        let mut passage = ResponseContext::of(Disposition::Denied, None);
        passage.verdict.listed = Some("block");
        let treating = TreatmentContext {
            gate,
            sentence: gate.blocked(),
            route,
            retry_in: Nanos::NEVER,
        };
        Self::decided(treat(&treating, inner, request, passage))
    }

    /// Refuses a request without a value that a limit must have.
    pub(super) fn lacking(policy: &Prepared, lack: &MissingValue, request: Request<B>) -> Self {
        Self::decided(question::lacking(policy, lack, request, None))
    }

    /// Waits for the store to decide.
    pub(super) fn asking(question: AwaitingDecision<S, B>, pending: StoreFuture<Outcome>) -> Self {
        Self {
            progress: Progress::Asking {
                question: Some(question),
                pending,
            },
        }
    }

    fn decided(state: State<S::Future, R>) -> Self {
        Self {
            progress: Progress::decided(state),
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<Metered<B>>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Output = Result<Response<Answer<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut progress = self.project().progress;
        loop {
            let next = match progress.as_mut().project() {
                ProgressProjection::Asking { question, pending } => {
                    let outcome = ready!(pending.poll(cx));
                    // A future that has answered is not polled again; if it is, it waits.
                    let Some(question) = question.take() else {
                        return Poll::Pending;
                    };
                    question.resolve(outcome)
                }
                ProgressProjection::Leasing { question } => {
                    let leased = match question {
                        Some(question) => ready!(Pin::new(&mut question.pending).poll(cx)),
                        None => return Poll::Pending,
                    };
                    let Some(question) = question.take() else {
                        return Poll::Pending;
                    };
                    Progress::Decided {
                        state: question.resolve(leased),
                    }
                }
                ProgressProjection::Decided { state } => return state.poll(cx),
            };
            progress.set(next);
        }
    }
}

impl<F, R, E> Future for State<F, R>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<Answer<R>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project() {
            StateProjection::Forwarding { future, passage } => {
                let mut response = match ready!(future.poll(cx)) {
                    Ok(response) => response,
                    Err(error) => {
                        passage.fail();
                        return Poll::Ready(Err(error));
                    }
                };
                let settling = passage.pass(&mut response);
                let in_flight = passage.in_flight.take();
                let response = response.map(|body| Answer::forwarded(body).holding(in_flight));
                if settling.is_empty() {
                    return Poll::Ready(Ok(response));
                }
                self.set(Self::settling(response, settling));
                self.poll(cx)
            }
            StateProjection::Answering { future, passage } => {
                let mut response = ready!(future.as_mut().poll(cx));
                passage.mark(&mut response);
                let settling = passage.struck();
                self.set(Self::settling(response, settling));
                self.poll(cx)
            }
            StateProjection::Answered { response, settling } => {
                // Whoever asks again upon this response is to find it counted, through another
                // gateway too. The store's calls have a deadline, so this has.
                settling.retain(|it| Pin::new(it).poll(cx).is_pending());
                if !settling.is_empty() {
                    return Poll::Pending;
                }
                response
                    .take()
                    .map_or(Poll::Pending, |made| Poll::Ready(Ok(made)))
            }
        }
    }
}
