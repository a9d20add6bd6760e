//! `weir replay`: what a configuration would have decided about the requests of access logs.
//!
//! It uses the rules, the limits' layer and the memory store of the gateway, by a clock that is set
//! to the time of each line. `pipeline` reads, parses and replays on all cores; `report` tells what
//! came of it.

#![forbid(unsafe_code)]

mod format;
mod input;
mod need;
mod pipeline;
mod replayer;
mod report;
mod ruleset;
mod suggest;
mod tally;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use http::request::Parts;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::runtime;

#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub use self::format::fuzz_log;
use self::format::{DetailSet, Names};
pub use self::format::{Format, forms_table};
use self::input::{Input, InputError, Reading};
use self::need::Rate;
use self::pipeline::{Partition, Pipeline, WaitingBytes, Window};
use self::replayer::Replayer;
use self::report::ReportInput;
pub use self::report::{Condition, Report, csv, html, write_text};
use self::ruleset::{LogFields, Partitioning, Ruleset, needs};
pub use self::suggest::{Suggestions, suggest, write_suggestions};
use weir_limit::time::Timestamp;
use weir_limit::{Algorithm, Quota};
use weir_rules::{HashKey, Limit};
use weir_yaml::{Diagnostics, HumanDuration};

/// The number of partitions, on every machine, where requests can be divided at all.
const PARTITIONS: usize = 64;

/// The bytes of lines that may wait to be put in order, in all partitions together: those of a
/// million lines, or of fewer that are longer.
const MAX_WAITING_BYTES: usize = 160 << 20;

/// What is replayed, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration.
    pub config: PathBuf,
    /// The configuration to compare it with.
    pub baseline: Option<PathBuf>,
    /// The files of the log.
    pub logs: Vec<PathBuf>,
    /// Its form; guessed where there is none.
    pub format: Option<Format>,
    /// The host of requests that the log has none of.
    pub host: Option<String>,
    /// The first moment that counts.
    pub from: Option<Timestamp>,
    /// The first moment after it that does not.
    pub to: Option<Timestamp>,
    /// A parameter of a limit that takes several values.
    pub sweep: Option<Sweep>,
    /// How many subjects of each limit are listed.
    pub top: usize,
    /// The share of a limit's subjects that a suggestion may deny.
    pub target: f64,
    /// How long a line waits for those that belong before it.
    pub window: Duration,
    /// How many threads work; as many as there are cores where there is none.
    pub threads: Option<NonZeroUsize>,
    /// What the replay must not come to.
    pub conditions: Vec<Condition>,
    /// Whether the gateway refuses a request before it asks any limit.
    pub is_refused: fn(&Parts) -> bool,
}

impl Options {
    /// Refuses a span of time that no request can be in.
    fn check(&self) -> Result<(), ReplayError> {
        match (self.from, self.to) {
            (Some(from), Some(to)) if from >= to => Err(ReplayError::Usage(format!(
                "--from {} is not before --to {}, so no request can count",
                shown(from),
                shown(to)
            ))),
            _ => Ok(()),
        }
    }
}

/// Why nothing was replayed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A configuration has errors, all of which the report lists.
    #[error("{0}")]
    Configuration(Diagnostics),
    /// A file cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// What was asked for does not suit the configuration.
    #[error("{0}")]
    Usage(String),
    /// Nothing runs tasks.
    #[error("no runtime: {0}")]
    Runtime(std::io::Error),
}

/// Replays a log.
///
/// # Errors
/// When a configuration is in error, or a file cannot be read.
pub fn replay(options: &Options) -> Result<Report, ReplayError> {
    options.check()?;
    let (mut names, key) = (Names::default(), HashKey::random());
    let read = |path| weir_config::load(path, &key).map_err(ReplayError::Configuration);
    let mut asked = needs(&read(&options.config)?);
    if let Some(baseline) = &options.baseline {
        asked.merge(needs(&read(baseline)?));
    }
    let progress = progress();
    let mut input = Input::open(&options.logs, options.format.clone(), &progress)?;
    let log = LogFields {
        format: input.format(),
        seen: input.look(&asked)?,
        is_host_given: options.host.is_some(),
    };
    let mut load = |path: &PathBuf| {
        Ruleset::load(path, &key, &log, &mut names, |_, _| None).map_err(ReplayError::Configuration)
    };
    let rules = load(&options.config)?;
    for condition in &options.conditions {
        if let Some(limit) = condition.limit().filter(|name| !rules.has_limit(name)) {
            return Err(ReplayError::Usage(format!(
                "--fail-if {condition}: {}",
                rules.lacks(limit)
            )));
        }
    }
    let baseline = options.baseline.as_ref().map(&mut load).transpose()?;
    let variants = match &options.sweep {
        Some(sweep) => variants(options, sweep, &key, &log, &mut names)?,
        None => Vec::new(),
    };
    let job = Job {
        options,
        names: &names,
        rules: &rules,
        baseline: baseline.as_ref(),
        variants: &variants,
    };
    job.run(input, &progress)
}

/// What is replayed, of configurations that are loaded.
struct Job<'j> {
    options: &'j Options,
    names: &'j Names,
    rules: &'j Ruleset,
    baseline: Option<&'j Ruleset>,
    variants: &'j [(SweepValue, Ruleset)],
}

impl Job<'_> {
    fn run(&self, input: Input, progress: &ProgressBar) -> Result<Report, ReplayError> {
        let Self {
            options,
            names,
            rules,
            baseline,
            variants,
        } = *self;
        let (format, is_coarse) = (input.format(), input.is_coarse());
        let all = || [rules].into_iter().chain(baseline);
        let partitioning = all().map(Ruleset::partitioning).reduce(Partitioning::and);
        let partitioning = partitioning.unwrap_or(Partitioning::One);
        let partitions = match partitioning {
            Partitioning::One => 1,
            _ => PARTITIONS,
        };
        let detail_set = all().fold(DetailSet::default(), |detail_set, rules| {
            detail_set.union(rules.detail_set())
        });
        let reading = Reading {
            format: format.clone(),
            names,
            detail_set,
            clients: &rules.settings().client,
            host: options.host.as_deref(),
            from: options.from.unwrap_or_default(),
            to: options.to.unwrap_or(Timestamp::MAX),
            partitioning,
            partitions,
        };
        let table = rules.route_table();
        let baseline_table = baseline.map(Ruleset::route_table).unwrap_or_default();
        let in_all = WaitingBytes::new(MAX_WAITING_BYTES, partitions);
        let partition = |_| {
            let window = Window::new(&in_all, is_coarse);
            let replayer = Replayer::new(rules, names, &table, partitions, true);
            let baseline = baseline
                .map(|rules| Replayer::new(rules, names, &baseline_table, partitions, false));
            let variants = variants
                .iter()
                .map(|(_, rules)| Replayer::new(rules, names, &table, partitions, false));
            Mutex::new(Partition::new(
                window,
                replayer,
                baseline,
                variants.collect(),
                options.is_refused,
            ))
        };
        let runtime = runtime::Builder::new_current_thread()
            .build()
            .map_err(ReplayError::Runtime)?;
        let pipeline = Pipeline {
            reading,
            partitions: (0..partitions).map(partition).collect(),
            threads: threads(options.threads).get(),
            window: options.window.into(),
            runtime: runtime.handle().clone(),
        };
        let replayed = pipeline.run(input)?;
        progress.finish_and_clear();
        Ok(Report::new(ReportInput {
            config: &options.config,
            baseline: options.baseline.as_deref(),
            format: &format,
            rules,
            baseline_rules: baseline,
            names,
            log: replayed.log,
            counted: replayed.counted,
            variants,
            swept: options.sweep.as_ref().map(|sweep| &*sweep.limit),
            top: options.top,
            target: options.target,
            is_coarse,
        }))
    }
}

/// The configuration with each value of a parameter.
fn variants(
    options: &Options,
    sweep: &Sweep,
    key: &HashKey,
    log: &LogFields,
    names: &mut Names,
) -> Result<Vec<(SweepValue, Ruleset)>, ReplayError> {
    let variant = |value: &SweepValue| {
        let change = |limit: &Limit, rate| {
            let is_meant = limit.name() == sweep.limit;
            is_meant.then(|| value.quota(limit, rate)).flatten()
        };
        let rules = Ruleset::load(&options.config, key, log, names, change)
            .map_err(ReplayError::Configuration)?;
        let mut limits = rules.limits().iter();
        let limit = limits.find(|limit| limit.limit.name() == sweep.limit);
        let fits = limit.is_some_and(|limit| value.is_of(&limit.limit));
        let (name, parameter) = (&sweep.limit, value.parameter());
        match fits {
            true => Ok((*value, rules)),
            false if limit.is_none() => Err(ReplayError::Usage(format!(
                "--sweep: {}",
                rules.lacks(name)
            ))),
            false => Err(ReplayError::Usage(format!(
                "--sweep: limit {name} cannot have {parameter} {}",
                value.shown()
            ))),
        }
    };
    sweep.values.iter().map(variant).collect()
}

fn threads(wanted: Option<NonZeroUsize>) -> NonZeroUsize {
    wanted.unwrap_or_else(|| thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// A bar on the terminal; nothing where standard error is not one.
fn progress() -> ProgressBar {
    let progress = ProgressBar::new(0);
    let style =
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} left");
    if let Ok(style) = style {
        progress.set_style(style);
    }
    progress
}

/// A time, to the millisecond.
fn shown(time: Timestamp) -> String {
    let nanos = i128::from(time.as_nanos());
    let time = jiff::Timestamp::from_nanosecond(nanos).unwrap_or_default();
    format!("{time:.3}")
}

/// A part of a whole in percent, to a thousandth.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "it is rounded anyhow")]
    let percent = part as f64 * 100.0 / whole as f64;
    (percent * 1000.0).round() / 1000.0
}

/// How many values of a range are tried.
const STEPS: u64 = 10;

/// The most values of a list.
const MAX_VALUES: usize = 20;

/// A parameter of a limit and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The limit's name.
    pub limit: String,
    /// The values.
    pub values: Vec<SweepValue>,
}

/// One value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepValue {
    /// Of `burst`.
    Burst(u64),
    /// Of `count`.
    Count(u64),
    /// Of `period`.
    Period(Duration),
    /// Of `in_flight`.
    InFlight(u64),
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            "write a limit, a parameter and values, such as SearchesPerAddress.burst=10..200, \
             SearchesPerAddress.count=50,100,200 or SearchesPerAddress.period=10s,1m"
                .to_owned()
        };
        let (parameter, values) = text.split_once('=').ok_or_else(malformed)?;
        let (limit, parameter) = parameter.rsplit_once('.').ok_or_else(malformed)?;
        let value: fn(u64) -> SweepValue = match parameter {
            "burst" => SweepValue::Burst,
            "count" => SweepValue::Count,
            "in_flight" => SweepValue::InFlight,
            "period" => {
                let period = |text: &str| {
                    text.parse()
                        .map(|HumanDuration(period)| SweepValue::Period(period))
                };
                let periods: Result<Vec<_>, _> = values.split(',').map(period).collect();
                let values = periods.map_err(|error| error.to_string())?;
                return Self::new(limit, values).ok_or_else(malformed);
            }
            _ => return Err(malformed()),
        };
        let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number > 0);
        let numbers: Option<Vec<u64>> = match values.split_once("..") {
            Some((from, to)) => number(from)
                .zip(number(to))
                .and_then(|(from, to)| range(from, to)),
            None => values.split(',').map(number).collect(),
        };
        let values = numbers.unwrap_or_default().into_iter().map(value);
        Self::new(limit, values.collect()).ok_or_else(malformed)
    }
}

/// Values from one number to another, both included.
fn range(from: u64, to: u64) -> Option<Vec<u64>> {
    let steps = to.checked_sub(from)?.min(STEPS - 1);
    let value = |step| {
        from + (to - from) / steps.max(1) * step + (to - from) % steps.max(1) * step / steps.max(1)
    };
    Some((0..=steps).map(value).collect())
}

impl Sweep {
    fn new(limit: &str, values: Vec<SweepValue>) -> Option<Self> {
        let is_good = !limit.is_empty() && (1..=MAX_VALUES).contains(&values.len());
        is_good.then(|| Self {
            limit: limit.to_owned(),
            values,
        })
    }
}

impl SweepValue {
    /// The quota of a limit with this value; none if the limit has no such parameter, or not this
    /// value.
    pub fn quota(&self, limit: &Limit, rate: Option<Rate>) -> Option<Quota> {
        let quota = limit.quota()?;
        let own = rate.unwrap_or(Rate {
            count: quota.burst().get(),
            period: quota.tolerance().into(),
        });
        let (burst, rate) = match *self {
            Self::Burst(burst) => (burst, own),
            Self::Count(count) => (quota.burst().get(), Rate { count, ..own }),
            Self::Period(period) => (quota.burst().get(), Rate { period, ..own }),
            Self::InFlight(most) => {
                return quota.is_in_flight().then(|| Quota::in_flight(most).ok())?;
            }
        };
        match quota.algorithm() {
            Algorithm::Gcra => Quota::new(burst, rate.count, rate.period).ok(),
            Algorithm::InFlight => None,
            // A window has no burst beside its count.
            _ if matches!(self, Self::Burst(_)) => None,
            algorithm => Quota::windowed(algorithm, rate.count, rate.period).ok(),
        }
    }

    /// Whether a limit has this value.
    pub fn is_of(&self, limit: &Limit) -> bool {
        let quota = limit.quota();
        quota.is_some_and(|quota| match (*self, quota.algorithm()) {
            (Self::Burst(burst), Algorithm::Gcra) => quota.burst().get() == burst,
            (Self::Count(_) | Self::Period(_), Algorithm::Gcra) => true,
            (Self::InFlight(most), Algorithm::InFlight) => quota.burst().get() == most,
            (Self::Burst(_) | Self::InFlight(_), _) | (_, Algorithm::InFlight) => false,
            (Self::Count(count), _) => quota.burst().get() == count,
            (Self::Period(period), _) => Duration::from(quota.tolerance()) == period,
        })
    }

    /// The parameter's name.
    pub const fn parameter(&self) -> &'static str {
        match self {
            Self::Burst(_) => "burst",
            Self::Count(_) => "count",
            Self::Period(_) => "period",
            Self::InFlight(_) => "in_flight",
        }
    }

    /// The value, as it is written.
    pub fn shown(&self) -> String {
        match self {
            Self::Burst(number) | Self::Count(number) | Self::InFlight(number) => {
                number.to_string()
            }
            Self::Period(period) => HumanDuration(*period).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<String> {
        let sweep: Sweep = text.parse().unwrap();
        sweep.values.iter().map(SweepValue::shown).collect()
    }

    #[test]
    fn a_range_has_both_its_ends_and_steps_between_them() {
        let all = values("L.burst=10..200");
        assert_eq!((all.len(), &*all[0], &*all[9]), (10, "10", "200"));
        assert_eq!(values("L.count=1..3"), ["1", "2", "3"]);
        assert_eq!(values("L.count=7..7"), ["7"]);
        assert_eq!(values("L.period=10s,1m"), ["10s", "1m"]);
        assert_eq!(values("L.in_flight=4"), ["4"]);
    }

    #[test]
    fn anything_else_says_what_to_write() {
        for text in [
            "",
            "L",
            "L.burst",
            "L.burst=",
            "burst=1",
            "L.burst=0",
            "L.burst=2..1",
            "L.cost=1",
            "L.burst=1,x",
        ] {
            let error = text.parse::<Sweep>().unwrap_err();
            assert!(error.contains("burst=10..200"), "{text}: {error}");
        }
        assert!("L.period=5".parse::<Sweep>().is_err());
    }
}
