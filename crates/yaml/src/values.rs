//! Values that are written as text: durations, sizes, and names of HTTP.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use serde::de::{Deserialize, Deserializer, Error as _};
use thiserror::Error;

/// Has types read from the texts that they are written as; the words say what should stand there.
#[macro_export]
macro_rules! read_from_text {
    ($($type:ty: $expected:literal,)+) => {$(
        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                $crate::parsed(deserializer, $expected)
            }
        }
    )+};
}

read_from_text! {
    HumanDuration: "a duration such as `1m30s`",
    PositiveDuration: "a duration such as `1m30s`",
    ByteSize: "a size such as `64KiB`",
    FieldName: "the name of a header",
    MethodName: "a method",
    MediaType: "a media type",
    Percent: "a percentage",
}

/// The units, longest first, in nanoseconds. Both of Unicode's micro signs are in use.
const TIME_UNITS: [(&str, u64); 9] = [
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

/// Other words for the units, in lower case.
const UNIT_WORDS: [(&str, &str); 7] = [
    ("d", "d day days"),
    ("h", "h hr hrs hour hours"),
    ("m", "m min mins minute minutes"),
    ("s", "s sec secs second seconds"),
    ("ms", "ms msec msecs millis millisecond milliseconds"),
    ("us", "us usec usecs micros microsecond microseconds"),
    ("ns", "ns nsec nsecs nanos nanosecond nanoseconds"),
];

/// A longer text is not looked through for words.
const MAX_SPELLED_BYTES: usize = 64;

/// A duration as it is written in a configuration; at most 2^64 - 1 nanoseconds, or 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

impl From<HumanDuration> for Duration {
    fn from(duration: HumanDuration) -> Self {
        duration.0
    }
}

/// Why a text is not a duration. The first line says what is wrong, the second what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HumanDurationError {
    /// There is a number and no unit.
    #[error(
        "the duration `{0}` has no unit\nwrite `{0}s` for seconds; units are ns, us, ms, s, m, h and d"
    )]
    NoUnit(String),
    /// Its unit is none of those known.
    #[error("the duration `{0}` has the unknown unit `{1}`\nunits are ns, us, ms, s, m, h and d")]
    UnknownUnit(String, String),
    /// It is written in another way, with words or spaces, that says as clearly how long it is.
    #[error(
        "`{0}` is not how a duration is written\nwrite `{1}`; units are ns, us, ms, s, m, h and d"
    )]
    Spelled(String, HumanDuration),
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
        Self::in_short_units(text).map_err(|error| match spelled(text) {
            Some(meant) => HumanDurationError::Spelled(text.to_owned(), meant),
            None => error,
        })
    }
}

impl HumanDuration {
    fn in_short_units(text: &str) -> Result<Self, HumanDurationError> {
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

/// What `1 minute`, `2 Days` or `1M` mean. Months and years have no length of their own.
fn spelled(text: &str) -> Option<HumanDuration> {
    if text.len() > MAX_SPELLED_BYTES {
        return None;
    }
    let mut short = String::new();
    for part in split_words(text) {
        short += match part {
            number if number.starts_with(|c: char| c.is_ascii_digit() || c == '.') => number,
            word => {
                UNIT_WORDS
                    .iter()
                    .find(|(_, words)| words.split(' ').any(|it| it.eq_ignore_ascii_case(word)))?
                    .0
            }
        };
    }
    HumanDuration::in_short_units(&short).ok()
}

/// Numbers and words, without the spaces between them.
fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().flat_map(|part| {
        let (number, word) = split_where(part, |c| !c.is_ascii_digit() && c != '.');
        [number, word].into_iter().filter(|it| !it.is_empty())
    })
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
    let known = TIME_UNITS.iter().find(|(name, _)| *name == unit);
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
        for (unit, nanos) in TIME_UNITS.iter().filter(|(unit, _)| unit.is_ascii()) {
            let whole = left / u128::from(*nanos);
            left %= u128::from(*nanos);
            if whole > 0 {
                write!(f, "{whole}{unit}")?;
            }
        }
        Ok(())
    }
}

/// A duration that is not zero.
#[derive(Clone, Copy, Debug)]
pub struct PositiveDuration(pub Duration);

impl From<PositiveDuration> for Duration {
    fn from(duration: PositiveDuration) -> Self {
        duration.0
    }
}

/// Why a duration leaves no time, or a text is no duration.
#[derive(Debug, Error)]
pub enum PositiveDurationError {
    /// It is zero.
    #[error("a time of zero leaves no time at all\nleave it out for the default")]
    Zero,
    /// It is no duration.
    #[error(transparent)]
    Duration(#[from] HumanDurationError),
}

impl TryFrom<HumanDuration> for PositiveDuration {
    type Error = PositiveDurationError;

    fn try_from(duration: HumanDuration) -> Result<Self, PositiveDurationError> {
        match duration {
            HumanDuration(Duration::ZERO) => Err(PositiveDurationError::Zero),
            HumanDuration(duration) => Ok(Self(duration)),
        }
    }
}

impl FromStr for PositiveDuration {
    type Err = PositiveDurationError;

    fn from_str(text: &str) -> Result<Self, PositiveDurationError> {
        text.parse::<HumanDuration>()?.try_into()
    }
}

pub const SIZE_UNITS: [(&str, u64); 9] = [
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

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

/// Why a text is not a size. The first line says what is wrong, the second what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ByteSizeError {
    /// Its unit is none of those known.
    #[error("the size `{0}` has the unknown unit `{1}`\nunits are B, kB, KiB, MB, MiB, GB and GiB")]
    UnknownUnit(String, String),
    /// It is 2^64 bytes or more.
    #[error("the size `{0}` is too great\nchoose a smaller one")]
    TooGreat(String),
    /// It is something else.
    #[error("`{0}` is not a size\nwrite it like 512, 64kB or 1MiB")]
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
        let Some((_, bytes)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) else {
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
        let units = SIZE_UNITS.iter().skip(1).filter(|(unit, _)| *unit != "KB");
        let greatest = units.filter(|(_, bytes)| whole(*bytes));
        match greatest.max_by_key(|(_, bytes)| *bytes) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// A size that is not zero, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct PositiveSize(pub u64);

impl<'de> Deserialize<'de> for PositiveSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ByteSize(bytes) = ByteSize::deserialize(deserializer)?;
        if bytes == 0 {
            let error = "a size of zero leaves no room at all\n\
                         leave it out, or write it like 64KiB or 10MiB";
            return Err(D::Error::custom(error));
        }
        Ok(Self(bytes))
    }
}

/// A number within bounds, both of which it may have.
#[derive(Clone, Copy, Debug)]
pub struct Within<const LEAST: u32, const MOST: u32>(pub u32);

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Within<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        let within = u32::try_from(number).ok();
        let within = within.filter(|number| (LEAST..=MOST).contains(number));
        within.map(Self).ok_or_else(|| {
            let error = format!("it must be from {LEAST} to {MOST}\nleave it out for the default");
            D::Error::custom(error)
        })
    }
}

impl<const LEAST: u32, const MOST: u32> From<Within<LEAST, MOST>> for u32 {
    fn from(number: Within<LEAST, MOST>) -> Self {
        number.0
    }
}

impl<const LEAST: u32, const MOST: u32> From<Within<LEAST, MOST>> for usize {
    fn from(number: Within<LEAST, MOST>) -> Self {
        Self::try_from(number.0).unwrap_or(Self::MAX)
    }
}

/// A status that ends an exchange.
#[derive(Clone, Copy, Debug)]
pub struct ResponseStatus(pub StatusCode);

impl ResponseStatus {
    /// The statuses of responses.
    pub const NUMBERS: RangeInclusive<u16> = 200..=599;
}

impl<'de> Deserialize<'de> for ResponseStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u16::deserialize(deserializer)?;
        let status = Self::NUMBERS.contains(&number).then_some(number);
        let status = status.and_then(|number| StatusCode::from_u16(number).ok());
        status.map(Self).ok_or_else(|| {
            let message = format!("{number} is not the status of a response");
            let (least, most) = Self::NUMBERS.into_inner();
            D::Error::custom(format!(
                "{message}\na status is a number from {least} to {most}"
            ))
        })
    }
}

/// The name of a header.
#[derive(Clone, Debug)]
pub struct FieldName(pub HeaderName);

/// A text that is not the name of a header.
#[derive(Debug, Error)]
#[error("`{0}` is not the name of a header")]
pub struct NotAFieldName(String);

impl FromStr for FieldName {
    type Err = NotAFieldName;

    fn from_str(text: &str) -> Result<Self, NotAFieldName> {
        let name = text.parse().map(Self);
        name.map_err(|_| NotAFieldName(text.to_owned()))
    }
}

/// A method.
#[derive(Clone, Debug)]
pub struct MethodName(pub Method);

/// A text that is not a method.
#[derive(Debug, Error)]
pub enum MethodError {
    /// It has lower-case letters.
    #[error("methods are case-sensitive: `{0}`\ndid you mean \"{1}\"?")]
    Case(String, String),
    /// It is no token.
    #[error("`{0}` is not a method")]
    Malformed(String),
}

impl FromStr for MethodName {
    type Err = MethodError;

    fn from_str(text: &str) -> Result<Self, MethodError> {
        let upper = text.to_ascii_uppercase();
        if upper != text {
            return Err(MethodError::Case(text.to_owned(), upper));
        }
        let method = text.parse().map(Self);
        method.map_err(|_| MethodError::Malformed(text.to_owned()))
    }
}

/// A media type without parameters, or all of a kind; in lower case.
#[derive(Clone, Debug)]
pub struct MediaType(pub String);

impl From<MediaType> for String {
    fn from(media_type: MediaType) -> Self {
        media_type.0
    }
}

/// A text that is not a media type.
#[derive(Debug, Error)]
#[error("`{0}` is not a media type\nwrite it like text/html, without parameters, or text/*")]
pub struct MediaTypeError(String);

impl FromStr for MediaType {
    type Err = MediaTypeError;

    fn from_str(text: &str) -> Result<Self, MediaTypeError> {
        let is_token = |text: &str| {
            let is_of_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
            !text.is_empty() && text.bytes().all(is_of_token)
        };
        let parts = text.split_once('/');
        let is_type = parts.is_some_and(|(kind, of)| is_token(kind) && (of == "*" || is_token(of)));
        is_type
            .then(|| Self(text.to_ascii_lowercase()))
            .ok_or_else(|| MediaTypeError(text.to_owned()))
    }
}

/// A whole number of percent.
#[derive(Clone, Copy, Debug)]
pub struct Percent(pub u8);

impl From<Percent> for u8 {
    fn from(percent: Percent) -> Self {
        percent.0
    }
}

/// A text that is not a percentage.
#[derive(Debug, Error)]
#[error("`{0}` is not a percentage\nwrite a whole number from 0% to 100%, such as 20%")]
pub struct PercentError(String);

impl FromStr for Percent {
    type Err = PercentError;

    fn from_str(text: &str) -> Result<Self, PercentError> {
        let number = text.strip_suffix('%').map(u8::from_str);
        let percent = number.and_then(Result::ok).filter(|share| *share <= 100);
        percent
            .map(Self)
            .ok_or_else(|| PercentError(text.to_owned()))
    }
}

/// Reads a whole number in decimal digits, as a number of YAML is read.
pub fn whole_number(text: &str) -> Option<u64> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = text == "0" || !text.starts_with('0');
    (is_decimal && is_plain).then(|| text.parse().ok())?
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
        insta::assert_snapshot!(error("1 Minute"), @r"
        `1 Minute` is not how a duration is written
        write `1m`; units are ns, us, ms, s, m, h and d
        ");
        for (text, meant) in [
            ("1min", "1m"),
            ("1 m", "1m"),
            ("1M", "1m"),
            ("1hour", "1h"),
            ("2 days", "2d"),
            ("1 hour 30 minutes", "1h30m"),
            ("1.5 secs", "1s500ms"),
            ("20 milliseconds", "20ms"),
        ] {
            let told = error(text);
            assert!(
                told.contains(&format!("\nwrite `{meant}`;")),
                "{text}: {told}"
            );
        }
        assert!(error("1 month").contains("unknown unit"));
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
        insta::assert_snapshot!(error("1kib"), @r"
        the size `1kib` has the unknown unit `kib`
        units are B, kB, KiB, MB, MiB, GB and GiB
        ");
        insta::assert_snapshot!(error("99999999999GiB"), @r"
        the size `99999999999GiB` is too great
        choose a smaller one
        ");
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
