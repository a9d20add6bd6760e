//! One shard's buckets that are counted in windows.
//!
//! # Memory
//! Unlike a TAT, the state of a window may be large: a sliding window has up to some sixty numbers,
//! a sliding log one for each unit. So a table is bounded in bytes as well as in buckets. What it
//! does for both bounds is the same: it forgets buckets, of a few that it looks at the one that
//! would be full the soonest.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::limit::{CLOCK_TOLERANCE, Quota, Window};
use crate::time::Timestamp;

/// How many buckets an eviction looks at.
const LOOKED_AT: usize = 16;

/// What a bucket takes at most beside its state: twice its entry, as lists grow to twice their
/// size, and its place in the index.
const ENTRY_BYTES: usize = 2 * size_of::<Entry>() + 40;

/// What `docs/ALGORITHMS.md` promises.
const _: () = assert!(ENTRY_BYTES <= 152);

struct Entry {
    tag: u64,
    forgettable_at: Timestamp,
    window: Window,
}

impl Entry {
    /// Whether the bucket is full, and would be on any clock within the clock tolerance.
    fn is_expired(&self, now: Timestamp) -> bool {
        self.forgettable_at + CLOCK_TOLERANCE <= now
    }
}

/// Buckets by tag, within bounds.
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

    /// How many buckets are kept.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The bytes that they take at most.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * ENTRY_BYTES + self.heap_bytes
    }

    /// A bucket's state; none when it is full for all that is known.
    pub(super) fn get(&self, tag: u64) -> Option<&Window> {
        let at = *self.index.get(&tag)?;
        self.entries.get(at).map(|entry| &entry.window)
    }

    /// Changes a bucket that is kept; one that is not is left alone.
    pub(super) fn change(&mut self, tag: u64, quota: &Quota, act: impl FnOnce(&mut Window)) {
        let Some(&at) = self.index.get(&tag) else {
            return;
        };
        if let Some(entry) = self.entries.get_mut(at) {
            self.heap_bytes -= entry.window.heap_bytes();
            act(&mut entry.window);
            self.heap_bytes += entry.window.heap_bytes();
            entry.forgettable_at = entry.window.forgettable_at(quota);
        }
    }

    /// Changes a bucket, which is a full one when it is not kept yet. Returns how many others had to
    /// be forgotten for it before their time.
    pub(super) fn put(
        &mut self,
        tag: u64,
        quota: &Quota,
        now: Timestamp,
        act: impl FnOnce(&mut Window),
    ) -> u64 {
        if !self.index.contains_key(&tag) {
            let Some(window) = Window::full(quota) else {
                return 0;
            };
            self.index.insert(tag, self.entries.len());
            self.entries.push(Entry {
                tag,
                forgettable_at: now,
                window,
            });
        }
        self.change(tag, quota, act);
        self.evict_beside(tag, now)
    }

    /// Forgets a bucket.
    pub(super) fn remove(&mut self, tag: u64) {
        if let Some(&at) = self.index.get(&tag) {
            self.remove_at(at);
        }
    }

    /// Forgets the buckets that have expired, and gives memory back when few are left.
    pub(super) fn sweep(&mut self, now: Timestamp) {
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

    fn evict_beside(&mut self, tag: u64, now: Timestamp) -> u64 {
        let mut lost = 0;
        while self.entries.len() > self.max_buckets || self.bytes() > self.max_bytes {
            let Some(at) = self.fullest_at_hand(tag) else {
                break;
            };
            lost += u64::from(self.entries.get(at).is_some_and(|it| !it.is_expired(now)));
            self.remove_at(at);
        }
        lost
    }

    /// Of the next few buckets the one that is full the soonest, so that the least is handed back;
    /// none when there is none but the one that room is made for.
    fn fullest_at_hand(&mut self, except: u64) -> Option<usize> {
        let count = self.entries.len();
        let start = self.hand;
        self.hand = (start + LOOKED_AT) % count.max(1);
        (start..start + LOOKED_AT.min(count))
            .filter_map(|at| Some((at % count, self.entries.get(at % count)?)))
            .filter(|(_, entry)| entry.tag != except)
            .min_by_key(|(_, entry)| entry.forgettable_at)
            .map(|(at, _)| at)
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

/// Tags are hashes already, under a key that nobody outside knows.
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

    use super::*;
    use crate::limit::{Algorithm, Transaction};
    use crate::time::Nanos;

    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_000);

    fn log(secs: u64) -> Quota {
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        Quota::windowed(log, 10_000, Duration::from_secs(secs)).unwrap()
    }

    fn take(table: &mut WindowTable, tag: u64, secs: u64, units: u64) -> u64 {
        let quota = log(secs);
        let one = Transaction::new("L:a".into(), quota, NonZeroU64::new(units).unwrap());
        table.put(tag, &quota, NOW, |window| window.take(&one, NOW))
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
