//! The text form of a log line, for people, and what both forms escape.
//!
//! ```text
//! 12:30:05.123 INFO  started listening=127.0.0.1:8080 workers=2
//! 12:30:07.481 INFO  203.0.113.9 POST /login 429 route=login decision=denied limit=LoginsPerAddress
//! ```
//!
//! tracing's own text formatter writes line breaks of a message as they are, so that a client whose
//! text gets into a message could forge a line. Here every character that a terminal obeys or that
//! shows a line as something else is escaped, in both forms.

use std::fmt::{self, Write};
use std::io::{self, IsTerminal};
use std::time::SystemTime;

use tracing::field::{self, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use weir_telemetry::{Field, FieldVisitor, RequestFinished, escape, is_plain};

/// Fields that are written without their names.
const BARE: [&str; 5] = ["message", "client", "method", "path", "status"];

#[derive(Clone, Copy, Debug)]
pub(super) struct TextFormatter {
    colour: bool,
}

impl TextFormatter {
    /// For standard output, in colours if it is a terminal.
    pub(super) fn for_stdout() -> Self {
        let colour = io::stdout().is_terminal();
        Self { colour }
    }

    /// Appends the line of a request.
    pub(super) fn write_request(
        self,
        request: &RequestFinished<'_>,
        text: &mut String,
    ) -> fmt::Result {
        self.write(&mut Writer::new(text), Level::INFO, |fields| {
            request.visit(fields);
        })
    }

    fn write(
        self,
        line: &mut Writer<'_>,
        level: Level,
        visit: impl FnOnce(&mut Fields<'_, '_>),
    ) -> fmt::Result {
        write!(line, "{} ", TimeOfDay::now())?;
        self.write_level(line, level)?;
        let mut fields = Fields {
            line,
            result: Ok(()),
        };
        visit(&mut fields);
        fields.result?;
        line.write_char('\n')
    }

    fn write_level(self, line: &mut Writer<'_>, level: Level) -> fmt::Result {
        let (colour, name) = match level {
            Level::ERROR => ("31", "ERROR"),
            Level::WARN => ("33", "WARN "),
            Level::INFO => ("32", "INFO "),
            Level::DEBUG => ("34", "DEBUG"),
            Level::TRACE => ("35", "TRACE"),
        };
        if self.colour {
            write!(line, "\x1b[{colour}m{name}\x1b[0m")
        } else {
            line.write_str(name)
        }
    }
}

impl<S, N> FormatEvent<S, N> for TextFormatter
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        self.write(&mut line, level, |fields| event.record(fields))
    }
}

/// Writes fields in the order in which the event has them.
struct Fields<'a, 'w> {
    line: &'a mut Writer<'w>,
    result: fmt::Result,
}

impl Fields<'_, '_> {
    fn write(&mut self, name: &str, value: fmt::Arguments<'_>) {
        self.result = self.result.and_then(|()| {
            self.line.write_char(' ')?;
            if !BARE.contains(&name) {
                write!(self.line, "{name}=")?;
            }
            write!(Escaped(self.line), "{value}")
        });
    }

    fn write_text(&mut self, name: &str, value: &str) {
        if name != "message" && value.contains([' ', '"']) {
            self.write(name, format_args!("{value:?}"));
        } else {
            self.write(name, format_args!("{value}"));
        }
    }
}

impl Visit for Fields<'_, '_> {
    fn record_str(&mut self, field: &field::Field, value: &str) {
        self.write_text(field.name(), value);
    }

    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        self.write_text(field.name(), &format!("{value:?}"));
    }
}

impl FieldVisitor for Fields<'_, '_> {
    fn text(&mut self, field: &'static Field, value: &str) {
        self.write_text(field.name, value);
    }

    fn computed_text(&mut self, field: &'static Field, value: &dyn fmt::Display) {
        self.write_text(field.name, &value.to_string());
    }

    fn shown(&mut self, field: &'static Field, value: &dyn fmt::Display) {
        self.write(field.name, format_args!("{value}"));
    }
}

/// Escapes deceptive characters on their way to a line.
struct Escaped<'a, 'w>(&'a mut Writer<'w>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if is_plain(text.as_bytes()) {
            return self.0.write_str(text);
        }
        escape(text, self.0, |character, line| {
            write!(line, "{}", character.escape_default())
        })
    }
}

/// The time of day in UTC, to the millisecond. A person at a terminal knows the date.
struct TimeOfDay {
    millis: u64,
}

impl TimeOfDay {
    fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let millis = since.map_or(0, |since| since.as_millis() % 86_400_000);
        Self {
            millis: u64::try_from(millis).unwrap_or(0),
        }
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.millis / 1000, self.millis % 1000);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        let (hours, minutes) = (minutes / 60, minutes % 60);
        write!(f, "{hours:02}:{minutes:02}:{seconds:02}.{millis:03}")
    }
}
