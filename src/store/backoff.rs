//! How long to wait before trying again.

use std::time::Duration;

/// Waits that double up to a greatest one, each cut at random by up to a half, so that many
/// gateways do not come back to a Redis in step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    next: Duration,
    greatest: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, greatest: Duration) -> Self {
        Self {
            next: first.min(greatest),
            greatest,
        }
    }

    /// The next wait.
    pub(super) fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.greatest);
        wait.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_greatest_and_are_cut_by_at_most_a_half() {
        let ms = Duration::from_millis;
        for _ in 0..100 {
            let mut backoff = Backoff::new(ms(50), ms(150));
            for longest in [50, 100, 150, 150].map(ms) {
                let wait = backoff.wait();
                assert!(wait <= longest && wait >= longest / 2, "{wait:?}");
            }
        }
    }
}
