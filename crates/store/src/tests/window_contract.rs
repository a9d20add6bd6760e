//! What every store must do with limits that are counted in windows. Each test runs on every store,
//! by [`super::contract::store_contract`].

use std::num::NonZeroU64;
use std::time::Duration;

use futures_util::future::join_all;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{
    Algorithm, Alignment, Calendar, CalendarUnit, Decision, Mode, Quota, Transaction,
};

use crate::tests::contract::{Subject, batch, decide, minutes, owed, spend};

/// The start of an hour of the year 2025, so that windows and sub-windows begin with it.
pub const HOUR: Timestamp = Timestamp::from_nanos(1_749_999_600_000_000_000);

const COUNT_DENIED: [Algorithm; 2] = [
    Algorithm::SlidingWindow { count_denied: true },
    Algorithm::SlidingLog { count_denied: true },
];

/// All algorithms but GCRA, which count no denials.
fn algorithms() -> [Algorithm; 5] {
    let day = Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap();
    [
        Algorithm::FixedWindow(Alignment::Period),
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::FixedWindow(Alignment::Calendar(day)),
        Algorithm::SlidingWindow {
            count_denied: false,
        },
        Algorithm::SlidingLog {
            count_denied: false,
        },
    ]
}

/// Ten units an hour.
fn quota(algorithm: Algorithm) -> Quota {
    Quota::windowed(algorithm, 10, Duration::from_secs(3600)).unwrap()
}

/// A bucket of its own for each algorithm.
fn take(algorithm: Algorithm, cost: u64) -> Transaction {
    Transaction {
        quota: quota(algorithm),
        cost: NonZeroU64::new(cost).unwrap(),
        ..spend(&format!("L:{algorithm:?}"), 1)
    }
}

fn of_mode(mode: Mode, algorithm: Algorithm, cost: u64) -> Transaction {
    Transaction {
        mode,
        ..take(algorithm, cost)
    }
}

async fn ask(subject: &impl Subject, transaction: Transaction, now: Timestamp) -> Decision {
    let decision = decide(subject, batch([transaction]), now).await.decisions[0].unwrap();
    subject.settled().await.unwrap();
    decision
}

async fn left(subject: &impl Subject, algorithm: Algorithm, now: Timestamp) -> u64 {
    let look = of_mode(Mode::CheckOnly, algorithm, 1);
    ask(subject, look, now).await.remaining
}

/// When a bucket of which units were taken at [`HOUR`] is full again.
fn full_in(algorithm: Algorithm) -> Nanos {
    match algorithm {
        // The hour is 15:00 UTC, and Berlin's day ends at 22:00 UTC in summer.
        Algorithm::FixedWindow(Alignment::Calendar(_)) => minutes(7 * 60),
        Algorithm::SlidingWindow { .. } => minutes(61),
        _ => minutes(60),
    }
}

pub async fn a_window_gives_its_count_and_then_denies_until_it_has_passed(subject: &impl Subject) {
    for algorithm in algorithms() {
        let full_in = full_in(algorithm);
        for units in (0..10).rev() {
            let decision = ask(subject, take(algorithm, 1), HOUR).await;
            assert!(decision.allowed, "{algorithm:?}");
            assert_eq!(
                (decision.remaining, decision.reset_in),
                (units, full_in),
                "{algorithm:?}"
            );
        }
        let denied = ask(subject, take(algorithm, 1), HOUR).await;
        assert!(!denied.allowed, "{algorithm:?}");
        assert_eq!(
            (denied.remaining, denied.retry_in, denied.reset_in),
            (0, full_in, full_in),
            "{algorithm:?}"
        );
        let just_before = Timestamp::from_nanos((HOUR + full_in).as_nanos() - 1);
        let early = ask(subject, take(algorithm, 1), just_before).await;
        assert_eq!((early.allowed, early.retry_in), (false, Nanos::new(1)));
        assert_eq!(left(subject, algorithm, HOUR + full_in).await, 10);
        let later = ask(subject, take(algorithm, 10), HOUR + full_in).await;
        assert!(later.allowed, "{algorithm:?}");
    }
}

pub async fn old_units_of_sliding_windows_make_room_for_new_ones(subject: &impl Subject) {
    for algorithm in algorithms().into_iter().skip(3) {
        let full_in = full_in(algorithm);
        ask(subject, take(algorithm, 4), HOUR).await;
        ask(subject, take(algorithm, 6), HOUR + minutes(30)).await;
        let now = HOUR + minutes(40);
        let retry = |after| (HOUR + minutes(after) + full_in).since(now);
        let small = ask(subject, take(algorithm, 4), now).await;
        assert_eq!((small.allowed, small.retry_in), (false, retry(0)));
        let large = ask(subject, take(algorithm, 5), now).await;
        assert_eq!((large.allowed, large.retry_in), (false, retry(30)));
        assert_eq!(large.reset_in, retry(30));
        assert_eq!(left(subject, algorithm, HOUR + full_in).await, 4);
        let fits = ask(subject, take(algorithm, 4), HOUR + full_in).await;
        assert_eq!((fits.allowed, fits.remaining), (true, 0), "{algorithm:?}");
    }
}

pub async fn a_batch_of_all_algorithms_takes_from_all_or_from_none(subject: &impl Subject) {
    let all = |cost| {
        let windows = algorithms().map(|algorithm| take(algorithm, cost));
        batch(windows.into_iter().chain([spend("L:gcra", cost)]))
    };
    let outcome = decide(subject, all(4), HOUR).await;
    assert!(outcome.is_allowed());
    assert!(
        outcome
            .decisions
            .iter()
            .all(|decision| decision.unwrap().remaining == 6)
    );
    for algorithm in algorithms() {
        let mut denied = all(4);
        denied.push(take(algorithm, 3));
        assert!(!decide(subject, denied, HOUR).await.is_allowed());
        subject.settled().await.unwrap();
        assert_eq!(left(subject, algorithm, HOUR).await, 6);
    }
    assert!(!decide(subject, all(7), HOUR).await.is_allowed());
    subject.settled().await.unwrap();
    let outcome = decide(subject, all(6), HOUR).await;
    assert!(outcome.is_allowed());
    assert!(
        outcome
            .decisions
            .iter()
            .all(|decision| decision.unwrap().remaining == 0)
    );
}

pub async fn windows_know_all_kinds_of_transactions(subject: &impl Subject) {
    for algorithm in algorithms() {
        let check = |cost| of_mode(Mode::CheckOnly, algorithm, cost);
        let best_effort = |cost| of_mode(Mode::SpendOnly, algorithm, cost);
        let off = |cost| of_mode(Mode::AllowOnly, algorithm, cost);
        assert!(ask(subject, check(10), HOUR).await.allowed);
        assert_eq!(ask(subject, best_effort(7), HOUR).await.remaining, 3);
        assert!(!ask(subject, check(4), HOUR).await.allowed);
        let too_much = ask(subject, best_effort(4), HOUR).await;
        assert_eq!((too_much.allowed, too_much.remaining), (true, 3));
        assert!(!too_much.fits(), "{algorithm:?}");
        let look = |cost| of_mode(Mode::Peek, algorithm, cost);
        let crowded = ask(subject, look(4), HOUR).await;
        assert_eq!((crowded.allowed, crowded.remaining), (true, 3));
        assert!(!crowded.fits(), "{algorithm:?}");
        assert!(ask(subject, look(3), HOUR).await.fits(), "{algorithm:?}");
        let untouched = ask(subject, off(4), HOUR).await;
        assert_eq!((untouched.allowed, untouched.remaining), (true, 10));
        assert_eq!(left(subject, algorithm, HOUR).await, 3, "{algorithm:?}");
        let never = ask(subject, take(algorithm, 11), HOUR).await;
        assert_eq!((never.allowed, never.retry_in), (false, Nanos::NEVER));
        assert_eq!(left(subject, algorithm, HOUR).await, 3, "{algorithm:?}");
    }
}

pub async fn windows_are_refunded_at_most_what_was_taken_and_reset(subject: &impl Subject) {
    for algorithm in algorithms() {
        let refund = async |transaction| {
            let answer = subject.store().refund(owed([transaction]), HOUR).await;
            answer.unwrap();
            subject.settled().await.unwrap();
            left(subject, algorithm, HOUR).await
        };
        ask(subject, take(algorithm, 4), HOUR).await;
        assert_eq!(refund(take(algorithm, 3)).await, 9, "{algorithm:?}");
        assert_eq!(refund(take(algorithm, 11)).await, 9, "{algorithm:?}");
        let check = of_mode(Mode::CheckOnly, algorithm, 1);
        assert_eq!(refund(check).await, 9, "{algorithm:?}");
        assert_eq!(refund(take(algorithm, 10)).await, 10, "{algorithm:?}");
        assert!(ask(subject, take(algorithm, 10), HOUR).await.allowed);
        assert_eq!(left(subject, algorithm, HOUR).await, 0, "{algorithm:?}");
        let key = take(algorithm, 1).key;
        subject.store().reset([key].into()).await.unwrap();
        assert_eq!(left(subject, algorithm, HOUR).await, 10, "{algorithm:?}");
    }
}

pub async fn a_windows_changed_count_holds_at_once_and_what_is_used_stays_used(
    subject: &impl Subject,
) {
    for algorithm in algorithms() {
        let of = |count| Transaction {
            quota: Quota::windowed(algorithm, count, Duration::from_secs(3600)).unwrap(),
            ..take(algorithm, 1)
        };
        ask(subject, take(algorithm, 6), HOUR).await;
        let lowered = ask(subject, of(5), HOUR).await;
        assert_eq!((lowered.allowed, lowered.remaining), (false, 0));
        let raised = ask(subject, of(100), HOUR).await;
        assert_eq!(
            (raised.allowed, raised.remaining),
            (true, 93),
            "{algorithm:?}"
        );
    }
}

/// A day's units count in the hour that follows the change, and no longer.
pub async fn a_windows_changed_period_holds_at_once_and_what_is_used_stays_used(
    subject: &impl Subject,
) {
    for algorithm in algorithms() {
        if algorithm == algorithms()[2] {
            continue;
        }
        let of = |hours: u64| Transaction {
            quota: Quota::windowed(algorithm, 10, Duration::from_secs(3600 * hours)).unwrap(),
            ..take(algorithm, 1)
        };
        for _ in 0..10 {
            assert!(ask(subject, of(24), HOUR).await.allowed);
        }
        let now = HOUR + minutes(5);
        let denied = ask(subject, of(1), now).await;
        assert!(!denied.allowed, "{algorithm:?}");
        assert!(denied.retry_in <= minutes(61), "{algorithm:?} {denied:?}");
        assert!(ask(subject, of(1), now + denied.retry_in).await.allowed);
        let longer = ask(subject, of(24), now + denied.retry_in).await;
        assert!(longer.retry_in <= minutes(24 * 61), "{algorithm:?}");
    }
}

pub async fn a_changed_algorithm_begins_anew(subject: &impl Subject) {
    for algorithm in algorithms().into_iter().chain(COUNT_DENIED) {
        let transaction = Transaction {
            key: "L:a".into(),
            ..take(algorithm, 10)
        };
        subject.store().reset(["L:a".into()].into()).await.unwrap();
        assert!(ask(subject, transaction.clone(), HOUR).await.allowed);
        assert!(!ask(subject, transaction, HOUR).await.allowed);
    }
    assert!(ask(subject, spend("L:a", 10), HOUR).await.allowed);
}

pub async fn a_gateway_that_is_ahead_in_the_next_window_is_given_no_window_twice(
    subject: &impl Subject,
) {
    for algorithm in algorithms() {
        let end = HOUR + full_in(algorithm);
        let [behind, ahead] = [500_000_000, 0]
            .map(|before| Timestamp::from_nanos(end.as_nanos() - before) + Nanos::new(1));
        assert!(ask(subject, take(algorithm, 10), ahead).await.allowed);
        for now in [behind, ahead, behind, ahead] {
            assert!(
                !ask(subject, take(algorithm, 1), now).await.allowed,
                "{algorithm:?}"
            );
        }
    }
}

pub async fn one_window_twice_in_a_batch_pays_twice(subject: &impl Subject) {
    for algorithm in algorithms() {
        let twice = |cost| batch([take(algorithm, cost), take(algorithm, cost)]);
        assert!(decide(subject, twice(4), HOUR).await.is_allowed());
        assert_eq!(left(subject, algorithm, HOUR).await, 2);
        assert!(!decide(subject, twice(2), HOUR).await.is_allowed());
        subject.settled().await.unwrap();
        assert_eq!(left(subject, algorithm, HOUR).await, 2);
    }
}

pub async fn denials_that_are_counted_put_off_the_next_unit(subject: &impl Subject) {
    for algorithm in COUNT_DENIED {
        assert!(ask(subject, take(algorithm, 10), HOUR).await.allowed);
        for minute in [20, 40] {
            let now = HOUR + minutes(minute);
            let denied = ask(subject, take(algorithm, 5), now).await;
            assert!(!denied.allowed);
            // The five units of 20 minutes ago still leave room for as many.
            let expected = if minute == 20 {
                HOUR
            } else {
                HOUR + minutes(20)
            };
            let expected = (expected + full_in(algorithm)).since(now);
            assert_eq!(denied.retry_in, expected, "{algorithm:?}");
        }
        // Looking is not counted, nor is what another limit denies.
        let now = HOUR + minutes(50);
        assert!(
            !ask(subject, of_mode(Mode::CheckOnly, algorithm, 1), now)
                .await
                .allowed
        );
        let at = HOUR + minutes(20) + full_in(algorithm);
        assert!(
            ask(subject, of_mode(Mode::CheckOnly, algorithm, 5), at)
                .await
                .allowed
        );
        let never = Transaction {
            key: "L:never".into(),
            ..take(algorithms()[0], 11)
        };
        let both = batch([take(algorithm, 5), never]);
        assert!(!decide(subject, both, at).await.is_allowed());
        subject.settled().await.unwrap();
        assert_eq!(left(subject, algorithm, at).await, 5, "{algorithm:?}");
    }
}

/// Each denial by a gateway with the smaller count had a log forget all but so many units, and the
/// other gateway gave out the rest again: without a bound, while a deployment rolls.
pub async fn a_counted_denial_by_a_smaller_count_hands_out_nothing_to_a_greater_one(
    subject: &impl Subject,
) {
    for algorithm in COUNT_DENIED {
        let lower = Transaction {
            quota: Quota::windowed(algorithm, 3, Duration::from_secs(3600)).unwrap(),
            ..take(algorithm, 2)
        };
        assert!(ask(subject, take(algorithm, 10), HOUR).await.allowed);
        for _ in 0..4 {
            assert!(!ask(subject, lower.clone(), HOUR).await.allowed);
            assert_eq!(left(subject, algorithm, HOUR).await, 0, "{algorithm:?}");
        }
    }
}

/// Clients name costs in headers. One of 2^64 - 1 was written unit by unit to a log in memory, and
/// overflowed what Redis counts.
pub async fn a_denied_cost_beyond_measure_counts_as_a_full_bucket(subject: &impl Subject) {
    for algorithm in COUNT_DENIED {
        let full_in = full_in(algorithm);
        for _ in 0..3 {
            let denied = ask(subject, take(algorithm, u64::MAX), HOUR).await;
            assert_eq!((denied.allowed, denied.retry_in), (false, Nanos::NEVER));
        }
        let decision = ask(subject, of_mode(Mode::CheckOnly, algorithm, 1), HOUR).await;
        assert_eq!((decision.allowed, decision.retry_in), (false, full_in));
        let later = ask(subject, take(algorithm, 10), HOUR + full_in).await;
        assert!(later.allowed, "{algorithm:?}");
    }
}

/// A subject's window began with a request that another limit denied.
pub async fn a_window_from_a_first_request_on_begins_with_an_allowed_one(subject: &impl Subject) {
    let first = Algorithm::FixedWindow(Alignment::FirstRequest);
    let never = Transaction {
        key: "L:never".into(),
        ..take(algorithms()[0], 11)
    };
    let both = || batch([take(first, 1), never.clone()]);
    assert!(!decide(subject, both(), HOUR).await.is_allowed());
    subject.settled().await.unwrap();
    let full = ask(subject, of_mode(Mode::Peek, first, 1), HOUR + minutes(20)).await;
    assert_eq!((full.remaining, full.reset_in), (10, Nanos::ZERO));
    let begun = ask(subject, take(first, 1), HOUR + minutes(30)).await;
    assert_eq!((begun.remaining, begun.reset_in), (9, minutes(60)));
    // Another gateway finds the same window, and one that another limit denies leaves it.
    let denied = decide(subject, both(), HOUR + minutes(40)).await;
    assert_eq!(denied.decisions[0].unwrap().reset_in, minutes(50));
    subject.settled().await.unwrap();
    let second = ask(subject, take(first, 9), HOUR + minutes(80)).await;
    assert_eq!((second.allowed, second.reset_in), (true, minutes(10)));
    assert!(
        !ask(subject, take(first, 1), HOUR + minutes(89))
            .await
            .allowed
    );
    assert!(
        ask(subject, take(first, 1), HOUR + minutes(90))
            .await
            .allowed
    );
    // So does a window of which the only units are given back.
    let refunded = subject
        .store()
        .refund(owed([take(first, 1)]), HOUR + minutes(91));
    refunded.await.unwrap();
    subject.settled().await.unwrap();
    let again = ask(subject, take(first, 1), HOUR + minutes(100)).await;
    assert_eq!((again.remaining, again.reset_in), (9, minutes(60)));
}

/// Redis reads first whether so much fits.
pub async fn a_large_cost_is_taken_from_a_log_whole_or_not_at_all(subject: &impl Subject) {
    let log = algorithms()[4];
    let of = |mode, cost| Transaction {
        quota: Quota::windowed(log, 1000, Duration::from_secs(3600)).unwrap(),
        ..of_mode(mode, log, cost)
    };
    let spend_all = |cost| of(Mode::CheckAndSpend, cost);
    let first = ask(subject, spend_all(400), HOUR).await;
    assert_eq!((first.allowed, first.remaining), (true, 600));
    let now = HOUR + minutes(20);
    assert_eq!(
        ask(subject, of(Mode::SpendOnly, 500), now).await.remaining,
        100
    );
    let denied = ask(subject, spend_all(101), now).await;
    assert_eq!(
        (denied.allowed, denied.remaining, denied.retry_in),
        (false, 100, minutes(40))
    );
    let passed_over = ask(subject, of(Mode::SpendOnly, 101), now).await;
    assert_eq!((passed_over.allowed, passed_over.fits()), (true, false));
    // Another limit of the request denies.
    let full = Transaction {
        key: "L:full".into(),
        ..take(algorithms()[0], 11)
    };
    let outcome = decide(subject, batch([spend_all(100), full]), now).await;
    let decisions: Vec<_> = outcome.decisions.iter().flatten().collect();
    assert_eq!((decisions[0].allowed, decisions[0].remaining), (true, 100));
    assert!(!decisions[1].allowed);
    // The same log twice has room for the first alone.
    let twice = batch([spend_all(60), spend_all(60)]);
    assert!(!decide(subject, twice, now).await.is_allowed());
    subject.settled().await.unwrap();
    assert_eq!(ask(subject, spend_all(100), now).await.remaining, 0);
}

pub async fn the_greatest_window_counts(subject: &impl Subject) {
    let most = (1 << 62) - 1;
    for algorithm in algorithms().into_iter().take(2) {
        let transaction = Transaction {
            quota: Quota::windowed(algorithm, most, Duration::from_nanos(most)).unwrap(),
            ..take(algorithm, most)
        };
        assert!(
            ask(subject, transaction.clone(), HOUR).await.allowed,
            "{algorithm:?}"
        );
        assert!(
            !ask(subject, transaction, HOUR).await.allowed,
            "{algorithm:?}"
        );
        assert!(!ask(subject, take(algorithm, 1), HOUR).await.allowed);
    }
}

pub async fn concurrent_requests_share_a_window_exactly(subject: &impl Subject) {
    for algorithm in algorithms().into_iter().chain(COUNT_DENIED) {
        let requests = (0..40).map(|_| decide(subject, batch([take(algorithm, 1)]), HOUR));
        let outcomes = join_all(requests).await;
        let allowed = outcomes.iter().filter(|outcome| outcome.is_allowed());
        assert_eq!(allowed.count(), 10, "{algorithm:?}");
    }
}
