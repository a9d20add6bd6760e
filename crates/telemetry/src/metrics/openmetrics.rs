//! The metrics page: in the text format of Prometheus (0.0.4), which every scraper reads, and in
//! that of OpenMetrics.

use std::fmt::{self, Write};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use crate::names::{self, Name};

/// The form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFormat {
    /// The text format of Prometheus, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl PageFormat {
    /// The media type of the page.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A page of OpenMetrics in the text format 0.0.4: the same samples, but families have the names of
/// their samples, and there is no type `info`. Nothing here has a unit, an exemplar or a time.
pub(super) fn text_format(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 16);
    let mut help = None;
    for line in page.lines().filter(|line| *line != "# EOF") {
        if let Some(family) = line.strip_prefix("# HELP ") {
            help = family.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = family_type(line) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            let help = help.take().unwrap_or_default();
            // A `String` takes whatever is written to it.
            let _ = writeln!(
                text,
                "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}"
            );
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The page without the empty braces of members that have no label in families where others have.
pub(super) fn without_empty_labels(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        match line.split_once("{} ") {
            // Elsewhere they are part of a label's value, or of a help.
            Some((name, value)) if !name.contains(['{', ' ']) => {
                text.extend([name, " ", value]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

fn family_type(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("# TYPE ")?.split_once(' ')
}

pub(super) fn registered<M: Metric + Clone + Default>(page: &mut Registry, name: Name) -> M {
    let metric = M::default();
    page.register(name.name, name.help, metric.clone());
    metric
}

pub(super) fn build_info(registry: &mut Registry) {
    let info = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register(names::BUILD.name, names::BUILD.help, info);
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SampleKind {
    Counter,
    Gauge,
}

/// Adds a metric whose value is read at each scrape.
pub(super) fn on_collect(
    page: &mut Registry,
    name: Name,
    kind: SampleKind,
    read: impl Fn() -> u64 + Send + Sync + 'static,
) {
    family_on_collect(page, name, kind, move || vec![(Vec::new(), read())]);
}

/// Pairs of label and value. Made at load time or at a scrape, so their allocation does not matter.
pub(super) type Labels = Vec<(&'static str, Arc<str>)>;

/// The labels and the value of one member of a family.
pub(super) type Sample = (Labels, u64);

/// Adds a family whose samples are read at each scrape.
pub(super) fn family_on_collect(
    page: &mut Registry,
    name: Name,
    kind: SampleKind,
    read: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
) {
    page.register_collector(Box::new(OnCollect { name, kind, read }));
}

struct OnCollect<F> {
    name: Name,
    kind: SampleKind,
    read: F,
}

impl<F> fmt::Debug for OnCollect<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnCollect").field(&self.name.name).finish()
    }
}

impl<F: Fn() -> Vec<Sample> + Send + Sync + 'static> Collector for OnCollect<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { name, kind, read } = self;
        let help = format!("{}.", name.help);
        let metric_type = match kind {
            SampleKind::Counter => MetricType::Counter,
            SampleKind::Gauge => MetricType::Gauge,
        };
        let mut family = encoder.encode_descriptor(name.name, &help, None, metric_type)?;
        for (labels, value) in read() {
            let member = family.encode_family(&labels)?;
            match kind {
                SampleKind::Counter => ConstCounter::new(value).encode(member)?,
                SampleKind::Gauge => {
                    let value = i64::try_from(value).unwrap_or(i64::MAX);
                    ConstGauge::new(value).encode(member)?;
                }
            }
        }
        Ok(())
    }
}
