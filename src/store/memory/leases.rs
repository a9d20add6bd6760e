//! How many requests of each subject are in flight in this process.
//!
//! A subject is remembered only while it has some, so that there are never more entries than
//! requests in flight, which connections bound.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::limit::{BucketKey, BucketKeys, Claims, Mode};
use crate::store::hashed_key::{HashedKey, KeyHasher};
use crate::store::leases::judge;
use crate::store::{DecisionSource, Held, Leased, Leases, Outcome, StoreFuture};
use crate::time::Timestamp;

/// So many threads may count at once without waiting for each other; a power of two.
const SHARDS: usize = 32;

/// A shard keeps room for so many subjects when they are gone.
const SPARE: usize = 64;

/// Leases in the memory of this process. Clones share them.
#[derive(Clone)]
pub struct MemoryLeases(Arc<Inner>);

struct Inner {
    hasher: KeyHasher,
    shards: [Mutex<Counts>; SHARDS],
}

#[derive(Default)]
struct Counts {
    by_tag: HashMap<u64, Count>,
    /// Goes up whenever a subject is forgotten.
    generation: u64,
}

/// The requests of one subject.
#[derive(Clone, Copy)]
struct Count {
    requests: u64,
    /// Leases of other generations were forgotten, and are not counted here.
    generation: u64,
}

/// What one request was counted as, until this is dropped.
struct Counted {
    counts: MemoryLeases,
    keys: SmallVec<[(HashedKey, u64); 1]>,
}

impl Default for MemoryLeases {
    fn default() -> Self {
        Self(Arc::new(Inner {
            hasher: KeyHasher::random(),
            shards: std::array::from_fn(|_| Mutex::default()),
        }))
    }
}

impl MemoryLeases {
    /// Counts a request for all of its claims or for none.
    pub(in crate::store) fn acquire_now(&self, claims: &Claims) -> Leased {
        let keys: SmallVec<[HashedKey; 1]> =
            claims.iter().map(|claim| self.hash(&claim.key)).collect();
        let mut locked = self.lock(&keys);
        let mut others = SmallVec::<[u64; 1]>::new();
        let mut taken = SmallVec::<[(HashedKey, u64); 1]>::new();
        for (claim, &key) in claims.iter().zip(&keys) {
            let requests = match claim.kind {
                Mode::AllowOnly => 0,
                _ => locked.requests(key),
            };
            others.push(requests);
            if claim.takes_beside(requests) {
                // Counted at once, so that a subject that is there twice pays twice.
                taken.push((key, locked.add(key)));
            }
        }
        let (decisions, denied) = judge(claims, &others);
        if denied {
            taken
                .drain(..)
                .for_each(|(key, generation)| locked.take_off(key, generation));
        }
        let held = match taken.is_empty() {
            true => Held::NOTHING,
            false => Held::new(Counted {
                counts: self.clone(),
                keys: taken,
            }),
        };
        Leased {
            outcome: Outcome {
                decisions,
                basis: DecisionSource::Store,
            },
            held,
        }
    }

    /// Subjects with requests in flight.
    #[cfg(test)]
    fn subjects(&self) -> usize {
        let shards = self.0.shards.iter();
        shards.map(|shard| shard.lock().by_tag.len()).sum()
    }

    fn hash(&self, key: &BucketKey) -> HashedKey {
        self.0.hasher.hash(key)
    }

    /// Locks the shards of these keys, each once, in ascending order, so that no two requests wait
    /// for each other.
    fn lock(&self, keys: &[HashedKey]) -> Locked<'_> {
        let mut wanted: SmallVec<[usize; 1]> = keys.iter().map(|&key| shard(key)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let shards = wanted
            .into_iter()
            .filter_map(|index| Some((index, self.0.shards.get(index)?.lock())))
            .collect();
        Locked(shards)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "only the low bits pick a shard"
)]
fn shard(key: HashedKey) -> usize {
    key.shard as usize % SHARDS
}

/// The locked shards of some subjects.
struct Locked<'c>(SmallVec<[(usize, MutexGuard<'c, Counts>); 1]>);

impl Locked<'_> {
    fn requests(&mut self, key: HashedKey) -> u64 {
        let counts = self.counts(key);
        counts
            .and_then(|counts| counts.by_tag.get(&key.tag))
            .map_or(0, |count| count.requests)
    }

    /// Counts one request more, and returns its generation.
    fn add(&mut self, key: HashedKey) -> u64 {
        self.counts(key).map_or(0, |counts| counts.add(key.tag))
    }

    /// Counts one request less, unless it was forgotten.
    fn take_off(&mut self, key: HashedKey, generation: u64) {
        if let Some(counts) = self.counts(key) {
            counts.take_off(key.tag, generation);
        }
    }

    fn forget(&mut self, key: HashedKey) {
        if let Some(counts) = self.counts(key) {
            counts.generation += 1;
            counts.remove(key.tag);
        }
    }

    fn counts(&mut self, key: HashedKey) -> Option<&mut Counts> {
        let wanted = shard(key);
        let mut shards = self.0.iter_mut();
        let found = shards.find(|(index, _)| *index == wanted);
        found.map(|(_, counts)| &mut **counts)
    }
}

impl Counts {
    fn add(&mut self, tag: u64) -> u64 {
        let none = Count {
            requests: 0,
            generation: self.generation,
        };
        let count = self.by_tag.entry(tag).or_insert(none);
        count.requests += 1;
        count.generation
    }

    fn take_off(&mut self, tag: u64, generation: u64) {
        let count = self.by_tag.get_mut(&tag);
        let Some(count) = count.filter(|count| count.generation == generation) else {
            return;
        };
        count.requests -= 1;
        if count.requests == 0 {
            self.remove(tag);
        }
    }

    fn remove(&mut self, tag: u64) {
        let counts = &mut self.by_tag;
        counts.remove(&tag);
        if counts.capacity() > SPARE && counts.len() < counts.capacity() / 8 {
            counts.shrink_to(SPARE.max(2 * counts.len()));
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for (key, generation) in self.keys.drain(..) {
            self.counts.lock(&[key]).take_off(key, generation);
        }
    }
}

impl Leases for MemoryLeases {
    fn acquire(&self, claims: Claims, _: Timestamp) -> StoreFuture<Leased> {
        StoreFuture::ready(self.acquire_now(&claims))
    }

    /// Leases that were forgotten are told by their generation when they end.
    fn forget(&self, keys: BucketKeys) -> StoreFuture<()> {
        for key in &keys {
            let key = self.hash(key);
            self.lock(&[key]).forget(key);
        }
        StoreFuture::ready(())
    }

    /// What is held here ends with the process.
    fn end(&self) -> StoreFuture<()> {
        StoreFuture::ready(())
    }
}

#[cfg(test)]
mod tests;
