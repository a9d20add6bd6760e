mod eviction;
mod windows;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;
use weir_limit::time::Nanos;
use weir_limit::{Decision, Mode, Quota};

use super::*;
use crate::tests::contract::{NOW, Subject, batch, owed, spend, store_contract};
use crate::tests::definitions::Turns;

fn memory(max_buckets: usize) -> Memory {
    let max_buckets = NonZeroUsize::new(max_buckets).unwrap();
    Memory::new(MemorySettings { max_buckets })
}

fn decide(memory: &Memory, transaction: Transaction, now: Timestamp) -> Decision {
    let outcome = memory.decide(&batch([transaction]), now).now_or_never();
    outcome.unwrap().unwrap().decisions[0].unwrap()
}

impl Subject for Memory {
    fn store(&self) -> &dyn Store {
        self
    }
}

store_contract!(memory(100_000));

/// By the longest examples of all stores: no stretch has more than the bursts and what comes back
/// by the faster of two rates.
#[tokio::test]
async fn two_definitions_in_random_turns_keep_to_the_bound_in_every_stretch() {
    Turns::run(&memory(1000), 200, 300, 2).await;
}

#[tokio::test]
async fn three_definitions_at_once_admit_at_most_each_burst_once_more() {
    Turns::run(&memory(1000), 200, 300, 3).await;
}

#[test]
fn eight_threads_on_a_bucket_of_100_are_given_exactly_100() {
    let quota = Quota::new(100, 1, Duration::from_secs(3600)).unwrap();
    let memory = memory(1000);
    for round in 0..100 {
        let key = format!("L:{round}");
        let allowed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let transaction = Transaction {
                            quota,
                            ..spend(&key, 1)
                        };
                        let decision = decide(&memory, transaction, NOW);
                        allowed.fetch_add(decision.allowed.into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(allowed.into_inner(), 100);
    }
}

#[test]
fn batches_over_the_same_shards_in_any_order_do_not_wait_for_each_other() {
    let memory = Arc::new(memory(10_000_000));
    let threads = [["L:a", "L:b", "L:c"], ["L:c", "L:b", "L:a"]].map(|keys| {
        let memory = Arc::clone(&memory);
        thread::spawn(move || {
            for _ in 0..2000 {
                let all = batch(keys.map(|key| spend(key, 1)));
                assert!(memory.decide(&all, NOW).now_or_never().unwrap().is_ok());
            }
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_store_at_its_bound_takes_no_more_memory_and_counts_what_it_evicts() {
    let memory = memory(40_000);
    for number in 0..100_000_u64 {
        let key = format!("L:{number}");
        assert!(decide(&memory, spend(&key, 1), NOW).allowed);
    }
    let stats = memory.stats();
    assert!(
        stats.buckets <= 40_000 && stats.buckets > 39_000,
        "{stats:?}"
    );
    assert!(stats.bytes <= 20 * 40_000, "{stats:?}");
    assert_eq!(stats.evicted, 100_000 - stats.buckets as u64);
}

#[test]
fn a_flood_of_new_subjects_does_not_push_out_an_empty_bucket_of_a_small_store() {
    let memory = memory(10);
    decide(&memory, spend("L:spender", 10), NOW);
    for number in 0..1000 {
        decide(&memory, spend(&format!("L:{number}"), 1), NOW);
    }
    assert!(!decide(&memory, spend("L:spender", 1), NOW).allowed);
    assert_eq!(memory.stats().evicted, 991);
}

#[test]
fn expired_buckets_are_swept_and_their_memory_given_back() {
    let memory = memory(100_000);
    for number in 0..50_000 {
        decide(&memory, spend(&format!("L:{number}"), 1), NOW);
    }
    let later = NOW + Nanos::from_secs(62);
    for _ in 0..memory.shards() {
        memory.sweep(later);
    }
    assert_eq!(memory.stats(), MemoryStats::default());
}

#[test]
fn a_bucket_is_not_swept_before_its_tat() {
    let memory = memory(100);
    decide(&memory, spend("L:a", 1), NOW);
    memory.sweep_all(NOW + Nanos::new(59_999_999_999));
    assert_eq!(memory.stats().buckets, 1);
}

#[test]
fn looking_and_denying_remember_nothing_new() {
    let memory = memory(100);
    let modes = [Mode::CheckOnly, Mode::Peek, Mode::AllowOnly];
    for mode in modes {
        decide(
            &memory,
            Transaction {
                mode,
                ..spend("L:a", 1)
            },
            NOW,
        );
    }
    decide(&memory, spend("L:a", 11), NOW);
    memory.refund(owed([spend("L:a", 1)]), NOW).now_or_never();
    assert_eq!(memory.stats().buckets, 0);
}

/// Burst, emission interval, and requests as (time until it, cost).
fn traffic() -> impl Strategy<Value = (u64, u64, Vec<(u64, u64)>)> {
    (1..20_u64, 1..1000_u64).prop_flat_map(|(burst, interval)| {
        let idle = prop_oneof![4 => 0..2 * interval, 1 => 0..40 * interval];
        let requests = prop::collection::vec((idle, 1..=burst), 1..100);
        (Just(burst), Just(interval), requests)
    })
}

fn request(burst: u64, interval: u64, cost: u64) -> Transaction {
    Transaction {
        quota: Quota::new(burst, 1, Duration::from_nanos(interval)).unwrap(),
        cost: NonZeroU64::new(cost).unwrap(),
        ..spend("L:a", 1)
    }
}

proptest! {
    #[test]
    fn in_any_window_at_most_the_burst_and_what_came_back_passes(
        (burst, interval, requests) in traffic(),
    ) {
        let memory = memory(10);
        let mut now = NOW;
        let mut passed: Vec<(Timestamp, u64)> = Vec::new();
        for (idle, cost) in requests {
            now = now + Nanos::new(idle);
            if decide(&memory, request(burst, interval, cost), now).allowed {
                passed.push((now, cost));
            }
        }
        for (from, (start, _)) in passed.iter().enumerate() {
            let mut units = 0;
            for (end, cost) in &passed[from..] {
                units += cost;
                let came_back = end.since(*start).get() / interval;
                prop_assert!(units <= burst + came_back);
            }
        }
    }

    #[test]
    fn a_denied_request_is_denied_before_its_retry_and_allowed_exactly_at_it(
        (burst, interval, requests) in traffic(),
    ) {
        let memory = memory(10);
        let mut now = NOW;
        for (idle, cost) in requests {
            now = now + Nanos::new(idle);
            let transaction = request(burst, interval, cost);
            let check = Transaction { mode: Mode::CheckOnly, ..transaction.clone() };
            let decision = decide(&memory, transaction, now);
            if !decision.allowed {
                let just_before = decision.retry_in.saturating_sub(Nanos::new(1));
                prop_assert!(!decide(&memory, check.clone(), now + just_before).allowed);
                prop_assert!(decide(&memory, check, now + decision.retry_in).allowed);
            }
        }
    }

    #[test]
    fn remaining_is_truthful((burst, interval, requests) in traffic()) {
        let memory = memory(10);
        let mut now = NOW;
        for (idle, cost) in requests {
            now = now + Nanos::new(idle);
            let left = decide(&memory, request(burst, interval, cost), now).remaining;
            let check = |cost| {
                let transaction = request(burst, interval, cost);
                decide(&memory, Transaction { mode: Mode::CheckOnly, ..transaction }, now).allowed
            };
            prop_assert!(left == 0 || check(left));
            prop_assert!(!check(left + 1));
        }
    }

    #[test]
    fn a_clock_that_steps_back_never_grants(
        (burst, interval, requests) in traffic(),
        back in 0..1_000_000_000_u64,
    ) {
        let (steady, stepping) = (memory(10), memory(10));
        let mut now = NOW;
        for (number, (idle, cost)) in requests.into_iter().enumerate() {
            now = now + Nanos::new(idle);
            let transaction = request(burst, interval, cost);
            let there = decide(&steady, transaction.clone(), now);
            let earlier = Timestamp::from_nanos(now.as_nanos() - if number % 3 == 1 { back } else { 0 });
            stepping.sweep_all(now);
            let look = Transaction { mode: Mode::CheckOnly, ..transaction.clone() };
            let here = decide(&stepping, look, earlier);
            prop_assert!(there.allowed || !here.allowed);
            decide(&stepping, transaction, now);
        }
    }

    #[test]
    fn one_cost_of_n_equals_n_costs_of_one(
        (burst, interval, requests) in traffic(),
    ) {
        let (whole, single) = (memory(10), memory(10));
        let mut now = NOW;
        for (idle, cost) in requests {
            now = now + Nanos::new(idle);
            let at_once = decide(&whole, request(burst, interval, cost), now);
            let each = batch((0..cost).map(|_| request(burst, interval, 1)));
            let one_by_one = single.decide(&each, now).now_or_never().unwrap().unwrap();
            prop_assert_eq!(at_once.allowed, one_by_one.is_allowed());
            if at_once.allowed {
                prop_assert_eq!(Some(at_once), one_by_one.decisions.last().copied().flatten());
            }
        }
    }

    #[test]
    fn a_request_denied_by_one_limit_takes_from_none((burst, interval, requests) in traffic()) {
        let (with, without) = (memory(10), memory(10));
        let mut now = NOW;
        for (idle, cost) in requests {
            now = now + Nanos::new(idle);
            let never = Transaction { key: "L:never".into(), ..request(burst, interval, burst + 1) };
            let both = batch([request(burst, interval, cost), never]);
            let denied = with.decide(&both, now).now_or_never().unwrap().unwrap();
            prop_assert!(!denied.is_allowed());
            let transaction = request(burst, interval, cost);
            prop_assert_eq!(decide(&with, transaction.clone(), now), decide(&without, transaction, now));
        }
    }
}
