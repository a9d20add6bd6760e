//! A histogram of durations that counts with atomics alone.
//!
//! The client library's histogram takes a lock for every observation; all workers would meet at
//! it. Here an observation is three additions, and a scrape that runs at the same time may see one
//! of them before the others, as Prometheus allows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Upper bounds in microseconds: about three to a decade, from 50 us, under which nothing over a
/// network is, to a minute, above which clients have given up.
const BOUNDS: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

/// Durations, counted in buckets.
#[derive(Clone, Debug, Default)]
pub(super) struct Latency(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Observations up to each bound and above the one before it; the last is above all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_micros: AtomicU64,
}

impl Latency {
    /// Counts a duration.
    pub(super) fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = BOUNDS.partition_point(|bound| *bound < micros);
        if let Some(bucket) = self.0.buckets.get(place) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.0.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS.iter().map(|micros| seconds(*micros));
        bounds
            .chain([f64::INFINITY])
            .zip(&self.0.buckets)
            .map(|(bound, count)| (bound, count.load(Ordering::Relaxed)))
            .collect()
    }
}

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let buckets = self.buckets();
        // The total is that of the buckets just read, so that the page agrees with itself.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = seconds(self.0.sum_micros.load(Ordering::Relaxed));
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Latency {
    const TYPE: MetricType = MetricType::Histogram;
}

fn seconds(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(latency: &Latency) -> Vec<u64> {
        latency.buckets().into_iter().map(|(_, n)| n).collect()
    }

    #[test]
    fn a_duration_counts_in_the_first_bucket_that_holds_it() {
        let latency = Latency::default();
        latency.observe(Duration::from_micros(50));
        latency.observe(Duration::from_micros(51));
        latency.observe(Duration::from_secs(61));
        let counts = counts(&latency);
        assert_eq!((counts[0], counts[1], counts[18]), (1, 1, 1));
        assert_eq!(counts.iter().sum::<u64>(), 3);
    }
}
