//! Refuses requests that no upstream would get in any case, before they are counted: invalid ones, and
//! those that have to come by HTTPS.
//!
//! Behind the limits, a refusal would be an oracle: a shadow-banned client gets a decoy where others
//! are told that a method is not forwarded, and so knows that it is banned.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, request};
use http_body_util::Full;
use tower::{Layer, Service};
use weir_http::request::{BoxedRequest, HttpRequest};

use super::ResponseBody;
use super::response_body::InnerOrLocal;

/// The response to a request that goes no further; none for one that does.
pub type Refusal = fn(&request::Parts) -> Option<Response<Full<Bytes>>>;

/// Refuses what a [`Refusal`] has a response for.
#[derive(Clone, Copy, Debug)]
pub struct RejectInvalidLayer {
    refusal: Refusal,
}

impl RejectInvalidLayer {
    /// Refuses what `refusal` has a response for.
    pub fn new(refusal: Refusal) -> Self {
        Self { refusal }
    }
}

impl<S> Layer<S> for RejectInvalidLayer {
    type Service = RejectInvalid<S>;

    fn layer(&self, inner: S) -> RejectInvalid<S> {
        RejectInvalid {
            inner,
            refusal: self.refusal,
        }
    }
}

/// A service that some requests do not get to; see [`RejectInvalidLayer`].
#[derive(Clone, Copy, Debug)]
pub struct RejectInvalid<S> {
    inner: S,
    refusal: Refusal,
}

impl<S, Q, R> Service<Q> for RejectInvalid<S>
where
    S: Service<BoxedRequest<Q::Body>, Response = Response<ResponseBody<R>>>,
    Q: HttpRequest,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = InnerOrLocal<S::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let request = request.into_boxed();
        match (self.refusal)(&request.head) {
            Some(refusal) => InnerOrLocal::local(ResponseBody::whole(refusal)),
            None => InnerOrLocal::inner(self.inner.call(request)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Method, Request, StatusCode};
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
        let inner = service_fn(|request: BoxedRequest<Full<Bytes>>| async {
            Ok::<_, Infallible>(Response::new(ResponseBody::forwarded(request.body)))
        });
        let mut request = Request::new(Full::from("sent"));
        *request.method_mut() = method;
        let service = RejectInvalidLayer::new(no_delete).layer(inner);
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
