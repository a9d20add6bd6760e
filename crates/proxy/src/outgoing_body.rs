//! A request's body on its way to a server, whatever the protocol: as long as its head announces,
//! and with the time since which the server or the client is waited for.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Instant;
use weir_runtime::loop_time;

type BoxError = Box<dyn StdError + Send + Sync>;

/// How the head announces the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// By the bytes that are left.
    Length(u64),
    Chunked,
}

/// The client's part of a request's body.
pub(super) struct OutgoingBody<B> {
    /// `None` once its end was taken.
    body: Option<B>,
    coding: Coding,
    awaited: Peer,
}

/// Who has to act next: the upstream, since then, or the client, which owes more of the body.
#[derive(Clone, Copy)]
enum Peer {
    Upstream(Instant),
    Client,
}

impl<B> OutgoingBody<B> {
    pub(super) fn new(body: B, coding: Coding) -> Self {
        Self {
            body: Some(body),
            coding,
            awaited: Peer::Client,
        }
    }

    pub(super) fn none() -> Self {
        Self {
            body: None,
            coding: Coding::Length(0),
            awaited: Peer::Client,
        }
    }

    pub(super) fn is_chunked(&self) -> bool {
        self.coding == Coding::Chunked
    }

    /// Whether the client owes nothing more.
    pub(super) fn is_over(&self) -> bool {
        self.body.is_none()
    }

    /// The response timeout counts from `now` on.
    pub(super) fn await_upstream(&mut self, now: Instant) {
        self.awaited = Peer::Upstream(now);
    }

    /// The upstream has taken some of the request.
    pub(super) fn note_progress(&mut self) {
        if let Peer::Upstream(since) = &mut self.awaited
            && self.body.is_some()
        {
            *since = loop_time::now();
        }
    }

    /// Until when to wait, if the upstream may take no longer than `timeout`. The time that the
    /// client takes does not count.
    pub(super) fn deadline(&self, timeout: Duration) -> Instant {
        match self.awaited {
            Peer::Upstream(since) => since + timeout,
            Peer::Client => loop_time::now() + timeout,
        }
    }
}

impl<B> OutgoingBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// The next frame. Fails if the body breaks off, or is not as long as announced. Trailers are
    /// its end.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
            self.awaited = Peer::Client;
            return Poll::Pending;
        };
        self.await_upstream(loop_time::now());
        let frame = match frame.transpose() {
            Ok(frame) => frame,
            Err(error) => return Poll::Ready(Some(Err(error.into()))),
        };
        let data = frame.as_ref().and_then(|frame| frame.data_ref());
        let is_last = match &mut self.coding {
            Coding::Chunked => data.is_none(),
            Coding::Length(left) => {
                let length = data.map_or(0, |data| data.len() as u64);
                match left.checked_sub(length) {
                    Some(rest) if rest == 0 || data.is_some() => *left = rest,
                    _ => return Poll::Ready(Some(Err(WRONG_LENGTH.into()))),
                }
                // Nothing comes after the last byte, so there is nothing to wait for.
                *left == 0
            }
        };
        if is_last {
            self.body = None;
        }
        Poll::Ready(frame.map(Ok))
    }
}

const WRONG_LENGTH: &str = "the body is not as long as Content-Length told";
