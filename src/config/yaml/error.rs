//! What serde finds wrong with a value, in the words of a configuration.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use super::document::Span;
use crate::config::diagnostics::Reported;
use crate::config::nearest::suggest;

/// An error at a place, once a caller has told where it was.
#[derive(Debug)]
pub(super) struct Error {
    pub(super) place: Option<Span>,
    pub(super) message: String,
    pub(super) remedy: Option<String>,
    /// The key that is missing, when that is the error.
    pub(super) missing: Option<&'static str>,
    /// The keys that are known, when the error is that this one is not.
    pub(super) unknown_among: &'static [&'static str],
    /// The error that was reported already and from which this one only follows.
    pub(super) follows: Option<Reported>,
}

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            place: None,
            message: message.into(),
            remedy: None,
            missing: None,
            unknown_among: &[],
            follows: None,
        }
    }

    /// An error that follows from one that was reported already.
    pub(super) fn following(reported: Reported) -> Self {
        Self {
            follows: Some(reported),
            ..Self::new("in error")
        }
    }

    /// The same error with something to do about it.
    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// The same error at this place, unless it has an inner one.
    pub(super) fn at(self, place: Span) -> Self {
        Self {
            place: self.place.or(Some(place)),
            ..self
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl de::Error for Error {
    /// The first line says what is wrong, the rest what to do about it.
    fn custom<T: fmt::Display>(message: T) -> Self {
        let message = message.to_string();
        let (what, remedy) = message.split_once('\n').unwrap_or((&message, ""));
        Self {
            remedy: (!remedy.is_empty()).then(|| remedy.to_owned()),
            ..Self::new(what)
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let (wanted, shown) = (wanted(expected), shown(found));
        let remedy = match (wanted.as_str(), found) {
            ("a list", Unexpected::Str(_)) => Some("put [ ] around it".to_owned()),
            ("a list", Unexpected::Map) => Some("begin each item with `- `".to_owned()),
            _ => None,
        };
        Self {
            remedy,
            ..Self::new(format!("expected {wanted}, found {shown}"))
        }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self {
            remedy: suggest(variant, expected.iter().copied()),
            ..Self::new(format!("\"{variant}\" is not known here"))
        }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self {
            unknown_among: expected,
            remedy: suggest(field, expected.iter().copied()),
            ..Self::new(format!("unknown key \"{field}\""))
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            missing: Some(field),
            ..Self::new(format!("the key \"{field}\" is missing"))
        }
    }
}

/// What was expected, where serde names a Rust type.
fn wanted(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    match expected.as_str() {
        "u8" => "a whole number up to 255".to_owned(),
        "u16" => "a whole number up to 65535".to_owned(),
        "u32" | "u64" | "usize" => "a whole number".to_owned(),
        "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => {
            "a whole number that is at least 1".to_owned()
        }
        "a boolean" => "true or false".to_owned(),
        "a string" => "a text".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "keys and values".to_owned(),
        text if text.starts_with("struct ") => "keys and values".to_owned(),
        text => text.to_owned(),
    }
}

fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Str(text) => format!("`{text}`"),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "keys and values".to_owned(),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Other(text) => text.to_owned(),
        other => other.to_string(),
    }
}
