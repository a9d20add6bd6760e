//! The way that one request takes to a server: an HTTP/1.1 connection, or a stream on one of
//! HTTP/2.

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use tokio::time::Instant;

use super::addresses::CachedAddresses;
use super::connection::Connection;
use super::exchange::{Exchange, ExchangeError, Exchanged};
use super::http2::{self, Connections, ResponseStream, StreamPermit, Upload};
use super::request::Outbound;
use super::response_body::ResponseReader;
use super::settings::Server;
use super::stream::Stream;
use super::tls::Protocol;

/// Whether a new connection speaks HTTP/2, if it may.
pub(super) fn speaks_http2(stream: &Stream, protocol: Protocol) -> io::Result<bool> {
    match stream.agreed_on_http2() {
        Some(true) | None => Ok(true),
        Some(false) if protocol == Protocol::Auto => Ok(false),
        Some(false) => Err(io::Error::other(rustls::Error::NoApplicationProtocol)),
    }
}

/// An open way to a server, for one request.
pub(super) enum Channel {
    Http1(Box<Connection>),
    Http2(StreamPermit),
}

/// The head of a response, and the source of its body.
pub(super) enum ChannelResponse {
    Http1(Exchanged),
    Http2(Response<ResponseStream>),
}

impl Channel {
    /// A connection to `server` for one request alone. The caller gives up at `deadline`.
    pub(super) async fn open_alone(
        server: &Server,
        addresses: &CachedAddresses,
        deadline: Instant,
    ) -> io::Result<Self> {
        let is_http1 = server.protocol() == Protocol::Http1;
        let stream = Stream::connect(server, addresses, is_http1, None, deadline).await?;
        if is_http1 || !speaks_http2(&stream, server.protocol())? {
            return Ok(Self::Http1(Connection::new(stream, Weak::new(), None)));
        }
        let connections = Arc::new(Connections::new(Duration::ZERO, None));
        connections.add(stream, None).await.map(Self::Http2)
    }

    /// Sends a request and awaits the head of the response. The response timeout counts from `now`
    /// on.
    pub(super) async fn exchange<B>(
        self,
        outbound: &mut Outbound<B>,
        is_secure: bool,
        timeout: Duration,
        now: Instant,
    ) -> Result<ChannelResponse, ExchangeError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Outbound {
            head,
            writer,
            upload,
            ..
        } = outbound;
        match self {
            Self::Http1(connection) => {
                if upload.as_ref().is_some_and(|upload| !upload.is_untouched()) {
                    return Err(ExchangeError::Spent);
                }
                if let Some(upload) = upload.take() {
                    writer.put_body(upload.into_body());
                }
                writer.begin(head, now);
                let exchange = Exchange::new(connection, writer, &head.method, timeout);
                exchange.await.map(ChannelResponse::Http1)
            }
            Self::Http2(permit) => {
                let upload = upload.get_or_insert_with(|| Upload::new(writer.take_body()));
                let exchange = http2::exchange(permit, head, is_secure, upload, timeout, now);
                Box::pin(exchange).await.map(ChannelResponse::Http2)
            }
        }
    }
}

impl ChannelResponse {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Http1(exchanged) => exchanged.status(),
            Self::Http2(response) => response.status(),
        }
    }

    /// Gives up a response that nobody gets; its connection is used again if all of it has arrived.
    pub(super) fn discard(self) {
        if let Self::Http1(exchanged) = self {
            let Exchanged {
                head, connection, ..
            } = exchanged;
            let (body, keep_alive) = (head.body, head.keep_alive);
            let mut reader =
                ResponseReader::new(body, connection, None, keep_alive, Duration::ZERO);
            drop(reader.whole());
        }
    }
}
