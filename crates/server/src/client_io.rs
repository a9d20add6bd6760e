//! A client's socket: it records what arrives and whether writes are blocked, and it closes without
//! losing the last response.
//!
//! Closing a socket with unread bytes makes the kernel send a reset, on which a client may discard
//! the response that is on its way. This happens whenever a response precedes the end of the
//! request, such as a 429 for an upload. So, once the response is sent, only the write half is shut
//! down, and what still arrives is read and discarded for a while (lingering close, RFC 9112,
//! section 9.6).

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use weir_runtime::loop_time;

use super::connection_state::ConnectionState;
use super::framing::FramingScanner;
use super::http2_frames::{FrameError, FrameScanner};

/// How long a client may take to notice that the write half is shut down.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// How many bytes are read ahead at most: as many as hyper reads first.
const READ_AHEAD: usize = 8192;

/// What arrives shares memory of this size with what has arrived before on the same thread. It is
/// used again once none of that is left: a request in flight keeps this much from being used.
const SHARED_MEMORY: usize = 2048;

/// What is larger gets memory of its own.
const MAX_SHARED: usize = SHARED_MEMORY / 2;

/// How many bytes one read returns at most. A body is forwarded to the upstream in such pieces.
/// Longer ones leave the processor's cache before they are sent, and network stacks split slightly
/// larger writes into two unequal parts: segments of a loopback device are a little under 64 KiB.
pub(super) const MAX_READ: u64 = 32 * 1024;

/// A client's socket. `G` is held while it is open, whatever the protocol.
pub(super) struct ClientIo<IO, G> {
    io: IO,
    /// Bytes that were read ahead; the next reads return them.
    read_ahead: Bytes,
    state: Arc<ConnectionState>,
    /// Set once hyper has got bytes of HTTP/1.1.
    scanner: Option<Box<FramingScanner>>,
    /// Set while the client speaks HTTP/2.
    frames: Option<Box<FrameScanner>>,
    closing: Closing,
    /// Set while the client accepts no bytes.
    stalled: Option<Pin<Box<Sleep>>>,
    _guard: G,
}

/// A copy of what has arrived. Most requests are small, and to allocate for each of them takes
/// twice the instructions.
pub(super) fn kept(arrived: &[u8]) -> Bytes {
    thread_local! {
        static SHARED: RefCell<BytesMut> = RefCell::new(BytesMut::with_capacity(SHARED_MEMORY));
    }
    if arrived.len() > MAX_SHARED {
        return Bytes::copy_from_slice(arrived);
    }
    SHARED.with_borrow_mut(|shared| {
        shared.extend_from_slice(arrived);
        shared.split().freeze()
    })
}

enum Closing {
    Open,
    /// The write half is shut down; the read half is drained until then.
    Lingering(Pin<Box<Sleep>>),
    Done,
}

impl Closing {
    fn is_over(&self) -> bool {
        match self {
            Self::Open => false,
            Self::Lingering(until) => until.is_elapsed(),
            Self::Done => true,
        }
    }
}

impl<IO: AsyncRead, G> ClientIo<IO, G> {
    pub(super) fn new(io: IO, state: Arc<ConnectionState>, guard: G) -> Self {
        Self {
            io,
            read_ahead: Bytes::new(),
            state,
            scanner: None,
            frames: None,
            closing: Closing::Open,
            stalled: None,
            _guard: guard,
        }
    }

    /// The bytes that were read ahead.
    pub(super) fn read_ahead(&self) -> &[u8] {
        &self.read_ahead
    }

    /// Puts back bytes of the next request.
    pub(super) fn put_back(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.state.received();
            self.read_ahead = bytes;
        }
    }

    pub(super) fn take_read_ahead(&mut self) -> Bytes {
        mem::take(&mut self.read_ahead)
    }

    /// Puts back bytes that no scanner has seen, as hyper gets them.
    pub(super) fn put_back_for_hyper(&mut self, bytes: Bytes) {
        self.scan(&bytes);
        self.put_back(bytes);
    }

    /// The client speaks HTTP/2, from the bytes on that were read ahead.
    pub(super) fn begin_http2(&mut self) {
        self.state.set_multiplexed();
        self.frames = Some(Box::default());
    }

    fn received(&mut self, bytes: &[u8]) {
        self.state.received();
        self.scan(bytes);
    }

    fn scan(&mut self, bytes: &[u8]) {
        if self.state.is_http1() {
            let scanner = self.scanner.get_or_insert_default();
            if scanner.scan(bytes) {
                self.state.suspect();
            }
        }
    }

    /// Fails the connection of a client that has accepted nothing for too long.
    fn with_stall_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        taken: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if taken.is_ready() {
            if self.stalled.take().is_some() {
                self.state.set_write_blocked(false);
            }
            return taken;
        }
        self.state.set_write_blocked(true);
        let timeout = self.state.bounds.stall_timeout;
        let end = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(end.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<IO: AsyncRead + Unpin, G> ClientIo<IO, G> {
    /// Reads ahead. Returns false when the client has closed.
    pub(super) fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let arrived = ready!(self.poll_read_some(cx))?;
        let is_open = !arrived.is_empty();
        if self.read_ahead.is_empty() {
            self.put_back(arrived);
        } else if is_open {
            self.put_back([&*self.read_ahead, &*arrived].concat().into());
        }
        Poll::Ready(Ok(is_open))
    }

    /// Reads what is there; nothing when the client has closed. No scanner sees it.
    pub(super) fn poll_read_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let mut arrived = [MaybeUninit::uninit(); READ_AHEAD];
        let mut arrived = ReadBuf::uninit(&mut arrived);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut arrived))?;
        Poll::Ready(Ok(kept(arrived.filled())))
    }

    /// Reads and discards until the client closes.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scrap = [0; 4096];
        loop {
            let mut scrap = ReadBuf::new(&mut scrap);
            // A connection that breaks now has nothing left to lose.
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut scrap));
            if read.is_err() || scrap.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin, G> ClientIo<IO, G> {
    /// Tells the client why its connection is closed, unless a frame is half sent: hyper flushes
    /// whole frames.
    fn go_away(&mut self, cx: &mut Context<'_>, error: FrameError) {
        if let Some(frames) = self.frames.take()
            && self.stalled.is_none()
        {
            // A client that does not take even this is disconnected without it.
            let frame = frames.go_away(error);
            let _ = Pin::new(&mut self.io).poll_write(cx, &frame);
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin, G: Unpin> AsyncRead for ClientIo<IO, G> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(frames) = &mut self.frames
            && frames.is_full(loop_time::poll_number())
        {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if self.read_ahead.is_empty() {
            // Otherwise a tunnel whose upstream has closed would wait for a client that never
            // closes.
            if self.closing.is_over() {
                return Poll::Ready(Ok(()));
            }
            let mut some = (&mut self.io).take(MAX_READ);
            ready!(Pin::new(&mut some).poll_read(cx, buffer))?;
            let arrived = buffer.filled().get(before..).unwrap_or_default();
            if !arrived.is_empty() {
                self.received(arrived);
            }
        } else {
            let some = self.read_ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.read_ahead.split_to(some));
        }
        if let Some(frames) = &mut self.frames {
            let arrived = buffer.filled().get(before..).unwrap_or_default();
            if let Err(error) = frames.scan(arrived) {
                // To hyper, the client has closed.
                buffer.set_filled(before);
                self.go_away(cx, error);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin, G: Unpin> AsyncWrite for ClientIo<IO, G> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.with_stall_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.with_stall_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.with_stall_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Closing::Open = self.closing {
            // TLS sends a close_notify, which a client may not accept either.
            let shut = Pin::new(&mut self.io).poll_shutdown(cx);
            ready!(self.with_stall_timeout(cx, shut))?;
            self.state.set_write_blocked(true);
            self.closing = Closing::Lingering(Box::pin(sleep(LINGER)));
        }
        if self.poll_discard(cx).is_pending()
            && let Closing::Lingering(until) = &mut self.closing
        {
            ready!(until.as_mut().poll(cx));
        }
        self.closing = Closing::Done;
        Poll::Ready(Ok(()))
    }
}
