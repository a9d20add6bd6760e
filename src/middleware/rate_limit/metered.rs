//! A request's body on its way through, counted where its size is its cost.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::settlement::Settlement;

pin_project! {
    /// A request's body as the inner service gets it.
    pub struct Metered<B> {
        #[pin]
        body: B,
        // What learns the size. It is held until the body is over, whichever way.
        meter: Option<Arc<Settlement>>,
    }
}

impl<B> Metered<B> {
    /// A body whose size nobody asks for.
    pub(super) fn unmetered(body: B) -> Self {
        Self { body, meter: None }
    }

    pub(super) fn new(body: B, meter: Option<Arc<Settlement>>) -> Self {
        Self { body, meter }
    }
}

impl<B: Body> Body for Metered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        if let (Some(meter), Some(Ok(frame))) = (this.meter, &frame) {
            meter.count(frame.data_ref().map_or(0, Buf::remaining));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> std::fmt::Debug for Metered<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered").finish_non_exhaustive()
    }
}
