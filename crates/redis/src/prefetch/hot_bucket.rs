//! The local units of one hot bucket: pure arithmetic, given the time by its caller.
//!
//! At every moment, the units that are held, that are on their way here, and that are on their way
//! back are at most [`Prefetch::units`]. The bound on what passes beyond the quota rests on that
//! alone; sizes and pauses only decide how often the store is asked.

use std::num::NonZeroU64;

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{BucketKey, Decision, Mode, Prefetch, Quota, Transaction};
use weir_store::{DecisionSource, Outcome, StoreError};

/// The part of [`Prefetch::units`] that a request may cost. A costlier one asks the store itself,
/// as local units are too few to decide it.
const MAX_COST_SHARE: u64 = 8;

/// The part of the last take below which units are taken again, so that requests seldom wait.
const LOW_SHARE: u64 = 4;

/// Where the store has not got twice what is wanted, half of what it has is left to others.
const LEFT_TO_OTHERS: u64 = 2;

/// In how many parts of [`Prefetch::max_age`] the store is asked again by a gateway that got less
/// than it wanted.
const PAUSES: u64 = 20;

/// A share of the time that the bucket takes to fill, which is the longest such pause.
const PAUSES_TO_FILL: u64 = 8;

/// Units that were taken and not spent, oldest first.
#[derive(Clone, Copy, Debug, Default)]
struct LocalUnits {
    units: u64,
    /// How many of them were taken before `newest`.
    older: u64,
    oldest: Timestamp,
    newest: Timestamp,
}

impl LocalUnits {
    fn oldest(&self) -> Timestamp {
        match self.older {
            0 => self.newest,
            _ => self.oldest,
        }
    }

    fn spend(&mut self, units: u64) {
        self.units = self.units.saturating_sub(units);
        self.older = self.older.saturating_sub(units);
    }

    fn add(&mut self, units: u64, now: Timestamp) {
        *self = Self {
            oldest: self.oldest(),
            older: self.units,
            newest: now,
            units: self.units + units,
        };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefillState {
    /// No units are wanted.
    Ready,
    /// The store has not been asked yet.
    Wanted,
    /// The store has been asked, `since` then, for some of the units that were wanted.
    UnderWay {
        units: u64,
        wanted: u64,
        since: Timestamp,
    },
    /// The store had less than was wanted, and is not asked again until then.
    Short(Timestamp),
    /// The store gave no reply, and is not asked again until then.
    Failed(Timestamp),
}

#[derive(Clone, Copy, Debug)]
struct SpendRate {
    /// The local units that a take should lead to.
    size: u64,
    /// Units spent since the last take.
    spent: u64,
    /// Units that requests had to wait for since.
    missed: u64,
    since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitLookup {
    /// A decision by local units. A cost that it shows as taken is taken.
    Decided(Decision),
    /// The request has to wait for units that are on their way.
    Wait,
    Ask,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IdleCheck {
    Active,
    /// No longer hot. Units that were not spent go back to the store.
    Idle(Option<Transaction>),
}

#[derive(Debug)]
pub(super) struct HotBucket {
    key: BucketKey,
    quota: Quota,
    limit: Prefetch,
    local: LocalUnits,
    /// The debt in the last reply of the store, and when it was asked.
    last_debt: Option<(Nanos, Timestamp)>,
    refill: RefillState,
    rate: SpendRate,
    seen: Timestamp,
    /// No units are kept for requests any more.
    retired: bool,
}

impl HotBucket {
    /// A bucket without local units, of which `size` are wanted at first.
    pub(super) fn new(
        transaction: &Transaction,
        limit: Prefetch,
        size: u64,
        now: Timestamp,
    ) -> Self {
        let lasting = Self::lasting(limit);
        Self {
            key: transaction.key.clone(),
            quota: transaction.quota,
            limit,
            local: LocalUnits::default(),
            last_debt: None,
            refill: RefillState::Ready,
            rate: SpendRate {
                size: size.min(limit.units()),
                spent: size,
                missed: 0,
                since: Timestamp::from_nanos(now.as_nanos().saturating_sub(lasting.get())),
            },
            seen: now,
            retired: false,
        }
    }

    /// The time that the units of one take should last.
    pub(super) const fn lasting(limit: Prefetch) -> Nanos {
        Nanos::new(limit.max_age().get() / 2)
    }

    pub(super) const fn seen(&self) -> Timestamp {
        self.seen
    }

    pub(super) fn is_wanting(&self) -> bool {
        self.refill == RefillState::Wanted
    }

    /// Decides by local units, and takes the cost from them.
    pub(super) fn decide(&mut self, transaction: &Transaction, now: Timestamp) -> UnitLookup {
        self.seen = now;
        self.retired |= transaction.quota != self.quota;
        let cost = transaction.cost.get();
        let is_great = cost > self.limit.units() / MAX_COST_SHARE;
        if self.retired || is_great || self.is_expired(now) {
            return UnitLookup::Ask;
        }
        if self.local.units >= cost {
            let decision = transaction.decide(self.debt());
            if transaction.mode.spends() {
                self.spend(cost, now);
            }
            return UnitLookup::Decided(decision);
        }
        match self.refill {
            _ if transaction.mode == Mode::Peek => match self.last_debt {
                Some(_) => UnitLookup::Decided(transaction.decide(self.debt())),
                None => UnitLookup::Ask,
            },
            // A request that is denied takes nothing, but one that passes must not go uncharged
            // while the store has units.
            RefillState::Short(until) if self.is_pausing(until, now) => {
                match transaction.mode.checks() {
                    true => UnitLookup::Decided(transaction.decide(self.debt_until(
                        until,
                        transaction,
                        now,
                    ))),
                    false => UnitLookup::Ask,
                }
            }
            RefillState::Failed(until) if self.is_pausing(until, now) => UnitLookup::Ask,
            _ => {
                self.rate.missed += cost;
                self.want(now);
                UnitLookup::Wait
            }
        }
    }

    /// Puts units back that a request does not spend after all. Without room for them it does not,
    /// and they belong to the store.
    pub(super) fn put_back(&mut self, transaction: &Transaction) -> bool {
        let cost = transaction.cost.get();
        let room = self.limit.units().saturating_sub(self.in_hand());
        let fits = !self.retired && transaction.quota == self.quota && cost <= room;
        if fits {
            self.local.units += cost;
        }
        fits
    }

    /// Drops the local units, as the bucket was reset.
    pub(super) fn forget(&mut self) {
        self.local = LocalUnits::default();
        self.retired = true;
    }

    /// Keeps no units for requests from now on.
    pub(super) const fn retire(&mut self) {
        self.retired = true;
    }

    /// The next take, if units are wanted. Its outcome goes to [`Self::taken`].
    pub(super) fn begin(&mut self) -> Option<Transaction> {
        if !self.is_wanting() {
            return None;
        }
        self.refill = RefillState::Ready;
        if self.retired {
            return None;
        }
        self.resize();
        let wanted = self.rate.size.saturating_sub(self.local.units);
        self.ask_for(wanted.min(self.share(self.seen)), wanted, self.seen)
    }

    /// Applies the outcome of a take. Returns a smaller take to be made in its place.
    pub(super) fn taken(&mut self, answer: &Result<Outcome, StoreError>) -> Option<Transaction> {
        let RefillState::UnderWay {
            units,
            wanted,
            since,
        } = self.refill
        else {
            return None;
        };
        let pause = self.seen + self.pause();
        let outcome = answer.as_ref().ok();
        let outcome = outcome.filter(|outcome| outcome.source == DecisionSource::Store);
        let decision = outcome.and_then(|outcome| outcome.decisions.first().copied().flatten());
        let Some(decision) = decision else {
            self.refill = RefillState::Failed(pause);
            return None;
        };
        self.last_debt = Some((decision.reset_in, since));
        if decision.fits() {
            self.refill = match units < wanted {
                true => RefillState::Short(pause),
                false => RefillState::Ready,
            };
            self.local.add(units, since);
            return None;
        }
        self.refill = RefillState::Short(pause);
        let share = self.share(since).min(decision.remaining);
        // The store has less than that, so each further take is smaller.
        self.ask_for(share.min(units - 1), wanted, since)
    }

    /// Checks whether the bucket is still hot: now and then, and after each take.
    pub(super) fn check_idle(&mut self, now: Timestamp) -> IdleCheck {
        if matches!(self.refill, RefillState::UnderWay { .. }) {
            return IdleCheck::Active;
        }
        let idle = self.local.units == 0 && is_past(self.rate.since, now, self.limit.max_age());
        if !(self.retired || idle || self.is_expired(now)) {
            return IdleCheck::Active;
        }
        self.retired = true;
        let unspent = NonZeroU64::new(self.local.units).filter(|_| self.is_owed(now));
        self.local = LocalUnits::default();
        IdleCheck::Idle(unspent.map(|units| self.transaction(Mode::CheckAndSpend, units)))
    }

    /// The debt of the bucket by the last reply of the store, less the local units.
    fn debt(&self) -> Nanos {
        let debt = self.last_debt.map_or(Nanos::ZERO, |(debt, _)| debt);
        let interval = self.quota.emission_interval().get();
        debt.saturating_sub(Nanos::new(self.local.units.saturating_mul(interval)))
    }

    /// The debt of a bucket that has no room for the cost until then.
    fn debt_until(&self, until: Timestamp, transaction: &Transaction, now: Timestamp) -> Nanos {
        let cost = transaction.quota.increment(transaction.cost);
        let room = self
            .quota
            .tolerance()
            .saturating_sub(cost.unwrap_or_default());
        self.debt().max(room + until.since(now))
    }

    /// Whether the bucket still owes the units that were taken. What has come back by itself is not
    /// owed.
    fn is_owed(&self, now: Timestamp) -> bool {
        self.last_debt.is_some_and(|(debt, then)| then + debt > now)
    }

    fn spend(&mut self, units: u64, now: Timestamp) {
        self.local.spend(units);
        self.rate.spent += units;
        if self.local.units * LOW_SHARE <= self.rate.size {
            self.want(now);
        }
    }

    fn want(&mut self, now: Timestamp) {
        match self.refill {
            RefillState::Short(until) | RefillState::Failed(until)
                if self.is_pausing(until, now) => {}
            RefillState::Wanted | RefillState::UnderWay { .. } => {}
            RefillState::Ready | RefillState::Short(_) | RefillState::Failed(_) => {
                self.refill = RefillState::Wanted;
            }
        }
    }

    /// As many as are spent in the time that a take should last, at most twice as many as before.
    fn resize(&mut self) {
        let SpendRate {
            size,
            spent,
            missed,
            since,
        } = self.rate;
        let took = u128::from(self.seen.since(since).get());
        let spent = u128::from(spent) * u128::from(Self::lasting(self.limit).get());
        let by_rate = spent.checked_div(took).unwrap_or(u128::MAX);
        let by_rate = u64::try_from(by_rate).unwrap_or(u64::MAX);
        let size = by_rate.clamp(size / 2, size * 2).max(2 * missed);
        self.rate = SpendRate {
            size: size.clamp(Prefetch::MIN_UNITS.into(), self.limit.units()),
            spent: 0,
            missed: 0,
            since: self.seen,
        };
    }

    /// The gateway's share of what the store has by its last reply.
    fn share(&self, now: Timestamp) -> u64 {
        self.last_debt.map_or(u64::MAX, |(debt, then)| {
            let debt = debt.saturating_sub(now.since(then));
            (self.quota.remaining(debt) / LEFT_TO_OTHERS).max(1)
        })
    }

    fn ask_for(&mut self, units: u64, wanted: u64, since: Timestamp) -> Option<Transaction> {
        let units = NonZeroU64::new(units)?;
        self.refill = RefillState::UnderWay {
            units: units.get(),
            wanted,
            since,
        };
        Some(self.transaction(Mode::SpendOnly, units))
    }

    /// Local units and those on their way.
    fn in_hand(&self) -> u64 {
        match self.refill {
            RefillState::UnderWay { units, .. } => self.local.units + units,
            _ => self.local.units,
        }
    }

    fn pause(&self) -> Nanos {
        let by_age = self.limit.max_age().get() / PAUSES;
        Nanos::new(by_age.min(self.quota.tolerance().get() / PAUSES_TO_FILL))
    }

    /// Whether a pause lasts still. On a clock that has stepped back it does not.
    fn is_pausing(&self, until: Timestamp, now: Timestamp) -> bool {
        now < until && until.since(now) <= self.pause()
    }

    /// Whether local units are too old. On a clock that has stepped back they are.
    fn is_expired(&self, now: Timestamp) -> bool {
        self.local.units > 0 && is_past(self.local.oldest(), now, self.limit.max_age())
    }

    fn transaction(&self, mode: Mode, units: NonZeroU64) -> Transaction {
        Transaction {
            mode,
            ..Transaction::new(self.key.clone(), self.quota, units)
        }
    }
}

/// Whether a moment is longer ago than this, or as far in the future.
fn is_past(then: Timestamp, now: Timestamp, age: Nanos) -> bool {
    now.since(then) > age || then.since(now) > age
}
