//! When a bucket expires in Redis, and which of its expiries need not be set again with a request.
//!
//! A bucket must outlive its TAT and must expire some time after. A gateway that sets its
//! expiry gives it more time than it needs and notes the end beside the TAT, and each take reads
//! that note: so every gateway sees from the reply whether the bucket lasts, whatever other client
//! has flushed, reset or shortened it meanwhile. What a worker remembers only tells it what to
//! expect, and whether to send an expiry beside the take; see
//! `docs/decisions/0001-no-lua-in-redis.md`.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{BucketKey, CLOCK_TOLERANCE};
use weir_store::{HashedKey, KeyHasher};

/// How much longer a bucket has to last than it takes to fill: covers the clock tolerance between
/// the gateways that take from it, as much again for Redis's own clock, and as much again for the
/// clock by which the note was taken.
const SLACK: Nanos = Nanos::from_secs(3 * CLOCK_TOLERANCE.ceil_secs());

/// How much longer than that a bucket is given, in seconds: as long as it takes to fill, within
/// these bounds. Meanwhile no expiry need be sent again, and a full bucket takes up memory.
const SPARE: RangeInclusive<u64> = 5..=60;

/// A bucket that fills slowly gets this part of the time that it takes, as most of those who have
/// one come seldom: an eighth more memory, and a `PEXPIRE` with few of their requests. So long, at
/// most, an expiry that was lost is not missed.
const SPARE_PART: u64 = 8;
const MAX_SPARE: u64 = 600;

/// The bits of a note. They count seconds since the Unix epoch until 2242, after any bucket's TAT.
pub(super) const NOTE_BITS: u32 = 33;

/// How many buckets a worker remembers, in 256 KiB.
const PLACES: usize = 32_768;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The bucket is expected to last long enough as it is.
    Expected,
    /// The take comes with one.
    Set,
}

/// A second since the Unix epoch before which a bucket does not expire; zero when it never does, or
/// the bucket is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Note(u64);

impl Note {
    pub(super) fn new(second: u64) -> Self {
        Self(second.min((1 << NOTE_BITS) - 1))
    }

    pub(super) fn second(self) -> u64 {
        self.0
    }

    /// Whether a bucket of this tolerance that is taken from now outlives its TAT. A note that is
    /// later than any that would be made now stems from a clock that has been set back, or from a
    /// greater limit: it is better made anew.
    pub(super) fn suffices(self, tolerance: Nanos, now: Timestamp) -> bool {
        let needed = (now + (tolerance + SLACK)).as_nanos();
        let needed = Nanos::new(needed).ceil_secs();
        let latest = Self::of_expiry_at(now + CLOCK_TOLERANCE, tolerance);
        needed <= self.0 && self <= latest
    }

    /// The note of a bucket whose expiry is set now.
    pub(super) fn of_expiry_at(now: Timestamp, tolerance: Nanos) -> Self {
        let end = now + lifetime(tolerance);
        Self::new(end.as_nanos() / Nanos::from_secs(1).get())
    }
}

/// How long a bucket is given when its expiry is set.
pub(super) fn lifetime(tolerance: Nanos) -> Nanos {
    tolerance + SLACK + Nanos::from_secs(spare(tolerance.ceil_secs()))
}

/// For how long no expiry is sent again of a bucket that takes so many seconds to fill.
fn spare(seconds: u64) -> u64 {
    let of_slow = (seconds / SPARE_PART).min(MAX_SPARE);
    seconds.clamp(*SPARE.start(), *SPARE.end()).max(of_slow)
}

/// The notes that a worker saw of late, by bucket. An older one gives way to another that falls on
/// its place. A wrong one does no harm: the reply says how it is.
pub(super) struct ExpiryCache {
    hasher: KeyHasher,
    places: ExpiryPlaces,
}

/// The memory of caches, which all nodes of a Cluster share. Each cache hashes keys by a random key
/// of its own, so it takes no other's notes for its own.
#[derive(Clone)]
pub(super) struct ExpiryPlaces(Arc<[AtomicU64]>);

impl Default for ExpiryPlaces {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::default()).collect())
    }
}

#[cfg(test)]
impl ExpiryPlaces {
    pub(super) fn is_that_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Default for ExpiryCache {
    fn default() -> Self {
        Self::new(ExpiryPlaces::default())
    }
}

impl ExpiryCache {
    /// A cache that knows nothing yet.
    pub(super) fn new(places: ExpiryPlaces) -> Self {
        Self {
            hasher: KeyHasher::random(),
            places,
        }
    }

    pub(super) fn hash(&self, key: &BucketKey) -> HashedKey {
        self.hasher.hash(key)
    }

    /// Whether a take has to set the bucket's expiry.
    pub(super) fn expiry_of(&self, key: HashedKey, tolerance: Nanos, now: Timestamp) -> Expiry {
        if self.get(key).suffices(tolerance, now) {
            Expiry::Expected
        } else {
            Expiry::Set
        }
    }

    /// Caches what a take set, or else the note that it found, and tells whether the bucket lasts
    /// as long as it must.
    pub(super) fn record(
        &self,
        key: HashedKey,
        tolerance: Nanos,
        (expiry, found): (Expiry, Note),
        now: Timestamp,
    ) -> bool {
        let note = match expiry {
            Expiry::Set => Note::of_expiry_at(now, tolerance),
            Expiry::Expected => found,
        };
        self.put(key, note);
        note.suffices(tolerance, now)
    }

    /// The note that is remembered of a bucket, or none that would suffice.
    fn get(&self, key: HashedKey) -> Note {
        let place = self
            .place(key)
            .map_or(0, |place| place.load(Ordering::Relaxed));
        let is_this = place >> NOTE_BITS == key.tag >> NOTE_BITS;
        Note(if is_this {
            place & ((1 << NOTE_BITS) - 1)
        } else {
            0
        })
    }

    fn put(&self, key: HashedKey, note: Note) {
        if let Some(place) = self.place(key) {
            let tag = key.tag >> NOTE_BITS << NOTE_BITS;
            place.store(tag | note.0, Ordering::Relaxed);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is small")]
    fn place(&self, key: HashedKey) -> Option<&AtomicU64> {
        self.places.0.get((key.shard % PLACES as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::default() + Nanos::from_secs(secs)
    }

    #[test]
    fn an_expiry_suffices_until_the_bucket_could_outlive_it() {
        let expected = [
            (0, 5),
            (1, 5),
            (30, 30),
            (300, 60),
            (480, 60),
            (3600, 450),
            (86_400, 600),
        ];
        for (seconds, spare) in expected {
            let tolerance = Nanos::from_secs(seconds);
            let note = Note::of_expiry_at(at(1000), tolerance);
            assert!(note.suffices(tolerance, at(1000)));
            assert!(note.suffices(tolerance, at(1000 + spare)));
            assert!(!note.suffices(tolerance, at(1000 + spare + 1)));
        }
    }

    #[test]
    fn a_bucket_that_is_not_there_and_a_note_from_the_future_do_not_suffice() {
        let tolerance = Nanos::from_secs(10);
        assert!(!Note::new(0).suffices(tolerance, at(1000)));
        let note = Note::of_expiry_at(at(1000), tolerance);
        assert!(note.suffices(tolerance, at(999)));
        assert!(!note.suffices(tolerance, at(990)));
    }

    #[test]
    fn the_longest_tolerance_is_noted() {
        let longest = Nanos::new(1 << 62);
        let now = at(1_800_000_000);
        let note = Note::of_expiry_at(now, longest);
        assert!(note.second() < 1 << NOTE_BITS);
        assert!(note.suffices(longest, now));
        assert!(note.suffices(longest, now + Nanos::from_secs(MAX_SPARE - 1)));
        assert!(!note.suffices(longest, now + Nanos::from_secs(MAX_SPARE + 1)));
    }

    #[test]
    fn notes_are_found_by_bucket_and_give_way() {
        let notes = ExpiryCache::default();
        let [one, other] = ["L:a", "L:b"].map(|key| notes.hash(&key.into()));
        assert_eq!(notes.get(one), Note(0));
        notes.put(one, Note(7));
        assert_eq!(notes.get(one), Note(7));
        assert_eq!(notes.get(other), Note(0));
        let rival = HashedKey {
            tag: !one.tag,
            ..one
        };
        notes.put(rival, Note(8));
        assert_eq!((notes.get(one), notes.get(rival)), (Note(0), Note(8)));
    }
}
