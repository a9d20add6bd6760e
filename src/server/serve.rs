//! Serving HTTP/1.1 and HTTP/2 on one listener, from the first connection to the end of the drain.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::service::Service;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use super::accept::Acceptor;
use super::activity::{Activity, Patience};
use super::body::RequestBody;
use super::connection::{Driver, End};
use super::conversation::{Conversation, Protocols};
use super::drain::{DrainSettings, Draining};
use super::io::ClientIo;
use super::service::Counted;
use super::settings::HttpSettings;
use crate::telemetry::{GaugeGuard, ServerMetrics};

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
    protocols: Arc<Protocols>,
    patience: Patience,
    stall_timeout: Duration,
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
            protocols: Arc::new(settings.protocols()),
            patience: settings.patience(),
            stall_timeout: settings.stall_timeout,
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
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
        S: Send + 'static,
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
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S: Send + 'static,
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
            drain: self.draining.flag(),
            metrics: self.shared.metrics.clone(),
            stall_timeout: self.shared.stall_timeout,
        };
        let stall_timeout = self.shared.stall_timeout;
        let io = ClientIo::new(
            stream,
            Arc::clone(&activity),
            stall_timeout,
            self.open(permit),
        );
        let protocols = Arc::clone(&self.shared.protocols);
        let mut connection = Conversation::new(io, service, Arc::clone(&activity), protocols);
        let (mut driver, cut_off) = (self.driver(activity), Arc::clone(&self.cut_off));
        tokio::spawn(async move {
            if driver.drive(&mut connection).await == End::CutOff {
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
