//! The metrics page, in the text form of OpenMetrics.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::Metrics;
use super::names::{self, Name};

impl Metrics {
    /// The media type of the page.
    pub const CONTENT_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// The page for Prometheus.
    ///
    /// # Errors
    /// When a metric cannot be written as text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut page = String::with_capacity(8 * 1024);
        encode(&mut page, &self.registry.lock())?;
        Ok(page)
    }
}

pub(super) fn register(registry: &mut Registry, name: Name, metric: &(impl Metric + Clone)) {
    registry.register(name.name, name.help, metric.clone());
}

pub(super) fn build_info(registry: &mut Registry) {
    let info = Info::new(vec![(names::VERSION, env!("CARGO_PKG_VERSION"))]);
    registry.register(names::BUILD.name, names::BUILD.help, info);
}

/// What a number read at the scrape is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// Shows a number that somebody else keeps, as it is when the page is asked for.
pub(super) fn at_scrape(
    registry: &mut Registry,
    name: Name,
    kind: Kind,
    read: impl Fn() -> u64 + Send + Sync + 'static,
) {
    registry.register_collector(Box::new(AtScrape { name, kind, read }));
}

struct AtScrape<F> {
    name: Name,
    kind: Kind,
    read: F,
}

impl<F: Fn() -> u64 + Send + Sync + 'static> Collector for AtScrape<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let value = (self.read)();
        match self.kind {
            Kind::Counter => self.write(encoder, &ConstCounter::new(value)),
            Kind::Gauge => self.write(encoder, &ConstGauge::new(value)),
        }
    }
}

impl<F> AtScrape<F> {
    fn write(&self, mut encoder: DescriptorEncoder<'_>, value: &impl EncodeMetric) -> fmt::Result {
        let Name { name, help } = self.name;
        let help = format!("{help}.");
        value.encode(encoder.encode_descriptor(name, &help, None, value.metric_type())?)
    }
}

impl<F> fmt::Debug for AtScrape<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AtScrape").field(&self.name.name).finish()
    }
}
