//! Correlates what the gateway says of a request with what others say of it: by an id, which the log
//! of the gateway, that of the app, and a client's report have in common, and by its place in a
//! trace.
//!
//! An id is taken from a trusted proxy, or else made: a UUID of random bits (RFC 9562, version 4).
//! A trace is begun, or that of the client continued, and the upstream continues it (W3C Trace
//! Context). Both stand in the [`RequestContext`], from where the other layers and the proxy take
//! them. Another layer, inside of the access log, shows clients the ids.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use rand::rngs::SmallRng;
use rand::{Rng, make_rng};
use tower::{Layer, Service};
use uuid::Builder;
use uuid::fmt::Hyphenated;
use weir_http::problem::{self, ProblemResponse};
use weir_http::request::HttpRequest;
use weir_middleware::{ClientIdentity, HasVerdict, RequestContext, ResponseBody, Verdict};
use weir_telemetry::{RequestId, Tracer};

/// How long an id of a trusted proxy may be. UUIDs have 36 bytes, and the trace ids of clouds up to
/// a hundred.
pub const MAX_BYTES: usize = 128;

thread_local! {
    /// Ids are no secrets, so they need not be hard to predict; and a generator of each thread's
    /// own takes no lock.
    static RANDOM: RefCell<SmallRng> = RefCell::new(make_rng());
}

/// Gives requests ids and traces them, where that is asked for.
#[derive(Clone, Debug, Default)]
pub struct CorrelateLayer(Option<Arc<Correlation>>);

#[derive(Debug)]
struct Correlation {
    id_header: Option<HeaderName>,
    tracer: Option<Arc<Tracer>>,
}

impl CorrelateLayer {
    /// Takes ids of trusted proxies from this header; without one, requests have no ids. Requests
    /// are traced if there is a tracer.
    pub fn new(id_header: Option<HeaderName>, tracer: Option<Arc<Tracer>>) -> Self {
        let is_on = id_header.is_some() || tracer.is_some();
        let correlation = Correlation { id_header, tracer };
        Self(is_on.then(|| Arc::new(correlation)))
    }

    /// Whether requests have ids.
    pub fn makes_ids(&self) -> bool {
        let correlation = self.0.as_deref();
        correlation.is_some_and(|correlation| correlation.id_header.is_some())
    }

    /// Whether requests have traces.
    pub fn traces(&self) -> bool {
        let correlation = self.0.as_deref();
        correlation.is_some_and(|correlation| correlation.tracer.is_some())
    }
}

impl<S> Layer<S> for CorrelateLayer {
    type Service = Correlate<S>;

    fn layer(&self, inner: S) -> Correlate<S> {
        Correlate {
            inner,
            correlation: self.0.clone(),
        }
    }
}

/// A service whose requests have ids and traces; see [`CorrelateLayer`].
#[derive(Clone, Debug)]
pub struct Correlate<S> {
    inner: S,
    correlation: Option<Arc<Correlation>>,
}

impl<S, Q> Service<Q> for Correlate<S>
where
    S: Service<Q>,
    Q: HttpRequest,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Q) -> S::Future {
        if let Some(correlation) = &self.correlation {
            correlation.begin(&mut request);
        }
        self.inner.call(request)
    }
}

impl Correlation {
    fn begin<Q: HttpRequest>(&self, request: &mut Q) {
        let identity = ClientIdentity::from_extensions(request.extensions());
        let is_trusted = identity.is_some_and(|identity| identity.client.peer_is_trusted);
        if let Some(header) = &self.id_header {
            let given = is_trusted.then(|| valid(request.headers(), header).cloned());
            let value = given.flatten().or_else(made);
            let id = value.map(|value| RequestId {
                header: header.clone(),
                value,
            });
            RequestContext::set_request_id(request.extensions_mut(), id.map(Arc::new));
        }
        if let Some(tracer) = &self.tracer {
            let trace = tracer.begin(request.headers(), is_trusted);
            trace.inject(request.headers_mut());
            RequestContext::set_trace(request.extensions_mut(), Arc::new(trace));
        }
    }
}

/// The header's value, if it is an id. A second line is one that the proxy did not set, and nothing
/// tells which.
fn valid<'h>(headers: &'h HeaderMap, header: &HeaderName) -> Option<&'h HeaderValue> {
    let mut lines = headers.get_all(header).iter();
    let line = lines.next().filter(|_| lines.next().is_none())?;
    let is_valid = (1..=MAX_BYTES).contains(&line.len()) && line.as_bytes().iter().all(is_of_id);
    is_valid.then_some(line)
}

/// Whether a byte is visible, and means nothing in JSON and in HTML.
fn is_of_id(byte: &u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&' | b'\'')
}

/// A new id.
fn made() -> Option<HeaderValue> {
    let mut bits = [0; 16];
    RANDOM.with_borrow_mut(|random| random.fill_bytes(&mut bits));
    let mut text = [0; Hyphenated::LENGTH];
    let uuid = Builder::from_random_bytes(bits).into_uuid();
    uuid.hyphenated().encode_lower(&mut text);
    // It is cloned, which takes no memory this way.
    HeaderValue::from_maybe_shared(Bytes::from_owner(text)).ok()
}

/// Shows the id of a request in its response.
#[derive(Clone, Copy, Debug)]
pub struct ShowRequestIdLayer {
    has_ids: bool,
}

impl ShowRequestIdLayer {
    /// Looks for the id of each request if requests have ids.
    pub const fn new(has_ids: bool) -> Self {
        Self { has_ids }
    }
}

impl<S> Layer<S> for ShowRequestIdLayer {
    type Service = ShowRequestId<S>;

    fn layer(&self, inner: S) -> ShowRequestId<S> {
        ShowRequestId {
            inner,
            layer: *self,
        }
    }
}

/// A service whose responses show the ids of their requests; see [`ShowRequestIdLayer`].
#[derive(Clone, Debug)]
pub struct ShowRequestId<S> {
    inner: S,
    layer: ShowRequestIdLayer,
}

impl<S, Q, R> Service<Q> for ShowRequestId<S>
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
    fn call(&mut self, request: Q) -> Self::Future {
        let id = match self.layer.has_ids {
            true => RequestContext::request_id(request.extensions()).cloned(),
            false => None,
        };
        ResponseFuture {
            future: self.inner.call(request),
            id,
        }
    }
}

pin_project! {
    /// The response of [`ShowRequestId`].
    pub struct ResponseFuture<F> {
        #[pin]
        future: F,
        id: Option<Arc<RequestId>>,
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
        let Some(id) = this.id else {
            return this.future.poll(cx);
        };
        let response = ready!(this.future.poll(cx))?;
        Poll::Ready(Ok(show(id, response)))
    }
}

impl<F: HasVerdict> HasVerdict for ResponseFuture<F> {
    fn verdict(&self) -> Option<&Verdict> {
        self.future.verdict()
    }
}

/// Shows the id in its header and, if Weir made this response for a problem, in the document.
fn show<R: Body<Data = Bytes>>(
    id: &RequestId,
    mut response: Response<ResponseBody<R>>,
) -> Response<ResponseBody<R>> {
    let headers = response.headers_mut();
    headers.insert(id.header.clone(), id.value.clone());
    if response.extensions().get::<ProblemResponse>().is_none() {
        return response;
    }
    let add = |document: Bytes| problem::with_request_id(&document, id.text());
    response.map(|body| body.map_whole(add))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::convert::Infallible;
    use std::net::{IpAddr, Ipv4Addr};

    use http::Request;
    use http_body_util::{BodyExt, Empty};
    use tower::{ServiceExt, service_fn};
    use uuid::{Uuid, Version};
    use weir_http::problem::Problem;
    use weir_rules::Client;

    use super::*;

    const HEADER: HeaderName = HeaderName::from_static("x-request-id");

    /// The id that a request gets whose peer sends these lines.
    async fn id(peer_is_trusted: bool, lines: &[&str]) -> String {
        let service = CorrelateLayer::new(Some(HEADER), None).layer(service_fn(
            |request: Request<()>| async move {
                let id = RequestContext::request_id(request.extensions());
                Ok::<_, Infallible>(id.unwrap().text().to_owned())
            },
        ));
        let mut request = Request::new(());
        for line in lines {
            let line = HeaderValue::from_bytes(line.as_bytes()).unwrap();
            request.headers_mut().append(HEADER, line);
        }
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        request.extensions_mut().insert(ClientIdentity {
            client: Client {
                address,
                peer: address,
                peer_is_trusted,
            },
            account: None,
            secure: false,
        });
        service.oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn the_id_of_a_trusted_proxy_is_kept() {
        let longest = "x".repeat(MAX_BYTES);
        let cloud = "Root=1-67891233-abcdef012345678912345678;Self=1-6,a@b:c/d+e=";
        for given in ["a", "6f1b", cloud, &longest] {
            assert_eq!(id(true, &[given]).await, given);
        }
    }

    #[tokio::test]
    async fn a_request_never_has_an_id_that_an_untrusted_client_chose() {
        assert_ne!(id(false, &["chosen"]).await, "chosen");
    }

    #[tokio::test]
    async fn what_would_break_a_log_or_a_document_is_not_an_id() {
        let too_long = "x".repeat(MAX_BYTES + 1);
        for given in [
            "", "a b", "a\tb", "a\"b", "a\\b", "<b>", "a&b", "a'b", "\u{e9}", &too_long,
        ] {
            let made = id(true, &[given]).await;
            assert!(Uuid::try_parse(&made).is_ok(), "{given:?} became {made}");
        }
        let made = id(true, &["one", "two"]).await;
        assert!(Uuid::try_parse(&made).is_ok(), "{made}");
    }

    #[tokio::test]
    async fn ids_that_are_made_are_random_uuids_and_never_the_same() {
        let mut made = HashSet::new();
        for _ in 0..1000 {
            let id = id(false, &[]).await;
            let uuid = Uuid::try_parse(&id).unwrap();
            assert_eq!(uuid.get_version(), Some(Version::Random), "{id}");
            assert_eq!(uuid.hyphenated().to_string(), id);
            assert!(made.insert(id));
        }
    }

    #[tokio::test]
    async fn without_a_header_no_request_has_an_id() {
        let service =
            CorrelateLayer::default().layer(service_fn(|request: Request<()>| async move {
                Ok::<_, Infallible>(RequestContext::request_id(request.extensions()).is_some())
            }));
        assert!(!service.oneshot(Request::new(())).await.unwrap());
    }

    #[tokio::test]
    async fn a_problem_says_the_id_and_no_other_response_is_changed() {
        let id = RequestId {
            header: HEADER,
            value: HeaderValue::from_static("a-1"),
        };
        let problem = Problem::new(http::StatusCode::NOT_FOUND, "No.");
        let problem: Response<ResponseBody<Empty<Bytes>>> = ResponseBody::problem(problem);
        let problem = show(&id, problem);
        assert_eq!(problem.headers()[HEADER], "a-1");
        let document = problem.into_body().collect().await.unwrap().to_bytes();
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        assert_eq!(document["request_id"], "a-1");
        assert_eq!(document["detail"], "No.");

        let other: Response<ResponseBody<Empty<Bytes>>> = Response::new(ResponseBody::full("{}"));
        let other = show(&id, other);
        assert_eq!(other.headers()[HEADER], "a-1");
        assert_eq!(other.into_body().collect().await.unwrap().to_bytes(), "{}");
    }
}
