//! What a gateway's process and the world exchange: bytes of connections, and what is to be known
//! of requests, of operations and of the log.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Port>>> = const { RefCell::new(None) };
}

/// A request: the number of its client, and its own.
pub(super) type RequestId = (u64, u32);

/// A connection of one process.
pub(super) type PipeId = u64;

/// Something that a process does to the world.
#[derive(Debug)]
pub(super) enum Emission {
    /// It opens a connection.
    Dialed(PipeId, SocketAddr),
    /// It writes to a connection.
    Wrote(PipeId, Bytes),
    Closed(PipeId),
    /// The gateway serves.
    Started,
    /// The gateway cannot serve, for this reason.
    Refused(String),
    Drained,
    ReachedApp(RequestId),
    /// The head of a response.
    Answered(RequestId, u16, Vec<(String, String)>),
    /// The end of a response; false when it broke off.
    Finished(RequestId, bool),
    Operated(usize, u16, String),
    /// A line of the log: its level and its text.
    Logged(String, String),
}

/// The process's side of the world.
#[derive(Default)]
pub(super) struct Port(Mutex<PortState>);

#[derive(Default)]
struct PortState {
    emissions: Vec<Emission>,
    /// Stops the process when it does something.
    waker: Option<Waker>,
    pipes: BTreeMap<PipeId, Pipe>,
    last_pipe: PipeId,
}

/// A connection as the process has it.
#[derive(Default)]
struct Pipe {
    is_open: bool,
    received: VecDeque<Bytes>,
    end: Option<ErrorKind>,
    waker: Option<Waker>,
}

/// The port of the process that this thread runs at present.
pub(super) fn set_current(port: Option<Arc<Port>>) {
    CURRENT.set(port);
}

/// The process that this thread runs at present does something.
pub(super) fn emit(emission: Emission) {
    CURRENT.with_borrow(|port| {
        if let Some(port) = port {
            port.emit(emission);
        }
    });
}

impl Port {
    fn lock(&self) -> MutexGuard<'_, PortState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn emit(&self, emission: Emission) {
        self.lock().emit(emission);
    }

    pub(super) fn has_emissions(&self) -> bool {
        !self.lock().emissions.is_empty()
    }

    /// What the process has done since this was asked last.
    pub(super) fn take_emissions(&self) -> Vec<Emission> {
        std::mem::take(&mut self.lock().emissions)
    }

    /// How many connections the process has.
    pub(super) fn connections(&self) -> usize {
        self.lock().pipes.len()
    }

    /// Wakes by this when the process does something.
    pub(super) fn wake_by(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            state.waker = Some(waker.clone());
        }
    }

    /// Opens a connection.
    pub(super) async fn dial(self: Arc<Self>, address: SocketAddr) -> io::Result<Pipeline> {
        let pipeline = {
            let mut state = self.lock();
            state.last_pipe += 1;
            let id = state.last_pipe;
            state.pipes.insert(id, Pipe::default());
            state.emit(Emission::Dialed(id, address));
            Pipeline {
                id,
                port: Arc::clone(&self),
            }
        };
        std::future::poll_fn(|cx| {
            self.with_pipe(pipeline.id, |pipe| match pipe.end {
                Some(why) => Poll::Ready(Err(why.into())),
                None if pipe.is_open => Poll::Ready(Ok(())),
                None => pipe.wait(cx),
            })
        })
        .await?;
        Ok(pipeline)
    }

    /// The other side has accepted a connection.
    pub(super) fn accepted(&self, id: PipeId) {
        self.change(id, |pipe| pipe.is_open = true);
    }

    pub(super) fn received(&self, id: PipeId, bytes: Bytes) {
        self.change(id, |pipe| pipe.received.push_back(bytes));
    }

    /// The connection ends after what came before. [`ErrorKind::UnexpectedEof`] is an orderly end.
    pub(super) fn ended(&self, id: PipeId, why: ErrorKind) {
        self.change(id, |pipe| pipe.end = pipe.end.or(Some(why)));
    }

    fn change(&self, id: PipeId, change: impl FnOnce(&mut Pipe)) {
        let waker = self.lock().pipes.get_mut(&id).and_then(|pipe| {
            change(pipe);
            pipe.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn with_pipe<T>(
        &self,
        id: PipeId,
        act: impl FnOnce(&mut Pipe) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match self.lock().pipes.get_mut(&id) {
            Some(pipe) => act(pipe),
            None => Poll::Ready(Err(ErrorKind::NotConnected.into())),
        }
    }
}

impl PortState {
    fn emit(&mut self, emission: Emission) {
        self.emissions.push(emission);
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl Pipe {
    fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_read(&mut self, cx: &Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(bytes) = self.received.front_mut() {
            let count = bytes.len().min(into.remaining());
            into.put_slice(&bytes.split_to(count));
            if !bytes.has_remaining() {
                self.received.pop_front();
            }
            return Poll::Ready(Ok(()));
        }
        match self.end {
            None => self.wait(cx),
            Some(ErrorKind::UnexpectedEof) => Poll::Ready(Ok(())),
            Some(why) => Poll::Ready(Err(why.into())),
        }
    }
}

/// The process's end of a connection.
pub(super) struct Pipeline {
    id: PipeId,
    port: Arc<Port>,
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let mut state = self.port.lock();
        state.pipes.remove(&self.id);
        state.emit(Emission::Closed(self.id));
    }
}

impl AsyncRead for Pipeline {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.port
            .with_pipe(self.id, |pipe| pipe.poll_read(cx, into))
    }
}

impl AsyncWrite for Pipeline {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.port.with_pipe(self.id, |pipe| match pipe.end {
            Some(ErrorKind::UnexpectedEof) => Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
            Some(why) => Poll::Ready(Err(why.into())),
            None => Poll::Ready(Ok(bytes.len())),
        });
        if let Poll::Ready(Ok(_)) = written {
            let bytes = Bytes::copy_from_slice(bytes);
            self.port.emit(Emission::Wrote(self.id, bytes));
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
