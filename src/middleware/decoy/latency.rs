//! The latencies of a route's recent real answers, to draw a decoy's delay from.

use std::time::Duration;

use parking_lot::Mutex;
use rand::seq::IndexedRandom;

/// How many latencies are kept; enough for the tail to show, few enough to follow the present.
const KEPT: usize = 256;

/// What a decoy takes before the route has ever answered, in microseconds: there is nothing to compare
/// it with.
const UNKNOWN: std::ops::Range<u64> = 5_000..50_000;

/// A ring of recent latencies.
#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<Ring>);

#[derive(Clone, Debug, Default)]
struct Ring {
    recent: Vec<Duration>,
    next: usize,
}

impl Latencies {
    /// Takes over what another remembers.
    pub(super) fn inherit(&self, earlier: &Self) {
        let ring = earlier.0.lock().clone();
        *self.0.lock() = ring;
    }

    /// Remembers one latency, in place of the oldest.
    pub(super) fn record(&self, latency: Duration) {
        let mut ring = self.0.lock();
        let next = ring.next;
        match ring.recent.get_mut(next) {
            Some(oldest) => *oldest = latency,
            None => ring.recent.push(latency),
        }
        ring.next = (next + 1) % KEPT;
    }

    /// Whether there is one.
    pub(super) fn is_known(&self) -> bool {
        !self.0.lock().recent.is_empty()
    }

    /// One of the recent latencies, each as likely as the others; none before the first.
    pub(super) fn draw(&self) -> Option<Duration> {
        self.0.lock().recent.choose(&mut rand::rng()).copied()
    }
}

/// A plausible latency of an answer of which nothing is known.
pub(super) fn unknown() -> Duration {
    Duration::from_micros(rand::random_range(UNKNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_latency_is_one_of_the_recent_ones() {
        let latencies = Latencies::default();
        for millis in 0..1_000 {
            latencies.record(Duration::from_millis(millis));
        }
        for _ in 0..100 {
            let drawn = latencies.draw().unwrap().as_millis();
            assert!((1_000 - KEPT as u128..1_000).contains(&drawn), "{drawn}");
        }
    }

    #[test]
    fn before_the_first_real_answer_a_plausible_latency_is_drawn() {
        assert_eq!(Latencies::default().draw(), None);
        let drawn = unknown();
        assert!(drawn >= Duration::from_millis(5) && drawn < Duration::from_millis(50));
    }
}
