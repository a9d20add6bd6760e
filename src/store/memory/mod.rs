//! Buckets in the memory of this process, within a hard bound.
//!
//! The store is cut into shards, each a table behind a lock of its own. A batch locks the
//! shards of all its buckets, in ascending order so that two batches never wait for each other,
//! decides every transaction, and then takes from all buckets or from none. It never waits for
//! anything else while it holds a lock.

mod leases;
mod mixed;
mod shards;
mod table;
mod window_table;
mod windows;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;

use crate::limit::{Batch, BucketKeys, Decision, Kind, Transaction};
use crate::store::hashed_key::{HashedKey, KeyHasher};
use crate::store::{Basis, Outcome, Pending, Store};
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
    /// Of buckets that are counted in windows, which are larger, there may be as many beside those
    /// of GCRA, and they take 128 bytes for each bucket of this number in all, or 1 MiB if that is
    /// more.
    pub max_buckets: NonZeroUsize,
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
        let keys = self.hash_all(batch);
        let mut locked = self.shards.lock(&keys);
        let looks = look_at_all(batch, &keys, &locked, now);
        self.clamp_left_overs(batch, &looks, &mut locked, now);
        let denied = looks.iter().any(|look| look.denies);
        if !denied {
            self.take_all(&looks, &mut locked, now);
        }
        Outcome {
            decisions: decisions(batch, &looks, denied),
            basis: Basis::Store,
        }
    }

    /// Who is in flight, to be counted beside the buckets.
    pub fn leases(&self) -> &MemoryLeases {
        &self.leases
    }

    fn hash_all(&self, batch: &Batch) -> Keys {
        batch.iter().map(|one| self.hasher.hash(&one.key)).collect()
    }

    fn take_all(&self, looks: &[Look], locked: &mut Locked<'_>, now: Timestamp) {
        for look in looks {
            if let Some(debt) = look.debt_after {
                self.set(look.key, now + debt, locked, now);
            }
        }
    }

    /// Cuts what a greater limit has left behind, so that it stays cut when the limit grows again.
    fn clamp_left_overs(
        &self,
        batch: &Batch,
        looks: &[Look],
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) {
        for (one, look) in batch.iter().zip(looks) {
            if one.quota.is_left_over(look.debt) {
                self.set(look.key, now + one.quota.tolerance(), locked, now);
            }
        }
    }

    fn set(&self, key: HashedKey, tat: Timestamp, locked: &mut Locked<'_>, now: Timestamp) {
        if locked.set(key, tat, now) {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn refund_one(&self, one: &Transaction, now: Timestamp) {
        if is_windowed(one) && one.kind.spends() {
            return self.refund_window(one);
        }
        let Some(taken) = one.quota.increment(one.cost).filter(|_| one.kind.spends()) else {
            return;
        };
        let key = self.hasher.hash(&one.key);
        let mut locked = self.shards.lock(&[key]);
        if let Some(tat) = locked.tat(key) {
            let debt = tat.since(now).saturating_sub(taken);
            self.set(key, now + debt, &mut locked, now);
        }
    }
}

type Keys = SmallVec<[HashedKey; 3]>;

/// What a transaction finds in its bucket.
struct Look {
    key: HashedKey,
    debt: Nanos,
    denies: bool,
    /// The debt that the transaction leaves when the batch is allowed and it takes its cost.
    debt_after: Option<Nanos>,
}

impl Look {
    fn new(one: &Transaction, key: HashedKey, debt: Nanos) -> Self {
        let fits = one.fitting_increment(debt);
        Self {
            key,
            debt,
            denies: fits.is_none() && one.kind.checks(),
            debt_after: fits
                .filter(|_| one.kind.spends())
                .map(|taken| one.quota.effective(debt) + taken),
        }
    }
}

fn look_at_all(
    batch: &Batch,
    keys: &Keys,
    locked: &Locked<'_>,
    now: Timestamp,
) -> SmallVec<[Look; 3]> {
    let mut looks = SmallVec::<[Look; 3]>::new();
    for (one, &key) in batch.iter().zip(keys) {
        let debt = match one.kind {
            Kind::AllowOnly => Nanos::ZERO,
            _ => debt_before(&looks, key, locked, now),
        };
        looks.push(Look::new(one, key, debt));
    }
    looks
}

/// A bucket's debt, with what earlier transactions of the same batch are about to take from it.
fn debt_before(looks: &[Look], key: HashedKey, locked: &Locked<'_>, now: Timestamp) -> Nanos {
    let earlier = looks.iter().rev().filter(|look| look.key == key);
    earlier
        .filter_map(|look| look.debt_after)
        .next()
        .unwrap_or_else(|| locked.tat(key).map_or(Nanos::ZERO, |tat| tat.since(now)))
}

fn decisions(batch: &Batch, looks: &[Look], denied: bool) -> SmallVec<[Option<Decision>; 3]> {
    let decision = |(one, look): (&Transaction, &Look)| {
        Some(if denied && !look.denies {
            one.untouched(look.debt)
        } else {
            one.decide(look.debt)
        })
    };
    batch.iter().zip(looks).map(decision).collect()
}

impl Store for Memory {
    fn decide(&self, batch: Batch, now: Timestamp) -> Pending<Outcome> {
        Pending::ready(self.decide_now(&batch, now))
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> Pending<()> {
        for one in &batch {
            self.refund_one(one, now);
        }
        Pending::ready(())
    }

    fn reset(&self, keys: BucketKeys) -> Pending<()> {
        for key in &keys {
            let key = self.hasher.hash(key);
            self.shards.lock(&[key]).remove(key);
            self.windows.remove(key);
        }
        Pending::ready(())
    }
}

#[cfg(test)]
mod tests;
