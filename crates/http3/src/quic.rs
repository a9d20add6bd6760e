//! quinn's streams as h3 reads and writes them.
//!
//! h3-quinn does the same, but bounds no frame, has no time-out for a client that accepts nothing,
//! cannot tell that a client no longer wants a response, and panics when a stream is stopped while
//! it is read.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use parking_lot::Mutex;
use quinn::{ReadError, VarInt, WriteError};
use tokio::time::{Sleep, sleep};

use crate::early_data::HandshakeEnd;
use crate::frames::{EmptyData, Fault, FrameBudget, Frames};

/// How much is read at a time.
const CHUNK: usize = 64 * 1024;

type Pending<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;
type Accepting<T> = Option<Pending<T, quinn::ConnectionError>>;

/// Ready once a client wants no more of a response, or has accepted all of it.
pub(crate) type Stopped = Pending<Option<VarInt>, quinn::StoppedError>;

/// What the owner of a connection and h3 share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) connection: quinn::Connection,
    stall_timeout: Duration,
    budget: FrameBudget,
    handshake: HandshakeEnd,
    /// No further request is begun.
    is_closing: Arc<AtomicBool>,
    /// Of the request stream that was accepted last.
    last: Arc<Mutex<Option<Beside>>>,
}

/// What h3 does not tell of a request's stream.
pub(crate) struct Beside {
    pub(crate) stopped: Stopped,
    pub(crate) empty_data: EmptyData,
    /// Set if the handshake was not over when it began.
    pub(crate) early: Option<HandshakeEnd>,
}

impl Shared {
    pub(crate) fn new(
        connection: quinn::Connection,
        stall_timeout: Duration,
        budget: FrameBudget,
        handshake: HandshakeEnd,
    ) -> Self {
        Self {
            connection,
            stall_timeout,
            budget,
            handshake,
            is_closing: Arc::default(),
            last: Arc::default(),
        }
    }

    /// Rejects the requests that come from now on.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Relaxed);
    }

    pub(crate) fn take_beside(&self) -> Option<Beside> {
        self.last.lock().take()
    }

    fn sending(&self, stream: quinn::SendStream) -> Result<SendStream, ConnectionErrorIncoming> {
        Ok(SendStream {
            id: stream_id(stream.id())?,
            stream,
            writing: None,
            is_over: false,
            is_malformed: None,
            stall_timeout: self.stall_timeout,
            stalled: None,
        })
    }

    fn receiving(
        &self,
        stream: quinn::RecvStream,
        frames: Frames,
    ) -> Result<RecvStream, ConnectionErrorIncoming> {
        Ok(RecvStream {
            id: stream_id(stream.id())?,
            stream,
            frames,
            connection: self.connection.clone(),
            is_over: false,
            is_malformed: Arc::default(),
        })
    }

    /// The two halves of a request's stream.
    fn both(
        &self,
        (send, recv): (quinn::SendStream, quinn::RecvStream),
    ) -> Result<BidiStream, ConnectionErrorIncoming> {
        let frames = Frames::of_request(self.budget.clone());
        let (mut send, recv) = (self.sending(send)?, self.receiving(recv, frames)?);
        send.is_malformed = Some(Arc::clone(&recv.is_malformed));
        Ok(BidiStream { send, recv })
    }
}

/// The code as QUIC has it.
pub(crate) fn number(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

pub(crate) struct Connection {
    shared: Shared,
    requests: Accepting<(quinn::SendStream, quinn::RecvStream)>,
    others: Accepting<quinn::RecvStream>,
    opener: Opener,
}

impl Connection {
    pub(crate) fn new(shared: Shared) -> Self {
        Self {
            opener: Opener::new(shared.clone()),
            requests: None,
            others: None,
            shared,
        }
    }
}

/// Polls the future in its place, or one that is made for it.
fn poll_in_place<T, E>(
    place: &mut Option<Pending<T, E>>,
    make: impl FnOnce() -> Pending<T, E>,
    cx: &mut Context<'_>,
) -> Poll<Result<T, E>> {
    let polled = place.get_or_insert_with(make).as_mut().poll(cx);
    if polled.is_ready() {
        *place = None;
    }
    polled
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = RecvStream;
    type OpenStreams = Opener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RecvStream, ConnectionErrorIncoming>> {
        let connection = &self.shared.connection;
        let accept = || -> Pending<_, _> {
            let connection = connection.clone();
            Box::pin(async move { connection.accept_uni().await })
        };
        let stream = ready!(poll_in_place(&mut self.others, accept, cx)).map_err(lost)?;
        let frames = Frames::of_other(self.shared.budget.clone());
        Poll::Ready(self.shared.receiving(stream, frames))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream, ConnectionErrorIncoming>> {
        loop {
            let connection = &self.shared.connection;
            let accept = || -> Pending<_, _> {
                let connection = connection.clone();
                Box::pin(async move { connection.accept_bi().await })
            };
            let accepted = ready!(poll_in_place(&mut self.requests, accept, cx));
            let halves = accepted.map_err(lost)?;
            let stopped: Stopped = Box::pin(halves.0.stopped());
            // A stream that came before the connection was closed would say that it is not early.
            let is_early = self.shared.handshake.is_ahead();
            let mut stream = self.shared.both(halves)?;
            let empty_data = stream.recv.frames.empty_data();
            *self.shared.last.lock() = Some(Beside {
                stopped,
                empty_data,
                early: is_early.then(|| self.shared.handshake.clone()),
            });
            if !self.shared.is_closing.load(Relaxed) {
                return Poll::Ready(Ok(stream));
            }
            let code = Code::H3_REQUEST_REJECTED.value();
            quic::SendStream::reset(&mut stream, code);
            quic::RecvStream::stop_sending(&mut stream, code);
        }
    }

    fn opener(&self) -> Opener {
        Opener::new(self.shared.clone())
    }
}

impl quic::OpenStreams<Bytes> for Connection {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(cx)
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        self.opener.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opener.close(code, reason);
    }
}

/// Opens streams to the client.
pub(crate) struct Opener {
    shared: Shared,
    both: Accepting<(quinn::SendStream, quinn::RecvStream)>,
    one: Accepting<quinn::SendStream>,
}

impl Opener {
    fn new(shared: Shared) -> Self {
        Self {
            shared,
            both: None,
            one: None,
        }
    }
}

impl quic::OpenStreams<Bytes> for Opener {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        let connection = &self.shared.connection;
        let open = || -> Pending<_, _> {
            let connection = connection.clone();
            Box::pin(async move { connection.open_bi().await })
        };
        let halves = ready!(poll_in_place(&mut self.both, open, cx)).map_err(lost_stream)?;
        Poll::Ready(self.shared.both(halves).map_err(stream_error))
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        let connection = &self.shared.connection;
        let open = || -> Pending<_, _> {
            let connection = connection.clone();
            Box::pin(async move { connection.open_uni().await })
        };
        let stream = ready!(poll_in_place(&mut self.one, open, cx)).map_err(lost_stream)?;
        Poll::Ready(self.shared.sending(stream).map_err(stream_error))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.shared.connection.close(number(code.value()), reason);
    }
}

/// A stream of a request.
pub(crate) struct BidiStream {
    send: SendStream,
    recv: RecvStream,
}

impl quic::BidiStream<Bytes> for BidiStream {
    type SendStream = SendStream;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream, RecvStream) {
        (self.send, self.recv)
    }
}

impl quic::RecvStream for BidiStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.recv.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.recv.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}

impl quic::SendStream<Bytes> for BidiStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, code: u64) {
        self.send.reset(code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

pub(crate) struct RecvStream {
    id: StreamId,
    stream: quinn::RecvStream,
    frames: Frames,
    connection: quinn::Connection,
    is_over: bool,
    /// Known to the other direction too, if there is one.
    is_malformed: Arc<AtomicBool>,
}

impl RecvStream {
    /// Ends the connection.
    fn fail(&mut self, code: Code, why: &'static str) -> StreamErrorIncoming {
        self.connection.close(number(code.value()), why.as_bytes());
        lost_stream(quinn::ConnectionError::LocallyClosed)
    }

    /// Ends the stream alone, in both directions.
    fn refuse(&mut self) -> StreamErrorIncoming {
        let error_code = Code::H3_MESSAGE_ERROR.value();
        self.is_malformed.store(true, Relaxed);
        quic::RecvStream::stop_sending(self, error_code);
        StreamErrorIncoming::StreamTerminated { error_code }
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        // The waker is kept by the connection, and so the future need not last.
        let chunk = ready!(pin!(self.stream.read_chunk(CHUNK, true)).poll(cx));
        Poll::Ready(match chunk {
            Ok(Some(chunk)) => match self.frames.follow(&chunk.bytes) {
                Ok(()) => Ok(Some(chunk.bytes)),
                Err(Fault::Connection(code)) => Err(self.fail(code, "a frame that may not come")),
                Err(Fault::Request) => Err(self.refuse()),
            },
            Ok(None) if self.frames.is_cut() => {
                let why = "a stream ends within a frame";
                Err(self.fail(Code::H3_FRAME_ERROR, why))
            }
            Ok(None) => {
                self.is_over = true;
                Ok(None)
            }
            Err(error) => {
                self.is_over = true;
                Err(match error {
                    ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated {
                        error_code: code.into_inner(),
                    },
                    ReadError::ConnectionLost(error) => lost_stream(error),
                    error => StreamErrorIncoming::Unknown(Box::new(error)),
                })
            }
        })
    }

    fn stop_sending(&mut self, code: u64) {
        self.is_over = true;
        // An error says that it is over.
        let _ = self.stream.stop(number(code));
    }

    fn recv_id(&self) -> StreamId {
        self.id
    }
}

impl Drop for RecvStream {
    /// A client that still sends is told that the rest is not needed (RFC 9114, section 4.1).
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.stream.stop(number(Code::H3_NO_ERROR.value()));
        }
    }
}

pub(crate) struct SendStream {
    id: StreamId,
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Bytes>>,
    is_over: bool,
    /// Whether the other direction is malformed.
    is_malformed: Option<Arc<AtomicBool>>,
    stall_timeout: Duration,
    /// Set while the client accepts nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl SendStream {
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<StreamErrorIncoming> {
        let timeout = self.stall_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(stalled.as_mut().poll(cx));
        let late = io::Error::new(ErrorKind::TimedOut, "the client accepts no more");
        Poll::Ready(StreamErrorIncoming::Unknown(Box::new(late)))
    }
}

impl quic::SendStream<Bytes> for SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(data) = self.writing.as_mut().filter(Buf::has_remaining) {
            match Pin::new(&mut self.stream).poll_write(cx, data.chunk()) {
                Poll::Ready(Ok(written)) => {
                    data.advance(written);
                    self.stalled = None;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(not_written(error))),
                Poll::Pending => return self.poll_stalled(cx).map(Err),
            }
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.is_over = true;
        let finished = self.stream.finish();
        Poll::Ready(finished.map_err(|error| StreamErrorIncoming::Unknown(Box::new(error))))
    }

    fn reset(&mut self, code: u64) {
        self.is_over = true;
        let _ = self.stream.reset(number(code));
    }

    fn send_id(&self) -> StreamId {
        self.id
    }
}

impl Drop for SendStream {
    /// quinn would end it in order, as if the response were complete.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut malformed = self.is_malformed.iter();
        let code = match malformed.any(|malformed| malformed.load(Relaxed)) {
            true => Code::H3_MESSAGE_ERROR,
            false => Code::H3_REQUEST_CANCELLED,
        };
        let _ = self.stream.reset(number(code.value()));
    }
}

fn stream_id(id: quinn::StreamId) -> Result<StreamId, ConnectionErrorIncoming> {
    let id = StreamId::try_from(VarInt::from(id).into_inner());
    id.map_err(|error| ConnectionErrorIncoming::InternalError(error.to_string()))
}

fn stream_error(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

fn not_written(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into_inner(),
        },
        WriteError::ConnectionLost(error) => lost_stream(error),
        error => StreamErrorIncoming::Unknown(Box::new(error)),
    }
}

fn lost_stream(error: quinn::ConnectionError) -> StreamErrorIncoming {
    stream_error(lost(error))
}

fn lost(error: quinn::ConnectionError) -> ConnectionErrorIncoming {
    match error {
        quinn::ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose {
                error_code: close.error_code.into_inner(),
            }
        }
        quinn::ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        error => ConnectionErrorIncoming::Undefined(Arc::new(error)),
    }
}
