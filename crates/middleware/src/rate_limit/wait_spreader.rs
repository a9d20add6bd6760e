//! The waits that clients of a bucket were told, kept by the process for the buckets that denied
//! last, so that the next denial of such a bucket tells another wait. A denial looks one up; a
//! request that passes does nothing here. The store is not asked, and decides as if nothing were
//! kept: two gateways spread their own clients.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Quota, ToldWaits, WaitForm};
use weir_runtime::sync::Mutex;

use super::decision::PendingDecision;
use super::decisions::{Denial, QueriedLimit};
use super::header_fields::HeaderForm;

/// The number of locks, each over a few buckets, in some 350 KiB together.
const SETS: usize = 2048;
const WAYS: usize = 4;

/// Spreads the waits of denials over those who share a bucket. Clones share what was told.
#[derive(Clone, Default)]
pub struct WaitSpreader(Arc<Table>);

/// A table of fixed size, made when a limit first denies. A bucket without an entry takes that of
/// the bucket in its set that denied least recently, of those of a single client at present if
/// there are any.
#[derive(Default)]
struct Table {
    sets: OnceLock<Box<[Mutex<Set>]>>,
}

/// The bucket that denied last comes first.
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
        (wait, form): (Nanos, WaitForm),
        now: Timestamp,
    ) -> Nanos {
        // What only asks for room takes nothing, and asks for one unit.
        let cost = NonZeroU64::new(limit.cost.into()).unwrap_or(NonZeroU64::MIN);
        let tell = |waits: &mut ToldWaits| waits.tell(&limit.quota, cost, wait, form, now);
        let told = self.0.with(bucket, now, tell);
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
            let form = match policy.header_forms.contains(HeaderForm::RetryAfterMs) {
                true => WaitForm::Milliseconds,
                false => WaitForm::Seconds,
            };
            let told = self.tell(bucket, limit, (denial.told_wait(), form), decision.arrived);
            denial.tell(told);
            if let Some(decision) = &mut limit.decision {
                decision.retry_in = told;
            }
        }
    }
}

impl Table {
    fn with<T>(
        &self,
        bucket: NonZeroU64,
        now: Timestamp,
        act: impl FnOnce(&mut ToldWaits) -> T,
    ) -> Option<T> {
        let sets = self
            .sets
            .get_or_init(|| (0..SETS).map(|_| Mutex::default()).collect());
        let mut set = sets.get(index_of(bucket))?.lock();
        let known = set.iter().position(|entry| entry.bucket == Some(bucket));
        let index = known.unwrap_or_else(|| least_of_use(&set, now));
        set.get_mut(..=index)?.rotate_right(1);
        let entry = set.first_mut()?;
        if known.is_none() {
            *entry = Entry {
                bucket: Some(bucket),
                waits: ToldWaits::default(),
            };
        }
        Some(act(&mut entry.waits))
    }
}

fn index_of(bucket: NonZeroU64) -> usize {
    usize::try_from(bucket.get() % SETS as u64).unwrap_or_default()
}

/// Which entry to give to another bucket. A bucket of a single client loses nothing by that. When
/// waits are over says nothing: those of a slow limit last long.
fn least_of_use(set: &Set, now: Timestamp) -> usize {
    set.iter()
        .rposition(|entry| !entry.waits.is_spread(now))
        .unwrap_or(WAYS - 1)
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
        let wait = (Nanos::from_secs(1), WaitForm::Seconds);
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
        let wait = (Nanos::from_secs(1), WaitForm::Seconds);
        let told = [(); 4].map(|()| waits.tell(bucket("L:a"), &limit, wait, NOW));
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
        assert_eq!(size_of::<Entry>(), 40);
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

    /// A unit a day, and its waits are over in days.
    #[test]
    fn a_crowd_of_a_fast_limit_keeps_its_waits_beside_crowds_of_slow_ones() {
        let waits = WaitSpreader::default();
        let (fast, slow) = [(20, 1), (2, 86_400)]
            .map(|(burst, period)| QueriedLimit {
                quota: Quota::new(burst, 10, Duration::from_secs(period)).unwrap(),
                ..limit()
            })
            .into();
        let tell = |key: &str, limit, now| {
            let wait = (Nanos::new(50_000_000), WaitForm::Seconds);
            waits.tell(bucket(key), limit, wait, now)
        };
        for _ in 0..9 {
            tell("L:fast", &fast, NOW);
        }
        for denial in 1..100_000 {
            let now = NOW + Nanos::new(denial * 1_000_000);
            for _ in 0..2 {
                tell(&format!("L:{denial}"), &slow, now);
            }
            // One for each unit that comes back.
            if denial % 100 == 0 {
                let told = tell("L:fast", &fast, now);
                assert!(told > Nanos::new(800_000_000), "{denial}: {told:?}");
            }
        }
    }
}
