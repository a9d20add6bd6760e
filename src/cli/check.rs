//! `weir check`: a configuration, and the report in one of several forms.

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use weir_telemetry::printable_json;

use super::admin::admin_token;
use super::checked::Checked;
use super::report;
use crate::app::{AdminClient, AdminError, LiveCheck};

/// Which configuration to check, and how to report what is found.
#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// The configuration, in place of --config
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,

    /// The form of the report
    #[arg(long, value_enum, default_value_t)]
    format: ReportFormat,

    /// End with 1 if there are warnings, or, with --against, if somebody would be over a limit
    #[arg(long)]
    strict: bool,

    /// The admin listener of a gateway that runs, such as http://127.0.0.1:9901: say whom the
    /// configuration would put over a limit, of those that its fleet serves now
    #[arg(long, value_name = "URL", value_parser = admin_address)]
    against: Option<SocketAddr>,

    /// With --against: the file with the admin listener's token, in place of the variable
    /// WEIR_ADMIN_TOKEN
    #[arg(long, value_name = "FILE", requires = "against")]
    token_file: Option<PathBuf>,
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

/// The address of an admin listener, as a URL or alone.
fn admin_address(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("http://").unwrap_or(text);
    let address = address.trim_end_matches('/');
    let found = address.to_socket_addrs().map_err(|error| error.to_string());
    let mut found = found.map_err(|error| format!("{error}; write http://HOST:PORT"))?;
    found
        .next()
        .ok_or_else(|| "the name has no address".to_owned())
}

/// Checks a configuration and prints the report.
pub(super) fn run(config: &Path, args: &CheckArgs) -> ExitCode {
    let path = args.file.as_deref().unwrap_or(config);
    let checked = Checked::read(path);
    let live = args.against.filter(|_| checked.summary.is_some());
    let live = live.map(|address| live_check(path, address, args.token_file.as_deref()));
    let live = match live.transpose() {
        Ok(live) => live,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            return ExitCode::FAILURE;
        }
    };
    // A closed stream is not a failure: its reader does not want more.
    let _ = match args.format {
        ReportFormat::Text => {
            checked.print();
            let text = live.as_ref().map(report::live_text).unwrap_or_default();
            write!(io::stdout(), "{text}")
        }
        ReportFormat::Json => {
            let json = format!("{:#}", report::json(&checked, live.as_ref()));
            writeln!(io::stdout(), "{}", printable_json(&json))
        }
        ReportFormat::Github => writeln!(io::stdout(), "{}", report::github(&checked)),
        ReportFormat::Sarif => writeln!(io::stdout(), "{:#}", report::sarif(&checked)),
    };
    match live {
        Some(live) if args.strict && live.is_anybody_over() => ExitCode::FAILURE,
        _ => checked.exit_code(args.strict),
    }
}

fn live_check(
    path: &Path,
    address: SocketAddr,
    token_file: Option<&Path>,
) -> Result<LiveCheck, AdminError> {
    let client = AdminClient::new(path, Some(address), admin_token(token_file)?)?;
    let settings = weir_config::check(path).map_err(AdminError::Configuration)?;
    LiveCheck::run(&settings, &client)
}
