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
    pub(crate) fn full_at(&self, transaction: &Transaction) -> Option<Timestamp> {
        let buckets = self.0.lock();
        match buckets.windows.get(&window_key(transaction)) {
            Some(window) => Some(window.expires_at(&transaction.quota)),
            None => buckets.tats.get(&transaction.key).copied(),
        }
    }
}

fn window_key(transaction: &Transaction) -> (BucketKey, &'static str) {
    (
        transaction.key.clone(),
        transaction.quota.algorithm().name(),
    )
}

impl Buckets {
    fn debt(&self, transaction: &Transaction, now: Timestamp) -> Nanos {
        let tat = self.tats.get(&transaction.key);
        tat.map_or(Nanos::ZERO, |tat| tat.since(now))
    }

    fn window(&mut self, transaction: &Transaction) -> Option<&mut Window> {
        let full = Window::full(&transaction.quota)?;
        Some(self.windows.entry(window_key(transaction)).or_insert(full))
    }

    fn usage(&mut self, transaction: &Transaction, now: Timestamp) -> Usage {
        self.window(transaction)
            .map_or_else(Usage::default, |window| window.usage(transaction, now))
    }

    fn settle(&mut self, batch: &Batch, now: Timestamp) {
        for transaction in batch.iter().filter(|transaction| transaction.mode.spends()) {
            if let Some(window) = self.window(transaction) {
                window.settle(&transaction.quota, now);
            }
        }
    }

    /// What one transaction makes of its bucket, and of it without taking anything.
    fn decide(&mut self, transaction: &Transaction, now: Timestamp) -> [Decision; 2] {
        if transaction.mode == Mode::AllowOnly {
            return [transaction.untouched(Nanos::ZERO); 2];
        }
        if transaction.quota.algorithm().is_windowed() {
            return self.decide_in_window(transaction, now);
        }
        let debt = self.debt(transaction, now);
        let decision = transaction.decide(debt);
        if transaction.mode.spends() && transaction.fitting_increment(debt).is_some() {
            self.tats
                .insert(transaction.key.clone(), now + decision.reset_in);
        }
        [decision, transaction.untouched(debt)]
    }

    fn decide_in_window(&mut self, transaction: &Transaction, now: Timestamp) -> [Decision; 2] {
        let usage = self.usage(transaction, now);
        if transaction.mode.spends() && transaction.fits_beside(usage.used) {
            self.take(transaction, now);
        }
        [
            transaction.decide_in_window(&usage),
            transaction.untouched_in_window(&usage),
        ]
    }

    fn take(&mut self, transaction: &Transaction, now: Timestamp) {
        if let Some(window) = self.window(transaction) {
            window.take(transaction, now);
        }
    }

    /// Begins a window for a transaction that another limit denied.
    fn begin(&mut self, transaction: &Transaction, now: Timestamp) {
        let fits =
            transaction.mode.spends() && transaction.fits_beside(self.usage(transaction, now).used);
        if let Some(window) = self.window(transaction).filter(|_| fits) {
            window.begin(transaction, now);
        }
    }

    /// Cuts what a greater limit has left behind.
    fn clamp(&mut self, transaction: &Transaction, debt: Nanos, now: Timestamp) {
        if !transaction.quota.algorithm().is_windowed() && transaction.quota.is_stale(debt) {
            self.tats
                .insert(transaction.key.clone(), now + transaction.quota.tolerance());
        }
    }
}

impl Store for Reference {
    fn decide(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let mut buckets = self.0.lock();
        buckets.settle(&batch, now);
        let before = buckets.clone();
        let both: Vec<_> = batch
            .iter()
            .map(|transaction| buckets.decide(transaction, now))
            .collect();
        let mut decisions: Vec<_> = both.iter().map(|[decided, _]| *decided).collect();
        if decisions.iter().any(|decision| !decision.allowed) {
            *buckets = before.clone();
            for (transaction, (decision, [_, untouched])) in
                batch.iter().zip(decisions.iter_mut().zip(&both))
            {
                if decision.allowed {
                    *decision = *untouched;
                    buckets.begin(transaction, now);
                } else if transaction.is_counted_when_denied() {
                    buckets.take(transaction, now);
                    *decision = transaction.decide_in_window(&buckets.usage(transaction, now));
                }
            }
        }
        for transaction in batch.iter().filter(|asked| asked.cuts_leftovers()) {
            let debt = before.debt(transaction, now);
            buckets.clamp(transaction, debt, now);
        }
        StoreFuture::ready(Outcome {
            decisions: decisions.into_iter().map(Some).collect(),
            source: DecisionSource::Store,
        })
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        let mut buckets = self.0.lock();
        for transaction in batch.iter().filter(|transaction| transaction.mode.spends()) {
            if let Some(window) = buckets.window(transaction) {
                window.give_back(transaction);
            } else if let (Some(tat), Some(taken)) = (
                buckets.tats.get_mut(&transaction.key),
                transaction.quota.increment(transaction.cost),
            ) {
                *tat = now + tat.since(now).saturating_sub(taken);
            }
        }
        StoreFuture::ready(())
    }

    fn refund_last(
        &self,
        transaction: Transaction,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        let tat = self.0.lock().tats.get(&transaction.key).copied();
        match tat.is_some_and(|tat| tat <= latest) {
            true => self.refund(Batch::from_iter([transaction]), now),
            false => StoreFuture::ready(()),
        }
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
