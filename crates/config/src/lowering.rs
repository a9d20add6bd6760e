//! What every part of the lowering shares: it leads from what is written to what runs, with every
//! reference resolved, every value parsed and every error reported.
//!
//! A part that is in error yields the proof that this was reported, and the parts that need it say
//! no more about it. So a file with five errors is told of five, and none is refused without one.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use http::{HeaderName, HeaderValue};
use weir_limit::time::Timestamp;

use super::diagnostics::{Diagnostic, Diagnostics, ErrorBuilder, Location, Lowered, Reported};
use super::gateway::schema::Gateway;
use super::inputs::Inputs;
use super::suggestions::Suggestions;
use super::yaml::{FileId, Sources, Span, Spanned};

/// What every part of the lowering needs.
pub(super) struct Lowering<'s> {
    pub(super) sources: &'s Sources,
    /// The folder of `gateway.yaml`, which paths are relative to.
    pub(super) folder: &'s Path,
    /// Where files are read through, so that they are watched.
    pub(super) inputs: &'s mut Inputs,
    pub(super) diagnostics: Diagnostics,
    pub(super) suggestions: Suggestions,
    /// The file of the overrides that are kept, as theirs is empty or missing. They refuse
    /// nothing: what is wrong with one of them leaves it out, with a warning.
    pub(super) retained: Option<FileId>,
    /// The present, to tell what has ended.
    pub(super) now: Timestamp,
}

impl Lowering<'_> {
    pub(super) fn error(&mut self, span: Span, message: impl Into<String>) -> ErrorBuilder<'_> {
        let location = self.sources.location(span);
        if self.retained == Some(span.file()) {
            return self.diagnostics.left_out(location, message);
        }
        let first = self.sources.variable_help(span);
        self.diagnostics.error(location, message).first_help(first)
    }

    pub(super) fn warn(&mut self, span: Span, message: impl Into<String>) -> &mut Diagnostic {
        let location = self.sources.location(span);
        self.diagnostics
            .push(Diagnostic::warning(location, message))
    }

    /// Passes a result's value on and reports its error. Other modules say what is wrong and,
    /// behind a semicolon, what to do about it.
    pub(super) fn ok<T, E: Display>(&mut self, span: Span, result: Result<T, E>) -> Lowered<T> {
        result.map_err(|error| self.refuse(span, &error))
    }

    pub(super) fn refuse(&mut self, span: Span, error: &dyn Display) -> Reported {
        let error = error.to_string();
        let (message, help) = message_and_help(&error);
        self.error(span, message).maybe_help(help)
    }

    /// Reports a warning of another module, told like an error.
    pub(super) fn warn_of(&mut self, span: Span, warning: &dyn Display) {
        let location = self.sources.location(span);
        self.warn_at(location, warning);
    }

    pub(super) fn warn_at(&mut self, location: Location, warning: &dyn Display) {
        let warning = warning.to_string();
        let (message, help) = message_and_help(&warning);
        let diagnostic = Diagnostic::warning(location, message);
        self.diagnostics.push(diagnostic).help = help;
    }

    /// Parses a text as `what`.
    pub(super) fn parse<T: FromStr>(&mut self, text: &Spanned<String>, what: &str) -> Lowered<T> {
        let parsed = text.value.parse();
        parsed.map_err(|_| {
            let message = format!("`{}` is not {what}", text.value);
            self.error(text.span, message).into()
        })
    }

    /// Reports that a name is not among the keys at `known`, unless its value there is in error.
    pub(super) fn unknown(
        &mut self,
        kind: &str,
        name: &Spanned<String>,
        known: Option<Span>,
        hint: &str,
    ) -> Reported {
        let in_error = known.and_then(|at| self.sources.key_in_error(at, &[&name.value]));
        if let Some(reported) = in_error {
            return reported;
        }
        let nearest = self.suggest(name, known);
        let help = match nearest {
            Some(nearest) if hint.is_empty() => nearest,
            Some(question) if question.ends_with('?') => format!("{question} {hint}"),
            Some(known) => format!("{known}; {hint}"),
            None => hint.to_owned(),
        };
        self.error(name.span, format!("unknown {kind} \"{}\"", name.value))
            .help(help)
    }

    /// Help with a name that is not among the keys at `known`, unless enough were compared.
    pub(super) fn suggest(&mut self, name: &str, known: Option<Span>) -> Option<String> {
        let sources = self.sources;
        let known = known.into_iter().flat_map(|span| sources.keys_at(span));
        self.suggestions.suggest(name, known)
    }

    /// A list that must have items. If all its items are in error, only those are reported.
    pub(super) fn filled<'w, T>(
        &mut self,
        list: &'w Spanned<impl AsRef<[T]>>,
        message: &str,
        help: &str,
    ) -> Lowered<&'w [T]> {
        if let items @ [_, ..] = list.value.as_ref() {
            return Ok(items);
        }
        let in_error = self.sources.child_in_error(list.span);
        Err(in_error.unwrap_or_else(|| self.error(list.span, message).help(help)))
    }

    /// Reports that keys are not there as they should be, unless one of them is in error.
    pub(super) fn lacking(
        &mut self,
        span: Span,
        keys: &[&str],
        message: &str,
        help: &str,
    ) -> Reported {
        let in_error = self.sources.key_in_error(span, keys);
        in_error.unwrap_or_else(|| self.error(span, message).help(help))
    }

    /// Reads a text that the configuration names, relative to its folder.
    pub(super) fn read_file(&mut self, path: &str, span: Span) -> Lowered<String> {
        let full = self.folder.join(path);
        let read = self.inputs.read(&full);
        self.was_read(&full, span, read)
    }

    /// Reads a file that the configuration names and that need not be a text.
    pub(super) fn read_bytes(&mut self, path: &str, span: Span) -> Lowered<Vec<u8>> {
        let full = self.folder.join(path);
        let read = self.inputs.read_bytes(&full);
        self.was_read(&full, span, read)
    }

    fn was_read<T>(&mut self, path: &Path, span: Span, read: io::Result<T>) -> Lowered<T> {
        read.map_err(|error| {
            let help = match error.kind() {
                ErrorKind::PermissionDenied => {
                    Some("let the user that the gateway runs as read it, and enter its folders")
                }
                // It is there, but is something else.
                ErrorKind::InvalidData | ErrorKind::IsADirectory => None,
                _ => Some("paths are relative to the folder of gateway.yaml"),
            };
            let message = format!("{} cannot be read: {error}", path.display());
            self.error(span, message)
                .maybe_help(help.map(str::to_owned))
        })
    }

    pub(super) fn header_name(&mut self, name: &Spanned<String>) -> Lowered<HeaderName> {
        self.parse(name, "the name of a header")
    }

    pub(super) fn header_value(&mut self, value: &Spanned<String>) -> Lowered<HeaderValue> {
        self.parse(
            value,
            "the value of a header: control characters are not allowed",
        )
    }

    /// Whether nothing says where requests name their account; not even something in error.
    pub(super) fn lacks_accounts(&self, gateway: &Spanned<Gateway>) -> bool {
        match &gateway.account {
            Some(account) => {
                account.is_empty() && self.sources.child_in_error(account.span).is_none()
            }
            None => self
                .sources
                .key_in_error(gateway.span, &["account"])
                .is_none(),
        }
    }
}

/// Whether a header concerns one connection, or says where a message ends: the server and the proxy
/// themselves decide about those.
pub(super) fn is_of_connection(header: &str) -> bool {
    const NAMES: [&str; 11] = [
        "connection",
        "content-length",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    NAMES.iter().any(|name| header.eq_ignore_ascii_case(name))
}

/// What an error of another module says is wrong, and what it says to do about it.
pub(super) fn message_and_help(error: &str) -> (&str, Option<String>) {
    match error.split_once("; ") {
        Some((message, help)) => (message, Some(help.to_owned())),
        None => (error, None),
    }
}
