//! A request's body as the inner service gets it, which is counted and timed as it is read.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::time::Instant;
use weir_runtime::loop_time;

use super::deferred_charge::DeferredCharges;

pin_project! {
    /// A request's body as the inner service gets it.
    pub struct Metered<B> {
        #[pin]
        body: B,
        // What learns the size. It is held until the body is over, whichever way.
        meter: Option<Arc<DeferredCharges>>,
        upload: Option<Arc<UploadTime>>,
    }
}

/// When a request's body was read.
#[derive(Debug, Default)]
pub(crate) struct UploadTime {
    pub(super) begun: OnceLock<Instant>,
    pub(super) ended: OnceLock<Instant>,
    /// Woken at the end: with HTTP/2 it is the task of the connection that reads the body.
    waiting: Mutex<Option<Waker>>,
}

impl UploadTime {
    /// How long the body took, from `since` on; none while it is still on its way.
    pub(crate) fn took(&self, since: Option<Instant>) -> Option<Duration> {
        let Some(begun) = self.begun.get() else {
            return Some(Duration::ZERO);
        };
        let since = since.map_or(*begun, |since| since.max(*begun));
        Some(self.ended.get()?.saturating_duration_since(since))
    }

    /// Whether the body is over; if not, the task is woken when it is.
    pub(super) fn has_ended(&self, cx: &Context<'_>) -> bool {
        *self.waiting.lock() = Some(cx.waker().clone());
        self.ended.get().is_some()
    }

    fn begin(&self) {
        self.begun.get_or_init(loop_time::now);
    }

    fn end(&self) {
        self.ended.get_or_init(loop_time::now);
        let waiting = self.waiting.lock().take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl<B> Metered<B> {
    /// A body whose size does not matter.
    pub(super) fn unmetered(body: B) -> Self {
        Self::new(body, None, None)
    }

    pub(super) fn new(
        body: B,
        meter: Option<Arc<DeferredCharges>>,
        upload: Option<Arc<UploadTime>>,
    ) -> Self {
        Self {
            body,
            meter,
            upload,
        }
    }
}

impl<B: Body> Body for Metered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        if let Some(upload) = this.upload {
            upload.begin();
        }
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if let Some(upload) = this.upload
            && is_last(&frame, &*this.body)
        {
            upload.end();
        }
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

/// Whether nothing that a reader would wait for comes after a frame.
fn is_last<B: Body>(frame: &Option<Result<Frame<B::Data>, B::Error>>, body: &B) -> bool {
    let is_data = matches!(frame, Some(Ok(frame)) if frame.is_data());
    !is_data || body.is_end_stream()
}

impl<B> std::fmt::Debug for Metered<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered").finish_non_exhaustive()
    }
}
