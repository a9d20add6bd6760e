//! Durations as Go writes them, and days: `20ms`, `1.5s`, `1h30m`, `180m`, `2160h`, `7d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::yaml::parsed;

/// The units, longest first, in nanoseconds. Both of Unicode's micro signs are in use.
const UNITS: [(&str, u64); 9] = [
    ("d", 24 * 3_600_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ns", 1),
];

/// A duration as it is written in a configuration; at most 2^64 - 1 nanoseconds, or 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

/// Why a text is not a duration. The first line says what is wrong, the second what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HumanDurationError {
    /// There is a number and no unit.
    #[error(
        "the duration `{0}` has no unit\nwrite `{0}s` for seconds; units are ns, us, ms, s, m, h and d"
    )]
    NoUnit(String),
    /// There is a unit that nobody knows.
    #[error("the duration `{0}` has the unknown unit `{1}`\nunits are ns, us, ms, s, m, h and d")]
    UnknownUnit(String, String),
    /// It is longer than 584 years.
    #[error("the duration `{0}` is longer than 584 years")]
    TooLong(String),
    /// It is something else.
    #[error("`{0}` is not a duration\nwrite it like `20ms`, `1.5s`, `1h30m` or `7d`")]
    Malformed(String),
}

impl FromStr for HumanDuration {
    type Err = HumanDurationError;

    fn from_str(text: &str) -> Result<Self, HumanDurationError> {
        let malformed = || HumanDurationError::Malformed(text.to_owned());
        let mut nanos: u128 = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let (number, after) = split_where(rest, |c| !c.is_ascii_digit() && c != '.');
            let (unit, after) = split_where(after, |c| c.is_ascii_digit() || c == '.');
            nanos = nanos.saturating_add(amount(text, number, unit)?);
            rest = after;
        }
        if text.is_empty() {
            return Err(malformed());
        }
        u64::try_from(nanos)
            .map(|nanos| Self(Duration::from_nanos(nanos)))
            .map_err(|_| HumanDurationError::TooLong(text.to_owned()))
    }
}

/// Nanoseconds of one number with its unit; what is less than a nanosecond is dropped.
fn amount(text: &str, number: &str, unit: &str) -> Result<u128, HumanDurationError> {
    let malformed = || HumanDurationError::Malformed(text.to_owned());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(malformed());
    }
    let scale = scale(text, unit)?;
    let whole = digits(whole).ok_or_else(|| HumanDurationError::TooLong(text.to_owned()))?;
    // Digits beyond the eighteenth are less than a nanosecond in every unit.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    Ok(whole * scale + digits(fraction).ok_or_else(malformed)? * scale / divisor)
}

/// A run of digits as a number; zero when there are none. Nineteen digits keep every product and
/// every sum far below 2^128.
fn digits(text: &str) -> Option<u128> {
    match text.trim_start_matches('0') {
        "" => Some(0),
        significant if significant.len() > 20 => None,
        significant => significant.parse().ok(),
    }
}

fn scale(text: &str, unit: &str) -> Result<u128, HumanDurationError> {
    let known = UNITS.iter().find(|(name, _)| *name == unit);
    match known {
        Some((_, nanos)) => Ok(u128::from(*nanos)),
        None if unit.is_empty() => Err(HumanDurationError::NoUnit(text.to_owned())),
        None => Err(HumanDurationError::UnknownUnit(
            text.to_owned(),
            unit.to_owned(),
        )),
    }
}

fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// The shortest exact form in whole units, such as `1h30m` or `600ms`.
impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.as_nanos();
        if left == 0 {
            return f.write_str("0s");
        }
        for (unit, nanos) in UNITS.iter().filter(|(unit, _)| unit.is_ascii()) {
            let whole = left / u128::from(*nanos);
            left %= u128::from(*nanos);
            if whole > 0 {
                write!(f, "{whole}{unit}")?;
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, "a duration such as `1m30s`")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nanos(text: &str) -> u128 {
        text.parse::<HumanDuration>().unwrap().0.as_nanos()
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        assert_eq!(nanos("1s"), 1_000_000_000);
        assert_eq!(nanos("180m"), nanos("3h"));
        assert_eq!(nanos("2160h"), nanos("90d"));
        assert_eq!(nanos("1h30m"), nanos("90m"));
        assert_eq!(nanos("20ms"), 20_000_000);
        assert_eq!(nanos("1.5s"), 1_500_000_000);
        assert_eq!(nanos(".5s"), 500_000_000);
        assert_eq!(nanos("1us"), nanos("1\u{b5}s"));
        assert_eq!(nanos("1.0000000019s"), 1_000_000_001);
        assert_eq!(nanos("0s"), 0);
    }

    #[test]
    fn what_is_no_duration_is_told_what_is_wrong_with_it() {
        let error = |text: &str| text.parse::<HumanDuration>().unwrap_err().to_string();
        insta::assert_snapshot!(error("30"), @r"
        the duration `30` has no unit
        write `30s` for seconds; units are ns, us, ms, s, m, h and d
        ");
        insta::assert_snapshot!(error("3w"), @r"
        the duration `3w` has the unknown unit `w`
        units are ns, us, ms, s, m, h and d
        ");
        assert!(error("9999999999d").contains("longer than 584 years"));
        assert!(error("99999999999999999999999999999999999999999s").contains("584 years"));
        for text in ["", "s", "-1s", "1..5s", "soon", ".s", "1 s"] {
            assert!(text.parse::<HumanDuration>().is_err(), "{text:?} was read");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_as_the_same_duration(nanos: u64) {
            let span = HumanDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(span.to_string().parse::<HumanDuration>(), Ok(span));
        }

        #[test]
        fn no_text_makes_reading_panic(text in "[0-9.a-zµ ]{0,60}|.*") {
            let _ = text.parse::<HumanDuration>();
        }
    }
}
