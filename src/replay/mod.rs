//! `weir replay`: what a configuration would have decided about the requests of access logs.
//!
//! It uses the rules, the limits' layer and the memory store of the gateway, by a clock that is set to
//! the time of each line. `pipeline` reads, parses and replays on all cores; `report` tells what came
//! of it.

mod condition;
mod definition;
mod format;
mod input;
mod line;
mod need;
mod partition;
mod pipeline;
mod reading;
mod replayer;
mod report;
mod ruleset;
mod suggest;
mod sweep;
mod tally;
mod window;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::runtime;

pub use self::condition::Condition;
pub use self::format::Format;
use self::input::{Input, InputError};
use self::line::Names;
use self::partition::Partition;
use self::pipeline::Pipeline;
use self::reading::Reading;
use self::replayer::Replayer;
use self::report::Findings;
pub use self::report::{Report, csv, html, write_text};
use self::ruleset::{Partitioning, Ruleset};
pub use self::suggest::{suggest, write_suggestions};
pub use self::sweep::Sweep;
use self::sweep::SweepValue;
use self::window::Window;
use crate::config::Diagnostics;
use crate::rules::{HashKey, Limit};
use crate::time::Timestamp;

/// The number of partitions, on every machine, where requests can be divided at all.
const PARTITIONS: usize = 64;

/// Lines that may wait to be put in order, in all partitions together.
const MOST_WAITING: usize = 1 << 20;

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
    let (mut names, key) = (Names::default(), HashKey::random());
    let progress = progress();
    let input = Input::open(&options.logs, options.format, &progress)?;
    let format = input.format();
    let mut load = |path: &PathBuf| {
        Ruleset::load(path, &key, format, &mut names, |_, _| None)
            .map_err(ReplayError::Configuration)
    };
    let rules = load(&options.config)?;
    let baseline = options.baseline.as_ref().map(&mut load).transpose()?;
    let variants = match &options.sweep {
        Some(sweep) => variants(options, sweep, &key, format, &mut names)?,
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
    /// Replays the log of an input.
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
        let wants = all().fold(line::Wants::default(), |wants, rules| {
            wants.and(rules.wants())
        });
        let reading = Reading {
            format,
            names,
            wants,
            from: options.from.unwrap_or_default(),
            to: options.to.unwrap_or(Timestamp::MAX),
            partitioning,
            partitions,
        };
        let table = rules.route_table();
        let baseline_table = baseline.map(Ruleset::route_table).unwrap_or_default();
        let partition = |_| {
            let window = Window::new(MOST_WAITING / partitions, is_coarse);
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
        Ok(Report::new(Findings {
            config: &options.config,
            baseline: options.baseline.as_deref(),
            format: format.name(),
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
    format: Format,
    names: &mut Names,
) -> Result<Vec<(SweepValue, Ruleset)>, ReplayError> {
    let variant = |value: &SweepValue| {
        let change = |limit: &Limit, rate| {
            let is_meant = limit.name() == sweep.limit;
            is_meant.then(|| value.quota(limit, rate)).flatten()
        };
        let rules = Ruleset::load(&options.config, key, format, names, change)
            .map_err(ReplayError::Configuration)?;
        let mut limits = rules.limits().iter();
        let limit = limits.find(|limit| limit.limit.name() == sweep.limit);
        let fits = limit.is_some_and(|limit| value.is_of(&limit.limit));
        let (name, parameter) = (&sweep.limit, value.parameter());
        match fits {
            true => Ok((*value, rules)),
            false => Err(ReplayError::Usage(format!(
                "--sweep: no limit {name} is replayed that could have {parameter} {}",
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
