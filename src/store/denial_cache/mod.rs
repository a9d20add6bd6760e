//! Remembers denials in the process, so that a flood costs the store nothing.
//!
//! A bucket that denied keeps denying until enough has come back, whatever else happens to it:
//! other requests only take more. Only a refund or a reset makes it allow sooner. Those that go
//! through this process remove the denial; those made elsewhere are seen after a second at most,
//! since no denial is remembered for longer.

use std::num::NonZeroU64;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use crate::limit::{Batch, BucketKey, BucketKeys, Decision, Quota, Transaction};
use crate::store::hashed_key::{HashedKey, KeyHasher};
use crate::store::{DecisionSource, Outcome, Store, StoreFuture};
use crate::time::{Nanos, Timestamp};

/// How long a denial is remembered at most.
const LONGEST: Nanos = Nanos::from_secs(1);

/// How many denials are remembered at most, in 192 KiB.
const PLACES: usize = 8192;

/// How many threads may read at once without waiting for each other.
const LOCKS: usize = 64;

/// Recent denials, shared by all workers of a process.
///
/// It is a table of fixed size, in which a denial replaces an older one that hashes to the same
/// place.
pub struct DenialCache {
    hasher: KeyHasher,
    shards: Box<[Mutex<Box<[Denial]>>]>,
    windows: WindowDenials,
}

#[derive(Clone, Copy, Default)]
struct Denial {
    /// Zero when there is none.
    tag: u64,
    tat: Timestamp,
    seen: Timestamp,
}

impl Default for DenialCache {
    fn default() -> Self {
        let shard = || Mutex::new(vec![Denial::default(); PLACES / LOCKS].into_boxed_slice());
        Self {
            hasher: KeyHasher::random(),
            shards: (0..LOCKS).map(|_| shard()).collect(),
            windows: WindowDenials::default(),
        }
    }
}

impl DenialCache {
    fn remember(&self, key: HashedKey, tat: Timestamp, seen: Timestamp) {
        let tag = key.tag;
        self.at(key, |place| *place = Denial { tag, tat, seen });
    }

    fn remove(&self, key: HashedKey) {
        self.at(key, |place| {
            if place.tag == key.tag {
                *place = Denial::default();
            }
        });
        self.windows.remove(key);
    }

    /// The debt of a bucket that denied a moment ago.
    fn debt(&self, key: HashedKey, now: Timestamp) -> Option<Nanos> {
        let denial = self.at(key, |place| *place)?;
        // On a clock that has stepped back the age of the denial is unknown.
        let is_fresh = denial.seen <= now && now.since(denial.seen) < LONGEST;
        (denial.tag == key.tag && is_fresh).then(|| denial.tat.since(now))
    }

    fn at<T>(&self, key: HashedKey, act: impl FnOnce(&mut Denial) -> T) -> Option<T> {
        let (shard, place) = place(key, PLACES);
        let mut shard = self.shards.get(shard)?.lock();
        shard.get_mut(place).map(act)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "both remainders are small")]
fn place(key: HashedKey, places: usize) -> (usize, usize) {
    let place = key.shard % places as u64;
    (place as usize % LOCKS, place as usize / LOCKS)
}

/// How many denials are remembered at most, in some 256 KiB.
const WINDOW_PLACES: usize = 2048;

/// Denials of limits that are counted in windows, in a table of fixed size that takes no memory
/// before the first of them.
///
/// Unlike GCRA's debt, what such a denial says holds for the same quota and the same cost only:
/// until its retry time the bucket has no room for that cost, whatever others take from it.
struct WindowDenials(Box<[Mutex<Vec<Option<WindowDenial>>>]>);

#[derive(Clone, Copy)]
struct WindowDenial {
    tag: u64,
    quota: Quota,
    cost: NonZeroU64,
    remaining: u64,
    retry_at: Timestamp,
    reset_at: Timestamp,
    seen: Timestamp,
}

impl Default for WindowDenials {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Mutex::default()).collect())
    }
}

impl WindowDenials {
    fn remember(
        &self,
        key: HashedKey,
        transaction: &Transaction,
        denied: &Decision,
        now: Timestamp,
    ) {
        let (shard, place) = place(key, WINDOW_PLACES);
        let Some(shard) = self.0.get(shard) else {
            return;
        };
        let mut shard = shard.lock();
        shard.resize(WINDOW_PLACES / LOCKS, None);
        if let Some(place) = shard.get_mut(place) {
            *place = Some(WindowDenial {
                tag: key.tag,
                quota: transaction.quota,
                cost: transaction.cost,
                remaining: denied.remaining,
                retry_at: now + denied.retry_in,
                reset_at: now + denied.reset_in,
                seen: now,
            });
        }
    }

    fn remove(&self, key: HashedKey) {
        let (shard, place) = place(key, WINDOW_PLACES);
        if let Some(shard) = self.0.get(shard)
            && let Some(place) = shard.lock().get_mut(place)
            && place.is_some_and(|denial| denial.tag == key.tag)
        {
            *place = None;
        }
    }

    /// What a bucket denied a moment ago, when it still does.
    fn decision(
        &self,
        key: HashedKey,
        transaction: &Transaction,
        now: Timestamp,
    ) -> Option<Decision> {
        let (shard, place) = place(key, WINDOW_PLACES);
        let denial = (*self.0.get(shard)?.lock().get(place)?)?;
        let is_same = denial.tag == key.tag
            && denial.quota == transaction.quota
            && denial.cost == transaction.cost;
        let is_fresh = denial.seen <= now && now.since(denial.seen) < LONGEST;
        (is_same && is_fresh && now < denial.retry_at).then(|| Decision {
            allowed: false,
            remaining: denial.remaining,
            retry_in: denial.retry_in(transaction, now),
            reset_in: denial.reset_at.since(now),
        })
    }
}

impl WindowDenial {
    fn retry_in(&self, transaction: &Transaction, now: Timestamp) -> Nanos {
        if transaction.fits_beside(0) {
            self.retry_at.since(now)
        } else {
            Nanos::NEVER
        }
    }
}

/// A store that is not asked about what it denied a moment ago.
pub struct DenialCached<S> {
    store: S,
    denials: Arc<DenialCache>,
}

impl<S> DenialCached<S> {
    /// Puts the cache, shared by all workers, before a store.
    pub fn new(store: S, denials: Arc<DenialCache>) -> Self {
        Self { store, denials }
    }

    /// The store behind the cache.
    pub fn get_ref(&self) -> &S {
        &self.store
    }

    fn cached(&self, batch: &Batch, keys: &Keys, now: Timestamp) -> Option<Outcome> {
        if batch.iter().any(Transaction::is_counted_when_denied) {
            // Where denials are counted, every one of them has to reach the store.
            return None;
        }
        let mut transactions = batch.iter().zip(keys).enumerate();
        let (index, denied) = transactions.find_map(|(index, (transaction, &key))| {
            let denied = self.still_denied(transaction, key, now)?;
            Some((index, denied))
        })?;
        let mut decisions = smallvec![None; batch.len()];
        if let Some(decision) = decisions.get_mut(index) {
            *decision = Some(denied);
        }
        Some(Outcome {
            decisions,
            source: DecisionSource::Remembered,
        })
    }

    /// The bucket is judged by this transaction's quota and cost, which need not be those that
    /// were denied before.
    fn still_denied(
        &self,
        transaction: &Transaction,
        key: HashedKey,
        now: Timestamp,
    ) -> Option<Decision> {
        if !transaction.mode.checks() {
            return None;
        }
        if transaction.is_windowed() {
            return self.denials.windows.decision(key, transaction, now);
        }
        let debt = self.denials.debt(key, now)?;
        if transaction.quota.is_stale(debt) {
            // Another definition made the debt, so the store has to be asked: this one may count by
            // a level of its own.
            return None;
        }
        let decision = transaction.decide(debt);
        (!decision.allowed).then_some(decision)
    }

    fn hash(&self, key: &BucketKey) -> HashedKey {
        self.denials.hasher.hash(key)
    }
}

type Keys = SmallVec<[HashedKey; 3]>;

/// What has to be known of a batch to record its denials.
struct DenialRecorder {
    keys: Keys,
    /// The batch, when some of it is counted in windows.
    windowed: Option<Box<Batch>>,
    now: Timestamp,
}

impl DenialRecorder {
    fn new(batch: &Batch, keys: Keys, now: Timestamp) -> Self {
        let windowed = batch
            .iter()
            .any(Transaction::is_windowed)
            .then(|| Box::new(batch.clone()));
        Self {
            keys,
            windowed,
            now,
        }
    }

    /// Records what the store denied. A fallback's denials are its own affair.
    fn record(&self, denials: &DenialCache, outcome: &Outcome) {
        if outcome.source != DecisionSource::Store {
            return;
        }
        for (at, (&key, decision)) in self.keys.iter().zip(&outcome.decisions).enumerate() {
            let Some(denied) = decision.filter(|decision| !decision.allowed) else {
                continue;
            };
            let transaction = self.windowed.as_ref().and_then(|batch| batch.get(at));
            match transaction.filter(|transaction| transaction.is_windowed()) {
                Some(transaction) => denials
                    .windows
                    .remember(key, transaction, &denied, self.now),
                None => denials.remember(key, self.now + denied.reset_in, self.now),
            }
        }
    }
}

impl<S: Store> Store for DenialCached<S> {
    fn decide(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.cached_or(S::decide, batch, now)
    }

    fn admit(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.cached_or(S::admit, batch, now)
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        let keys: Keys = batch
            .iter()
            .map(|transaction| self.hash(&transaction.key))
            .collect();
        let answer = self.store.refund(batch, now);
        self.remove_after(keys, answer)
    }

    fn refund_last(
        &self,
        transaction: Transaction,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        let keys = Keys::from_iter([self.hash(&transaction.key)]);
        let answer = self.store.refund_last(transaction, latest, now);
        self.remove_after(keys, answer)
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        let hashed: Keys = keys.iter().map(|key| self.hash(key)).collect();
        let answer = self.store.reset(keys);
        self.remove_after(hashed, answer)
    }

    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }
}

impl<S: Store> DenialCached<S> {
    /// Answers from the cache, or else asks the store and records what it denies.
    fn cached_or(
        &self,
        ask: impl FnOnce(&S, Batch, Timestamp) -> StoreFuture<Outcome>,
        batch: Batch,
        now: Timestamp,
    ) -> StoreFuture<Outcome> {
        let keys: Keys = batch
            .iter()
            .map(|transaction| self.hash(&transaction.key))
            .collect();
        if let Some(outcome) = self.cached(&batch, &keys, now) {
            return StoreFuture::ready(outcome);
        }
        let denials = Arc::clone(&self.denials);
        let recorder = DenialRecorder::new(&batch, keys, now);
        match ask(&self.store, batch, now) {
            StoreFuture::Ready(answer) => {
                if let Some(Ok(outcome)) = &answer {
                    recorder.record(&denials, outcome);
                }
                StoreFuture::Ready(answer)
            }
            StoreFuture::Waiting(answer) => StoreFuture::waiting(async move {
                let outcome = answer.await?;
                recorder.record(&denials, &outcome);
                Ok(outcome)
            }),
        }
    }

    /// Removes denials once the store has changed, lest one from before be recorded again
    /// meanwhile.
    fn remove_after(&self, keys: Keys, answer: StoreFuture<()>) -> StoreFuture<()> {
        let denials = Arc::clone(&self.denials);
        let remove = move || keys.iter().for_each(|&key| denials.remove(key));
        match answer {
            StoreFuture::Ready(answer) => {
                remove();
                StoreFuture::Ready(answer)
            }
            StoreFuture::Waiting(answer) => StoreFuture::waiting(async move {
                let answer = answer.await;
                remove();
                answer
            }),
        }
    }
}

#[cfg(test)]
mod tests;
