//! Sizes in bytes: `500`, `64kB`, `1KiB`, `10MiB`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The units, in bytes.
const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("B", 1),
    ("kB", 1000),
    ("KB", 1000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];

/// A size as it is written in a configuration, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Why a text is not a size, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ByteSizeError {
    /// There is a unit that nobody knows.
    #[error("the size `{0}` has the unknown unit `{1}`; units are B, kB, KiB, MB, MiB, GB and GiB")]
    UnknownUnit(String, String),
    /// It is 2^64 bytes or more.
    #[error("the size `{0}` is too great; choose a smaller one")]
    TooGreat(String),
    /// It is something else.
    #[error("`{0}` is not a size; write it like 512, 64kB or 1MiB")]
    Malformed(String),
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let end = text.find(|char: char| !char.is_ascii_digit());
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        if number.is_empty() || !unit.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            return Err(ByteSizeError::Malformed(text.to_owned()));
        }
        let Some((_, bytes)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(ByteSizeError::UnknownUnit(text.to_owned(), unit.to_owned()));
        };
        let number: Option<u64> = number.parse().ok();
        let size = number.and_then(|number| number.checked_mul(*bytes));
        size.map(Self)
            .ok_or_else(|| ByteSizeError::TooGreat(text.to_owned()))
    }
}

/// In the greatest unit of which it is a whole number, such as `1536B` or `2KiB`.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |bytes: u64| self.0 > 0 && self.0.is_multiple_of(bytes);
        let units = UNITS.iter().skip(1).filter(|(unit, _)| *unit != "KB");
        let greatest = units.filter(|(_, bytes)| whole(*bytes));
        match greatest.max_by_key(|(_, bytes)| *bytes) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        text.parse::<ByteSize>().unwrap().0
    }

    #[test]
    fn sizes_are_read_in_thousands_and_in_powers_of_two() {
        assert_eq!(bytes("0"), 0);
        assert_eq!(bytes("512"), 512);
        assert_eq!(bytes("64kB"), 64_000);
        assert_eq!(bytes("1KiB"), 1024);
        assert_eq!(bytes("3MiB"), 3 * 1024 * 1024);
        assert_eq!(bytes("2GB"), 2_000_000_000);
    }

    #[test]
    fn what_is_no_size_is_told_what_is_wrong_with_it() {
        let error = |text: &str| text.parse::<ByteSize>().unwrap_err().to_string();
        insta::assert_snapshot!(error("1kib"), @"the size `1kib` has the unknown unit `kib`; units are B, kB, KiB, MB, MiB, GB and GiB");
        insta::assert_snapshot!(error("99999999999GiB"), @"the size `99999999999GiB` is too great; choose a smaller one");
        for text in ["", "KiB", "-1", "1.5MiB", "1 MiB", "much"] {
            assert!(error(text).contains("write it like"), "{text}");
        }
    }

    #[test]
    fn a_size_is_shown_in_the_unit_that_suits_it() {
        let shown = |bytes| ByteSize(bytes).to_string();
        let sizes = [0, 1, 1024, 1536, 64_000, 3 << 20].map(shown);
        assert_eq!(sizes, ["0B", "1B", "1KiB", "1536B", "64kB", "3MiB"]);
    }
}
