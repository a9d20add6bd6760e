//! Formats responses on their way to the client.
//!
//! The errors that Weir itself responds with become a page for people in place of a problem document,
//! or a status of gRPC for its clients. Routes edit headers, let pages of other origins read
//! responses, and have them compressed; by HTTPS, browsers are told to stay there.
//!
//! Decoys have to look like responses of the upstream, and so are treated like those.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, STRICT_TRANSPORT_SECURITY,
    VARY,
};
use http::{Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use weir_http::media_type::prefers;
use weir_http::problem::{CustomResponse, ProblemResponse};
use weir_http::request::HttpRequest;
use weir_rules::Statuses;
use weir_telemetry::RequestId;

use super::compression::Compressor;
use super::cors::CorsRequest;
use super::grpc;
use super::header_edits::{HeaderEdits, RenderedEdits};
use super::rate_limit::PendingFields;
use super::request_template::RequestValues;
use super::{ClientIdentity, HasVerdict, RequestContext, ResponseBody, Verdict};

const HTML: &str = "text/html";
const PROBLEM: &str = "application/problem+json";

/// Formats responses. Clones share how.
#[derive(Clone, Debug, Default)]
pub struct ResponseFormatLayer(Arc<Settings>);

#[derive(Debug, Default)]
struct Settings {
    pages: ErrorPages,
    /// None where no response is changed but errors.
    all: Option<AllResponses>,
}

/// What is changed about responses that are not errors, too.
#[derive(Debug)]
struct AllResponses {
    /// Whether any route has CORS, compression or headers of responses configured.
    is_by_route: bool,
    /// What browsers are told about HTTPS by HTTPS.
    hsts: Option<HeaderValue>,
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

impl ResponseFormatLayer {
    /// These pages for people, and what routes say of their responses if any does. `hsts` is the
    /// value of `Strict-Transport-Security`.
    pub fn new(pages: ErrorPages, is_by_route: bool, hsts: Option<HeaderValue>) -> Self {
        let all = (is_by_route || hsts.is_some()).then_some(AllResponses { is_by_route, hsts });
        Self(Arc::new(Settings { pages, all }))
    }

    /// What formats the response to this request; none for most clients, which are not browsers, of
    /// most gateways.
    fn formatter<Q: HttpRequest>(&self, request: &Q) -> Option<Box<ResponseFormatter>> {
        let grpc = grpc::content_type(request);
        let wants_html = grpc.is_none() && prefers(request.headers(), HTML, PROBLEM);
        let of_all = self.0.all.as_ref();
        let of_all = of_all.and_then(|all| all.of_request(request));
        (wants_html || grpc.is_some() || of_all.is_some()).then(|| {
            Box::new(ResponseFormatter {
                page: wants_html.then(|| Page {
                    format: self.clone(),
                    request_id: RequestContext::request_id(request.extensions()).cloned(),
                }),
                grpc,
                ..of_all.unwrap_or_default()
            })
        })
    }
}

impl<S> Layer<S> for ResponseFormatLayer {
    type Service = ResponseFormat<S>;

    fn layer(&self, inner: S) -> ResponseFormat<S> {
        ResponseFormat {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service whose responses are formatted; see [`ResponseFormatLayer`].
#[derive(Clone, Debug)]
pub struct ResponseFormat<S> {
    inner: S,
    layer: ResponseFormatLayer,
}

impl<S, Q, R> Service<Q> for ResponseFormat<S>
where
    S: Service<Q, Response = Response<ResponseBody<R>>>,
    Q: HttpRequest,
    R: Body<Data = Bytes>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, mut request: Q) -> Self::Future {
        let formatter = self.layer.formatter(&request);
        if formatter.is_some() {
            // It looks at all of the headers.
            RequestContext::entry(request.extensions_mut()).takes_lines = false;
        }
        ResponseFuture {
            future: self.inner.call(request),
            formatter,
        }
    }
}

pin_project! {
    /// The response of [`ResponseFormat`].
    pub struct ResponseFuture<F> {
        #[pin]
        future: F,
        formatter: Option<Box<ResponseFormatter>>,
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<ResponseBody<R>>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.future.poll(cx))?;
        if let Some(formatter) = this.formatter.take() {
            return Poll::Ready(Ok(formatter.format(response)));
        }
        vary_by_accept_if_cacheable(&mut response);
        Poll::Ready(Ok(response))
    }
}

impl<F: HasVerdict> HasVerdict for ResponseFuture<F> {
    fn verdict(&self) -> Option<&Verdict> {
        self.future.verdict()
    }
}

impl AllResponses {
    /// What changes the response to a request, if anything does.
    fn of_request<Q: HttpRequest>(&self, request: &Q) -> Option<ResponseFormatter> {
        let of_route = match self.is_by_route {
            true => of_route(request),
            false => None,
        };
        let hsts = self.hsts.as_ref().filter(|_| is_secure(request)).cloned();
        (of_route.is_some() || hsts.is_some()).then(|| ResponseFormatter {
            hsts,
            ..of_route.unwrap_or_default()
        })
    }
}

/// What a request's route changes about its response, if anything.
fn of_route<Q: HttpRequest>(request: &Q) -> Option<ResponseFormatter> {
    let route = &RequestContext::routed(request.extensions())?.route;
    let cors = route.cors();
    let cors = cors.and_then(|cors| CorsRequest::new(cors, request.headers()));
    let edits = route.response_headers();
    let edits = edits.map(|edits| ResponseEdits::new(edits, request));
    let compressor = route.compression();
    let compressor = compressor.map(|settings| Compressor::new(settings, request));
    (cors.is_some() || edits.is_some() || compressor.is_some()).then(|| ResponseFormatter {
        cors,
        edits,
        compressor,
        ..ResponseFormatter::default()
    })
}

fn is_secure<Q: HttpRequest>(request: &Q) -> bool {
    let identity = ClientIdentity::from_extensions(request.extensions());
    identity.is_some_and(|identity| identity.secure)
}

/// What a route changes about the headers of one response.
#[derive(Debug)]
enum ResponseEdits {
    Rendered(RenderedEdits),
    /// The account, which they show, is learned before the response is there.
    Unverified {
        edits: Arc<HeaderEdits>,
        request: Box<Request<()>>,
    },
}

impl ResponseEdits {
    fn new<Q: HttpRequest>(edits: &Arc<HeaderEdits>, request: &Q) -> Self {
        let is_known = RequestContext::unverified(request.extensions()).is_none();
        if is_known || !edits.shows_account() {
            return Self::Rendered(edits.render(&RequestValues::new(request)));
        }
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.headers_mut() = request.headers().clone();
        *head.extensions_mut() = request.extensions().clone();
        Self::Unverified {
            edits: Arc::clone(edits),
            request: Box::new(head),
        }
    }

    fn rendered(self) -> RenderedEdits {
        match self {
            Self::Rendered(edits) => edits,
            Self::Unverified { edits, mut request } => {
                RequestContext::entry(request.extensions_mut()).complete_identity();
                edits.render(&RequestValues::new(&*request))
            }
        }
    }
}

#[derive(Debug, Default)]
struct ResponseFormatter {
    /// None where the client does not want HTML.
    page: Option<Page>,
    /// None where the route has no CORS configured that concerns the request.
    cors: Option<CorsRequest>,
    /// What the route changes about headers.
    edits: Option<ResponseEdits>,
    /// What the client is told about HTTPS.
    hsts: Option<HeaderValue>,
    /// The content type of a gRPC call.
    grpc: Option<HeaderValue>,
    /// None where the route has no responses compressed.
    compressor: Option<Compressor>,
}

/// What a page for people in place of a problem document is made of.
#[derive(Debug)]
struct Page {
    format: ResponseFormatLayer,
    request_id: Option<Arc<RequestId>>,
}

impl ResponseFormatter {
    /// The response as the client gets it.
    fn format<R>(mut self, response: Response<ResponseBody<R>>) -> Response<ResponseBody<R>>
    where
        R: Body<Data = Bytes>,
    {
        let compressor = self.compressor.take();
        let response = self.format_uncompressed(response);
        match compressor {
            Some(compressor) => compressor.compress(response),
            None => response,
        }
    }

    fn format_uncompressed<R>(
        self,
        mut response: Response<ResponseBody<R>>,
    ) -> Response<ResponseBody<R>> {
        let extensions = response.extensions_mut();
        let is_problem = extensions.remove::<ProblemResponse>().is_some();
        let is_made = is_problem || extensions.remove::<CustomResponse>().is_some();
        let limits = extensions.remove::<PendingFields>();
        // What suits the app's responses, such as how long they may be cached, is wrong for a 429.
        let edits = self.edits.map(ResponseEdits::rendered);
        if let Some(edits) = edits.filter(|edits| !is_made || edits.always()) {
            edits.apply(response.headers_mut());
        }
        if let Some(limits) = limits {
            limits.add(&mut response);
        }
        let headers = response.headers_mut();
        if let Some(cors) = &self.cors {
            cors.share(is_made, headers);
        }
        if let Some(hsts) = self.hsts
            && !headers.contains_key(STRICT_TRANSPORT_SECURITY)
        {
            headers.insert(STRICT_TRANSPORT_SECURITY, hsts);
        }
        if !is_made {
            return response;
        }
        if let Some(content_type) = &self.grpc {
            return grpc::trailers_only(response, content_type);
        }
        if !is_problem {
            return response;
        }
        vary_by_accept(response.headers_mut());
        match &self.page {
            Some(page) => {
                let pages = &page.format.0.pages;
                pages.replace(response, page.request_id.as_deref())
            }
            None => response,
        }
    }
}

/// Tells caches that other clients get a page in place of this problem document.
fn vary_by_accept_if_cacheable<R>(response: &mut Response<R>) {
    if is_cacheable(response) && response.extensions().get::<ProblemResponse>().is_some() {
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
    fn replace<R>(
        &self,
        response: Response<ResponseBody<R>>,
        request_id: Option<&RequestId>,
    ) -> Response<ResponseBody<R>> {
        let (mut head, _) = response.into_parts();
        let page = self.page(head.status, head.headers.get(RETRY_AFTER), request_id);
        let content_type = HeaderValue::from_static("text/html; charset=utf-8");
        head.headers.insert(CONTENT_TYPE, content_type);
        Response::from_parts(head, ResponseBody::full(page))
    }

    fn page(
        &self,
        status: StatusCode,
        retry_after: Option<&HeaderValue>,
        request_id: Option<&RequestId>,
    ) -> Bytes {
        let mut own = self.0.iter();
        match own.find(|(statuses, _)| statuses.contains(status)) {
            Some((_, page)) => page.clone(),
            None => plain_page(status, retry_after, request_id),
        }
    }
}

/// A page with only the status, when to come back, and what to name in a report.
fn plain_page(
    status: StatusCode,
    retry_after: Option<&HeaderValue>,
    request_id: Option<&RequestId>,
) -> Bytes {
    let number = status.as_u16();
    let reason = status.canonical_reason().unwrap_or("Error");
    let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let hint = seconds.map_or_else(String::new, |seconds| {
        let plural = if seconds == 1 { "" } else { "s" };
        format!("<p>Please try again in {seconds} second{plural}.</p>\n")
    });
    let request_id = request_id.map_or_else(String::new, |id| {
        let id = id.text();
        format!("<p>Request id: <code>{id}</code></p>\n")
    });
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{number} {reason}</title>\n</head>\n<body>\n<h1>{number} {reason}</h1>\n{hint}{request_id}\
         </body>\n</html>\n"
    );
    page.into()
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn no_problem_document_that_a_cache_may_keep_is_shown_to_people() {
        let varies = |status: u16, headers: &[(HeaderName, &'static str)]| {
            let mut response = Response::builder().status(status).body(()).unwrap();
            response.extensions_mut().insert(ProblemResponse::default());
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
