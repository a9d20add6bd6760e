//! The command line: `weir run`, those that read or write a configuration, those that read logs, and
//! those that ask a gateway that runs.
//!
//! Exit codes are 0 when all is fine, 2 for bad usage or a bad configuration, and 1 for anything
//! else; `weir health` ends with 1 for a bad configuration as well, and `weir import` with 3 where a
//! translation lacks something.

mod admin;
mod ban;
mod check;
mod checked;
mod excerpt;
mod findings;
mod import;
mod init;
mod live_top;
mod new_files;
mod replay;
mod report;
mod shell;
mod suggested;
mod tables;
#[cfg(test)]
mod tests;
mod version;
mod wrap;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Uri};

use self::admin::{BucketCommand, GatewaysArgs, HealthArgs, OverrideCommand, TopArgs};
use self::ban::BanCommand;
use self::check::CheckArgs;
use self::import::ImportArgs;
use self::init::InitArgs;
use self::replay::{ReplayArgs, SuggestArgs};
use self::shell::{CompletionsArgs, ManArgs, SchemaArgs};
use weir_yaml::Diagnostics;

use crate::app::{self, AdminError, RunError};

/// The exit code for bad usage and bad configurations.
pub const BAD_CONFIGURATION: u8 = 2;

/// Weir is a reverse proxy that decides, for every HTTP request, whether its client has sent too
/// much.
#[derive(Debug, Parser)]
#[command(name = "weir", version, long_version = version::long(), max_term_width = 100)]
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
    /// Write a configuration to begin with, from flags or three questions
    Init(InitArgs),
    /// Translate the configuration of nginx, or HTTPRoutes of Kubernetes, and list the differences
    Import(ImportArgs),
    /// Read the whole configuration and report every error and everything doubtful
    Check(CheckArgs),
    /// Say what would become of a request: its route, its limits and their buckets, and why
    Explain(ExplainArgs),
    /// List the subjects that send most, are denied most, or are nearest to a limit
    Top(TopArgs),
    /// List the gateways that share the Redis, and how their configurations differ
    Gateways(GatewaysArgs),
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
    Suggest(Box<SuggestArgs>),
    /// End with 0 if the gateway that runs is alive, and with 1 if not
    Health(HealthArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print or write the man pages
    Man(ManArgs),
    /// Print the JSON Schema by which editors complete a file
    Schema(SchemaArgs),
}

/// How to serve.
#[derive(Args, Clone, Copy, Debug)]
struct RunArgs {
    /// Take the place of the gateway of the same user that listens there, without losing a
    /// connection
    #[arg(long)]
    takeover: bool,
}

/// The request to explain, or the descriptor.
#[derive(Args, Debug)]
#[command(
    override_usage = "weir explain [OPTIONS] --path <PATH> --ip <IP>\n       \
                            weir explain [OPTIONS] --domain <DOMAIN> --entry <KEY=VALUE>"
)]
struct ExplainArgs {
    /// The method
    #[arg(long, default_value = "GET")]
    method: Method,

    /// The path, with the query if there is one
    #[arg(long, value_parser = app::parse_path, required_unless_present = "domain")]
    path: Option<Uri>,

    /// The address that the connection comes from
    #[arg(long, required_unless_present = "domain")]
    ip: Option<IpAddr>,

    /// The host that is asked
    #[arg(long)]
    host: Option<HeaderValue>,

    /// A header field; may be given several times
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = app::parse_header)]
    headers: Vec<(HeaderName, HeaderValue)>,

    /// In place of a request: the domain of a descriptor that Envoy sends
    #[arg(long, requires = "entries", conflicts_with_all = ["path", "ip"])]
    domain: Option<String>,

    /// An entry of the descriptor; may be given several times
    #[arg(
        long = "entry",
        value_name = "KEY=VALUE",
        value_parser = app::parse_entry,
        requires = "domain"
    )]
    entries: Vec<(String, String)>,
}

impl ExplainArgs {
    fn explain(self, config: &Path) -> Result<String, Diagnostics> {
        match self.domain {
            Some(domain) => {
                let entries = self.entries;
                app::explain_descriptor(config, &app::Descriptor { domain, entries })
            }
            None => {
                let peer = self.ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
                app::explain(config, (&self.request(), peer))
            }
        }
    }

    fn request(self) -> Parts {
        let mut headers = HeaderMap::new();
        headers.extend(self.host.map(|host| (HOST, host)));
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        app::request_head(self.method, self.path.unwrap_or_default(), headers)
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
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let config = &cli.config;
    match cli.command {
        None => exit_code(run(config, cli.run.takeover)),
        Some(Command::Run(args)) => exit_code(run(config, args.takeover || cli.run.takeover)),
        Some(Command::Init(args)) => init::run(config, args),
        Some(Command::Import(args)) => import::run(config, &args),
        Some(Command::Check(args)) => check::run(config, &args),
        Some(Command::Explain(args)) => print(args.explain(config)),
        Some(Command::Top(top)) => print_answer(top_subjects(&top, config)),
        Some(Command::Gateways(gateways)) => print_answer(gateways.run(config)),
        Some(Command::Bucket(bucket)) => print_answer(bucket.run(config)),
        Some(Command::Ban(ban)) => print_answer(ban.run(config)),
        Some(Command::Override(command)) => print_answer(command.run(config)),
        Some(Command::Replay(args)) => replay::run(config, *args),
        Some(Command::Suggest(args)) => replay::suggest(config, *args),
        Some(Command::Health(args)) => print_health(args.run(config)),
        Some(Command::Completions(args)) => shell::print_completions(&args),
        Some(Command::Man(args)) => shell::write_man(&args),
        Some(Command::Schema(args)) => shell::print_schema(&args),
    }
}

/// The arguments. Clap itself finds two configurations only if `--config` follows `check`.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let cli = Cli::from_arg_matches(&matches)?;
    let is_named = matches.value_source("config") == Some(ValueSource::CommandLine);
    match &cli.command {
        Some(Command::Check(check)) if is_named && check.names_file() => {
            let message = "the argument '[FILE]' cannot be used with '--config <FILE>'";
            Err(Cli::command().error(ErrorKind::ArgumentConflict, message))
        }
        _ => Ok(cli),
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
            let text = match io::stderr().is_terminal() {
                true => excerpt::with_excerpts(&found),
                false => found.to_string(),
            };
            let _ = writeln!(io::stderr(), "{text}");
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
        Err(AdminError::Configuration(found)) => {
            let code = print(Err(found));
            let tip = "tip: '--admin ADDRESS' asks a gateway without its configuration";
            let _ = writeln!(io::stderr(), "\n  {tip}");
            code
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints whether a gateway is healthy. It is not if its configuration cannot be read: Docker knows
/// 0 and 1 of health checks, and reserves 2.
fn print_health(result: Result<String, AdminError>) -> ExitCode {
    match print_answer(result) == ExitCode::SUCCESS {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Help and version are errors to clap, but not to the caller.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if let Some(tip) = usage_tip(error) {
        let _ = writeln!(io::stderr(), "\n  {tip}");
    }
    if error.use_stderr() {
        ExitCode::from(BAD_CONFIGURATION)
    } else {
        ExitCode::SUCCESS
    }
}

/// Help with what is given in a place, or left out, as people guess it.
fn usage_tip(error: &clap::Error) -> Option<String> {
    let context = error.get(ContextKind::InvalidArg)?;
    match (error.kind(), context) {
        (ErrorKind::UnknownArgument, ContextValue::String(word)) => {
            let is_file = [".yaml", ".yml"].iter().any(|end| word.ends_with(end));
            let rate = word.parse::<init::Rate>();
            match word {
                _ if is_file => Some(format!("tip: name a configuration with '--config {word}'")),
                _ if word.starts_with('/') => {
                    Some(format!("tip: name a path with '--path {word}'"))
                }
                _ if word.parse::<IpAddr>().is_ok() => {
                    Some(format!("tip: name an address with '--ip {word}'"))
                }
                _ => Some(format!("tip: write a rate as '{}'", rate.ok()?.options())),
            }
        }
        (ErrorKind::MissingRequiredArgument, ContextValue::Strings(missing)) => {
            let lacks_ip = missing.iter().any(|argument| argument.starts_with("--ip"));
            let tip =
                "tip: the address of the client whose request is explained: '--ip 203.0.113.9'";
            lacks_ip.then(|| tip.to_owned())
        }
        _ => None,
    }
}
