//! The set-up of logs.
//!
//! Logs are the gateway's output and go to standard output, as container platforms and systemd
//! expect; standard error is left to messages of the command itself (usage, a configuration that
//! is refused). The form is text on a terminal and JSON, one object a line, otherwise; lines of the
//! access log may have a template of their own.
//!
//! A thread of its own writes them. Should the reader be too slow, lines are dropped and counted
//! rather than requests held up.

#![forbid(unsafe_code)]

mod access;
mod filter;
mod format;
mod json;
mod sleeper;
mod template;
#[cfg(test)]
mod tests;
mod writer;

use std::io::{self, IsTerminal};
use std::panic;

use thiserror::Error;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use weir_telemetry::audit::AUDIT_TARGET;
use weir_telemetry::log_requests_to;

use self::access::AccessForm;
use self::filter::SharedFilter;
pub use self::filter::{LevelInForce, LogLevel};
use self::format::TextFormatter;
use self::json::JsonFormatter;
pub use self::template::{Template, TemplateError};
use self::writer::LogWriter;

/// The words that may be a whole filter.
const LEVELS: &str = "error, warn, info, debug, trace or off";

/// The settings of logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The form of a line.
    pub format: LogFormat,
    /// The filter of events, as of tracing: `info`, `warn,weir::proxy=debug`, ...
    pub level: String,
    /// Whether there is an access log line per request.
    pub access: bool,
    /// The form of that line, if it is another.
    pub access_format: Option<Template>,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            format: LogFormat::Auto,
            level: "info".to_owned(),
            access: true,
            access_format: None,
        }
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text when standard output is a terminal, JSON otherwise.
    #[default]
    Auto,
    /// One aligned line for people.
    Text,
    /// One JSON object a line for machines.
    Json,
}

/// Why logs could not be set up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The filter is not one.
    #[error("log level {level:?}: {cause}")]
    Level {
        /// The filter as written.
        level: String,
        /// The error of the parser.
        cause: tracing_subscriber::filter::ParseError,
    },
    /// A word in the filter would be taken for the name of a module, and silence all others.
    #[error("log level {level:?}: {word:?} is not a level; write {LEVELS}, or MODULE=LEVEL")]
    Word {
        /// The filter as written.
        level: String,
        /// The word that is not a level.
        word: String,
    },
    /// Logs were set up already.
    #[error("logs are set up already")]
    Again,
    /// The thread that writes them does not start.
    #[error("the thread that writes logs does not start: {0}")]
    Thread(#[from] io::Error),
}

/// Writes out the lines that wait when it is dropped; held until the process ends.
#[derive(Debug)]
#[must_use = "lines that wait are lost unless this is held until the end"]
pub struct LogGuard {
    level: LogLevel,
    writer: LogWriter,
}

impl LogGuard {
    /// A closure that returns how many lines were dropped so far.
    pub fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let writer = self.writer.clone();
        move || writer.dropped()
    }

    /// Changes the level while the process runs.
    pub fn level(&self) -> LogLevel {
        self.level.clone()
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.writer.close();
    }
}

impl LogSettings {
    /// Whether the settings can be used; for `weir check`.
    ///
    /// # Errors
    /// When `level` is not a filter.
    pub fn check(&self) -> Result<(), LogError> {
        self.filter().map(drop)?;
        match self
            .level
            .split(',')
            .map(str::trim)
            .find(|word| is_word(word))
        {
            None => Ok(()),
            Some(word) => Err(LogError::Word {
                level: self.level.clone(),
                word: word.to_owned(),
            }),
        }
    }

    fn filter(&self) -> Result<EnvFilter, LogError> {
        // What comes last wins over the level: who changed what must not depend on how much else is
        // logged.
        let directives = format!("{},{AUDIT_TARGET}=info", self.level);
        EnvFilter::try_new(directives).map_err(|cause| LogError::Level {
            level: self.level.clone(),
            cause,
        })
    }

    fn is_text(&self) -> bool {
        match self.format {
            LogFormat::Auto => io::stdout().is_terminal(),
            LogFormat::Text => true,
            LogFormat::Json => false,
        }
    }
}

/// Sets up logs for the whole process, and logs panics too.
///
/// # Errors
/// When the filter is not one, or logs were set up already.
pub fn install(settings: &LogSettings) -> Result<LogGuard, LogError> {
    let (level, filter) = LogLevel::new(settings)?;
    let writer = LogWriter::start(io::stdout())?;
    let is_text = settings.is_text();
    let subscriber = subscriber(is_text, filter, writer.clone());
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Again)?;
    if settings.access {
        let form = AccessForm::new(settings.access_format.clone(), is_text);
        let writer = writer.clone();
        log_requests_to(move |request| form.with_line(request, |line| writer.write_line(line)));
    }
    log_panics();
    Ok(LogGuard { level, writer })
}

/// The level of a log that is set up elsewhere.
///
/// # Errors
/// When the filter is not one.
pub fn log_level(settings: &LogSettings) -> Result<LogLevel, LogError> {
    Ok(LogLevel::new(settings)?.0)
}

/// Whether a part of a filter is a bare word and not a level. A module's name has colons.
fn is_word(part: &str) -> bool {
    !part.is_empty()
        && part
            .chars()
            .all(|character| character.is_alphanumeric() || character == '_')
        && part.parse::<LevelFilter>().is_err()
}

fn subscriber<W>(
    is_text: bool,
    filter: SharedFilter,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let registry = tracing_subscriber::registry();
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    match is_text {
        true => Box::new(
            registry
                .with(lines.event_format(TextFormatter::for_stdout()))
                .with(filter),
        ),
        false => Box::new(
            registry
                .with(lines.event_format(JsonFormatter))
                .with(filter),
        ),
    }
}

/// Panics of a connection's task are caught by the runtime; without this they would go unnoticed.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(tracing::field::display);
        let payload = panic.payload_as_str().unwrap_or("?");
        tracing::error!(target: "weir::telemetry::logging", place, "panic: {payload}");
    }));
}
