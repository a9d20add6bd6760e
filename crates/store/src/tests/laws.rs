//! What holds of any traffic, for every algorithm and every mode of a transaction. Each law runs on
//! every store, by [`super::contract::store_contract`]; memory alone has more of them, and smaller
//! examples.

use std::num::NonZeroU64;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{
    Algorithm, Alignment, Calendar, CalendarUnit, Decision, Mode, Quota, Transaction,
};

use crate::tests::contract::{NOW, Subject, batch, decide, owed};

const STEPS: usize = 150;
const COUNT: u64 = 10;
const PERIOD: Duration = Duration::from_secs(3600);

const MODES: [Mode; 5] = [
    Mode::CheckAndSpend,
    Mode::CheckOnly,
    Mode::SpendOnly,
    Mode::Peek,
    Mode::AllowOnly,
];

/// Ten units an hour, or a day, by each algorithm.
fn quotas() -> Vec<Quota> {
    let day = Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap();
    let mut algorithms = vec![
        Algorithm::FixedWindow(Alignment::Period),
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::FixedWindow(Alignment::Calendar(day)),
    ];
    for count_denied in [false, true] {
        algorithms.push(Algorithm::SlidingWindow { count_denied });
        algorithms.push(Algorithm::SlidingLog { count_denied });
    }
    let windowed = |algorithm| Quota::windowed(algorithm, COUNT, PERIOD).unwrap();
    let mut quotas: Vec<_> = algorithms.into_iter().map(windowed).collect();
    quotas.push(Quota::new(COUNT, COUNT, PERIOD).unwrap());
    quotas
}

/// Random traffic on one bucket, whose clock never steps back.
struct Traffic<'a, S> {
    subject: &'a S,
    quota: Quota,
    random: StdRng,
    now: Timestamp,
}

impl<'a, S: Subject> Traffic<'a, S> {
    /// One for each algorithm.
    fn each(subject: &'a S) -> impl Iterator<Item = Self> {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        quotas().into_iter().map(move |quota| Self {
            subject,
            quota,
            random: StdRng::seed_from_u64(seed),
            now: NOW,
        })
    }

    fn tick(&mut self) {
        let period = self.quota.tolerance().get();
        let most = match self.random.random_range(0..10) {
            0..5 => 1,
            5..9 => 2 * period / COUNT,
            _ => 2 * period,
        };
        self.now = self.now + Nanos::new(self.random.random_range(0..most));
    }

    /// Now and then one that seldom or never fits.
    fn cost(&mut self) -> u64 {
        match self.random.random_range(0..4) {
            0 => self.random.random_range(1..=COUNT + 1),
            _ => self.random.random_range(1..=3),
        }
    }

    fn transaction(&self, mode: Mode, cost: u64) -> Transaction {
        let key = format!("L:{:?}", self.quota.algorithm());
        let cost = NonZeroU64::new(cost).unwrap();
        Transaction {
            mode,
            ..Transaction::new(key.as_str().into(), self.quota, cost)
        }
    }

    async fn ask(&self, mode: Mode, cost: u64) -> Decision {
        let asked = batch([self.transaction(mode, cost)]);
        let outcome = decide(self.subject, asked, self.now).await;
        self.subject.settled().await.unwrap();
        outcome.decisions[0].unwrap()
    }

    async fn left(&self) -> u64 {
        self.ask(Mode::Peek, 1).await.remaining
    }
}

pub async fn each_mode_denies_and_takes_as_it_says(subject: &impl Subject) {
    let mut seen = [[0; 2]; MODES.len()];
    for mut traffic in Traffic::each(subject) {
        for _ in 0..STEPS {
            traffic.tick();
            let cost = traffic.cost();
            let number = traffic.random.random_range(0..MODES.len());
            let mode = MODES[number];
            let before = traffic.left().await;
            let decision = traffic.ask(mode, cost).await;
            let after = traffic.left().await;
            let told = format!(
                "{:?}: {before} left, {cost} asked, {decision:?}",
                traffic.transaction(mode, cost)
            );
            let fits = cost <= before;
            seen[number][usize::from(fits)] += 1;
            assert_eq!(decision.allowed, fits || !mode.checks(), "{told}");
            assert_eq!(decision.fits(), fits || mode == Mode::AllowOnly, "{told}");
            if fits && mode.spends() {
                assert_eq!(
                    (after, decision.remaining),
                    (before - cost, after),
                    "{told}"
                );
            } else if traffic.transaction(mode, cost).is_counted_when_denied() && !fits {
                assert!(after <= before, "{told}");
            } else {
                assert_eq!(after, before, "{told}");
            }
        }
    }
    // Traffic in which a mode always fits, or never, proves nothing.
    assert!(seen.iter().flatten().all(|&times| times > 0), "{seen:?}");
}

pub async fn no_more_passes_than_the_algorithm_promises(subject: &impl Subject) {
    for mut traffic in Traffic::each(subject) {
        let mut passed: Vec<Passed> = Vec::new();
        for _ in 0..STEPS {
            traffic.tick();
            let cost = traffic.cost();
            let mode = [Mode::CheckAndSpend, Mode::SpendOnly][traffic.random.random_range(0..2)];
            let decision = traffic.ask(mode, cost).await;
            if decision.fits() {
                let full = traffic.now + decision.reset_in;
                passed.push(Passed {
                    at: traffic.now,
                    cost,
                    full,
                });
            }
        }
        for (from, first) in passed.iter().enumerate() {
            let mut units = 0;
            for last in &passed[from..] {
                if !is_bounded(&traffic.quota, first, last) {
                    break;
                }
                units += last.cost;
                let back = came_back(&traffic.quota, last.at.since(first.at));
                assert!(units <= COUNT + back, "{:?}: {units}", traffic.quota);
            }
        }
    }
}

struct Passed {
    at: Timestamp,
    cost: u64,
    /// When the bucket is full again: of a window that is fixed, its end.
    full: Timestamp,
}

/// Whether one bound holds for both and all between them.
fn is_bounded(quota: &Quota, first: &Passed, last: &Passed) -> bool {
    match quota.algorithm() {
        Algorithm::FixedWindow(_) => first.full == last.full,
        Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. } => {
            last.at.since(first.at) < quota.tolerance()
        }
        _ => true,
    }
}

/// The units that come back in a time one by one.
fn came_back(quota: &Quota, time: Nanos) -> u64 {
    match quota.algorithm() {
        Algorithm::Gcra => time.get() / quota.emission_interval().get(),
        _ => 0,
    }
}

pub async fn who_is_denied_is_let_in_at_his_retry_and_not_before(subject: &impl Subject) {
    for mut traffic in Traffic::each(subject) {
        let mut denied = 0;
        for _ in 0..STEPS {
            traffic.tick();
            let cost = traffic.cost();
            let retry_in = traffic.ask(Mode::CheckAndSpend, cost).await.retry_in;
            if retry_in.is_zero() || retry_in == Nanos::NEVER {
                continue;
            }
            denied += 1;
            traffic.now = traffic.now + retry_in.saturating_sub(Nanos::new(1));
            assert!(
                !traffic.ask(Mode::CheckOnly, cost).await.allowed,
                "{:?}",
                traffic.quota
            );
            traffic.now = traffic.now + Nanos::new(1);
            assert!(
                traffic.ask(Mode::CheckOnly, cost).await.allowed,
                "{:?}",
                traffic.quota
            );
        }
        assert!(denied > 0, "{:?}", traffic.quota);
    }
}

pub async fn a_refund_undoes_what_was_taken_and_nothing_else(subject: &impl Subject) {
    for mut traffic in Traffic::each(subject) {
        for _ in 0..STEPS {
            traffic.tick();
            let cost = traffic.cost();
            let mode = MODES[traffic.random.random_range(0..MODES.len())];
            let before = traffic.left().await;
            traffic.ask(mode, cost).await;
            let taken = before.saturating_sub(traffic.left().await);
            let back = batch([traffic.transaction(mode, cost)]);
            if taken == cost || !mode.spends() {
                let store = traffic.subject.store();
                store.refund(owed(back), traffic.now).await.unwrap();
                assert_eq!(
                    traffic.left().await,
                    before,
                    "{:?}",
                    traffic.transaction(mode, cost)
                );
            }
            // Some of it stays taken, so that there is something to give back too much of.
            traffic.ask(Mode::SpendOnly, 1).await;
        }
    }
}
