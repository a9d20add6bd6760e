//! Requests that wait for their turn in place of a denial.
//!
//! A limit that delays lends units before they have come back: its bucket may owe as many as come
//! back in the longest delay. A request that borrows waits until they are back. So each request has
//! its turn from the beginning, in the order of arrival and through all gateways, and the store is
//! asked once.
//!
//! A request that is given up leaves its turn to the one behind it in this process, whose own turn
//! goes to the next, and so on. Only the last turn goes back to the store, and only if no other
//! gateway has promised a later one. See `docs/decisions/0017-leases-and-turns.md`.

#[cfg(feature = "config")]
mod config;
pub(super) mod told;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{BucketKey, Transaction};
use weir_store::{DecisionSource, OwedBatch, Store};

use crate::backend::Backend;
#[cfg(feature = "config")]
pub(super) use config::DelayKeys;

/// How requests of a route wait for their turn.
#[derive(Debug)]
pub struct Delay {
    /// How long a request may wait. One that would have to wait longer is denied.
    pub longest: Duration,
    /// How many requests may wait at the same time, over all workers. One more is denied.
    pub max_requests: NonZeroU32,
    /// Whether responses tell in `Server-Timing` how long their requests waited.
    pub server_timing: bool,
    pub(super) waiting: AtomicU32,
    queues: Mutex<Queues>,
}

/// Turns of the same length that one store lent can be exchanged, so there is a queue for each.
type Queues = HashMap<(BucketKey, Nanos, DecisionSource), Queue>;

/// Those that wait for units of a bucket.
struct Queue {
    /// In their order.
    slots: VecDeque<QueueSlot>,
    /// The store by which all of them are given back. By the connections of several workers, one would
    /// arrive before another, and find that it is not the last.
    store: Arc<dyn Store>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slots.fmt(f)
    }
}

/// A request's turn at a bucket.
#[derive(Debug)]
struct QueueSlot {
    waiter: Arc<Waiter>,
    /// Which of the request's turns it is.
    index: usize,
    /// The bucket's TAT when the turn was lent.
    tat: Timestamp,
}

/// A request that waits.
#[derive(Debug)]
struct Waiter {
    /// When the units of each of its turns are back.
    due: Mutex<SmallVec<[Timestamp; 2]>>,
    /// One of them is earlier.
    moved: Notify,
}

impl Delay {
    /// A delay of at most `longest`, of at most `max_requests` at the same time.
    pub fn new(longest: Duration, max_requests: NonZeroU32, server_timing: bool) -> Self {
        Self {
            longest,
            max_requests,
            server_timing,
            waiting: AtomicU32::new(0),
            queues: Mutex::default(),
        }
    }

    /// Counts one more request that waits, unless `max_requests` do.
    pub(super) fn permit(self: &Arc<Self>) -> Option<WaitPermit> {
        let one_more = |waiting: u32| (waiting < self.max_requests.get()).then_some(waiting + 1);
        let relaxed = Ordering::Relaxed;
        let entered = self.waiting.fetch_update(relaxed, relaxed, one_more);
        entered.is_ok().then(|| WaitPermit(Arc::clone(self)))
    }
}

/// Counts a request among those that wait.
pub(super) struct WaitPermit(Arc<Delay>);

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Waiter {
    /// When all its units are back.
    fn due(&self) -> Timestamp {
        self.due.lock().iter().max().copied().unwrap_or_default()
    }

    fn move_up(&self, index: usize, by: Nanos) {
        if let Some(due) = self.due.lock().get_mut(index) {
            *due = due.saturating_sub(by);
        }
        self.moved.notify_one();
    }
}

/// A request that waits for its turn. The units that it has taken are passed on, or given back, when
/// its client leaves meanwhile.
pub(super) struct DelayedRequest {
    taken: TakenUnits,
    backend: Backend,
    permit: WaitPermit,
    waiter: Arc<Waiter>,
    /// By the clock of decisions, and by that of timers.
    arrived: (Timestamp, Instant),
    /// How long it has to wait, unless somebody in front of it leaves.
    pub(super) wait: Duration,
    is_over: bool,
}

/// The units that a request has taken before its turn.
pub(super) struct TakenUnits {
    /// From buckets of GCRA, which lend. In a dry run, or with `spend_only`, nothing was lent: such a
    /// turn has come.
    pub(super) lent: SmallVec<[LentUnits; 2]>,
    /// From limits that lend nothing.
    pub(super) others: OwedBatch,
}

/// What a request took from a bucket that lends.
pub(super) struct LentUnits {
    pub(super) transaction: Transaction,
    pub(super) by: DecisionSource,
    /// The limit's, without what it lends.
    pub(super) tolerance: Nanos,
    /// The bucket's TAT since.
    pub(super) tat: Timestamp,
}

impl DelayedRequest {
    /// Queues a request that has taken these units at this time, and has to wait so long.
    pub(super) fn enqueue(
        taken: TakenUnits,
        wait: Nanos,
        permit: WaitPermit,
        (backend, now): (&Backend, Timestamp),
    ) -> Self {
        let request = Self {
            backend: backend.clone(),
            permit,
            waiter: Arc::new(Waiter {
                due: Mutex::new(taken.lent.iter().map(LentUnits::due).collect()),
                moved: Notify::new(),
            }),
            taken,
            arrived: (now, Instant::now()),
            wait: wait.into(),
            is_over: false,
        };
        request.insert();
        request
    }

    fn insert(&self) {
        let mut queues = self.permit.0.queues.lock();
        for (index, lent) in self.taken.lent.iter().enumerate() {
            let tat = lent.tat;
            let queue = queues.entry(lent.queue()).or_insert_with(|| Queue {
                slots: VecDeque::new(),
                store: Arc::clone(&self.backend.store),
            });
            let slots = &mut queue.slots;
            // Another thread may have been faster with a later one.
            let position = slots.partition_point(|slot| slot.tat < tat);
            let waiter = Arc::clone(&self.waiter);
            slots.insert(position, QueueSlot { waiter, index, tat });
        }
    }

    /// Waits until the units are back, and returns how long.
    pub(super) async fn wait(self) -> Duration {
        let (arrived, since) = self.arrived;
        let mut waited = Duration::ZERO;
        loop {
            let wait = waited.max(self.waiter.due().since(arrived).into());
            tokio::select! {
                () = sleep_until(since + wait) => {
                    self.finish();
                    return wait;
                }
                () = self.waiter.moved.notified() => waited = since.elapsed(),
            }
        }
    }

    /// Its turn has come: the units are back.
    pub(super) fn finish(mut self) {
        self.is_over = true;
        let mut queues = self.permit.0.queues.lock();
        for (index, lent) in self.taken.lent.iter().enumerate() {
            self.dequeue(index, lent, &mut queues, |_, _| {});
        }
    }

    /// Takes a slot out of its queue, and hands it to `pass_on` with those behind it.
    fn dequeue(
        &self,
        index: usize,
        lent: &LentUnits,
        queues: &mut Queues,
        pass_on: impl FnOnce(&QueueSlot, &mut dyn Iterator<Item = &mut QueueSlot>),
    ) {
        let key = lent.queue();
        let Some(Queue { slots, .. }) = queues.get_mut(&key) else {
            return;
        };
        let is_own =
            |slot: &QueueSlot| slot.index == index && Arc::ptr_eq(&slot.waiter, &self.waiter);
        if let Some(position) = slots.iter().position(is_own)
            && let Some(own) = slots.remove(position)
        {
            pass_on(&own, &mut slots.range_mut(position..));
        }
        if slots.is_empty() {
            queues.remove(&key);
        }
    }

    /// The client has left. Its turn goes to the request behind, whose own goes to the next, and what
    /// is left over in the end goes back. A turn that has come is not passed on, or several could
    /// pass at once: its units go back only if nothing is lent behind it.
    fn give_up(&mut self) {
        let now = self.backend.now();
        let mut queues = self.permit.0.queues.lock();
        for (index, lent) in self.taken.lent.iter().enumerate() {
            let mut free = None;
            let mut backend = self.backend.clone();
            if let Some(queue) = queues.get(&lent.queue()) {
                backend.store = Arc::clone(&queue.store);
            }
            self.dequeue(index, lent, &mut queues, |own, behind| {
                if own.tat.saturating_sub(lent.tolerance) <= now {
                    return;
                }
                let mut tat = own.tat;
                for slot in behind {
                    let later = std::mem::replace(&mut slot.tat, tat);
                    slot.waiter.move_up(slot.index, later.since(tat));
                    tat = later;
                }
                free = Some(tat);
            });
            // In the queue's order: one that was overtaken would find that it is not the last.
            lent.give_back(free, &backend, now);
        }
        drop(queues);
        self.backend.undo(std::mem::take(&mut self.taken.others));
    }
}

impl Drop for DelayedRequest {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_up();
        }
    }
}

impl TakenUnits {
    /// Gives all of them back, as no request may wait for them.
    pub(super) fn give_back(self, backend: &Backend, now: Timestamp) {
        backend.undo(self.others);
        for lent in &self.lent {
            lent.give_back(Some(lent.tat), backend, now);
        }
    }
}

impl LentUnits {
    fn queue(&self) -> (BucketKey, Nanos, DecisionSource) {
        let quota = &self.transaction.quota;
        let length = quota.increment(self.transaction.cost);
        let key = self.transaction.key.clone();
        (key, length.unwrap_or_default(), self.by)
    }

    fn due(&self) -> Timestamp {
        self.tat.saturating_sub(self.tolerance)
    }

    /// Gives the units back, unless the bucket has lent others since: `free` is the last turn of the
    /// queue, and none that of a request whose turn has come.
    fn give_back(&self, free: Option<Timestamp>, backend: &Backend, now: Timestamp) {
        let unlent = now + self.tolerance;
        let latest = free.map_or(unlent, |free| free.max(unlent));
        backend.undo_last((self.transaction.clone(), self.by), latest, now);
    }
}
