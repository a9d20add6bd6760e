//! A request and the head of its response, on one connection.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body::Body;
use thiserror::Error;

use super::connection::Connection;
use super::http1::{Malformed, RequestWriter, ResponseHead, SendError};

/// Sends a request and reads the head of the response at the same time: a server may answer before
/// it has seen the request's end. Dropping it closes the connection.
pub(super) struct Exchange<'r, B> {
    /// Taken when the exchange is over.
    connection: Option<Box<Connection>>,
    writer: &'r mut RequestWriter<B>,
    method: &'r Method,
    timeout: Duration,
    progress: Progress,
}

enum Progress {
    Sending,
    Sent,
    /// The server takes no more. It may have answered all the same.
    Broken(io::Error),
}

pub(super) struct Exchanged {
    pub(super) head: ResponseHead,
    pub(super) connection: Box<Connection>,
    pub(super) sent: bool,
}

impl Exchanged {
    pub(super) fn status(&self) -> StatusCode {
        self.head.response.status()
    }
}

#[derive(Debug, Error)]
pub(super) enum ExchangeError {
    #[error("the request's body broke off")]
    RequestBody(#[source] Box<dyn StdError + Send + Sync>),
    /// The server closed the connection without a response.
    #[error("the connection was closed")]
    Closed(#[source] io::Error),
    /// The server closed the connection in the middle of the response's head.
    #[error("the connection was closed in the middle of a head")]
    BrokenOff(#[source] io::Error),
    /// The server closed the connection in order, and says that it has not processed the request.
    #[error("the connection ended before the request")]
    Unprocessed(#[source] io::Error),
    /// The server says that it has not processed the request, and does not go away in order.
    #[error("the request was refused")]
    Refused(#[source] io::Error),
    /// The server sent no valid HTTP/2.
    #[error("the response is not HTTP/2")]
    Protocol(#[source] hyper::Error),
    /// Part of the body that would have to be sent again is gone.
    #[error("part of the request's body was sent already")]
    Spent,
    /// The request's host cannot be part of a target.
    #[error("the host is not one of a target")]
    Host(#[source] http::Error),
    /// The server sent no valid HTTP/1.1.
    #[error("the response is malformed")]
    Malformed(#[from] Malformed),
    /// The server took longer than the response timeout.
    #[error("the server took too long")]
    Timeout,
}

impl<'r, B> Exchange<'r, B> {
    pub(super) fn new(
        connection: Box<Connection>,
        writer: &'r mut RequestWriter<B>,
        method: &'r Method,
        timeout: Duration,
    ) -> Self {
        Self {
            connection: Some(connection),
            writer,
            method,
            timeout,
            progress: Progress::Sending,
        }
    }
}

impl<B> Future for Exchange<'_, B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Output = Result<Exchanged, ExchangeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Polled again after its end, it stays pending, as a fused future would.
        let Some(mut connection) = self.connection.take() else {
            return Poll::Pending;
        };
        let polled = self.poll_on(&mut connection, cx);
        if polled.is_pending() {
            self.connection = Some(connection);
            return Poll::Pending;
        }
        let sent = matches!(self.progress, Progress::Sent);
        polled.map_ok(|head| {
            connection.idle_timeout = head.idle_timeout;
            Exchanged {
                head,
                connection,
                sent,
            }
        })
    }
}

impl<B> Exchange<'_, B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    fn poll_on(
        &mut self,
        connection: &mut Connection,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, ExchangeError>> {
        self.poll_send(connection, cx)?;
        if let Poll::Ready(head) = self.poll_head(connection, cx) {
            return Poll::Ready(head);
        }
        let deadline = self.writer.deadline(self.timeout);
        ready!(connection.timer.poll_past(deadline, cx));
        Poll::Ready(Err(ExchangeError::Timeout))
    }

    fn poll_send(
        &mut self,
        connection: &mut Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), ExchangeError> {
        if !matches!(self.progress, Progress::Sending) {
            return Ok(());
        }
        let Some(write_half) = &mut connection.writer else {
            return Ok(());
        };
        match self.writer.poll(cx, write_half) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.progress = Progress::Sent,
            Poll::Ready(Err(SendError::Connection(error))) => {
                self.progress = Progress::Broken(error);
            }
            Poll::Ready(Err(SendError::Body(error))) => {
                return Err(ExchangeError::RequestBody(error));
            }
        }
        Ok(())
    }

    fn poll_head(
        &mut self,
        connection: &mut Connection,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, ExchangeError>> {
        loop {
            if let Some(head) = connection.reader.take_head(self.method)? {
                return Poll::Ready(Ok(head));
            }
            let read = ready!(connection.reader.poll_fill(cx));
            if let Err(error) = read.and_then(at_least_one) {
                let error = self.cause(error);
                return Poll::Ready(Err(match connection.reader.is_empty() {
                    true => ExchangeError::Closed(error),
                    false => ExchangeError::BrokenOff(error),
                }));
            }
        }
    }

    /// The error that broke the connection first says more than the ones that followed from it.
    fn cause(&mut self, error: io::Error) -> io::Error {
        match std::mem::replace(&mut self.progress, Progress::Sent) {
            Progress::Broken(cause) => cause,
            Progress::Sending | Progress::Sent => error,
        }
    }
}

fn at_least_one(read: usize) -> io::Result<()> {
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}
