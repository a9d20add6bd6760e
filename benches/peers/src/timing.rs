//! How long decisions take, without what is made for them beforehand.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use crate::job::{Random, write_key};
use crate::limiter::Limiter;

/// So many decisions are timed at once. What they are asked with fits into the first-level cache,
/// where it would be if it had just been made.
const BLOCK: usize = 32;

/// Which buckets are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// All alike, in random order.
    AtRandom,
    /// Always the same.
    One,
}

/// Asks for each of these buckets in turn. The time is that of the decisions alone.
pub fn time<L: Limiter>(limiter: &L, numbers: impl IntoIterator<Item = u32>) -> Duration {
    let mut spent = Duration::ZERO;
    in_blocks(limiter, numbers, |block| {
        let start = Instant::now();
        let allowed = decide_all(limiter, block);
        spent += start.elapsed();
        allowed
    });
    spent
}

/// Has each of these buckets asked for, a block at a time.
pub fn in_blocks<L: Limiter>(
    limiter: &L,
    numbers: impl IntoIterator<Item = u32>,
    mut decide: impl FnMut(&mut [L::Query]) -> usize,
) {
    let mut numbers = numbers.into_iter();
    let mut key = String::new();
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        for number in numbers.by_ref().take(BLOCK) {
            write_key(number, &mut key);
            block.push(limiter.query(&key));
        }
        if block.is_empty() {
            return;
        }
        assert_eq!(decide(&mut block), block.len(), "{} denies", L::NAME);
        block.clear();
    }
}

/// The decisions of a block, and how many are allowed.
pub fn decide_all<L: Limiter>(limiter: &L, block: &mut [L::Query]) -> usize {
    let decide = |asked| usize::from(black_box(limiter.decide(black_box(asked))));
    block.iter_mut().map(decide).sum()
}

/// Makes so many new buckets, in random order.
pub fn fill<L: Limiter>(limiter: &L, buckets: u32) -> Duration {
    // An odd factor maps the numbers below a power of two to one another.
    let power = buckets.next_power_of_two();
    let shuffled = (0..power).map(|number| number.wrapping_mul(0x9e37_79b1) & (power - 1));
    time(limiter, shuffled.filter(|&number| number < buckets))
}

/// Each of so many threads asks for known buckets; the time is the mean of one thread's.
pub fn hit<L: Limiter>(limiter: &L, buckets: u32, pick: Pick, threads: u32, each: u32) -> Duration {
    let one = |seed| {
        let mut random = Random::new(seed);
        let number = move |_| match pick {
            Pick::AtRandom => random.below(buckets),
            Pick::One => 0,
        };
        time(limiter, (0..each).map(number))
    };
    if threads == 1 {
        return one(0);
    }
    let total: Duration = thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || one(thread.into())))
            .collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined.map(|spent| spent.expect("a thread's time")).sum()
    });
    total / threads
}
