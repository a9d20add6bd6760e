//! `weir check`: a configuration, and the report in one of several forms.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::checked::Checked;
use super::report;

/// Which configuration to check, and how to report what is found.
#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// The configuration, in place of --config
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,

    /// The form of the report
    #[arg(long, value_enum, default_value_t)]
    format: ReportFormat,

    /// End with 1 if there are warnings
    #[arg(long)]
    strict: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// For people; on a terminal with the line that each message is about
    #[default]
    Text,
    /// One JSON object
    Json,
    /// Annotations of a workflow on GitHub
    Github,
    /// A SARIF 2.1.0 log, as code scanners write it
    Sarif,
}

impl CheckArgs {
    /// Whether there is a configuration in place of that of `--config`.
    pub(super) fn names_file(&self) -> bool {
        self.file.is_some()
    }
}

/// Checks a configuration and prints the report.
pub(super) fn run(config: &Path, args: &CheckArgs) -> ExitCode {
    let checked = Checked::read(args.file.as_deref().unwrap_or(config));
    let text = match args.format {
        ReportFormat::Text => {
            checked.print();
            return checked.exit_code(args.strict);
        }
        ReportFormat::Json => format!("{:#}", report::json(&checked)),
        ReportFormat::Github => report::github(&checked),
        ReportFormat::Sarif => format!("{:#}", report::sarif(&checked)),
    };
    // A closed stream is not a failure: its reader does not want more.
    let _ = writeln!(io::stdout(), "{text}");
    checked.exit_code(args.strict)
}
