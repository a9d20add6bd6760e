//! The waits that denied clients were told and that are not over yet. Who comes back before its
//! wait is over earns a strike, and who waits earns none.
//!
//! Workers may share a subject, and a request does not say which of them sent it. So as many waits
//! may be outstanding as workers may share the subject: each of them waits for one at most, and one
//! more is the wait of somebody who did not wait.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use smallvec::SmallVec;
use weir_limit::BucketKey;
use weir_limit::time::{Nanos, Timestamp};
use weir_runtime::sync::Mutex;

/// How long before its end a wait counts as over: clients round, and timers are early.
const TOLERANCE: Nanos = Nanos::new(50_000_000);

/// A clock that is behind the last denial by more than this was set back.
const MAX_STEP_BACK: Nanos = Nanos::from_secs(1);

const SHARDS: usize = 32;

/// Upper bound on the waits of a shard: 65,536 in all, some 10 MB.
const MAX_WAITS_OF_SHARD: usize = 2048;

/// All outstanding waits of a process.
pub struct ToldWaits {
    /// A secret, so that no client chooses a subject that shares the waits of another.
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

/// Who was denied: the subject of a ban. Its buckets are not told apart: who takes another one with
/// each request, such as a name to log in by, would never have many waits by one of them.
#[derive(Clone, Copy, Hash)]
pub(super) struct DeniedSubject<'d> {
    pub(super) ban: &'d str,
    pub(super) subject: &'d BucketKey,
}

#[derive(Default)]
struct Shard {
    subjects: HashMap<u64, SubjectWaits>,
    /// The number of waits that all of them keep.
    kept: usize,
    /// How often room was made: another quarter goes each time.
    rounds: u64,
}

/// The waits of one subject.
#[derive(Default)]
struct SubjectWaits {
    /// Their ends, in no order.
    ends: SmallVec<[Timestamp; 2]>,
    last_denial: Timestamp,
}

impl Default for ToldWaits {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl ToldWaits {
    /// Remembers that a denied client is told to wait, unless as many as `workers` of its subject
    /// were told so and have not waited yet. Then one of them came too early: true.
    pub(super) fn is_too_early(
        &self,
        denied: DeniedSubject<'_>,
        wait: Nanos,
        workers: usize,
        now: Timestamp,
    ) -> bool {
        let hash = self.hasher.hash_one(denied);
        let Some(shard) = self.shard(hash) else {
            return false;
        };
        let mut shard = shard.lock();
        if shard.kept >= MAX_WAITS_OF_SHARD {
            shard.make_room(now);
        }
        let waits = shard.subjects.entry(hash).or_default();
        let before = waits.ends.len();
        let is_too_early = waits.deny(wait, workers, now);
        let after = waits.ends.len();
        shard.kept = (shard.kept + after).saturating_sub(before);
        is_too_early
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        // The table of a shard goes by the other end of the hash.
        let index = hash >> (u64::BITS - SHARDS.ilog2());
        self.shards.get(usize::try_from(index).ok()?)
    }
}

impl Shard {
    /// Drops waits that are over, and if that is not enough, those of every fourth subject. Who
    /// loses them that way has them told again before it earns another strike.
    #[cold]
    fn make_room(&mut self, now: Timestamp) {
        self.retain(|_, waits| waits.drop_over(now));
        self.rounds = self.rounds.wrapping_add(1);
        let round = self.rounds % 4;
        if self.kept > MAX_WAITS_OF_SHARD / 4 * 3 {
            self.retain(|hash, _| hash % 4 != round);
        }
        if self.kept >= MAX_WAITS_OF_SHARD {
            *self = Self::default();
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(u64, &mut SubjectWaits) -> bool) {
        self.subjects.retain(|hash, waits| keep(*hash, waits));
        self.kept = self.subjects.values().map(|waits| waits.ends.len()).sum();
    }
}

impl SubjectWaits {
    /// Counts a denial that tells this wait. Returns whether it came too early.
    fn deny(&mut self, wait: Nanos, workers: usize, now: Timestamp) -> bool {
        if self.last_denial.since(now) > MAX_STEP_BACK {
            self.ends.clear();
        }
        self.last_denial = now;
        self.drop_over(now);
        let is_too_early = self.ends.len() >= workers;
        if !is_too_early {
            self.ends.push(now + wait);
        }
        is_too_early
    }

    /// Drops the waits that are over. Returns whether some are left.
    fn drop_over(&mut self, now: Timestamp) -> bool {
        self.ends.retain(|end| *end > now + TOLERANCE);
        !self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(1 << 60) + Nanos::new(millis * 1_000_000)
    }

    /// Denies a client of an address at this time, which is told to wait for a second.
    fn deny(waits: &ToldWaits, address: &str, workers: usize, millis: u64) -> bool {
        let denied = DeniedSubject {
            ban: "abusers",
            subject: &address.into(),
        };
        waits.is_too_early(denied, SECOND, workers, at(millis))
    }

    #[test]
    fn who_waits_is_never_too_early_and_who_does_not_is() {
        let waits = ToldWaits::default();
        for second in 0..100 {
            assert!(!deny(&waits, "a", 1, second * 1000));
        }
        assert!(deny(&waits, "a", 1, 99_900));
        // The wait of the one that came too early is not counted.
        assert!(!deny(&waits, "a", 1, 100_000));
    }

    #[test]
    fn a_timer_that_is_a_little_early_is_no_strike() {
        let waits = ToldWaits::default();
        assert!(!deny(&waits, "a", 1, 0));
        assert!(!deny(&waits, "a", 1, 950));
        assert!(deny(&waits, "a", 1, 1899));
    }

    #[test]
    fn as_many_may_wait_as_there_are_workers_and_one_more_is_too_early() {
        let waits = ToldWaits::default();
        for round in 0..50 {
            for worker in 0..20 {
                assert!(!deny(&waits, "a", 20, round * 1000 + worker));
            }
        }
        for millis in 49_020..49_900 {
            assert!(deny(&waits, "a", 20, millis));
        }
    }

    #[test]
    fn waits_of_another_subject_do_not_count() {
        let waits = ToldWaits::default();
        assert!(!deny(&waits, "a", 1, 0));
        assert!(!deny(&waits, "b", 1, 0));
        assert!(deny(&waits, "b", 1, 1));
    }

    #[test]
    fn a_clock_that_is_set_back_makes_nobody_too_early() {
        let waits = ToldWaits::default();
        assert!(!deny(&waits, "a", 1, 3_600_000));
        assert!(!deny(&waits, "a", 1, 0));
        assert!(!deny(&waits, "a", 1, 1000));
    }

    #[test]
    fn the_waits_of_a_flood_of_subjects_are_bounded_and_those_who_go_on_are_still_found() {
        let waits = ToldWaits::default();
        let mut struck = 0;
        for number in 0..200_000_u32 {
            let millis = u64::from(number / 1000);
            deny(&waits, &number.to_string(), 20, millis);
            if number % 100 == 0 {
                struck += u32::from(deny(&waits, "hammerer", 20, millis));
            }
        }
        let shards = waits.shards.iter().map(|shard| {
            let shard = shard.lock();
            let counted: usize = shard.subjects.values().map(|it| it.ends.len()).sum();
            assert_eq!(shard.kept, counted);
            assert!(counted <= MAX_WAITS_OF_SHARD + 1, "{counted}");
            counted
        });
        assert!(shards.sum::<usize>() > SHARDS * MAX_WAITS_OF_SHARD / 2);
        assert!(struck > 1000, "{struck} of 2000");
    }

    #[test]
    fn waits_beyond_the_bound_are_forgotten_even_of_one_subject() {
        let waits = ToldWaits::default();
        for number in 0..10_000 {
            deny(&waits, "a", usize::MAX, number / 100);
        }
        let kept = waits.shards.iter().map(|shard| shard.lock().kept);
        assert!(kept.max().unwrap() <= MAX_WAITS_OF_SHARD);
    }
}
