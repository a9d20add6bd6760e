//! One shard's buckets that are counted in windows.
//!
//! # Memory
//! Unlike a TAT, the state of a window may be large: a sliding window has up to some sixty numbers,
//! a sliding log one for each unit. So a table is bounded in bytes as well as in buckets. What it
//! does for both bounds is the same: it evicts buckets, of a sample the one that costs the least.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use weir_limit::time::Timestamp;
use weir_limit::{Algorithm, CLOCK_TOLERANCE, Transaction, Window};

use super::eviction::{EvictionCost, cheapest};
use super::shards::{self, Bounded, Shards};
use crate::hashed_key::HashedKey;

/// Bytes of window states for each bucket that the store may hold.
const BYTES_PER_BUCKET: usize = 128;

/// Even the smallest store has room for some large buckets.
const MIN_BYTES: usize = 1 << 20;

/// Buckets for each shard: with fewer, a shard is not worth its lock.
const BUCKETS_PER_SHARD: usize = 65_536;

const MAX_SHARDS: usize = 64;

/// What is added to tags, so that a limit whose algorithm was changed finds no state of another.
const FIXED: u64 = 0x1d8e_4e27_c47d_124f;
const SLIDING: u64 = 0xeb44_acca_b455_d165;
const LOG: u64 = 0x9e6c_63d0_676a_9a99;

/// What a bucket takes at most beside its state: twice its entry, as lists grow to twice their
/// size, and its place in the index.
const ENTRY_BYTES: usize = 2 * size_of::<Entry>() + 40;

/// What `docs/ALGORITHMS.md` promises.
const _: () = assert!(ENTRY_BYTES <= 152);

/// The bit of a headroom that tells that the bucket has denied; the others are for a number of
/// units.
const HAS_DENIED: u32 = 1 << 31;

struct Entry {
    tag: u64,
    expires_at: Timestamp,
    /// Units that were spent when the bucket was looked at last, and how many may be before it
    /// denies what it was asked, with the bit that tells whether it has.
    spent: u32,
    headroom: u32,
    window: Window,
}

impl Entry {
    /// Notes how the bucket stands to a transaction that was asked of it.
    fn note(&mut self, transaction: &Transaction, now: Timestamp) {
        let most = HAS_DENIED - 1;
        let units = |number: u64| u32::try_from(number).map_or(most, |number| number.min(most));
        let (cost, burst) = (transaction.cost.get(), transaction.quota.burst().get());
        if self.spent == 0 {
            self.headroom = most;
        }
        // What never fits is denied by a full bucket as well.
        let headroom = units(burst.checked_sub(cost).unwrap_or(burst));
        self.headroom = headroom.min(self.headroom & most) | self.headroom & HAS_DENIED;
        self.spent = units(self.window.used(&transaction.quota, now));
        self.expires_at = self.window.expires_at(&transaction.quota);
    }

    fn eviction_cost(&self, now: Timestamp) -> EvictionCost {
        let units = (self.spent, self.headroom & !HAS_DENIED);
        let has_denied = self.headroom & HAS_DENIED != 0;
        EvictionCost::from_units(units, has_denied, self.expires_at, now)
    }

    /// Whether the bucket is full, and would be on any clock within the clock tolerance.
    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at + CLOCK_TOLERANCE <= now
    }
}

/// Shards for `max_buckets` in all, and 128 bytes for each of them, but 1 MiB at least.
pub(super) fn shards(max_buckets: usize) -> Shards<WindowTable> {
    let count = shards::count(max_buckets, BUCKETS_PER_SHARD, MAX_SHARDS);
    let bytes = max_buckets.saturating_mul(BYTES_PER_BUCKET).max(MIN_BYTES);
    Shards::new(count, |_| {
        WindowTable::new(max_buckets / count, bytes / count)
    })
}

/// The key of a bucket in these tables, by its algorithm.
pub(super) fn key(key: HashedKey, algorithm: Algorithm) -> HashedKey {
    let mark = match algorithm {
        Algorithm::SlidingWindow { .. } => SLIDING,
        Algorithm::SlidingLog { .. } => LOG,
        Algorithm::FixedWindow(_) | Algorithm::Gcra | Algorithm::InFlight => FIXED,
    };
    marked(key, mark)
}

/// The keys by every algorithm.
pub(super) fn keys(key: HashedKey) -> [HashedKey; 3] {
    [FIXED, SLIDING, LOG].map(|mark| marked(key, mark))
}

fn marked(key: HashedKey, mark: u64) -> HashedKey {
    let tag = key.tag ^ mark;
    HashedKey { tag, ..key }
}

pub(super) struct WindowTable {
    entries: Vec<Entry>,
    index: HashMap<u64, usize, BuildHasherDefault<TagHasher>>,
    heap_bytes: usize,
    max_buckets: usize,
    max_bytes: usize,
    hand: usize,
}

impl WindowTable {
    /// An empty table, which has allocated nothing yet. It holds one bucket, however large, in any
    /// case.
    pub(super) fn new(max_buckets: usize, max_bytes: usize) -> Self {
        Self {
            entries: Vec::new(),
            index: HashMap::default(),
            heap_bytes: 0,
            max_buckets: max_buckets.max(1),
            max_bytes,
            hand: 0,
        }
    }

    /// A bucket's state; none when it is full for all that is known.
    pub(super) fn get(&self, tag: u64) -> Option<&Window> {
        let at = *self.index.get(&tag)?;
        self.entries.get(at).map(|entry| &entry.window)
    }

    /// Changes a bucket that is kept; one that is not is left alone.
    pub(super) fn change(
        &mut self,
        tag: u64,
        transaction: &Transaction,
        now: Timestamp,
        act: impl FnOnce(&mut Window),
    ) {
        let Some(&at) = self.index.get(&tag) else {
            return;
        };
        if let Some(entry) = self.entries.get_mut(at) {
            self.heap_bytes -= entry.window.heap_bytes();
            act(&mut entry.window);
            self.heap_bytes += entry.window.heap_bytes();
            entry.note(transaction, now);
        }
    }

    /// Changes a bucket, which is a full one when it is not kept yet. Returns how many others had
    /// to be evicted for it before their time.
    pub(super) fn put(
        &mut self,
        tag: u64,
        transaction: &Transaction,
        now: Timestamp,
        act: impl FnOnce(&mut Window),
    ) -> u64 {
        if !self.index.contains_key(&tag) {
            let Some(window) = Window::full(&transaction.quota) else {
                return 0;
            };
            self.index.insert(tag, self.entries.len());
            self.entries.push(Entry {
                tag,
                expires_at: now,
                spent: 0,
                headroom: 0,
                window,
            });
        }
        self.change(tag, transaction, now, act);
        self.evict_beside(tag, now)
    }

    /// Notes that a bucket denies what it was asked last, if it is kept.
    pub(super) fn note_denial(&mut self, tag: u64) {
        if let Some(entry) = self
            .index
            .get(&tag)
            .and_then(|&at| self.entries.get_mut(at))
        {
            entry.headroom |= HAS_DENIED;
        }
    }

    pub(super) fn remove(&mut self, tag: u64) {
        if let Some(&at) = self.index.get(&tag) {
            self.remove_at(at);
        }
    }

    fn evict_beside(&mut self, tag: u64, now: Timestamp) -> u64 {
        let mut lost = 0;
        while self.entries.len() > self.max_buckets || self.bytes() > self.max_bytes {
            let Some(at) = self.cheapest_beside(tag, now) else {
                break;
            };
            lost += u64::from(
                self.entries
                    .get(at)
                    .is_some_and(|entry| !entry.is_expired(now)),
            );
            self.remove_at(at);
        }
        lost
    }

    /// The bucket to evict; none when there is none but the one that room is made for.
    fn cheapest_beside(&mut self, except: u64, now: Timestamp) -> Option<usize> {
        let eviction_cost = |at| {
            let entry: Option<&Entry> = self.entries.get(at);
            Some(
                entry
                    .filter(|entry| entry.tag != except)?
                    .eviction_cost(now),
            )
        };
        cheapest(&mut self.hand, self.entries.len(), eviction_cost)
    }

    fn remove_at(&mut self, at: usize) {
        let gone = self.entries.swap_remove(at);
        self.heap_bytes -= gone.window.heap_bytes();
        self.index.remove(&gone.tag);
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(moved.tag, at);
        }
    }
}

impl Bounded for WindowTable {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn bytes(&self) -> usize {
        self.entries.len() * ENTRY_BYTES + self.heap_bytes
    }

    fn sweep(&mut self, now: Timestamp) {
        let mut at = 0;
        while let Some(entry) = self.entries.get(at) {
            if entry.is_expired(now) {
                // The last one comes here, and is looked at next.
                self.remove_at(at);
            } else {
                at += 1;
            }
        }
        let wanted = 2 * self.entries.len();
        if 2 * wanted < self.entries.capacity() {
            self.entries.shrink_to(wanted);
            self.index.shrink_to(wanted);
        }
    }
}

/// Tags are hashes already, under a key that no client knows.
#[derive(Default)]
struct TagHasher(u64);

impl Hasher for TagHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, tag: u64) {
        self.0 = tag;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use weir_limit::time::Nanos;
    use weir_limit::{Algorithm, Quota};

    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_000);

    fn log(secs: u64) -> Quota {
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        Quota::windowed(log, 10_000, Duration::from_secs(secs)).unwrap()
    }

    fn take(table: &mut WindowTable, tag: u64, secs: u64, units: u64) -> u64 {
        let transaction =
            Transaction::new("L:a".into(), log(secs), NonZeroU64::new(units).unwrap());
        table.put(tag, &transaction, NOW, |window| {
            window.take(&transaction, NOW);
        })
    }

    #[test]
    fn large_buckets_are_forgotten_for_a_new_one_when_bytes_run_out() {
        let mut table = WindowTable::new(1000, 300_000);
        let mut lost = 0;
        for tag in 1..=20 {
            lost += take(&mut table, tag, 60 + tag, 5000);
            assert!(table.bytes() <= 300_000, "{}", table.bytes());
        }
        assert_eq!(table.len() as u64 + lost, 20);
        assert!(table.len() >= 3, "{}", table.len());
        // Those whose units grow old the latest stay.
        assert!(table.get(20).is_some() && table.get(1).is_none());
    }

    #[test]
    fn a_bucket_that_is_too_large_for_the_bound_is_kept_alone() {
        let mut table = WindowTable::new(1000, 1000);
        assert_eq!(take(&mut table, 1, 60, 1), 0);
        assert_eq!(take(&mut table, 2, 60, 1000), 1);
        assert_eq!((table.len(), table.get(1)), (1, None));
    }

    #[test]
    fn the_number_of_buckets_is_bounded_and_the_fullest_goes_first() {
        let mut table = WindowTable::new(10, usize::MAX);
        for tag in 1..=11 {
            take(&mut table, tag, 60 + tag, 1);
        }
        assert_eq!(table.len(), 10);
        assert!(table.get(1).is_none());
    }

    #[test]
    fn a_sweep_forgets_what_has_expired_and_counts_its_bytes_no_more() {
        let mut table = WindowTable::new(1000, usize::MAX);
        for tag in 1..=100 {
            take(&mut table, tag, 60 * tag, 10);
        }
        table.sweep(NOW + Nanos::from_secs(50 * 60 + 1));
        assert_eq!(table.len(), 50);
        assert!((51..=100).all(|tag| table.get(tag).is_some()));
        for tag in 51..=100 {
            table.remove(tag);
        }
        assert_eq!((table.len(), table.bytes()), (0, 0));
        assert!(table.index.is_empty());
    }
}
