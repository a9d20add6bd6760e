//! Formats responses on their way to the client by the steps of their routes and by those of all
//! responses ([`ResponseStep`]).
//!
//! Decoys have to look like responses of the upstream, and so are treated like those.
//!
//! [`ResponseStep`]: super::ResponseStep

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, HeaderMap, HeaderValue, VARY};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use weir_http::problem::{CustomResponse, ProblemResponse};
use weir_http::request::HttpRequest;
use weir_telemetry::Notes;

use super::rate_limit::PendingFields;
use super::steps::{Outgoing, Phase, PreparedSteps, ResponseSteps, is_json_error};
use super::{HasVerdict, RequestContext, RequestHead, ResponseBody, Verdict};

/// Formats responses. Clones share how.
#[derive(Clone, Debug, Default)]
pub struct ResponseFormatLayer {
    of_all: ResponseSteps,
    is_by_route: bool,
}

impl ResponseFormatLayer {
    /// Takes the steps of all responses. If any route has steps of its own, they are looked for,
    /// and those of the route count, which are to contain the others.
    pub fn new(of_all: ResponseSteps, is_by_route: bool) -> Self {
        Self {
            // The fields of limits wait for this phase on all routes then.
            is_by_route: is_by_route || of_all.edit_app_fields(),
            of_all,
        }
    }

    /// What is done with the response to this request; nothing for most clients, which are not
    /// browsers, of most gateways.
    fn steps<Q: HttpRequest>(&self, request: &Q) -> Option<Box<PreparedSteps>> {
        let head = RequestHead::new(request);
        let routed = match self.is_by_route {
            true => RequestContext::routed(head.extensions),
            false => None,
        };
        let Some(routed) = routed else {
            return self.of_all.prepare(&head);
        };
        let steps = routed.route.response_steps().prepare(&head);
        // The fields of limits wait for the first phase, also where no step has a part in it.
        steps.or_else(|| routed.route.edits_app_fields.then(Box::default))
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
        let steps = self.layer.steps(&request);
        if steps.is_some() {
            // They look at all of the headers.
            RequestContext::entry(request.extensions_mut()).takes_lines = false;
        }
        ResponseFuture {
            future: self.inner.call(request),
            steps,
        }
    }
}

pin_project! {
    /// The response of [`ResponseFormat`].
    pub struct ResponseFuture<F> {
        #[pin]
        future: F,
        steps: Option<Box<PreparedSteps>>,
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
        let mut polled = this.future.poll(cx);
        match (this.steps, &mut polled) {
            (Some(steps), _) => polled.map_ok(|response| format(steps, response)),
            // Most responses are changed where they are, as they are large.
            (None, Poll::Ready(Ok(response))) => {
                vary_by_accept_if_cacheable(response);
                polled
            }
            (None, _) => polled,
        }
    }
}

impl<F: HasVerdict> HasVerdict for ResponseFuture<F> {
    fn verdict(&self) -> Option<&Verdict> {
        self.future.verdict()
    }

    fn take_notes(self: Pin<&mut Self>) -> Option<Box<Notes>> {
        self.project().steps.as_mut()?.notes.take()
    }
}

/// The response as the client gets it.
fn format<R>(
    prepared: &mut PreparedSteps,
    response: Response<ResponseBody<R>>,
) -> Response<ResponseBody<R>>
where
    R: Body<Data = Bytes>,
{
    let (mut outgoing, body) = Outgoing::new(response);
    let mut steps = mem::take(&mut prepared.steps).into_iter().peekable();
    for phase in Phase::ALL {
        // Before a step puts the page in its place.
        let has_page = outgoing.is_error_for_programs();
        while let Some((_, step)) = steps.next_if(|(of, _)| *of == phase) {
            step.apply(&mut outgoing);
        }
        let head = &mut outgoing.head;
        match phase {
            Phase::AppFields => {
                if let Some(limits) = head.extensions_mut().remove::<PendingFields>() {
                    limits.add(head);
                }
            }
            Phase::Form if has_page => {
                vary_by_accept(head.headers_mut());
            }
            _ => {}
        }
    }
    prepared.notes = outgoing.notes.take();
    outgoing.with_body(body)
}

/// Tells caches that other clients get a page in place of this document.
fn vary_by_accept_if_cacheable<R>(response: &mut Response<R>) {
    // Few responses are, and to look for what marks those of Weir takes longer.
    if !is_cacheable(response) {
        return;
    }
    let extensions = response.extensions();
    let has_page = extensions.get::<ProblemResponse>().is_some()
        || extensions.get::<CustomResponse>().is_some() && is_json_error(response);
    if has_page {
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
