//! Buckets in the memory of this process, within a hard bound.
//!
//! The store is cut into shards, each a table behind a lock of its own. A batch locks the
//! shards of all its buckets, in ascending order so that two batches never wait for each other,
//! decides every transaction, and then takes from all buckets or from none. It never waits for
//! anything else while it holds a lock.

mod eviction;
mod leases;
mod mixed;
mod shards;
mod table;
mod window_table;
mod windows;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::{SmallVec, smallvec};

use crate::limit::{Batch, BucketKey, BucketKeys, Decision, Mode, Transaction};
use crate::store::hashed_key::{HashedKey, KeyHasher};
use crate::store::{DecisionSource, Outcome, Store, StoreFuture};
use crate::time::{Nanos, Timestamp};
pub use leases::MemoryLeases;
use mixed::is_windowed;
use shards::{Locked, Shards};
use windows::Windows;

/// How much a memory store may remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// The greatest number of buckets. Each takes at most some 32 bytes, 18 when all are there.
    /// They are divided among shards by hash, so the first eviction comes when the fullest shard
    /// is full: a few in a hundred before the whole store is.
    ///
    /// Of buckets of bans (with their strikes and offences) there may be as many beside them.
    ///
    /// Of buckets that are counted in windows, which are larger, there may be as many beside those
    /// of GCRA, and they take 128 bytes for each bucket of this number in all, or 1 MiB if that is
    /// more.
    pub max_buckets: NonZeroUsize,
}

/// Room for a million buckets.
impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            max_buckets: const { NonZeroUsize::new(1_000_000).unwrap() },
        }
    }
}

/// What a memory store holds and has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Buckets that are remembered now.
    pub buckets: usize,
    /// Bytes that their slots and states take.
    pub bytes: usize,
    /// Buckets that were forgotten before they were full, since the store was made.
    pub evicted: u64,
}

/// The memory store: exact, bounded, and shared by all workers of a process.
///
/// Its clock may step back. A step of less than a second finds every bucket as it was; a greater
/// one may find a bucket forgotten that had been full.
pub struct Memory {
    hasher: KeyHasher,
    shards: Shards,
    windows: Windows,
    leases: MemoryLeases,
    evicted: AtomicU64,
    next_to_sweep: AtomicUsize,
}

impl Memory {
    /// An empty store. Memory is allocated as buckets come.
    pub fn new(settings: MemorySettings) -> Self {
        Self {
            hasher: KeyHasher::random(),
            shards: Shards::new(settings.max_buckets.get()),
            windows: Windows::new(settings.max_buckets.get()),
            leases: MemoryLeases::default(),
            evicted: AtomicU64::new(0),
            next_to_sweep: AtomicUsize::new(0),
        }
    }

    /// Forgets the expired buckets of the next shard in turn, and gives memory back when few are
    /// left in it. At most some tens of thousands of slots are looked at, so it may be called on a
    /// worker's thread; [`Memory::shards`] calls go once round.
    pub fn sweep(&self, now: Timestamp) {
        let turn = self.next_to_sweep.fetch_add(1, Ordering::Relaxed);
        self.shards.sweep(turn % self.shards.count(), now);
        self.windows.sweep(turn, now);
    }

    /// Forgets all expired buckets; what [`Memory::sweep`] does in [`Memory::shards`] calls.
    pub fn sweep_all(&self, now: Timestamp) {
        for shard in 0..self.shards.count() {
            self.shards.sweep(shard, now);
        }
        self.windows.sweep_all(now);
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.count()
    }

    /// What the store holds and has lost. Looks at every shard, so it is not for every request.
    pub fn stats(&self) -> MemoryStats {
        let (buckets, bytes) = self.shards.size();
        let (windows, window_bytes) = self.windows.size();
        MemoryStats {
            buckets: buckets + windows,
            bytes: bytes + window_bytes,
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    pub(super) fn decide_now(&self, batch: &Batch, now: Timestamp) -> Outcome {
        if batch.iter().any(is_windowed) {
            return self.decide_mixed(batch, now);
        }
        let decisions = match batch.as_slice() {
            [one] => smallvec![self.decide_one(one, now)],
            _ => self.decide_all(batch, now),
        };
        let basis = DecisionSource::Store;
        Outcome { decisions, basis }
    }

    /// Decides a batch of one, as most are: there is one shard to lock, and no other transaction to
    /// heed.
    fn decide_one(&self, one: &Transaction, now: Timestamp) -> Option<Decision> {
        let key = self.hash(&one.key);
        let mut table = self.shards.lock_one(key)?;
        let found = table.look(key.tag);
        let debt = match one.kind {
            Mode::AllowOnly => Nanos::ZERO,
            _ => found.tat.since(now),
        };
        let look = Look::new(one, key, debt);
        if look.takes() || look.cuts() {
            self.count_evicted(table.set(found, one, &look.decision, now));
        }
        if look.finds_no_room() {
            table.note_denial(found, one);
        }
        Some(look.decision)
    }

    fn decide_all(&self, batch: &Batch, now: Timestamp) -> Decisions {
        let keys = self.hash_all(batch);
        let mut locked = self.shards.lock(&keys);
        let looks = look_at_all(batch, &keys, &locked, now);
        let denied = looks.iter().any(Look::denies);
        self.leave_debts(batch, &looks, denied, &mut locked, now);
        decisions(batch, &looks, denied)
    }

    /// Who is in flight, to be counted beside the buckets.
    pub fn leases(&self) -> &MemoryLeases {
        &self.leases
    }

    fn hash(&self, key: &BucketKey) -> HashedKey {
        shards::hash(&self.hasher, key)
    }

    fn hash_all(&self, batch: &Batch) -> Keys {
        batch.iter().map(|one| self.hash(&one.key)).collect()
    }

    /// Takes what is taken unless the batch is denied. What a greater limit has left behind is cut
    /// either way, so that it stays cut when the limit grows again.
    fn leave_debts(
        &self,
        batch: &Batch,
        looks: &[Look],
        denied: bool,
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) {
        for (one, look) in batch.iter().zip(looks) {
            if look.cuts() || look.takes() && !denied {
                self.count_evicted(locked.set(look.key, one, &look.decision, now));
            }
            if look.finds_no_room() {
                locked.note_denial(look.key, one);
            }
        }
    }

    fn count_evicted(&self, evicted: bool) {
        if evicted {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn refund_one(&self, one: &Transaction, now: Timestamp) {
        if is_windowed(one) && one.kind.spends() {
            return self.refund_window(one, now);
        }
        let Some(taken) = one.quota.increment(one.cost).filter(|_| one.kind.spends()) else {
            return;
        };
        let key = self.hash(&one.key);
        let Some(mut table) = self.shards.lock_one(key) else {
            return;
        };
        let found = table.look(key.tag);
        let debt = found.tat.since(now);
        if !debt.is_zero() {
            let reset_in = debt.saturating_sub(taken);
            let after = Decision {
                reset_in,
                ..one.untouched(reset_in)
            };
            table.set(found, one, &after, now);
        }
    }
}

type Keys = SmallVec<[HashedKey; 3]>;
type Decisions = SmallVec<[Option<Decision>; 3]>;

/// What a transaction finds in its bucket, and what comes of it by itself.
struct Look {
    key: HashedKey,
    kind: Mode,
    debt: Nanos,
    decision: Decision,
}

impl Look {
    fn new(one: &Transaction, key: HashedKey, debt: Nanos) -> Self {
        let decision = one.decide(debt);
        Self {
            key,
            kind: one.kind,
            debt,
            decision,
        }
    }

    fn denies(&self) -> bool {
        !self.decision.allowed
    }

    /// Whether the cost does not fit now, but would fit a full bucket.
    fn finds_no_room(&self) -> bool {
        !self.decision.fits() && self.decision.retry_in != Nanos::NEVER
    }

    /// Whether units are taken when the batch is allowed: nothing else makes a debt greater.
    fn takes(&self) -> bool {
        self.decision.reset_in > self.debt
    }

    /// Whether the debt is too great to stem from the limit as it is now: nothing else makes it
    /// smaller. Who only looks changes nothing.
    fn cuts(&self) -> bool {
        self.kind.spends() && self.decision.reset_in < self.debt
    }
}

type Looks = SmallVec<[Look; 3]>;

fn look_at_all(batch: &Batch, keys: &Keys, locked: &Locked<'_>, now: Timestamp) -> Looks {
    let mut looks = Looks::new();
    for (one, &key) in batch.iter().zip(keys) {
        let debt = match one.kind {
            Mode::AllowOnly => Nanos::ZERO,
            _ => debt_before(&looks, key, locked, now),
        };
        looks.push(Look::new(one, key, debt));
    }
    looks
}

/// A bucket's debt, with what earlier transactions of the same batch are about to take from it.
fn debt_before(looks: &[Look], key: HashedKey, locked: &Locked<'_>, now: Timestamp) -> Nanos {
    let mut earlier = looks.iter().rev();
    match earlier.find(|look| look.key == key && look.takes()) {
        Some(look) => look.decision.reset_in,
        None => debt(locked.tat(key), now),
    }
}

/// A bucket that is not remembered is full.
fn debt(tat: Option<Timestamp>, now: Timestamp) -> Nanos {
    tat.map_or(Nanos::ZERO, |tat| tat.since(now))
}

fn decisions(batch: &Batch, looks: &[Look], denied: bool) -> Decisions {
    let decision = |(one, look): (&Transaction, &Look)| {
        Some(match denied && !look.denies() {
            true => one.untouched(look.debt),
            false => look.decision,
        })
    };
    batch.iter().zip(looks).map(decision).collect()
}

impl Store for Memory {
    fn decide(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        StoreFuture::ready(self.decide_now(&batch, now))
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        for one in &batch {
            self.refund_one(one, now);
        }
        StoreFuture::ready(())
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        for key in &keys {
            let key = self.hash(key);
            if let Some(mut table) = self.shards.lock_one(key) {
                table.remove(key.tag);
            }
            self.windows.remove(key);
        }
        StoreFuture::ready(())
    }
}

#[cfg(test)]
mod tests;
