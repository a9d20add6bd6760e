//! What holds while gateways have different definitions of a limit. Each law runs on every store,
//! by [`super::contract::store_contract`]; memory alone has more and longer examples.

use std::num::NonZeroU64;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Decision, Mode, Quota, Transaction};

use crate::tests::contract::{NOW, Subject, batch, decide, minutes, owed};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// How much later than an empty bucket is full a gateway may have to wait, since clocks differ.
const SPREAD: Nanos = Nanos::from_secs(3);

fn of(quota: Quota, mode: Mode, cost: u64) -> Transaction {
    Transaction {
        mode,
        ..Transaction::new("L:a".into(), quota, NonZeroU64::new(cost).unwrap())
    }
}

async fn ask(subject: &impl Subject, transaction: Transaction, now: Timestamp) -> Decision {
    let outcome = decide(subject, batch([transaction]), now).await;
    outcome.decisions[0].unwrap()
}

async fn take(subject: &impl Subject, quota: Quota, now: Timestamp) -> Decision {
    ask(subject, of(quota, Mode::CheckAndSpend, 1), now).await
}

/// Asks until it is denied, and tells how many units there were.
async fn drain(subject: &impl Subject, quota: Quota, now: Timestamp) -> u64 {
    let mut units = 0;
    while take(subject, quota, now).await.allowed {
        units += 1;
    }
    units
}

fn fastest(quotas: &[Quota]) -> u64 {
    let intervals = quotas.iter().map(|quota| quota.emission_interval().get());
    intervals.min().unwrap()
}

fn bursts(quotas: &[Quota]) -> u64 {
    quotas.iter().map(|quota| quota.burst().get()).sum()
}

/// Each pair gave out a multiple of this: the gateway with the lesser tolerance cut the debt about
/// once a second, and the other handed the difference out again.
pub async fn two_definitions_in_turn_admit_the_laxer_one_and_a_burst_of_the_stricter(
    subject: &impl Subject,
) {
    let minute = Duration::from_secs(60);
    for [one, other] in [
        [(1000, 1000, HOUR), (100, 1000, HOUR)],
        [(100, 100, HOUR), (10, 100, HOUR)],
        [(100, 100, DAY), (100, 100, HOUR)],
        [(5, 5, HOUR), (5, 5, minute)],
        [(100, 100, HOUR), (10, 10, minute)],
    ] {
        let quotas = [one, other].map(|(burst, count, period)| Quota::new(burst, count, period));
        let quotas = quotas.map(Result::unwrap);
        let mut admitted = 0;
        for tenth in 0..100 {
            for quota in quotas {
                admitted += drain(subject, quota, NOW + Nanos::new(tenth * 100_000_000)).await;
            }
        }
        let most = bursts(&quotas) + 10_000_000_000 / fastest(&quotas);
        assert!(admitted <= most, "{quotas:?}: {admitted} of {most}");
        subject.settled().await.unwrap();
        subject.store().reset(["L:a".into()].into()).await.unwrap();
    }
}

pub async fn a_limit_that_is_lowered_and_raised_again_hands_out_nothing(subject: &impl Subject) {
    let [lax, strict] = [100, 10].map(|burst| Quota::new(burst, 100, HOUR).unwrap());
    assert_eq!(drain(subject, lax, NOW).await, 100);
    for flip in 1..20 {
        let now = NOW + Nanos::from_secs(flip);
        assert_eq!(drain(subject, strict, now).await, 0);
        assert_eq!(drain(subject, lax, now).await, 0);
    }
}

pub async fn a_lowered_limit_admits_by_its_own_rate_before_the_old_period_is_over(
    subject: &impl Subject,
) {
    let old = Quota::new(100, 100, DAY).unwrap();
    let new = Quota::new(10, 10, Duration::from_secs(600)).unwrap();
    assert_eq!(drain(subject, old, NOW).await, 100);
    let denied = take(subject, new, NOW).await;
    assert_eq!((denied.allowed, denied.retry_in), (false, minutes(1)));
    for minute in 1..5 {
        let now = NOW + minutes(minute);
        let told = ask(subject, of(new, Mode::Peek, 1), now).await;
        assert_eq!(told.remaining, 1);
        assert_eq!(drain(subject, new, now).await, 1);
    }
    // Who waits gets all of the new burst. The old definition has what came back by its own rate,
    // less the 14 minutes of these units.
    let later = NOW + minutes(60);
    assert_eq!(drain(subject, new, later).await, 10);
    assert_eq!(drain(subject, old, later).await, 3);
}

/// A gateway that only checked was denied for all of the old period.
pub async fn a_lowered_limit_that_is_only_checked_admits_by_its_own_rate_as_well(
    subject: &impl Subject,
) {
    let old = Quota::new(100, 100, DAY).unwrap();
    let new = Quota::new(10, 10, Duration::from_secs(600)).unwrap();
    assert_eq!(drain(subject, old, NOW).await, 100);
    let check = of(new, Mode::CheckOnly, 1);
    let denied = ask(subject, check.clone(), NOW).await;
    assert_eq!((denied.allowed, denied.retry_in), (false, minutes(1)));
    assert!(ask(subject, check, NOW + minutes(1)).await.allowed);
}

pub async fn what_a_stricter_definition_did_not_spend_it_gives_back_to_the_laxer_one(
    subject: &impl Subject,
) {
    let old = Quota::new(100, 100, DAY).unwrap();
    let new = Quota::new(10, 10, Duration::from_secs(600)).unwrap();
    let empty = Transaction::new("L:empty".into(), old, NonZeroU64::new(100).unwrap());
    decide(subject, batch([empty.clone()]), NOW).await;
    assert_eq!(drain(subject, old, NOW).await, 100);
    assert!(!take(subject, new, NOW).await.allowed);
    let now = NOW + minutes(5);
    let debt = async || ask(subject, of(old, Mode::Peek, 1), now).await.reset_in;
    let before = debt().await;
    // Denied by another limit, and refunded later.
    let both = batch([of(new, Mode::CheckAndSpend, 2), empty]);
    assert!(!decide(subject, both, now).await.is_allowed());
    subject.settled().await.unwrap();
    assert_eq!(debt().await, before);
    let spent = of(new, Mode::SpendOnly, 3);
    assert_eq!(ask(subject, spent.clone(), now).await.remaining, 2);
    assert_eq!(debt().await, before + minutes(3));
    subject.store().refund(owed([spent]), now).await.unwrap();
    assert_eq!(debt().await, before);
    assert_eq!(drain(subject, new, now).await, 5);
}

pub async fn random_definitions_in_random_turns_keep_to_the_bound(subject: &impl Subject) {
    Turns::run(subject, 4, 60, 2).await;
}

/// Random definitions of one limit, one or several in force at a time, and what passed.
pub struct Turns {
    random: StdRng,
    quotas: Vec<Quota>,
    in_force: Vec<Quota>,
    now: Timestamp,
    passed: Vec<Timestamp>,
}

impl Turns {
    /// With two definitions the bound is theirs; each that is in force beside them may have its
    /// burst once more.
    pub async fn run(subject: &impl Subject, rounds: u64, steps: usize, definitions: usize) {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut lower_levels = 0;
        for round in 0..rounds {
            let mut turns = Self::new(seed.wrapping_add(round), definitions);
            for _ in 0..steps {
                turns.step(subject, &mut lower_levels).await;
            }
            turns.assert_bounded(if definitions > 2 { 2 } else { 1 });
            subject.settled().await.unwrap();
            subject.store().reset(["L:a".into()].into()).await.unwrap();
        }
        // Many turns in which no stricter definition admits anything beside a laxer one prove
        // nothing.
        assert!(rounds < 100 || lower_levels > 0);
    }

    fn new(seed: u64, definitions: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut quota = || {
            let interval = 10_f64.powf(random.random_range(-2.0..3.0));
            let burst = random.random_range(1..=30);
            Quota::new(burst, 1, Duration::from_secs_f64(interval)).unwrap()
        };
        let quotas: Vec<Quota> = (0..definitions).map(|_| quota()).collect();
        Self {
            random,
            in_force: quotas.clone(),
            quotas,
            now: NOW,
            passed: Vec::new(),
        }
    }

    async fn step(&mut self, subject: &impl Subject, lower_levels: &mut usize) {
        if self.random.random_range(0..30) == 0 {
            let one = self.any();
            self.in_force = match self.random.random() {
                true => vec![one],
                false => self.quotas.clone(),
            };
        }
        self.tick();
        let quota = self.in_force[self.random.random_range(0..self.in_force.len())];
        let others = self.quotas.iter().copied();
        let lax = others.max_by_key(Quota::tolerance).unwrap();
        let most = [1, 1, 5, 40][self.random.random_range(0..4)];
        for _ in 0..most {
            let decision = take(subject, quota, self.now).await;
            if !decision.allowed {
                let longest = quota.tolerance() + SPREAD;
                let two = self.quotas.len() == 2;
                assert!(
                    !two || decision.retry_in <= longest,
                    "{quota:?} {decision:?}"
                );
                break;
            }
            self.passed.push(self.now);
            let first = ask(subject, of(lax, Mode::Peek, 1), self.now)
                .await
                .reset_in;
            *lower_levels += usize::from(first > quota.tolerance() + SPREAD);
        }
    }

    fn any(&mut self) -> Quota {
        self.quotas[self.random.random_range(0..self.quotas.len())]
    }

    fn tick(&mut self) {
        let quota = self.any();
        let [interval, tolerance] = [quota.emission_interval(), quota.tolerance()].map(Nanos::get);
        let most = match self.random.random_range(0..50) {
            0..25 => 0,
            25..45 => 2 * interval,
            45..49 => tolerance + tolerance / 5,
            _ => 5 * tolerance,
        };
        self.now = self.now + Nanos::new(self.random.random_range(0..=most));
    }

    /// In no stretch more passed than the bursts and what comes back by the fastest rate: with n
    /// units from one moment to another, n times the interval is at most the bursts' and the
    /// stretch.
    fn assert_bounded(&self, times: u64) {
        let interval = i128::from(fastest(&self.quotas));
        let bursts = i128::from(times * bursts(&self.quotas));
        let mut earlier = i128::MIN;
        for (number, at) in (0_i128..).zip(&self.passed) {
            let at = i128::from(at.as_nanos());
            earlier = earlier.max(at - number * interval);
            let most = (number + 1) * interval - at + earlier;
            assert!(
                most <= bursts * interval,
                "{} units too many, by {:?}",
                most / interval - bursts,
                self.quotas
            );
        }
    }
}
