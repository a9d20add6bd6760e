//! A response's body on the connection that it comes by, while the rest of the request may still be
//! on its way.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, SizeHint};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::alarm::Alarm;
use super::body::Broken;
use super::connection::Connection;
use super::http1::{Decoder, Piece, RequestWriter};

/// What is left to read of a response.
pub(super) struct ResponseReader {
    decoder: Decoder,
    /// The connection, as long as there is something to read. Dropping it closes it.
    connection: Option<Box<Connection>>,
    /// The rest of the request, if it was answered before its end.
    rest: Option<Rest>,
    /// Whether the connection can serve another request.
    persists: bool,
}

impl ResponseReader {
    /// The body that `decoder` finds on `connection`, which serves another request afterwards if it
    /// `persists` and `rest` is sent.
    pub(super) fn new(
        decoder: Decoder,
        connection: Box<Connection>,
        rest: Option<Rest>,
        persists: bool,
    ) -> Self {
        let mut download = Self {
            decoder,
            connection: Some(connection),
            rest,
            persists,
        };
        download.finish_at_end();
        download
    }

    /// The whole body, if it has arrived already.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        let connection = self.connection.as_mut()?;
        let whole = connection.wire.take_whole(&mut self.decoder)?;
        self.finish_at_end();
        Some(whole)
    }

    /// The connection itself, which speaks another protocol from now on.
    pub(super) fn into_connection(mut self) -> Option<Box<Connection>> {
        self.connection.take()
    }

    /// The next piece of the body. After the end, or an error, there is only the end.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, Broken>> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(Ok(Piece::End));
        };
        let piece = ready!(poll_next(connection, &mut self.decoder, cx));
        match &piece {
            Ok(Piece::Data(_) | Piece::Trailers(_)) => self.finish_at_end(),
            Ok(Piece::End) => self.finish(),
            Err(_) => self.connection = None,
        }
        Poll::Ready(piece)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.connection.is_none() || self.decoder.is_at_end()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.connection {
            Some(_) => self.decoder.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }

    /// The one who reads a body need not ask for its end if its length told it.
    fn finish_at_end(&mut self) {
        if self.decoder.is_at_end() {
            self.finish();
        }
    }

    /// Hands the connection on, now or when the request is sent to its end.
    fn finish(&mut self) {
        let connection = self.connection.take().filter(|_| self.persists);
        match (connection, self.rest.take()) {
            (Some(connection), None) => connection.go_home(),
            (Some(connection), Some(rest)) => drop(tokio::spawn(rest.go_home_after(connection))),
            (None, _) => {}
        }
    }
}

fn poll_next(
    connection: &mut Connection,
    decoder: &mut Decoder,
    cx: &mut Context<'_>,
) -> Poll<Result<Piece, Broken>> {
    loop {
        if let Some(piece) = connection.wire.take_piece(decoder)? {
            return Poll::Ready(Ok(piece));
        }
        match ready!(connection.wire.poll_fill(cx))? {
            0 if decoder.ends_with_connection() => return Poll::Ready(Ok(Piece::End)),
            0 => return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())),
            _ => {}
        }
    }
}

/// The rest of a request that was answered before its end. A task of its own sends it, as the
/// client need not read the answer before it has sent everything.
pub(super) struct Rest {
    writer: oneshot::Receiver<OwnedWriteHalf>,
    task: AbortHandle,
}

impl Rest {
    /// Sends what is left, for as long as the server takes some of it every now and then.
    pub(super) fn send<B>(
        mut sending: RequestWriter<B>,
        mut writer: OwnedWriteHalf,
        patience: Duration,
    ) -> Self
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let (sent, receiver) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut alarm = Alarm::default();
            let done = poll_fn(|cx| match sending.poll(cx, &mut writer) {
                Poll::Ready(done) => Poll::Ready(done.is_ok()),
                Poll::Pending => {
                    let deadline = sending.deadline(patience);
                    alarm.poll_past(deadline, cx).map(|()| false)
                }
            });
            // What goes wrong here, the server has to make sense of; its answer is on its way already.
            if done.await {
                let _ = sent.send(writer);
            }
        });
        Self {
            writer: receiver,
            task: task.abort_handle(),
        }
    }

    async fn go_home_after(mut self, mut connection: Box<Connection>) {
        if let Ok(writer) = (&mut self.writer).await {
            connection.writer = Some(writer);
            connection.go_home();
        }
    }
}

/// The answer is not wanted any more, or broke off, and so the request is of no use either.
impl Drop for Rest {
    fn drop(&mut self) {
        self.task.abort();
    }
}
