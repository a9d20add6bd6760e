//! The smallest store: the pure algorithms on maps. Other stores are held against it.

use std::collections::HashMap;

use parking_lot::Mutex;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{
    Batch, BucketKey, BucketKeys, Decision, LEVELS, Level, LevelChoice, Mode, Transaction, Usage,
    Window,
};
use weir_store::tests::contract::Subject;
use weir_store::{DecisionSource, Outcome, Owed, OwedBatch, Store, StoreFuture};

#[derive(Default)]
pub(crate) struct Reference(Mutex<Buckets>);

#[derive(Clone, Default)]
struct Buckets {
    tats: HashMap<BucketKey, Timestamp>,
    levels: HashMap<BucketKey, [Level; LEVELS - 1]>,
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
        let level = self.level(transaction, now);
        let decision = transaction.decide(level.debt);
        let fitting = transaction.fitting_increment(level.debt);
        let taken = fitting.filter(|_| transaction.mode.spends());
        self.charge(transaction, level, taken.unwrap_or_default(), now);
        [decision, transaction.untouched(level.debt)]
    }

    fn level(&self, transaction: &Transaction, now: Timestamp) -> LevelChoice {
        let levels = self.levels.get(&transaction.key);
        let debt = self.debt(transaction, now);
        if let Some(cut) = transaction.cut(debt) {
            return LevelChoice::first(cut);
        }
        let levels = levels.copied().unwrap_or_default();
        transaction.quota.choose_level(debt, &levels, now)
    }

    /// Begins a level for a transaction of a batch that was denied.
    fn begin_level(&mut self, transaction: &Transaction, now: Timestamp) {
        if transaction.mode != Mode::AllowOnly && !transaction.is_windowed() {
            let level = self.level(transaction, now);
            self.charge(transaction, level, Nanos::ZERO, now);
        }
    }

    /// Takes from a level and from those above; one that begins does so in any case.
    fn charge(
        &mut self,
        transaction: &Transaction,
        level: LevelChoice,
        taken: Nanos,
        now: Timestamp,
    ) {
        if !taken.is_zero() {
            let debt = self.debt(transaction, now);
            self.tats
                .insert(transaction.key.clone(), now + (debt + taken));
        }
        if level.index == 0 || taken.is_zero() && !level.begins {
            return;
        }
        let levels = self.levels.entry(transaction.key.clone()).or_default();
        for above in &mut levels[..level.index - 1] {
            above.tat = now + (above.tat.since(now) + taken);
        }
        levels[level.index - 1] = level.level_after(taken, now);
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
}

impl Store for Reference {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let mut buckets = self.0.lock();
        buckets.settle(batch, now);
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
                buckets.begin_level(transaction, now);
                if decision.allowed {
                    *decision = *untouched;
                } else if transaction.is_counted_when_denied() {
                    buckets.take(transaction, now);
                    *decision = transaction.decide_in_window(&buckets.usage(transaction, now));
                }
            }
        }
        for transaction in batch.iter().filter(|asked| asked.cuts_leftovers()) {
            let debt = before.debt(transaction, now);
            if let Some(cut) = transaction.cut(debt) {
                buckets.tats.insert(transaction.key.clone(), now + cut);
            }
        }
        StoreFuture::ready(Outcome {
            decisions: decisions.into_iter().map(Some).collect(),
            source: DecisionSource::Store,
        })
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        let mut buckets = self.0.lock();
        let is_owed = |owed: &&Owed| owed.transaction.mode.spends() && owed.until > now;
        for Owed { transaction, until } in owed.iter().filter(is_owed) {
            if let Some(window) = buckets.window(transaction) {
                window.give_back(transaction);
            } else if let Some(taken) = transaction.quota.increment(transaction.cost) {
                let taken = taken.min(until.since(now));
                let level = buckets.level(transaction, now);
                if let Some(tat) = buckets.tats.get_mut(&transaction.key) {
                    *tat = now + tat.since(now).saturating_sub(taken);
                }
                if let Some(levels) = buckets.levels.get_mut(&transaction.key) {
                    for deeper in &mut levels[..level.index] {
                        deeper.tat = now + deeper.tat.since(now).saturating_sub(taken);
                    }
                }
            }
        }
        StoreFuture::ready(())
    }

    fn refund_last(
        &self,
        transaction: Transaction,
        _: DecisionSource,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        let tat = self.0.lock().tats.get(&transaction.key).copied();
        match tat.is_some_and(|tat| tat <= latest) {
            true => self.refund([Owed::whole(transaction)].into_iter().collect(), now),
            false => StoreFuture::ready(()),
        }
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        let mut buckets = self.0.lock();
        for key in &keys {
            buckets.tats.remove(key);
            buckets.levels.remove(key);
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

weir_store::store_contract!(Reference::default());
