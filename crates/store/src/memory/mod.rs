//! Buckets in the memory of this process, within a hard bound.
//!
//! The store is cut into shards, each a table behind a lock of its own. A batch locks the
//! shards of all its buckets, in ascending order so that two batches never wait for each other,
//! decides every transaction, and then takes from all buckets or from none. It never waits for
//! anything else while it holds a lock.
//!
//! Buckets that are counted in windows are in tables and shards of their own.

mod batch;
mod eviction;
mod leases;
mod shards;
mod table;
mod window_table;

use std::num::NonZeroUsize;

use weir_limit::time::Timestamp;
use weir_limit::{Batch, BucketKeys, Transaction};
use weir_runtime::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::hashed_key::{HashedKey, KeyHasher};
use crate::{DecisionSource, Outcome, Owed, OwedBatch, Store, StoreFuture};
pub use leases::MemoryLeases;
use shards::{Bounded, Shards};
use table::Table;
use window_table::WindowTable;

/// How much a memory store may remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// The greatest number of buckets. Each takes at most some 32 bytes, 18 when all are there.
    /// They are divided among shards by hash, so the first eviction comes when the fullest shard
    /// is full: a few in a hundred before the whole store is.
    ///
    /// As many buckets of bans (with their strikes and offences) may be kept beside them.
    ///
    /// As many buckets that are counted in windows, which are larger, may be kept beside those of
    /// GCRA, and they take 128 bytes for each bucket of this number in all, or 1 MiB if that is
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
    /// Buckets that were evicted before they were full, since the store was made.
    pub evicted: u64,
}

/// The memory store: exact, bounded, and shared by all workers of a process.
///
/// Its clock may step back. A step of less than a second finds every bucket as it was; a greater
/// one may find a bucket removed that had been full.
pub struct Memory {
    hasher: KeyHasher,
    buckets: Shards<Table>,
    windows: Shards<WindowTable>,
    leases: MemoryLeases,
    evicted: AtomicU64,
    next_to_sweep: AtomicUsize,
}

impl Memory {
    /// An empty store. Memory is allocated as buckets come.
    pub fn new(settings: MemorySettings) -> Self {
        let max_buckets = settings.max_buckets.get();
        Self {
            hasher: KeyHasher::random(),
            buckets: table::shards(max_buckets),
            windows: window_table::shards(max_buckets),
            leases: MemoryLeases::default(),
            evicted: AtomicU64::new(0),
            next_to_sweep: AtomicUsize::new(0),
        }
    }

    /// Removes the expired buckets of the next shard in turn, and gives memory back when few are
    /// left in it. At most some tens of thousands of slots are looked at, so it may be called on a
    /// worker's thread; [`Memory::shards`] calls go once round.
    pub fn sweep(&self, now: Timestamp) {
        let turn = self.next_to_sweep.fetch_add(1, Ordering::Relaxed);
        self.buckets.sweep(turn, now);
        self.windows.sweep(turn, now);
    }

    /// Removes all expired buckets; what [`Memory::sweep`] does in [`Memory::shards`] calls.
    pub fn sweep_all(&self, now: Timestamp) {
        self.buckets.each().for_each(|mut table| table.sweep(now));
        self.windows.each().for_each(|mut table| table.sweep(now));
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.buckets.count()
    }

    /// What the store holds and has lost. Looks at every shard, so it is not for every request.
    pub fn stats(&self) -> MemoryStats {
        let (buckets, bytes) = self.buckets.size();
        let (windows, window_bytes) = self.windows.size();
        MemoryStats {
            buckets: buckets + windows,
            bytes: bytes + window_bytes,
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    pub(super) fn decide_now(&self, batch: &Batch, now: Timestamp) -> Outcome {
        Outcome {
            decisions: self.decide_batch(batch, now),
            source: DecisionSource::Store,
        }
    }

    /// How many requests are in flight, counted beside the buckets.
    pub fn leases(&self) -> &MemoryLeases {
        &self.leases
    }

    /// The key of a transaction's bucket in the table of its algorithm.
    fn key(&self, transaction: &Transaction) -> HashedKey {
        let key = self.hasher.hash(&transaction.key);
        if transaction.is_windowed() {
            window_table::key(key, transaction.quota.algorithm())
        } else {
            table::key(key, transaction.key.class())
        }
    }

    fn count_evicted(&self, buckets: u64) {
        if buckets > 0 {
            self.evicted.fetch_add(buckets, Ordering::Relaxed);
        }
    }
}

impl Store for Memory {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        StoreFuture::ready(self.decide_now(batch, now))
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        for owed in &owed {
            self.refund_one(owed, Timestamp::MAX, now);
        }
        StoreFuture::ready(())
    }

    fn refund_last(
        &self,
        transaction: Transaction,
        _: DecisionSource,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        self.refund_one(&Owed::whole(transaction), latest, now);
        StoreFuture::ready(())
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        for key in &keys {
            let hashed = self.hasher.hash(key);
            let bucket = table::key(hashed, key.class());
            if let Some(mut table) = self.buckets.lock_one(bucket) {
                table.remove(bucket.tag);
            }
            for window in window_table::keys(hashed) {
                if let Some(mut table) = self.windows.lock_one(window) {
                    table.remove(window.tag);
                }
            }
        }
        StoreFuture::ready(())
    }
}

#[cfg(all(test, feature = "interleavings"))]
mod interleavings;
#[cfg(test)]
mod tests;
