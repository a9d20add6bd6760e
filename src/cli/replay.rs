//! `weir replay` and `weir suggest`.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;
use weir_limit::time::Timestamp;
use weir_replay::{Condition, Format, Options, ReplayError, Report, Sweep};
use weir_telemetry::{printable_json, printable_lines};
use weir_yaml::HumanDuration;

use super::{BAD_CONFIGURATION, suggested};
use crate::app;

/// Which log, and how it is read.
#[derive(Args, Debug)]
pub(super) struct LogArgs {
    /// The files of the access log, packed by gzip or zstd or not, or - for standard input
    #[arg(long = "log", value_name = "FILE", required = true, num_args = 1..)]
    logs: Vec<PathBuf>,

    /// The form of the log, such as combined or haproxy, or a pattern such as '$remote_addr
    /// [$time_local] "$request" $status'. Guessed by its first lines if it is not given
    #[arg(long)]
    format: Option<Format>,

    /// The host that requests were for, if the log does not say it
    #[arg(long, value_name = "NAME")]
    host: Option<HostName>,

    /// The first moment that counts, such as 2026-11-21 or 2026-11-21T14:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<LogTime>,

    /// The first moment that does not count any more
    #[arg(long, value_name = "TIME")]
    to: Option<LogTime>,

    /// The share of a limit's subjects that a suggested definition may deny
    #[arg(long, value_name = "PERCENT", default_value = "1%")]
    target: Share,

    /// How long a line waits for others of requests that came before it
    #[arg(long, value_name = "TIME", default_value = "60s")]
    window: HumanDuration,

    /// How many threads work; as many as there are cores if it is not given
    #[arg(long)]
    threads: Option<NonZeroUsize>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What to replay.
#[derive(Args, Debug)]
pub(super) struct ReplayArgs {
    /// A configuration to compare it with; else what Weir's log says was decided
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,

    #[command(flatten)]
    log: LogArgs,

    /// How many subjects of each limit to list
    #[arg(long, default_value_t = 20)]
    top: usize,

    /// A parameter of a limit to try several values of, such as SearchesPerAddress.burst=10..200
    #[arg(long, value_name = "LIMIT.PARAMETER=VALUES")]
    sweep: Option<Sweep>,

    /// Print a table of comma-separated values, a row for each limit
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Write a page of HTML with plots as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// End with 1 if that is so, such as denied>0.5% or LoginsPerAddress.newly_denied>10
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Condition>,

    /// With --fail-if: the share of the log that no limit may have judged, because it was unreadable,
    /// had no route, or met no limit. If it is more, end with 1
    #[arg(long, value_name = "PERCENT", default_value = "50%")]
    max_unjudged: Share,
}

/// What to suggest limits by.
#[derive(Args, Debug)]
pub(super) struct SuggestArgs {
    #[command(flatten)]
    log: LogArgs,

    /// Write what is suggested: a new configuration where there is none, or else the limits, behind
    /// those of limits/defaults.yaml
    #[arg(long, conflicts_with = "json")]
    write: bool,
}

/// A share, such as 0.5%.
#[derive(Clone, Copy, Debug)]
struct Share(f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|text| text.parse().ok());
        let number = number.filter(|percent| (0.0..=100.0).contains(percent));
        number
            .map(|percent: f64| Self(percent / 100.0))
            .ok_or_else(|| "write a percentage such as 0.5%".to_owned())
    }
}

/// A host as requests name it, perhaps with a port.
#[derive(Clone, Debug)]
struct HostName(String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let authority = text.parse::<http::uri::Authority>().ok();
        let authority = authority.filter(|authority| !authority.as_str().contains('@'));
        authority
            .map(|authority| Self(authority.to_string()))
            .ok_or_else(|| "write a host such as shop.example.com".to_owned())
    }
}

/// A day or a time.
#[derive(Clone, Copy, Debug)]
struct LogTime(Timestamp);

impl FromStr for LogTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let day = || {
            let day: jiff::civil::Date = text.parse().ok()?;
            let start = day.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
            Some(start.timestamp())
        };
        // A date alone is a day, and not its midnight anywhere.
        let time = day().filter(|_| !text.contains('T'));
        let time = time.or_else(|| text.parse::<jiff::Timestamp>().ok());
        let nanos = time.and_then(|time| u64::try_from(time.as_nanosecond()).ok());
        nanos
            .map(|nanos| Self(Timestamp::from_nanos(nanos)))
            .ok_or_else(|| {
                "write a day such as 2026-11-21, or a time such as 2026-11-21T14:00:00Z".to_owned()
            })
    }
}

impl LogArgs {
    fn options(self, config: &Path) -> Options {
        Options {
            config: config.to_owned(),
            baseline: None,
            logs: self.logs,
            format: self.format,
            host: self.host.map(|host| host.0),
            from: self.from.map(|time| time.0),
            to: self.to.map(|time| time.0),
            sweep: None,
            top: 0,
            target: self.target.0,
            window: self.window.0,
            threads: self.threads,
            conditions: Vec::new(),
            is_refused: |head| app::refusal(head).is_some(),
        }
    }
}

impl ReplayArgs {
    fn options(self, config: &Path) -> Options {
        Options {
            baseline: self.baseline,
            sweep: self.sweep,
            top: self.top,
            conditions: self.fail_if,
            ..self.log.options(config)
        }
    }
}

/// Suggests limits, and prints or writes them.
pub(super) fn suggest(config: &Path, args: SuggestArgs) -> ExitCode {
    let (is_json, is_written) = (args.log.json, args.write);
    let suggestions = match weir_replay::suggest(&args.log.options(config)) {
        Ok(suggestions) => suggestions,
        Err(error) => return failed(&error),
    };
    if suggestions.requests == 0 {
        complain("failed, as the log has no request to suggest a limit by");
        return ExitCode::FAILURE;
    }
    if is_written {
        return suggested::write(config, &suggestions);
    }
    let mut text = String::new();
    match is_json {
        true => text = json_text(&suggestions),
        // Writing to a `String` never fails.
        false => {
            let _ = weir_replay::write_suggestions(&mut text, &suggestions);
        }
    }
    let _ = writeln!(io::stdout(), "{}", printable_lines(text.trim_end()));
    ExitCode::SUCCESS
}

/// Replays a log and prints what came of it.
pub(super) fn run(config: &Path, args: ReplayArgs) -> ExitCode {
    let (is_json, is_csv) = (args.log.json, args.csv);
    let (page, conditions) = (args.html.clone(), args.fail_if.clone());
    let max_unjudged = args.max_unjudged.0 * 100.0;
    let report = match weir_replay::replay(&args.options(config)) {
        Ok(report) => report,
        Err(error) => return failed(&error),
    };
    let text = match (is_json, is_csv) {
        (true, _) => json_text(&report),
        (_, true) => weir_replay::csv(&report),
        _ => text(&report),
    };
    // A closed stream is not a failure: its reader does not want more.
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
    if let Some(path) = page
        && let Err(error) = fs::write(&path, weir_replay::html(&report))
    {
        complain(&format!("{}: {error}", path.display()));
        return ExitCode::FAILURE;
    }
    judge(&report, &conditions, max_unjudged)
}

/// The exit code by the conditions that must not be met.
fn judge(report: &Report, conditions: &[Condition], max_unjudged: f64) -> ExitCode {
    // A log that was read wrongly, or is that of another day, must not pass for a good one.
    if let Some(why) = report.too_little(conditions, max_unjudged) {
        complain(&format!("failed, as {why}"));
        return ExitCode::FAILURE;
    }
    let mut code = ExitCode::SUCCESS;
    for condition in conditions {
        match condition.met_by(report) {
            Ok(None) => {}
            Ok(Some(is)) => {
                complain(&format!("failed, as {is}"));
                code = ExitCode::FAILURE;
            }
            Err(error) => {
                complain(&error);
                return ExitCode::from(BAD_CONFIGURATION);
            }
        }
    }
    code
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{}", text.trim_end());
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a `String` never fails.
    let _ = weir_replay::write_text(&mut text, report);
    printable_lines(&text).into_owned()
}

fn json_text(report: &impl Serialize) -> String {
    let json = serde_json::to_string_pretty(report).unwrap_or_default();
    printable_json(&json).into_owned()
}

fn failed(error: &ReplayError) -> ExitCode {
    complain(&error.to_string());
    match error {
        ReplayError::Configuration(_) | ReplayError::Usage(_) => ExitCode::from(BAD_CONFIGURATION),
        _ => ExitCode::FAILURE,
    }
}
