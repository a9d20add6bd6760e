//! The buckets of a memory store that are counted in windows, apart from those of GCRA.
//!
//! They are cut into shards of their own. A batch that needs shards of both kinds locks those of
//! GCRA first and then these, each kind in ascending order, so no two batches wait for each other.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::window_table::WindowTable;
use crate::limit::{Algorithm, Quota, Transaction, Window};
use crate::store::hashed_key::HashedKey;
use crate::time::Timestamp;

/// Bytes of window states for each bucket that the store may hold.
const BYTES_PER_BUCKET: usize = 128;

/// Even the smallest store has room for some large buckets.
const FEWEST_BYTES: usize = 1 << 20;

/// A shard is worth its lock from so many buckets on.
const BUCKETS_PER_SHARD: usize = 65_536;

const MOST_SHARDS: usize = 64;

/// Tables, each behind its lock. Their number is a power of two.
pub(super) struct Windows(Box<[Mutex<WindowTable>]>);

impl Windows {
    /// Tables for so many buckets in all, and 128 bytes for each of them, but 1 MiB at least.
    pub(super) fn new(max_buckets: usize) -> Self {
        let most = (max_buckets / BUCKETS_PER_SHARD).clamp(1, MOST_SHARDS);
        let count = 1_usize << most.ilog2();
        let bytes = max_buckets
            .saturating_mul(BYTES_PER_BUCKET)
            .max(FEWEST_BYTES);
        let table = || Mutex::new(WindowTable::new(max_buckets / count, bytes / count));
        Self((0..count).map(|_| table()).collect())
    }

    /// Buckets and bytes of all shards.
    pub(super) fn size(&self) -> (usize, usize) {
        self.0.iter().fold((0, 0), |(buckets, bytes), shard| {
            let table = shard.lock();
            (buckets + table.len(), bytes + table.bytes())
        })
    }

    /// Sweeps one shard; `turn` goes round.
    pub(super) fn sweep(&self, turn: usize, now: Timestamp) {
        if let Some(shard) = self.0.get(turn % self.0.len()) {
            shard.lock().sweep(now);
        }
    }

    /// Sweeps all shards.
    pub(super) fn sweep_all(&self, now: Timestamp) {
        for shard in &self.0 {
            shard.lock().sweep(now);
        }
    }

    /// Locks the shards of these keys, each once, in ascending order.
    pub(super) fn lock(&self, keys: &[HashedKey]) -> LockedWindows<'_> {
        let mut wanted: SmallVec<[usize; 3]> = keys.iter().map(|&key| self.index(key)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let tables = wanted
            .into_iter()
            .filter_map(|index| Some((index, self.0.get(index)?.lock())))
            .collect();
        LockedWindows {
            windows: self,
            tables,
        }
    }

    /// Forgets a bucket, whichever algorithm it was counted by.
    pub(super) fn remove(&self, key: HashedKey) {
        let mut locked = self.lock(&[key]);
        if let Some(table) = locked.table(key) {
            for mark in [FIXED, SLIDING, LOG] {
                table.remove(key.tag ^ mark);
            }
        }
    }

    /// The lowest bit is the same for all limits.
    fn index(&self, key: HashedKey) -> usize {
        (key.shard >> 1) as usize & (self.0.len() - 1)
    }
}

/// What is added to tags, so that a limit whose algorithm was changed finds no state of another.
const FIXED: u64 = 0x1d8e_4e27_c47d_124f;
const SLIDING: u64 = 0xeb44_acca_b455_d165;
const LOG: u64 = 0x9e6c_63d0_676a_9a99;

fn tag(key: HashedKey, quota: &Quota) -> u64 {
    key.tag
        ^ match quota.algorithm() {
            Algorithm::SlidingWindow { .. } => SLIDING,
            Algorithm::SlidingLog { .. } => LOG,
            Algorithm::FixedWindow(_) | Algorithm::Gcra | Algorithm::InFlight => FIXED,
        }
}

/// The locked shards of one batch. A key that it was not made for reads as a full bucket.
pub(super) struct LockedWindows<'w> {
    windows: &'w Windows,
    tables: SmallVec<[(usize, MutexGuard<'w, WindowTable>); 3]>,
}

impl LockedWindows<'_> {
    pub(super) fn get(&self, key: HashedKey, quota: &Quota) -> Option<&Window> {
        let wanted = self.windows.index(key);
        let (_, table) = self.tables.iter().find(|(index, _)| *index == wanted)?;
        table.get(tag(key, quota))
    }

    /// Changes a bucket that is remembered.
    pub(super) fn change(
        &mut self,
        key: HashedKey,
        one: &Transaction,
        now: Timestamp,
        act: impl FnOnce(&mut Window),
    ) {
        if let Some(table) = self.table(key) {
            table.change(tag(key, &one.quota), one, now, act);
        }
    }

    /// Notes that a bucket denies a transaction that it was changed for, if it is remembered.
    pub(super) fn note_denial(&mut self, key: HashedKey, one: &Transaction) {
        if let Some(table) = self.table(key) {
            table.note_denial(tag(key, &one.quota));
        }
    }

    /// Changes a bucket, and returns how many others were forgotten for it before their time.
    pub(super) fn put(
        &mut self,
        key: HashedKey,
        one: &Transaction,
        now: Timestamp,
        act: impl FnOnce(&mut Window),
    ) -> u64 {
        let tag = tag(key, &one.quota);
        self.table(key)
            .map_or(0, |table| table.put(tag, one, now, act))
    }

    fn table(&mut self, key: HashedKey) -> Option<&mut WindowTable> {
        let wanted = self.windows.index(key);
        let found = self.tables.iter_mut().find(|(index, _)| *index == wanted);
        found.map(|(_, table)| &mut **table)
    }
}
