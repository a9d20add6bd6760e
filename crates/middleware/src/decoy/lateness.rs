//! The lateness of waits on this thread.
//!
//! A busy thread looks at its timer late, so a decoy would come later than real responses. Decoys
//! aim earlier by the lateness of the last ones, and so are early as often as late.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

thread_local! {
    static LATENESS: Cell<Lateness> = const { Cell::new(Lateness(Duration::ZERO)) };
}

/// The share of the last wait in the average, as a divisor.
const WEIGHT: u32 = 8;

/// A thread that was stopped for longer is not late again.
const MAX: Duration = Duration::from_millis(10);

/// The lateness of the last waits, on average.
#[derive(Clone, Copy, Debug)]
struct Lateness(Duration);

impl Lateness {
    /// After a wait that ended so late.
    fn after(self, late: Duration) -> Self {
        Self(self.0 - self.0 / WEIGHT + late.min(MAX) / WEIGHT)
    }
}

/// When a wait has to end so that it ends when it is due, on average.
pub(super) fn aim(due: Instant) -> Instant {
    due.checked_sub(LATENESS.get().0).unwrap_or(due)
}

/// A wait has ended so long after what it aimed at.
pub(super) fn ended(late: Duration) {
    LATENESS.set(LATENESS.get().after(late));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each was late by all of it.
    #[test]
    fn waits_that_end_late_aim_earlier_until_they_are_early_as_often_as_late() {
        let due = Instant::now();
        let overshoots = [200, 2600, 900, 1500].map(Duration::from_micros);
        let (mut late, mut early) = (Duration::ZERO, Duration::ZERO);
        for (number, overshoot) in overshoots.into_iter().cycle().take(400).enumerate() {
            let end = aim(due) + overshoot;
            ended(overshoot);
            if number >= 100 {
                late += end.saturating_duration_since(due);
                early += due.saturating_duration_since(end);
            }
        }
        let off = late.abs_diff(early) / 300;
        assert!(off < Duration::from_micros(50), "{off:?}");
    }

    #[test]
    fn a_thread_that_was_stopped_once_does_not_answer_at_once_from_then_on() {
        ended(Duration::from_secs(60));
        let due = Instant::now() + Duration::from_secs(1);
        assert!(due - aim(due) < Duration::from_millis(2));
    }
}
