//! What every store must do. Each test of [`store_contract`] runs on every store.

use std::num::NonZeroU64;
use std::time::Duration;

use futures_util::future::join_all;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, BucketKeys, Decision, Mode, Quota, Transaction};

use crate::{DecisionSource, Outcome, Owed, OwedBatch, Store, StoreFuture};

/// A store under test.
pub trait Subject {
    fn store(&self) -> &dyn Store;

    /// Waits until nothing that a call left behind is under way.
    fn settled(&self) -> StoreFuture<()> {
        StoreFuture::ready(())
    }
}

/// Runs the contract on the subjects that `$new` makes.
#[macro_export]
macro_rules! store_contract {
    ($new:expr) => {
        $crate::store_contract!(contract: $new;
            a_full_bucket_gives_its_burst_and_then_denies,
            units_come_back_one_each_emission_interval,
            what_is_denied_by_one_limit_takes_from_none,
            check_only_and_spend_only_keep_to_their_kinds,
            modes_that_never_deny_tell_whether_the_cost_fits,
            allow_only_neither_reads_nor_takes,
            a_cost_above_the_burst_is_never_allowed_and_takes_nothing,
            a_refund_gives_back_what_was_taken_and_never_more,
            the_last_that_was_lent_is_given_back_and_nothing_that_others_are_behind,
            a_refund_of_several_buckets_gives_each_its_own_part,
            what_has_come_back_by_itself_is_not_given_back_again,
            a_reset_makes_each_of_its_buckets_full_and_no_other,
            a_lowered_limit_takes_effect_at_once_and_stays_in_effect,
            the_check_of_a_ban_that_was_shortened_cuts_it_and_a_look_does_not,
            another_gateways_clock_may_be_ahead_within_the_tolerance,
            one_bucket_twice_in_a_batch_pays_twice,
            the_greatest_quota_counts,
            an_empty_batch_is_allowed,
            concurrent_requests_share_the_burst_exactly,
        );
        $crate::store_contract!(window_contract: $new;
            a_window_gives_its_count_and_then_denies_until_it_has_passed,
            old_units_of_sliding_windows_make_room_for_new_ones,
            a_batch_of_all_algorithms_takes_from_all_or_from_none,
            windows_know_all_kinds_of_transactions,
            windows_are_refunded_at_most_what_was_taken_and_reset,
            a_windows_changed_count_holds_at_once_and_what_is_used_stays_used,
            a_windows_changed_period_holds_at_once_and_what_is_used_stays_used,
            a_changed_algorithm_begins_anew,
            a_gateway_that_is_ahead_in_the_next_window_is_given_no_window_twice,
            one_window_twice_in_a_batch_pays_twice,
            denials_that_are_counted_put_off_the_next_unit,
            a_counted_denial_by_a_smaller_count_hands_out_nothing_to_a_greater_one,
            a_denied_cost_beyond_measure_counts_as_a_full_bucket,
            a_window_from_a_first_request_on_begins_with_an_allowed_one,
            a_large_cost_is_taken_from_a_log_whole_or_not_at_all,
            the_greatest_window_counts,
            concurrent_requests_share_a_window_exactly,
        );
        $crate::store_contract!(definitions: $new;
            two_definitions_in_turn_admit_the_laxer_one_and_a_burst_of_the_stricter,
            a_limit_that_is_lowered_and_raised_again_hands_out_nothing,
            a_lowered_limit_admits_by_its_own_rate_before_the_old_period_is_over,
            a_lowered_limit_that_is_only_checked_admits_by_its_own_rate_as_well,
            what_a_stricter_definition_did_not_spend_it_gives_back_to_the_laxer_one,
            random_definitions_in_random_turns_keep_to_the_bound,
        );
        $crate::store_contract!(laws: $new;
            each_mode_denies_and_takes_as_it_says,
            no_more_passes_than_the_algorithm_promises,
            who_is_denied_is_let_in_at_his_retry_and_not_before,
            a_refund_undoes_what_was_taken_and_nothing_else,
        );
    };
    ($contract:ident: $new:expr; $($name:ident,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let subject = $new;
                $crate::tests::$contract::$name(&subject).await;
            }
        )*
    };
}
pub use crate::store_contract;

/// A moment of the year 2025.
pub const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_000);

/// Ten units at once, one more each minute: long enough for no test to be slow.
pub fn quota() -> Quota {
    Quota::new(10, 1, Duration::from_secs(60)).unwrap()
}

pub fn spend(key: &str, cost: u64) -> Transaction {
    Transaction::new(key.into(), quota(), NonZeroU64::new(cost).unwrap())
}

pub fn of_mode(mode: Mode, key: &str, cost: u64) -> Transaction {
    Transaction {
        mode,
        ..spend(key, cost)
    }
}

pub fn batch(transactions: impl IntoIterator<Item = Transaction>) -> Batch {
    transactions.into_iter().collect()
}

/// All that these took, whenever that was.
pub fn owed(taken: impl IntoIterator<Item = Transaction>) -> OwedBatch {
    taken.into_iter().map(Owed::whole).collect()
}

pub fn minutes(count: u64) -> Nanos {
    Nanos::from_secs(60 * count)
}

pub async fn decide(subject: &impl Subject, batch: Batch, now: Timestamp) -> Outcome {
    subject.store().decide(&batch, now).await.unwrap()
}

pub async fn decide_one(subject: &impl Subject, transaction: Transaction) -> Decision {
    let outcome = decide(subject, batch([transaction]), NOW).await;
    outcome.decisions[0].unwrap()
}

/// The units that a bucket has left, once all is settled.
pub async fn remaining(subject: &impl Subject, key: &str, now: Timestamp) -> u64 {
    subject.settled().await.unwrap();
    let look = batch([of_mode(Mode::CheckOnly, key, 1)]);
    decide(subject, look, now).await.decisions[0]
        .unwrap()
        .remaining
}

async fn refund(subject: &impl Subject, transaction: Transaction, now: Timestamp) {
    subject
        .store()
        .refund(owed([transaction]), now)
        .await
        .unwrap();
}

pub async fn a_full_bucket_gives_its_burst_and_then_denies(subject: &impl Subject) {
    for left in (0..10).rev() {
        let decision = decide_one(subject, spend("L:a", 1)).await;
        assert!(decision.allowed);
        assert_eq!(decision.remaining, left);
        assert_eq!(decision.reset_in, minutes(10 - left));
    }
    let denied = decide_one(subject, spend("L:a", 1)).await;
    assert!(!denied.allowed);
    assert_eq!((denied.remaining, denied.retry_in), (0, minutes(1)));
    assert!(decide_one(subject, spend("L:b", 1)).await.allowed);
}

pub async fn units_come_back_one_each_emission_interval(subject: &impl Subject) {
    assert!(decide_one(subject, spend("L:a", 10)).await.allowed);
    let early = Timestamp::from_nanos((NOW + minutes(1)).as_nanos() - 1);
    let denied = decide(subject, batch([spend("L:a", 1)]), early).await;
    assert_eq!(denied.decisions[0].unwrap().retry_in, Nanos::new(1));
    let allowed = decide(subject, batch([spend("L:a", 1)]), NOW + minutes(1)).await;
    assert!(allowed.is_allowed());
    assert_eq!(remaining(subject, "L:a", NOW + minutes(1000)).await, 10);
}

pub async fn what_is_denied_by_one_limit_takes_from_none(subject: &impl Subject) {
    decide_one(subject, spend("L:empty", 10)).await;
    decide_one(subject, spend("L:some", 4)).await;
    let all = [
        spend("L:full", 1),
        spend("L:empty", 1),
        of_mode(Mode::SpendOnly, "L:some", 2),
    ];
    let outcome = decide(subject, batch(all), NOW).await;
    assert!(!outcome.is_allowed());
    let shown: Vec<_> = outcome
        .decisions
        .iter()
        .map(|decision| decision.unwrap())
        .map(|decision| (decision.allowed, decision.remaining))
        .collect();
    assert_eq!(shown, [(true, 10), (false, 0), (true, 6)]);
    assert_eq!(remaining(subject, "L:full", NOW).await, 10);
    assert_eq!(remaining(subject, "L:some", NOW).await, 6);
}

pub async fn check_only_and_spend_only_keep_to_their_kinds(subject: &impl Subject) {
    let check = |cost| of_mode(Mode::CheckOnly, "L:a", cost);
    let take = |cost| of_mode(Mode::SpendOnly, "L:a", cost);
    assert!(decide_one(subject, check(10)).await.allowed);
    assert_eq!(decide_one(subject, take(7)).await.remaining, 3);
    assert!(!decide_one(subject, check(4)).await.allowed);
    let too_much = decide_one(subject, take(4)).await;
    assert_eq!((too_much.allowed, too_much.remaining), (true, 3));
    assert_eq!(remaining(subject, "L:a", NOW).await, 3);
}

pub async fn modes_that_never_deny_tell_whether_the_cost_fits(subject: &impl Subject) {
    decide_one(subject, spend("L:a", 7)).await;
    for mode in [Mode::Peek, Mode::SpendOnly] {
        let crowded = decide_one(subject, of_mode(mode, "L:a", 4)).await;
        assert_eq!((crowded.allowed, crowded.remaining), (true, 3), "{mode:?}");
        assert_eq!(crowded.retry_in, minutes(1), "{mode:?}");
        let never = decide_one(subject, of_mode(mode, "L:a", 11)).await;
        assert_eq!((never.allowed, never.retry_in), (true, Nanos::NEVER));
    }
    let look = decide_one(subject, of_mode(Mode::Peek, "L:a", 3)).await;
    assert_eq!((look.fits(), look.remaining), (true, 3));
    let last = decide_one(subject, of_mode(Mode::SpendOnly, "L:a", 3)).await;
    assert_eq!((last.fits(), last.remaining), (true, 0));
}

pub async fn allow_only_neither_reads_nor_takes(subject: &impl Subject) {
    decide_one(subject, spend("L:a", 10)).await;
    let look = decide_one(subject, of_mode(Mode::AllowOnly, "L:a", 5)).await;
    assert_eq!((look.allowed, look.remaining), (true, 10));
    assert_eq!(remaining(subject, "L:a", NOW).await, 0);
}

pub async fn a_cost_above_the_burst_is_never_allowed_and_takes_nothing(subject: &impl Subject) {
    decide_one(subject, spend("L:a", 4)).await;
    let denied = decide_one(subject, spend("L:a", 11)).await;
    assert!(!denied.allowed);
    assert_eq!((denied.remaining, denied.retry_in), (6, Nanos::NEVER));
    let passed = decide_one(subject, of_mode(Mode::SpendOnly, "L:a", 11)).await;
    assert_eq!((passed.allowed, passed.remaining), (true, 6));
}

pub async fn a_refund_gives_back_what_was_taken_and_never_more(subject: &impl Subject) {
    decide_one(subject, spend("L:a", 4)).await;
    refund(subject, spend("L:a", 3), NOW).await;
    assert_eq!(remaining(subject, "L:a", NOW).await, 9);
    refund(subject, spend("L:a", 10), NOW).await;
    refund(subject, spend("L:never-seen", 1), NOW).await;
    refund(subject, spend("L:a", 11), NOW).await;
    assert_eq!(decide_one(subject, spend("L:a", 1)).await.remaining, 9);
    refund(subject, of_mode(Mode::CheckOnly, "L:a", 1), NOW).await;
    assert_eq!(remaining(subject, "L:a", NOW).await, 9);
}

pub async fn the_last_that_was_lent_is_given_back_and_nothing_that_others_are_behind(
    subject: &impl Subject,
) {
    let give_back = async |cost, latest| {
        let by = DecisionSource::Store;
        let store = subject.store();
        let given = store.refund_last(spend("L:a", cost), by, latest, NOW);
        given.await.unwrap();
        remaining(subject, "L:a", NOW).await
    };
    // What was never taken cannot be given back.
    assert_eq!(give_back(2, NOW + minutes(4)).await, 10);
    decide_one(subject, spend("L:a", 2)).await;
    decide_one(subject, spend("L:a", 2)).await;
    assert_eq!(give_back(2, NOW + minutes(2)).await, 6, "others are behind");
    assert_eq!(give_back(2, NOW + minutes(4)).await, 8);
    assert_eq!(give_back(2, NOW + minutes(2)).await, 10);
    assert_eq!(give_back(2, NOW + minutes(2)).await, 10);
}

pub async fn what_has_come_back_by_itself_is_not_given_back_again(subject: &impl Subject) {
    decide_one(subject, spend("L:a", 6)).await;
    for (minutes_left, left) in [(0, 4), (2, 6), (9, 9)] {
        let taken = Owed {
            transaction: spend("L:a", 3),
            until: NOW + minutes(minutes_left),
        };
        let refund = subject.store().refund([taken].into_iter().collect(), NOW);
        refund.await.unwrap();
        assert_eq!(remaining(subject, "L:a", NOW).await, left);
    }
}

pub async fn a_refund_of_several_buckets_gives_each_its_own_part(subject: &impl Subject) {
    for key in ["L:a", "L:b", "L:c"] {
        decide_one(subject, spend(key, 6)).await;
    }
    let parts = owed([spend("L:a", 2), spend("L:b", 5), spend("L:a", 1)]);
    subject.store().refund(parts, NOW).await.unwrap();
    for (key, left) in [("L:a", 7), ("L:b", 9), ("L:c", 4)] {
        assert_eq!(remaining(subject, key, NOW).await, left, "{key}");
    }
}

pub async fn a_reset_makes_each_of_its_buckets_full_and_no_other(subject: &impl Subject) {
    for key in ["L:a", "L:b", "L:c"] {
        decide_one(subject, spend(key, 10)).await;
    }
    let keys = ["L:a", "L:never-seen", "L:b"].map(Into::into);
    let store = subject.store();
    store.reset(keys.into_iter().collect()).await.unwrap();
    store.reset(BucketKeys::new()).await.unwrap();
    assert_eq!(remaining(subject, "L:a", NOW).await, 10);
    assert_eq!(remaining(subject, "L:b", NOW).await, 10);
    assert_eq!(remaining(subject, "L:c", NOW).await, 0);
}

pub async fn a_lowered_limit_takes_effect_at_once_and_stays_in_effect(subject: &impl Subject) {
    decide_one(subject, spend("L:a", 10)).await;
    let lowered = Transaction {
        quota: Quota::new(2, 1, Duration::from_secs(60)).unwrap(),
        ..spend("L:a", 1)
    };
    let denied = decide_one(subject, lowered).await;
    assert_eq!((denied.allowed, denied.retry_in), (false, minutes(1)));
    // What is spent stays spent, also for a limit that is raised again.
    assert_eq!(remaining(subject, "L:a", NOW).await, 0);
}

/// Nothing else asks for the bucket of a ban that holds, so it stayed as long as it was, and each
/// check put its end off.
pub async fn the_check_of_a_ban_that_was_shortened_cuts_it_and_a_look_does_not(
    subject: &impl Subject,
) {
    let of_mode = |mode| {
        let quota = Quota::new(2, 1, Duration::from_secs(60)).unwrap();
        let cost = quota.burst();
        let key = ":ban:B:a";
        let shorter = Transaction::new(key.into(), quota, cost);
        batch([Transaction { mode, ..shorter }])
    };
    decide_one(subject, spend(":ban:B:a", 10)).await;
    decide(subject, of_mode(Mode::Peek), NOW).await;
    assert_eq!(remaining(subject, ":ban:B:a", NOW).await, 0);
    for minute in 0..2 {
        let denied = decide(subject, of_mode(Mode::CheckOnly), NOW + minutes(minute)).await;
        assert_eq!(denied.decisions[0].unwrap().retry_in, minutes(2 - minute));
        subject.settled().await.unwrap();
    }
    let after = decide(subject, of_mode(Mode::CheckOnly), NOW + minutes(2)).await;
    assert!(after.is_allowed());
}

pub async fn another_gateways_clock_may_be_ahead_within_the_tolerance(subject: &impl Subject) {
    let ahead = NOW + Nanos::new(900_000_000);
    decide(subject, batch([spend("L:a", 10)]), ahead).await;
    let denied = decide_one(subject, spend("L:a", 1)).await;
    assert_eq!(denied.reset_in, minutes(10) + Nanos::new(900_000_000));
    // Nothing was handed back: the other gateway still finds the bucket empty.
    subject.settled().await.unwrap();
    let there = decide(subject, batch([spend("L:a", 1)]), ahead).await;
    assert_eq!(there.decisions[0].unwrap().reset_in, minutes(10));
}

pub async fn one_bucket_twice_in_a_batch_pays_twice(subject: &impl Subject) {
    let twice = |cost| batch([spend("L:a", cost), spend("L:a", cost)]);
    assert!(decide(subject, twice(4), NOW).await.is_allowed());
    assert_eq!(remaining(subject, "L:a", NOW).await, 2);
    assert!(!decide(subject, twice(2), NOW).await.is_allowed());
    assert_eq!(remaining(subject, "L:a", NOW).await, 2);
}

/// A tolerance of 2^62 ns, in one unit and in 2^62.
pub async fn the_greatest_quota_counts(subject: &impl Subject) {
    let period = Duration::from_nanos(1 << 62);
    for (key, burst) in [("L:one", 1), ("L:many", 1 << 62)] {
        let all = Transaction {
            quota: Quota::new(burst, burst, period).unwrap(),
            ..spend(key, burst)
        };
        assert!(decide_one(subject, all.clone()).await.allowed, "{key}");
        for _ in 0..3 {
            subject.settled().await.unwrap();
            let denied = decide_one(subject, all.clone()).await;
            assert!(!denied.allowed, "{key}");
        }
    }
}

pub async fn an_empty_batch_is_allowed(subject: &impl Subject) {
    assert!(decide(subject, Batch::new(), NOW).await.is_allowed());
}

pub async fn concurrent_requests_share_the_burst_exactly(subject: &impl Subject) {
    let requests = (0..40).map(|_| decide(subject, batch([spend("L:a", 1)]), NOW));
    let outcomes = join_all(requests).await;
    let allowed = outcomes.iter().filter(|outcome| outcome.is_allowed());
    assert_eq!(allowed.count(), 10);
}
