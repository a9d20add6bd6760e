//! Which bucket is evicted when there is no room for another.
//!
//! It must not pay to make room: a client that rotates accounts or addresses takes little from each
//! of many buckets, so those of which the least is spent go first. What counts is the share that is
//! spent, not when the bucket is full again, lest a unit of a daily limit outrank a drained bucket
//! of a short one. Buckets that deny are evicted only for want of others, and bans only for want of
//! those. A bucket counts as one that denies once it has denied: a single request drains one of a
//! burst of 1, and is allowed.

use std::cmp::Reverse;

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Kept, Transaction};

/// How many buckets an eviction samples before it takes the cheapest of them.
pub(super) const SAMPLE: usize = 16;

/// How many it samples when all of them deny. With half of a table denying, the chance that all of
/// them deny is one in 2^512.
pub(super) const LARGEST_SAMPLE: usize = 512;

/// How much of a bucket may be spent before it denies, and whether it has.
///
/// It is nine bits: a flag, and a span with an exponent of six bits and a mantissa of two. The span
/// is rounded down, so a bucket that has denied may count as one that does until a fifth of it is
/// there again, and one as drained with a fifth left, but none that denies counts as one that does
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headroom(u16);

/// What is lost when a bucket is evicted: the one with the greatest cost goes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EvictionCost {
    class: CostClass,
    /// Of two in the same class, the one that is full the soonest is evicted first.
    full_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CostClass {
    /// In 65,536ths of what may be spent before the bucket denies.
    Spent(u32),
    /// The bucket would deny, and has not yet. The one that is full the latest is evicted first:
    /// a flood drains its buckets after those that it is to push out, and comes cheapest where they
    /// are long in filling.
    Drained(Reverse<Timestamp>),
    /// The bucket has denied, and does still.
    Denial,
    /// The bucket is kept longer than all others.
    Last,
}

impl Headroom {
    pub(super) const BITS: u64 = 0x1ff;

    const DENIES: u16 = 0x100;
    const SPAN: u16 = 0xff;

    /// No span is so great that this is not left for what goes last.
    const LAST: Self = Self(Self::DENIES | Self::SPAN);

    /// Any debt denies.
    const NONE: Self = Self(Self::DENIES);

    /// Beside a transaction that was allowed.
    pub(super) fn after_allowing(transaction: &Transaction) -> Self {
        match transaction.key.class().kept() {
            Kept::Last => Self::LAST,
            Kept::WhileOwing => Self::NONE,
            Kept::BySpending => {
                let taken = transaction
                    .quota
                    .increment(transaction.cost)
                    .unwrap_or(Nanos::ZERO);
                Self::from_span(transaction.quota.tolerance().saturating_sub(taken))
            }
        }
    }

    /// The lesser headroom, once the bucket has denied a transaction. What goes last has the same.
    pub(super) fn denying(self, transaction: &Transaction) -> Self {
        let span = (self.0 & Self::SPAN).min(Self::after_allowing(transaction).0 & Self::SPAN);
        Self(span | Self::DENIES)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the exponent is below 64 and the mantissa below 4"
    )]
    fn from_span(span: Nanos) -> Self {
        match span.get().checked_ilog2() {
            Some(exponent) if exponent >= 2 => {
                let mantissa = (span.get() >> (exponent - 2)) & 3;
                Self((exponent << 2) as u16 | mantissa as u16)
            }
            _ => Self(span.get() as u16),
        }
    }

    fn span(self) -> u64 {
        let bits = self.0 & Self::SPAN;
        match bits >> 2 {
            0 | 1 => bits.into(),
            exponent => u64::from(4 | bits & 3) << (exponent - 2),
        }
    }

    pub(super) fn bits(self) -> u64 {
        self.0.into()
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self((bits & Self::BITS) as u16)
    }

    /// The cost of evicting a bucket with this headroom that is full at `full_at`.
    pub(super) fn eviction_cost(self, full_at: Timestamp, now: Timestamp) -> EvictionCost {
        let debt = full_at.since(now).get();
        let class = match self {
            _ if debt == 0 => CostClass::Spent(0),
            Self::LAST => CostClass::Last,
            Self(bits) if debt > self.span() => {
                CostClass::drained(bits & Self::DENIES != 0, full_at)
            }
            _ => CostClass::from_spent(debt, self.span()),
        };
        EvictionCost { class, full_at }
    }
}

impl CostClass {
    fn from_spent(spent: u64, headroom: u64) -> Self {
        let share = spent.min(headroom) / (headroom >> 16).max(1);
        Self::Spent(u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// A bucket without room for what it is asked.
    fn drained(has_denied: bool, full_at: Timestamp) -> Self {
        match has_denied {
            true => Self::Denial,
            false => Self::Drained(Reverse(full_at)),
        }
    }
}

impl EvictionCost {
    /// The cost of evicting a bucket of which `spent` units are spent, and which denies what it was
    /// asked when more than `headroom` are.
    pub(super) fn from_units(
        (spent, headroom): (u32, u32),
        has_denied: bool,
        full_at: Timestamp,
        now: Timestamp,
    ) -> Self {
        let class = match full_at > now {
            true if spent > headroom => CostClass::drained(has_denied, full_at),
            true => CostClass::from_spent(u64::from(spent) << 16, u64::from(headroom) << 16),
            false => CostClass::Spent(0),
        };
        Self { class, full_at }
    }

    /// Whether it is worth looking further for another bucket.
    pub(super) fn denies(self) -> bool {
        self.class >= CostClass::Denial
    }
}

/// Samples the bucket to evict among `places`, beginning at the hand, which moves on.
/// `eviction_cost` is none for an empty place; at least one place must have a bucket.
pub(super) fn cheapest(
    hand: &mut usize,
    places: usize,
    eviction_cost: impl Fn(usize) -> Option<EvictionCost>,
) -> Option<usize> {
    let window = SAMPLE.min(places);
    let mut least: Option<(EvictionCost, usize)> = None;
    let mut looked_at = 0;
    while looked_at < places {
        let start = *hand;
        *hand = (start + window) % places;
        let at = (start..start + window).map(|at| at % places);
        let here = at.filter_map(|at| Some((eviction_cost(at)?, at)));
        least = here.chain(least).min();
        looked_at += window;
        match least {
            Some((eviction_cost, _)) if eviction_cost.denies() && looked_at < LARGEST_SAMPLE => {}
            Some(_) => break,
            None => {}
        }
    }
    least.map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use proptest::prelude::*;
    use weir_limit::Quota;

    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_000);

    fn transaction(key: &str, burst: u64, secs: u64, cost: u64) -> Transaction {
        let quota = Quota::new(burst, burst, Duration::from_secs(secs)).unwrap();
        Transaction::new(key.into(), quota, NonZeroU64::new(cost).unwrap())
    }

    fn debt(transaction: &Transaction, units: u64) -> Nanos {
        Nanos::new(units * transaction.quota.emission_interval().get())
    }

    /// The cost of a bucket from which these units are taken, and which is asked for more.
    fn eviction_cost(transaction: &Transaction, units: u64) -> EvictionCost {
        let debt = debt(transaction, units);
        let headroom = Headroom::after_allowing(transaction);
        let headroom = match transaction.decide(debt).allowed {
            true => headroom,
            false => headroom.denying(transaction),
        };
        headroom.eviction_cost(NOW + debt, NOW)
    }

    /// The cost of a bucket from which these units are taken.
    fn eviction_cost_unasked(transaction: &Transaction, units: u64) -> EvictionCost {
        Headroom::after_allowing(transaction).eviction_cost(NOW + debt(transaction, units), NOW)
    }

    #[test]
    fn a_drained_bucket_of_a_minute_outlives_a_unit_of_a_day() {
        let (minute, day) = (
            transaction("L:a", 10, 60, 1),
            transaction("D:a", 2, 86_400, 1),
        );
        assert!(eviction_cost(&minute, 10) > eviction_cost(&day, 1));
        assert!(eviction_cost(&minute, 5) < eviction_cost(&day, 1));
        assert!(eviction_cost(&minute, 5) > eviction_cost(&minute, 4));
        assert!(!eviction_cost(&day, 1).denies(), "one of two is left");
    }

    #[test]
    fn a_bucket_counts_as_drained_when_what_it_was_asked_no_longer_fits() {
        let (transaction, five) = (
            transaction("L:a", 100, 60, 1),
            transaction("L:a", 100, 60, 50),
        );
        assert!(!eviction_cost(&transaction, 60).denies());
        assert!(eviction_cost(&five, 60).denies());
        assert!(eviction_cost(&transaction, 100).denies());
    }

    #[test]
    fn what_a_single_request_drains_outlives_nothing_that_denied_or_was_drained_before_it() {
        let (ten, daily) = (
            transaction("L:a", 10, 600, 1),
            transaction("D:a", 1, 86_400, 1),
        );
        let (most, all) = (
            transaction("D:a", 3, 86_400, 2),
            transaction("D:a", 5, 86_400, 5),
        );
        for (flood, units) in [(&daily, 1), (&most, 2), (&all, 5)] {
            let flood = eviction_cost_unasked(flood, units);
            assert!(!flood.denies());
            assert!(flood < eviction_cost(&ten, 10));
            assert!(flood < eviction_cost_unasked(&ten, 10));
            assert!(flood > eviction_cost_unasked(&ten, 7), "a few are left");
        }
        let earlier =
            Headroom::after_allowing(&daily).eviction_cost(NOW + Nanos::from_secs(86_399), NOW);
        assert!(earlier > eviction_cost_unasked(&daily, 1));
    }

    #[test]
    fn a_ban_outlives_all_else_while_it_is_in_force_and_nothing_after() {
        let ban = transaction(":ban:B:a", 1000, 86_400, 1);
        let offences = transaction(":offences:B:a", 5, 86_400, 1);
        let drained = transaction("L:a", 1, 864_000, 1);
        assert!(eviction_cost(&ban, 1) > eviction_cost(&drained, 1));
        assert!(eviction_cost(&ban, 1) > eviction_cost(&offences, 5));
        assert!(eviction_cost(&offences, 1).denies());
        assert!(eviction_cost(&ban, 0) < eviction_cost(&transaction("L:a", 10, 60, 1), 1));
    }

    #[test]
    fn units_of_windows_are_compared_by_their_share_as_well() {
        let soon = NOW + Nanos::from_secs(1);
        let late = NOW + Nanos::from_secs(86_400);
        let of = |spent, headroom, full_at| {
            EvictionCost::from_units((spent, headroom), true, full_at, NOW)
        };
        let drained = |full_at| EvictionCost::from_units((1, 0), false, full_at, NOW);
        assert!(of(90, 100, soon) > of(1, 2, late));
        assert!(of(101, 100, soon).denies() && !of(100, 100, soon).denies());
        assert!(!of(101, 100, NOW).denies());
        assert!(of(u32::MAX, u32::MAX - 1, soon).denies());
        assert!(!drained(late).denies() && drained(late) < drained(soon));
        assert!(drained(late) > of(100, 100, soon) && drained(soon) < of(101, 100, soon));
    }

    proptest! {
        #[test]
        fn room_is_rounded_down_and_by_no_more_than_a_fifth(span in 0..=1_u64 << 62) {
            let rounded = Headroom::from_span(Nanos::new(span)).span();
            prop_assert!(rounded <= span && span - rounded <= span / 5);
            let headroom = Headroom(Headroom::from_span(Nanos::new(span)).0 | Headroom::DENIES);
            prop_assert_eq!(Headroom::from_bits(headroom.bits()), headroom);
            prop_assert_ne!(headroom, Headroom::LAST);
        }

        #[test]
        fn whatever_has_denied_is_known_to_deny_and_nothing_else(
            burst in 1..1000_u64, cost in 1..1000_u64, secs in 1..100_000_u64, debt in 0..1000_u64,
        ) {
            let transaction = transaction("L:a", burst, secs, cost.min(burst));
            let debt = Nanos::new(transaction.quota.tolerance().get() / 1000 * debt);
            let denies = !transaction.decide(debt).allowed;
            let eviction_cost = |headroom: Headroom| headroom.eviction_cost(NOW + debt, NOW);
            let headroom = Headroom::after_allowing(&transaction);
            prop_assert!(!eviction_cost(headroom).denies());
            prop_assert!(!denies || eviction_cost(headroom.denying(&transaction)).denies());
        }
    }
}
