//! One connection that many callers share: requests that are queued within one poll are written
//! together, and replies arrive in the order of the requests.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use redis::RedisError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::dialer::Socket;
use super::resp::{MAX_REPLY_BYTES, Malformed, Replies, Request, Scan};

const READ_BYTES: usize = 16 * 1024;

/// How much memory requests may take up that wait for their replies, and as much again for what is
/// not yet sent of them. A server that is so far behind is as good as gone.
const MAX_WAITING_BYTES: usize = 32 * 1024 * 1024;

/// How much of that a connection may take up: all of it, or its part where there are several.
#[derive(Clone)]
pub(super) struct MemoryShare(Arc<AtomicUsize>);

impl Default for MemoryShare {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(MAX_WAITING_BYTES)))
    }
}

impl MemoryShare {
    /// Divides the memory by this number of connections from now on.
    pub(super) fn divide(&self, connections: usize) {
        let share = MAX_WAITING_BYTES / connections.max(1);
        self.0.store(share, Ordering::Relaxed);
    }

    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The capacity for writes that is kept after a burst.
const KEPT_BYTES: usize = 1024 * 1024;

/// The replies to a request, or why the connection is no longer usable.
pub(super) type RequestResult = Result<Replies, Arc<RedisError>>;

/// Sends requests, and is closed when it is dropped.
pub(super) struct Connection {
    shared: Arc<SharedState>,
    driver: JoinHandle<()>,
}

#[derive(Default)]
struct SharedState {
    memory: MemoryShare,
    queue: Mutex<Queue>,
    /// Wakes the driver when there is something to write.
    driver: AtomicWaker,
    ended: Notify,
}

#[derive(Default)]
struct Queue {
    unsent: Vec<u8>,
    waiting: VecDeque<PendingRequest>,
    waiting_bytes: usize,
    over: Option<Arc<RedisError>>,
}

struct PendingRequest {
    scan: Scan,
    /// The memory of the request, which takes the replies.
    memory: Vec<u8>,
    caller: oneshot::Sender<RequestResult>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Drives the socket in a task of its own, which needs a tokio runtime.
    pub(super) fn new(socket: Socket, memory: MemoryShare) -> Self {
        let shared = Arc::new(SharedState {
            memory,
            ..SharedState::default()
        });
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

    /// Fails all requests without a reply, for this reason.
    pub(super) fn close(&self, error: &Arc<RedisError>) {
        self.shared.end(error);
        self.driver.abort();
    }

    /// Whether the connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.shared.queue.lock().over.is_some()
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
    /// even if no caller waits for the answer.
    pub(super) fn send(&self, request: Request) -> oneshot::Receiver<RequestResult> {
        let (caller, answer) = oneshot::channel();
        let scan = Scan::new(request.len());
        let mut memory = request.into_bytes();
        let mut queue = self.shared.queue.lock();
        if let Some(error) = queue.refusal(self.shared.memory.bytes()) {
            let _ = caller.send(Err(error));
            return answer;
        }
        let is_first = queue.unsent.is_empty();
        queue.unsent.extend_from_slice(&memory);
        memory.clear();
        queue.waiting_bytes += memory.capacity();
        queue.waiting.push_back(PendingRequest {
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

    pub(super) async fn call(&self, request: Request) -> RequestResult {
        let answer = self.send(request).await;
        // Cannot happen while the connection is borrowed: whatever ends it answers all that wait.
        answer.unwrap_or_else(|_| {
            let what = "the runtime is ending";
            Err(Arc::new(io::Error::other(what).into()))
        })
    }
}

impl Queue {
    /// Why a request is refused.
    fn refusal(&self, most_bytes: usize) -> Option<Arc<RedisError>> {
        if self.waiting_bytes <= most_bytes {
            return self.over.clone();
        }
        let what = "too many requests wait for a server that does not answer";
        Some(Arc::new(
            io::Error::new(io::ErrorKind::TimedOut, what).into(),
        ))
    }

    fn answer_next(&mut self, replies: &[u8]) {
        if let Some(waiting) = self.waiting.pop_front() {
            self.waiting_bytes -= waiting.memory.capacity();
            waiting.answer(replies);
        }
    }
}

struct Driver {
    socket: Socket,
    shared: Arc<SharedState>,
    sending: Vec<u8>,
    sent: usize,
    memory: Box<[u8]>,
    received: Vec<u8>,
    /// The part of `received` that has gone to callers.
    consumed: usize,
}

impl Driver {
    async fn run(mut self) {
        let error = poll_fn(|cx| self.poll(cx)).await;
        self.shared.end(&Arc::new(error.into()));
    }

    /// Writes and reads until the connection breaks. Replies that came before still go to callers.
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
                let what = "the server sent a reply that does not fit the request";
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

    /// Hands complete replies to their callers.
    fn answer(&mut self) -> Result<(), Malformed> {
        let mut queue = self.shared.queue.lock();
        while let Some(first) = queue.waiting.front_mut() {
            let rest = self.received.get(self.consumed..).unwrap_or_default();
            let Some(end) = first.scan.advance(rest)? else {
                break;
            };
            let replies = rest.get(..end).unwrap_or_default();
            queue.answer_next(replies);
            self.consumed += end;
        }
        let is_idle = queue.waiting.is_empty();
        drop(queue);
        let unanswered = self.received.len() - self.consumed;
        if unanswered > MAX_REPLY_BYTES || (is_idle && unanswered > 0) {
            return Err(Malformed);
        }
        if unanswered == 0 || self.consumed > READ_BYTES {
            self.received.drain(..self.consumed);
            self.consumed = 0;
        }
        Ok(())
    }
}

impl PendingRequest {
    fn answer(mut self, replies: &[u8]) {
        self.memory.extend_from_slice(replies);
        // The caller may not wait any more.
        let _ = self.caller.send(Ok(Replies::new(self.memory)));
    }
}

impl SharedState {
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
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::time::timeout;

    use super::super::gcra;
    use super::*;

    /// A connection, and the server's end of it, with `room` for bytes in each direction.
    fn connected(room: usize) -> (Connection, DuplexStream) {
        let (socket, server) = tokio::io::duplex(room);
        (
            Connection::new(Box::new(socket), MemoryShare::default()),
            server,
        )
    }

    const QUESTION: &[u8] = b"*1\r\n$4\r\nTIME\r\n";

    fn question() -> Request {
        let mut request = Request::default();
        gcra::time(&mut request);
        request
    }

    /// The only reply, a number.
    async fn number(answer: oneshot::Receiver<RequestResult>) -> Option<i64> {
        answer.await.unwrap().unwrap().iter().int()
    }

    async fn failure(answer: oneshot::Receiver<RequestResult>) -> String {
        answer.await.unwrap().unwrap_err().to_string()
    }

    const NO_REPLY: &str = "the server sent a reply that does not fit the request";

    async fn expect(server: &mut DuplexStream, requests: usize) {
        let mut bytes = vec![0; requests * QUESTION.len()];
        server.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, QUESTION.repeat(requests));
    }

    #[tokio::test]
    async fn callers_get_their_replies_in_turn_however_the_bytes_come() {
        for room in [1, 2, 3, 7, 1024] {
            let (connection, mut server) = connected(room);
            let answers: Vec<_> = (0..20).map(|_| connection.send(question())).collect();
            let serve = async {
                expect(&mut server, 20).await;
                for reply in 0..20 {
                    let text = format!(":{reply}\r\n");
                    server.write_all(text.as_bytes()).await.unwrap();
                }
            };
            let (numbers, ()) = tokio::join!(
                futures_util::future::join_all(answers.into_iter().map(number)),
                serve
            );
            assert_eq!(numbers, (0..20).map(Some).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn a_caller_that_is_gone_leaves_the_replies_of_others_in_step() {
        let (connection, mut server) = connected(1024);
        drop(connection.send(question()));
        let second = connection.send(question());
        expect(&mut server, 2).await;
        let third = connection.send(question());
        drop(second);
        server.write_all(b":1\r\n:2\r\n:3\r\n").await.unwrap();
        assert_eq!(number(third).await, Some(3));
    }

    #[tokio::test]
    async fn a_server_that_goes_in_the_middle_of_a_request_fails_all_who_wait_and_all_who_come() {
        let (connection, mut server) = connected(QUESTION.len() + 3);
        let answers = [connection.send(question()), connection.send(question())];
        expect(&mut server, 1).await;
        drop(server);
        for answer in answers {
            assert!(failure(answer).await.contains("end of file"));
        }
        let late = failure(connection.send(question())).await;
        assert!(late.contains("end of file"), "{late}");
    }

    #[tokio::test]
    async fn what_was_answered_before_the_connection_broke_is_an_answer() {
        let (connection, mut server) = connected(1024);
        let answered = connection.send(question());
        expect(&mut server, 1).await;
        server.write_all(b":1\r\n").await.unwrap();
        drop(server);
        // Its write fails in the same turn in which the reply above is there to be read.
        let lost = connection.send(question());
        assert_eq!(number(answered).await, Some(1));
        failure(lost).await;
    }

    #[tokio::test]
    async fn a_server_that_reads_no_more_is_listened_to_all_the_same() {
        let (connection, mut server) = connected(QUESTION.len());
        let first = connection.send(question());
        expect(&mut server, 1).await;
        let second = connection.send(question());
        let third = connection.send(question());
        tokio::task::yield_now().await;
        server.write_all(b":1\r\n").await.unwrap();
        assert_eq!(number(first).await, Some(1));
        expect(&mut server, 2).await;
        server.write_all(b":2\r\n:3\r\n").await.unwrap();
        assert_eq!(number(second).await, Some(2));
        assert_eq!(number(third).await, Some(3));
    }

    #[tokio::test]
    async fn what_is_no_reply_ends_the_connection() {
        for garbage in [
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            ">2\r\n+invalidate\r\n*0\r\n:1\r\n",
            "|1\r\n+key\r\n:1\r\n:1\r\n",
            "$2000000\r\n",
            "*2000000\r\n",
            "*one\r\n",
            ":1\r\n:2\r\n",
        ] {
            let (connection, mut server) = connected(1024);
            let answer = connection.send(question());
            expect(&mut server, 1).await;
            server.write_all(garbage.as_bytes()).await.unwrap();
            // The first of two replies is an answer, and then nothing more is believed.
            let first = answer.await.unwrap();
            assert_eq!(first.is_ok(), garbage.starts_with(':'), "{garbage}");
            let late = failure(connection.send(question())).await;
            assert!(late.contains(NO_REPLY), "{garbage} {late}");
        }
    }

    #[tokio::test]
    async fn a_reply_without_end_ends_the_connection() {
        for beginning in ["+", "*1000000\r\n$1000000\r\n"] {
            let (connection, mut server) = connected(64 * 1024);
            let answer = connection.send(question());
            expect(&mut server, 1).await;
            server.write_all(beginning.as_bytes()).await.unwrap();
            let flood = async { while server.write_all(&[b'x'; 4096]).await.is_ok() {} };
            let (why, ()) = tokio::join!(failure(answer), flood);
            assert!(why.contains(NO_REPLY), "{beginning} {why}");
        }
    }

    #[tokio::test]
    async fn requests_to_a_server_that_does_not_answer_are_refused_before_they_fill_the_memory() {
        let (connection, mut server) = connected(1024);
        let roomy = || {
            let mut request = Request::roomy();
            gcra::time(&mut request);
            request
        };
        let mut answers = Vec::new();
        let refused = loop {
            let mut answer = connection.send(roomy());
            if let Some(early) = (&mut answer).now_or_never() {
                break early.unwrap().unwrap_err();
            }
            answers.push(answer);
        };
        assert!(refused.to_string().contains("too many"), "{refused}");
        assert!((16_000..=33_000).contains(&answers.len()));
        // Those that wait already are still answered, and then there is room again.
        let count = answers.len();
        let serve = async {
            let mut bytes = vec![0; QUESTION.len()];
            for _ in 0..count {
                server.read_exact(&mut bytes).await.unwrap();
                server.write_all(b":7\r\n").await.unwrap();
            }
        };
        let (numbers, ()) = tokio::join!(
            futures_util::future::join_all(answers.into_iter().map(number)),
            serve
        );
        assert!(numbers.iter().all(|number| *number == Some(7)));
        let again = connection.send(question());
        expect(&mut server, 1).await;
        server.write_all(b":8\r\n").await.unwrap();
        assert_eq!(number(again).await, Some(8));
    }

    #[tokio::test]
    async fn a_connection_that_is_closed_fails_all_and_closes_the_socket() {
        let (connection, mut server) = connected(1024);
        let answer = connection.send(question());
        expect(&mut server, 1).await;
        connection.close(&Arc::new(io::Error::other("enough").into()));
        for answer in [answer, connection.send(question())] {
            assert!(failure(answer).await.contains("enough"));
        }
        let end = timeout(Duration::from_secs(20), server.read(&mut [0])).await;
        assert_eq!(end.unwrap().unwrap(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_is_dropped_closes_the_socket() {
        let (connection, mut server) = connected(1024);
        drop(connection);
        let end = timeout(Duration::from_secs(20), server.read(&mut [0])).await;
        assert_eq!(end.unwrap().unwrap(), 0);
    }
}
