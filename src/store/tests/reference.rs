//! The smallest store: the pure algorithms on maps. Other stores are held against it.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::limit::{Batch, BucketKey, BucketKeys, Decision, Mode, Transaction, Usage, Window};
use crate::store::tests::contract::Subject;
use crate::store::{DecisionSource, Outcome, Store, StoreFuture};
use crate::time::{Nanos, Timestamp};

#[derive(Default)]
pub(crate) struct Reference(Mutex<Buckets>);

#[derive(Clone, Default)]
struct Buckets {
    tats: HashMap<BucketKey, Timestamp>,
    /// By algorithm as well: a limit whose algorithm was changed has other buckets.
    windows: HashMap<(BucketKey, &'static str), Window>,
}

impl Reference {
    /// From when on a bucket is full.
    pub(crate) fn full_at(&self, one: &Transaction) -> Option<Timestamp> {
        let buckets = self.0.lock();
        match buckets.windows.get(&window_key(one)) {
            Some(window) => Some(window.forgettable_at(&one.quota)),
            None => buckets.tats.get(&one.key).copied(),
        }
    }
}

fn window_key(one: &Transaction) -> (BucketKey, &'static str) {
    (one.key.clone(), one.quota.algorithm().name())
}

impl Buckets {
    fn debt(&self, one: &Transaction, now: Timestamp) -> Nanos {
        let tat = self.tats.get(&one.key);
        tat.map_or(Nanos::ZERO, |tat| tat.since(now))
    }

    fn window(&mut self, one: &Transaction) -> Option<&mut Window> {
        let full = Window::full(&one.quota)?;
        Some(self.windows.entry(window_key(one)).or_insert(full))
    }

    fn usage(&mut self, one: &Transaction, now: Timestamp) -> Usage {
        self.window(one)
            .map_or_else(Usage::default, |window| window.usage(one, now))
    }

    fn settle(&mut self, batch: &Batch, now: Timestamp) {
        for one in batch.iter().filter(|one| one.kind.spends()) {
            if let Some(window) = self.window(one) {
                window.settle(&one.quota, now);
            }
        }
    }

    /// What one transaction makes of its bucket, and of it without taking anything.
    fn decide(&mut self, one: &Transaction, now: Timestamp) -> [Decision; 2] {
        if one.kind == Mode::AllowOnly {
            return [one.untouched(Nanos::ZERO); 2];
        }
        if one.quota.algorithm().is_windowed() {
            return self.decide_in_window(one, now);
        }
        let debt = self.debt(one, now);
        let decision = one.decide(debt);
        if one.kind.spends() && one.fitting_increment(debt).is_some() {
            self.tats.insert(one.key.clone(), now + decision.reset_in);
        }
        [decision, one.untouched(debt)]
    }

    fn decide_in_window(&mut self, one: &Transaction, now: Timestamp) -> [Decision; 2] {
        let usage = self.usage(one, now);
        if one.kind.spends() && one.fits_beside(usage.used) {
            self.take(one, now);
        }
        [
            one.decide_in_window(&usage),
            one.untouched_in_window(&usage),
        ]
    }

    fn take(&mut self, one: &Transaction, now: Timestamp) {
        if let Some(window) = self.window(one) {
            window.take(one, now);
        }
    }

    /// Begins a window for a transaction that another limit denied.
    fn begin(&mut self, one: &Transaction, now: Timestamp) {
        let fits = one.kind.spends() && one.fits_beside(self.usage(one, now).used);
        if let Some(window) = self.window(one).filter(|_| fits) {
            window.begin(one, now);
        }
    }

    /// Cuts what a greater limit has left behind.
    fn clamp(&mut self, one: &Transaction, debt: Nanos, now: Timestamp) {
        if !one.quota.algorithm().is_windowed() && one.quota.is_stale(debt) {
            self.tats
                .insert(one.key.clone(), now + one.quota.tolerance());
        }
    }
}

impl Store for Reference {
    fn decide(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let mut buckets = self.0.lock();
        buckets.settle(&batch, now);
        let before = buckets.clone();
        let both: Vec<_> = batch.iter().map(|one| buckets.decide(one, now)).collect();
        let mut decisions: Vec<_> = both.iter().map(|[decided, _]| *decided).collect();
        if decisions.iter().any(|decision| !decision.allowed) {
            *buckets = before.clone();
            for (one, (decision, [_, untouched])) in
                batch.iter().zip(decisions.iter_mut().zip(&both))
            {
                if decision.allowed {
                    *decision = *untouched;
                    buckets.begin(one, now);
                } else if one.is_counted_when_denied() {
                    buckets.take(one, now);
                    *decision = one.decide_in_window(&buckets.usage(one, now));
                }
            }
        }
        for one in batch.iter().filter(|one| one.kind.spends()) {
            let debt = before.debt(one, now);
            buckets.clamp(one, debt, now);
        }
        StoreFuture::ready(Outcome {
            decisions: decisions.into_iter().map(Some).collect(),
            source: DecisionSource::Store,
        })
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        let mut buckets = self.0.lock();
        for one in batch.iter().filter(|one| one.kind.spends()) {
            if let Some(window) = buckets.window(one) {
                window.give_back(one);
            } else if let (Some(tat), Some(taken)) = (
                buckets.tats.get_mut(&one.key),
                one.quota.increment(one.cost),
            ) {
                *tat = now + tat.since(now).saturating_sub(taken);
            }
        }
        StoreFuture::ready(())
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        let mut buckets = self.0.lock();
        for key in &keys {
            buckets.tats.remove(key);
            buckets.windows.retain(|(other, _), _| other != key);
        }
        StoreFuture::ready(())
    }
}

impl Subject for Reference {
    fn store(&self) -> &dyn Store {
        self
    }
}

crate::store::tests::contract::store_contract!(Reference::default());
