//! A response's body, which comes from the inner service or is made here.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::InFlight;
use crate::problem::Problem;

pin_project! {
    /// A response's body.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        origin: Origin<B>,
        in_flight: Option<InFlight>,
    }
}

pin_project! {
    #[project = OriginProjection]
    #[derive(Debug)]
    enum Origin<B> {
        /// The inner service's.
        Forwarded {
            #[pin]
            body: B,
        },
        /// Made by a layer, in one piece. Its length is shown, unless it has to look like one that
        /// was not known beforehand.
        Made {
            body: Option<Bytes>,
            shows_length: bool,
        },
    }
}

impl<B> ResponseBody<B> {
    /// The inner service's body.
    pub(crate) fn forwarded(body: B) -> Self {
        Self {
            origin: Origin::Forwarded { body },
            in_flight: None,
        }
    }

    /// The same body, with what the request holds until the body is over or dropped.
    pub(crate) fn holding(mut self, in_flight: Option<InFlight>) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// A problem document.
    pub(crate) fn problem(problem: Problem) -> Response<Self> {
        problem
            .into_response()
            .map(|body| Self::full(body.into_inner().unwrap_or_default()))
    }

    /// A body made here, sent with its length.
    pub(crate) fn full(body: impl Into<Bytes>) -> Self {
        Self::made(body.into(), true)
    }

    /// A body made here, sent as one whose length was not known beforehand.
    pub(crate) fn chunked(body: impl Into<Bytes>) -> Self {
        Self::made(body.into(), false)
    }

    fn made(body: Bytes, shows_length: bool) -> Self {
        Self {
            origin: Origin::Made {
                body: Some(body),
                shows_length,
            },
            in_flight: None,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().origin.project() {
            OriginProjection::Forwarded { body } => body.poll_frame(cx),
            OriginProjection::Made { body, .. } => {
                let whole = body.take().filter(|body| !body.is_empty());
                Poll::Ready(whole.map(|body| Ok(Frame::data(body))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.origin {
            Origin::Forwarded { body } => body.is_end_stream(),
            Origin::Made { body, shows_length } => {
                *shows_length && body.as_ref().is_none_or(Bytes::is_empty)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.origin {
            Origin::Forwarded { body } => body.size_hint(),
            Origin::Made {
                shows_length: false,
                ..
            } => SizeHint::default(),
            Origin::Made { body, .. } => {
                SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
        }
    }
}
