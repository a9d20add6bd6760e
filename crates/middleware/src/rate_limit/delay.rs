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
use weir_limit::{Batch, BucketKey, Decision, Transaction};
use weir_store::{DecisionSource, Outcome, Store};

use super::decisions::{QueriedLimit, QueriedLimits, Role};
use crate::backend::Backend;

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
    turns: VecDeque<QueuedTurn>,
    /// The store by which all of them are given back. By the connections of several workers, one would
    /// arrive before another, and find that it is not the last.
    store: Arc<dyn Store>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.turns.fmt(f)
    }
}

/// A request's turn at a bucket.
#[derive(Debug)]
struct QueuedTurn {
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

    /// A place among those that wait, if there is one.
    fn enter(self: &Arc<Self>) -> Option<Place> {
        let one_more = |waiting: u32| (waiting < self.max_requests.get()).then_some(waiting + 1);
        let relaxed = Ordering::Relaxed;
        let entered = self.waiting.fetch_update(relaxed, relaxed, one_more);
        entered.is_ok().then(|| Place(Arc::clone(self)))
    }
}

struct Place(Arc<Delay>);

impl Drop for Place {
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
            *due = due.before(by);
        }
        self.moved.notify_one();
    }
}

/// The units that a request has taken before its turn. They are passed on, or given back, when its
/// client leaves while it waits.
pub(super) struct Turn {
    lent: SmallVec<[LentUnits; 2]>,
    /// What it took from limits that lend nothing.
    taken: Batch,
    backend: Backend,
    place: Place,
    waiter: Arc<Waiter>,
    /// By the clock of decisions, and by that of timers.
    arrived: (Timestamp, Instant),
    /// How long it has to wait, unless somebody in front of it leaves.
    pub(super) wait: Duration,
    is_over: bool,
}

/// What a request took from a bucket that lends.
struct LentUnits {
    transaction: Transaction,
    by: DecisionSource,
    /// The limit's, without what it lends.
    tolerance: Nanos,
    /// The bucket's TAT since.
    tat: Timestamp,
}

impl Turn {
    /// The turn of a request that was allowed, if it has to wait for it. Where nothing more may
    /// wait, it gives back what the request took, and turns the decisions into denials.
    pub(super) fn of(
        delay: &Arc<Delay>,
        batch: &Batch,
        queried: &QueriedLimits,
        outcome: &mut Outcome,
        (backend, now): (&Backend, Timestamp),
    ) -> Option<Self> {
        let wait = waits(queried, outcome).max()?;
        if wait.is_zero() {
            return None;
        }
        let (lent, taken) = taken(batch, queried, outcome, now);
        let Some(place) = delay.enter() else {
            let waits: Vec<Nanos> = waits(queried, outcome).collect();
            backend.undo(taken);
            let give_back = |lent: &LentUnits| lent.give_back(Some(lent.tat), backend, now);
            lent.iter().for_each(give_back);
            deny(batch, queried, &waits, outcome);
            return None;
        };
        let turn = Self {
            taken,
            backend: backend.clone(),
            place,
            waiter: Arc::new(Waiter {
                due: Mutex::new(lent.iter().map(LentUnits::due).collect()),
                moved: Notify::new(),
            }),
            lent,
            arrived: (now, Instant::now()),
            wait: wait.into(),
            is_over: false,
        };
        turn.enqueue();
        Some(turn)
    }

    fn enqueue(&self) {
        let mut queues = self.place.0.queues.lock();
        for (index, lent) in self.lent.iter().enumerate() {
            let tat = lent.tat;
            let queue = queues.entry(lent.queue()).or_insert_with(|| Queue {
                turns: VecDeque::new(),
                store: Arc::clone(&self.backend.store),
            });
            let turns = &mut queue.turns;
            // Another thread may have been faster with a later one.
            let place = turns.partition_point(|turn| turn.tat < tat);
            let waiter = Arc::clone(&self.waiter);
            turns.insert(place, QueuedTurn { waiter, index, tat });
        }
    }

    /// Waits until the units are back, and returns how long.
    pub(super) async fn come(self) -> Duration {
        let (arrived, since) = self.arrived;
        let mut waited = Duration::ZERO;
        loop {
            let wait = waited.max(self.waiter.due().since(arrived).into());
            tokio::select! {
                () = sleep_until(since + wait) => {
                    self.has_come();
                    return wait;
                }
                () = self.waiter.moved.notified() => waited = since.elapsed(),
            }
        }
    }

    /// The units are back.
    pub(super) fn has_come(mut self) {
        self.is_over = true;
        let mut queues = self.place.0.queues.lock();
        for (index, lent) in self.lent.iter().enumerate() {
            self.leave(index, lent, &mut queues, |_, _| {});
        }
    }

    /// Takes a turn out of its queue, and tells of the turns behind it before they change.
    fn leave(
        &self,
        index: usize,
        lent: &LentUnits,
        queues: &mut Queues,
        behind: impl FnOnce(&QueuedTurn, &mut dyn Iterator<Item = &mut QueuedTurn>),
    ) {
        let key = lent.queue();
        let Some(Queue { turns, .. }) = queues.get_mut(&key) else {
            return;
        };
        let is_own =
            |turn: &QueuedTurn| turn.index == index && Arc::ptr_eq(&turn.waiter, &self.waiter);
        if let Some(place) = turns.iter().position(is_own)
            && let Some(own) = turns.remove(place)
        {
            behind(&own, &mut turns.range_mut(place..));
        }
        if turns.is_empty() {
            queues.remove(&key);
        }
    }

    /// The client has left. A turn that has come is lost, as nobody can have it any more; another goes
    /// to the request behind, and what is left over in the end goes back.
    fn give_up(&mut self) {
        let now = self.backend.now();
        let mut queues = self.place.0.queues.lock();
        for (index, lent) in self.lent.iter().enumerate() {
            let mut free = None;
            let mut backend = self.backend.clone();
            if let Some(queue) = queues.get(&lent.queue()) {
                backend.store = Arc::clone(&queue.store);
            }
            self.leave(index, lent, &mut queues, |own, behind| {
                if own.tat.before(lent.tolerance) <= now {
                    return;
                }
                let mut tat = own.tat;
                for turn in behind {
                    let later = std::mem::replace(&mut turn.tat, tat);
                    turn.waiter.move_up(turn.index, later.since(tat));
                    tat = later;
                }
                free = Some(tat);
            });
            // In the queue's order: one that was overtaken would find that it is not the last.
            lent.give_back(free, &backend, now);
        }
        drop(queues);
        self.backend.undo(std::mem::take(&mut self.taken));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_up();
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
        self.tat.before(self.tolerance)
    }

    /// Gives the units back, if those until `free` are the last that were lent, or none are lent.
    fn give_back(&self, free: Option<Timestamp>, backend: &Backend, now: Timestamp) {
        let unlent = now + self.tolerance;
        let latest = free.map_or(unlent, |free| free.max(unlent));
        backend.undo_last((self.transaction.clone(), self.by), latest, now);
    }
}

/// What a request took: from limits that lend, and from others.
fn taken(
    batch: &Batch,
    queried: &QueriedLimits,
    outcome: &Outcome,
    now: Timestamp,
) -> (SmallVec<[LentUnits; 2]>, Batch) {
    let (mut lent, mut taken) = (SmallVec::new(), Batch::new());
    for ((limit, decision), transaction) in queried.decided(outcome).zip(batch) {
        match decision.filter(|decision| transaction.has_taken(decision)) {
            Some(decision) if lends(limit) => lent.push(LentUnits {
                transaction: transaction.clone(),
                by: outcome.source,
                tolerance: limit.quota.tolerance(),
                tat: now + decision.reset_in,
            }),
            Some(_) => taken.push(transaction.clone()),
            None => {}
        }
    }
    (lent, taken)
}

fn lends(limit: &QueriedLimit) -> bool {
    !limit.quota.algorithm().is_windowed() && !limit.quota.is_in_flight()
}

/// How long each decision makes its request wait. Only a limit that may deny delays: a dry run and
/// `spend_only` are never felt by clients, and a request that takes nothing has borrowed nothing.
fn waits<'q>(queried: &'q QueriedLimits, outcome: &'q Outcome) -> impl Iterator<Item = Nanos> + 'q {
    queried.decided(outcome).map(|(limit, decision)| {
        let borrowed = decision.filter(|_| limit.role == Role::Denies && lends(limit));
        borrowed.map_or(Nanos::ZERO, |borrowed| {
            borrowed.reset_in.saturating_sub(limit.quota.tolerance())
        })
    })
}

/// Brings decisions to what they are when the request has waited.
pub(super) fn at_its_turn(queried: &QueriedLimits, outcome: &mut Outcome, waited: Nanos) {
    for (limit, decision) in queried.limits.iter().zip(&mut outcome.decisions) {
        if let Some(decision) = decision
            && !limit.quota.algorithm().is_windowed()
        {
            *decision = decision.later(&limit.quota, waited);
        }
    }
}

/// Turns decisions whose costs were given back into denials by those that had it wait.
fn deny(batch: &Batch, queried: &QueriedLimits, waits: &[Nanos], outcome: &mut Outcome) {
    let limits = queried.limits.iter().zip(batch).zip(waits);
    for (((limit, transaction), &wait), decision) in limits.zip(&mut outcome.decisions) {
        let Some(decision) = decision else { continue };
        if transaction.has_taken(decision) {
            *decision = decision.after_giving_back(&limit.quota, transaction.cost.get());
        }
        if !wait.is_zero() {
            *decision = Decision {
                allowed: false,
                retry_in: wait,
                ..*decision
            };
        }
    }
}
