//! Denials of limits that are counted in windows.
//!
//! Unlike GCRA's debt, what such a denial says holds for the same quota and the same cost only: until
//! its retry time the bucket has no room for that cost, whatever others take from it.

use std::num::NonZeroU64;

use parking_lot::Mutex;

use super::LONGEST;
use crate::limit::{Decision, Quota, Transaction};
use crate::store::hashed_key::HashedKey;
use crate::time::{Nanos, Timestamp};

/// How many denials are remembered at most, in some 256 KiB.
pub(super) const PLACES: usize = 2048;

/// So many threads may look at once without waiting for each other.
const LOCKS: usize = 64;

/// A table of fixed size, which takes no memory before the first such denial.
pub(super) struct WindowDenials(Box<[Mutex<Vec<Option<WindowDenial>>>]>);

#[derive(Clone, Copy)]
struct WindowDenial {
    tag: u64,
    quota: Quota,
    cost: NonZeroU64,
    remaining: u64,
    retry_at: Timestamp,
    reset_at: Timestamp,
    seen: Timestamp,
}

impl Default for WindowDenials {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Mutex::default()).collect())
    }
}

impl WindowDenials {
    pub(super) fn remember(
        &self,
        key: HashedKey,
        one: &Transaction,
        denied: &Decision,
        now: Timestamp,
    ) {
        let (shard, place) = place(key);
        let Some(shard) = self.0.get(shard) else {
            return;
        };
        let mut shard = shard.lock();
        shard.resize(PLACES / LOCKS, None);
        if let Some(place) = shard.get_mut(place) {
            *place = Some(WindowDenial {
                tag: key.tag,
                quota: one.quota,
                cost: one.cost,
                remaining: denied.remaining,
                retry_at: now + denied.retry_in,
                reset_at: now + denied.reset_in,
                seen: now,
            });
        }
    }

    pub(super) fn forget(&self, key: HashedKey) {
        let (shard, place) = place(key);
        if let Some(shard) = self.0.get(shard)
            && let Some(place) = shard.lock().get_mut(place)
            && place.is_some_and(|denial| denial.tag == key.tag)
        {
            *place = None;
        }
    }

    /// What a bucket denied a moment ago, when it still does.
    pub(super) fn decision(
        &self,
        key: HashedKey,
        one: &Transaction,
        now: Timestamp,
    ) -> Option<Decision> {
        let (shard, place) = place(key);
        let denial = (*self.0.get(shard)?.lock().get(place)?)?;
        let is_same = denial.tag == key.tag && denial.quota == one.quota && denial.cost == one.cost;
        let is_fresh = denial.seen <= now && now.since(denial.seen) < LONGEST;
        (is_same && is_fresh && now < denial.retry_at).then(|| Decision {
            allowed: false,
            remaining: denial.remaining,
            retry_in: denial.retry_in(one, now),
            reset_in: denial.reset_at.since(now),
        })
    }
}

impl WindowDenial {
    fn retry_in(&self, one: &Transaction, now: Timestamp) -> Nanos {
        if one.fits_beside(0) {
            self.retry_at.since(now)
        } else {
            Nanos::NEVER
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "both remainders are small")]
fn place(key: HashedKey) -> (usize, usize) {
    let place = key.shard % PLACES as u64;
    (place as usize % LOCKS, place as usize / LOCKS)
}
