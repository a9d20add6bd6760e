//! Latencies, counted in buckets of at most 1.6 percent's width.

use std::time::Duration;

/// Buckets for each power of two.
const STEPS: u64 = 64;

pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    pub fn new() -> Self {
        let size = index(u64::MAX) + 1;
        Self {
            counts: vec![0; size],
            total: 0,
        }
    }

    pub fn add(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[index(nanos)] += 1;
        self.total += 1;
    }

    #[cfg(feature = "http3")]
    pub fn add_all(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
    }

    /// Microseconds that this part of all latencies stays within.
    pub fn quantile(&self, part: f64) -> f64 {
        let rank = (part * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper(index) as f64 / 1000.0;
            }
        }
        0.0
    }
}

/// Below `STEPS` a bucket for each value; then `STEPS` buckets from each power of two to the next.
fn index(value: u64) -> usize {
    let shift = value.checked_ilog2().unwrap_or(0).saturating_sub(6);
    (u64::from(shift) * STEPS + (value >> shift)) as usize
}

/// The greatest value of a bucket.
fn upper(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * STEPS {
        return index;
    }
    let shift = index / STEPS - 1;
    let start = (index - shift * STEPS) << shift;
    start + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_within_its_bucket_and_buckets_are_narrow() {
        for value in [0, 1, 63, 64, 127, 128, 129, 1000, 123_456_789, u64::MAX] {
            let upper = upper(index(value));
            assert!(upper >= value, "{value}");
            assert!(upper - value <= value / STEPS, "{value} {upper}");
        }
    }

    #[test]
    fn a_quantile_is_the_value_that_so_many_stay_within() {
        let mut histogram = Histogram::new();
        for micros in 1..=1000 {
            histogram.add(Duration::from_micros(micros));
        }
        let near = |part, micros: f64| (histogram.quantile(part) / micros - 1.0).abs() < 0.02;
        assert!(near(0.5, 500.0) && near(0.99, 990.0) && near(0.999, 999.0));
    }
}
