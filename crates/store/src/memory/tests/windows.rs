//! The laws of algorithms that count in windows, and what they are allowed of memory.

use weir_limit::{Algorithm, Alignment, Calendar, CalendarUnit};

use super::*;

const MICRO: u64 = 1000;
const SECOND: u64 = 1_000_000_000;

fn fixed(alignment: Alignment) -> Algorithm {
    Algorithm::FixedWindow(alignment)
}

fn sliding() -> impl Strategy<Value = Algorithm> {
    any::<bool>().prop_flat_map(|count_denied| {
        prop_oneof![
            Just(Algorithm::SlidingWindow { count_denied }),
            Just(Algorithm::SlidingLog { count_denied }),
        ]
    })
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let day = Calendar::new(CalendarUnit::Day, "Asia/Kolkata").unwrap();
    prop_oneof![
        2 => sliding(),
        1 => Just(fixed(Alignment::Period)),
        1 => Just(fixed(Alignment::FirstRequest)),
        1 => Just(fixed(Alignment::Calendar(day))),
    ]
}

/// Those that count no denials.
fn uncounted() -> impl Strategy<Value = Algorithm> {
    any_algorithm().prop_filter("counts denials", |algorithm| !algorithm.counts_denied())
}

#[derive(Clone, Debug)]
struct Traffic {
    quota: Quota,
    /// The time until each request, and its cost.
    requests: Vec<(u64, u64)>,
}

fn traffic(algorithm: impl Strategy<Value = Algorithm>) -> impl Strategy<Value = Traffic> {
    (algorithm, 1..20_u64, 1..100_u64).prop_flat_map(|(algorithm, count, secs)| {
        let quota = Quota::windowed(algorithm, count, Duration::from_secs(secs)).unwrap();
        let micros = quota.tolerance().get() / MICRO;
        let idle = prop_oneof![
            1 => Just(0),
            4 => 0..2 * micros / count + 1,
            1 => 0..2 * micros,
        ];
        let idle = idle.prop_map(|micros| micros * MICRO);
        let requests = prop::collection::vec((idle, 1..=count), 1..80);
        requests.prop_map(move |requests| Traffic { quota, requests })
    })
}

impl Traffic {
    fn request(&self, cost: u64) -> Transaction {
        Transaction {
            quota: self.quota,
            ..spend("L:a", cost)
        }
    }

    fn check(&self, cost: u64) -> Transaction {
        Transaction {
            mode: Mode::CheckOnly,
            ..self.request(cost)
        }
    }

    /// Each request with its moment.
    fn each(&self) -> impl Iterator<Item = (Timestamp, u64)> {
        let mut now = NOW;
        self.requests.iter().map(move |&(idle, cost)| {
            now = now + Nanos::new(idle);
            (now, cost)
        })
    }

    fn passed(&self) -> Vec<(Timestamp, u64)> {
        let memory = memory(10);
        self.each()
            .filter(|&(now, cost)| decide(&memory, self.request(cost), now).allowed)
            .collect()
    }

    fn count(&self) -> u64 {
        self.quota.burst().get()
    }
}

/// A gateway that is ahead settles the bucket, and then one that is behind decides.
#[test]
fn what_is_over_for_a_clock_ahead_still_counts_for_one_behind() {
    for algorithm in [
        Algorithm::SlidingWindow {
            count_denied: false,
        },
        Algorithm::SlidingLog {
            count_denied: false,
        },
    ] {
        let memory = memory(10);
        let request = |cost| Transaction {
            quota: Quota::windowed(algorithm, 10, Duration::from_secs(60)).unwrap(),
            ..spend("L:a", cost)
        };
        let end = NOW + decide(&memory, request(10), NOW).reset_in;
        let ahead = Timestamp::from_nanos(end.as_nanos() + SECOND - 2);
        assert!(decide(&memory, request(1), ahead).allowed, "{algorithm:?}");
        let behind = Timestamp::from_nanos(end.as_nanos() - 1);
        assert!(
            !decide(&memory, request(1), behind).allowed,
            "{algorithm:?}"
        );
    }
}

/// A mode that never denies is passed over, and leaves no trace of it.
#[test]
fn only_what_is_denied_is_counted_as_a_denial() {
    for mode in [Mode::SpendOnly, Mode::CheckOnly, Mode::Peek] {
        let memory = memory(10);
        let log = Algorithm::SlidingLog { count_denied: true };
        let quota = Quota::windowed(log, 10, Duration::from_secs(60)).unwrap();
        let of = |mode, cost| Transaction {
            quota,
            mode,
            ..spend("L:a", cost)
        };
        decide(&memory, of(Mode::SpendOnly, 10), NOW);
        let later = NOW + Nanos::from_secs(30);
        decide(&memory, of(mode, 10), later);
        let end = NOW + Nanos::from_secs(60);
        assert!(
            decide(&memory, of(Mode::CheckOnly, 10), end).allowed,
            "{mode:?}"
        );
    }
}

proptest! {
    #[test]
    fn in_any_period_at_most_the_count_passes_a_sliding_limit(traffic in traffic(sliding())) {
        let passed = traffic.passed();
        for (from, (start, _)) in passed.iter().enumerate() {
            let within = passed[from..].iter();
            let within = within.take_while(|(end, _)| end.since(*start) < traffic.quota.tolerance());
            let units: u64 = within.map(|(_, cost)| cost).sum();
            prop_assert!(units <= traffic.count(), "{units}");
        }
    }

    #[test]
    fn in_each_aligned_window_at_most_the_count_passes(
        traffic in traffic(Just(fixed(Alignment::Period))),
    ) {
        let mut windows = std::collections::HashMap::<u64, u64>::new();
        for (at, cost) in traffic.passed() {
            *windows.entry(at.as_nanos() / traffic.quota.tolerance().get()).or_default() += cost;
        }
        prop_assert!(windows.values().all(|&units| units <= traffic.count()));
    }

    #[test]
    fn in_the_period_from_a_first_request_on_at_most_the_count_passes(
        traffic in traffic(Just(fixed(Alignment::FirstRequest))),
    ) {
        let (mut start, mut units) = (None::<Timestamp>, 0);
        for (at, cost) in traffic.passed() {
            if start.is_none_or(|start| at.since(start) >= traffic.quota.tolerance()) {
                (start, units) = (Some(at), 0);
            }
            units += cost;
            prop_assert!(units <= traffic.count());
        }
    }

    #[test]
    fn a_denied_request_is_denied_before_its_retry_and_allowed_exactly_at_it(
        traffic in traffic(any_algorithm()),
    ) {
        let memory = memory(10);
        for (now, cost) in traffic.each() {
            let decision = decide(&memory, traffic.request(cost), now);
            if !decision.allowed {
                let just_before = decision.retry_in.saturating_sub(Nanos::new(1));
                let check = || traffic.check(cost);
                // Looking at it later removes what is dead by then, but nothing that counts now.
                prop_assert!(!decide(&memory, check(), now + just_before).allowed);
                prop_assert!(decide(&memory, check(), now + decision.retry_in).allowed);
                break;
            }
        }
    }

    #[test]
    fn a_bucket_is_full_when_it_is_said_to_be_and_not_before(traffic in traffic(any_algorithm())) {
        let memory = memory(10);
        let (mut last, mut reset_in) = (NOW, Nanos::ZERO);
        for (now, cost) in traffic.each() {
            (last, reset_in) = (now, decide(&memory, traffic.request(cost), now).reset_in);
        }
        let just_before = last + reset_in.saturating_sub(Nanos::new(1));
        let all = || traffic.check(traffic.count());
        prop_assert!(!decide(&memory, all(), just_before).allowed);
        prop_assert!(decide(&memory, all(), last + reset_in).allowed);
    }

    #[test]
    fn remaining_is_truthful(traffic in traffic(any_algorithm())) {
        let memory = memory(10);
        for (now, cost) in traffic.each() {
            let left = decide(&memory, traffic.request(cost), now).remaining;
            let fits = |cost| decide(&memory, traffic.check(cost), now).allowed;
            prop_assert!(left == 0 || fits(left));
            prop_assert!(!fits(left + 1));
        }
    }

    #[test]
    fn a_clock_that_steps_back_never_grants(
        traffic in traffic(any_algorithm()),
        back in 0..SECOND,
    ) {
        let (steady, stepping) = (memory(10), memory(10));
        for (number, (now, cost)) in traffic.each().enumerate() {
            let there = decide(&steady, traffic.request(cost), now);
            let back = if number % 3 == 1 { back } else { 0 };
            let earlier = Timestamp::from_nanos(now.as_nanos() - back);
            stepping.sweep_all(now);
            let here = decide(&stepping, traffic.check(cost), earlier);
            prop_assert!(there.allowed || !here.allowed);
            decide(&stepping, traffic.request(cost), now);
        }
    }

    #[test]
    fn one_cost_of_n_equals_n_costs_of_one(traffic in traffic(uncounted())) {
        let (whole, single) = (memory(10), memory(10));
        for (now, cost) in traffic.each() {
            let at_once = decide(&whole, traffic.request(cost), now);
            let each = batch((0..cost).map(|_| traffic.request(1)));
            let one_by_one = single.decide(&each, now).now_or_never().unwrap().unwrap();
            prop_assert_eq!(at_once.allowed, one_by_one.is_allowed());
            if at_once.allowed {
                let last = one_by_one.decisions.last().copied().flatten().unwrap();
                prop_assert_eq!(
                    (at_once.remaining, at_once.retry_in, at_once.reset_in),
                    (last.remaining, last.retry_in, last.reset_in)
                );
            }
        }
    }

    #[test]
    fn a_request_denied_by_one_limit_takes_from_none(traffic in traffic(any_algorithm())) {
        let (with, without) = (memory(10), memory(10));
        for (now, cost) in traffic.each() {
            let never = Transaction {
                key: "L:never".into(),
                ..spend("L:a", 11)
            };
            let both = batch([traffic.check(cost), traffic.request(cost), never]);
            let counted = traffic.quota.algorithm().counts_denied();
            if !counted {
                let denied = with.decide(&both, now).now_or_never().unwrap().unwrap();
                prop_assert!(!denied.is_allowed());
            }
            let [here, there] = [&with, &without].map(|memory| decide(memory, traffic.request(cost), now));
            prop_assert_eq!((here.allowed, here.remaining), (there.allowed, there.remaining));
        }
    }

    #[test]
    fn a_refund_undoes_a_spend(traffic in traffic(uncounted())) {
        let (with, without) = (memory(10), memory(10));
        for (now, cost) in traffic.each() {
            let first = decide(&with, traffic.request(cost), now);
            if first.allowed {
                drop(with.refund(owed([traffic.request(cost)]), now));
            }
            let [here, there] = [&with, &without].map(|memory| decide(memory, traffic.request(cost), now));
            prop_assert_eq!((here.allowed, here.remaining), (there.allowed, there.remaining));
        }
    }
}

fn windowed(algorithm: Algorithm, count: u64) -> Quota {
    Quota::windowed(algorithm, count, Duration::from_secs(3600)).unwrap()
}

fn all() -> [Algorithm; 4] {
    [
        fixed(Alignment::Period),
        fixed(Alignment::FirstRequest),
        Algorithm::SlidingWindow { count_denied: true },
        Algorithm::SlidingLog { count_denied: true },
    ]
}

#[test]
fn eight_threads_on_a_window_of_100_are_given_exactly_100() {
    let memory = memory(1000);
    for (round, algorithm) in all().into_iter().cycle().take(40).enumerate() {
        let allowed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let transaction = Transaction {
                            quota: windowed(algorithm, 100),
                            ..spend(&format!("L:{round}"), 1)
                        };
                        let allows = decide(&memory, transaction, NOW).allowed;
                        allowed.fetch_add(allows.into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(allowed.into_inner(), 100, "{algorithm:?}");
    }
}

#[test]
fn mixed_batches_over_the_same_shards_in_any_order_do_not_wait_for_each_other() {
    let memory = Arc::new(memory(10_000_000));
    let threads = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]].map(|order| {
        let memory = Arc::clone(&memory);
        thread::spawn(move || {
            for round in 0..2000 {
                let transaction = |number: usize| {
                    let transaction = spend(&format!("L:{round}:{number}"), 1);
                    match all().get(number) {
                        Some(&algorithm) => Transaction {
                            quota: windowed(algorithm, 10),
                            ..transaction
                        },
                        None => transaction,
                    }
                };
                let all = memory.decide(&batch(order.map(transaction)), NOW);
                assert!(all.now_or_never().unwrap().unwrap().is_allowed());
            }
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn long_logs_of_many_subjects_take_no_more_memory_than_is_allowed() {
    let memory = memory(10_000);
    let log = Algorithm::SlidingLog { count_denied: true };
    for number in 0..200 {
        for _ in 0..3 {
            let transaction = Transaction {
                quota: windowed(log, 10_000),
                ..spend(&format!("L:{number}"), 6000)
            };
            decide(&memory, transaction, NOW);
        }
    }
    let stats = memory.stats();
    assert!(stats.bytes <= 128 * 10_000, "{stats:?}");
    assert!(stats.buckets >= 5, "{stats:?}");
    assert_eq!(stats.evicted, 200 - stats.buckets as u64);
}

#[test]
fn windows_that_have_ended_are_swept() {
    let memory = memory(100);
    for (number, algorithm) in all().into_iter().enumerate() {
        let transaction = Transaction {
            quota: windowed(algorithm, 10),
            ..spend(&format!("L:{number}"), 1)
        };
        decide(&memory, transaction, NOW);
    }
    assert_eq!(memory.stats().buckets, 4);
    memory.sweep(NOW + Nanos::from_secs(3600 + 61));
    assert_eq!(memory.stats(), MemoryStats::default());
}
