//! A client of HTTP/3.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use h3::client::SendRequest;
use h3::error::{ConnectionError, StreamError};
use http::{HeaderMap, Request, Response};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, VarInt};
use rustls::pki_types::CertificateDer;

/// What came back, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: http::response::Parts,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.status.as_u16()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }
}

/// A connection, and what sends requests on it.
pub(crate) struct Http3 {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: quinn::Connection,
    pub(crate) sender: SendRequest<h3_quinn::OpenStreams, Bytes>,
}

/// A socket of a client that trusts what `config` trusts.
pub(crate) fn endpoint(config: &Arc<rustls::ClientConfig>) -> Endpoint {
    endpoint_at(Ipv4Addr::LOCALHOST, config)
}

/// The same at this address.
pub(crate) fn endpoint_at(source: Ipv4Addr, config: &Arc<rustls::ClientConfig>) -> Endpoint {
    let mut endpoint = Endpoint::client((source, 0).into()).unwrap();
    let crypto = QuicClientConfig::try_from(Arc::clone(config)).unwrap();
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(crypto)));
    endpoint
}

/// Connects by QUIC alone.
pub(crate) async fn quic(
    endpoint: &Endpoint,
    to: SocketAddr,
    name: &str,
) -> Result<quinn::Connection, quinn::ConnectionError> {
    endpoint.connect(to, name).unwrap().await
}

pub(crate) async fn connect(
    to: SocketAddr,
    name: &str,
    config: &Arc<rustls::ClientConfig>,
) -> Http3 {
    let endpoint = endpoint(config);
    let connection = quic(&endpoint, to, name).await.expect("a connection");
    Http3::over(endpoint, connection).await
}

impl Http3 {
    pub(crate) async fn over(endpoint: Endpoint, connection: quinn::Connection) -> Self {
        Self::begin(endpoint, connection).await.expect("HTTP/3")
    }

    /// Fails where the server has closed the connection since it was there.
    pub(crate) async fn begin(
        endpoint: Endpoint,
        connection: quinn::Connection,
    ) -> Result<Self, ConnectionError> {
        let quic = h3_quinn::Connection::new(connection.clone());
        let (mut driver, sender) = h3::client::new(quic).await?;
        tokio::spawn(async move { driver.wait_idle().await });
        Ok(Self {
            endpoint,
            connection,
            sender,
        })
    }

    /// The certificate that the server has shown.
    pub(crate) fn shown(&self) -> CertificateDer<'static> {
        let identity = self.connection.peer_identity().expect("a certificate");
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().unwrap();
        chain[0].clone()
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Answer, StreamError> {
        self.send(get(path), Bytes::new()).await
    }

    /// Sends a request and reads the answer.
    pub(crate) async fn send(
        &mut self,
        request: Request<()>,
        body: Bytes,
    ) -> Result<Answer, StreamError> {
        let stream = self.sender.send_request(request).await?;
        let (mut send, mut receive) = stream.split();
        let sending = async move {
            // A server that has answered may want no more.
            let _ = match body.is_empty() {
                true => Ok(()),
                false => send.send_data(body).await,
            };
            let _ = send.finish().await;
        };
        let receiving = async move {
            let head = receive.recv_response().await?;
            let mut body = BytesMut::new();
            while let Some(mut data) = receive.recv_data().await? {
                body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            }
            let trailers = receive.recv_trailers().await?;
            Ok(answer(head, body, trailers))
        };
        let ((), answer) = tokio::join!(sending, receiving);
        answer
    }

    /// The code by which the server has closed the connection.
    pub(crate) async fn closed(&self) -> VarInt {
        match self.connection.closed().await {
            quinn::ConnectionError::ApplicationClosed(close) => close.error_code,
            other => panic!("{other}"),
        }
    }

    /// The code by which the server answers these bytes on a stream of a request.
    pub(crate) async fn reset_after(&self, bytes: &[u8]) -> VarInt {
        let (mut send, mut receive) = self.connection.open_bi().await.unwrap();
        send.write_all(bytes).await.unwrap();
        let _ = send.finish();
        match receive.read_to_end(100_000).await {
            Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) => code,
            Err(quinn::ReadToEndError::Read(quinn::ReadError::ConnectionLost(
                quinn::ConnectionError::ApplicationClosed(close),
            ))) => close.error_code,
            other => panic!("{other:?}"),
        }
    }
}

fn answer(head: Response<()>, body: BytesMut, trailers: Option<HeaderMap>) -> Answer {
    Answer {
        head: head.into_parts().0,
        body: body.freeze(),
        trailers,
    }
}

pub(crate) fn get(path: &str) -> Request<()> {
    let uri = format!("https://a.example.com{path}");
    Request::get(uri).body(()).unwrap()
}

pub(crate) fn post(path: &str) -> Request<()> {
    let uri = format!("https://a.example.com{path}");
    Request::post(uri).body(()).unwrap()
}
