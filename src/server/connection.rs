//! One connection from its first byte to its last: served, put to rest, timed out, or drained.
//!
//! hyper's `graceful_shutdown` closes an HTTP/1 connection that has no request at once, even when a
//! request is in the socket's buffer already, and one that has just been accepted too. So it is
//! never asked to before the connection has been quiet for a while and its socket was looked at
//! once more. What has a request in the meantime is told to close by the answer's own field.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::activity::{ConnectionState, Verdict};
use super::conversation::PollConnection;
use super::drain::Draining;
use super::serve::Shared;

/// Drives a connection.
pub(super) struct Driver {
    pub(super) activity: Arc<ConnectionState>,
    pub(super) draining: Draining,
    pub(super) shared: Arc<Shared>,
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
    /// It is idle or owes a head, and a new one needs its place.
    RoomWanted,
    Overdue(Verdict),
}

impl Driver {
    /// Serves the connection until it ends.
    ///
    /// Both are borrowed, since a future keeps two places for what it is given.
    pub(super) async fn drive<C: PollConnection>(&mut self, connection: &mut C) -> End {
        match self.watch(connection).await {
            Seen::Closed | Seen::Overdue(Verdict::SlowHead) => End::Closed,
            Seen::Overdue(_) => {
                connection.close();
                // A client that does not even close in that time is cut off.
                let _ = timeout(self.shared.patience.head, ended(connection)).await;
                End::Closed
            }
            Seen::RoomWanted => {
                self.shared.metrics.evicted.inc();
                connection.close();
                // What there is to say is said once; its place is wanted now.
                let _ = look(connection).await;
                End::Closed
            }
            Seen::Drain => {
                let grace = self.shared.drain.grace;
                let drained = timeout(grace, self.drain(connection)).await;
                drained.map_or(End::CutOff, |()| End::Closed)
            }
        }
    }

    /// Serves until something is overdue or the drain begins.
    async fn watch<C: PollConnection>(&mut self, connection: &mut C) -> Seen {
        loop {
            let Verdict::Fine(next) = self.activity.verdict(self.shared.patience) else {
                if look(connection).await.is_ready() {
                    return Seen::Closed;
                }
                match self.activity.verdict(self.shared.patience) {
                    Verdict::Fine(_) => continue,
                    overdue => return Seen::Overdue(overdue),
                }
            };
            let spare = self.is_spare(connection);
            let wake_at = [self.parks_at(connection), self.spare_at()];
            let wake_at = wake_at.into_iter().flatten().fold(next, Instant::min);
            tokio::select! {
                biased;
                ended = turn(connection, &self.activity, spare) => if ended {
                    return Seen::Closed;
                },
                () = self.draining.begun() => return Seen::Drain,
                () = self.shared.limit.room_is_wanted(), if spare => {
                    if look(connection).await.is_ready() {
                        return Seen::Closed;
                    }
                    if self.is_spare(connection) {
                        return Seen::RoomWanted;
                    }
                    self.shared.limit.ask_another();
                }
                () = sleep_until(wake_at) => {}
            }
            if self.rest(connection).await.is_ready() {
                return Seen::Closed;
            }
        }
    }

    /// Lets the connection rest if it is time. Ready when it has ended instead.
    async fn rest<C: PollConnection>(&self, connection: &mut C) -> Poll<()> {
        let parks_at = self.parks_at(connection);
        if parks_at.is_some_and(|it| it <= Instant::now()) {
            if look(connection).await.is_ready() {
                return Poll::Ready(());
            }
            // A request that came in the meantime has moved it, even when it is over already. hyper
            // may then have to be polled once more, to close for a body that nobody wants.
            if self.parks_at(connection) == parks_at {
                connection.rest();
            }
        }
        Poll::Pending
    }

    /// When the connection is idle, unless it is: over HTTP/1.1 it rests from then on, if it may.
    fn parks_at<C: PollConnection>(&self, connection: &C) -> Option<Instant> {
        let tires = !self.is_idle(connection);
        tires.then(|| self.activity.parks_at(self.shared.patience))
    }

    /// Whether the connection has been without a request for a while. A request may be on its way
    /// over one that is new.
    fn is_idle<C: PollConnection>(&self, connection: &C) -> bool {
        let may_be = connection.is_resting() || self.activity.is_http2();
        may_be && self.activity.is_quiet() && self.activity.has_rested(self.shared.patience)
    }

    /// Whether the connection may be closed for a new one.
    fn is_spare<C: PollConnection>(&self, connection: &C) -> bool {
        let must_have_asked = || self.activity.must_have_asked_by() <= Instant::now();
        self.is_idle(connection) || self.activity.owes_head() && must_have_asked()
    }

    /// When the connection may be closed for a new one if its client goes on owing a head.
    fn spare_at(&self) -> Option<Instant> {
        let owes_head = self.activity.owes_head();
        let by = owes_head.then(|| self.activity.must_have_asked_by())?;
        Some(by).filter(|by| *by > Instant::now())
    }

    /// Serves what still comes until the connection can be closed without loss.
    async fn drain<C: PollConnection>(&self, connection: &mut C) {
        let linger = self.draining.linger(&self.shared.drain);
        // HTTP/2 has a way to say which requests are still answered, and needs no waiting.
        while !self.activity.is_http2() {
            tokio::select! {
                biased;
                () = ended(connection) => return,
                () = sleep(linger) => {}
            }
            if look(connection).await.is_ready() {
                return;
            }
            match self.activity.verdict(self.shared.patience) {
                Verdict::SlowHead => return,
                _ if self.activity.is_quiet() => break,
                _ => {}
            }
        }
        connection.close();
        ended(connection).await;
    }
}

/// Serves until the connection has ended, which it then says, or rests no longer or less quietly,
/// or is no longer `spare`, since other times hold then.
async fn turn<C: PollConnection>(
    connection: &mut C,
    activity: &ConnectionState,
    spare: bool,
) -> bool {
    let state = |connection: &C| {
        let owes_head = activity.owes_head();
        (connection.is_resting(), activity.is_quiet(), owes_head)
    };
    let before = state(connection);
    let waits = spare || connection.is_resting();
    poll_fn(|cx| match connection.poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending if waits && state(connection) != before => Poll::Ready(false),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Serves until the connection has ended.
async fn ended<C: PollConnection>(connection: &mut C) {
    poll_fn(|cx| connection.poll(cx)).await;
}

/// Lets the runtime look at all sockets, then hyper at this one, so that what has arrived by now is
/// known. Ready when the connection has ended.
async fn look<C: PollConnection>(connection: &mut C) -> Poll<()> {
    yield_now().await;
    poll_fn(|cx| Poll::Ready(connection.poll(cx))).await
}
