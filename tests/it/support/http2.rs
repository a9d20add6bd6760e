//! A client of HTTP/2 that knows beforehand that the gateway speaks it.

use std::future::Future;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::PATIENCE;

pub(crate) type Body = BoxBody<Bytes, std::convert::Infallible>;

/// What came back, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: http::response::Parts,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Runs an exchange on a runtime of its own.
pub(crate) fn run<T>(exchange: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let in_time = async { tokio::time::timeout(PATIENCE, exchange).await };
    runtime.block_on(in_time).expect("an answer in time")
}

pub(crate) async fn connect(to: SocketAddr) -> SendRequest<Body> {
    over(TcpStream::connect(to).await.unwrap()).await
}

/// Speaks over a stream that is there.
pub(crate) async fn over<S>(stream: S) -> SendRequest<Body>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A request with a body that is there as a whole.
pub(crate) fn get(path: &str) -> Request<Body> {
    let uri = format!("http://app.example.com{path}");
    Request::get(uri).body(Full::default().boxed()).unwrap()
}

/// A body with trailers.
pub(crate) fn with_trailers(data: &'static str, trailers: HeaderMap) -> Body {
    let frames = [
        Ok(Frame::data(Bytes::from_static(data.as_bytes()))),
        Ok(Frame::trailers(trailers)),
    ];
    StreamBody::new(futures_util::stream::iter(frames)).boxed()
}

pub(crate) async fn read(response: Response<hyper::body::Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body");
    Answer {
        head,
        trailers: body.trailers().cloned(),
        body: body.to_bytes(),
    }
}
