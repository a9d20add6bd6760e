//! How many connections a server may have, over all workers.
//!
//! A request needs a slot before it takes an idle connection or opens one, and keeps it until the
//! connection is idle again or closed. So no more connections are in use than there are slots. If
//! as many connections are open as there may be, and some of them idle, such as those of another
//! worker, one of these gives way to the new one.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::pool::Evict;

/// The bound of one server. Requests that it holds up are served in the order of their arrival.
pub(super) struct ConnectionLimit {
    max: usize,
    slots: Arc<Semaphore>,
    open: AtomicUsize,
    /// The idle connections, worker by worker.
    idle: Mutex<Vec<Weak<dyn Evict>>>,
}

/// Held by a request as long as it uses a connection of a server; `None` if the server has no
/// bound.
pub(super) type Slot = Option<OwnedSemaphorePermit>;

impl ConnectionLimit {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            slots: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))),
            open: AtomicUsize::new(0),
            idle: Mutex::default(),
        }
    }

    /// Lets the idle connections of a worker be closed.
    pub(super) fn watch(&self, idle: Weak<dyn Evict>) {
        let mut all = self.idle.lock();
        all.retain(|idle| idle.strong_count() > 0);
        all.push(idle);
    }

    pub(super) fn is_full(&self) -> bool {
        self.slots.available_permits() == 0
    }

    pub(super) fn try_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Waits until `deadline` for a slot.
    pub(super) async fn slot(&self, deadline: Instant) -> Option<OwnedSemaphorePermit> {
        let slot = Arc::clone(&self.slots).acquire_owned();
        timeout_at(deadline, slot).await.ok()?.ok()
    }

    /// Counts one more open connection, for a request that has a slot, once there may be another.
    pub(super) async fn open(self: &Arc<Self>) -> OpenConnection {
        let more = |open| (open < self.max).then_some(open + 1);
        while self.open.fetch_update(Relaxed, Relaxed, more).is_err() {
            // Fewer are in use than may be open, so one is idle, or is being closed just now.
            if !self.evict() {
                yield_now().await;
            }
        }
        OpenConnection(Arc::clone(self))
    }

    fn evict(&self) -> bool {
        let idle = self.idle.lock().clone();
        idle.iter()
            .filter_map(Weak::upgrade)
            .any(|idle| idle.evict())
    }
}

pub(super) struct OpenConnection(Arc<ConnectionLimit>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::pool::Pool;
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn slots_are_had_in_turn_and_waited_for_no_longer_than_allowed() {
        let limit = Arc::new(ConnectionLimit::new(1));
        let slot = limit.try_slot().unwrap();
        assert!(limit.is_full());
        assert!(limit.try_slot().is_none());
        let start = Instant::now();
        assert!(limit.slot(start + MINUTE).await.is_none());
        assert_eq!(start.elapsed(), MINUTE);
        let mut waiting = waiting_for(&limit);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(slot);
        // One that comes later does not overtake it.
        assert!(limit.try_slot().is_none());
        assert!(waiting.await.is_some());
    }

    fn waiting_for(limit: &Arc<ConnectionLimit>) -> std::pin::Pin<Box<dyn Future<Output = Slot>>> {
        let limit = Arc::clone(limit);
        Box::pin(async move { limit.slot(Instant::now() + MINUTE).await })
    }

    #[tokio::test]
    async fn an_idle_connection_gives_way_to_a_new_one() {
        let limit = Arc::new(ConnectionLimit::new(2));
        let pool = Arc::new(Pool::new(9, MINUTE));
        let watched: Weak<dyn Evict> = Arc::<Pool<OpenConnection>>::downgrade(&pool);
        limit.watch(watched);
        let _in_use = limit.open().await;
        let _ = pool.put(limit.open().await, Instant::now(), None);
        let _third = limit.open().await;
        assert!(pool.take(Instant::now(), |_| true).is_none());
        assert_eq!(limit.open.load(Relaxed), 2);
    }
}
