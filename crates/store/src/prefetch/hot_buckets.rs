//! Which buckets are hot, and what the gateway holds of them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{BucketKey, Decision, Prefetch, Transaction};

use super::hot_bucket::{self, Cooled, HotBucket};
use crate::hashed_key::{HashedKey, KeyHasher};
use crate::{Outcome, StoreError};

/// How many buckets are watched at most, in some 200 KiB, and how many can be hot at once.
const PLACES: usize = 4096;

/// How many threads may look at once without waiting for each other.
const LOCKS: usize = 64;

/// A bucket is hot when this many units are asked of it within the time that a take should last.
const HOT: u64 = 8;

/// How many units are taken at first.
const FIRST: u64 = 2 * HOT;

/// The hot buckets of a process, shared by its workers.
///
/// It is a table of fixed size, which takes no memory before it is used. A bucket that finds its
/// place taken is not watched; a place goes to the bucket of which more is asked.
pub struct HotBuckets {
    hasher: KeyHasher,
    shards: Box<[Mutex<Vec<Place>>]>,
}

#[derive(Default)]
struct Place {
    /// Zero when there is none.
    tag: u64,
    /// How many units were asked of the bucket since.
    units: u64,
    since: Timestamp,
    kept: Option<Box<Kept>>,
}

/// A hot bucket, and the way to the task that takes units from it.
struct Kept {
    bucket: HotBucket,
    wake: Arc<Notify>,
    /// Changes with each take.
    taken: watch::Receiver<()>,
}

/// What a request gets of a bucket whose units are prefetched.
pub(super) enum Answer {
    /// A decision, by what is held.
    Decided(Decision),
    /// The units that are on their way have to be waited for.
    Wait(watch::Receiver<()>),
    /// The store decides.
    Ask,
    /// The same; and from now on, the bucket is hot.
    Heated(Keeping),
}

impl Default for HotBuckets {
    fn default() -> Self {
        Self {
            hasher: KeyHasher::random(),
            shards: (0..LOCKS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl HotBuckets {
    /// Decides by what is held, and takes the cost from it.
    pub(super) fn decide(
        self: &Arc<Self>,
        transaction: &Transaction,
        limit: Prefetch,
        now: Timestamp,
    ) -> Answer {
        let key = self.hasher.hash(&transaction.key);
        let decided = self.at(key, |place| place.decide(key, transaction, limit, now));
        match decided {
            None | Some(Decided::Ask) => Answer::Ask,
            Some(Decided::By(decision)) => Answer::Decided(decision),
            Some(Decided::Wait(taken)) => Answer::Wait(taken),
            Some(Decided::Heated { wake, taken }) => Answer::Heated(Keeping {
                buckets: Arc::clone(self),
                key,
                limit,
                wake,
                taken,
            }),
        }
    }

    /// Puts back what a request does not spend after all. If it is not for a hot bucket, or there
    /// is no room for it, the store has to get it back.
    pub(super) fn put_back(&self, transaction: &Transaction) -> bool {
        let key = self.hasher.hash(&transaction.key);
        let fits = self.kept(key, |bucket| bucket.put_back(transaction));
        fits.unwrap_or_default()
    }

    /// Loses what is held of a bucket that is reset.
    pub(super) fn forget(&self, key: &BucketKey) {
        self.kept(self.hasher.hash(key), HotBucket::forget);
    }

    /// Acts on a bucket if it is hot.
    fn kept<T>(&self, key: HashedKey, act: impl FnOnce(&mut HotBucket) -> T) -> Option<T> {
        self.at(key, |place| {
            let kept = place.kept.as_mut().filter(|_| place.tag == key.tag)?;
            Some(act(&mut kept.bucket))
        })?
    }

    #[expect(clippy::cast_possible_truncation, reason = "both remainders are small")]
    fn at<T>(&self, key: HashedKey, act: impl FnOnce(&mut Place) -> T) -> Option<T> {
        let place = (key.shard % PLACES as u64) as usize;
        let mut shard = self.shards.get(place % LOCKS)?.lock();
        if shard.is_empty() {
            shard.resize_with(PLACES / LOCKS, Place::default);
        }
        shard.get_mut(place / LOCKS).map(act)
    }
}

enum Decided {
    By(Decision),
    Wait(watch::Receiver<()>),
    Ask,
    Heated {
        wake: Arc<Notify>,
        taken: watch::Sender<()>,
    },
}

impl Place {
    fn decide(
        &mut self,
        key: HashedKey,
        transaction: &Transaction,
        limit: Prefetch,
        now: Timestamp,
    ) -> Decided {
        match &mut self.kept {
            Some(kept) if self.tag == key.tag => return kept.decide(transaction, now),
            Some(_) => return Decided::Ask,
            None => {}
        }
        if !self.is_hot(key, transaction, limit, now) {
            return Decided::Ask;
        }
        let (taken, receiver) = watch::channel(());
        let wake = Arc::<Notify>::default();
        self.kept = Some(Box::new(Kept {
            bucket: HotBucket::new(transaction, limit, FIRST, now),
            wake: Arc::clone(&wake),
            taken: receiver,
        }));
        Decided::Heated { wake, taken }
    }

    /// Counts what is asked of a bucket. Another bucket's place is taken when its time is over, or
    /// when as much is asked of the newcomer.
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
        self.units >= HOT
    }
}

impl Kept {
    fn decide(&mut self, transaction: &Transaction, now: Timestamp) -> Decided {
        let answer = self.bucket.decide(transaction, now);
        if self.bucket.is_wanting() {
            self.wake.notify_one();
        }
        match answer {
            hot_bucket::Answer::Decided(decision) => Decided::By(decision),
            hot_bucket::Answer::Ask => Decided::Ask,
            hot_bucket::Answer::Wait => {
                let mut taken = self.taken.clone();
                taken.mark_unchanged();
                Decided::Wait(taken)
            }
        }
    }
}

/// The right to take units from a bucket that is hot, and the duty to do so when they are wanted.
/// When it is dropped, the bucket is not hot any more, and requests no longer wait.
pub(super) struct Keeping {
    buckets: Arc<HotBuckets>,
    key: HashedKey,
    limit: Prefetch,
    wake: Arc<Notify>,
    taken: watch::Sender<()>,
}

impl Keeping {
    /// Waits until there may be something to do.
    pub(super) async fn wanted(&self) {
        self.wake.notified().await;
    }

    /// How often the bucket is to be looked after when nothing is wanted.
    pub(super) fn turn(&self) -> Duration {
        Duration::from(self.limit.max_age()) / 4
    }

    /// What to ask the store for, if anything, and the time.
    pub(super) fn begin(&self) -> Option<(Transaction, Timestamp)> {
        self.with(|bucket| Some((bucket.begin()?, bucket.seen())))
    }

    /// Tells what came of it, and lets go on who waits for it, unless something is to be asked for
    /// in its place.
    pub(super) fn taken(&self, answer: &Result<Outcome, StoreError>) -> Option<Transaction> {
        let next = self.with(|bucket| bucket.taken(answer));
        if next.is_none() {
            self.taken.send_replace(());
        }
        next
    }

    /// Stops holding units.
    pub(super) fn retire(&self) {
        self.with(|bucket| {
            bucket.retire();
            None::<()>
        });
    }

    /// Whether it is over with the bucket.
    pub(super) fn cool(&self, clock: &mut LastSeen) -> (Cooled, Timestamp) {
        let cooled = self.with(|bucket| {
            let now = clock.now(bucket.seen());
            Some((bucket.cool(now), now))
        });
        cooled.unwrap_or((Cooled::Over(None), Timestamp::default()))
    }

    fn with<T>(&self, act: impl FnOnce(&mut HotBucket) -> Option<T>) -> Option<T> {
        self.buckets.kept(self.key, act)?
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.buckets.at(self.key, |place| {
            place.kept = None;
            place.units = 0;
        });
    }
}

/// Tells the time by the last request, which was given it, and what has passed since.
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
