//! HTTP/1.1 and HTTP/2 for clients: the settings, and the loop that serves one listener.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tower::Service;

use super::accept::Acceptor;
use super::activity::{Activity, Patience};
use super::connection::{Driver, End};
use super::drain::{DrainSettings, Draining};
use super::io::ClientIo;
use super::service::Counted;
use crate::telemetry::{GaugeGuard, ServerMetrics};

/// What clients may do, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// How long the head of a request may take to arrive, from its first byte on. Enforced at the
    /// latest after twice the time.
    pub header_timeout: Duration,
    /// How long a connection may be without a request.
    pub idle_timeout: Duration,
    /// How large the head of a request may be, in bytes; at least 8192.
    pub max_header_bytes: usize,
    /// How many header fields a request over HTTP/1.1 may have.
    pub max_headers: usize,
    /// How many requests one HTTP/2 connection may have in flight.
    pub max_streams: u32,
    /// How many connections the process may have open; more wait in the system's queue.
    pub max_connections: Option<NonZeroUsize>,
    /// How long a drain may take.
    pub drain: DrainSettings,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            // Longer than the 60 seconds of the usual load balancers, so that they close first and
            // never send a request into a connection that we are closing.
            idle_timeout: Duration::from_secs(75),
            max_header_bytes: 64 * 1024,
            max_headers: 100,
            max_streams: 200,
            max_connections: None,
            drain: DrainSettings::default(),
        }
    }
}

/// A client's connection, as far as a service may want to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The address at the other end: a client's, or a proxy's before us.
    pub peer: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// Whether it is encrypted.
    pub secure: bool,
}

/// Serves HTTP; shared by all workers.
#[derive(Clone, Debug)]
pub struct Http(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    builder: Builder<TokioExecutor>,
    patience: Patience,
    drain: DrainSettings,
    permits: Option<Arc<Semaphore>>,
    metrics: ServerMetrics,
}

/// Held as long as a connection is open.
struct Open {
    _gauge: GaugeGuard,
    _permit: Option<OwnedSemaphorePermit>,
    _held: watch::Receiver<()>,
}

impl Http {
    /// Prepares everything that connections have in common.
    pub fn new(settings: &HttpSettings, metrics: ServerMetrics) -> Self {
        let permits = settings.max_connections;
        Self(Arc::new(Shared {
            builder: builder(settings),
            patience: Patience {
                head: settings.header_timeout,
                idle: settings.idle_timeout,
            },
            drain: settings.drain,
            permits: permits.map(|most| Arc::new(Semaphore::new(most.get()))),
            metrics,
        }))
    }

    /// Accepts connections and serves each with what `make` makes for it, until the drain begins
    /// and every connection is closed or the grace period is over. Returns how many connections
    /// were cut off.
    ///
    /// To be called on the runtime of the worker whose listener it is.
    ///
    /// # Errors
    /// When the runtime cannot take the listener over. Failures to accept are logged and waited
    /// out instead.
    pub async fn serve<M, S, B>(
        &self,
        listener: std::net::TcpListener,
        make: M,
        mut draining: Draining,
    ) -> io::Result<usize>
    where
        M: Fn(&Connection) -> S,
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut acceptor = Acceptor::new(listener, self.0.metrics.clone())?;
        let serving = Serving {
            shared: &self.0,
            make,
            open: watch::Sender::new(()),
            cut_off: Arc::default(),
            draining: draining.clone(),
        };
        loop {
            tokio::select! {
                biased;
                () = draining.begun() => break,
                (stream, peer) = acceptor.next() => {
                    let permit = self.0.permit(&mut draining).await;
                    serving.start(stream, peer, permit);
                }
            }
        }
        // These connections exist already; to hold them back would not make them fewer.
        let accepted = |stream, peer| serving.start(stream, peer, None);
        acceptor.close(accepted).await;
        Ok(serving.finished(self.0.drain.grace).await)
    }
}

impl Shared {
    /// Waits until there may be a connection more. It is asked for after one was accepted: a worker
    /// that holds a permit while nobody connects to it would keep it from the others.
    async fn permit(&self, draining: &mut Draining) -> Option<OwnedSemaphorePermit> {
        let permits = Arc::clone(self.permits.as_ref()?);
        tokio::select! {
            biased;
            permit = permits.acquire_owned() => permit.ok(),
            // In a drain nobody comes after this one.
            () = draining.begun() => None,
        }
    }
}

/// The connections of one listener.
struct Serving<'a, M> {
    shared: &'a Arc<Shared>,
    make: M,
    /// Every open connection holds a receiver.
    open: watch::Sender<()>,
    cut_off: Arc<AtomicUsize>,
    draining: Draining,
}

impl<M, S, B> Serving<'_, M>
where
    M: Fn(&Connection) -> S,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn start(&self, stream: TcpStream, peer: SocketAddr, permit: Option<OwnedSemaphorePermit>) {
        // A socket that cannot say its own address is broken already.
        let Ok(local) = stream.local_addr() else {
            return;
        };
        // Answers are written whole; there is nothing to gain from waiting for more.
        let _ = stream.set_nodelay(true);
        let connection = Connection {
            peer,
            local,
            secure: false,
        };
        let activity = Activity::new();
        let service = Counted {
            inner: (self.make)(&connection),
            activity: Arc::clone(&activity),
            draining: self.draining.clone(),
            metrics: self.shared.metrics.clone(),
        };
        let io = ClientIo::new(stream, Arc::clone(&activity), self.open(permit));
        let driver = self.driver(activity);
        let (shared, cut_off) = (Arc::clone(self.shared), Arc::clone(&self.cut_off));
        tokio::spawn(async move {
            let io = TokioIo::new(io);
            let connection = shared.builder.serve_connection_with_upgrades(io, service);
            if driver.drive(connection).await == End::CutOff {
                cut_off.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

impl<M> Serving<'_, M> {
    fn open(&self, permit: Option<OwnedSemaphorePermit>) -> Open {
        self.shared.metrics.accepted.inc();
        Open {
            _gauge: GaugeGuard::new(&self.shared.metrics.open),
            _permit: permit,
            _held: self.open.subscribe(),
        }
    }

    fn driver(&self, activity: Arc<Activity>) -> Driver {
        Driver {
            activity,
            patience: self.shared.patience,
            drain: self.shared.drain,
            draining: self.draining.clone(),
        }
    }

    /// Waits until all connections are closed, upgraded ones included. Returns how many were cut
    /// off.
    async fn finished(self, grace: Duration) -> usize {
        // Connections keep to the grace period by themselves, except those that are no longer
        // HTTP; a moment more lets the former be the first.
        let moment = Duration::from_millis(100);
        let _ = timeout(grace + moment, self.open.closed()).await;
        self.cut_off.load(Ordering::Relaxed) + self.open.receiver_count()
    }
}

fn builder(settings: &HttpSettings) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let head = settings.max_header_bytes.max(8192);
    builder
        .http1()
        .timer(TokioTimer::new())
        // The driver's timeouts do this, and for connections that have sent nothing yet as well.
        .header_read_timeout(None)
        .max_buf_size(head)
        .max_headers(settings.max_headers);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.max_streams)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        // Finds out clients that are gone without a word.
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}
