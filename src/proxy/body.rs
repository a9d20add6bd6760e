//! The response's body on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;

use super::connection::Release;
use super::hop;

/// A response body: the upstream's, passed on as it comes, or a short one of Weir's own.
///
/// It holds the connection that it comes from. Once it was read to the end, the connection is free
/// for the next request; when it is dropped earlier, the connection is closed, and so the upstream
/// learns that nobody listens any more.
pub struct ProxyBody(Kind);

enum Kind {
    Upstream {
        body: Incoming,
        connection: Option<Box<dyn Release>>,
    },
    Full(Full<Bytes>),
}

impl ProxyBody {
    pub(super) fn full(body: Full<Bytes>) -> Self {
        Self(Kind::Full(body))
    }

    /// The body that comes from `connection`.
    pub(super) fn upstream(body: Incoming, connection: Box<dyn Release>) -> Self {
        let mut connection = Some(connection);
        release_at_end(&body, &mut connection);
        Self(Kind::Upstream { body, connection })
    }
}

/// The one who reads a body need not ask for its end if its length told it.
fn release_at_end(body: &Incoming, connection: &mut Option<Box<dyn Release>>) {
    if body.is_end_stream() {
        release(connection);
    }
}

fn release(connection: &mut Option<Box<dyn Release>>) {
    if let Some(connection) = connection.take() {
        connection.release();
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let (body, connection) = match &mut self.0 {
            Kind::Full(body) => {
                return Pin::new(body)
                    .poll_frame(cx)
                    .map_err(|never| match never {});
            }
            Kind::Upstream { body, connection } => (body, connection),
        };
        let mut polled = Pin::new(&mut *body).poll_frame(cx);
        match &mut polled {
            Poll::Pending => {}
            Poll::Ready(None) => release(connection),
            Poll::Ready(Some(Err(_))) => *connection = None,
            Poll::Ready(Some(Ok(frame))) => {
                frame.trailers_mut().map(hop::strip);
                release_at_end(body, connection);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full(body) => body.is_end_stream(),
            Kind::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(body) => body.size_hint(),
            Kind::Upstream { body, .. } => body.size_hint(),
        }
    }
}
