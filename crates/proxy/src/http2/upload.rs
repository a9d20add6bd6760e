//! A request's body on its way to the server.

use std::error::Error as StdError;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::connections::{StreamSlot, UploadBody};
use crate::hop_by_hop;
use crate::outgoing_body::OutgoingBody;

/// The longest body that is kept until the server has begun to process it, in bytes. Most calls of
/// gRPC are shorter.
const MAX_REPLAYED: usize = 16 * 1024;

type BoxError = Box<dyn StdError + Send + Sync>;

/// A body, shared by the exchange and the stream that takes it.
pub(crate) struct Upload<B>(Arc<Mutex<UploadState<B>>>);

struct UploadState<B> {
    body: OutgoingBody<B>,
    is_untouched: bool,
    /// The data that was sent already; `None` if it is too long, or cannot be sent again.
    sent: Option<Vec<Bytes>>,
    /// How many pieces of `sent` are sent on this stream.
    resent: usize,
    error: Option<BoxError>,
    /// Held while the stream takes more of the body.
    slot: Option<Arc<StreamSlot>>,
}

impl<B> Clone for Upload<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Upload<B> {
    pub(crate) fn new(body: OutgoingBody<B>) -> Self {
        Self(Arc::new(Mutex::new(UploadState {
            body,
            is_untouched: true,
            sent: Some(Vec::new()),
            resent: 0,
            error: None,
            slot: None,
        })))
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.0.lock().is_untouched
    }

    /// The body, unless a stream has it.
    pub(crate) fn into_body(self) -> OutgoingBody<B> {
        mem::replace(&mut self.0.lock().body, OutgoingBody::none())
    }

    /// Whether all that was sent of it can be sent again.
    pub(crate) fn can_restart(&self) -> bool {
        self.0.lock().sent.is_some()
    }

    /// Until when to wait, if the upstream may take no longer than `timeout`.
    pub(super) fn deadline(&self, timeout: Duration) -> Instant {
        self.0.lock().body.deadline(timeout)
    }

    /// Why the body broke off, if the client's part of it did.
    pub(super) fn take_error(&self) -> Option<BoxError> {
        self.0.lock().error.take()
    }

    /// The server has begun to process the request, so nothing need be kept.
    pub(super) fn forget(&self) {
        self.0.lock().sent = None;
    }

    /// Whether there is more for the stream to take.
    pub(super) fn is_pending(&self) -> bool {
        self.0.lock().slot.is_some()
    }

    pub(super) fn abandon(&self) {
        let slot = self.0.lock().slot.take();
        if let Some(slot) = slot {
            slot.abandon_upload();
        }
    }
}

impl<B> Upload<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    /// Begins to send the body, from its start; the response timeout counts from `now` on.
    pub(super) fn begin(&self, now: Instant, slot: Arc<StreamSlot>) -> UploadBody {
        let mut state = self.0.lock();
        state.body.await_upstream(now);
        state.resent = 0;
        state.error = None;
        state.slot = state.has_more().then_some(slot);
        drop(state);
        Reader(self.clone()).boxed_unsync()
    }
}

impl<B> UploadState<B> {
    fn has_more(&self) -> bool {
        !self.body.is_over()
            || self
                .sent
                .as_ref()
                .is_some_and(|sent| self.resent < sent.len())
    }

    /// Keeps data that is sent, unless it is too long.
    fn keep(&mut self, data: &Bytes) {
        let Some(sent) = &mut self.sent else { return };
        let length = sent.iter().map(Bytes::len).sum::<usize>() + data.len();
        if length > MAX_REPLAYED {
            self.sent = None;
            return;
        }
        sent.push(data.clone());
        self.resent = sent.len();
    }
}

impl<B> UploadState<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let sent = self.sent.as_ref().and_then(|sent| sent.get(self.resent));
        if let Some(data) = sent.cloned() {
            self.resent += 1;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if self.body.is_over() {
            return Poll::Ready(None);
        }
        let mut frame = ready!(self.body.poll_frame(cx));
        self.is_untouched = false;
        if let Some(Ok(frame)) = &mut frame {
            if let Some(data) = frame.data_ref() {
                self.keep(data);
            } else if let Some(trailers) = frame.trailers_mut() {
                // They come once.
                self.sent = None;
                hop_by_hop::strip_trailers(trailers);
            }
        }
        Poll::Ready(frame)
    }
}

/// The body that hyper reads for one stream.
struct Reader<B>(Upload<B>);

impl<B> Body for Reader<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut state = self.0.0.lock();
        state.poll(cx).map_err(|error| {
            let text = error.to_string();
            state.error = Some(error);
            text.into()
        })
    }

    fn is_end_stream(&self) -> bool {
        !self.0.0.lock().has_more()
    }

    /// If the length is known, the head announces it.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The stream takes no more of the body.
impl<B> Drop for Reader<B> {
    fn drop(&mut self) {
        let slot = self.0.0.lock().slot.take();
        drop(slot);
    }
}
