//! What a gateway holds of one hot bucket: pure arithmetic, given the time by its caller.
//!
//! At every moment, the units that are held, that are on their way here, and that are on their way
//! back are at most [`Prefetch::units`]. The bound on what passes beyond the quota rests on that
//! alone; sizes and pauses only decide how often the store is asked.

use std::num::NonZeroU64;

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{BucketKey, Decision, Mode, Prefetch, Quota, Transaction};

use crate::{DecisionSource, Outcome, StoreError};

/// A request with a greater share of the units than this asks the store itself: what is held is too
/// coarse to decide about it.
const GREATEST_COST: u64 = 8;

/// More is taken when less than this share of what was wanted last is left, so that requests
/// seldom wait.
const LOW: u64 = 4;

/// Where the store has not got twice what is wanted, half of what it has is left to others.
const LEFT_TO_OTHERS: u64 = 2;

/// In how many parts of [`Prefetch::max_age`] the store is asked again by a gateway that got less
/// than it wanted.
const PAUSES: u64 = 20;

/// A share of the time that the bucket takes to fill, which is the longest such pause.
const PAUSES_TO_FILL: u64 = 8;

/// The units that are held, oldest first.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    units: u64,
    /// How many of them were taken before `newest`.
    older: u64,
    oldest: Timestamp,
    newest: Timestamp,
}

impl Held {
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

/// Where the next units come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supply {
    /// The store may be asked.
    Ready,
    /// It is to be asked.
    Wanted,
    /// It is being asked for some of what was wanted, since then.
    UnderWay {
        units: u64,
        wanted: u64,
        since: Timestamp,
    },
    /// It had less than was wanted, and is not asked again until then.
    Short(Timestamp),
    /// It gave no answer, and is not asked again until then.
    Failed(Timestamp),
}

/// How fast units are spent.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// How many units are wanted in hand after a take.
    size: u64,
    /// Units spent since the last take.
    spent: u64,
    /// Units that requests had to wait for since.
    missed: u64,
    since: Timestamp,
}

/// What a request gets from a hot bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A decision, by what is held. A cost that it shows as taken is taken.
    Decided(Decision),
    /// The units that are on their way have to be waited for.
    Wait,
    /// The store decides.
    Ask,
}

/// What becomes of a bucket that is looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cooled {
    /// It is still hot.
    NotYet,
    /// It is not hot any more. Units that were not spent are to be given back.
    Over(Option<Transaction>),
}

/// A bucket of which units are prefetched.
#[derive(Debug)]
pub(super) struct HotBucket {
    key: BucketKey,
    quota: Quota,
    limit: Prefetch,
    held: Held,
    /// The debt that the store told last, and when; none before its first answer.
    told: Option<(Nanos, Timestamp)>,
    supply: Supply,
    pace: Pace,
    /// When the last request came.
    seen: Timestamp,
    /// Nothing is held for requests any more.
    retired: bool,
}

impl HotBucket {
    /// A bucket of which nothing is held yet, and as many units are wanted at first.
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
            held: Held::default(),
            told: None,
            supply: Supply::Ready,
            pace: Pace {
                size: size.min(limit.units()),
                spent: size,
                missed: 0,
                since: Timestamp::from_nanos(now.as_nanos().saturating_sub(lasting.get())),
            },
            seen: now,
            retired: false,
        }
    }

    /// How long units that are taken at once should last.
    pub(super) const fn lasting(limit: Prefetch) -> Nanos {
        Nanos::new(limit.max_age().get() / 2)
    }

    /// When the last request came.
    pub(super) const fn seen(&self) -> Timestamp {
        self.seen
    }

    /// Whether the store is to be asked for units.
    pub(super) fn is_wanting(&self) -> bool {
        self.supply == Supply::Wanted
    }

    /// Decides by what is held, and takes the cost from it.
    pub(super) fn decide(&mut self, transaction: &Transaction, now: Timestamp) -> Answer {
        self.seen = now;
        self.retired |= transaction.quota != self.quota;
        let cost = transaction.cost.get();
        let is_great = cost > self.limit.units() / GREATEST_COST;
        if self.retired || is_great || self.is_expired(now) {
            return Answer::Ask;
        }
        if self.held.units >= cost {
            let decision = transaction.decide(self.debt());
            if transaction.mode.spends() {
                self.spend(cost, now);
            }
            return Answer::Decided(decision);
        }
        match self.supply {
            _ if transaction.mode == Mode::Peek => match self.told {
                Some(_) => Answer::Decided(transaction.decide(self.debt())),
                None => Answer::Ask,
            },
            // A request that is denied takes nothing, but one that passes must not go uncharged
            // while the store has units.
            Supply::Short(until) if self.is_pausing(until, now) => {
                match transaction.mode.checks() {
                    true => Answer::Decided(transaction.decide(self.debt_until(
                        until,
                        transaction,
                        now,
                    ))),
                    false => Answer::Ask,
                }
            }
            Supply::Failed(until) if self.is_pausing(until, now) => Answer::Ask,
            _ => {
                self.pace.missed += cost;
                self.want(now);
                Answer::Wait
            }
        }
    }

    /// Puts back what a request does not spend after all. Without room for it, the store has to get
    /// it back.
    pub(super) fn put_back(&mut self, transaction: &Transaction) -> bool {
        let cost = transaction.cost.get();
        let room = self.limit.units().saturating_sub(self.in_hand());
        let fits = !self.retired && transaction.quota == self.quota && cost <= room;
        if fits {
            self.held.units += cost;
        }
        fits
    }

    /// Loses what is held: the bucket was reset.
    pub(super) fn forget(&mut self) {
        self.held = Held::default();
        self.retired = true;
    }

    /// Stops holding units.
    pub(super) const fn retire(&mut self) {
        self.retired = true;
    }

    /// What to ask the store for, if units are wanted; it has to be told what came of it.
    pub(super) fn begin(&mut self) -> Option<Transaction> {
        if !self.is_wanting() {
            return None;
        }
        self.supply = Supply::Ready;
        if self.retired {
            return None;
        }
        self.resize();
        let wanted = self.pace.size.saturating_sub(self.held.units);
        self.ask_for(wanted.min(self.share(self.seen)), wanted, self.seen)
    }

    /// Learns what came of a take. What is returned is to be asked for in its place.
    pub(super) fn taken(&mut self, answer: &Result<Outcome, StoreError>) -> Option<Transaction> {
        let Supply::UnderWay {
            units,
            wanted,
            since,
        } = self.supply
        else {
            return None;
        };
        let pause = self.seen + self.pause();
        let outcome = answer.as_ref().ok();
        let outcome = outcome.filter(|outcome| outcome.source == DecisionSource::Store);
        let decision = outcome.and_then(|outcome| outcome.decisions.first().copied().flatten());
        let Some(decision) = decision else {
            self.supply = Supply::Failed(pause);
            return None;
        };
        self.told = Some((decision.reset_in, since));
        if decision.fits() {
            self.supply = match units < wanted {
                true => Supply::Short(pause),
                false => Supply::Ready,
            };
            self.held.add(units, since);
            return None;
        }
        self.supply = Supply::Short(pause);
        let share = self.share(since).min(decision.remaining);
        // Of what the store has it was asked for too much; each further question is for less.
        self.ask_for(share.min(units - 1), wanted, since)
    }

    /// Whether it is over with the bucket, which is asked now and then and when a take has ended.
    pub(super) fn cool(&mut self, now: Timestamp) -> Cooled {
        if matches!(self.supply, Supply::UnderWay { .. }) {
            return Cooled::NotYet;
        }
        let idle = self.held.units == 0 && is_past(self.pace.since, now, self.limit.max_age());
        if !(self.retired || idle || self.is_expired(now)) {
            return Cooled::NotYet;
        }
        self.retired = true;
        let unspent = NonZeroU64::new(self.held.units).filter(|_| self.is_owed(now));
        self.held = Held::default();
        Cooled::Over(unspent.map(|units| self.transaction(Mode::CheckAndSpend, units)))
    }

    /// What the bucket owes, by what the store said last, less what is held of it.
    fn debt(&self) -> Nanos {
        let told = self.told.map_or(Nanos::ZERO, |(debt, _)| debt);
        let interval = self.quota.emission_interval().get();
        told.saturating_sub(Nanos::new(self.held.units.saturating_mul(interval)))
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

    /// Whether what the store was asked for is still owed. What has come back by itself is not.
    fn is_owed(&self, now: Timestamp) -> bool {
        self.told.is_some_and(|(debt, then)| then + debt > now)
    }

    fn spend(&mut self, units: u64, now: Timestamp) {
        self.held.spend(units);
        self.pace.spent += units;
        if self.held.units * LOW <= self.pace.size {
            self.want(now);
        }
    }

    fn want(&mut self, now: Timestamp) {
        match self.supply {
            Supply::Short(until) | Supply::Failed(until) if self.is_pausing(until, now) => {}
            Supply::Wanted | Supply::UnderWay { .. } => {}
            Supply::Ready | Supply::Short(_) | Supply::Failed(_) => self.supply = Supply::Wanted,
        }
    }

    /// As many as are spent in the time that a take should last, at most twice as many as before.
    fn resize(&mut self) {
        let Pace {
            size,
            spent,
            missed,
            since,
        } = self.pace;
        let took = u128::from(self.seen.since(since).get());
        let spent = u128::from(spent) * u128::from(Self::lasting(self.limit).get());
        let by_rate = spent.checked_div(took).unwrap_or(u128::MAX);
        let by_rate = u64::try_from(by_rate).unwrap_or(u64::MAX);
        let size = by_rate.clamp(size / 2, size * 2).max(2 * missed);
        self.pace = Pace {
            size: size.clamp(Prefetch::MIN_UNITS.into(), self.limit.units()),
            spent: 0,
            missed: 0,
            since: self.seen,
        };
    }

    /// The gateway's share of what the store has, by what it said last.
    fn share(&self, now: Timestamp) -> u64 {
        self.told.map_or(u64::MAX, |(debt, then)| {
            let debt = debt.saturating_sub(now.since(then));
            (self.quota.remaining(debt) / LEFT_TO_OTHERS).max(1)
        })
    }

    fn ask_for(&mut self, units: u64, wanted: u64, since: Timestamp) -> Option<Transaction> {
        let units = NonZeroU64::new(units)?;
        self.supply = Supply::UnderWay {
            units: units.get(),
            wanted,
            since,
        };
        Some(self.transaction(Mode::SpendOnly, units))
    }

    /// The units that are held or on their way.
    fn in_hand(&self) -> u64 {
        match self.supply {
            Supply::UnderWay { units, .. } => self.held.units + units,
            _ => self.held.units,
        }
    }

    fn pause(&self) -> Nanos {
        let by_age = self.limit.max_age().get() / PAUSES;
        Nanos::new(by_age.min(self.quota.tolerance().get() / PAUSES_TO_FILL))
    }

    /// Whether a pause is not over. On a clock that has stepped back, it is.
    fn is_pausing(&self, until: Timestamp, now: Timestamp) -> bool {
        now < until && until.since(now) <= self.pause()
    }

    /// Whether what is held is too old. On a clock that has stepped back, it is.
    fn is_expired(&self, now: Timestamp) -> bool {
        self.held.units > 0 && is_past(self.held.oldest(), now, self.limit.max_age())
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
