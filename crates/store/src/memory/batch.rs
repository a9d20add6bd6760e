//! How a batch is decided: all of its buckets are checked under their locks, and then all are taken
//! from or none.

use smallvec::{SmallVec, smallvec};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Decision, LevelChoice, Mode, Transaction, Usage, Window};

use super::Memory;
use super::shards::Locked;
use super::table::{Lookup, Table};
use super::window_table::WindowTable;
use crate::hashed_key::HashedKey;
use crate::{Decisions, Owed};

type Keys = SmallVec<[HashedKey; 3]>;
type Checks = SmallVec<[Check; 3]>;

/// The locked tables of a batch. Those of GCRA are locked before those of windows, so no two
/// batches wait for each other.
struct Tables<'m> {
    buckets: Locked<'m, Table>,
    windows: Locked<'m, WindowTable>,
}

/// A transaction's bucket, and the decision about it alone.
struct Check {
    key: HashedKey,
    state: BucketState,
    decision: Decision,
    /// Whether units are taken when the batch is allowed.
    takes: bool,
}

/// The bucket before the transaction, with the costs of earlier ones of its batch.
#[derive(Clone, Copy)]
enum BucketState {
    /// The debt of the first level, beside which no other was looked at.
    Debt(Nanos),
    /// The level that counts, which may be the first.
    Level(LevelChoice),
    Usage(Usage),
}

impl Memory {
    pub(super) fn decide_batch(&self, batch: &Batch, now: Timestamp) -> Decisions {
        if batch.iter().any(Transaction::is_windowed) {
            return self.decide_all::<true>(batch, now);
        }
        match batch.as_slice() {
            [transaction] => match self.decide_one(transaction, now) {
                None => self.decide_all::<true>(batch, now),
                decision => smallvec![decision],
            },
            _ => self.decide_all::<false>(batch, now),
        }
    }

    /// Decides a batch of one, as most are: there is one shard to lock, and no other transaction to
    /// heed. None if another level than the first may count.
    #[inline(always)]
    fn decide_one(&self, transaction: &Transaction, now: Timestamp) -> Option<Decision> {
        let key = self.key(transaction);
        let mut table = self.buckets.lock_one(key)?;
        let found = table.lookup(key.tag);
        let check = Check::at_debt(transaction, key, found.debt(now));
        if check.is_foreign(transaction) {
            return None;
        }
        let denied = check.denies();
        self.leave_debt::<false>(transaction, &check, denied, &mut table, found, now);
        Some(check.decision)
    }

    /// `GENERAL` is whether some are counted in windows or below the first level: the compiler leaves
    /// out what is for those where there are none.
    fn decide_all<const GENERAL: bool>(&self, batch: &Batch, now: Timestamp) -> Decisions {
        let keys: Keys = batch
            .iter()
            .map(|transaction| self.key(transaction))
            .collect();
        let of = |windowed| {
            let both = batch.iter().zip(&keys);
            both.filter_map(move |(transaction, &key)| {
                ((GENERAL && transaction.is_windowed()) == windowed).then_some(key)
            })
        };
        let mut tables = Tables {
            buckets: self.buckets.lock(of(false)),
            windows: self.windows.lock(of(true)),
        };
        if GENERAL {
            tables.settle_windows(batch, &keys, now);
        }
        let mut checks = Checks::new();
        let mut denied = false;
        for (transaction, &key) in batch.iter().zip(&keys) {
            let check = tables.check::<GENERAL>(transaction, key, batch, &checks, now);
            if !GENERAL && check.is_foreign(transaction) {
                drop(tables);
                return self.decide_all::<true>(batch, now);
            }
            denied |= check.denies();
            checks.push(check);
        }
        for (transaction, check) in batch.iter().zip(&checks) {
            self.leave::<GENERAL>(transaction, check, denied, &mut tables, now);
        }
        let decision = |(transaction, check): (&Transaction, &Check)| {
            Some(match denied {
                true => tables.decision(transaction, check, now),
                false => check.decision,
            })
        };
        batch.iter().zip(&checks).map(decision).collect()
    }

    fn leave<const GENERAL: bool>(
        &self,
        transaction: &Transaction,
        check: &Check,
        denied: bool,
        tables: &mut Tables<'_>,
        now: Timestamp,
    ) {
        match check.state {
            BucketState::Usage(_) if GENERAL => {
                if let Some(table) = tables.windows.table(check.key) {
                    self.leave_usage(transaction, check, denied, table, now);
                }
            }
            _ => {
                if let Some(table) = tables.buckets.table(check.key) {
                    let found = table.lookup(check.key.tag);
                    self.leave_debt::<GENERAL>(transaction, check, denied, table, found, now);
                }
            }
        }
    }

    /// Takes what is taken unless the batch is denied.
    #[inline(always)]
    fn leave_debt<const GENERAL: bool>(
        &self,
        transaction: &Transaction,
        check: &Check,
        denied: bool,
        table: &mut Table,
        found: Lookup,
        now: Timestamp,
    ) {
        let takes = check.takes && !denied;
        let mut cuts = false;
        if GENERAL && let BucketState::Level(level) = check.state {
            if level.index > 0 {
                self.leave_deeper_debt(transaction, (check, level), takes, table, now);
                return;
            }
            cuts = level.begins;
        }
        if takes || cuts {
            let debt = check.decision.reset_in;
            self.count_evicted(table.set(found, transaction, debt, now).into());
        }
        if check.finds_no_room() {
            table.note_denial(found, transaction);
        }
    }

    /// The same of a level below the first, which those above are charged with, too. One that
    /// begins does so for whatever it was looked at.
    #[cold]
    fn leave_deeper_debt(
        &self,
        transaction: &Transaction,
        (check, level): (&Check, LevelChoice),
        takes: bool,
        table: &mut Table,
        now: Timestamp,
    ) {
        let tag = check.key.tag;
        if check.finds_no_room() {
            table.note_denial(table.lookup(tag), transaction);
        }
        if !takes && !level.begins {
            return;
        }
        let taken = match takes {
            true => check.decision.reset_in.saturating_sub(level.debt),
            false => Nanos::ZERO,
        };
        let first = table.lookup(tag);
        let levels = table.levels(tag);
        let mut evicted = 0;
        if takes {
            evicted += u64::from(table.set(first, transaction, first.debt(now) + taken, now));
            for (index, mut above) in (1..level.index).zip(levels) {
                above.tat = now + (above.tat.since(now) + taken);
                evicted += table.set_level((tag, index), transaction, above, now);
            }
        }
        let own = level.level_after(taken, now);
        evicted += table.set_level((tag, level.index), transaction, own, now);
        self.count_evicted(evicted);
    }

    /// The same of a window.
    fn leave_usage(
        &self,
        transaction: &Transaction,
        check: &Check,
        denied: bool,
        table: &mut WindowTable,
        now: Timestamp,
    ) {
        let counts_denied = check.denies() && transaction.is_counted_when_denied();
        if check.finds_no_room() {
            table.note_denial(check.key.tag);
        }
        if check.takes && !denied || counts_denied {
            self.count_evicted(table.put(check.key.tag, transaction, now, |window| {
                window.take(transaction, now);
            }));
        }
    }

    /// Gives back what is owed; of GCRA only if the TAT is no later than `latest`.
    pub(super) fn refund_one(&self, owed: &Owed, latest: Timestamp, now: Timestamp) {
        let transaction = &owed.transaction;
        if !transaction.mode.spends() || owed.until <= now {
            return;
        }
        let key = self.key(transaction);
        if transaction.is_windowed() {
            if let Some(mut table) = self.windows.lock_one(key) {
                table.change(key.tag, transaction, now, |window| {
                    window.give_back(transaction);
                });
            }
        } else if let Some(taken) = owed.debt(now)
            && let Some(mut table) = self.buckets.lock_one(key)
        {
            let found = table.lookup(key.tag);
            let debt = found.debt(now);
            if debt.is_zero() || now + debt > latest {
                return;
            }
            let level = choose_level(transaction, found, &table, now);
            table.set(found, transaction, debt.saturating_sub(taken), now);
            for (index, mut deeper) in (1..=level.index).zip(table.levels(key.tag)) {
                deeper.tat = now + deeper.tat.since(now).saturating_sub(taken);
                table.set_level((key.tag, index), transaction, deeper, now);
            }
        }
    }
}

/// The level of a bucket at which a transaction counts.
fn choose_level(
    transaction: &Transaction,
    found: Lookup,
    table: &Table,
    now: Timestamp,
) -> LevelChoice {
    let debt = found.debt(now);
    if let Some(debt) = transaction.cut(debt) {
        return LevelChoice {
            begins: transaction.cuts_leftovers(),
            ..LevelChoice::first(debt)
        };
    }
    if !transaction.has_foreign_level(debt) {
        return LevelChoice::first(debt);
    }
    let levels = table.levels(found.tag());
    transaction.quota.choose_level(debt, &levels, now)
}

impl Tables<'_> {
    /// Removes what no longer counts in windows. A transaction that only reads changes nothing, but
    /// what it asks is noted.
    fn settle_windows(&mut self, batch: &Batch, keys: &Keys, now: Timestamp) {
        let windowed = batch.iter().zip(keys).filter(|(transaction, _)| {
            transaction.is_windowed() && transaction.mode != Mode::AllowOnly
        });
        for (transaction, &key) in windowed {
            if let Some(table) = self.windows.table(key) {
                table.change(key.tag, transaction, now, |window| {
                    if transaction.mode.spends() {
                        window.settle(&transaction.quota, now);
                    }
                });
            }
        }
    }

    #[inline(always)]
    fn check<const GENERAL: bool>(
        &mut self,
        transaction: &Transaction,
        key: HashedKey,
        batch: &Batch,
        earlier: &[Check],
        now: Timestamp,
    ) -> Check {
        if GENERAL && transaction.is_windowed() {
            // As many as were looked at.
            let earlier = batch.iter().zip(earlier);
            let taking = earlier.filter(|(_, check)| check.key == key && check.takes);
            let taking = taking.map(|(transaction, _)| transaction);
            return Check::at_usage(transaction, key, self.usage(transaction, key, taking, now));
        }
        let mut earlier = earlier.iter().rev();
        if let Some(check) = earlier.find(|check| check.key == key && check.takes) {
            return Check::at_level(transaction, key, check.level_after());
        }
        let Some(table) = self.buckets.table(key) else {
            return Check::at_debt(transaction, key, Nanos::ZERO);
        };
        let found = table.lookup(key.tag);
        match GENERAL {
            true => {
                let level = choose_level(transaction, found, table, now);
                Check::at_level(transaction, key, level)
            }
            false => Check::at_debt(transaction, key, found.debt(now)),
        }
    }

    /// A bucket's usage, with what earlier transactions are about to take from it.
    fn usage<'b>(
        &mut self,
        transaction: &Transaction,
        key: HashedKey,
        taking: impl Iterator<Item = &'b Transaction>,
        now: Timestamp,
    ) -> Usage {
        let found = self.window(key);
        let mut taking = taking.peekable();
        if let (Some(window), None) = (found, taking.peek()) {
            return window.usage(transaction, now);
        }
        let full = || Window::full(&transaction.quota);
        let Some(mut window) = found.cloned().or_else(full) else {
            return Usage::default();
        };
        for earlier in taking {
            window.take(earlier, now);
        }
        window.usage(transaction, now)
    }

    fn window(&mut self, key: HashedKey) -> Option<&Window> {
        self.windows.table(key)?.get(key.tag)
    }

    /// The decision about a bucket of a batch that is denied. What is counted all the same makes
    /// the next unit come later.
    fn decision(&mut self, transaction: &Transaction, check: &Check, now: Timestamp) -> Decision {
        match check.state {
            BucketState::Debt(debt) if !check.denies() => transaction.untouched(debt),
            BucketState::Level(level) if !check.denies() => transaction.untouched(level.debt),
            BucketState::Usage(usage) if !check.denies() => transaction.untouched_in_window(&usage),
            BucketState::Usage(usage) if check.denies() && transaction.is_counted_when_denied() => {
                let window = self.window(check.key);
                let usage = window.map_or(usage, |window| window.usage(transaction, now));
                transaction.decide_in_window(&usage)
            }
            _ => check.decision,
        }
    }
}

impl Check {
    #[inline]
    fn at_debt(transaction: &Transaction, key: HashedKey, debt: Nanos) -> Self {
        let debt = match transaction.mode {
            Mode::AllowOnly => Nanos::ZERO,
            _ => debt,
        };
        let decision = transaction.decide(debt);
        Self {
            key,
            state: BucketState::Debt(debt),
            // Nothing else makes a debt greater.
            takes: decision.reset_in > debt,
            decision,
        }
    }

    fn at_level(transaction: &Transaction, key: HashedKey, level: LevelChoice) -> Self {
        let check = Self::at_debt(transaction, key, level.debt);
        match transaction.mode {
            Mode::AllowOnly => check,
            _ => Self {
                state: BucketState::Level(level),
                ..check
            },
        }
    }

    fn at_usage(transaction: &Transaction, key: HashedKey, usage: Usage) -> Self {
        let usage = match transaction.mode {
            Mode::AllowOnly => Usage::default(),
            _ => usage,
        };
        let decision = transaction.decide_in_window(&usage);
        Self {
            key,
            state: BucketState::Usage(usage),
            takes: transaction.mode.spends() && transaction.fits_beside(usage.used),
            decision,
        }
    }

    fn denies(&self) -> bool {
        !self.decision.allowed
    }

    /// Whether the cost does not fit now, but would fit a full bucket.
    fn finds_no_room(&self) -> bool {
        !self.decision.fits() && self.decision.retry_in != Nanos::NEVER
    }

    /// Whether the debt is too great to stem from this quota.
    fn is_foreign(&self, transaction: &Transaction) -> bool {
        let debt = match self.state {
            BucketState::Debt(debt) => debt,
            BucketState::Level(level) => level.debt,
            BucketState::Usage(_) => return false,
        };
        !self.decision.fits() && transaction.quota.is_foreign(debt)
    }

    fn level_after(&self) -> LevelChoice {
        let debt = self.decision.reset_in;
        match self.state {
            BucketState::Level(level) => LevelChoice {
                debt,
                above: level.above + debt.saturating_sub(level.debt),
                ..level
            },
            BucketState::Debt(_) | BucketState::Usage(_) => LevelChoice::first(debt),
        }
    }
}
