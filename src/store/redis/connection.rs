//! One connection that many callers share: what they ask in a turn of the event loop goes out in one
//! write, and replies come back in the order of the questions.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use redis::RedisError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::replies::{LONGEST, Malformed, Replies, Scan};
use super::request::Request;
use super::socket::Socket;

/// How much is read at once.
const READ_BYTES: usize = 16 * 1024;

/// How much memory requests may take up that wait for their replies, and as much again for what is not
/// yet sent of them. A server that is so far behind is as good as gone.
const MOST_WAITING_BYTES: usize = 32 * 1024 * 1024;

/// How much memory is kept for writes, when there once were more of them.
const KEPT_BYTES: usize = 1024 * 1024;

/// What comes of a request: its replies, or why the connection is of no use any more.
pub(super) type Answer = Result<Replies, Arc<RedisError>>;

/// Sends requests, and is closed when it is dropped.
pub(super) struct Connection {
    shared: Arc<Shared>,
    driver: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the driver when there is something to write.
    driver: AtomicWaker,
    /// Nothing can be sent any more.
    ended: Notify,
}

#[derive(Default)]
struct Queue {
    unsent: Vec<u8>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    over: Option<Arc<RedisError>>,
}

/// A caller who waits for replies.
struct Waiting {
    scan: Scan,
    /// The memory of the request, which takes the replies.
    memory: Vec<u8>,
    caller: oneshot::Sender<Answer>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Drives the socket in a task of its own, which needs a tokio runtime.
    pub(super) fn over(socket: Socket) -> Self {
        let shared = Arc::<Shared>::default();
        let driver = Driver {
            socket,
            shared: Arc::clone(&shared),
            sending: Vec::new(),
            sent: 0,
            memory: vec![0; READ_BYTES].into(),
            received: Vec::new(),
            consumed: 0,
        };
        Self {
            shared,
            driver: tokio::spawn(driver.run()),
        }
    }

    /// Gives up on all replies that have not come, for this reason.
    pub(super) fn close(&self, error: &Arc<RedisError>) {
        self.shared.end(error);
        self.driver.abort();
    }

    /// Waits until the connection breaks, and tells why.
    pub(super) async fn ended(&self) -> Arc<RedisError> {
        loop {
            let ended = self.shared.ended.notified();
            let over = self.shared.queue.lock().over.clone();
            match over {
                Some(error) => return error,
                None => ended.await,
            }
        }
    }

    /// Hands a request over; what is handed over before the driver's turn is one write. It is sent
    /// even if nobody waits for the answer.
    pub(super) fn send(&self, request: Request) -> oneshot::Receiver<Answer> {
        let (caller, answer) = oneshot::channel();
        let scan = Scan::new(request.len());
        let mut memory = request.into_bytes();
        let mut queue = self.shared.queue.lock();
        if let Some(error) = queue.refusal() {
            let _ = caller.send(Err(error));
            return answer;
        }
        let is_first = queue.unsent.is_empty();
        queue.unsent.extend_from_slice(&memory);
        memory.clear();
        queue.waiting_bytes += memory.capacity();
        queue.waiting.push_back(Waiting {
            scan,
            memory,
            caller,
        });
        drop(queue);
        if is_first {
            self.shared.driver.wake();
        }
        answer
    }
}

impl Queue {
    /// Why nothing can be sent any more.
    fn refusal(&self) -> Option<Arc<RedisError>> {
        if self.waiting_bytes <= MOST_WAITING_BYTES {
            return self.over.clone();
        }
        let what = "too many requests wait for a server that does not answer";
        Some(Arc::new(
            io::Error::new(io::ErrorKind::TimedOut, what).into(),
        ))
    }

    /// The next who waits has got these replies.
    fn answer_next(&mut self, replies: &[u8]) {
        if let Some(waiting) = self.waiting.pop_front() {
            self.waiting_bytes -= waiting.memory.capacity();
            waiting.answer(replies);
        }
    }
}

struct Driver {
    socket: Socket,
    shared: Arc<Shared>,
    sending: Vec<u8>,
    sent: usize,
    /// What the socket reads into.
    memory: Box<[u8]>,
    received: Vec<u8>,
    /// How much of what was received is answered already.
    consumed: usize,
}

impl Driver {
    async fn run(mut self) {
        let error = poll_fn(|cx| self.poll(cx)).await;
        self.shared.end(&Arc::new(error.into()));
    }

    /// Writes and reads until the connection breaks. What came before it broke is an answer still.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.shared.driver.register(cx.waker());
        let sending = self.poll_send(cx);
        if let Poll::Ready(error) = self.poll_answers(cx) {
            return Poll::Ready(error);
        }
        match sending {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            if let Err(error) = ready!(self.poll_receive(cx)) {
                return Poll::Ready(error);
            }
            if let Err(Malformed) = self.answer() {
                let what = "the server sent what is no reply to what was asked";
                return Poll::Ready(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.sent == self.sending.len() {
                self.sending.clear();
                self.sending.shrink_to(KEPT_BYTES);
                self.sent = 0;
                std::mem::swap(&mut self.sending, &mut self.shared.queue.lock().unsent);
            }
            let Some(rest @ [_, ..]) = self.sending.get(self.sent..) else {
                return Pin::new(&mut self.socket).poll_flush(cx);
            };
            match ready!(Pin::new(&mut self.socket).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = ReadBuf::new(&mut self.memory);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.received.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }

    /// Gives those their replies whose replies have come.
    fn answer(&mut self) -> Result<(), Malformed> {
        let mut queue = self.shared.queue.lock();
        while let Some(first) = queue.waiting.front_mut() {
            let rest = self.received.get(self.consumed..).unwrap_or_default();
            let Some(end) = first.scan.go_on(rest)? else {
                break;
            };
            let replies = rest.get(..end).unwrap_or_default();
            queue.answer_next(replies);
            self.consumed += end;
        }
        let is_idle = queue.waiting.is_empty();
        drop(queue);
        let unanswered = self.received.len() - self.consumed;
        if unanswered > LONGEST || (is_idle && unanswered > 0) {
            return Err(Malformed);
        }
        if unanswered == 0 || self.consumed > READ_BYTES {
            self.received.drain(..self.consumed);
            self.consumed = 0;
        }
        Ok(())
    }
}

impl Waiting {
    fn answer(mut self, replies: &[u8]) {
        self.memory.extend_from_slice(replies);
        // The caller may not wait any more.
        let _ = self.caller.send(Ok(Replies::new(self.memory)));
    }
}

impl Shared {
    fn end(&self, error: &Arc<RedisError>) {
        let mut queue = self.queue.lock();
        queue.over = Some(Arc::clone(error));
        queue.waiting_bytes = 0;
        for waiting in queue.waiting.drain(..) {
            let _ = waiting.caller.send(Err(Arc::clone(error)));
        }
        drop(queue);
        self.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
