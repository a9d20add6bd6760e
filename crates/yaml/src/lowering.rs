//! What every part of the lowering shares: it leads from what is written to what runs, with every
//! reference resolved, every value parsed and every error reported.
//!
//! A part that is in error yields the proof that this was reported, and the parts that need it say
//! no more about it. So a file with five errors is told of five, and none is refused without one.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use http::HeaderValue;

use super::diagnostics::{Diagnostic, Diagnostics, ErrorBuilder, Location, Lowered, Reported};
use super::document::{FileId, Sources, Span};
use super::inputs::Inputs;
use super::shapes::{Required, Spanned, WordOr};
use super::suggestions::Suggestions;

/// The word that turns off what has keys.
const OFF: &str = "off";

/// What every part of the lowering needs.
pub struct Lowering<'s> {
    /// The files, to say where something is.
    pub sources: &'s Sources,
    /// The folder of `gateway.yaml`, which paths are relative to.
    pub folder: &'s Path,
    /// Where files are read through, so that they are watched.
    pub inputs: &'s mut Inputs,
    /// What was found.
    pub diagnostics: Diagnostics,
    /// Help with unknown names.
    pub suggestions: Suggestions,
    /// The file of the overrides that are kept, as theirs is empty or missing. They refuse
    /// nothing: what is wrong with one of them leaves it out, with a warning.
    pub retained: Option<FileId>,
    /// The present as the time since 1970, to tell what has ended.
    pub now: Duration,
}

impl Lowering<'_> {
    /// Reports an error.
    pub fn error(&mut self, span: Span, message: impl Into<String>) -> ErrorBuilder<'_> {
        let location = self.sources.location(span);
        if self.retained == Some(span.file()) {
            return self.diagnostics.left_out(location, message);
        }
        let first = self.sources.variable_help(span);
        self.diagnostics.error(location, message).first_help(first)
    }

    /// Reports a warning, which may get help.
    pub fn warn(&mut self, span: Span, message: impl Into<String>) -> &mut Diagnostic {
        let location = self.sources.location(span);
        self.diagnostics
            .push(Diagnostic::warning(location, message))
    }

    /// Passes a result's value on and reports its error. Other modules say what is wrong and,
    /// behind a semicolon, what to do about it.
    pub fn ok<T, E: Display>(&mut self, span: Span, result: Result<T, E>) -> Lowered<T> {
        result.map_err(|error| self.refuse(span, &error))
    }

    /// Reports an error of another module.
    pub fn refuse(&mut self, span: Span, error: &dyn Display) -> Reported {
        let error = error.to_string();
        let (message, help) = message_and_help(&error);
        self.error(span, message).maybe_help(help)
    }

    /// Reports a warning of another module, told like an error.
    pub fn warn_of(&mut self, span: Span, warning: &dyn Display) {
        let location = self.sources.location(span);
        self.warn_at(location, warning);
    }

    /// As [`Self::warn_of`], at a place that is known already.
    pub fn warn_at(&mut self, location: Location, warning: &dyn Display) {
        let warning = warning.to_string();
        let (message, help) = message_and_help(&warning);
        let diagnostic = Diagnostic::warning(location, message);
        self.diagnostics.push(diagnostic).help = help;
    }

    /// Reports that a name is not among the keys at `known`, unless its value there is in error.
    pub fn unknown(
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
    pub fn suggest(&mut self, name: &str, known: Option<Span>) -> Option<String> {
        let sources = self.sources;
        let known = known.into_iter().flat_map(|span| sources.keys_at(span));
        self.suggestions.suggest(name, known)
    }

    /// A list that must have items. If all its items are in error, only those are reported.
    pub fn filled<'w, T>(
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

    /// A value that is there. One in error was reported as it was read.
    pub fn required<T: Clone>(&mut self, written: &Spanned<Required<T>>) -> Lowered<T> {
        let in_error = || self.sources.in_error(written.span);
        match (&written.value.0, in_error()) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(reported)) => Err(reported),
            (None, None) => Err(self.error(written.span, "there is no value").into()),
        }
    }

    /// The items of a list, unless one of them is in error.
    pub fn items<'w, T>(&self, list: &'w Spanned<impl AsRef<[T]>>) -> Lowered<&'w [T]> {
        let in_error = self.sources.child_in_error(list.span);
        in_error.map_or_else(|| Ok(list.value.as_ref()), Err)
    }

    /// Whether a list is empty as it was written.
    pub fn is_empty<T>(&self, list: &Spanned<impl AsRef<[T]>>) -> bool {
        list.value.as_ref().is_empty() && self.sources.child_in_error(list.span).is_none()
    }

    /// Reports that keys are not there as they should be, unless one of them is in error.
    pub fn lacking(&mut self, span: Span, keys: &[&str], message: &str, help: &str) -> Reported {
        let in_error = self.sources.key_in_error(span, keys);
        in_error.unwrap_or_else(|| self.error(span, message).help(help))
    }

    /// Reads a text that the configuration names, relative to its folder.
    pub fn read_file(&mut self, path: &str, span: Span) -> Lowered<String> {
        let full = self.folder.join(path);
        let read = self.inputs.read(&full);
        self.was_read(&full, span, read)
    }

    /// Reads a file that the configuration names and that need not be a text.
    pub fn read_bytes(&mut self, path: &str, span: Span) -> Lowered<Vec<u8>> {
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

    /// A text as the value of a header.
    pub fn header_value(&mut self, text: &Spanned<String>) -> Lowered<HeaderValue> {
        text.value.parse().map_err(|_| {
            let what = "the value of a header: control characters are not allowed";
            self.error(text.span, format!("`{}` is not {what}", text.value))
                .into()
        })
    }
}

/// The keys of what may be turned off.
pub fn keys_or_off<'w, T>(
    cx: &mut Lowering<'_>,
    written: &'w Spanned<WordOr<T>>,
    key: &str,
) -> Lowered<Option<&'w T>> {
    match &written.value {
        WordOr::More(keys) => Ok(Some(keys)),
        WordOr::Word(word) if word == OFF => Ok(None),
        WordOr::Word(word) => {
            let message = format!("`{word}` is neither `off` nor keys and values");
            let help = format!("say `{key}: off`, or leave it out for the defaults");
            Err(cx.error(written.span, message).help(help))
        }
    }
}

/// Whether a header concerns one connection, or says where a message ends: the server and the proxy
/// themselves decide about those.
pub fn is_of_connection(header: &str) -> bool {
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

/// What an error says is wrong, and what it says to do about it: behind a line end, or in other
/// modules behind a semicolon.
pub fn message_and_help(error: &str) -> (&str, Option<String>) {
    let parts = error.split_once('\n').or_else(|| error.split_once("; "));
    match parts {
        Some((message, help)) => (message, Some(help.to_owned())),
        None => (error, None),
    }
}
