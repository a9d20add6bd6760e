//! Histograms of durations, and their quantiles.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

use crate::striped::Striped;

/// Upper bounds in microseconds: about three to a decade, from 50 us, under which nothing over a
/// network is, to a minute, above which clients have given up.
const BOUNDS: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

/// A histogram of durations that counts with atomics alone.
///
/// The client library's histogram takes a lock for every observation, at which all workers would
/// meet. Here an observation is two additions to what is this thread's, and a scrape that runs at
/// the same time may see one of them before the others, as Prometheus allows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latency(Arc<Striped<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// Observations up to each bound and above the one before it; the last is above all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_micros: AtomicU64,
}

impl Latency {
    pub(crate) fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = BOUNDS.partition_point(|bound| *bound < micros);
        let Some(own) = self.0.own() else { return };
        if let Some(bucket) = own.buckets.get(place) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        own.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> LatencyCounts {
        let mut counts = LatencyCounts::default();
        for thread in self.0.all() {
            for (count, bucket) in counts.0.iter_mut().zip(&thread.buckets) {
                *count += bucket.load(Ordering::Relaxed);
            }
        }
        counts
    }

    fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS.iter().map(|micros| seconds(*micros));
        bounds.chain([f64::INFINITY]).zip(self.counts().0).collect()
    }
}

/// The counts of a histogram of durations at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts([u64; BOUNDS.len() + 1]);

impl LatencyCounts {
    /// The counts since `earlier`.
    pub fn since(mut self, earlier: &Self) -> Self {
        for (count, before) in self.0.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(before);
        }
        self
    }

    /// Counts what another histogram has counted.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }

    /// The duration in seconds that this share of all durations does not exceed, about: within a
    /// bucket they are taken to be spread evenly. None if there are none.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total: u64 = self.0.iter().sum();
        let wanted = share * total as f64;
        let (mut below, mut lower) = (0, 0);
        let longest = BOUNDS.iter().max().copied();
        for (count, upper) in self.0.iter().zip(BOUNDS.into_iter().chain(longest)) {
            let reached = below + count;
            if *count > 0 && reached as f64 >= wanted {
                let part = (wanted - below as f64) / *count as f64;
                return Some(seconds(lower) + part * (seconds(upper) - seconds(lower)));
            }
            (below, lower) = (reached, upper);
        }
        None
    }
}

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let buckets = self.buckets();
        // The total is that of the buckets just read, so that the page agrees with itself.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sums = self.0.all().map(|thread| &thread.sum_micros);
        let sum = seconds(sums.map(|sum| sum.load(Ordering::Relaxed)).sum());
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

    #[test]
    fn a_quantile_lies_within_the_bucket_that_reaches_it() {
        let latency = Latency::default();
        assert_eq!(latency.counts().quantile(0.5), None);
        let before = latency.counts();
        for _ in 0..98 {
            latency.observe(Duration::from_micros(300));
        }
        latency.observe(Duration::from_millis(40));
        latency.observe(Duration::from_secs(90));
        let counts = latency.counts().since(&before);
        let within = |share, low: f64, high: f64| {
            let quantile = counts.quantile(share).unwrap();
            assert!(low <= quantile && quantile <= high, "{share}: {quantile}");
        };
        within(0.0, 0.000_25, 0.000_25);
        within(0.5, 0.000_25, 0.000_5);
        within(0.99, 0.025, 0.05);
        // A duration above all bounds is at least as long as the last one.
        within(1.0, 60.0, 60.0);
        let mut twice = counts;
        twice.add(&counts);
        assert_eq!(twice.since(&counts), counts);
    }
}
