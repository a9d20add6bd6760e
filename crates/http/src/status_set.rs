//! Sets of statuses: single ones, classes and ranges.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use http::StatusCode;
use thiserror::Error;

/// The statuses of a response (RFC 9110, section 15).
const STATUSES: RangeInclusive<u16> = 100..=599;

/// Some statuses of responses. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet(Arc<[Statuses]>);

/// No status at all.
impl Default for StatusSet {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

/// A status, a class of them such as `5xx`, or a range such as `500-503`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(RangeInclusive<u16>);

/// Why a text names no statuses, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StatusesError {
    /// An unknown class.
    #[error("`{0}` is not a class of statuses; they are 1xx, 2xx, 3xx, 4xx and 5xx")]
    Class(String),
    /// A number that is not a status.
    #[error("`{0}` is not a status; they are 100 to 599")]
    Number(String),
    /// A range that ends before it begins.
    #[error("the range `{0}` ends before it begins; write the lesser status first")]
    Backward(String),
    /// It is something else.
    #[error("`{0}` names no statuses; write one such as 404, 5xx or 500-503")]
    Malformed(String),
}

impl StatusSet {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a status is among them.
    pub fn contains(&self, status: StatusCode) -> bool {
        self.0.iter().any(|some| some.contains(status))
    }
}

impl FromIterator<Statuses> for StatusSet {
    fn from_iter<I: IntoIterator<Item = Statuses>>(statuses: I) -> Self {
        Self(statuses.into_iter().collect())
    }
}

impl Statuses {
    /// Whether a status is one of them.
    pub fn contains(&self, status: StatusCode) -> bool {
        self.0.contains(&status.as_u16())
    }

    /// The number of statuses.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl FromStr for Statuses {
    type Err = StatusesError;

    fn from_str(text: &str) -> Result<Self, StatusesError> {
        if let Some(class) = text.strip_suffix("xx") {
            return class_of(class).ok_or_else(|| StatusesError::Class(text.to_owned()));
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return Err(StatusesError::Malformed(text.to_owned()));
        }
        let (first, last) = (status(first)?, status(last)?);
        if first > last {
            return Err(StatusesError::Backward(text.to_owned()));
        }
        Ok(Self(first..=last))
    }
}

fn class_of(digit: &str) -> Option<Statuses> {
    let digit: u16 = digit.parse().ok().filter(|digit| (1..=5).contains(digit))?;
    Some(Statuses(digit * 100..=digit * 100 + 99))
}

fn status(text: &str) -> Result<u16, StatusesError> {
    let status = text.parse().ok().filter(|status| STATUSES.contains(status));
    status.ok_or_else(|| StatusesError::Number(text.to_owned()))
}

impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, some) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{some}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (*self.0.start(), *self.0.end());
        match last - first {
            0 => write!(f, "{first}"),
            99 if first % 100 == 0 => write!(f, "{}xx", first / 100),
            _ => write!(f, "{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> StatusSet {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn statuses_classes_and_ranges_are_in_a_set() {
        let set = set(&["404", "5xx", "301-303"]);
        let is_in = |status| set.contains(StatusCode::from_u16(status).unwrap());
        for status in [404, 500, 599, 301, 302, 303] {
            assert!(is_in(status), "{status}");
        }
        for status in [403, 405, 499, 600, 300, 304, 200] {
            assert!(!is_in(status), "{status}");
        }
        assert_eq!(set.to_string(), "404, 5xx, 301-303");
    }

    #[test]
    fn no_status_is_counted_but_those_that_are_written() {
        for (text, count) in [("404", 1), ("5xx", 100), ("301-303", 3)] {
            assert_eq!(text.parse::<Statuses>().unwrap().count(), count, "{text}");
        }
    }

    #[test]
    fn what_names_no_statuses_is_told_what_to_write() {
        let error = |text: &str| text.parse::<Statuses>().unwrap_err().to_string();
        insta::assert_snapshot!(error("6xx"), @"`6xx` is not a class of statuses; they are 1xx, 2xx, 3xx, 4xx and 5xx");
        insta::assert_snapshot!(error("99"), @"`99` is not a status; they are 100 to 599");
        insta::assert_snapshot!(error("500-600"), @"`600` is not a status; they are 100 to 599");
        insta::assert_snapshot!(error("503-500"), @"the range `503-500` ends before it begins; write the lesser status first");
        for text in ["", "4x4", "errors", "-", "500-", "-500", "+404", "5XX"] {
            assert!(error(text).contains("such as 404"), "{text}");
        }
    }
}
