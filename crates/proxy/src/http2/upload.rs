//! A request's body on its way to the server.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::connections::{StreamSlot, UploadBody};
use crate::hop_by_hop;
use crate::http1::Coding;

/// How long a body may be to be kept until the server has begun to process it, in bytes. Most calls
/// of gRPC are shorter.
const MAX_REPLAYED: usize = 16 * 1024;

type BoxError = Box<dyn StdError + Send + Sync>;

/// A body, shared by the exchange and the stream that takes it.
pub(crate) struct Upload<B>(Arc<Mutex<State<B>>>);

struct State<B> {
    body: Option<(B, Coding)>,
    is_untouched: bool,
    turn: Turn,
    /// What was sent of it already; none if that is too much, or cannot be sent again.
    sent: Option<Vec<Bytes>>,
    /// How much of that is sent on this stream.
    resent: usize,
    error: Option<BoxError>,
    /// The stream's place, as long as it takes more of the body.
    slot: Option<Arc<StreamSlot>>,
}

/// Whom a request waits for: the upstream, since then, or the client for more of the body.
#[derive(Clone, Copy)]
enum Turn {
    Upstream(Instant),
    Client,
}

impl<B> Clone for Upload<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Upload<B> {
    pub(crate) fn new(body: Option<(B, Coding)>) -> Self {
        Self(Arc::new(Mutex::new(State {
            body,
            is_untouched: true,
            turn: Turn::Client,
            sent: Some(Vec::new()),
            resent: 0,
            error: None,
            slot: None,
        })))
    }

    /// Whether nothing of it was taken yet.
    pub(crate) fn is_untouched(&self) -> bool {
        self.0.lock().is_untouched
    }

    /// The body, unless a stream has it.
    pub(crate) fn into_body(self) -> Option<(B, Coding)> {
        self.0.lock().body.take()
    }

    /// Whether all that was sent of it can be sent again.
    pub(crate) fn can_restart(&self) -> bool {
        self.0.lock().sent.is_some()
    }

    /// Until when to wait, if the upstream's turn may take no longer than `timeout`.
    pub(super) fn deadline(&self, timeout: Duration) -> Instant {
        match self.0.lock().turn {
            Turn::Upstream(since) => since + timeout,
            Turn::Client => Instant::now() + timeout,
        }
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

    /// Leaves the rest of the body to nobody.
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
    /// Begins to send the body, from its start, as it is the upstream's turn from `now` on.
    pub(super) fn begin(&self, now: Instant, slot: Arc<StreamSlot>) -> UploadBody {
        let mut state = self.0.lock();
        state.turn = Turn::Upstream(now);
        state.resent = 0;
        state.error = None;
        state.slot = state.has_more().then_some(slot);
        drop(state);
        Reader(self.clone()).boxed_unsync()
    }
}

impl<B> State<B> {
    fn has_more(&self) -> bool {
        self.body.is_some()
            || self
                .sent
                .as_ref()
                .is_some_and(|sent| self.resent < sent.len())
    }

    /// Keeps what is sent, if there is not too much of it.
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

impl<B> State<B>
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
        let Some((body, coding)) = &mut self.body else {
            return Poll::Ready(None);
        };
        let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
            self.turn = Turn::Client;
            return Poll::Pending;
        };
        self.is_untouched = false;
        self.turn = Turn::Upstream(Instant::now());
        let mut left = match coding {
            Coding::Length(left) => Some(left),
            Coding::Chunked => None,
        };
        Poll::Ready(match frame {
            Some(Err(error)) => Some(Err(error.into())),
            None if left.as_ref().is_some_and(|left| **left > 0) => Some(Err(misfit())),
            None => {
                self.body = None;
                None
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    if let Some(left) = &mut left {
                        let Some(rest) = left.checked_sub(data.len() as u64) else {
                            return Poll::Ready(Some(Err(misfit())));
                        };
                        **left = rest;
                        if rest == 0 {
                            self.body = None;
                        }
                    }
                    self.keep(&data);
                    Some(Ok(Frame::data(data)))
                }
                Err(frame) => {
                    self.body = None;
                    // They come once.
                    self.sent = None;
                    let mut trailers = frame.into_trailers().unwrap_or_default();
                    hop_by_hop::strip_trailers(&mut trailers);
                    Some(Ok(Frame::trailers(trailers)))
                }
            },
        })
    }
}

fn misfit() -> BoxError {
    "the body is not as long as Content-Length told".into()
}

/// What one stream takes of a body.
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

    /// As far as the length has been told, it stands in the head.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The stream takes no more of it.
impl<B> Drop for Reader<B> {
    fn drop(&mut self) {
        let slot = self.0.0.lock().slot.take();
        drop(slot);
    }
}
