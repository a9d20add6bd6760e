//! Answers requests that no upstream would get in any case, before they are counted; and formats
//! the errors that Weir itself answers with: as a page for people in place of a problem document,
//! as a status of gRPC for its clients, and with the headers that let pages of other origins read
//! them.
//!
//! Behind the limits, the first would be an oracle: a shadow-banned client gets a decoy where
//! others are told that a method is not forwarded, and so knows that it is banned.
//!
//! Responses of upstreams are not touched, and neither are decoys, which have to look like those.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, ORIGIN, RETRY_AFTER, VARY,
};
use http::{Request, Response, StatusCode, request};
use http_body::Body;
use http_body_util::Full;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::body_limit::LimitedBody;
use super::cors::Cors;
use super::grpc;
use super::{HasVerdict, RequestContext, ResponseBody, Verdict};
use crate::media_type::prefers;
use crate::problem::{CustomResponse, ProblemResponse};
use crate::rules::Statuses;

const HTML: &str = "text/html";
const PROBLEM: &str = "application/problem+json";

/// The response to a request that goes no further; none for one that does.
pub type Refusal = fn(&request::Parts) -> Option<Response<Full<Bytes>>>;

/// Refuses requests, and formats the errors that are made here and by the layers below.
#[derive(Clone, Debug)]
pub struct RejectInvalidLayer {
    refusal: Refusal,
    errors: ErrorFormat,
    limits_bodies: bool,
}

impl RejectInvalidLayer {
    /// Refuses what `refusal` has an answer for.
    pub fn new(refusal: Refusal) -> Self {
        Self {
            refusal,
            errors: ErrorFormat::default(),
            limits_bodies: false,
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

    /// The same layer, which formats errors so.
    #[must_use]
    pub fn with_error_format(self, errors: ErrorFormat) -> Self {
        Self { errors, ..self }
    }
}

impl<S> Layer<S> for RejectInvalidLayer {
    type Service = RejectInvalid<S>;

    fn layer(&self, inner: S) -> RejectInvalid<S> {
        let RejectInvalidLayer {
            refusal,
            errors,
            limits_bodies,
        } = self.clone();
        RejectInvalid {
            inner,
            refusal,
            errors,
            limits_bodies,
        }
    }
}

/// A service that some requests do not get to; see [`RejectInvalidLayer`].
#[derive(Clone, Debug)]
pub struct RejectInvalid<S> {
    inner: S,
    refusal: Refusal,
    errors: ErrorFormat,
    limits_bodies: bool,
}

impl<S> RejectInvalid<S> {
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

impl<S, B, R> Service<Request<B>> for RejectInvalid<S>
where
    S: Service<Request<LimitedBody<B>>, Response = Response<ResponseBody<R>>>,
    B: Body,
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
        let formatter = self.errors.formatter(&head);
        let refusal = (self.refusal)(&head);
        let body = LimitedBody::new(body, self.max_body_bytes(&head));
        let progress = match (refusal, body) {
            (None, Ok(body)) => Progress::Forwarding {
                future: self.inner.call(Request::from_parts(head, body)),
            },
            (Some(answer), _) => Progress::refused(answer),
            (None, Err(too_large)) => Progress::refused(too_large.problem().into_response()),
        };
        ResponseFuture {
            progress,
            formatter,
        }
    }
}

pin_project! {
    /// The response of [`RejectInvalid`].
    pub struct ResponseFuture<F> {
        #[pin]
        progress: Progress<F>,
        formatter: Option<Box<ErrorFormatter>>,
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
        Refused { answer: Option<Box<Response<Full<Bytes>>>> },
    }
}

impl<F> Progress<F> {
    fn refused(answer: Response<Full<Bytes>>) -> Self {
        Self::Refused {
            answer: Some(Box::new(answer)),
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<ResponseBody<R>>, E>>,
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
                answer.map(|body| ResponseBody::full(body.into_inner().unwrap_or_default()))
            }
        };
        if let Some(formatter) = this.formatter {
            return Poll::Ready(Ok(formatter.format(response)));
        }
        vary_by_accept_if_cacheable(&mut response);
        Poll::Ready(Ok(response))
    }
}

impl<F: HasVerdict> HasVerdict for ResponseFuture<F> {
    fn verdict(&self) -> Option<&Verdict> {
        match &self.progress {
            Progress::Forwarding { future } => future.verdict(),
            Progress::Refused { .. } => None,
        }
    }
}

/// How errors that Weir answers with look. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ErrorFormat(Arc<Settings>);

#[derive(Debug, Default)]
struct Settings {
    pages: ErrorPages,
    /// Whether any route has CORS configured.
    has_cors: bool,
}

/// The operator's own error pages, by status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorPages(Vec<(Statuses, Bytes)>);

impl FromIterator<(Statuses, Bytes)> for ErrorPages {
    /// If several fit a status, the one for the fewest statuses is shown.
    fn from_iter<I: IntoIterator<Item = (Statuses, Bytes)>>(pages: I) -> Self {
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort_by_key(|(statuses, _)| statuses.count());
        Self(pages)
    }
}

impl ErrorFormat {
    /// These pages for people; `has_cors` says whether any route has CORS configured.
    pub fn new(pages: ErrorPages, has_cors: bool) -> Self {
        Self(Arc::new(Settings { pages, has_cors }))
    }

    /// What formats an error for this request; none for most clients, which are not browsers.
    fn formatter(&self, request: &request::Parts) -> Option<Box<ErrorFormatter>> {
        let grpc = grpc::content_type(request);
        let wants_html = grpc.is_none() && prefers(&request.headers, HTML, PROBLEM);
        let cors = self.cors_request(request);
        (wants_html || cors.is_some() || grpc.is_some()).then(|| {
            Box::new(ErrorFormatter {
                pages: wants_html.then(|| self.clone()),
                cors,
                grpc,
            })
        })
    }

    fn cors_request(&self, request: &request::Parts) -> Option<CorsRequest> {
        if !self.0.has_cors {
            return None;
        }
        let origin = request.headers.get(ORIGIN)?.clone();
        let routed = RequestContext::routed(&request.extensions)?;
        let cors = routed.route.cors()?.clone();
        Some(CorsRequest { cors, origin })
    }
}

/// Formats an error for the client of one request.
#[derive(Debug)]
struct ErrorFormatter {
    /// None where the client does not want HTML.
    pages: Option<ErrorFormat>,
    /// None where a page did not send the request, or its route has no CORS configured.
    cors: Option<CorsRequest>,
    /// The content type of a gRPC call.
    grpc: Option<HeaderValue>,
}

/// A request that a page of this origin sent.
#[derive(Debug)]
struct CorsRequest {
    cors: Arc<Cors>,
    origin: HeaderValue,
}

impl ErrorFormatter {
    /// The response as the client wants it, if Weir made it.
    fn format<R>(&self, mut response: Response<ResponseBody<R>>) -> Response<ResponseBody<R>> {
        let extensions = response.extensions_mut();
        let is_problem = extensions.remove::<ProblemResponse>().is_some();
        if !is_problem && extensions.remove::<CustomResponse>().is_none() {
            return response;
        }
        if let Some(CorsRequest { cors, origin }) = &self.cors {
            cors.allow(origin, response.headers_mut());
        }
        if let Some(content_type) = &self.grpc {
            return grpc::trailers_only(response, content_type);
        }
        if !is_problem {
            return response;
        }
        vary_by_accept(response.headers_mut());
        match &self.pages {
            Some(format) => format.0.pages.replace(response),
            None => response,
        }
    }
}

/// Tells caches that other clients get a page in place of this problem document.
fn vary_by_accept_if_cacheable<R>(response: &mut Response<R>) {
    if is_cacheable(response)
        && response
            .extensions_mut()
            .remove::<ProblemResponse>()
            .is_some()
    {
        vary_by_accept(response.headers_mut());
    }
}

/// Whether a cache may keep a response that no upstream made: by its status (RFC 9110, section
/// 15.1), or because the operator configured it.
fn is_cacheable<R>(response: &Response<R>) -> bool {
    let status = response.status();
    matches!(status.as_u16(), 404 | 405 | 410 | 414 | 501)
        || !status.is_success() && response.headers().contains_key(CACHE_CONTROL)
}

/// Caches must not show a program the page, or people the problem document.
fn vary_by_accept(headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("accept"));
}

impl ErrorPages {
    fn replace<R>(&self, response: Response<ResponseBody<R>>) -> Response<ResponseBody<R>> {
        let (mut head, _) = response.into_parts();
        let page = self.page(head.status, head.headers.get(RETRY_AFTER));
        let content_type = HeaderValue::from_static("text/html; charset=utf-8");
        head.headers.insert(CONTENT_TYPE, content_type);
        Response::from_parts(head, ResponseBody::full(page))
    }

    fn page(&self, status: StatusCode, retry_after: Option<&HeaderValue>) -> Bytes {
        let mut own = self.0.iter();
        let own = own.find(|(statuses, _)| statuses.contains(status));
        own.map_or_else(|| plain_page(status, retry_after), |(_, page)| page.clone())
    }
}

/// A page with only the status, and when to come back.
fn plain_page(status: StatusCode, retry_after: Option<&HeaderValue>) -> Bytes {
    let number = status.as_u16();
    let reason = status.canonical_reason().unwrap_or("Error");
    let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let hint = seconds.map_or_else(String::new, |seconds| {
        let plural = if seconds == 1 { "" } else { "s" };
        format!("<p>Please try again in {seconds} second{plural}.</p>\n")
    });
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{number} {reason}</title>\n</head>\n<body>\n<h1>{number} {reason}</h1>\n{hint}\
         </body>\n</html>\n"
    );
    page.into()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{HeaderName, Method};
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

    #[test]
    fn no_problem_document_that_a_cache_may_keep_is_shown_to_people() {
        let varies = |status: u16, headers: &[(HeaderName, &'static str)]| {
            let mut response = Response::builder().status(status).body(()).unwrap();
            response.extensions_mut().insert(ProblemResponse);
            for (name, value) in headers {
                let value = HeaderValue::from_static(value);
                response.headers_mut().insert(name, value);
            }
            vary_by_accept_if_cacheable(&mut response);
            response.headers().contains_key(VARY)
        };
        assert!(varies(404, &[]));
        assert!(varies(429, &[(CACHE_CONTROL, "max-age=1")]));
        assert!(!varies(429, &[]));
        assert!(!varies(502, &[]));
    }
}
