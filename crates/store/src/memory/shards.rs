//! Tables cut into shards, each behind a lock of its own.
//!
//! Several shards are locked in ascending order, so that no two threads wait for each other.

use smallvec::SmallVec;
use weir_limit::time::Timestamp;
use weir_runtime::sync::{Mutex, MutexGuard};

use crate::hashed_key::HashedKey;

/// What a shard holds, when it has to be kept within bounds.
pub(super) trait Bounded {
    fn len(&self) -> usize;

    /// The bytes that they take at most.
    fn bytes(&self) -> usize;

    /// Removes the buckets that have expired, and gives memory back when few are left.
    fn sweep(&mut self, now: Timestamp);
}

/// Tables, each behind its lock. Their number is a power of two.
pub(super) struct Shards<T>(Box<[Mutex<T>]>);

/// The locked shards of some keys.
pub(super) struct Locked<'s, T> {
    mask: usize,
    tables: SmallVec<[(usize, MutexGuard<'s, T>); 3]>,
}

impl<T> Shards<T> {
    /// Shards to a number that is a power of two; `table` makes each.
    pub(super) fn new(count: usize, table: impl FnMut(usize) -> T) -> Self {
        Self((0..count).map(table).map(Mutex::new).collect())
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn lock_one(&self, key: HashedKey) -> Option<MutexGuard<'_, T>> {
        Some(self.0.get(index(key, self.mask()))?.lock())
    }

    /// Locks the shards of these keys, each once.
    pub(super) fn lock(&self, keys: impl Iterator<Item = HashedKey> + Clone) -> Locked<'_, T> {
        let mask = self.mask();
        let indices = keys.map(|key| index(key, mask));
        let mut tables = SmallVec::new();
        let mut next = indices.clone().min();
        while let Some((at, shard)) = next.and_then(|at| Some((at, self.0.get(at)?))) {
            tables.push((at, shard.lock()));
            next = indices.clone().filter(|&other| other > at).min();
        }
        Locked { mask, tables }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.0.iter().map(Mutex::lock)
    }

    fn mask(&self) -> usize {
        self.0.len() - 1
    }
}

impl<T: Bounded> Shards<T> {
    pub(super) fn size(&self) -> (usize, usize) {
        self.each().fold((0, 0), |(buckets, bytes), table| {
            (buckets + table.len(), bytes + table.bytes())
        })
    }

    /// Sweeps one shard; `turn` goes round.
    pub(super) fn sweep(&self, turn: usize, now: Timestamp) {
        if let Some(shard) = self.0.get(turn & self.mask()) {
            shard.lock().sweep(now);
        }
    }
}

impl<T> Locked<'_, T> {
    /// The table of a key; none of a key whose shard is not locked.
    pub(super) fn table(&mut self, key: HashedKey) -> Option<&mut T> {
        let wanted = index(key, self.mask);
        let mut tables = self.tables.iter_mut();
        let (_, table) = tables.find(|(at, _)| *at == wanted)?;
        Some(table)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "only the low bits pick a shard"
)]
fn index(key: HashedKey, mask: usize) -> usize {
    key.shard as usize & mask
}

/// How many shards are worth their locks: a power of two.
pub(super) fn count(buckets: usize, buckets_per_shard: usize, most: usize) -> usize {
    let most = (buckets / buckets_per_shard).clamp(1, most);
    // The power of two that is not greater.
    1 << most.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_shards_grows_with_the_store_by_powers_of_two() {
        let count = |buckets| count(buckets, 16_384, 256);
        assert_eq!(count(1), 1);
        assert_eq!(count(32_767), 1);
        assert_eq!(count(1_000_000), 32);
        assert_eq!(count(10_000_000), 256);
        assert_eq!(count(usize::MAX), 256);
    }

    #[test]
    fn a_shard_is_locked_once_for_several_keys() {
        let shards = Shards::new(4, |shard| shard);
        let keys = [3, 1, 7].map(|shard| HashedKey { shard, tag: 1 });
        let mut locked = shards.lock(keys.into_iter());
        assert_eq!(locked.tables.len(), 2);
        let tables = keys.map(|key| *locked.table(key).unwrap());
        assert_eq!(tables, [3, 1, 3]);
        let other = HashedKey { shard: 2, tag: 1 };
        assert!(locked.table(other).is_none());
    }
}
