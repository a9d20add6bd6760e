//! The connections of one worker to one server, and the streams on them.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http2::{self, Builder, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{Join, join};
use tokio::sync::{MutexGuard, Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use weir_runtime::loop_time;

use crate::stream::{ReadHalf, Stream, WriteHalf};

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::http2::connections";

/// How many requests share a connection before another one is opened, if the server allows as many.
const MAX_STREAMS: usize = 100;

/// How many streams a server allows before its SETTINGS arrive, which cannot announce this number.
const NOT_ANNOUNCED: usize = usize::MAX - 1;

/// How much of a response may be on its way to a client that does not read it, in bytes.
const STREAM_WINDOW: u32 = 128 * 1024;

/// As much for each stream of a connection, so that none of them holds up the others.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 100;

/// How long a head may be for h2, which resets the stream of a longer one without saying why, and
/// ends the connection for one that takes too many frames. A head of up to this length is read, and
/// then refused if it exceeds the bounds of all responses, which are lower.
const MAX_READ_HEAD: u32 = 1024 * 1024;

/// The connections to one server that have room, or have streams.
pub(crate) struct Connections {
    open: Mutex<Vec<Connection>>,
    /// Held while a connection is opened: requests that come meanwhile use that one.
    opening: tokio::sync::Mutex<()>,
    /// Whether requests wait for the connection that is being opened: not where the server was
    /// found to speak HTTP/1.1, or to allow a single stream.
    are_shared: AtomicBool,
    idle_timeout: Duration,
    lifetime: Option<Duration>,
}

/// What hyper sends, whatever the body of the request is.
pub(super) type UploadBody = UnsyncBoxBody<Bytes, Box<dyn StdError + Send + Sync>>;

type Driver = http2::Connection<TokioIo<Join<ReadHalf, WriteHalf>>, UploadBody, Tasks>;

#[derive(Clone)]
struct Connection {
    sender: SendRequest<UploadBody>,
    driver: Weak<Mutex<Driver>>,
    state: Arc<ConnectionState>,
}

/// Lasts as long as the last stream of the connection.
struct ConnectionState {
    streams: AtomicUsize,
    /// Whether it ever had several streams at a time.
    was_shared: AtomicBool,
    is_retired: AtomicBool,
    retires_at: Option<Instant>,
    /// Whether an upload was given up that the server takes nothing of.
    is_stuck: AtomicBool,
    last_used: Mutex<Instant>,
    tasks: Tasks,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connections {
    /// None yet. Each is closed when it was unused for `idle_timeout`, and takes no more streams
    /// after its `lifetime`.
    pub(crate) fn new(idle_timeout: Duration, lifetime: Option<Duration>) -> Self {
        Self {
            open: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            are_shared: AtomicBool::new(true),
            idle_timeout,
            lifetime,
        }
    }

    /// A stream on the first connection that has room for it, so that surplus ones become idle.
    pub(crate) fn stream(&self) -> Option<StreamPermit> {
        let mut open = self.open.lock();
        open.retain(Connection::is_usable);
        open.iter().find_map(Connection::stream)
    }

    /// Waits until no other connection is being opened, unless that one would be of no use.
    pub(crate) async fn opening(&self) -> Option<MutexGuard<'_, ()>> {
        match self.are_shared.load(Ordering::Relaxed) {
            true => Some(self.opening.lock().await),
            false => None,
        }
    }

    /// The server has chosen HTTP/1.1.
    pub(crate) fn declined(&self) {
        self.are_shared.store(false, Ordering::Relaxed);
    }

    /// Waits until the server has told how many streams it allows on the connection that was opened
    /// last. Until then it gets one request: another may be one too many, and would wait for the
    /// end of the first.
    pub(crate) async fn settle(&self) {
        let Some(last) = self.open.lock().last().cloned() else {
            return;
        };
        loop {
            let progress = last.state.tasks.progress.notified();
            let is_open = last.driver.strong_count() > 0;
            match last.max_streams() {
                NOT_ANNOUNCED if is_open => progress.await,
                allowed => return self.are_shared.store(allowed > 1, Ordering::Relaxed),
            }
        }
    }

    /// Begins to speak HTTP/2 over `stream`, and takes a stream of it.
    pub(crate) async fn add(
        self: &Arc<Self>,
        stream: Stream,
        permit: Option<OwnedSemaphorePermit>,
    ) -> io::Result<StreamPermit> {
        let (reader, writer) = stream.split();
        let tasks = Tasks::default();
        let mut builder = Builder::new(tasks.clone());
        builder
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_READ_HEAD)
            .initial_max_send_streams(NOT_ANNOUNCED);
        let (sender, driver) = builder
            .handshake(TokioIo::new(join(reader, writer)))
            .await
            .map_err(io::Error::other)?;
        let driver = Arc::new(Mutex::new(driver));
        let state = Arc::new(ConnectionState {
            streams: AtomicUsize::new(0),
            was_shared: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
            retires_at: self.lifetime.map(|lifetime| Instant::now() + lifetime),
            is_stuck: AtomicBool::new(false),
            last_used: Mutex::new(Instant::now()),
            tasks: tasks.clone(),
            _permit: permit,
        });
        let connection = Connection {
            sender,
            driver: Arc::downgrade(&driver),
            state,
        };
        tasks.execute(async move {
            let driven = poll_fn(|cx| Pin::new(&mut *driver.lock()).poll(cx)).await;
            if let Err(error) = driven {
                tracing::debug!(target: TARGET, %error, "a connection to an upstream broke");
            }
        });
        let permit = connection.stream();
        tokio::spawn(close_when_idle(
            Arc::downgrade(self),
            Arc::downgrade(&connection.state),
            self.idle_timeout,
        ));
        self.open.lock().push(connection);
        permit.ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
    }
}

/// Forgets a connection, which closes it, when it was unused for a while.
async fn close_when_idle(
    connections: Weak<Connections>,
    state: Weak<ConnectionState>,
    idle_timeout: Duration,
) {
    let mut deadline = Instant::now() + idle_timeout;
    loop {
        sleep_until(deadline).await;
        let (Some(connections), Some(state)) = (connections.upgrade(), state.upgrade()) else {
            return;
        };
        let is_idle = state.streams.load(Ordering::Relaxed) == 0;
        let since = *state.last_used.lock();
        deadline = if is_idle { since } else { Instant::now() } + idle_timeout;
        if deadline <= Instant::now() {
            state.retire();
            connections.open.lock().retain(Connection::is_usable);
            return;
        }
    }
}

impl Connection {
    fn is_usable(&self) -> bool {
        let retires_at = self.state.retires_at;
        !self.sender.is_closed()
            && !self.state.is_retired.load(Ordering::Relaxed)
            && retires_at.is_none_or(|at| loop_time::now() < at)
    }

    fn max_streams(&self) -> usize {
        let driver = self.driver.upgrade();
        driver.map_or(NOT_ANNOUNCED, |driver| {
            driver.lock().current_max_send_streams()
        })
    }

    fn stream(&self) -> Option<StreamPermit> {
        let allowed = match self.max_streams() {
            NOT_ANNOUNCED => 1,
            allowed => allowed.min(MAX_STREAMS),
        };
        let streams = &self.state.streams;
        if streams.load(Ordering::Relaxed) >= allowed {
            return None;
        }
        if streams.fetch_add(1, Ordering::Relaxed) > 0 {
            self.state.was_shared.store(true, Ordering::Relaxed);
        }
        Some(StreamPermit {
            sender: self.sender.clone(),
            slot: Arc::new(StreamSlot(Arc::clone(&self.state))),
        })
    }
}

impl ConnectionState {
    fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }
}

/// hyper closes a connection in order when nothing uses it any more. A stuck upload would use it
/// for ever.
impl Drop for ConnectionState {
    fn drop(&mut self) {
        if self.is_stuck.load(Ordering::Relaxed) {
            self.tasks.cancelled.cancel();
        }
    }
}

/// Room for a request on a connection.
pub(crate) struct StreamPermit {
    pub(super) sender: SendRequest<UploadBody>,
    pub(super) slot: Arc<StreamSlot>,
}

impl StreamPermit {
    /// Lets no other stream begin on the connection.
    pub(crate) fn keep_alone(&self) {
        self.slot.retire();
    }
}

/// Counts a stream of a connection until both its request and its response have ended.
pub(super) struct StreamSlot(Arc<ConnectionState>);

impl StreamSlot {
    /// Lets no other stream begin on the connection, as a server that keeps silent may be gone.
    pub(super) fn retire(&self) {
        self.0.retire();
    }

    /// Whether what ended the connection may have been the response to another request.
    pub(super) fn was_shared(&self) -> bool {
        self.0.was_shared.load(Ordering::Relaxed)
    }

    /// Gives up the rest of the request: the connection is closed with its other streams.
    pub(super) fn abandon_upload(&self) {
        self.retire();
        self.0.is_stuck.store(true, Ordering::Relaxed);
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        *self.0.last_used.lock() = Instant::now();
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs hyper's tasks for a connection until they are cancelled.
#[derive(Clone, Debug, Default)]
struct Tasks {
    cancelled: CancellationToken,
    /// Notified when a task was polled.
    progress: Arc<Notify>,
}

impl<F> Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let Self {
            cancelled,
            progress,
        } = self.clone();
        tokio::spawn(async move {
            {
                let mut task = pin!(task);
                let watched = poll_fn(|cx| {
                    let polled = task.as_mut().poll(cx);
                    progress.notify_waiters();
                    polled
                });
                tokio::select! {
                    () = watched => {}
                    () = cancelled.cancelled() => {}
                }
            }
            progress.notify_waiters();
        });
    }
}
