//! Holds requests to the bounds of their routes: the size of their bodies.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use weir_http::problem::BodyTooLarge;
use weir_http::request::{BoxedRequest, HttpRequest};

use super::response_body::InnerOrLocal;
use super::{RequestContext, ResponseBody};

/// Bounds of the requests of a route, beside those of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestBounds {
    /// How long bodies may be, in bytes.
    pub max_body_bytes: Option<u64>,
}

/// Holds requests to the bounds of their routes.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimitLayer {
    is_used: bool,
}

impl BodyLimitLayer {
    /// Looks for a bound of each request if the layer `is_used`, that is, if some route has one.
    pub const fn new(is_used: bool) -> Self {
        Self { is_used }
    }

    fn bounds<Q: HttpRequest>(self, request: &Q) -> RequestBounds {
        if !self.is_used {
            return RequestBounds::default();
        }
        let routed = RequestContext::routed(request.extensions());
        routed.map_or_else(RequestBounds::default, |routed| routed.route.bounds())
    }
}

impl<S> Layer<S> for BodyLimitLayer {
    type Service = BodyLimit<S>;

    fn layer(&self, inner: S) -> BodyLimit<S> {
        BodyLimit {
            inner,
            layer: *self,
        }
    }
}

/// A service whose request bodies are bounded; see [`BodyLimitLayer`].
#[derive(Clone, Debug)]
pub struct BodyLimit<S> {
    inner: S,
    layer: BodyLimitLayer,
}

impl<S, B, R> Service<BoxedRequest<B>> for BodyLimit<S>
where
    S: Service<BoxedRequest<LimitedBody<B>>, Response = Response<ResponseBody<R>>>,
    B: Body,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = InnerOrLocal<S::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: BoxedRequest<B>) -> Self::Future {
        let bounds = self.layer.bounds(&request);
        let BoxedRequest { head, body } = request;
        match LimitedBody::new(body, bounds.max_body_bytes) {
            Ok(body) => InnerOrLocal::inner(self.inner.call(BoxedRequest { head, body })),
            Err(too_large) => InnerOrLocal::local(ResponseBody::problem(too_large.problem())),
        }
    }
}

pin_project! {
    /// A request's body, which fails when it turns out to be longer than it may be.
    pub struct LimitedBody<B> {
        #[pin]
        body: B,
        limit: Option<Box<Limit>>,
    }
}

struct Limit {
    max: u64,
    left: u64,
}

impl<B: Body> LimitedBody<B> {
    /// A body of at most `max` bytes, if there is a bound.
    ///
    /// # Errors
    /// When its length is known, and too great.
    fn new(body: B, max: Option<u64>) -> Result<Self, BodyTooLarge> {
        let Some(max) = max else {
            return Ok(Self { body, limit: None });
        };
        if body.size_hint().lower() > max {
            return Err(BodyTooLarge { max });
        }
        let limit = Some(Box::new(Limit { max, left: max }));
        Ok(Self { body, limit })
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        if let (Some(limit), Some(Ok(frame))) = (this.limit, &frame) {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            let Some(left) = limit.left.checked_sub(length) else {
                let max = limit.max;
                return Poll::Ready(Some(Err(Box::new(BodyTooLarge { max }))));
            };
            limit.left = left;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The body's own: one that is longer than it may be is not shown as a shorter one.
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::stream;
    use http_body_util::{BodyExt, Full, StreamBody};

    use super::*;

    fn chunked(texts: &'static [&str]) -> impl Body<Data = Bytes, Error = io::Error> + Unpin {
        let frames = texts.iter().map(|text| Ok(Frame::data(Bytes::from(*text))));
        StreamBody::new(stream::iter(frames))
    }

    #[tokio::test]
    async fn a_body_may_be_as_long_as_the_bound_and_not_a_byte_longer() {
        let body = LimitedBody::new(chunked(&["four", "four"]), Some(8))
            .ok()
            .unwrap();
        assert_eq!(body.collect().await.unwrap().to_bytes(), "fourfour");
        let body = LimitedBody::new(chunked(&["four", "five5"]), Some(8))
            .ok()
            .unwrap();
        let error = body.collect().await.unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&BodyTooLarge { max: 8 }));
    }

    #[test]
    fn a_length_that_is_too_great_is_told_at_once() {
        let body = |text: &'static str| LimitedBody::new(Full::<Bytes>::from(text), Some(4));
        assert_eq!(body("five5").err(), Some(BodyTooLarge { max: 4 }));
        assert!(body("four").is_ok());
        assert!(LimitedBody::new(Full::<Bytes>::from("five5"), None).is_ok());
    }
}
