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
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::replies::{Malformed, Replies, Scan};
use super::request::Request;
use super::socket::Socket;

/// How much is read at once.
const READ_BYTES: usize = 16 * 1024;

/// What comes of a request: its replies, or why the connection is of no use any more.
pub(super) type Answer = Result<Replies, Arc<RedisError>>;

/// Sends requests, and is closed when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    _driver: Arc<Driving>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the driver when there is something to write.
    driver: AtomicWaker,
}

#[derive(Default)]
struct Queue {
    unsent: Vec<u8>,
    waiting: VecDeque<Waiting>,
    over: Option<Arc<RedisError>>,
}

/// A caller who waits for replies.
struct Waiting {
    scan: Scan,
    /// The memory of the request, which takes the replies.
    memory: Vec<u8>,
    caller: oneshot::Sender<Answer>,
}

struct Driving(JoinHandle<()>);

impl Drop for Driving {
    fn drop(&mut self) {
        self.0.abort();
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
        let task = tokio::spawn(driver.run());
        Self {
            shared,
            _driver: Arc::new(Driving(task)),
        }
    }

    /// Hands a request over; what is handed over before the driver's turn is one write. It is sent
    /// even if nobody waits for the answer.
    pub(super) fn send(&self, request: Request) -> oneshot::Receiver<Answer> {
        let (caller, answer) = oneshot::channel();
        let scan = Scan::new(request.len());
        let mut memory = request.into_bytes();
        let mut queue = self.shared.queue.lock();
        if let Some(error) = &queue.over {
            let _ = caller.send(Err(Arc::clone(error)));
            return answer;
        }
        let is_first = queue.unsent.is_empty();
        queue.unsent.extend_from_slice(&memory);
        memory.clear();
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

    /// Writes and reads until the connection breaks.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.shared.driver.register(cx.waker());
        if let Poll::Ready(Err(error)) = self.poll_send(cx) {
            return Poll::Ready(error);
        }
        loop {
            if let Err(error) = ready!(self.poll_receive(cx)) {
                return Poll::Ready(error);
            }
            if let Err(Malformed) = self.answer() {
                let what = "the server sent what is no reply of Redis";
                return Poll::Ready(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.sent == self.sending.len() {
                self.sending.clear();
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
            if let Some(waiting) = queue.waiting.pop_front() {
                waiting.answer(replies);
            }
            self.consumed += end;
        }
        let is_idle = queue.waiting.is_empty();
        drop(queue);
        let is_over = self.consumed == self.received.len();
        if is_idle && !is_over {
            return Err(Malformed);
        }
        if is_over || self.consumed > READ_BYTES {
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
        for waiting in queue.waiting.drain(..) {
            let _ = waiting.caller.send(Err(Arc::clone(error)));
        }
    }
}
