//! Which bucket is forgotten when there is no room for another.
//!
//! It must not pay to make room: a client that rotates accounts or addresses takes little from each
//! of many buckets, so those of which the least is spent go first. What counts is the share that is
//! spent, not when the bucket is full again, lest a unit of a daily limit outrank a drained bucket
//! of a short one. Buckets that deny are forgotten only for want of others, and bans only for want
//! of those. A bucket counts as one that denies once it has denied: a single request drains one of
//! a burst of 1, and is allowed.

use std::cmp::Reverse;

use crate::limit::{BucketClass, Transaction};
use crate::time::{Nanos, Timestamp};

/// How many places an eviction looks at before it is content with the best of them.
pub(super) const LOOKED_AT: usize = 16;

/// How many it looks at when all of them deny. With half of a table denying, the chance that none
/// of them does not is one in 2^512.
pub(super) const LOOKED_AT_MOST: usize = 512;

/// How much of a bucket may be spent before it denies, and whether it has.
///
/// It is nine bits: a flag, and of the span an exponent of six and a mantissa of two. The span is
/// rounded down, so a bucket that has denied may count as one that does until a fifth of it is
/// there again, and one as drained with a fifth left, but none that denies counts as one that does
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room(u16);

/// How much would be lost with a bucket: the greatest is forgotten last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Loss {
    stake: Stake,
    /// Of two that are at the same stake, the one that is full the soonest is forgotten first.
    full_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stake {
    /// In 65,536ths of what may be spent before the bucket denies.
    Spent(u32),
    /// The bucket would deny, and has not yet. The one that is full the latest is forgotten first:
    /// a flood drains its buckets after those that it is to push out, and comes cheapest where they
    /// are long in filling.
    Drained(Reverse<Timestamp>),
    /// The bucket has denied, and does still.
    Denial,
    Ban,
}

impl Room {
    /// The bits that are in use.
    pub(super) const BITS: u64 = 0x1ff;

    const DENIES: u16 = 0x100;
    const SPAN: u16 = 0xff;

    /// No span is so great that this is not left for bans.
    const BAN: Self = Self(Self::DENIES | Self::SPAN);

    /// Any debt denies.
    const NONE: Self = Self(Self::DENIES);

    /// Of a bucket that such a transaction is asked of, and has been allowed.
    pub(super) fn beside(transaction: &Transaction) -> Self {
        match transaction.key.class() {
            BucketClass::Ban => Self::BAN,
            // One that is forgotten shortens the next ban.
            BucketClass::Offences => Self::NONE,
            BucketClass::Limit | BucketClass::Strikes => {
                let taken = transaction
                    .quota
                    .increment(transaction.cost)
                    .unwrap_or(Nanos::ZERO);
                Self::of(transaction.quota.tolerance().saturating_sub(taken))
            }
        }
    }

    /// The lesser room, of a bucket that denies a transaction. All of a ban's are the same.
    pub(super) fn denying(self, transaction: &Transaction) -> Self {
        let span = (self.0 & Self::SPAN).min(Self::beside(transaction).0 & Self::SPAN);
        Self(span | Self::DENIES)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the exponent is below 64 and the mantissa below 4"
    )]
    fn of(span: Nanos) -> Self {
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

    /// What would be lost with a bucket that has this room, and is full at `full_at`.
    pub(super) fn loss(self, full_at: Timestamp, now: Timestamp) -> Loss {
        let debt = full_at.since(now).get();
        let stake = match self {
            _ if debt == 0 => Stake::Spent(0),
            Self::BAN => Stake::Ban,
            Self(bits) if debt > self.span() => Stake::over(bits & Self::DENIES != 0, full_at),
            _ => Stake::of(debt, self.span()),
        };
        Loss { stake, full_at }
    }
}

impl Stake {
    fn of(spent: u64, room: u64) -> Self {
        let share = spent.min(room) / (room >> 16).max(1);
        Self::Spent(u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// Of a bucket with no room for what it is asked.
    fn over(has_denied: bool, full_at: Timestamp) -> Self {
        match has_denied {
            true => Self::Denial,
            false => Self::Drained(Reverse(full_at)),
        }
    }
}

impl Loss {
    /// What would be lost with a bucket of which `spent` units are spent, and which denies what it
    /// was asked when more than `room` are.
    pub(super) fn of_units(
        (spent, room): (u32, u32),
        has_denied: bool,
        full_at: Timestamp,
        now: Timestamp,
    ) -> Self {
        let stake = match full_at > now {
            true if spent > room => Stake::over(has_denied, full_at),
            true => Stake::of(u64::from(spent) << 16, u64::from(room) << 16),
            false => Stake::Spent(0),
        };
        Self { stake, full_at }
    }

    /// Whether it is worth looking further for another bucket.
    pub(super) fn is_a_denial(self) -> bool {
        self.stake >= Stake::Denial
    }
}

/// Looks for the bucket to be forgotten among `places`, beginning at the hand, which moves on.
/// `loss` says what would be lost at a place; nothing is at some, and one at least must have
/// something.
pub(super) fn least_loss(
    hand: &mut usize,
    places: usize,
    loss: impl Fn(usize) -> Option<Loss>,
) -> Option<usize> {
    let window = LOOKED_AT.min(places);
    let mut least: Option<(Loss, usize)> = None;
    let mut looked_at = 0;
    while looked_at < places {
        let start = *hand;
        *hand = (start + window) % places;
        let at = (start..start + window).map(|at| at % places);
        let here = at.filter_map(|at| Some((loss(at)?, at)));
        least = here.chain(least).min();
        looked_at += window;
        match least {
            Some((loss, _)) if loss.is_a_denial() && looked_at < LOOKED_AT_MOST => {}
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

    use super::*;
    use crate::limit::Quota;

    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_000);

    fn transaction(key: &str, burst: u64, secs: u64, cost: u64) -> Transaction {
        let quota = Quota::new(burst, burst, Duration::from_secs(secs)).unwrap();
        Transaction::new(key.into(), quota, NonZeroU64::new(cost).unwrap())
    }

    fn debt(transaction: &Transaction, units: u64) -> Nanos {
        Nanos::new(units * transaction.quota.emission_interval().get())
    }

    /// What is lost with a bucket from which so many units are taken, and which is asked for more.
    fn loss(transaction: &Transaction, units: u64) -> Loss {
        let debt = debt(transaction, units);
        let room = Room::beside(transaction);
        let room = match transaction.decide(debt).allowed {
            true => room,
            false => room.denying(transaction),
        };
        room.loss(NOW + debt, NOW)
    }

    /// What is lost with a bucket from which so many units are taken.
    fn loss_unasked(transaction: &Transaction, units: u64) -> Loss {
        Room::beside(transaction).loss(NOW + debt(transaction, units), NOW)
    }

    #[test]
    fn a_drained_bucket_of_a_minute_outlives_a_unit_of_a_day() {
        let (minute, day) = (
            transaction("L:a", 10, 60, 1),
            transaction("D:a", 2, 86_400, 1),
        );
        assert!(loss(&minute, 10) > loss(&day, 1));
        assert!(loss(&minute, 5) < loss(&day, 1));
        assert!(loss(&minute, 5) > loss(&minute, 4));
        assert!(!loss(&day, 1).is_a_denial(), "one of two is left");
    }

    #[test]
    fn a_bucket_counts_as_drained_when_what_it_was_asked_no_longer_fits() {
        let (transaction, five) = (
            transaction("L:a", 100, 60, 1),
            transaction("L:a", 100, 60, 50),
        );
        assert!(!loss(&transaction, 60).is_a_denial());
        assert!(loss(&five, 60).is_a_denial());
        assert!(loss(&transaction, 100).is_a_denial());
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
            let flood = loss_unasked(flood, units);
            assert!(!flood.is_a_denial());
            assert!(flood < loss(&ten, 10));
            assert!(flood < loss_unasked(&ten, 10));
            assert!(flood > loss_unasked(&ten, 7), "a few are left");
        }
        let earlier = Room::beside(&daily).loss(NOW + Nanos::from_secs(86_399), NOW);
        assert!(earlier > loss_unasked(&daily, 1));
    }

    #[test]
    fn a_ban_outlives_all_else_while_it_is_in_force_and_nothing_after() {
        let ban = transaction(":ban:B:a", 1000, 86_400, 1);
        let offences = transaction(":offences:B:a", 5, 86_400, 1);
        let drained = transaction("L:a", 1, 864_000, 1);
        assert!(loss(&ban, 1) > loss(&drained, 1));
        assert!(loss(&ban, 1) > loss(&offences, 5));
        assert!(loss(&offences, 1).is_a_denial());
        assert!(loss(&ban, 0) < loss(&transaction("L:a", 10, 60, 1), 1));
    }

    #[test]
    fn units_of_windows_are_compared_by_their_share_as_well() {
        let soon = NOW + Nanos::from_secs(1);
        let late = NOW + Nanos::from_secs(86_400);
        let of = |spent, room, full_at| Loss::of_units((spent, room), true, full_at, NOW);
        let drained = |full_at| Loss::of_units((1, 0), false, full_at, NOW);
        assert!(of(90, 100, soon) > of(1, 2, late));
        assert!(of(101, 100, soon).is_a_denial() && !of(100, 100, soon).is_a_denial());
        assert!(!of(101, 100, NOW).is_a_denial());
        assert!(of(u32::MAX, u32::MAX - 1, soon).is_a_denial());
        assert!(!drained(late).is_a_denial() && drained(late) < drained(soon));
        assert!(drained(late) > of(100, 100, soon) && drained(soon) < of(101, 100, soon));
    }

    proptest! {
        #[test]
        fn room_is_rounded_down_and_by_no_more_than_a_fifth(span in 0..=1_u64 << 62) {
            let rounded = Room::of(Nanos::new(span)).span();
            prop_assert!(rounded <= span && span - rounded <= span / 5);
            let room = Room(Room::of(Nanos::new(span)).0 | Room::DENIES);
            prop_assert_eq!(Room::from_bits(room.bits()), room);
            prop_assert_ne!(room, Room::BAN);
        }

        #[test]
        fn whatever_has_denied_is_known_to_deny_and_nothing_else(
            burst in 1..1000_u64, cost in 1..1000_u64, secs in 1..100_000_u64, debt in 0..1000_u64,
        ) {
            let transaction = transaction("L:a", burst, secs, cost.min(burst));
            let debt = Nanos::new(transaction.quota.tolerance().get() / 1000 * debt);
            let denies = !transaction.decide(debt).allowed;
            let loss = |room: Room| room.loss(NOW + debt, NOW);
            let room = Room::beside(&transaction);
            prop_assert!(!loss(room).is_a_denial());
            prop_assert!(!denies || loss(room.denying(&transaction)).is_a_denial());
        }
    }
}
