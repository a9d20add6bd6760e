//! Redirects what came in plain text to HTTPS, on listeners that are there for that.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Response;
use tower::{Layer, Service};
use weir_http::request::HttpRequest;

use super::redirect::Redirect;
use super::response_body::InnerOrLocal;
use super::{ClientIdentity, RequestHead, ResponseBody};

/// In a request's extensions: it came by a listener that redirects to HTTPS.
#[derive(Clone, Debug)]
pub struct HttpsRedirect(pub Arc<Redirect>);

/// Redirects requests with an [`HttpsRedirect`].
#[derive(Clone, Copy, Debug)]
pub struct RedirectToHttpsLayer {
    is_used: bool,
}

impl RedirectToHttpsLayer {
    /// Looks for an [`HttpsRedirect`] in each request if the layer `is_used`, that is, if some
    /// listener redirects.
    pub const fn new(is_used: bool) -> Self {
        Self { is_used }
    }
}

impl<S> Layer<S> for RedirectToHttpsLayer {
    type Service = RedirectToHttps<S>;

    fn layer(&self, inner: S) -> RedirectToHttps<S> {
        RedirectToHttps {
            inner,
            layer: *self,
        }
    }
}

/// A service that requests in plain text may be kept from; see [`RedirectToHttpsLayer`].
#[derive(Clone, Debug)]
pub struct RedirectToHttps<S> {
    inner: S,
    layer: RedirectToHttpsLayer,
}

impl RedirectToHttpsLayer {
    fn redirect<Q: HttpRequest, R>(self, request: &Q) -> Option<Response<ResponseBody<R>>> {
        if !self.is_used {
            return None;
        }
        let HttpsRedirect(redirect) = request.extensions().get()?;
        // What a trusted proxy was sent by HTTPS is there already, and would come back for ever.
        let is_secure = ClientIdentity::from_extensions(request.extensions())
            .is_some_and(|identity| identity.secure);
        (!is_secure).then(|| redirect.respond(&RequestHead::new(request).attributes()))
    }
}

impl<S, Q, R> Service<Q> for RedirectToHttps<S>
where
    S: Service<Q, Response = Response<ResponseBody<R>>>,
    Q: HttpRequest,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = InnerOrLocal<S::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: Q) -> Self::Future {
        match self.layer.redirect(&request) {
            Some(response) => InnerOrLocal::local(response),
            None => InnerOrLocal::inner(self.inner.call(request)),
        }
    }
}
