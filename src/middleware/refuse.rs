//! Answers requests that would be answered without an upstream in any case, before anybody counts
//! them.
//!
//! Behind the limits such an answer would be an oracle: a shadow-banned client gets a decoy where
//! anybody else is told that a method is not forwarded, and so knows that it is banned.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, request};
use http_body::Body;
use http_body_util::Full;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use crate::middleware::{Answer, Deciding, Verdict};

/// Says what a request is answered that goes no further; none for one that does.
pub type Refusal = fn(&request::Parts) -> Option<Response<Full<Bytes>>>;

/// Refuses requests.
#[derive(Clone, Copy, Debug)]
pub struct RefuseLayer(Refusal);

impl RefuseLayer {
    /// Refuses what `refusal` has an answer for.
    pub fn new(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl<S> Layer<S> for RefuseLayer {
    type Service = Refuse<S>;

    fn layer(&self, inner: S) -> Refuse<S> {
        let Self(refusal) = *self;
        Refuse { inner, refusal }
    }
}

/// A service that some requests do not get to; see [`RefuseLayer`].
#[derive(Clone, Debug)]
pub struct Refuse<S> {
    inner: S,
    refusal: Refusal,
}

impl<S, B, R> Service<Request<B>> for Refuse<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    type Response = Response<Answer<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        match (self.refusal)(&head) {
            Some(answer) => ResponseFuture::Refused {
                answer: Some(answer),
            },
            None => ResponseFuture::Forwarding {
                future: self.inner.call(Request::from_parts(head, body)),
            },
        }
    }
}

pin_project! {
    /// The response of [`Refuse`].
    #[project = ResponseProjection]
    pub enum ResponseFuture<F> {
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
    type Output = Result<Response<Answer<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            ResponseProjection::Forwarding { future } => future
                .poll(cx)
                .map_ok(|response| response.map(Answer::forwarded)),
            // A future that has answered is not polled again; if it is, it waits.
            ResponseProjection::Refused { answer } => {
                answer.take().map_or(Poll::Pending, |answer| {
                    let whole = |body: Full<Bytes>| body.into_inner().unwrap_or_default();
                    Poll::Ready(Ok(answer.map(|body| Answer::full(whole(body)))))
                })
            }
        }
    }
}

impl<F: Deciding> Deciding for ResponseFuture<F> {
    fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Forwarding { future } => future.verdict(),
            Self::Refused { .. } => None,
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
