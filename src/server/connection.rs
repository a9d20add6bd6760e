//! One connection from its first byte to its last: served, timed out, or drained.
//!
//! hyper's `graceful_shutdown` closes an HTTP/1 connection that has no request at once, even when a
//! request is in the socket's buffer already, and one that has just been accepted too. So it is
//! never asked to before the connection has been quiet for a while and its socket was looked at
//! once more. What has a request in the meantime is told to close by the answer's own field.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use hyper_util::server::graceful::GracefulConnection;
use tokio::task::yield_now;
use tokio::time::{sleep, sleep_until, timeout};

use super::activity::{Activity, Patience, Verdict};
use super::drain::{DrainSettings, Draining};

/// Drives a connection.
pub(super) struct Driver {
    pub(super) activity: Arc<Activity>,
    pub(super) patience: Patience,
    pub(super) drain: DrainSettings,
    pub(super) draining: Draining,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Closed by either side, or broken.
    Closed,
    /// Still busy at the end of the drain's grace period.
    CutOff,
}

/// What [`Driver::watch`] saw.
enum Seen {
    Closed,
    Drain,
    Overdue(Verdict),
}

impl Driver {
    /// Serves the connection until it ends.
    pub(super) async fn drive<C: GracefulConnection>(mut self, connection: C) -> End {
        let mut connection = pin!(connection);
        match self.watch(connection.as_mut()).await {
            Seen::Closed | Seen::Overdue(Verdict::SlowHead) => End::Closed,
            Seen::Overdue(_) => {
                // A client that does not even close in that time is cut off.
                let _ = timeout(self.patience.head, finish(connection)).await;
                End::Closed
            }
            Seen::Drain => {
                let grace = self.drain.grace;
                let drained = timeout(grace, self.drain(connection)).await;
                drained.map_or(End::CutOff, |()| End::Closed)
            }
        }
    }

    /// Serves until something is overdue or the drain begins.
    async fn watch<C: GracefulConnection>(&mut self, mut connection: Pin<&mut C>) -> Seen {
        loop {
            let Verdict::Fine(next) = self.activity.verdict(self.patience) else {
                if look(connection.as_mut()).await.is_ready() {
                    return Seen::Closed;
                }
                match self.activity.verdict(self.patience) {
                    Verdict::Fine(_) => continue,
                    overdue => return Seen::Overdue(overdue),
                }
            };
            tokio::select! {
                biased;
                _ = connection.as_mut() => return Seen::Closed,
                () = self.draining.begun() => return Seen::Drain,
                () = sleep_until(next) => {}
            }
        }
    }

    /// Serves what still comes until the connection can be closed without loss.
    async fn drain<C: GracefulConnection>(&self, mut connection: Pin<&mut C>) {
        // A client that keeps quiet must not be waited for until it is cut off.
        let linger = self.drain.linger.min(self.drain.grace / 2);
        // HTTP/2 has a way to say which requests are still answered, and needs no waiting.
        while !self.activity.is_http2() {
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                () = sleep(linger) => {}
            }
            if look(connection.as_mut()).await.is_ready() {
                return;
            }
            match self.activity.verdict(self.patience) {
                Verdict::SlowHead => return,
                _ if self.activity.is_quiet() => break,
                _ => {}
            }
        }
        finish(connection).await;
    }
}

/// Lets the runtime look at all sockets, then hyper at this one, so that what has arrived by now is
/// known. Ready when the connection has ended.
async fn look<C: Future>(mut connection: Pin<&mut C>) -> Poll<C::Output> {
    yield_now().await;
    poll_fn(|cx| Poll::Ready(connection.as_mut().poll(cx))).await
}

/// Closes a connection once its requests are answered.
async fn finish<C: GracefulConnection>(mut connection: Pin<&mut C>) {
    connection.as_mut().graceful_shutdown();
    // How it ends makes no difference to anybody any more.
    let _ = connection.await;
}
