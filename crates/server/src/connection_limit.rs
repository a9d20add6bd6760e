//! The limit of client connections, and the choice of the one that is closed when it is reached.
//!
//! An idle connection uses a file descriptor for nothing, and so does one whose client has not sent
//! a complete head in time. When the limit is reached, the connection that has been in such a state
//! the longest is closed; the new connection waits for its permit.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// The limit; all workers share it.
#[derive(Debug, Default)]
pub(super) struct ConnectionLimit {
    permits: Option<Arc<Semaphore>>,
    /// Wakes the connection that has waited the longest, which has been evictable the longest.
    evict: Notify,
    /// New connections that wait for a permit.
    waiting: AtomicUsize,
}

impl ConnectionLimit {
    pub(super) fn new(most: Option<NonZeroUsize>) -> Self {
        let permits = |most: NonZeroUsize| Arc::new(Semaphore::new(most.get()));
        Self {
            permits: most.map(permits),
            ..Self::default()
        }
    }

    /// Waits for the permit of a new connection, and evicts another if there is none. Call it after
    /// the connection was accepted: a worker that holds a permit while no client connects would
    /// keep it from the other workers.
    pub(super) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let permits = self.permits.as_ref()?;
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Some(permit);
        }
        let _waiting = Waiting::new(self);
        Arc::clone(permits).acquire_owned().await.ok()
    }

    /// Waits until the calling connection is evicted. Only await it for connections that are idle
    /// or owe a head.
    pub(super) fn evicted(&self) -> Evicted<'_> {
        Evicted {
            limit: self,
            notified: self.evict.notified(),
        }
    }

    /// Waits until the calling connection is evicted, but not before `at_least` has passed.
    pub(super) async fn evicted_after(&self, at_least: Duration) {
        sleep(at_least).await;
        self.evicted().await;
    }

    /// Evicts the next connection instead: the one that was chosen has become busy.
    pub(super) fn evict_another(&self) {
        self.evict.notify_one();
    }
}

pin_project! {
    /// Waits until a connection is evicted. Written out, as each connection keeps one.
    pub(super) struct Evicted<'a> {
        limit: &'a ConnectionLimit,
        #[pin]
        notified: Notified<'a>,
    }
}

impl Future for Evicted<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            ready!(this.notified.as_mut().poll(cx));
            // A permit may have become free in the meantime.
            if this.limit.waiting.load(Ordering::SeqCst) > 0 {
                return Poll::Ready(());
            }
            this.notified.set(this.limit.evict.notified());
        }
    }
}

/// A new connection that waits for its permit.
struct Waiting<'a>(&'a ConnectionLimit);

impl<'a> Waiting<'a> {
    fn new(limit: &'a ConnectionLimit) -> Self {
        limit.waiting.fetch_add(1, Ordering::SeqCst);
        limit.evict.notify_one();
        Self(limit)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // `Notify` keeps only one notification while no connection is evictable, so notify again
        // for the next one that waits.
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.0.evict.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const ONE: Option<NonZeroUsize> = NonZeroUsize::new(1);

    #[tokio::test]
    async fn the_connection_that_was_idle_first_makes_room_first() {
        let limit = ConnectionLimit::new(ONE);
        let held = limit.permit().await;
        let (mut first, mut second) = (Box::pin(limit.evicted()), Box::pin(limit.evicted()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        let mut new = Box::pin(limit.permit());
        assert!(new.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(first.as_mut().now_or_never().is_some());
        drop(held);
        assert!(new.await.is_some());
    }

    #[tokio::test]
    async fn no_connection_makes_room_for_one_that_has_its_place_already() {
        let limit = ConnectionLimit::new(ONE);
        let held = limit.permit().await;
        let mut new = Box::pin(limit.permit());
        assert!(new.as_mut().now_or_never().is_none());
        drop(held);
        let placed = new.await;
        assert!(limit.evicted().now_or_never().is_none());
        drop(placed);
    }

    #[tokio::test]
    async fn each_of_several_new_connections_gets_its_place_however_late_others_become_idle() {
        let limit = ConnectionLimit::new(NonZeroUsize::new(2));
        let mut held = vec![limit.permit().await, limit.permit().await];
        let (mut one, mut other) = (Box::pin(limit.permit()), Box::pin(limit.permit()));
        assert!(one.as_mut().now_or_never().is_none());
        assert!(other.as_mut().now_or_never().is_none());
        limit.evicted().now_or_never().expect("room for one");
        held.pop();
        let _placed = one.await;
        limit.evicted().now_or_never().expect("room for the other");
        held.pop();
        assert!(other.await.is_some());
    }
}
