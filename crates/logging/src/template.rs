//! Access log lines by a template, such as the combined format that tools for web logs read.
//!
//! ```text
//! {client} - {account} [{time_local}] "{method} {request_target} HTTP/{version}" {status} {bytes}
//! ```

use std::fmt::{self, Write};
use std::str::FromStr;

use jiff::Timestamp;
use thiserror::Error;
use weir_telemetry::{
    ACCESS_LOG_FIELDS, Field, FieldVisitor, RequestFinished, StepField, escape, field,
};

/// The combined format of Apache and nginx.
const COMBINED: &str = r#"{client} - {account} [{time_local}] "{method} {request_target} HTTP/{version}" {status} {bytes} "{referer}" "{user_agent}""#;

/// Why a template is not one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TemplateError {
    /// It names an unknown field.
    #[error("there is no field {0:?}; docs/LOGS.md has the table of fields")]
    UnknownField(String),
    /// A brace has no partner.
    #[error("a brace without a partner; write it twice to mean itself")]
    LoneBrace,
    /// It would write more than one line, or none.
    #[error("expected one line that is not empty")]
    NotOneLine,
}

/// The form of lines of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Value { source: Source, in_quotes: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Field(&'static str),
    /// The path, and the query where that is logged.
    RequestTarget,
    /// The time as the JSON form has it.
    Timestamp,
    /// The time in the form of the combined format.
    TimeLocal,
}

impl Source {
    fn named(name: &str, of_steps: &[&'static StepField]) -> Result<Self, TemplateError> {
        match name {
            "request_target" => Ok(Self::RequestTarget),
            "timestamp" => Ok(Self::Timestamp),
            "time_local" => Ok(Self::TimeLocal),
            _ => ACCESS_LOG_FIELDS
                .iter()
                .map(|field| field.name)
                .chain(of_steps.iter().map(|field| field.name()))
                .find(|field| *field == name)
                .map(Self::Field)
                .ok_or_else(|| TemplateError::UnknownField(name.to_owned())),
        }
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    /// Reads a template without fields of steps.
    fn from_str(text: &str) -> Result<Self, TemplateError> {
        Self::parse(text, &[])
    }
}

impl Template {
    /// Reads `combined`, or text with `{FIELD}` where a value shall stand; `{{` and `}}` are
    /// braces. A field may be one of these, beside those of all lines.
    ///
    /// # Errors
    /// When the text is not a template, or names an unknown field.
    pub fn parse(text: &str, of_steps: &[&'static StepField]) -> Result<Self, TemplateError> {
        if text == "combined" {
            return Self::parse(COMBINED, of_steps);
        }
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(TemplateError::NotOneLine);
        }
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut in_quotes = false;
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            literal.push_str(before);
            in_quotes ^= before.matches('"').count() % 2 == 1;
            if let Some(after) = from.strip_prefix("{{") {
                literal.push('{');
                rest = after;
            } else if let Some(after) = from.strip_prefix("}}") {
                literal.push('}');
                rest = after;
            } else {
                let field = from.strip_prefix('{').and_then(|from| from.split_once('}'));
                let (name, after) = field.ok_or(TemplateError::LoneBrace)?;
                let source = Source::named(name, of_steps)?;
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                pieces.push(Piece::Value { source, in_quotes });
                rest = after;
            }
        }
        literal.push_str(rest);
        pieces.push(Piece::Literal(literal));
        Ok(Self(pieces))
    }

    /// Appends the line of a request.
    pub(super) fn write_request(
        &self,
        request: &RequestFinished<'_>,
        time: Timestamp,
        to: &mut String,
    ) -> fmt::Result {
        let mut fields = RecordedFields {
            template: self,
            texts: String::new(),
            values: Vec::new(),
        };
        request.visit(&mut fields);
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => to.write_str(text)?,
                Piece::Value { source, in_quotes } => {
                    fields.write_value(*source, *in_quotes, time, to)?;
                }
            }
        }
        to.write_char('\n')
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|piece| match piece {
            Piece::Value { source, .. } => match source {
                Source::Field(field) => *field == name,
                Source::RequestTarget => [field::path.name, field::query.name].contains(&name),
                Source::Timestamp | Source::TimeLocal => false,
            },
            Piece::Literal(_) => false,
        })
    }
}

/// The values of a request that a template names. Each begins in `texts` where the one before it
/// ends.
struct RecordedFields<'t> {
    template: &'t Template,
    texts: String,
    /// Names, and where their values end in `texts`.
    values: Vec<(&'static str, usize)>,
}

impl RecordedFields<'_> {
    fn value(&self, name: &str) -> Option<&str> {
        let index = self.values.iter().position(|(field, _)| *field == name)?;
        let begin = index
            .checked_sub(1)
            .and_then(|before| self.values.get(before));
        let begin = begin.map_or(0, |(_, end)| *end);
        let (_, end) = self.values.get(index)?;
        self.texts.get(begin..*end)
    }

    fn write_value(
        &self,
        source: Source,
        in_quotes: bool,
        time: Timestamp,
        to: &mut String,
    ) -> fmt::Result {
        match source {
            Source::Field(name) => write_escaped(self.value(name).unwrap_or("-"), in_quotes, to),
            Source::RequestTarget => {
                write_escaped(self.value(field::path.name).unwrap_or("-"), in_quotes, to)?;
                let Some(query) = self.value(field::query.name) else {
                    return Ok(());
                };
                to.write_char('?')?;
                write_escaped(query, in_quotes, to)
            }
            Source::Timestamp => write!(to, "{time:.6}"),
            Source::TimeLocal => write!(to, "{}", time.strftime("%d/%b/%Y:%H:%M:%S +0000")),
        }
    }
}

/// Writes a value so that it can neither end its quotes nor, outside of quotes, look like two.
fn write_escaped(value: &str, in_quotes: bool, to: &mut String) -> fmt::Result {
    let is_special =
        |character: char| matches!(character, '"' | '\\') || character == ' ' && !in_quotes;
    for run in value.split_inclusive(is_special) {
        let special = run.chars().next_back().filter(|last| is_special(*last));
        // All of them are of one byte.
        let plain = run.len() - special.map_or(0, char::len_utf8);
        escape(run.get(..plain).unwrap_or_default(), to, |character, to| {
            write!(to, "{}", character.escape_default())
        })?;
        if let Some(special) = special {
            write!(to, "\\x{:02X}", u32::from(special))?;
        }
    }
    Ok(())
}

impl FieldVisitor for RecordedFields<'_> {
    fn text(&mut self, field: &'static Field, value: &str) {
        self.shown(field, &value);
    }

    fn shown(&mut self, field: &'static Field, value: &dyn fmt::Display) {
        if self.template.has(field.name) {
            // A string takes whatever is written to it.
            let _ = write!(self.texts, "{value}");
            self.values.push((field.name, self.texts.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Template::from_str(text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_a_template_is_refused_and_the_field_is_named() {
        for (text, field) in [
            ("{clinet} {path}", "clinet"),
            ("{}", ""),
            ("{ path}", " path"),
        ] {
            let told = refused(text);
            assert!(
                told.starts_with(&format!("there is no field {field:?};")),
                "{told}"
            );
        }
        for alone in ["{client", "client}", "{client} }", "{client} {"] {
            let told = refused(alone);
            assert!(told.starts_with("a brace without"), "{alone}: {told}");
        }
        for text in ["", "{client}\n{path}", "{client}\u{7f}"] {
            assert!(refused(text).contains("one line"), "{text:?}");
        }
    }

    #[test]
    fn braces_that_stand_twice_mean_themselves() {
        let template = Template::from_str("{{{status}}}").unwrap();
        let value = Piece::Value {
            source: Source::Field("status"),
            in_quotes: false,
        };
        let literal = |text: &str| Piece::Literal(text.to_owned());
        assert_eq!(template.0, [literal("{"), value, literal("}")]);
    }

    #[test]
    fn no_value_ends_its_quotes_or_adds_a_field() {
        let escaped = |value: &str, in_quotes: bool| {
            let mut text = String::new();
            write_escaped(value, in_quotes, &mut text).unwrap();
            text
        };
        assert_eq!(escaped("a b\" \\\n", true), "a b\\x22 \\x5C\\n");
        assert_eq!(
            escaped("a 200 0 \"-\"", false),
            "a\\x20200\\x200\\x20\\x22-\\x22"
        );
        assert_eq!(escaped("", true), "");
        assert_eq!(escaped("\u{202e}\u{e9}", false), "\\u{202e}\u{e9}");
    }
}
