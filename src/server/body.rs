//! A request's body, which has to keep coming.
//!
//! A client that announces a body and sends none would otherwise hold a connection to the upstream
//! for as long as it likes, at no cost to itself.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::unread::Upload;

/// A client's request body. It fails when nothing comes for too long while somebody waits for it.
#[derive(Debug)]
pub struct RequestBody<B = Upload> {
    body: B,
    patience: Duration,
    /// Set while nothing comes.
    end: Option<Pin<Box<Sleep>>>,
}

impl<B> RequestBody<B> {
    pub(super) fn new(body: B, patience: Duration) -> Self {
        Self {
            body,
            patience,
            end: None,
        }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let patience = self.patience;
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.end = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(end.as_mut().poll(cx));
        let late = io::Error::new(ErrorKind::TimedOut, "the client sends no more of the body");
        Poll::Ready(Some(Err(late.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_may_take_long_but_must_not_stop() {
        let patience = Duration::from_secs(60);
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let mut body = RequestBody::new(StreamBody::new(stream), patience);
        tokio::spawn(async move {
            for _ in 0..10 {
                sleep(patience * 9 / 10).await;
                let data = Frame::data(Bytes::from_static(b"x"));
                sender.send(Ok::<_, io::Error>(data)).unwrap();
            }
            std::future::pending::<()>().await;
        });
        let start = Instant::now();
        for _ in 0..10 {
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(start.elapsed(), patience * 9);
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(start.elapsed(), patience * 10);
    }
}
