//! A flood of other subjects must not make a denied request allowed.

use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Algorithm, Alignment, Mode, Quota, Transaction};

use super::{decide, memory};
use crate::Memory;
use crate::tests::contract::NOW;

/// Many more than there may be.
const FLOOD: u64 = 400;
const MAX_BUCKETS: usize = 40;

fn quota(algorithm: Algorithm, count: u64, secs: u64) -> Quota {
    Quota::windowed(algorithm, count, Duration::from_secs(secs)).unwrap()
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let count_denied = any::<bool>();
    prop_oneof![
        4 => Just(Algorithm::Gcra),
        1 => Just(Algorithm::FixedWindow(Alignment::FirstRequest)),
        1 => Just(Algorithm::FixedWindow(Alignment::Period)),
        1 => count_denied.prop_map(|count_denied| Algorithm::SlidingWindow { count_denied }),
        1 => count_denied.prop_map(|count_denied| Algorithm::SlidingLog { count_denied }),
    ]
}

fn limit() -> impl Strategy<Value = Quota> {
    // As long as a flood lasts, nothing comes back.
    let secs = prop_oneof![1..60_u64, 3600..100_000_u64];
    (algorithm(), 1..20_u64, secs)
        .prop_map(|(algorithm, count, secs)| quota(algorithm, count, secs))
}

/// A limit, what a request costs, and whether a cheap one is made after one was denied.
fn spender() -> impl Strategy<Value = (Quota, u64, bool)> {
    limit().prop_flat_map(|quota| (Just(quota), 1..=quota.burst().get(), any::<bool>()))
}

fn ask(key: &str, quota: Quota, cost: u64, mode: Mode) -> Transaction {
    let cost = NonZeroU64::new(cost).unwrap();
    Transaction {
        mode,
        ..Transaction::new(key.into(), quota, cost)
    }
}

/// Spends until the cost is denied.
fn drain(memory: &Memory, key: &str, quota: Quota, cost: u64) {
    let transaction = ask(key, quota, cost, Mode::CheckAndSpend);
    while decide(memory, transaction.clone(), NOW).allowed {}
}

fn is_denied(memory: &Memory, key: &str, quota: Quota, cost: u64, now: Timestamp) -> bool {
    !decide(memory, ask(key, quota, cost, Mode::CheckOnly), now).allowed
}

/// A unit from each of many others, which is all that some of them have.
fn flood(memory: &Memory, prefix: &str, limits: &[Quota]) -> Timestamp {
    let mut now = NOW;
    for (number, quota) in (0..FLOOD).zip(limits.iter().cycle()) {
        now = now + Nanos::new(1000);
        let transaction = ask(
            &format!("{prefix}:{number}"),
            *quota,
            1,
            Mode::CheckAndSpend,
        );
        assert!(decide(memory, transaction, now).allowed);
    }
    now
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_flood_of_other_subjects_makes_a_denied_request_allowed(
        spenders in prop::collection::vec(spender(), 1..MAX_BUCKETS / 4),
        limits in prop::collection::vec(limit(), 1..5),
    ) {
        let memory = memory(MAX_BUCKETS);
        let key = |number| format!("Spent:{number}");
        for (number, &(quota, cost, cheap)) in spenders.iter().enumerate() {
            drain(&memory, &key(number), quota, cost);
            if cheap {
                decide(&memory, ask(&key(number), quota, 1, Mode::SpendOnly), NOW);
            }
        }
        let now = flood(&memory, "L", &limits);
        for (number, &(quota, cost, _)) in spenders.iter().enumerate() {
            prop_assert!(is_denied(&memory, &key(number), quota, cost, now), "{number}: {quota:?}");
        }
    }

    #[test]
    fn no_flood_of_strikes_lifts_a_ban_or_forgets_an_offence(
        lengths in prop::collection::vec(1..86_400_000_u64, 1..MAX_BUCKETS / 4),
        strikes in (1..20_u64, 1..100_000_u64),
    ) {
        let memory = memory(MAX_BUCKETS);
        let terms = Quota::new(86_400_000, 1, Duration::from_millis(1)).unwrap();
        let offences = Quota::new(5, 1, Duration::from_secs(86_400)).unwrap();
        for (number, &length) in lengths.iter().enumerate() {
            decide(&memory, ask(&format!(":ban:B:{number}"), terms, length, Mode::SpendOnly), NOW);
            decide(&memory, ask(&format!(":offences:B:{number}"), offences, 1, Mode::SpendOnly), NOW);
        }
        let strikes = Quota::new(strikes.0, strikes.0, Duration::from_secs(strikes.1)).unwrap();
        flood(&memory, ":strikes:B:", &[strikes]);
        flood(&memory, "L", &[Quota::new(1, 1, Duration::from_secs(86_400)).unwrap()]);
        for number in 0..lengths.len() {
            let all = terms.burst().get();
            let ban = format!(":ban:B:{number}");
            prop_assert!(is_denied(&memory, &ban, terms, all, NOW));
            let known = ask(&format!(":offences:B:{number}"), offences, 1, Mode::Peek);
            prop_assert_eq!(decide(&memory, known, NOW).remaining, 4);
        }
    }
}

/// What lifted a ban and filled a drained bucket: a unit of a daily limit outranked both, as it
/// takes longer to come back than a ban of ten minutes lasts.
#[test]
fn many_rotated_accounts_neither_lift_a_ban_nor_fill_a_drained_bucket() {
    let memory = memory(10_000);
    let terms = Quota::new(600_000, 1, Duration::from_millis(1)).unwrap();
    let short = quota(Algorithm::Gcra, 5, 60);
    decide(
        &memory,
        ask(":ban:B:a", terms, 600_000, Mode::SpendOnly),
        NOW,
    );
    drain(&memory, "Short:a", short, 1);
    for daily in [1, 2, 100] {
        let daily = quota(Algorithm::Gcra, daily, 86_400);
        for number in 0..6_000 {
            let key = format!("Daily{}:{number}", daily.burst());
            decide(&memory, ask(&key, daily, 1, Mode::CheckAndSpend), NOW);
        }
        assert!(is_denied(&memory, ":ban:B:a", terms, 600_000, NOW));
        assert!(is_denied(&memory, "Short:a", short, 1, NOW));
    }
    let stats = memory.stats();
    assert!(
        stats.buckets <= 10_001 && stats.evicted >= 7_999,
        "{stats:?}"
    );
}

/// A single request drains a bucket of one a day, which is full later than the drained one.
#[test]
fn many_single_requests_fill_neither_a_bucket_that_denied_nor_one_that_is_just_drained() {
    let algorithms = [
        Algorithm::Gcra,
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::SlidingLog {
            count_denied: false,
        },
    ];
    for algorithm in algorithms {
        let memory = memory(1000);
        let (short, daily) = (quota(algorithm, 10, 600), quota(algorithm, 1, 86_400));
        drain(&memory, "Short:denied", short, 1);
        for _ in 0..10 {
            decide(
                &memory,
                ask("Short:drained", short, 1, Mode::CheckAndSpend),
                NOW,
            );
        }
        for number in 0..3000 {
            let transaction = ask(&format!("Daily:{number}"), daily, 1, Mode::CheckAndSpend);
            assert!(decide(&memory, transaction, NOW).allowed);
        }
        assert!(memory.stats().evicted >= 2000);
        for key in ["Short:denied", "Short:drained"] {
            assert!(
                is_denied(&memory, key, short, 1, NOW),
                "{key} {algorithm:?}"
            );
        }
    }
}

#[test]
fn bans_and_strikes_are_bounded_as_well() {
    let memory = memory(100);
    let strikes = quota(Algorithm::Gcra, 10, 60);
    flood(&memory, ":strikes:B", &[strikes]);
    flood(&memory, ":ban:B", &[strikes]);
    assert_eq!((memory.stats().buckets, memory.stats().evicted), (100, 700));
}
