//! The fields of lines of the access log: what a form needs of one, and those of steps on responses,
//! which declare them beside their code.

use std::marker::PhantomData;
use std::time::Duration;

/// Room for what JSON has before the text of a field: a comma, the name, a colon and three quotes.
const FIELD_BYTES: usize = 24;

/// A field of a line, by its name, and where else it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What JSON has before the text of the field, and blanks: a copy of a fixed length is quicker.
    pub before_text: &'static [u8; FIELD_BYTES],
    /// The header, in lower case, that a replay of the line gives the request with its text.
    pub header: Option<&'static str>,
    /// Its place and its key in the lines of those who watch requests.
    pub watched: Option<(usize, &'static str)>,
    /// The attribute of a request's span that it is, where OpenTelemetry has no name for it.
    pub attribute: Option<&'static str>,
}

impl Field {
    /// `padded` is what JSON has before its text, and blanks.
    pub(super) const fn new(name: &'static str, padded: &'static str) -> Self {
        assert!(name.len() <= FIELD_BYTES - ",\"\":\"".len());
        let before_text = match padded.as_bytes().first_chunk() {
            Some(before_text) => before_text,
            None => &[b' '; FIELD_BYTES],
        };
        Self {
            name,
            before_text,
            header: None,
            watched: None,
            attribute: None,
        }
    }

    /// Shows it to those who watch, at this place of a line.
    pub(super) const fn watched(self, place: usize) -> Self {
        self.watched_as(place, self.name)
    }

    /// The same by another key.
    pub(super) const fn watched_as(self, place: usize, key: &'static str) -> Self {
        Self {
            watched: Some((place, key)),
            ..self
        }
    }

    /// Makes it an attribute of spans.
    pub(super) const fn attribute(self, name: &'static str) -> Self {
        Self {
            attribute: Some(name),
            ..self
        }
    }

    /// Has replays give the request this header.
    pub(super) const fn header(self, name: &'static str) -> Self {
        Self {
            header: Some(name),
            ..self
        }
    }
}

/// Two are the same by their names.
impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A field that a step on responses adds to the line of a request, and its meaning.
#[derive(Debug, PartialEq)]
pub struct StepField {
    pub(super) field: Field,
    doc: &'static str,
}

impl StepField {
    /// Its name, which a template of lines may use.
    pub const fn name(&self) -> &'static str {
        self.field.name
    }

    /// What it says of a request, for docs/LOGS.md.
    pub fn doc(&self) -> String {
        let words: Vec<_> = self.doc.split_whitespace().collect();
        words.join(" ")
    }
}

/// A [`StepField`] with values of one type; see [`log_field!`](crate::log_field!).
#[derive(Debug)]
pub struct LogField<V> {
    described: StepField,
    values: PhantomData<fn(V)>,
}

impl<V: Into<LogValue>> LogField<V> {
    /// For [`log_field!`](crate::log_field).
    #[doc(hidden)]
    pub const fn new(name: &'static str, doc: &'static str, padded: &'static str) -> Self {
        Self {
            described: StepField {
                field: Field::new(name, padded),
                doc,
            },
            values: PhantomData,
        }
    }

    /// The field without the type of its values, for the table of all fields.
    pub const fn described(&'static self) -> &'static StepField {
        &self.described
    }
}

/// Declares a field that a step adds to the line of a request. Its doc comment is its row in
/// docs/LOGS.md. Its values are words (`&'static str`), texts (`String`), numbers (`u64`) or
/// durations, whose names end in `_ms`.
///
/// ```
/// weir_telemetry::log_field! {
///     /// how many links the page had
///     pub static LINKS: u64 = "links";
/// }
/// assert_eq!(LINKS.described().doc(), "how many links the page had");
/// ```
#[macro_export]
macro_rules! log_field {
    ($(#[doc = $doc:literal])+ $visible:vis static $FIELD:ident: $values:ty = $name:literal;) => {
        $(#[doc = $doc])+
        $visible static $FIELD: $crate::LogField<$values> = $crate::LogField::new(
            $name,
            concat!($($doc),+),
            concat!(",\"", $name, "\":\"                    "),
        );
    };
}

/// The value of a step's field.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LogValue {
    /// One of a few words, which need no escape.
    Word(&'static str),
    /// A text, of which the first 512 bytes are shown.
    Text(String),
    /// A number.
    Number(u64),
    /// A duration, shown in milliseconds.
    Duration(Duration),
}

macro_rules! from {
    ($($type:ty => $kind:ident,)*) => {$(
        impl From<$type> for LogValue {
            fn from(value: $type) -> Self {
                Self::$kind(value)
            }
        }
    )*};
}

from! {
    &'static str => Word,
    String => Text,
    u64 => Number,
    Duration => Duration,
}

/// What the steps on a response add to the line of its request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes(Vec<(&'static StepField, LogValue)>);

impl Notes {
    /// Adds a field, or changes its value.
    pub fn set<V: Into<LogValue>>(&mut self, field: &'static LogField<V>, value: V) {
        let name = field.described().name();
        self.0.retain(|(of, _)| of.name() != name);
        self.0.push((field.described(), value.into()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static Field, &LogValue)> {
        self.0.iter().map(|(of, value)| (&of.field, value))
    }
}
