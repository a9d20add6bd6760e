//! What is wrong with a configuration, or doubtful about it: where, what, and what to do.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;

use super::redaction::redacted_message;

/// How many diagnostics of each severity are shown. A configuration with more has one mistake many
/// times, which is fixed once.
const MOST_SHOWN: usize = 100;

/// How many characters of a message are shown: it may repeat what is in a file.
const LONGEST_SHOWN: usize = 500;

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration works, but hardly as it was meant.
    Warning,
    /// The configuration is refused.
    Error,
}

/// Where in a configuration something is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The file's name, as it was opened.
    pub file: String,
    /// Line and column, both counted from 1, where they are known.
    pub position: Option<(usize, usize)>,
    /// The path within the file, such as `routes[2].limits[0]`; empty for the whole file.
    pub path: String,
}

/// One diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub location: Location,
    /// What is wrong.
    pub message: String,
    /// What to do about it; may have several lines.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error without help yet.
    pub fn error(location: Location, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            location,
            message: message.into(),
            help: None,
        }
    }

    /// A warning without help yet.
    pub fn warning(location: Location, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(location, message)
        }
    }

    /// Says what to do about it.
    pub fn help(&mut self, help: impl Into<String>) -> &mut Self {
        self.help = Some(redacted_message(&help.into()));
        self
    }

    /// The diagnostic as it is shown, with an excerpt of its file above the help.
    pub fn with_excerpt(&self, excerpt: Option<&str>) -> String {
        let mut text = format!("{} ", self.location);
        if self.severity == Severity::Warning {
            text.push_str("warning: ");
        }
        if !self.location.path.is_empty() {
            text.push_str(&shortened(&self.location.path));
            text.push_str(": ");
        }
        text.push_str(&shortened(&self.message));
        for line in excerpt.iter().flat_map(|excerpt| excerpt.lines()) {
            text.push('\n');
            text.push_str(line);
        }
        for line in self.help.iter().flat_map(|help| help.lines()) {
            text.push_str("\n  ");
            text.push_str(&shortened(line));
        }
        text
    }
}

/// The proof that an error was reported. A function that has no value for what is in error returns
/// this instead, and only reporting an error makes one: nothing is refused without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported(());

/// A value, or the proof that the error which stands in its way was reported.
pub type Lowered<T> = Result<T, Reported>;

/// All values, once each was lowered, so that every error among them is reported.
pub fn all<T, C: FromIterator<T>>(items: impl Iterator<Item = Lowered<T>>) -> Lowered<C> {
    let items: Vec<Lowered<T>> = items.collect();
    items.into_iter().collect()
}

/// An error that was just reported, and which may still get help.
#[derive(Debug)]
pub struct ErrorBuilder<'d>(&'d mut Diagnostic);

impl ErrorBuilder<'_> {
    /// Says what to do about it.
    pub fn help(self, help: impl Into<String>) -> Reported {
        self.maybe_help(Some(help.into()))
    }

    /// Says what to do about it, if anything is known.
    pub fn maybe_help(self, help: Option<String>) -> Reported {
        self.first_help(help).into()
    }

    /// Help that takes the place of what is said later.
    pub fn first_help(self, help: Option<String>) -> Self {
        let help = help.map(|help| redacted_message(&help));
        self.0.help = self.0.help.take().or(help);
        self
    }
}

impl From<ErrorBuilder<'_>> for Reported {
    fn from(_: ErrorBuilder<'_>) -> Self {
        Self(())
    }
}

/// All diagnostics about a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// Adds a diagnostic, and gives it back to be given help. Its message, as any help, repeats no
    /// password of a URL.
    pub fn push(&mut self, mut diagnostic: Diagnostic) -> &mut Diagnostic {
        diagnostic.message = redacted_message(&diagnostic.message);
        let at = self.0.len();
        self.0.push(diagnostic);
        // A slice from `at` holds exactly the diagnostic that was just pushed.
        #[expect(
            clippy::indexing_slicing,
            reason = "the element was pushed a line above"
        )]
        &mut self.0[at]
    }

    /// Adds an error.
    pub fn error(&mut self, location: Location, message: impl Into<String>) -> ErrorBuilder<'_> {
        ErrorBuilder(self.push(Diagnostic::error(location, message)))
    }

    /// Adds a warning about what is in error and is done without.
    pub fn left_out(&mut self, location: Location, message: impl Into<String>) -> ErrorBuilder<'_> {
        let message = format!("left out: {}", message.into());
        ErrorBuilder(self.push(Diagnostic::warning(location, message)))
    }

    /// The proof that there is an error, if there is.
    pub fn reported(&self) -> Option<Reported> {
        self.has_errors().then_some(Reported(()))
    }

    /// Takes over all diagnostics of another collection.
    pub fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    /// The diagnostics, in the order in which they were made or last sorted.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.iter()
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many diagnostics are of this severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.iter()
            .filter(|diagnostic| diagnostic.severity == severity)
            .count()
    }

    /// Whether a configuration with these diagnostics must be refused.
    pub fn has_errors(&self) -> bool {
        self.count(Severity::Error) > 0
    }

    /// The diagnostics as they are shown, each with its help below it: as many as a person reads,
    /// and how many more there are.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.error_lines().chain(self.lines_of(Severity::Warning))
    }

    /// The errors alone, as they are shown.
    pub fn error_lines(&self) -> impl Iterator<Item = String> {
        self.lines_of(Severity::Error)
    }

    /// The report as `Display` has it, where `show` writes each diagnostic.
    pub fn report(&self, mut show: impl FnMut(&Diagnostic) -> String) -> String {
        let mut text = String::new();
        for severity in [Severity::Error, Severity::Warning] {
            for shown in self.shown_lines(severity, &mut show) {
                text.push_str(&shown);
                text.push('\n');
            }
        }
        text + &self.totals()
    }

    /// How many errors and warnings there are.
    pub fn totals(&self) -> String {
        let errors = pluralized(self.count(Severity::Error), "error");
        let warnings = pluralized(self.count(Severity::Warning), "warning");
        format!("{errors}, {warnings}")
    }

    fn lines_of(&self, severity: Severity) -> impl Iterator<Item = String> {
        self.shown_lines(severity, ToString::to_string)
    }

    fn shown_lines(
        &self,
        severity: Severity,
        show: impl FnMut(&Diagnostic) -> String,
    ) -> impl Iterator<Item = String> {
        let shown = self
            .iter()
            .filter(move |diagnostic| diagnostic.severity == severity);
        let more = self.count(severity).saturating_sub(MOST_SHOWN);
        let noun = match severity {
            Severity::Error => "more error",
            Severity::Warning => "more warning",
        };
        let more = (more > 0).then(|| format!("... and {}", pluralized(more, noun)));
        shown.take(MOST_SHOWN).map(show).chain(more)
    }

    /// Brings errors before warnings, and each in the order of the files. What several routes
    /// inherit is told once.
    pub fn sort(&mut self) {
        self.0.sort_by_cached_key(|diagnostic| {
            (Reverse(diagnostic.severity), diagnostic.location.clone())
        });
        self.0.dedup();
    }
}

impl std::error::Error for Diagnostics {}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        f.write_str(":")
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_excerpt(None))
    }
}

/// One diagnostic a line, its help below it, and the sums at the end.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report(ToString::to_string))
    }
}

/// A text without what is too much of it.
fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST_SHOWN) {
        None => text.into(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()).into(),
    }
}

/// A number and its noun, in the plural where it has to be.
pub fn pluralized(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(line: usize) -> Location {
        Location {
            file: "gateway.yaml".to_owned(),
            position: Some((line, 7)),
            path: "routes[0].limits[0]".to_owned(),
        }
    }

    #[test]
    fn a_finding_shows_its_place_and_below_it_the_help() {
        let mut diagnostics = Diagnostics::default();
        diagnostics.push(Diagnostic::warning(location(9), "too large"));
        diagnostics
            .push(Diagnostic::error(location(14), "unknown limit \"B\""))
            .help("did you mean \"A\"?\nor \"C\"?");
        diagnostics.sort();
        insta::assert_snapshot!(diagnostics, @r#"
        gateway.yaml:14:7: routes[0].limits[0]: unknown limit "B"
          did you mean "A"?
          or "C"?
        gateway.yaml:9:7: warning: routes[0].limits[0]: too large
        1 error, 1 warning
        "#);
    }

    #[test]
    fn a_finding_about_a_whole_file_shows_no_position() {
        let location = Location {
            file: "gateway.yaml".to_owned(),
            ..Location::default()
        };
        let diagnostic = Diagnostic::error(location, "no such file");
        assert_eq!(diagnostic.to_string(), "gateway.yaml: no such file");
    }
}
