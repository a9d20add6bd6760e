//! A request's way through the layer: the store's answer, then the inner service's or one of ours.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::Service;

use super::fields;
use super::plan::{Asked, Denial, Lack, Prepared};
use super::{HeaderForms, OnDenied, Rejection, reject};
use crate::middleware::decoy::Shadow;
use crate::middleware::{Answer, Sender, Verdict};
use crate::store::{Basis, Outcome, Pending, StoreError};
use crate::telemetry::{Disposition, Upstreamed};

/// What answers when it is not the inner service.
type Answering<R> = Pin<Box<dyn Future<Output = Response<Answer<R>>> + Send>>;

pin_project! {
    /// The response of [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future, R>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F, R> {
        Asking {
            question: Option<Question<S, B>>,
            #[pin]
            pending: Pending<Outcome>,
        },
        Forwarding {
            #[pin]
            future: F,
            passage: Passage,
        },
        Answering {
            future: Answering<R>,
            passage: Passage,
        },
        Answered {
            response: Option<Response<Answer<R>>>,
        },
    }
}

/// A request whose limits are being checked.
struct Question<S, B> {
    policy: Prepared,
    asked: Asked,
    request: Request<B>,
    inner: S,
    since: Instant,
}

/// What is to be added to a response on its way out.
struct Passage {
    verdict: Verdict,
    /// Where the client stands, where a limit applied.
    standing: Option<(Prepared, Asked, Outcome)>,
    /// Who learns from the answer, if it is a real one.
    lesson: Option<Lesson>,
}

struct Lesson {
    shadow: Arc<Shadow>,
    client: u64,
    since: Instant,
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    /// Forwards a request that no limit applies to.
    pub(super) fn unlimited(future: S::Future) -> Self {
        let passage = Passage::of(Verdict::new(Disposition::Unlimited));
        Self {
            state: State::Forwarding { future, passage },
        }
    }

    /// Refuses a request without a value that a limit must have.
    pub(super) fn lacking(policy: Prepared, lack: Lack, request: Request<B>) -> Self {
        let denied_by = policy.name_of(&lack);
        let state = match &policy.policy().on_denied {
            OnDenied::Shadow(shadow) => {
                let verdict = Verdict {
                    denied_by,
                    ..Verdict::new(Disposition::Shadowed)
                };
                State::shadowed(shadow, request, Passage::of(verdict))
            }
            OnDenied::Reject(_) => {
                let limit = denied_by.as_deref().unwrap_or_default();
                let mut response = reject::missing(limit, lack.source());
                let verdict = Verdict {
                    denied_by,
                    ..Verdict::new(Disposition::Denied)
                };
                response.extensions_mut().insert(verdict);
                State::Answered {
                    response: Some(response),
                }
            }
        };
        Self { state }
    }

    /// Waits for the store to decide.
    pub(super) fn asking(
        policy: Prepared,
        pending: Pending<Outcome>,
        asked: Asked,
        request: Request<B>,
        inner: S,
    ) -> Self {
        let question = Question {
            policy,
            asked,
            request,
            inner,
            since: Instant::now(),
        };
        Self {
            state: State::Asking {
                question: Some(question),
                pending,
            },
        }
    }
}

impl<S, B, R> Question<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    /// Goes on with a request, now that the store has answered or failed.
    fn resolve(self, outcome: Result<Outcome, StoreError>) -> State<S, B, S::Future, R> {
        let store = Some(self.since.elapsed());
        let Ok(outcome) = outcome else {
            let mut response = reject::unavailable();
            let verdict = Verdict {
                store,
                ..Verdict::new(Disposition::Unavailable)
            };
            response.extensions_mut().insert(verdict);
            return State::Answered {
                response: Some(response),
            };
        };
        let policy = self.policy.clone();
        policy.count(&self.asked, &outcome);
        match policy.denial(&self.asked, &outcome) {
            None => self.forward(outcome, store),
            Some(denial) => self.deny(&denial, outcome, store),
        }
    }

    fn forward(mut self, outcome: Outcome, store: Option<Duration>) -> State<S, B, S::Future, R> {
        let disposition = match outcome.basis {
            Basis::FailedOpen => Disposition::FailedOpen,
            _ => Disposition::Allowed,
        };
        let lesson = match &self.policy.policy().on_denied {
            OnDenied::Shadow(shadow) => Some(Lesson::of(shadow, &self.request)),
            OnDenied::Reject(_) => None,
        };
        let future = self.inner.call(self.request);
        let verdict = Verdict {
            decided_by: stand_in(&outcome),
            store,
            ..Verdict::new(disposition)
        };
        let standing = Some((self.policy, self.asked, outcome));
        State::Forwarding {
            future,
            passage: Passage {
                verdict,
                standing,
                lesson,
            },
        }
    }

    fn deny(
        self,
        denial: &Denial<'_>,
        outcome: Outcome,
        store: Option<Duration>,
    ) -> State<S, B, S::Future, R> {
        let decided_by = stand_in(&outcome);
        let verdict = |disposition| Verdict {
            disposition,
            denied_by: Some(denial.limit()),
            decided_by,
            store,
        };
        match &self.policy.clone().policy().on_denied {
            OnDenied::Shadow(shadow) => {
                let standing = Some((self.policy, self.asked, outcome));
                let verdict = verdict(Disposition::Shadowed);
                State::shadowed(
                    shadow,
                    self.request,
                    Passage {
                        verdict,
                        standing,
                        lesson: None,
                    },
                )
            }
            OnDenied::Reject(rejection) => {
                let standing = Some((self.policy, self.asked, outcome));
                let verdict = verdict(Disposition::Denied);
                let passage = Passage {
                    verdict,
                    standing,
                    lesson: None,
                };
                State::rejected(rejection, denial, &passage)
            }
        }
    }
}

/// Who decided in the store's place.
fn stand_in(outcome: &Outcome) -> Option<&'static str> {
    match outcome.basis {
        Basis::Remembered => Some("remembered"),
        Basis::Local => Some("local"),
        Basis::Store | Basis::FailedOpen => None,
    }
}

impl<S, B, F, R> State<S, B, F, R>
where
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    fn shadowed(shadow: &Arc<Shadow>, request: Request<B>, passage: Passage) -> Self {
        let (head, body) = request.into_parts();
        Self::Answering {
            future: Box::pin(Arc::clone(shadow).answer(head, body)),
            passage,
        }
    }

    fn rejected(rejection: &Rejection, denial: &Denial<'_>, passage: &Passage) -> Self {
        let document = denial.document(rejection);
        let mut response = reject::denied(rejection, document, denial.decision());
        passage.mark(&mut response);
        Self::Answered {
            response: Some(response),
        }
    }
}

impl Passage {
    fn of(verdict: Verdict) -> Self {
        Self {
            verdict,
            standing: None,
            lesson: None,
        }
    }

    /// Adds the verdict, and the fields that tell where the client stands. A verdict that is there
    /// already, of whoever answered where there is no route, says more than ours.
    fn mark<B>(&self, response: &mut Response<B>) {
        if let Some((policy, asked, outcome)) = &self.standing
            && policy.policy().headers != HeaderForms::NONE
        {
            let mut standings = policy.standings(asked, outcome);
            let forms = policy.policy().headers;
            fields::append(response.headers_mut(), forms, &mut standings);
        }
        response
            .extensions_mut()
            .get_or_insert_with(|| self.verdict.clone());
    }

    /// Lets a decoy learn from a real answer, before anything of ours is added to it.
    fn teach<B: Body>(&self, response: &Response<B>) {
        if let Some(lesson) = &self.lesson {
            // The proxy knows when the request's body ended; without it the whole time counts.
            let upstreamed = response.extensions().get::<Upstreamed>();
            let latency = upstreamed.map_or_else(|| lesson.since.elapsed(), |it| it.head);
            lesson.shadow.learn(response, lesson.client, latency);
        }
    }
}

impl Lesson {
    fn of<B>(shadow: &Arc<Shadow>, request: &Request<B>) -> Self {
        let client = request
            .extensions()
            .get::<Sender>()
            .map_or(0, Sender::fingerprint);
        Self {
            shadow: Arc::clone(shadow),
            client,
            since: Instant::now(),
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Output = Result<Response<Answer<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Asking { question, pending } => {
                    let outcome = ready!(pending.poll(cx));
                    // A future that has answered is not polled again; if it is, it waits.
                    let Some(question) = question.take() else {
                        return Poll::Pending;
                    };
                    question.resolve(outcome)
                }
                StateProjection::Forwarding { future, passage } => {
                    let mut response = ready!(future.poll(cx))?;
                    passage.teach(&response);
                    passage.mark(&mut response);
                    return Poll::Ready(Ok(response.map(Answer::forwarded)));
                }
                StateProjection::Answering { future, passage } => {
                    let mut response = ready!(future.as_mut().poll(cx));
                    passage.mark(&mut response);
                    return Poll::Ready(Ok(response));
                }
                StateProjection::Answered { response } => {
                    return response
                        .take()
                        .map_or(Poll::Pending, |made| Poll::Ready(Ok(made)));
                }
            };
            state.set(next);
        }
    }
}
