//! HTTP/1.1 for plain requests, which are nearly all: one that has arrived as a whole, with nothing
//! that asks for more than a response. hyper serves all others.
//!
//! This loop never refuses anything. Where a request is not plain, hyper gets the connection
//! together with the bytes of that request, so what hyper knows of HTTP is not written down twice.
//! A connection needs no buffers here: a request is parsed from where it was read, and responses
//! are written from a buffer that a worker's connections share.

mod request;
mod response;
mod spare;

use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Method, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::yield_now;

pub(super) use self::request::take;
use self::response::{Framing, Output};
use self::spare::SpareMaps;
use super::client_io::ClientIo;
use super::service::{ConnectionService, ResponseFuture, TrackRequests, TrackedBody};

/// How large a head may be. hyper refuses a larger one.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadBounds {
    pub(super) bytes: usize,
    pub(super) headers: usize,
}

/// A connection whose requests are plain so far.
pub(super) struct Http1<IO, G, S: ConnectionService> {
    io: ClientIo<IO, G>,
    service: TrackRequests<S>,
    bounds: HeadBounds,
    /// What has arrived and belongs to no request yet.
    input: Bytes,
    output: Output,
    is_head: bool,
    /// No request follows the one that is served.
    closes: bool,
    /// The request that is served. Its memory is kept for the next until the connection is parked,
    /// as most are that wait.
    exchange: Option<BoxedExchange<S::Future, S::Body>>,
}

type BoxedExchange<F, B> = Pin<Box<Exchange<F, B>>>;

pin_project! {
    #[project = ExchangeProjection]
    enum Exchange<F, B> {
        /// There is none.
        Over,
        /// The service has the request.
        AwaitingResponse {
            #[pin]
            future: ResponseFuture<F>,
        },
        SendingResponse {
            #[pin]
            body: TrackedBody<B>,
            framing: Framing,
            is_over: bool,
        },
    }
}

/// How many requests are served before other connections have their turn. hyper serves as many.
const MAX_AT_ONCE: usize = 16;

/// Some clients send an empty line after a body. It is not part of the next request (RFC 9112,
/// section 2.2). A carriage return before anything else does not end a line.
pub(super) fn without_empty_lines(mut bytes: Bytes) -> Bytes {
    let mut rest = &*bytes;
    while let [b'\n', after @ ..] | [b'\r', b'\n', after @ ..] = rest {
        rest = after;
    }
    let start = match rest {
        // Its line feed has not arrived.
        b"\r" => bytes.len(),
        _ => bytes.len() - rest.len(),
    };
    bytes.split_off(start)
}

/// A length that is written in digits alone.
fn length(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = str::from_utf8(value).ok().filter(|_| is_number)?;
    text.parse().ok()
}

/// Who gets a connection that is not served here any more.
#[derive(Debug)]
pub(super) enum Handoff {
    Hyper,
    /// Closed once its responses have left.
    Close,
    /// Closed without a response (error, or `drop`).
    Drop,
}

impl<IO, G, S> Http1<IO, G, S>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    G: Unpin,
    S: ConnectionService,
{
    /// A connection on which `input` has arrived.
    pub(super) fn new(
        io: ClientIo<IO, G>,
        service: TrackRequests<S>,
        bounds: HeadBounds,
        input: Bytes,
    ) -> Self {
        Self {
            io,
            service,
            bounds,
            input,
            output: Output::default(),
            is_head: false,
            closes: false,
            exchange: None,
        }
    }

    /// The connection, its service, and what has arrived for the next request.
    pub(super) fn into_parts(self) -> (ClientIo<IO, G>, TrackRequests<S>, Bytes) {
        (self.io, self.service, self.input)
    }

    /// Whether no request is served or has arrived in part.
    pub(super) fn is_idle(&self) -> bool {
        let exchange = self.exchange.as_deref();
        exchange.is_none_or(|exchange| matches!(exchange, Exchange::Over)) && self.input.is_empty()
    }

    /// Serves no request after the one that is served.
    pub(super) fn close(&mut self) {
        self.closes = true;
    }

    /// Serves until the connection has to be dealt with otherwise.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Handoff> {
        let mut served = 0;
        loop {
            if served == MAX_AT_ONCE {
                // This has the runtime look at all sockets before it polls the connection again.
                let _ = pin!(yield_now()).poll(cx);
                return Poll::Pending;
            }
            let exchange = self.exchange.as_mut();
            match exchange.map(|exchange| exchange.as_mut().project()) {
                None | Some(ExchangeProjection::Over) => {
                    if let Some(handoff) = ready!(self.poll_request(cx)) {
                        return Poll::Ready(handoff);
                    }
                }
                Some(ExchangeProjection::AwaitingResponse { future }) => match future.poll(cx) {
                    Poll::Ready(Ok(response)) => self.begin(response),
                    Poll::Ready(Err(_)) => return Poll::Ready(Handoff::Drop),
                    Poll::Pending => return self.poll_client_gone(cx),
                },
                Some(ExchangeProjection::SendingResponse { .. }) => match self.poll_response(cx) {
                    Poll::Ready(Ok(())) if self.closes => return Poll::Ready(Handoff::Close),
                    Poll::Ready(Ok(())) => {
                        self.set(Exchange::Over);
                        served += 1;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Handoff::Drop),
                    Poll::Pending => return self.poll_client_gone(cx),
                },
            }
        }
    }

    /// Waits for a request and asks the service, unless something else has to be done.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Option<Handoff>> {
        if self.closes {
            return Poll::Ready(Some(Handoff::Close));
        }
        if self.input.is_empty() {
            match ready!(self.io.poll_read_some(cx)) {
                Ok(input) if input.is_empty() => return Poll::Ready(Some(Handoff::Close)),
                Ok(input) => self.input = without_empty_lines(input),
                Err(_) => return Poll::Ready(Some(Handoff::Drop)),
            }
        }
        if self.input.is_empty() {
            return Poll::Ready(None);
        }
        let spare = SpareMaps::take();
        let Some(mut plain) = take(&self.input, self.bounds, spare.headers) else {
            return Poll::Ready(Some(Handoff::Hyper));
        };
        self.input = without_empty_lines(plain.rest);
        self.closes = plain.closes;
        self.is_head = plain.request.head.method == Method::HEAD;
        plain.request.head.extensions = spare.extensions;
        let future = self.service.respond(plain.request);
        self.set(Exchange::AwaitingResponse { future });
        Poll::Ready(None)
    }

    fn set(&mut self, next: Exchange<S::Future, S::Body>) {
        match &mut self.exchange {
            Some(exchange) => exchange.set(next),
            None => self.exchange = Some(Box::pin(next)),
        }
    }

    fn begin(&mut self, response: Response<TrackedBody<S::Body>>) {
        let (head, body) = response.into_parts();
        let (framing, closes) = self.output.head(&head, &body, self.is_head, self.closes);
        self.closes = closes;
        SpareMaps {
            headers: head.headers,
            extensions: head.extensions,
        }
        .keep();
        self.set(Exchange::SendingResponse {
            body,
            framing,
            is_over: false,
        });
    }

    /// Sends the response. It fails where the client or the body is gone.
    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let exchange = self
            .exchange
            .as_mut()
            .map(|exchange| exchange.as_mut().project());
        let Some(ExchangeProjection::SendingResponse {
            mut body,
            framing,
            is_over,
        }) = exchange
        else {
            return Poll::Ready(Ok(()));
        };
        let (io, output) = (&mut self.io, &mut self.output);
        loop {
            // A short body leaves together with its head.
            while !*is_over && !output.is_full() {
                if body.is_end_stream() {
                    output.end(*framing).map_err(io::Error::other)?;
                    *is_over = true;
                    break;
                }
                match body.as_mut().poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            output.body(data, framing);
                        }
                    }
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Err(io::Error::other(error)));
                    }
                    Poll::Ready(None) => {
                        output.end(*framing).map_err(io::Error::other)?;
                        *is_over = true;
                    }
                    Poll::Pending => {
                        ready!(output.poll_write(io, cx))?;
                        ready!(output.poll_flush(io, cx))?;
                        // The next piece may take long.
                        output.release();
                        return Poll::Pending;
                    }
                }
            }
            ready!(output.poll_write(io, cx))?;
            if *is_over {
                ready!(output.poll_flush(io, cx))?;
                output.release();
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Notices that a client has left while it waits for its response. What it sends meanwhile is
    /// kept for later; as long as there is any, nothing more is read, so a client that has sent its next
    /// request is not noticed to leave.
    fn poll_client_gone(&mut self, cx: &mut Context<'_>) -> Poll<Handoff> {
        while self.input.is_empty() {
            match ready!(self.io.poll_read_some(cx)) {
                Ok(input) if !input.is_empty() => self.input = without_empty_lines(input),
                Ok(_) | Err(_) => return Poll::Ready(Handoff::Drop),
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::Arc;

    use futures_util::{StreamExt, stream};
    use http::Request;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::io::{AsyncReadExt, duplex};
    use weir_telemetry::StripedGauge;

    use super::*;
    use crate::connection_state::ConnectionState;
    use crate::drain::Draining;
    use crate::request_body::RequestBody;
    use crate::service::service_fn;
    use crate::settings::HttpSettings;

    #[tokio::test]
    async fn a_response_whose_next_piece_takes_long_keeps_no_buffer() {
        let (mut client, server) = duplex(1024);
        let settings = HttpSettings::default();
        let bounds = settings.client_bounds();
        let state = ConnectionState::new(Draining::never(), StripedGauge::default(), bounds);
        let service = TrackRequests {
            inner: service_fn(async |_: Request<RequestBody>| {
                let event = stream::iter([Ok::<_, Infallible>(Frame::data("event".into()))]);
                let body = StreamBody::new(event.chain(stream::pending()));
                Ok::<_, Infallible>(Response::new(body))
            }),
            challenges: None,
            state: Arc::clone(&state),
        };
        let io = ClientIo::new(server, state, ());
        let get = Bytes::from_static(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut connection = Http1::new(io, service, settings.protocols().plain, get);
        let polled = poll_fn(|cx| Poll::Ready(connection.poll(cx))).await;
        assert!(polled.is_pending());
        let mut sent = Vec::with_capacity(1024);
        client.read_buf(&mut sent).await.unwrap();
        assert!(sent.ends_with(b"\r\n\r\n5\r\nevent\r\n"));
        assert_eq!(connection.output.kept(), 0);
    }
}
