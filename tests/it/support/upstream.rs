//! An app behind the gateway, which remembers what it received.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use rustls::{HandshakeKind, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use weir_testing::{listen_on_free_port, refuse};

pub(crate) type Body = BoxBody<Bytes, std::io::Error>;
type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Handler = Arc<dyn Fn(Request<Incoming>, Arc<Shared>) -> Answer + Send + Sync>;

/// A server on a thread of its own, until it is dropped.
pub(crate) struct Upstream {
    address: String,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

#[derive(Default)]
struct Shared {
    received: Mutex<Vec<Received>>,
    connections: AtomicUsize,
    handshakes: Mutex<Vec<Handshake>>,
}

/// What a server listens on.
pub(crate) enum Entrance {
    /// A free port, where it speaks HTTP/1.1.
    Tcp,
    /// The same over TLS, or HTTP/2 if that is agreed upon.
    Tls(Arc<ServerConfig>),
    /// A free port, where it speaks HTTP/2 alone.
    Http2,
    /// The path of a socket.
    Unix(PathBuf),
}

/// A handshake as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Handshake {
    pub(crate) server_name: Option<String>,
    pub(crate) is_resumed: bool,
    pub(crate) client: Option<CertificateDer<'static>>,
}

impl Upstream {
    /// Answers everything by 200 and `real`.
    pub(crate) fn start() -> Self {
        Self::answering(|_| text("real"))
    }

    /// Reads each request to its end, then answers it.
    pub(crate) fn answering(
        answer: impl Fn(&Received) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        Self::answering_after(Duration::ZERO, answer)
    }

    /// The same for an app that needs some time.
    pub(crate) fn answering_after(
        time: Duration,
        answer: impl Fn(&Received) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        Self::behind_after(Entrance::Tcp, time, answer)
    }

    /// Hands each request on with its body unread.
    pub(crate) fn serving<F>(serve: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::run(Arc::new(move |request, shared: Arc<Shared>| {
            shared
                .received
                .lock()
                .unwrap()
                .push(Received::without_body(&request));
            Box::pin(serve(request))
        }))
    }

    /// The same behind another entrance.
    pub(crate) fn behind(
        entrance: Entrance,
        answer: impl Fn(&Received) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        Self::behind_after(entrance, Duration::ZERO, answer)
    }

    /// The same for an app that needs some time.
    pub(crate) fn behind_after(
        entrance: Entrance,
        time: Duration,
        answer: impl Fn(&Received) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        Self::run_behind(
            entrance,
            Arc::new(move |request, shared: Arc<Shared>| {
                let answer = Arc::clone(&answer);
                Box::pin(async move {
                    let received = Received::of(request).await;
                    let answer = answer(&received);
                    shared.received.lock().unwrap().push(received);
                    if !time.is_zero() {
                        tokio::time::sleep(time).await;
                    }
                    answer
                })
            }),
        )
    }

    fn run(handler: Handler) -> Self {
        Self::run_behind(Entrance::Tcp, handler)
    }

    fn run_behind(entrance: Entrance, handler: Handler) -> Self {
        let shared = Arc::<Shared>::default();
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let for_thread = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                let served = async {
                    match entrance {
                        Entrance::Unix(path) => {
                            let listener = UnixListener::bind(&path).unwrap();
                            tell.send(path.display().to_string()).unwrap();
                            accept_unix(listener, handler, for_thread).await;
                        }
                        entrance => {
                            let listener = listen_on_free_port();
                            listener.set_nonblocking(true).unwrap();
                            let listener = TcpListener::from_std(listener).unwrap();
                            let address = listener.local_addr().unwrap();
                            tell.send(address.to_string()).unwrap();
                            accept(listener, entrance, handler, for_thread).await;
                        }
                    }
                };
                tokio::select! {
                    () = served => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            address: told.recv().expect("an upstream"),
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address.parse().expect("a port")
    }

    /// Ends, and returns its address, which refuses connections from now on.
    pub(crate) fn die(self) -> SocketAddr {
        let address = self.address();
        drop(self);
        refuse(address)
    }

    /// The handshakes so far.
    pub(crate) fn handshakes(&self) -> Vec<Handshake> {
        self.shared.handshakes.lock().unwrap().clone()
    }

    /// How many requests have arrived.
    pub(crate) fn count(&self) -> usize {
        self.shared.received.lock().unwrap().len()
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// All requests that have arrived.
    #[cfg(any(feature = "otlp", feature = "http3"))]
    pub(crate) fn all(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// The last request that arrived.
    pub(crate) fn last(&self) -> Received {
        let received = self.shared.received.lock().unwrap();
        received.last().expect("a request").clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(&self.address).finish()
    }
}

impl Received {
    async fn of(request: Request<Incoming>) -> Self {
        let mut received = Self::without_body(&request);
        // What broke off has arrived as far as it did.
        if let Ok(body) = request.into_body().collect().await {
            received.trailers = body.trailers().cloned();
            received.body = body.to_bytes();
        }
        received
    }

    fn without_body(request: &Request<Incoming>) -> Self {
        Self {
            method: request.method().clone(),
            target: request.uri().to_string(),
            headers: request.headers().clone(),
            body: Bytes::new(),
            trailers: None,
        }
    }

    /// The values of all lines of a field.
    pub(crate) fn lines(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.get_all(name).iter();
        lines.map(|value| value.to_str().unwrap()).collect()
    }
}

/// A 200 with this text.
pub(crate) fn text(text: &str) -> Response<Body> {
    Response::new(full(text))
}

/// A body that is there as a whole.
pub(crate) fn full(text: &str) -> Body {
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes()));
    body.map_err(|never: Infallible| match never {}).boxed()
}

async fn accept(listener: TcpListener, entrance: Entrance, handler: Handler, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let (handler, shared) = (Arc::clone(&handler), Arc::clone(&shared));
        let Entrance::Tls(config) = &entrance else {
            let is_http2 = matches!(entrance, Entrance::Http2);
            tokio::spawn(serve(stream, is_http2, handler, shared));
            continue;
        };
        let config = Arc::clone(config);
        tokio::spawn(async move {
            // A gateway that does not trust this upstream is nothing to it.
            let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else {
                return;
            };
            let session = stream.get_ref().1;
            let handshake = Handshake {
                server_name: session.server_name().map(str::to_owned),
                is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
                client: session
                    .peer_certificates()
                    .map(|chain| chain[0].clone().into_owned()),
            };
            let is_http2 = session.alpn_protocol() == Some(b"h2");
            shared.handshakes.lock().unwrap().push(handshake);
            serve(stream, is_http2, handler, shared).await;
        });
    }
}

async fn accept_unix(listener: UnixListener, handler: Handler, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let (handler, shared) = (Arc::clone(&handler), Arc::clone(&shared));
        tokio::spawn(serve(stream, false, handler, shared));
    }
}

async fn serve<S>(stream: S, is_http2: bool, handler: Handler, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = handler(request, Arc::clone(&shared));
        async move { Ok::<_, Infallible>(answer.await) }
    });
    // A gateway that goes away is nothing to this upstream.
    if is_http2 {
        let builder = http2::Builder::new(TokioExecutor::new());
        let _ = builder
            .serve_connection(TokioIo::new(stream), service)
            .await;
        return;
    }
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}
