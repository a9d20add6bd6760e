//! Upstreams written by hand, a gateway in front of them, and clients that write bytes.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower::{Service, ServiceExt};
use weir_testing::PATIENCE;
pub(super) use weir_testing::refusing_address;

use crate::{Proxy, ProxyBody, Upstream, UpstreamSettings};

pub(super) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Waits until a server that was dropped refuses connections.
pub(super) async fn until_refused(address: SocketAddr) {
    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused);
    refused.await.expect("a connection that is refused");
}

/// Listens on a port that the system gives to nobody who asks for any, once the listener is dropped.
pub(super) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = weir_testing::listen_on_free_port();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(super) fn settings(servers: &[SocketAddr]) -> UpstreamSettings {
    UpstreamSettings::new("app", servers.iter().copied().map(Into::into).collect())
}

pub(super) fn proxy(settings: UpstreamSettings) -> Proxy {
    Proxy::new(Upstream::new(settings))
}

pub(super) fn get(path: &str) -> Request<Full<Bytes>> {
    let request = Request::get(path).header("host", "app.example.com");
    request.body(Full::default()).unwrap()
}

/// Sends one request through `proxy`, without a connection on the client's side.
pub(super) async fn send<B>(proxy: &Proxy, request: Request<B>) -> Response<ProxyBody>
where
    Proxy: Service<Request<B>, Response = Response<ProxyBody>, Error = Infallible>,
{
    proxy.clone().oneshot(request).await.unwrap()
}

/// What a body that is written bit by bit consists of.
pub(super) type Chunk = Result<Frame<Bytes>, io::Error>;

/// A body of an unknown length, and what writes it. Dropping that ends it.
pub(super) fn chunks() -> (UnboundedSender<Chunk>, BoxBody<Bytes, io::Error>) {
    let (sender, mut receiver) = unbounded_channel();
    let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    (sender, StreamBody::new(stream).boxed())
}

pub(super) fn data(text: &'static str) -> Chunk {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

pub(super) async fn text(response: Response<ProxyBody>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Serves HTTP/1.1 and HTTP/2 with a proxy of these settings.
pub(super) async fn gateway(settings: UpstreamSettings) -> SocketAddr {
    let (listener, address) = listen().await;
    let proxy: Proxy = proxy(settings);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let proxy = proxy.clone();
            let service = service_fn(move |request| proxy.clone().oneshot(request));
            tokio::spawn(async move {
                auto::Builder::new(TokioExecutor::new())
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await
            });
        }
    });
    address
}

/// A gateway in front of one upstream, and the upstream's listener.
pub(super) async fn gateway_and_upstream() -> (SocketAddr, TcpListener) {
    let (listener, server) = listen().await;
    (gateway(settings(&[server])).await, listener)
}

/// One end of a TCP connection, spoken to by hand.
pub(super) struct RawConnection(pub(super) TcpStream);

impl RawConnection {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(super) async fn accept(listener: &TcpListener) -> Self {
        Self(listener.accept().await.unwrap().0)
    }

    pub(super) async fn write(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads up to and with `end`, and not a byte more.
    pub(super) async fn read_to(&mut self, end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            match self.0.read_u8().await {
                Ok(byte) => read.push(byte),
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&read)),
            }
        }
        String::from_utf8(read).unwrap()
    }

    pub(super) async fn head(&mut self) -> String {
        self.read_to("\r\n\r\n").await
    }

    /// What comes until the peer closes, or resets, the connection.
    pub(super) async fn rest(&mut self) -> String {
        let mut read = Vec::new();
        let _ = self.0.read_to_end(&mut read).await;
        String::from_utf8(read).unwrap()
    }
}

/// Whether a head has this line.
pub(super) fn has(head: &str, line: &str) -> bool {
    head.split("\r\n").any(|found| found == line)
}
