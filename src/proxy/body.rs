//! The response's body on its way to the client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use thiserror::Error;

use super::download::ResponseReader;
use super::hop;
use super::http1::{Malformed, Piece};

/// A response body: the upstream's, passed on as it comes, or one that is there as a whole.
///
/// It holds the connection that it comes from. Once it was read to the end, the connection is free
/// for the next request; when it is dropped earlier, the connection is closed, and so the upstream
/// learns that nobody listens any more.
pub struct ProxyBody(Kind);

enum Kind {
    Upstream(Box<ResponseReader>),
    Full(Full<Bytes>),
}

/// Why the upstream's body cannot be passed on to its end.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct BodyError(#[from] Broken);

#[derive(Debug, Error)]
pub(super) enum Broken {
    /// The connection closed before the end.
    #[error("the upstream's response broke off")]
    Closed(#[from] io::Error),
    /// What came is no body.
    #[error("the upstream's response is malformed")]
    Malformed(#[from] Malformed),
}

impl ProxyBody {
    pub(super) fn full(body: Full<Bytes>) -> Self {
        Self(Kind::Full(body))
    }

    /// The body that is yet to come.
    pub(super) fn upstream(download: ResponseReader) -> Self {
        Self(Kind::Upstream(Box::new(download)))
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let download = match &mut self.0 {
            Kind::Upstream(download) => download,
            Kind::Full(body) => {
                return Pin::new(body)
                    .poll_frame(cx)
                    .map_err(|never| match never {});
            }
        };
        Poll::Ready(match ready!(download.poll_piece(cx)) {
            Ok(Piece::Data(data)) => Some(Ok(Frame::data(data))),
            Ok(Piece::Trailers(mut trailers)) => {
                hop::strip_trailers(&mut trailers);
                Some(Ok(Frame::trailers(trailers)))
            }
            Ok(Piece::End) => None,
            Err(broken) => Some(Err(broken.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full(body) => body.is_end_stream(),
            Kind::Upstream(download) => download.is_at_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(body) => body.size_hint(),
            Kind::Upstream(download) => download.size_hint(),
        }
    }
}
