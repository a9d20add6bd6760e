//! Answers requests that would be answered without an upstream in any case, before anybody counts
//! them.
//!
//! Behind the limits such an answer would be an oracle: a shadow-banned client gets a decoy where
//! anybody else is told that a method is not forwarded, and so knows that it is banned.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, request};
use http_body::Body;
use http_body_util::Full;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use crate::middleware::own_answer::{Asker, OwnAnswers, suit_programs};
use crate::middleware::{Deciding, ResponseBody, Verdict};

/// Says what a request is answered that goes no further; none for one that does.
pub type Refusal = fn(&request::Parts) -> Option<Response<Full<Bytes>>>;

/// Refuses requests, and makes what is answered here and further in suit browsers.
#[derive(Clone, Debug)]
pub struct RefuseLayer {
    refusal: Refusal,
    answers: OwnAnswers,
}

impl RefuseLayer {
    /// Refuses what `refusal` has an answer for.
    pub fn new(refusal: Refusal) -> Self {
        Self {
            refusal,
            answers: OwnAnswers::default(),
        }
    }

    /// Gives answers that are made here and further in this look.
    #[must_use]
    pub fn with_answers(self, answers: OwnAnswers) -> Self {
        Self { answers, ..self }
    }
}

impl<S> Layer<S> for RefuseLayer {
    type Service = RejectInvalid<S>;

    fn layer(&self, inner: S) -> RejectInvalid<S> {
        let RefuseLayer { refusal, answers } = self.clone();
        RejectInvalid {
            inner,
            refusal,
            answers,
        }
    }
}

/// A service that some requests do not get to; see [`RefuseLayer`].
#[derive(Clone, Debug)]
pub struct RejectInvalid<S> {
    inner: S,
    refusal: Refusal,
    answers: OwnAnswers,
}

impl<S, B, R> Service<Request<B>> for RejectInvalid<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        let asker = self.answers.asker(&head.headers, &head.extensions);
        let progress = match (self.refusal)(&head) {
            Some(answer) => Progress::Refused {
                answer: Some(answer),
            },
            None => Progress::Forwarding {
                future: self.inner.call(Request::from_parts(head, body)),
            },
        };
        ResponseFuture { progress, asker }
    }
}

pin_project! {
    /// The response of [`RejectInvalid`].
    pub struct ResponseFuture<F> {
        #[pin]
        progress: Progress<F>,
        asker: Option<Box<Asker>>,
    }
}

pin_project! {
    #[project = ProgressProjection]
    enum Progress<F> {
        /// The inner service answers.
        Forwarding {
            #[pin]
            future: F,
        },
        /// The answer is there already.
        Refused { answer: Option<Response<Full<Bytes>>> },
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.progress.project() {
            ProgressProjection::Forwarding { future } => {
                ready!(future.poll(cx))?.map(ResponseBody::forwarded)
            }
            // A future that has answered is not polled again; if it is, it waits.
            ProgressProjection::Refused { answer } => {
                let Some(answer) = answer.take() else {
                    return Poll::Pending;
                };
                answer.map(|body| ResponseBody::full(body.into_inner().unwrap_or_default()))
            }
        };
        if let Some(asker) = this.asker {
            return Poll::Ready(Ok(asker.suit(response)));
        }
        suit_programs(&mut response);
        Poll::Ready(Ok(response))
    }
}

impl<F: Deciding> Deciding for ResponseFuture<F> {
    fn verdict(&self) -> Option<&Verdict> {
        match &self.progress {
            Progress::Forwarding { future } => future.verdict(),
            Progress::Refused { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Method, StatusCode};
    use http_body_util::BodyExt;
    use tower::{ServiceExt, service_fn};

    use super::*;

    fn no_delete(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
        (head.method == Method::DELETE).then(|| {
            let mut response = Response::new(Full::from("no"));
            *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
            response
        })
    }

    async fn answer(method: Method) -> (StatusCode, Bytes) {
        let inner = service_fn(|request: Request<Full<Bytes>>| async {
            Ok::<_, Infallible>(Response::new(request.into_body()))
        });
        let mut request = Request::new(Full::from("sent"));
        *request.method_mut() = method;
        let service = RefuseLayer::new(no_delete).layer(inner);
        let (head, body) = service.oneshot(request).await.unwrap().into_parts();
        (head.status, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn what_is_refused_never_gets_to_the_inner_service_and_all_else_does() {
        let refused = (StatusCode::NOT_IMPLEMENTED, Bytes::from("no"));
        assert_eq!(answer(Method::DELETE).await, refused);
        let passed = (StatusCode::OK, Bytes::from("sent"));
        assert_eq!(answer(Method::POST).await, passed);
    }
}
