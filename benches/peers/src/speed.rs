//! Times of decisions, interleaved: in each round every limiter has its turn, in random order, and
//! a ratio is taken within a round.

use std::time::Duration;

use crate::job::Random;
use crate::limiter::{DefaultGovernor, Limiter, Throttlecrab, WallClockGovernor, Weir};
use crate::timing::{Pick, fill, hit};

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    pub buckets: u32,
    pub rounds: usize,
    pub decisions: u32,
}

/// A limiter with its buckets, of whatever type.
trait Subject {
    fn name(&self) -> &'static str;

    /// Forgets everything and makes all buckets; nanoseconds a bucket.
    fn fill_anew(&mut self, buckets: u32) -> f64;

    /// Nanoseconds a decision.
    fn hit(&self, buckets: u32, pick: Pick, threads: u32, each: u32) -> f64;
}

impl<L: Limiter> Subject for Option<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn fill_anew(&mut self, buckets: u32) -> f64 {
        drop(self.take());
        let limiter = self.insert(L::new(buckets));
        nanos_each(fill(limiter, buckets), buckets)
    }

    fn hit(&self, buckets: u32, pick: Pick, threads: u32, each: u32) -> f64 {
        let limiter = self.as_ref().expect("it has been filled");
        nanos_each(hit(limiter, buckets, pick, threads, each), each)
    }
}

fn nanos_each(spent: Duration, decisions: u32) -> f64 {
    spent.as_secs_f64() * 1e9 / f64::from(decisions)
}

/// Measures everything and prints a table for each scenario.
pub fn measure(plan: Plan) {
    let mut subjects: [Box<dyn Subject>; 4] = [
        Box::new(None::<Weir>),
        Box::new(None::<WallClockGovernor>),
        Box::new(None::<DefaultGovernor>),
        Box::new(None::<Throttlecrab>),
    ];
    let mut random = Random::new(plan.buckets.into());
    let Plan {
        buckets, decisions, ..
    } = plan;

    let new = rounds(plan.rounds, &mut random, |at| {
        subjects[at].fill_anew(buckets)
    });
    print(&format!("new buckets, up to {buckets}"), &subjects, &new);

    for (scenario, pick, threads) in [
        ("a known bucket at random", Pick::AtRandom, 1),
        ("a known bucket at random, two threads", Pick::AtRandom, 2),
        ("the same bucket again and again", Pick::One, 1),
        ("the same bucket, two threads", Pick::One, 2),
    ] {
        let hit = |at: usize| subjects[at].hit(buckets, pick, threads, decisions);
        // The first round warms up.
        let times = rounds(plan.rounds + 1, &mut random, hit);
        let warm: Vec<_> = times.iter().map(|times| times[1..].to_vec()).collect();
        print(&format!("{scenario}, of {buckets}"), &subjects, &warm);
    }
}

/// The times of each subject, round by round.
fn rounds(
    rounds: usize,
    random: &mut Random,
    mut measure: impl FnMut(usize) -> f64,
) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); 4];
    for _ in 0..rounds {
        for at in random.order(times.len()) {
            times[at].push(measure(at));
        }
    }
    times
}

/// Weir's times over each subject's, and each subject's own.
fn print(scenario: &str, subjects: &[Box<dyn Subject>], times: &[Vec<f64>]) {
    println!("\n{scenario}\n");
    println!("| {:<24} | {:>19} | {:>8} |", "", "weir to it", "ns");
    println!("| {:-<24} | {:->18}: | {:->7}: |", "", "", "");
    for (subject, own) in subjects.iter().zip(times) {
        let ratios = times[0].iter().zip(own).map(|(weir, own)| weir / own);
        let [median, least, greatest] = summary(ratios.collect());
        let ratio = format!("{median:.2} ({least:.2}–{greatest:.2})");
        let [own, ..] = summary(own.clone());
        println!("| {:<24} | {ratio:>19} | {own:>8.0} |", subject.name());
    }
}

/// Median, least and greatest.
fn summary(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    ]
}
