//! The command line: `weir run`, `weir check`, `weir explain`, `weir replay`, `weir suggest`, and
//! those that ask a gateway that runs.
//!
//! Exit codes are 0 when all is fine, 2 for bad usage or a bad configuration, and 1 for anything
//! else.

mod admin;
mod findings;
mod live_top;
mod replay;
mod tables;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use weir_config::{Diagnostics, Settings, StoreSettings, pluralized};

use self::admin::{BanCommand, BucketCommand, OverrideCommand, TopArgs};
use self::replay::{LogArgs, ReplayArgs};
use crate::app::{self, AdminError, RunError};

/// The exit code for bad usage and bad configurations.
pub const BAD_CONFIGURATION: u8 = 2;

/// Weir is a reverse proxy that decides, for every HTTP request, whether its client has sent too
/// much.
#[derive(Debug, Parser)]
#[command(name = "weir", version, max_term_width = 100)]
struct Cli {
    /// The configuration, or - for standard input
    #[arg(
        short,
        long,
        global = true,
        value_name = "FILE",
        default_value = "gateway.yaml"
    )]
    config: PathBuf,

    #[command(flatten)]
    run: RunArgs,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve, which is the default. SIGTERM and SIGINT drain, SIGHUP reloads, SIGUSR2 restarts
    Run(RunArgs),
    /// Read the whole configuration and report every error and everything doubtful
    Check,
    /// Say what would become of a request: its route, its limits and their buckets, and why
    Explain(ExplainArgs),
    /// List the subjects that send most, are denied most, or are nearest to a limit
    Top(TopArgs),
    /// Show, reset or refund the bucket of a subject
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Show, add or lift the ban of a subject
    #[command(subcommand)]
    Ban(BanCommand),
    /// List, set or delete overrides of limits
    #[command(subcommand)]
    Override(OverrideCommand),
    /// Say what the configuration would have decided about the requests of access logs
    Replay(Box<ReplayArgs>),
    /// Suggest limits for routes that have none, by access logs
    Suggest(LogArgs),
}

/// How to serve.
#[derive(Args, Clone, Copy, Debug)]
struct RunArgs {
    /// Take the place of the gateway of the same user that listens there, without losing a
    /// connection
    #[arg(long)]
    takeover: bool,
}

/// The request to explain.
#[derive(Args, Debug)]
struct ExplainArgs {
    /// The method
    #[arg(long, default_value = "GET")]
    method: Method,

    /// The path, with the query if there is one
    #[arg(long, value_parser = app::parse_path)]
    path: Uri,

    /// The address that the connection comes from
    #[arg(long)]
    ip: IpAddr,

    /// The host that is asked
    #[arg(long)]
    host: Option<HeaderValue>,

    /// A header field; may be given several times
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = app::parse_header)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl From<ExplainArgs> for app::Request {
    fn from(args: ExplainArgs) -> Self {
        let mut headers = HeaderMap::new();
        headers.extend(args.host.map(|host| (HOST, host)));
        for (name, value) in args.headers {
            headers.append(name, value);
        }
        Self {
            method: args.method,
            uri: args.path,
            peer: args.ip,
            headers,
        }
    }
}

/// Runs the command with the arguments of the process.
pub fn main() -> ExitCode {
    run_command(std::env::args_os(), app::run)
}

/// The same for other arguments, where `run` serves the configuration at a path.
fn run_command(
    args: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(&Path, bool) -> Result<(), RunError>,
) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match cli.command {
        None => exit_code(run(&cli.config, cli.run.takeover)),
        Some(Command::Run(args)) => exit_code(run(&cli.config, args.takeover || cli.run.takeover)),
        Some(Command::Check) => print(check(&cli.config)),
        Some(Command::Explain(request)) => print(app::explain(&cli.config, &request.into())),
        Some(Command::Top(top)) => print_answer(top_subjects(&top, &cli.config)),
        Some(Command::Bucket(bucket)) => print_answer(bucket.run(&cli.config)),
        Some(Command::Ban(ban)) => print_answer(ban.run(&cli.config)),
        Some(Command::Override(command)) => print_answer(command.run(&cli.config)),
        Some(Command::Replay(args)) => replay::run(&cli.config, *args),
        Some(Command::Suggest(args)) => replay::suggest(&cli.config, args),
    }
}

/// Prints why the gateway failed, if it did.
fn exit_code(result: Result<(), RunError>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    let _ = writeln!(io::stderr(), "{}", error.to_string().trim_end());
    if error.is_configuration() {
        ExitCode::from(BAD_CONFIGURATION)
    } else {
        ExitCode::FAILURE
    }
}

/// Prints a result to standard output, or errors to standard error.
fn print(result: Result<String, Diagnostics>) -> ExitCode {
    // A closed stream is not a failure: its reader does not want more.
    match result {
        Ok(text) => {
            let _ = writeln!(io::stdout(), "{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(found) => {
            let _ = writeln!(io::stderr(), "{found}");
            ExitCode::from(BAD_CONFIGURATION)
        }
    }
}

/// Lists the subjects: once, or on a terminal until it is ended.
fn top_subjects(args: &TopArgs, config: &Path) -> Result<String, AdminError> {
    if !args.may_be_live() || !live_top::is_possible() {
        return args.run(config);
    }
    let (client, query) = args.live(config)?;
    live_top::run(client, query).map(|()| String::new())
}

/// Prints what a gateway answers.
fn print_answer(result: Result<String, AdminError>) -> ExitCode {
    match result {
        Ok(text) => print(Ok(text)),
        Err(AdminError::Configuration(found)) => print(Err(found)),
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Help and version are errors to clap, but not to the caller.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if let Some(tip) = configuration_tip(error) {
        let _ = writeln!(io::stderr(), "\n  {tip}");
    }
    if error.use_stderr() {
        ExitCode::from(BAD_CONFIGURATION)
    } else {
        ExitCode::SUCCESS
    }
}

/// Help with the name of a file where no argument is expected.
fn configuration_tip(error: &clap::Error) -> Option<String> {
    match (error.kind(), error.get(ContextKind::InvalidArg)?) {
        (ErrorKind::UnknownArgument, ContextValue::String(word))
            if [".yaml", ".yml"].iter().any(|end| word.ends_with(end)) =>
        {
            Some(format!("tip: name a configuration with '--config {word}'"))
        }
        _ => None,
    }
}

/// Checks the configuration at `path`: a summary, or all errors.
fn check(path: &Path) -> Result<String, Diagnostics> {
    let settings = weir_config::check(path)?;
    let loaded = format!(
        "{}: {}",
        weir_config::display_name(path),
        summary(&settings)
    );
    let mut bounds = prefetch_bounds(&settings);
    if let Some(warning) = app::too_many_servers(&settings) {
        bounds.push_str("\nwarning: ");
        bounds.push_str(&warning);
    }
    if settings.warnings.is_empty() {
        Ok(format!("{loaded}; configuration OK{bounds}"))
    } else {
        Ok(format!("{}\n{loaded}{bounds}", settings.warnings))
    }
}

/// A line for each limit of which units are prefetched: how far it may be off.
fn prefetch_bounds(settings: &Settings) -> String {
    if !settings.process.store.is_shared() {
        return String::new();
    }
    let limits = settings.limits().into_iter();
    let lines = limits.filter_map(|limit| {
        let (name, units) = (limit.name(), weir_config::prefetched_units(limit)?);
        Some(format!(
            "\n{name}: prefetched; N gateways admit at most N x {units} units beyond the limit, per bucket"
        ))
    });
    lines.collect()
}

/// A summary of the configuration in one line.
fn summary(settings: &Settings) -> String {
    let limits = settings.limits();
    let overrides = limits.iter().map(|limit| limit.overrides().count()).sum();
    let store = match &settings.process.store {
        StoreSettings::Memory(_) => "the memory store".to_owned(),
        StoreSettings::Redis(store) => store.redis.to_string(),
    };
    format!(
        "{}, {}, {} in use with {}, {store}",
        pluralized(settings.routes.len(), "route"),
        pluralized(settings.upstreams.len(), "upstream"),
        pluralized(limits.len(), "limit"),
        pluralized(overrides, "overridden id"),
    )
}
