//! The request's body on its way to the upstream, and whose turn it is meanwhile.
//!
//! The response timeout is there for upstreams that are stuck, not for clients that are slow. So
//! the body notes when it began to wait for the upstream, and that it waits for the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::time::{Instant, timeout_at};

use super::hop;

pin_project! {
    /// A request body that notes its progress.
    pub(super) struct Upload<B> {
        #[pin]
        body: Option<B>,
        turn: Option<Arc<Turn>>,
    }
}

/// Whose turn it is: the upstream's from a point in time on, or the client's.
pub(super) struct Turn(Mutex<Option<Instant>>);

impl Turn {
    fn upstream(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    fn client(&self) {
        *self.0.lock() = None;
    }

    /// When to look again whether the upstream took too long; `None` when it did.
    fn next_look(&self, patience: Duration) -> Option<Instant> {
        let now = Instant::now();
        let deadline = self.0.lock().unwrap_or(now) + patience;
        (deadline > now).then_some(deadline)
    }
}

impl<B: Body> Upload<B> {
    /// The body, with its [`Turn`] unless there is nothing to send.
    pub(super) fn new(body: B) -> (Self, Option<Arc<Turn>>) {
        let turn =
            (!body.is_end_stream()).then(|| Arc::new(Turn(Mutex::new(Some(Instant::now())))));
        let upload = Self {
            body: Some(body),
            turn: turn.clone(),
        };
        (upload, turn)
    }

    /// No body at all.
    pub(super) fn none() -> Self {
        Self {
            body: None,
            turn: None,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for Upload<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(body) = this.body.as_pin_mut() else {
            return Poll::Ready(None);
        };
        let mut polled = body.poll_frame(cx);
        if let Some(turn) = this.turn {
            if polled.is_pending() {
                turn.client();
            } else {
                turn.upstream();
            }
        }
        if let Poll::Ready(Some(Ok(frame))) = &mut polled {
            frame.trailers_mut().map(hop::strip);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let empty = || SizeHint::with_exact(0);
        self.body.as_ref().map_or_else(empty, Body::size_hint)
    }
}

/// The upstream had its turn for too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfPatience;

/// Awaits `answer` for as long as the upstream has its turn for less than `patience`.
pub(super) async fn with_patience<F: Future>(
    answer: F,
    patience: Duration,
    turn: Option<&Turn>,
) -> Result<F::Output, OutOfPatience> {
    let mut answer = std::pin::pin!(answer);
    let mut look = Instant::now() + patience;
    loop {
        if let Ok(answer) = timeout_at(look, answer.as_mut()).await {
            return Ok(answer);
        }
        look = turn
            .and_then(|turn| turn.next_look(patience))
            .ok_or(OutOfPatience)?;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn turn() -> Turn {
        Turn(Mutex::new(Some(Instant::now())))
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_body_patience_ends_on_time() {
        let start = Instant::now();
        let end = with_patience(pending::<()>(), PATIENCE, None).await;
        assert_eq!(end, Err(OutOfPatience));
        assert_eq!(start.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_the_client_takes_does_not_count() {
        let (start, turn) = (Instant::now(), turn());
        turn.client();
        let upload = async {
            sleep(PATIENCE * 5 / 2).await;
            turn.upstream();
        };
        let answer = with_patience(pending::<()>(), PATIENCE, Some(&turn));
        let ((), end) = tokio::join!(upload, answer);
        assert_eq!(end, Err(OutOfPatience));
        assert_eq!(start.elapsed(), PATIENCE * 7 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_takes_piece_after_piece_may_take_long() {
        let turn = turn();
        let answer = async {
            for _ in 0..10 {
                sleep(PATIENCE * 9 / 10).await;
                turn.upstream();
            }
        };
        assert_eq!(with_patience(answer, PATIENCE, Some(&turn)).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_takes_no_more_is_given_up() {
        let (start, turn) = (Instant::now(), turn());
        let upload = async {
            sleep(PATIENCE / 2).await;
            turn.upstream();
        };
        let answer = with_patience(pending::<()>(), PATIENCE, Some(&turn));
        let ((), end) = tokio::join!(upload, answer);
        assert_eq!(end, Err(OutOfPatience));
        assert_eq!(start.elapsed(), PATIENCE * 3 / 2);
    }
}
