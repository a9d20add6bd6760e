//! Remembers denials in the process, so that a flood costs the store nothing.
//!
//! A bucket that denied keeps denying until enough has come back, whatever else happens to it:
//! other requests only take more. Only a refund or a reset makes it allow sooner. Those that go
//! through this process remove the denial; those made elsewhere are seen after a second at most,
//! since no denial is remembered for longer.
//!
//! A denial must not hide a longer one of the same request. So the other buckets of a denied batch
//! are remembered as well, and a batch is answered from memory only if all of its buckets are
//! known. A bucket that allowed is forgotten when a request takes from it.

use std::num::NonZeroU64;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, BucketKey, BucketKeys, Decision, Quota, Transaction};
use weir_runtime::sync::Mutex;
use weir_runtime::sync::atomic::{AtomicU32, Ordering};

use crate::hashed_key::{HashedKey, KeyHasher};
use crate::{DecisionSource, Decisions, Outcome, OwedBatch, Store, StoreFuture};

/// How long a denial is remembered at most.
const MAX_REMEMBERED: Nanos = Nanos::from_secs(1);

/// How many buckets are remembered at most, in 320 KiB, and 72 bytes for each of a windowed limit.
const PLACES: usize = 8192;

/// The number of locks, each over a part of the buckets.
const LOCKS: usize = 64;

/// Recent denials, shared by all workers of a process.
///
/// It is a table of fixed size, in which a denial replaces an older one that hashes to the same
/// place.
pub struct DenialCache {
    hasher: KeyHasher,
    shards: Box<[Mutex<Box<[Denial]>>]>,
    /// How often something was removed from each of the shards.
    removals: Box<[AtomicU32]>,
}

/// A bucket of a batch that was denied.
#[derive(Default)]
struct Denial {
    /// Zero when there is none.
    tag: u64,
    seen: Timestamp,
    /// Whether the bucket denied, and not another one of its batch.
    denied: bool,
    bucket: SeenBucket,
}

/// How a bucket was seen.
enum SeenBucket {
    /// By GCRA. Its debt answers for every quota and cost.
    Debt { tat: Timestamp },
    /// In a window.
    Window(Box<SeenWindow>),
}

/// What a window's denial says holds for the same quota and the same cost only: until its retry
/// time the bucket has no room for that cost, whatever others take from it.
struct SeenWindow {
    quota: Quota,
    cost: NonZeroU64,
    remaining: u64,
    retry_at: Timestamp,
    reset_at: Timestamp,
}

/// What is remembered of a bucket for a transaction.
enum Remembered {
    Denies(Decision),
    Allows,
}

impl Default for SeenBucket {
    fn default() -> Self {
        let tat = Timestamp::default();
        Self::Debt { tat }
    }
}

impl Default for DenialCache {
    fn default() -> Self {
        let shard = || Mutex::new((0..PLACES / LOCKS).map(|_| Denial::default()).collect());
        Self {
            hasher: KeyHasher::random(),
            shards: (0..LOCKS).map(|_| shard()).collect(),
            removals: (0..LOCKS).map(|_| AtomicU32::default()).collect(),
        }
    }
}

impl DenialCache {
    /// Remembers what the store said after so many removals. If there were more since, it may have
    /// said so before a refund.
    fn remember(&self, key: HashedKey, removals: u32, denial: Denial) {
        self.at(key, |place| {
            if self.removals(key) == removals {
                *place = denial;
            }
        });
    }

    fn removals(&self, key: HashedKey) -> u32 {
        let (shard, _) = place(key);
        let removals = self.removals.get(shard);
        removals.map_or(0, |removals| removals.load(Ordering::Acquire))
    }

    /// Removes what is remembered of a key.
    fn remove(&self, key: HashedKey) {
        let (shard, _) = place(key);
        if let Some(removals) = self.removals.get(shard) {
            removals.fetch_add(1, Ordering::AcqRel);
        }
        self.at(key, |place| {
            if place.tag == key.tag {
                *place = Denial::default();
            }
        });
    }

    /// How a bucket of a batch that was denied a moment ago stands to this transaction, whose quota
    /// and cost need not be those that were denied before.
    fn stand(
        &self,
        key: HashedKey,
        transaction: &Transaction,
        now: Timestamp,
    ) -> Option<Remembered> {
        if !transaction.mode.checks() && !transaction.mode.spends() {
            return None;
        }
        self.at(key, |denial| {
            let is_own = denial.tag == key.tag;
            is_own.then(|| denial.stand(transaction, now)).flatten()
        })?
    }

    fn at<T>(&self, key: HashedKey, act: impl FnOnce(&mut Denial) -> T) -> Option<T> {
        let (shard, place) = place(key);
        let mut shard = self.shards.get(shard)?.lock();
        shard.get_mut(place).map(act)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "both remainders are small")]
fn place(key: HashedKey) -> (usize, usize) {
    let place = key.shard % PLACES as u64;
    (place as usize % LOCKS, place as usize / LOCKS)
}

impl Denial {
    /// What was decided about a key, with the transaction if its limit is counted in windows.
    fn new(
        key: HashedKey,
        windowed: Option<&Transaction>,
        decision: &Decision,
        now: Timestamp,
    ) -> Self {
        let reset_at = now + decision.reset_in;
        Self {
            tag: key.tag,
            seen: now,
            denied: !decision.allowed,
            bucket: match windowed {
                None => SeenBucket::Debt { tat: reset_at },
                Some(transaction) => SeenBucket::Window(Box::new(SeenWindow {
                    quota: transaction.quota,
                    cost: transaction.cost,
                    remaining: decision.remaining,
                    retry_at: now + decision.retry_in,
                    reset_at,
                })),
            },
        }
    }

    fn stand(&self, transaction: &Transaction, now: Timestamp) -> Option<Remembered> {
        // On a clock that has stepped back the age of the denial is unknown.
        let is_fresh = self.seen <= now && now.since(self.seen) < MAX_REMEMBERED;
        match &self.bucket {
            _ if !is_fresh => None,
            SeenBucket::Debt { tat } if !transaction.is_windowed() => {
                let debt = tat.since(now);
                // Another definition made the debt, so the store has to be asked: this one may
                // count by a level of its own.
                if transaction.quota.is_foreign(debt) {
                    return None;
                }
                match transaction.decide(debt) {
                    decision if decision.fits() => Some(Remembered::Allows),
                    decision => self.denied.then_some(Remembered::Denies(decision)),
                }
            }
            SeenBucket::Window(window) if window.quota == transaction.quota => {
                self.stand_in(window, transaction, now)
            }
            _ => None,
        }
    }

    fn stand_in(
        &self,
        window: &SeenWindow,
        transaction: &Transaction,
        now: Timestamp,
    ) -> Option<Remembered> {
        // What never fits is denied beyond the end of the window, when all of it is there again.
        if self.seen < window.reset_at && window.reset_at <= now {
            return None;
        }
        let cost = transaction.cost;
        if !self.denied {
            return (cost.get() <= window.remaining).then_some(Remembered::Allows);
        }
        let retry_in = match transaction.fits_beside(0) {
            true => window.retry_at.since(now),
            false => Nanos::NEVER,
        };
        (cost == window.cost && now < window.retry_at).then(|| {
            Remembered::Denies(Decision {
                allowed: false,
                remaining: window.remaining,
                retry_in,
                reset_in: window.reset_at.since(now),
                reset_before_secs: window.reset_at.since(now).whole_secs(),
            })
        })
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
        let (mut is_denied, mut is_known) = (false, true);
        let mut changing = Keys::new();
        let mut decisions: Decisions = smallvec![None; batch.len()];
        for ((transaction, &key), place) in batch.iter().zip(keys).zip(&mut decisions) {
            match self.denials.stand(key, transaction, now) {
                Some(Remembered::Denies(decision)) if transaction.mode.checks() => {
                    is_denied = true;
                    *place = Some(decision);
                    // What comes behind a term decides nothing.
                    if is_known && transaction.key.class().is_term() {
                        break;
                    }
                }
                Some(Remembered::Allows) if transaction.mode.spends() => changing.push(key),
                Some(_) => {}
                None => is_known &= !transaction.mode.checks(),
            }
        }
        if is_denied && is_known {
            return Some(Outcome {
                decisions,
                source: DecisionSource::Remembered,
            });
        }
        changing.iter().for_each(|&key| self.denials.remove(key));
        None
    }

    fn hash(&self, key: &BucketKey) -> HashedKey {
        self.denials.hasher.hash(key)
    }
}

type Keys = SmallVec<[HashedKey; 3]>;

/// The batch of a call, kept to record its denials.
struct DenialRecorder {
    /// Each with how often something was removed from its shard before the store was asked.
    keys: SmallVec<[(HashedKey, u32); 3]>,
    /// The batch, when some of it is counted in windows.
    windowed: Option<Box<Batch>>,
    now: Timestamp,
}

impl DenialRecorder {
    fn new(batch: &Batch, keys: &Keys, denials: &DenialCache, now: Timestamp) -> Self {
        let windowed = batch
            .iter()
            .any(Transaction::is_windowed)
            .then(|| Box::new(batch.clone()));
        let keys = keys.iter().map(|&key| (key, denials.removals(key)));
        Self {
            keys: keys.collect(),
            windowed,
            now,
        }
    }

    /// Records the buckets of a batch that the store denied. A fallback's denials are its own
    /// affair. A bucket that the batch has twice was seen with less than it has: the later transaction
    /// is decided beside the earlier one's cost, which a denied batch does not take.
    fn record(&self, denials: &DenialCache, outcome: &Outcome) {
        if outcome.source != DecisionSource::Store || outcome.is_allowed() {
            return;
        }
        let keys = self.keys.iter().zip(&outcome.decisions).enumerate();
        for (at, (&(key, removals), decision)) in keys {
            let Some(decision) = decision else { continue };
            if self.keys.iter().filter(|(other, _)| *other == key).count() > 1 {
                continue;
            }
            let transaction = self.windowed.as_ref().and_then(|batch| batch.get(at));
            let windowed = transaction.filter(|transaction| transaction.is_windowed());
            let denial = Denial::new(key, windowed, decision, self.now);
            denials.remember(key, removals, denial);
        }
    }
}

impl<S: Store> Store for DenialCached<S> {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.cached_or(S::decide, batch, now)
    }

    fn admit(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.cached_or(S::admit, batch, now)
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        let keys: Keys = owed
            .iter()
            .map(|owed| self.hash(&owed.transaction.key))
            .collect();
        let answer = self.store.refund(owed, now);
        self.remove_after(keys, answer)
    }

    fn refund_last(
        &self,
        transaction: Transaction,
        by: DecisionSource,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        let keys = Keys::from_iter([self.hash(&transaction.key)]);
        let answer = self.store.refund_last(transaction, by, latest, now);
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
        ask: impl FnOnce(&S, &Batch, Timestamp) -> StoreFuture<Outcome>,
        batch: &Batch,
        now: Timestamp,
    ) -> StoreFuture<Outcome> {
        let keys: Keys = batch
            .iter()
            .map(|transaction| self.hash(&transaction.key))
            .collect();
        if let Some(outcome) = self.cached(batch, &keys, now) {
            return StoreFuture::ready(outcome);
        }
        let denials = Arc::clone(&self.denials);
        let recorder = DenialRecorder::new(batch, &keys, &denials, now);
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

#[cfg(all(test, feature = "interleavings"))]
mod interleavings;
#[cfg(test)]
mod tests;
