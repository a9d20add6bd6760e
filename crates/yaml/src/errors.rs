//! What serde finds wrong with a value, in the words of a configuration.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use super::document::{Content, Document, NodeId, Span};
use crate::diagnostics::Reported;
use crate::lowering::message_and_help;
use crate::suggestions::suggest;

pub(super) const RATE: [&str; 3] = ["burst", "count", "period"];

/// How a rate is written here that stands under a key as other gateways have it.
pub(super) fn rate(document: &Document, node: NodeId, error: &Error) -> Option<String> {
    let has_rates = RATE.iter().all(|key| error.unknown_among().contains(key));
    let key = document.key(node).filter(|_| has_rates)?;
    let text = match &document.node(node)?.content {
        Content::Scalar { text, .. } => text.as_str(),
        Content::Sequence(_) | Content::Mapping(_) => "",
    };
    let rate = match key {
        "rate" | "rate_limit" => Rate::parse(text),
        "rps" | "requests_per_second" | "per_second" => Rate::parse(&format!("{text}/s")),
        "rpm" | "requests_per_minute" | "per_minute" => Rate::parse(&format!("{text}/m")),
        "rph" | "requests_per_hour" | "per_hour" => Rate::parse(&format!("{text}/h")),
        _ => return None,
    };
    let Rate { count, period } = rate.unwrap_or(Rate {
        count: 10,
        period: "1s",
    });
    Some(format!(
        "a rate is written as `burst: {count}, count: {count}, period: {period}`"
    ))
}

/// A number of requests and a time, as `10r/s` says them.
struct Rate {
    count: u64,
    period: &'static str,
}

impl Rate {
    fn parse(text: &str) -> Option<Self> {
        let (count, unit) = text.split_once("/").or_else(|| text.split_once(" per "))?;
        let count = count
            .trim()
            .trim_end_matches(|trim: char| trim.is_alphabetic() || trim == ' ');
        Some(Self {
            count: count.parse().ok().filter(|parse| *parse > 0)?,
            period: match unit.trim() {
                "s" | "sec" | "second" => "1s",
                "m" | "min" | "minute" => "1m",
                "h" | "hour" => "1h",
                "d" | "day" => "1d",
                _ => return None,
            },
        })
    }
}

/// An error, at a span once a caller has added it.
#[derive(Debug)]
pub(super) struct Error {
    pub(super) span: Option<Span>,
    pub(super) message: String,
    pub(super) help: Option<String>,
    pub(super) missing: Option<&'static str>,
    /// The keys that are known, when the error is that this one is not, or that they stand beside the
    /// key that they belong below.
    known: &'static [&'static str],
    is_outdented: bool,
    pub(super) follows: Option<Reported>,
    /// The text of another type than is expected, which the message repeats in backquotes.
    pub(super) found: Option<String>,
}

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            span: None,
            message: message.into(),
            help: None,
            missing: None,
            known: &[],
            is_outdented: false,
            follows: None,
            found: None,
        }
    }

    pub(super) fn following(reported: Reported) -> Self {
        Self {
            follows: Some(reported),
            ..Self::new("in error")
        }
    }

    /// The same error where some of `keys` stand beside the key that they belong below.
    pub(super) fn outdented(self, keys: &'static [&'static str]) -> Self {
        Self {
            known: keys,
            is_outdented: true,
            ..self
        }
    }

    /// The known keys, if the error is that a key is none of them.
    pub(super) fn unknown_among(&self) -> &'static [&'static str] {
        if self.is_outdented { &[] } else { self.known }
    }

    /// The keys of which some stand beside the key that they belong below.
    pub(super) fn outdented_keys(&self) -> &'static [&'static str] {
        if self.is_outdented { self.known } else { &[] }
    }

    /// The same error with something to do about it.
    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }

    /// The same error without the text that was found.
    pub(super) fn without_text(self) -> Self {
        let Some(found) = &self.found else {
            return self;
        };
        Self {
            message: self.message.replace(&format!("`{found}`"), "a text"),
            help: self.help.filter(|help| !help.contains(found.as_str())),
            ..self
        }
    }

    /// The same error at this span, unless it has an inner one.
    pub(super) fn at(self, span: Span) -> Self {
        Self {
            span: self.span.or(Some(span)),
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
    fn custom<T: fmt::Display>(message: T) -> Self {
        let message = message.to_string();
        let (what, help) = message_and_help(&message);
        Self {
            help,
            ..Self::new(what)
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let (wanted, shown) = (wanted(expected), shown(found));
        let help = match (wanted.as_str(), found) {
            ("a list", Unexpected::Str(_)) => Some("put [ ] around it".to_owned()),
            ("a list", Unexpected::Map) => Some("begin each item with `- `".to_owned()),
            ("keys and values", Unexpected::Unit) => None,
            (_, Unexpected::Unit) => Some("write one".to_owned()),
            _ => None,
        };
        let text = match found {
            Unexpected::Str(text) => Some(text.to_owned()),
            _ => None,
        };
        Self {
            help,
            found: text,
            ..Self::new(format!("expected {wanted}, found {shown}"))
        }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self {
            help: suggest(variant, expected.iter().copied()),
            ..Self::new(format!("\"{variant}\" is not known here"))
        }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self {
            known: expected,
            help: suggest(field, expected.iter().copied()),
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
        "u32" => "a whole number up to 4294967295".to_owned(),
        "u64" | "usize" => "a whole number".to_owned(),
        "a nonzero u32" => "a whole number from 1 to 4294967295".to_owned(),
        "a nonzero u64" | "a nonzero usize" => "a whole number that is at least 1".to_owned(),
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
