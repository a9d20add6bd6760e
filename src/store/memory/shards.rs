//! The shards of a memory store and how they are locked.
//!
//! Every other shard is for the buckets of bans, of which there may be as many as of limits: no
//! flood of subjects that limits count takes their place.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::table::{Table, tag};
use crate::limit::{BucketClass, BucketKey, Decision, Transaction};
use crate::store::hashed_key::{HashedKey, KeyHasher};
use crate::time::Timestamp;

/// A shard is worth its lock from so many buckets on.
const BUCKETS_PER_SHARD: usize = 16_384;

/// More locks than this are of no use to any number of threads; it also keeps the longest hold of
/// one, to grow a shard's table, at some milliseconds for a store of a hundred million buckets.
const MOST_SHARDS: usize = 256;

/// Tables, each behind its lock. Their number is a power of two.
pub(super) struct Shards(Box<[Mutex<Table>]>);

/// What stands for a key in these tables. The lowest bit of its shard tells buckets of bans from
/// those of limits.
pub(super) fn hash(hasher: &KeyHasher, key: &BucketKey) -> HashedKey {
    let hashed = hasher.hash(key);
    HashedKey {
        shard: hashed.shard << 1 | u64::from(key.class() != BucketClass::Limit),
        tag: tag(hashed),
    }
}

impl Shards {
    /// Shards for so many buckets of limits in all, and as many of bans.
    pub(super) fn new(max_buckets: usize) -> Self {
        let count = shard_count(max_buckets);
        let limit = |shard| max_buckets / count + usize::from(shard < max_buckets % count);
        Self(
            (0..2 * count)
                .map(|shard| Mutex::new(Table::new(limit(shard / 2))))
                .collect(),
        )
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Buckets and bytes of all shards.
    pub(super) fn size(&self) -> (usize, usize) {
        self.0.iter().fold((0, 0), |(buckets, bytes), shard| {
            let table = shard.lock();
            (buckets + table.len(), bytes + table.bytes())
        })
    }

    /// Sweeps one shard.
    pub(super) fn sweep(&self, shard: usize, now: Timestamp) {
        if let Some(shard) = self.0.get(shard) {
            shard.lock().sweep(now);
        }
    }

    /// Locks the shard of a key; every key has one.
    pub(super) fn lock_one(&self, key: HashedKey) -> Option<MutexGuard<'_, Table>> {
        Some(self.0.get(self.index(key))?.lock())
    }

    /// Locks the shards of these keys, each once, in ascending order.
    pub(super) fn lock(&self, keys: &[HashedKey]) -> Locked<'_> {
        let mut tables = SmallVec::new();
        let mut next = keys.iter().map(|&key| self.index(key)).min();
        while let Some((index, shard)) = next.and_then(|index| Some((index, self.0.get(index)?))) {
            tables.push((index, shard.lock()));
            let others = keys.iter().map(|&key| self.index(key));
            next = others.filter(|&other| other > index).min();
        }
        Locked {
            shards: self,
            tables,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "only the low bits pick a shard"
    )]
    fn index(&self, key: HashedKey) -> usize {
        key.shard as usize & (self.0.len() - 1)
    }
}

fn shard_count(max_buckets: usize) -> usize {
    let most = (max_buckets / BUCKETS_PER_SHARD).clamp(1, MOST_SHARDS);
    // The power of two that is not greater.
    1 << most.ilog2()
}

/// The locked shards of one batch. A key that it was not made for reads as a full bucket.
pub(super) struct Locked<'s> {
    shards: &'s Shards,
    tables: SmallVec<[(usize, MutexGuard<'s, Table>); 3]>,
}

impl Locked<'_> {
    pub(super) fn tat(&self, key: HashedKey) -> Option<Timestamp> {
        let wanted = self.shards.index(key);
        let (_, table) = self.tables.iter().find(|(index, _)| *index == wanted)?;
        table.tat(key.tag)
    }

    /// Tells whether a bucket was evicted.
    pub(super) fn set(
        &mut self,
        key: HashedKey,
        one: &Transaction,
        after: &Decision,
        now: Timestamp,
    ) -> bool {
        self.table(key)
            .is_some_and(|table| table.set(table.look(key.tag), one, after, now))
    }

    /// Notes that a bucket denies a transaction, if it is kept.
    pub(super) fn note_denial(&mut self, key: HashedKey, one: &Transaction) {
        if let Some(table) = self.table(key) {
            table.note_denial(table.look(key.tag), one);
        }
    }

    fn table(&mut self, key: HashedKey) -> Option<&mut Table> {
        let wanted = self.shards.index(key);
        let found = self.tables.iter_mut().find(|(index, _)| *index == wanted);
        found.map(|(_, table)| &mut **table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract::{NOW, spend};
    use crate::time::Nanos;

    #[test]
    fn the_number_of_shards_grows_with_the_store_by_powers_of_two() {
        assert_eq!(shard_count(1), 1);
        assert_eq!(shard_count(32_767), 1);
        assert_eq!(shard_count(1_000_000), 32);
        assert_eq!(shard_count(10_000_000), 256);
        assert_eq!(shard_count(usize::MAX), 256);
    }

    #[test]
    fn a_shard_is_locked_once_for_several_keys() {
        let shards = Shards::new(1);
        let hasher = KeyHasher::random();
        let [one, other, ban] = ["L:a", "L:b", ":ban:B:a"].map(|key| hash(&hasher, &key.into()));
        let mut locked = shards.lock(&[one, other, one, ban]);
        assert_eq!(locked.tables.len(), 2);
        let taken = spend("L:a", 1).decide(Nanos::ZERO);
        locked.set(one, &spend("L:a", 1), &taken, NOW);
        assert_eq!(locked.tat(one), Some(NOW + taken.reset_in));
        assert_eq!((locked.tat(other), locked.tat(ban)), (None, None));
    }
}
