//! Random numbers that a seed determines, today and in any later version (SplitMix64).

use std::time::Duration;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream `purpose` of a seed. Streams of different purposes are independent, so a part of
    /// a scenario that is left out does not change what the others draw.
    #[must_use]
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut mixed = Self(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        mixed.next();
        mixed
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high.saturating_sub(low) + 1)
    }

    /// A duration from `low` to `high`.
    pub fn duration(&mut self, low: Duration, high: Duration) -> Duration {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.between(nanos(low), nanos(high)))
    }

    /// A number of milliseconds from `low` to `high`.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// True in `percent` of 100 draws.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// An index below `len`, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.next() % (len.max(1) as u64)).unwrap_or(0)
    }

    /// An index, each as likely as its weight says.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut drawn = self.next() % weights.iter().sum::<u64>().max(1);
        for (index, weight) in weights.iter().enumerate() {
            if drawn < *weight {
                return index;
            }
            drawn -= weight;
        }
        0
    }
}
