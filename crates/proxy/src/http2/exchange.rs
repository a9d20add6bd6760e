//! A request and the head of its response, on one stream.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::uri::{PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version, request};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::connections::{StreamPermit, StreamSlot};
use super::upload::Upload;
use crate::balance::Attempt;
use crate::connection::DeadlineTimer;
use crate::exchange::ExchangeError;
use crate::http1::Malformed;
use crate::response_bounds;

type BoxError = Box<dyn StdError + Send + Sync>;

/// Sends a request and awaits the head of the response. The response timeout counts from `now` on.
/// Dropping the future resets the stream.
pub(crate) async fn exchange<B>(
    permit: StreamPermit,
    head: &request::Parts,
    is_secure: bool,
    upload: &Upload<B>,
    timeout: Duration,
    now: Instant,
) -> Result<Response<ResponseStream>, ExchangeError>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let StreamPermit { mut sender, slot } = permit;
    let body = upload.begin(now, Arc::clone(&slot));
    let request = request(head, is_secure)?.map(|()| body);
    let mut response = pin!(sender.try_send_request(request));
    let mut timer = DeadlineTimer::default();
    let response = poll_fn(|cx| {
        if let Poll::Ready(response) = response.as_mut().poll(cx) {
            return Poll::Ready(response.map_err(|error| {
                let is_unsent = error.message().is_some();
                let error = from_hyper(error.into_error(), is_unsent, slot.was_shared(), upload);
                if let ExchangeError::Unprocessed(_) | ExchangeError::Refused(_) = error {
                    slot.retire();
                }
                error
            }));
        }
        let deadline = upload.deadline(timeout);
        timer.poll_past(deadline, cx).map(|()| {
            slot.retire();
            Err(ExchangeError::Timeout)
        })
    });
    let response = response.await?;
    upload.forget();
    if let Some(bound) = response_bounds::exceeded_by(response.headers()) {
        let status = Some(response.status());
        return Err(Malformed::TooLarge { status, bound }.into());
    }
    Ok(response.map(|body| ResponseStream {
        body,
        _slot: Arc::clone(&slot),
        _attempt: None,
        rest: upload.is_pending().then(|| {
            let upload = upload.clone();
            Box::pin(finish(upload, timeout)) as Pin<Box<dyn Future<Output = ()> + Send>>
        }),
    }))
}

/// The head as HTTP/2 has it: the host is part of the target, and nothing is said of a connection
/// (RFC 9113 sections 8.2.2 and 8.3.1).
fn request(head: &request::Parts, is_secure: bool) -> Result<Request<()>, ExchangeError> {
    let mut headers = head.headers.clone();
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    let host = headers.remove(HOST);
    let path = head.uri.path_and_query().cloned();
    let uri = Uri::builder()
        .scheme(if is_secure {
            Scheme::HTTPS
        } else {
            Scheme::HTTP
        })
        .authority(host.as_ref().map_or(&b""[..], |host| host.as_bytes()))
        .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
        .build()
        .map_err(ExchangeError::Host)?;
    let mut request = Request::new(());
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Why there is no response to a request, which may not have been sent.
fn from_hyper<B>(
    error: hyper::Error,
    is_unsent: bool,
    was_shared: bool,
    upload: &Upload<B>,
) -> ExchangeError {
    if let Some(error) = upload.take_error() {
        return ExchangeError::RequestBody(error);
    }
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    if is_unsent || cause.is_some_and(is_unprocessed) {
        return ExchangeError::Unprocessed(io::Error::other(error));
    }
    if cause.is_some_and(is_refusal) {
        return ExchangeError::Refused(io::Error::other(error));
    }
    match cause {
        // h2 ends the connection for what is wrong with the head of any response on it.
        Some(cause) if cause.is_library() && cause.is_go_away() && was_shared => {
            ExchangeError::Closed(io::Error::other(error))
        }
        Some(cause) if cause.is_library() => ExchangeError::Protocol(error),
        _ => ExchangeError::Closed(io::Error::other(error)),
    }
}

/// Whether the server goes away in order, and names an earlier stream as the last one that it
/// processes (RFC 9113 section 6.8).
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && error.is_go_away() && error.reason() == Some(Reason::NO_ERROR)
}

/// Whether the server has not processed the request: it says so, or goes away because of an error
/// (RFC 9113 section 8.7).
fn is_refusal(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || error.is_go_away())
}

/// A response's body. Dropping it before its end resets the stream.
pub(crate) struct ResponseStream {
    body: Incoming,
    _slot: Arc<StreamSlot>,
    /// The request that is in flight as long as the response.
    _attempt: Option<Attempt>,
    /// The rest of the request, which may end after the response.
    rest: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl ResponseStream {
    /// Counts the request as in flight until the end of the response.
    pub(crate) fn keep(&mut self, attempt: Attempt) {
        self._attempt = Some(attempt);
    }

    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            tokio::spawn(rest);
        }
    }
}

/// Waits for the end of an upload, for as long as the server takes some of it every now and then.
async fn finish<B: Send + 'static>(upload: Upload<B>, timeout: Duration) {
    while upload.is_pending() {
        let deadline = upload.deadline(timeout);
        tokio::time::sleep_until(deadline).await;
        if upload.deadline(timeout) <= Instant::now() {
            upload.abandon();
        }
    }
}
