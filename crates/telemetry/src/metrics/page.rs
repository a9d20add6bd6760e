//! The metrics on the page, each described where it is counted. A feature that counts something
//! asks for its metrics by their names, and no list of metrics knows what they are.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric, family};
use prometheus_client::registry::{Metric, Registry};

use crate::names;

/// The name of a metric, which is in the list of all names, and the help that the page has for it.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    name: &'static str,
    help: &'static str,
}

impl Name {
    /// `name` is without the suffix that the exposition format adds.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help }
    }
}

/// Pairs of label and value. Made at load time or at a scrape, so their allocation does not matter.
pub(super) type Labels = Vec<(&'static str, Arc<str>)>;

/// The metrics of a name, told apart by their labels. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Family<M>(family::Family<Labels, M>);

impl<M: Clone + Default> Family<M> {
    /// The member with these labels; the same for the same ones. It is on the page from now on.
    pub fn member<const N: usize>(&self, labels: [(&'static str, &str); N]) -> M {
        let labels = labels.map(|(label, value)| (label, Arc::from(value)));
        self.member_of(&labels.into())
    }

    pub(super) fn member_of(&self, labels: &Labels) -> M {
        self.0.get_or_create_owned(labels)
    }

    /// Shows nothing more of the member with these labels.
    pub fn remove<const N: usize>(&self, labels: [(&'static str, &str); N]) {
        let labels = labels.map(|(label, value)| (label, Arc::from(value)));
        self.0.remove(&labels.into());
    }

    /// Shows nothing more of all its members.
    pub(super) fn clear(&self) {
        self.0.clear();
    }
}

impl<M: EncodeMetric + TypedMetric> EncodeMetric for Family<M> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    /// One without members is not on the page.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What the page shows: in the order of [`names::PAGE`], and then what is read at each scrape.
#[derive(Debug, Default)]
pub(super) struct Page(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    /// Among the names of the page.
    place: usize,
    name: &'static str,
    /// Itself, for whoever asks for it again.
    metric: Box<dyn Any + Send>,
    /// Has nothing else.
    registry: Registry,
}

impl Page {
    /// The metric of this name, the same for all who ask for it. It is on the page from now on.
    pub(super) fn metric<M: Metric + Clone + Default>(&self, name: Name) -> M {
        let mut entries = self.0.lock();
        let mut known = entries.iter().filter(|entry| entry.name == name.name);
        if let Some(known) = known.find_map(|entry| entry.metric.downcast_ref::<M>()) {
            return known.clone();
        }
        let metric = M::default();
        let mut registry = Registry::default();
        registry.register(name.name, name.help, metric.clone());
        insert(&mut entries, (place(name), name), metric.clone(), registry);
        metric
    }

    /// Adds a metric that never changes.
    pub(super) fn constant(&self, name: Name, metric: impl Metric) {
        let mut registry = Registry::default();
        registry.register(name.name, name.help, metric);
        insert(&mut self.0.lock(), (place(name), name), (), registry);
    }

    /// Adds a metric whose value is read at each scrape.
    pub(super) fn on_collect(
        &self,
        name: Name,
        kind: SampleKind,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.family_on_collect(name, kind, move || vec![(Vec::new(), read())]);
    }

    /// Adds a family whose samples are read at each scrape. Such families are the last, in the order
    /// in which they are added.
    pub(super) fn family_on_collect(
        &self,
        name: Name,
        kind: SampleKind,
        read: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
    ) {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(OnCollect { name, kind, read }));
        insert(&mut self.0.lock(), (usize::MAX, name), (), registry);
    }

    /// Writes it in the form of OpenMetrics.
    pub(super) fn encode(&self) -> Result<String, fmt::Error> {
        let mut page = String::with_capacity(8 * 1024);
        for entry in &*self.0.lock() {
            encode_registry(&mut page, &entry.registry)?;
        }
        encode_eof(&mut page)?;
        Ok(page)
    }
}

/// That of a name which is not listed would be behind all that are.
fn place(name: Name) -> usize {
    let mut listed = names::PAGE.iter();
    let place = listed.position(|listed| *listed == name.name);
    place.unwrap_or(names::PAGE.len())
}

fn insert(
    entries: &mut Vec<Entry>,
    (place, name): (usize, Name),
    metric: impl Any + Send,
    registry: Registry,
) {
    let index = entries.partition_point(|entry| entry.place <= place);
    let metric = Box::new(metric);
    let entry = Entry {
        place,
        name: name.name,
        metric,
        registry,
    };
    entries.insert(index, entry);
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SampleKind {
    Counter,
    Gauge,
}

/// The labels and the value of one member of a family.
pub(super) type Sample = (Labels, u64);

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
