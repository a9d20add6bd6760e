//! Which buckets are hot, and what the gateway holds of them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{BucketKey, Decision, Prefetch, Transaction};
use weir_store::{HashedKey, KeyHasher};
use weir_store::{Outcome, StoreError};

use super::hot_bucket::{self, HotBucket, IdleCheck};

/// The number of buckets that are watched, in some 200 KiB, and that can be hot at once.
const SLOTS: usize = 4096;

/// The number of locks, each over a part of the slots.
const SHARDS: usize = 64;

/// A bucket is hot if requests want this many units within the time that a take should last.
const HOT_UNITS: u64 = 8;

/// The size of the first take, in units.
const MIN_TAKE: u64 = 2 * HOT_UNITS;

/// The hot buckets of a process, shared by its workers.
///
/// The table has a fixed size, and takes no memory before it is used. A bucket whose slot is taken
/// is not watched. A slot goes to the bucket of which requests want more.
pub struct HotBuckets {
    hasher: KeyHasher,
    shards: Box<[Mutex<Vec<Slot>>]>,
}

#[derive(Default)]
struct Slot {
    /// Zero in a free slot.
    tag: u64,
    /// The units that requests have wanted `since`.
    units: u64,
    since: Timestamp,
    hot: Option<Box<HotSlot>>,
}

/// A hot bucket, and the way to the task that takes units from it.
struct HotSlot {
    bucket: HotBucket,
    wake: Arc<Notify>,
    taken: watch::Receiver<()>,
}

/// The result of a look into the table for a request.
pub(super) enum Lookup {
    /// A decision by local units.
    Decided(Decision),
    /// The request has to wait for units that are on their way.
    Wait(watch::Receiver<()>),
    Ask,
    /// The store decides, and the bucket is hot from now on.
    Heated(Refiller),
}

impl Default for HotBuckets {
    fn default() -> Self {
        Self {
            hasher: KeyHasher::random(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl HotBuckets {
    /// Decides by local units, and takes the cost from them.
    pub(super) fn decide(
        self: &Arc<Self>,
        transaction: &Transaction,
        limit: Prefetch,
        now: Timestamp,
    ) -> Lookup {
        let key = self.hasher.hash(&transaction.key);
        let lookup = self.with_slot(key, |slot| slot.decide(self, key, transaction, limit, now));
        lookup.unwrap_or(Lookup::Ask)
    }

    /// Puts units back that a request does not spend after all. Returns whether that is done; if
    /// not, as the bucket is not hot or has no room for them, they belong to the store.
    pub(super) fn put_back(&self, transaction: &Transaction) -> bool {
        let key = self.hasher.hash(&transaction.key);
        let fits = self.with_hot(key, |bucket| bucket.put_back(transaction));
        fits.unwrap_or_default()
    }

    /// Drops the units of a bucket that is reset.
    pub(super) fn forget(&self, key: &BucketKey) {
        self.with_hot(self.hasher.hash(key), HotBucket::forget);
    }

    fn with_hot<T>(&self, key: HashedKey, act: impl FnOnce(&mut HotBucket) -> T) -> Option<T> {
        self.with_slot(key, |slot| {
            let hot = slot.hot.as_mut().filter(|_| slot.tag == key.tag)?;
            Some(act(&mut hot.bucket))
        })?
    }

    #[expect(clippy::cast_possible_truncation, reason = "both remainders are small")]
    fn with_slot<T>(&self, key: HashedKey, act: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let slot = (key.shard % SLOTS as u64) as usize;
        let mut shard = self.shards.get(slot % SHARDS)?.lock();
        if shard.is_empty() {
            shard.resize_with(SLOTS / SHARDS, Slot::default);
        }
        shard.get_mut(slot / SHARDS).map(act)
    }
}

impl Slot {
    fn decide(
        &mut self,
        buckets: &Arc<HotBuckets>,
        key: HashedKey,
        transaction: &Transaction,
        limit: Prefetch,
        now: Timestamp,
    ) -> Lookup {
        match &mut self.hot {
            Some(hot) if self.tag == key.tag => return hot.decide(transaction, now),
            Some(_) => return Lookup::Ask,
            None => {}
        }
        if !self.is_hot(key, transaction, limit, now) {
            return Lookup::Ask;
        }
        let (taken, receiver) = watch::channel(());
        let wake = Arc::<Notify>::default();
        self.hot = Some(Box::new(HotSlot {
            bucket: HotBucket::new(transaction, limit, MIN_TAKE, now),
            wake: Arc::clone(&wake),
            taken: receiver,
        }));
        Lookup::Heated(Refiller {
            buckets: Arc::clone(buckets),
            key,
            limit,
            wake,
            taken,
        })
    }

    /// Counts the units that requests want of a bucket. It takes another bucket's slot when the
    /// time of that is over, or when requests want as much of the newcomer.
    fn is_hot(
        &mut self,
        key: HashedKey,
        transaction: &Transaction,
        limit: Prefetch,
        now: Timestamp,
    ) -> bool {
        if !transaction.mode.spends() {
            return false;
        }
        let cost = transaction.cost.get();
        let is_over = now.since(self.since) > HotBucket::lasting(limit) || now < self.since;
        if self.tag != key.tag && !is_over {
            self.units = self.units.saturating_sub(cost);
            if self.units > 0 {
                return false;
            }
        }
        if self.tag != key.tag || is_over {
            (self.tag, self.units, self.since) = (key.tag, 0, now);
        }
        self.units = self.units.saturating_add(cost);
        self.units >= HOT_UNITS
    }
}

impl HotSlot {
    fn decide(&mut self, transaction: &Transaction, now: Timestamp) -> Lookup {
        let lookup = self.bucket.decide(transaction, now);
        if self.bucket.is_wanting() {
            self.wake.notify_one();
        }
        match lookup {
            hot_bucket::UnitLookup::Decided(decision) => Lookup::Decided(decision),
            hot_bucket::UnitLookup::Ask => Lookup::Ask,
            hot_bucket::UnitLookup::Wait => {
                let mut taken = self.taken.clone();
                taken.mark_unchanged();
                Lookup::Wait(taken)
            }
        }
    }
}

/// Takes units from a hot bucket when they are wanted. When it is dropped, the bucket is no longer
/// hot, and requests no longer wait.
pub(super) struct Refiller {
    buckets: Arc<HotBuckets>,
    key: HashedKey,
    limit: Prefetch,
    wake: Arc<Notify>,
    taken: watch::Sender<()>,
}

impl Refiller {
    pub(super) async fn wanted(&self) {
        self.wake.notified().await;
    }

    /// The interval of checks while no units are wanted.
    pub(super) fn check_interval(&self) -> Duration {
        Duration::from(self.limit.max_age()) / 4
    }

    /// The next take, if units are wanted, and the time.
    pub(super) fn begin(&self) -> Option<(Transaction, Timestamp)> {
        self.with_bucket(|bucket| Some((bucket.begin()?, bucket.seen())))
    }

    /// Applies the outcome of a take. Returns a smaller take to be made in its place, or wakes the
    /// requests that wait.
    pub(super) fn taken(&self, answer: &Result<Outcome, StoreError>) -> Option<Transaction> {
        let next = self.with_bucket(|bucket| bucket.taken(answer));
        if next.is_none() {
            self.taken.send_replace(());
        }
        next
    }

    pub(super) fn retire(&self) {
        self.with_bucket(|bucket| {
            bucket.retire();
            None::<()>
        });
    }

    /// Returns whether the bucket is still hot, and the time.
    pub(super) fn check_idle(&self, clock: &mut LastSeen) -> (IdleCheck, Timestamp) {
        let checked = self.with_bucket(|bucket| {
            let now = clock.now(bucket.seen());
            Some((bucket.check_idle(now), now))
        });
        checked.unwrap_or((IdleCheck::Idle(None), Timestamp::default()))
    }

    fn with_bucket<T>(&self, act: impl FnOnce(&mut HotBucket) -> Option<T>) -> Option<T> {
        self.buckets.with_hot(self.key, act)?
    }
}

impl Drop for Refiller {
    fn drop(&mut self) {
        self.buckets.with_slot(self.key, |slot| {
            slot.hot = None;
            slot.units = 0;
        });
    }
}

/// The time by the last request, which was given it, and by what has passed since.
pub(super) struct LastSeen(Timestamp, Instant);

impl LastSeen {
    pub(super) fn new() -> Self {
        Self(Timestamp::default(), Instant::now())
    }

    fn now(&mut self, seen: Timestamp) -> Timestamp {
        if self.0 != seen {
            *self = Self(seen, Instant::now());
        }
        self.0 + Nanos::from(self.1.elapsed())
    }
}
