//! Batches with limits that are counted in windows, alone or beside GCRA's.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::windows::LockedWindows;
use super::{Keys, Look, Memory, decisions, look_at_all};
use crate::limit::{Algorithm, Batch, Decision, Mode, Transaction, Usage, Window};
use crate::store::hashed_key::HashedKey;
use crate::store::{DecisionSource, Outcome};
use crate::time::Timestamp;

/// What a transaction finds in a bucket counted in windows.
struct WindowLook {
    key: HashedKey,
    usage: Usage,
    /// Whether the cost fits, and is taken when the batch is allowed.
    takes: bool,
    denies: bool,
    /// Whether the cost does not fit now, but would fit a full bucket.
    finds_no_room: bool,
}

impl Memory {
    /// Decides a batch of which some transactions are counted in windows. The others are decided
    /// as ever, and all take or none does.
    pub(super) fn decide_mixed(&self, batch: &Batch, now: Timestamp) -> Outcome {
        let (windowed, others): (Batch, Batch) = batch.iter().cloned().partition(is_windowed);
        let keys = self.hash_all(&others);
        let window_keys = self.hash_all(&windowed);
        let mut locked = self.shards.lock(&keys);
        let mut windows = self.windows.lock(&window_keys);

        let looks = look_at_all(&others, &keys, &locked, now);
        settle_all(&windowed, &window_keys, &mut windows, now);
        let window_looks = look_at_windows(&windowed, &window_keys, &windows, now);
        let denied = looks.iter().any(Look::denies) || window_looks.iter().any(|look| look.denies);
        self.leave_debts(&others, &looks, denied, &mut locked, now);
        self.take_from_windows(&windowed, &window_looks, denied, &mut windows, now);

        let mut of_gcra = decisions(&others, &looks, denied).into_iter();
        let mut of_windows = windowed.iter().zip(&window_looks);
        let decision = |one: &Transaction| {
            if !is_windowed(one) {
                return of_gcra.next().flatten();
            }
            let (one, look) = of_windows.next()?;
            Some(decide(one, look, denied, &windows, now))
        };
        Outcome {
            decisions: batch.iter().map(decision).collect(),
            basis: DecisionSource::Store,
        }
    }

    fn take_from_windows(
        &self,
        batch: &Batch,
        looks: &[WindowLook],
        denied: bool,
        windows: &mut LockedWindows<'_>,
        now: Timestamp,
    ) {
        for (one, look) in batch.iter().zip(looks) {
            let counts_denied = look.denies && one.is_counted_when_denied();
            if look.finds_no_room {
                windows.note_denial(look.key, one);
            }
            if !look.takes && !counts_denied {
                continue;
            }
            let act = |window: &mut Window| match denied && !counts_denied {
                true => window.begin(one, now),
                false => window.take(one, now),
            };
            let is_fixed = matches!(one.quota.algorithm(), Algorithm::FixedWindow(_));
            if !denied || counts_denied || is_fixed {
                let lost = windows.put(look.key, one, now, act);
                self.evicted.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn refund_window(&self, one: &Transaction, now: Timestamp) {
        let key = self.hash(&one.key);
        let mut windows = self.windows.lock(&[key]);
        windows.change(key, one, now, |window| window.give_back(one));
    }
}

pub(super) fn is_windowed(one: &Transaction) -> bool {
    one.quota.algorithm().is_windowed()
}

fn settle_all(batch: &Batch, keys: &Keys, windows: &mut LockedWindows<'_>, now: Timestamp) {
    for (one, &key) in batch.iter().zip(keys) {
        // What only reads changes nothing, but what is asked is noted.
        let settles = one.kind.spends();
        if one.kind != Mode::AllowOnly {
            windows.change(key, one, now, |window| {
                if settles {
                    window.settle(&one.quota, now);
                }
            });
        }
    }
}

fn look_at_windows(
    batch: &Batch,
    keys: &Keys,
    windows: &LockedWindows<'_>,
    now: Timestamp,
) -> SmallVec<[WindowLook; 3]> {
    let mut looks = SmallVec::<[WindowLook; 3]>::new();
    for (at, (one, &key)) in batch.iter().zip(keys).enumerate() {
        let usage = match one.kind {
            Mode::AllowOnly => Usage::default(),
            _ => usage_after(batch.iter().zip(&looks).take(at), one, key, windows, now),
        };
        let fits = one.fits_beside(usage.used);
        looks.push(WindowLook {
            key,
            usage,
            takes: fits && one.kind.spends(),
            denies: !fits && one.kind.checks(),
            finds_no_room: !fits && one.fits_beside(0),
        });
    }
    looks
}

/// A bucket's usage, with what earlier transactions of the same batch are about to take from it.
fn usage_after<'l>(
    earlier: impl Iterator<Item = (&'l Transaction, &'l WindowLook)>,
    one: &Transaction,
    key: HashedKey,
    windows: &LockedWindows<'_>,
    now: Timestamp,
) -> Usage {
    let found = windows.get(key, &one.quota);
    let mut taking = earlier
        .filter(|(_, look)| look.key == key && look.takes)
        .peekable();
    if taking.peek().is_none() {
        return found.map_or_else(|| usage_of_full(one, now), |window| window.usage(one, now));
    }
    let full = || Window::full(&one.quota);
    let Some(mut window) = found.cloned().or_else(full) else {
        return Usage::default();
    };
    for (other, _) in taking {
        window.take(other, now);
    }
    window.usage(one, now)
}

fn usage_of_full(one: &Transaction, now: Timestamp) -> Usage {
    Window::full(&one.quota).map_or_else(Usage::default, |window| window.usage(one, now))
}

/// The decision about a bucket after everything is taken. What is counted although it is denied
/// makes the next unit come later.
fn decide(
    one: &Transaction,
    look: &WindowLook,
    denied: bool,
    windows: &LockedWindows<'_>,
    now: Timestamp,
) -> Decision {
    if denied && !look.denies {
        return one.untouched_in_window(&look.usage);
    }
    if look.denies && one.is_counted_when_denied() {
        let window = windows.get(look.key, &one.quota);
        let usage = window.map_or(look.usage, |window| window.usage(one, now));
        return one.decide_in_window(&usage);
    }
    one.decide_in_window(&look.usage)
}
