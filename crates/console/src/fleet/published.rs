//! The forms in which gateways tell each other of themselves, as JSON in Redis: an entry in the
//! list of gateways, the figures of each, and the limits of each configuration.
//!
//! Another version may publish other forms. They are told apart by `form`, and what has another one
//! is not read.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_telemetry::{Period, SubjectActivity};

/// The number of the forms of this version.
const FORM: u32 = 1;

/// How often a gateway publishes its figures.
pub const INTERVAL: Duration = Duration::from_secs(2);

/// How long figures are kept: beyond that, those of a gateway that is gone say nothing of now.
pub const FIGURES_KEPT: Duration = Duration::from_secs(10);

/// How long a gateway that is gone is listed.
pub const ENTRY_KEPT: Duration = Duration::from_secs(300);

/// How often the limits of a configuration are published.
pub const LIMITS_INTERVAL: Duration = Duration::from_secs(60);

/// How long the limits of a configuration are kept.
pub const LIMITS_KEPT: Duration = Duration::from_secs(300);

/// Upper bound on the bytes of the limits of a configuration. Above it, the limits are not known to
/// other gateways.
pub const MAX_LIMITS_BYTES: usize = 256 * 1024;

/// A gateway in the list.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct GatewayEntry {
    form: u32,
    /// Of the process, at random.
    pub id: String,
    /// Of the machine.
    pub name: String,
    /// Of the admin listener, or of the first listener for clients.
    pub address: String,
    /// Of Weir.
    pub version: String,
    /// The digest of the configuration.
    pub configuration: String,
    /// The fingerprint of its `hash_key`; none without one, or from an earlier version.
    #[serde(default)]
    pub hash_key: Option<String>,
    /// When it started, in seconds since the Unix epoch.
    pub since: u64,
    /// Whether it shares its figures.
    pub figures: FiguresState,
}

/// Whether the figures of a gateway are known.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FiguresState {
    /// They are counted in the fleet.
    Shared,
    /// The Redis user of that gateway has no right to share them.
    Forbidden,
    /// They have the form of another version.
    AnotherVersion,
    /// They are over, or cannot be read.
    Missing,
}

impl GatewayEntry {
    /// A gateway of this version whose configuration is not known yet.
    pub fn new(id: &str, name: &str, address: &str, since: u64) -> Self {
        Self {
            form: FORM,
            id: id.to_owned(),
            name: name.to_owned(),
            address: address.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: String::new(),
            hash_key: None,
            since,
            figures: FiguresState::Shared,
        }
    }

    /// Reads an entry. Of another form, it has what can be read; none if there is no id.
    pub fn parse(text: &str) -> Option<Self> {
        let entry: Value = serde_json::from_str(text).ok()?;
        if has_known_form(&entry) {
            return serde_json::from_value(entry).ok();
        }
        let text = |name: &str| entry.get(name)?.as_str().map(str::to_owned);
        Some(Self {
            form: 0,
            id: text("id")?,
            name: text("name").unwrap_or_default(),
            address: text("address").unwrap_or_default(),
            version: text("version").unwrap_or_default(),
            configuration: text("configuration").unwrap_or_default(),
            hash_key: None,
            since: entry
                .get("since")
                .and_then(Value::as_u64)
                .unwrap_or_default(),
            figures: FiguresState::AnotherVersion,
        })
    }

    /// As it is published.
    pub fn text(&self) -> String {
        json(self)
    }
}

fn has_known_form(published: &Value) -> bool {
    published.get("form").is_some_and(|form| *form == FORM)
}

/// The name of a gateway's figures in the store.
pub fn figures_name(id: &str) -> String {
    format!("gateway:{id}")
}

/// The name of a configuration's limits in the store.
pub fn limits_name(digest: &str) -> String {
    format!("configuration:{digest}")
}

/// What a gateway has counted, and what needs attention there.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Figures {
    /// The number of the form in which they are written.
    pub form: u32,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Open connections of clients.
    pub connections: u64,
    /// Requests that were let through in the last minute.
    pub requests: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Requests that were not let through in the last minute.
    pub denied: u64,
    /// Without an admin listener, subjects are not counted.
    pub counts_subjects: bool,
    /// What needs attention of the gateway itself.
    pub findings: Vec<PublishedFinding>,
    /// Peers that name other clients and are no trusted proxies.
    pub forwarders: Vec<IpAddr>,
    /// What was counted of each limit, by its name.
    pub limits: BTreeMap<String, LimitFigures>,
}

impl Figures {
    /// Figures of this form in which nothing was counted.
    pub fn new() -> Self {
        Self {
            form: FORM,
            ..Self::default()
        }
    }

    /// Reads figures.
    ///
    /// # Errors
    /// When they have another form.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, FiguresState> {
        let another = |_| FiguresState::AnotherVersion;
        let figures: Value = serde_json::from_slice(text.as_ref()).map_err(another)?;
        match has_known_form(&figures) {
            true => serde_json::from_value(figures).map_err(another),
            false => Err(FiguresState::AnotherVersion),
        }
    }

    /// As they are published.
    pub fn text(&self) -> String {
        json(self)
    }
}

/// A finding about a gateway itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PublishedFinding {
    /// The word of its kind.
    pub kind: String,
    /// A sentence about the gateway.
    pub text: String,
    /// None of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What can be done.
    pub remedy: String,
}

/// What a gateway has counted of a limit's subjects.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LimitFigures {
    /// Of the last seconds, of the minute, and of the hour.
    recent: PeriodFigures,
    minute: PeriodFigures,
    hour: PeriodFigures,
    /// Those that are published.
    pub subjects: Vec<SubjectFigures>,
}

/// How complete the counts of a period are.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct PeriodFigures {
    /// Over how many seconds was counted.
    pub seconds: f64,
    /// How many requests may be missing from the count of a subject.
    pub uncounted: u64,
    /// The requests of the heaviest subject that was left out.
    pub left_out: u64,
}

/// A subject, with its counts of the last minute, of the last hour, and of the last seconds.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct SubjectFigures(String, Option<String>, Counts, Counts, Counts);

/// Requests, those of them that were denied, and the most of the burst that was used, in percent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Counts(u64, u64, u8);

impl Counts {
    /// As sketches weigh subjects.
    fn weight(self) -> u64 {
        let Self(requests, denied, _) = self;
        requests.saturating_add(denied.saturating_mul(3))
    }
}

impl SubjectFigures {
    /// The subject with this key, of which nothing was counted.
    pub fn new(key: String) -> Self {
        let none = Counts::default();
        Self(key, None, none, none, none)
    }

    /// Sets its counts of a period.
    pub fn add(&mut self, period: Period, activity: SubjectActivity) {
        let counts = Counts(activity.requests, activity.denied, activity.used_percent);
        self.1 = self.1.take().or(activity.name);
        match period {
            Period::Minute => self.2 = counts,
            Period::Hour => self.3 = counts,
            Period::Recent => self.4 = counts,
        }
    }

    /// Its counts of a period.
    pub fn activity(&self, period: Period) -> SubjectActivity {
        let Counts(requests, denied, used_percent) = self.counts(period);
        SubjectActivity {
            key: self.0.clone(),
            name: self.1.clone(),
            requests,
            denied,
            used_percent,
        }
    }

    /// Its bucket's key.
    pub fn key(&self) -> &str {
        &self.0
    }

    fn counts(&self, period: Period) -> Counts {
        match period {
            Period::Minute => self.2,
            Period::Hour => self.3,
            Period::Recent => self.4,
        }
    }

    fn weight(&self, period: Period) -> u64 {
        self.counts(period).weight()
    }
}

impl LimitFigures {
    /// The figures of a limit: the periods are the last seconds, the minute, and the hour.
    pub fn new([recent, minute, hour]: [PeriodFigures; 3], subjects: Vec<SubjectFigures>) -> Self {
        Self {
            recent,
            minute,
            hour,
            subjects,
        }
    }

    /// How complete the counts of a period are.
    pub fn period(&self, period: Period) -> PeriodFigures {
        match period {
            Period::Recent => self.recent,
            Period::Minute => self.minute,
            Period::Hour => self.hour,
        }
    }

    /// Keeps so many subjects: half of them the heaviest of the minute, the others those of the
    /// hour.
    fn keep(&mut self, count: usize) {
        if self.subjects.len() <= count {
            return;
        }
        let heaviest_first = |subjects: &mut Vec<SubjectFigures>, period| {
            subjects.sort_by_key(|subject| std::cmp::Reverse(subject.weight(period)));
        };
        heaviest_first(&mut self.subjects, Period::Minute);
        let mut others = self.subjects.split_off(count.div_ceil(2));
        heaviest_first(&mut others, Period::Hour);
        let left_out = others.split_off(others.len().min(count / 2));
        self.subjects.extend(others);
        let most = |period| {
            let requests = left_out.iter().map(|subject| subject.counts(period).0);
            requests.max().unwrap_or_default()
        };
        self.recent.left_out = self.recent.left_out.max(most(Period::Recent));
        self.minute.left_out = self.minute.left_out.max(most(Period::Minute));
        self.hour.left_out = self.hour.left_out.max(most(Period::Hour));
    }
}

/// Keeps so many subjects of all limits: what one limit does not need of its share, the others get.
pub fn keep_subjects(limits: &mut BTreeMap<String, LimitFigures>, count: usize) {
    let mut limits: Vec<_> = limits.values_mut().collect();
    limits.sort_by_key(|limit| limit.subjects.len());
    let (mut places, mut left) = (count, limits.len());
    for limit in limits {
        limit.keep(places / left);
        places -= limit.subjects.len();
        left -= 1;
    }
}

/// The limits of a configuration, by their names.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PublishedLimits {
    form: u32,
    /// By their names.
    pub limits: BTreeMap<String, LimitDefinition>,
}

/// A limit as a configuration defines it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LimitDefinition {
    /// In words.
    pub text: String,
    /// What its buckets are for, in words.
    pub per: String,
    /// The name of the algorithm.
    pub algorithm: String,
    /// Units that may pass at once, or the count of a window.
    pub burst: u64,
    /// In how many nanoseconds these come back.
    pub period: u64,
}

impl PublishedLimits {
    /// The limits in the form of this version.
    pub fn new(limits: BTreeMap<String, LimitDefinition>) -> Self {
        Self { form: FORM, limits }
    }

    /// Reads the limits; none of another form.
    pub fn parse(text: impl AsRef<[u8]>) -> Option<Self> {
        let parsed: Self = serde_json::from_slice(text.as_ref()).ok()?;
        (parsed.form == FORM).then_some(parsed)
    }

    /// As they are published.
    pub fn text(&self) -> String {
        json(self)
    }
}

/// The keys of what is published are names of fields and texts, so it can always be written.
fn json(published: &impl Serialize) -> String {
    serde_json::to_string(published).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(key: &str, minute: u64, hour: u64) -> SubjectFigures {
        SubjectFigures(
            key.to_owned(),
            None,
            Counts(minute, 0, 0),
            Counts(hour, 0, 0),
            Counts(minute / 10, 0, 0),
        )
    }

    fn limit(subjects: Vec<SubjectFigures>) -> LimitFigures {
        let period = |seconds| PeriodFigures {
            seconds,
            uncounted: 0,
            left_out: 0,
        };
        LimitFigures::new([period(6.0), period(60.0), period(3600.0)], subjects)
    }

    fn keys(limit: &LimitFigures) -> Vec<&str> {
        let mut keys: Vec<_> = limit.subjects.iter().map(SubjectFigures::key).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_subject_that_is_left_out_never_sent_more_than_is_said() {
        let mut figures = limit(vec![
            subject("a", 50, 50),
            subject("b", 0, 900),
            subject("c", 40, 40),
            subject("d", 1, 100),
        ]);
        figures.keep(2);
        assert_eq!(keys(&figures), ["a", "b"]);
        assert_eq!(figures.period(Period::Minute).left_out, 40);
        assert_eq!(figures.period(Period::Hour).left_out, 100);
        assert_eq!(figures.period(Period::Recent).left_out, 4);
        figures.keep(2);
        assert_eq!(figures.period(Period::Minute).left_out, 40);
    }

    #[test]
    fn a_limit_of_many_subjects_never_crowds_out_one_of_few() {
        let many = |count: u64| {
            let subjects = (0..count).map(|number| subject(&number.to_string(), 1000 + number, 1));
            limit(subjects.collect())
        };
        let mut limits: BTreeMap<String, LimitFigures> = [
            ("few".to_owned(), limit(vec![subject("a", 1, 1)])),
            ("many".to_owned(), many(500)),
            ("more".to_owned(), many(900)),
        ]
        .into();
        keep_subjects(&mut limits, 101);
        let kept: Vec<_> = limits.values().map(|limit| limit.subjects.len()).collect();
        assert_eq!(kept, [1, 50, 50]);
        keep_subjects(&mut limits, 0);
        assert!(limits.values().all(|limit| limit.subjects.is_empty()));
    }

    #[test]
    fn what_another_version_writes_is_never_read_as_if_it_were_known() {
        let entry = GatewayEntry::new("1a", "gw-1", "127.0.0.1:9901", 7);
        assert_eq!(GatewayEntry::parse(&entry.text()), Some(entry.clone()));
        let other = entry.text().replace("\"form\":1", "\"form\":2");
        let read = GatewayEntry::parse(&other).unwrap();
        assert_eq!(
            (&*read.id, &*read.name, read.figures),
            ("1a", "gw-1", FiguresState::AnotherVersion)
        );
        assert!(GatewayEntry::parse("{\"form\":2,\"id\":[\"1a\"],\"new\":true}").is_none());
        assert!(GatewayEntry::parse("nonsense").is_none());
        let figures = Figures::new();
        assert_eq!(Figures::parse(figures.text()), Ok(figures.clone()));
        for other in [
            figures.text().replace("\"form\":1", "\"form\":2"),
            figures.text().replace("\"limits\":{}", "\"limits\":[]"),
            String::new(),
        ] {
            assert_eq!(Figures::parse(&other), Err(FiguresState::AnotherVersion));
        }
        assert!(PublishedLimits::parse("{\"form\":2,\"limits\":{}}").is_none());
    }
}
