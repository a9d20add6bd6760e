//! The metric of traces.

use super::Metrics;
use super::page::{Name, SampleKind};

impl Metrics {
    /// Shows, at every scrape, how many spans were dropped.
    pub fn otlp_spans_dropped(&self, dropped: impl Fn() -> u64 + Send + Sync + 'static) {
        self.page.on_collect(
            Name::new(
                "weir_otlp_spans_dropped",
                "Spans dropped because they were more than the collector took",
            ),
            SampleKind::Counter,
            dropped,
        );
    }
}
