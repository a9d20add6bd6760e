//! How many requests of each subject are in flight in this process.
//!
//! A subject has an entry only while it has some, so that there are never more entries than
//! requests in flight, which connections bound.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use weir_limit::time::Timestamp;
use weir_limit::{BucketKey, BucketKeys, Claims, Mode};

use super::shards::{Locked, Shards};
use crate::hashed_key::{HashedKey, KeyHasher};
use crate::{DecisionSource, LeaseGuard, Leased, Leases, Outcome, StoreFuture, decide_claims};

/// The number of locks; a power of two.
const SHARDS: usize = 32;

/// The capacity in subjects that a shard keeps when they are gone.
const SPARE: usize = 64;

/// Leases in the memory of this process. Clones share them.
#[derive(Clone)]
pub struct MemoryLeases(Arc<SharedCounts>);

struct SharedCounts {
    hasher: KeyHasher,
    shards: Shards<Counts>,
}

#[derive(Default)]
struct Counts {
    by_tag: HashMap<u64, Count>,
    generation: u64,
}

#[derive(Clone, Copy)]
struct Count {
    requests: u64,
    /// Leases of other generations were deleted, and are not counted here.
    generation: u64,
}

/// The counts of one request, taken off when this is dropped.
struct CountedRequest {
    counts: MemoryLeases,
    keys: SmallVec<[(HashedKey, u64); 1]>,
}

impl Default for MemoryLeases {
    fn default() -> Self {
        Self(Arc::new(SharedCounts {
            hasher: KeyHasher::random(),
            shards: Shards::new(SHARDS, |_| Counts::default()),
        }))
    }
}

impl MemoryLeases {
    /// Counts a request for all of its claims or for none.
    pub fn acquire_now(&self, claims: &Claims) -> Leased {
        let keys: SmallVec<[HashedKey; 1]> =
            claims.iter().map(|claim| self.hash(&claim.key)).collect();
        let mut locked = self.lock(&keys);
        let mut others = SmallVec::<[u64; 1]>::new();
        let mut taken = SmallVec::<[(HashedKey, u64); 1]>::new();
        for (claim, &key) in claims.iter().zip(&keys) {
            let requests = match claim.mode {
                Mode::AllowOnly => 0,
                _ => locked.requests(key),
            };
            others.push(requests);
            if claim.takes_beside(requests) {
                // Counted at once, so that a subject that is there twice pays twice.
                taken.push((key, locked.add(key)));
            }
        }
        let (decisions, denied) = decide_claims(claims, &others);
        if denied {
            taken
                .drain(..)
                .for_each(|(key, generation)| locked.take_off(key, generation));
        }
        let guard = match taken.is_empty() {
            true => LeaseGuard::EMPTY,
            false => LeaseGuard::new(CountedRequest {
                counts: self.clone(),
                keys: taken,
            }),
        };
        Leased {
            outcome: Outcome {
                decisions,
                source: DecisionSource::Store,
            },
            guard,
        }
    }

    #[cfg(test)]
    fn subjects(&self) -> usize {
        self.0.shards.each().map(|counts| counts.by_tag.len()).sum()
    }

    fn hash(&self, key: &BucketKey) -> HashedKey {
        self.0.hasher.hash(key)
    }

    fn lock(&self, keys: &[HashedKey]) -> Locked<'_, Counts> {
        self.0.shards.lock(keys.iter().copied())
    }
}

impl Locked<'_, Counts> {
    fn requests(&mut self, key: HashedKey) -> u64 {
        let count = self
            .table(key)
            .and_then(|counts| counts.by_tag.get(&key.tag));
        count.map_or(0, |count| count.requests)
    }

    /// Counts one request more, and returns its generation.
    fn add(&mut self, key: HashedKey) -> u64 {
        self.table(key).map_or(0, |counts| counts.add(key.tag))
    }

    /// Counts one request less, unless its lease was deleted.
    fn take_off(&mut self, key: HashedKey, generation: u64) {
        if let Some(counts) = self.table(key) {
            counts.take_off(key.tag, generation);
        }
    }

    fn delete(&mut self, key: HashedKey) {
        if let Some(counts) = self.table(key) {
            counts.generation += 1;
            counts.remove(key.tag);
        }
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

impl Drop for CountedRequest {
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

    /// Deleted leases are recognised by their generation when they end.
    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        for key in &keys {
            let key = self.hash(key);
            self.lock(&[key]).delete(key);
        }
        StoreFuture::ready(())
    }

    /// What is held here ends with the process.
    fn end(&self) -> StoreFuture<()> {
        StoreFuture::ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use weir_limit::Claim;

    use super::*;
    use crate::tests::lease_contract::{Subject, lease_contract};

    impl Subject for MemoryLeases {
        fn leases(&self) -> &dyn Leases {
            self
        }
    }

    lease_contract!(MemoryLeases::default());

    fn claims(key: &str, most: u64) -> Claims {
        let most = NonZeroU64::new(most).unwrap();
        [Claim::new(key.into(), most)].into()
    }

    #[test]
    fn no_entry_is_kept_of_subjects_without_a_request_in_flight() {
        let in_flight = MemoryLeases::default();
        for number in 0..1000 {
            drop(in_flight.acquire_now(&claims(&format!("L:{number}"), 1)));
        }
        assert_eq!(in_flight.subjects(), 0);
        let one = in_flight.acquire_now(&claims("L:a", 1));
        drop(in_flight.acquire_now(&claims("L:a", 1)));
        assert_eq!(in_flight.subjects(), 1);
        drop(one);
        assert_eq!(in_flight.subjects(), 0);
    }

    #[test]
    fn memory_is_given_back_when_many_subjects_are_gone() {
        let in_flight = MemoryLeases::default();
        let key = |number: u32| format!("L:{number}");
        let held: Vec<_> = (0..20_000)
            .map(|number| in_flight.acquire_now(&claims(&key(number), 1)))
            .collect();
        drop(held);
        let shards = in_flight.0.shards.each();
        let most = shards.map(|counts| counts.by_tag.capacity()).max().unwrap();
        assert!(most <= 2 * SPARE, "{most}");
    }

    #[test]
    fn threads_never_hold_more_than_there_are_places() {
        let in_flight = MemoryLeases::default();
        let inside = AtomicU64::new(0);
        let client = || {
            for _ in 0..2000 {
                // Two subjects, of which the second is never full on its own.
                let both = [claims("L:a", 3), claims("L:b", 4)].concat();
                let leased = in_flight.acquire_now(&both.into());
                if leased.outcome.is_allowed() {
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(client)).collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(in_flight.subjects(), 0);
    }

    #[tokio::test]
    async fn a_deleted_lease_takes_nothing_off_those_that_came_after_it() {
        let in_flight = MemoryLeases::default();
        let deleted = in_flight.acquire_now(&claims("L:a", 1));
        let keys = [BucketKey::from("L:a")];
        in_flight.delete(keys.into()).await.unwrap();
        let after = in_flight.acquire_now(&claims("L:a", 1));
        assert!(after.outcome.is_allowed());
        drop(deleted);
        let refused = in_flight.acquire_now(&claims("L:a", 1));
        assert!(!refused.outcome.is_allowed());
    }
}
