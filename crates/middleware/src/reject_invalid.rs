//! Answers requests that no upstream would get in any case, before they are counted: those that are
//! malformed, and those of listeners that redirect to HTTPS. All responses are formatted here.
//!
//! Behind the limits, a refusal would be an oracle: a shadow-banned client gets a decoy where others
//! are told that a method is not forwarded, and so knows that it is banned.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, request};
use http_body::Body;
use http_body_util::Full;
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use weir_telemetry::RequestId;

use super::body_limit::LimitedBody;
use super::correlate::put_request_id;
use super::redirect::Redirect;
use super::request_template::RequestValues;
use super::response_format::{ResponseFormat, ResponseFormatter, vary_by_accept_if_cacheable};
use super::{ClientIdentity, HasVerdict, RequestContext, ResponseBody, Verdict};

/// The response to a request that goes no further; none for one that does.
pub type Refusal = fn(&request::Parts) -> Option<Response<Full<Bytes>>>;

/// In a request's extensions: it came by a listener that redirects to HTTPS.
#[derive(Clone, Debug)]
pub struct HttpsRedirect(pub Arc<Redirect>);

/// Refuses requests, and formats the responses that are made here and by the layers below.
#[derive(Clone, Debug)]
pub struct RejectInvalidLayer {
    refusal: Refusal,
    format: ResponseFormat,
    redirects_to_https: bool,
    limits_bodies: bool,
    has_request_ids: bool,
}

impl RejectInvalidLayer {
    /// Refuses what `refusal` has an answer for.
    pub fn new(refusal: Refusal) -> Self {
        Self {
            refusal,
            format: ResponseFormat::default(),
            redirects_to_https: false,
            limits_bodies: false,
            has_request_ids: false,
        }
    }

    /// The same layer, which tells clients the ids of their requests, if these have ids.
    #[must_use]
    pub fn with_request_ids(self, has_request_ids: bool) -> Self {
        Self {
            has_request_ids,
            ..self
        }
    }

    /// The same layer, which holds request bodies to the bounds of routes, if any route has one.
    #[must_use]
    pub fn with_body_limits(self, limits_bodies: bool) -> Self {
        Self {
            limits_bodies,
            ..self
        }
    }

    /// The same layer, which formats responses so.
    #[must_use]
    pub fn with_format(self, format: ResponseFormat) -> Self {
        Self { format, ..self }
    }

    /// The same layer, which looks for [`HttpsRedirect`] in requests if some listener redirects.
    #[must_use]
    pub fn redirecting_to_https(self, redirects_to_https: bool) -> Self {
        Self {
            redirects_to_https,
            ..self
        }
    }
}

impl<S> Layer<S> for RejectInvalidLayer {
    type Service = RejectInvalid<S>;

    fn layer(&self, inner: S) -> RejectInvalid<S> {
        RejectInvalid {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service that some requests do not get to; see [`RejectInvalidLayer`].
#[derive(Clone, Debug)]
pub struct RejectInvalid<S> {
    inner: S,
    layer: RejectInvalidLayer,
}

impl RejectInvalidLayer {
    /// The response to a request that goes no further.
    fn response<R>(&self, head: &request::Parts) -> Option<Response<ResponseBody<R>>> {
        if let Some(refusal) = (self.refusal)(head) {
            let full =
                |body: Full<Bytes>| ResponseBody::full(body.into_inner().unwrap_or_default());
            return Some(refusal.map(full));
        }
        match self.redirects_to_https {
            true => redirect_to_https(head),
            false => None,
        }
    }

    /// The id that the client is told.
    fn request_id(&self, head: &request::Parts) -> Option<Arc<RequestId>> {
        if !self.has_request_ids {
            return None;
        }
        RequestContext::request_id(&head.extensions).cloned()
    }

    /// How long the body of this request may be.
    fn max_body_bytes(&self, head: &request::Parts) -> Option<u64> {
        if !self.limits_bodies {
            return None;
        }
        RequestContext::routed(&head.extensions)?
            .route
            .max_body_bytes()
    }
}

/// The response to a request in plain text on a listener that redirects to HTTPS. What a trusted
/// proxy was sent by HTTPS is there already, and would come back for ever.
fn redirect_to_https<R>(head: &request::Parts) -> Option<Response<ResponseBody<R>>> {
    let HttpsRedirect(redirect) = head.extensions.get()?;
    let identity = ClientIdentity::of(&head.extensions);
    let is_secure = identity.is_some_and(|identity| identity.scheme(&head.headers) == "https");
    (!is_secure).then(|| redirect.respond(&RequestValues::of_head(head)))
}

impl<S, B, R> Service<Request<B>> for RejectInvalid<S>
where
    S: Service<Request<LimitedBody<B>>, Response = Response<ResponseBody<R>>>,
    B: Body,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        let formatter = self.layer.format.formatter(&head);
        let request_id = self.layer.request_id(&head);
        let answer = self.layer.response(&head);
        let body = LimitedBody::new(body, self.layer.max_body_bytes(&head));
        let progress = match (answer, body) {
            (None, Ok(body)) => Progress::Forwarding {
                future: self.inner.call(Request::from_parts(head, body)),
            },
            (Some(answer), _) => Progress::refused(answer),
            (None, Err(too_large)) => Progress::refused(ResponseBody::problem(too_large.problem())),
        };
        ResponseFuture {
            progress,
            formatter,
            request_id,
        }
    }
}

pin_project! {
    /// The response of [`RejectInvalid`].
    pub struct ResponseFuture<F, R> {
        #[pin]
        progress: Progress<F, R>,
        formatter: Option<Box<ResponseFormatter>>,
        request_id: Option<Arc<RequestId>>,
    }
}

pin_project! {
    #[project = ProgressProjection]
    enum Progress<F, R> {
        /// The inner service answers.
        Forwarding {
            #[pin]
            future: F,
        },
        /// The answer is there already.
        Refused { answer: Option<Box<Response<ResponseBody<R>>>> },
    }
}

impl<F, R> Progress<F, R> {
    fn refused(answer: Response<ResponseBody<R>>) -> Self {
        Self::Refused {
            answer: Some(Box::new(answer)),
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R>
where
    F: Future<Output = Result<Response<ResponseBody<R>>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.progress.project() {
            ProgressProjection::Forwarding { future } => ready!(future.poll(cx))?,
            // A future that has answered is not polled again; if it is, it waits.
            ProgressProjection::Refused { answer } => {
                let Some(answer) = answer.take() else {
                    return Poll::Pending;
                };
                *answer
            }
        };
        let request_id = this.request_id.take();
        if let Some(id) = &request_id {
            response = put_request_id(id, response);
        }
        if let Some(formatter) = this.formatter.take() {
            return Poll::Ready(Ok(formatter.format(response, request_id.as_deref())));
        }
        vary_by_accept_if_cacheable(&mut response);
        Poll::Ready(Ok(response))
    }
}

impl<F: HasVerdict, R> HasVerdict for ResponseFuture<F, R> {
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
        let inner = service_fn(|request: Request<LimitedBody<Full<Bytes>>>| async {
            Ok::<_, Infallible>(Response::new(ResponseBody::forwarded(request.into_body())))
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
