//! The waits that clients of a bucket were told, kept by the process for the buckets that denied
//! last, so that the next denial of such a bucket tells another wait. A denial looks one up; a
//! request that passes does nothing here. The store is not asked, and decides as if nothing were
//! kept: two gateways spread their own clients.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Quota, ToldWaits};
use weir_runtime::sync::Mutex;

use super::decision::PendingDecision;
use super::decisions::{Denial, QueriedLimit};

/// The number of locks, each over a few buckets, in some 300 KiB together.
const SETS: usize = 2048;
const WAYS: usize = 4;

/// Spreads the waits of denials over those who share a bucket. Clones share what was told.
#[derive(Clone, Default)]
pub struct WaitSpreader(Arc<Table>);

/// A table of fixed size, made when a limit first denies. A bucket without an entry takes that of
/// the bucket in its set whose waits are over first.
#[derive(Default)]
struct Table {
    sets: OnceLock<Box<[Mutex<Set>]>>,
}

type Set = [Entry; WAYS];

#[derive(Clone, Copy, Default)]
struct Entry {
    /// The bucket's id; none in an entry without a bucket.
    bucket: Option<NonZeroU64>,
    waits: ToldWaits,
}

impl WaitSpreader {
    /// Records and returns the wait to tell a client that the bucket of this id denies for `wait`.
    pub(super) fn tell(
        &self,
        bucket: NonZeroU64,
        limit: &QueriedLimit,
        wait: Nanos,
        now: Timestamp,
    ) -> Nanos {
        // What only asks for room takes nothing, and asks for one unit.
        let cost = NonZeroU64::new(limit.cost.into()).unwrap_or(NonZeroU64::MIN);
        let told = self
            .0
            .with(bucket, |waits| waits.tell(&limit.quota, cost, wait, now));
        told.unwrap_or(wait).min(limit.quota_ends_in)
    }

    /// The number of clients that wait for units of the bucket of this id, by an estimate, if each of
    /// them does as it was told.
    pub fn waiting(&self, bucket: NonZeroU64, quota: &Quota, now: Timestamp) -> u64 {
        let Some(set) = self
            .0
            .sets
            .get()
            .and_then(|sets| sets.get(index_of(bucket)))
        else {
            return 0;
        };
        let set = set.lock();
        let entry = set.iter().find(|entry| entry.bucket == Some(bucket));
        entry.map_or(0, |entry| entry.waits.waiting(quota, now))
    }

    /// Spreads the wait of a denial, in all that shows it.
    pub(super) fn spread(&self, decision: &mut PendingDecision, denial: &mut Denial<'_>) {
        let policy = &decision.route.policy;
        let found = match decision.queried.limits.as_slice() {
            [_] => Some(0),
            _ => policy.strictest_denied(&decision.queried),
        };
        let found = found.and_then(|index| {
            let limit = decision.queried.limits.get_mut(index)?;
            Some((limit.subject?, limit))
        });
        if let Some((bucket, limit)) = found {
            let told = self.tell(bucket, limit, denial.told_wait(), decision.arrived);
            denial.tell(told);
            if let Some(decision) = &mut limit.decision {
                decision.retry_in = told;
            }
        }
    }
}

impl Table {
    fn with<T>(&self, bucket: NonZeroU64, act: impl FnOnce(&mut ToldWaits) -> T) -> Option<T> {
        let sets = self
            .sets
            .get_or_init(|| (0..SETS).map(|_| Mutex::default()).collect());
        let mut set = sets.get(index_of(bucket))?.lock();
        let entry = match set.iter().position(|entry| entry.bucket == Some(bucket)) {
            Some(index) => set.get_mut(index)?,
            None => {
                let first_over = set.iter_mut().min_by_key(|entry| entry.waits.until())?;
                *first_over = Entry {
                    bucket: Some(bucket),
                    waits: ToldWaits::default(),
                };
                first_over
            }
        };
        Some(act(&mut entry.waits))
    }
}

fn index_of(bucket: NonZeroU64) -> usize {
    usize::try_from(bucket.get() % SETS as u64).unwrap_or_default()
}

impl fmt::Debug for WaitSpreader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitSpreader").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    use std::time::Duration;

    use super::super::decisions::LimitRole;
    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_000);

    /// A unit a second.
    fn limit() -> QueriedLimit {
        QueriedLimit {
            limit: 0,
            subject: None,
            quota: Quota::new(5, 1, Duration::from_secs(1)).unwrap(),
            role: LimitRole::Denies,
            cost: 1,
            quota_ends_in: Nanos::NEVER,
            decision: None,
        }
    }

    /// The seconds that a client is told whose unit is back after one.
    fn bucket(key: &str) -> NonZeroU64 {
        NonZeroU64::new(BuildHasherDefault::<DefaultHasher>::default().hash_one(key)).unwrap()
    }

    fn told(waits: &WaitSpreader, key: &str) -> u64 {
        let wait = Nanos::from_secs(1);
        waits.tell(bucket(key), &limit(), wait, NOW).ceil_secs()
    }

    #[test]
    fn each_bucket_has_its_own_waits_and_clones_share_them() {
        let waits = WaitSpreader::default();
        assert_eq!([told(&waits, "L:a"), told(&waits.clone(), "L:a")], [1, 2]);
        assert_eq!(told(&waits, "L:b"), 1);
        assert_eq!(told(&WaitSpreader::default(), "L:a"), 1);
    }

    /// The limit's own quota decides from then on.
    #[test]
    fn nobody_is_told_to_wait_beyond_the_end_of_an_override() {
        let waits = WaitSpreader::default();
        let limit = QueriedLimit {
            quota_ends_in: Nanos::from_secs(2),
            ..limit()
        };
        let told = [(); 4].map(|()| waits.tell(bucket("L:a"), &limit, Nanos::from_secs(1), NOW));
        assert_eq!(told.map(Nanos::ceil_secs), [1, 2, 2, 2]);
    }

    #[test]
    fn a_flood_of_buckets_takes_no_memory_and_none_of_them_waits_for_another() {
        let waits = WaitSpreader::default();
        for bucket in 0..100_000 {
            assert_eq!(told(&waits, &format!("L:{bucket}")), 1);
        }
        let sets = waits.0.sets.get().unwrap();
        let kept = sets.iter().map(|set| {
            set.lock()
                .iter()
                .filter(|entry| entry.bucket.is_some())
                .count()
        });
        assert_eq!((sets.len(), kept.sum::<usize>()), (SETS, SETS * WAYS));
        assert_eq!(size_of::<Entry>(), 32);
    }

    #[test]
    fn the_bucket_with_the_most_clients_keeps_its_waits() {
        let waits = WaitSpreader::default();
        for clients in 1..=9 {
            assert_eq!(told(&waits, "L:crowd"), clients);
        }
        for bucket in 0..100_000 {
            told(&waits, &format!("L:{bucket}"));
        }
        assert_eq!(told(&waits, "L:crowd"), 10);
    }
}
