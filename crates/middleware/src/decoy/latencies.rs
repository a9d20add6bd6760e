//! How long decoys take: as long as one of the route's recent real responses, or a little less where
//! that shares a turn of the event loop with another decoy.

use std::time::Duration;

use parking_lot::Mutex;

/// Enough latencies for the tail to show, few enough to follow the present.
const KEPT_LATENCIES: usize = 256;

/// Latencies of decoys before the route's first response, in microseconds.
const DEFAULT_LATENCY: std::ops::Range<u64> = 5_000..50_000;

/// The greatest slack. A worker that forwards real responses sends those together that arrive within
/// some 20 µs, so clients that measure to 30 µs see pairs of real responses as well. With 100 µs they
/// would see more pairs of decoys.
pub(super) const MAX_SLACK: Duration = Duration::from_micros(50);

/// The slack leads past so many of the known latencies, as a divisor: no more real responses are
/// that fast than a client would find by chance in a sample of this size.
const PASSED_SHARE: usize = 16;

/// The slack where too few latencies are known to say how they spread, as a divisor of the latency.
const SLACK_OF_FEW: u32 = 8;

/// How long a decoy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrawnLatency {
    pub(super) latency: Duration,
    /// By how much it may be shorter, to share the turn of another decoy.
    pub(super) slack: Duration,
}

impl DrawnLatency {
    fn new(latency: Duration, slack: Duration) -> Self {
        let slack = slack.min(MAX_SLACK);
        Self { latency, slack }
    }

    /// A plausible latency of a response of which nothing is known.
    pub(super) fn of_unknown() -> Self {
        let latency = Duration::from_micros(rand::random_range(DEFAULT_LATENCY));
        Self::new(latency, latency / SLACK_OF_FEW)
    }
}

/// The latest latencies of real responses.
#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<Ring>);

#[derive(Clone, Debug, Default)]
struct Ring {
    recent: Vec<Duration>,
    next: usize,
    /// The same ones by size.
    sorted: Vec<Duration>,
}

impl Latencies {
    /// Takes over what another remembers.
    pub(super) fn inherit(&self, earlier: &Self) {
        let ring = earlier.0.lock().clone();
        *self.0.lock() = ring;
    }

    /// Remembers one latency, in place of the oldest.
    pub(super) fn record(&self, latency: Duration) {
        self.0.lock().record(latency);
    }

    pub(super) fn is_known(&self) -> bool {
        !self.0.lock().recent.is_empty()
    }

    /// A random one of the recent latencies; `None` before the first.
    pub(super) fn draw(&self) -> Option<DrawnLatency> {
        let ring = self.0.lock();
        let last = ring.sorted.len().checked_sub(1)?;
        ring.drawn(rand::random_range(0..=last))
    }

    /// The one of this rank by size.
    #[cfg(test)]
    pub(super) fn nth(&self, rank: usize) -> Option<DrawnLatency> {
        self.0.lock().drawn(rank)
    }
}

impl Ring {
    fn record(&mut self, latency: Duration) {
        match self.recent.get_mut(self.next) {
            Some(oldest) => {
                let forgotten = std::mem::replace(oldest, latency);
                if let Ok(rank) = self.sorted.binary_search(&forgotten) {
                    self.sorted.remove(rank);
                }
            }
            None => self.recent.push(latency),
        }
        let rank = self.sorted.partition_point(|known| *known < latency);
        self.sorted.insert(rank, latency);
        self.next = (self.next + 1) % KEPT_LATENCIES;
    }

    fn drawn(&self, rank: usize) -> Option<DrawnLatency> {
        let latency = *self.sorted.get(rank)?;
        let Some(passed @ 1..) = u32::try_from(self.sorted.len() / PASSED_SHARE).ok() else {
            return Some(DrawnLatency::new(latency, latency / SLACK_OF_FEW));
        };
        let over = |ranks: u32| {
            let faster = self.sorted.get(rank.saturating_sub(ranks as usize));
            faster.map_or(Duration::ZERO, |faster| latency.saturating_sub(*faster))
        };
        // The nearest one counts too: above a gap, which no real response is in, decoys would be.
        Some(DrawnLatency::new(
            latency,
            over(passed).min(over(1) * passed),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(micros: impl IntoIterator<Item = u64>) -> Latencies {
        let latencies = Latencies::default();
        let recorded = micros.into_iter().map(Duration::from_micros);
        recorded.for_each(|latency| latencies.record(latency));
        latencies
    }

    #[test]
    fn a_drawn_latency_is_one_of_the_recent_ones() {
        let latencies = known((0..1_000).map(|millis| millis * 1_000));
        for _ in 0..100 {
            let drawn = latencies.draw().unwrap().latency.as_millis();
            assert!(
                (1_000 - KEPT_LATENCIES as u128..1_000).contains(&drawn),
                "{drawn}"
            );
        }
    }

    /// Equal ones must not be lost together.
    #[test]
    fn each_latency_is_forgotten_as_often_as_it_was_recorded() {
        let latencies = known([7; 300].into_iter().chain([3; 200]).chain([9; 30]));
        let ring = latencies.0.lock();
        let mut recent = ring.recent.clone();
        recent.sort();
        assert_eq!(ring.sorted, recent);
        assert_eq!(ring.sorted.len(), KEPT_LATENCIES);
    }

    #[test]
    fn before_the_first_real_answer_a_plausible_latency_is_drawn() {
        assert!(Latencies::default().draw().is_none());
        let drawn = DrawnLatency::of_unknown().latency;
        assert!(drawn >= Duration::from_millis(5) && drawn < Duration::from_millis(50));
    }

    #[test]
    fn decoys_are_never_faster_than_all_real_answers() {
        for count in [16_u16, 40, 256] {
            let latencies = known((0..count).map(|at| 2_000 + u64::from(at) * 7));
            for rank in 0..usize::from(count) {
                let drawn = latencies.nth(rank).unwrap();
                let fastest = Duration::from_micros(2_000);
                assert!(drawn.latency - drawn.slack >= fastest, "{rank}: {drawn:?}");
            }
        }
    }

    /// It takes three or four milliseconds, to the microsecond.
    #[test]
    fn decoys_of_a_steady_app_have_no_slack() {
        let latencies = known((0..256).map(|at| 3_000 + 1_000 * (at % 2)));
        let slacks = (0..256).map(|rank| latencies.nth(rank).unwrap().slack);
        // The first of the slower ones.
        assert_eq!(slacks.filter(|slack| !slack.is_zero()).count(), 1);
    }

    #[test]
    fn the_slack_is_small_whatever_is_known() {
        for latencies in [
            known([80]),
            known([90_000]),
            known((1..256).map(|at| at * 1_000)),
        ] {
            let drawn = latencies.draw().unwrap();
            assert!(drawn.slack <= MAX_SLACK && drawn.slack <= drawn.latency / 8);
        }
        let drawn = known([80]).draw().unwrap();
        assert_eq!(drawn.slack, Duration::from_micros(10));
        assert_eq!(DrawnLatency::of_unknown().slack, MAX_SLACK);
    }
}
