//! The times of log lines.

use jiff::civil::DateTime;
use jiff::tz::Offset;

use weir_limit::time::{Nanos, Timestamp};

/// The months as the common log format writes them.
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// A time of RFC 3339, such as `2026-11-21T01:05:39.123456Z`.
pub(super) fn rfc3339(text: &str) -> Option<Timestamp> {
    timestamp(text.parse().ok()?)
}

/// A time as the common log format has it: `21/Nov/2026:01:05:39 +0100`.
pub(super) fn common_log(text: &[u8]) -> Option<Timestamp> {
    let text = str::from_utf8(text).ok()?;
    // HAProxy writes no offset.
    let (date_time, offset) = text.split_once(' ').unwrap_or((text, "Z"));
    let mut parts = date_time.split(['/', ':']);
    let day = parts.next()?.parse().ok()?;
    let month = parts.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let year = parts.next()?.parse().ok()?;
    let mut number = || parts.next()?.parse().ok();
    let (hour, minute) = (number()?, number()?);
    let (second, fraction) = second_and_fraction(parts.next()?)?;
    let month = i8::try_from(month).ok()?;
    let time = DateTime::new(year, month, day, hour, minute, second, fraction).ok()?;
    timestamp(offset_of(offset)?.to_timestamp(time).ok()?)
}

/// A second, such as `39` or `39.123`, and the nanoseconds in it. A leap second is the one before
/// it.
fn second_and_fraction(text: &str) -> Option<(i8, i32)> {
    let (second, fraction) = text.split_once('.').unwrap_or((text, ""));
    let second: i8 = second.parse().ok()?;
    let fraction = match fraction {
        "" => 0,
        _ => decimal(text)?.get() % 1_000_000_000,
    };
    Some((second.min(59), i32::try_from(fraction).ok()?))
}

/// A day and a time of it, in UTC.
pub(super) fn date_and_time(date: &str, time: &str) -> Option<Timestamp> {
    date_time(&format!("{date}T{time}"), "Z")
}

/// `2026-11-21 01:05:39`, or with a `T`, and an offset such as `Z` or `+0100`.
fn date_time(text: &str, offset: &str) -> Option<Timestamp> {
    let time: DateTime = text.parse().ok()?;
    timestamp(offset_of(offset)?.to_timestamp(time).ok()?)
}

/// A time that is near to RFC 3339: with a blank before the offset, or without one, as UTC.
fn near_rfc3339(text: &str) -> Option<Timestamp> {
    match text.rsplit_once(' ') {
        Some((time, offset)) if offset.starts_with(['+', '-', 'Z']) => date_time(time, offset),
        _ => date_time(text, "Z"),
    }
}

/// An offset such as `+0130`.
fn offset_of(text: &str) -> Option<Offset> {
    let sign = match text.get(..1)? {
        "Z" => return Some(Offset::UTC),
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let hours: i32 = text.get(1..3)?.parse().ok()?;
    let minutes = text.get(3..)?.trim_start_matches(':');
    let minutes: i32 = minutes.get(..2)?.parse().ok()?;
    Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()
}

fn timestamp(time: jiff::Timestamp) -> Option<Timestamp> {
    let nanos = u64::try_from(time.as_nanosecond()).ok()?;
    Some(Timestamp::from_nanos(nanos))
}

/// A time in whichever form: seconds, milliseconds or nanoseconds since 1970, or one of the others.
pub(super) fn any_time(text: &str) -> Option<Timestamp> {
    /// Seconds since 1970 are fewer until the year 5138, and milliseconds are more since 1973.
    const MAX_SECONDS: u64 = 100_000_000_000;
    /// The same of milliseconds.
    const MAX_MILLIS: u64 = 1000 * MAX_SECONDS;
    let whole: Option<u64> = text.split('.').next().and_then(|whole| whole.parse().ok());
    if let Some(nanos) = whole.filter(|whole| *whole > 1000 * MAX_MILLIS) {
        return Some(Timestamp::from_nanos(nanos));
    }
    if let Some(millis) = whole.filter(|whole| *whole > MAX_SECONDS) {
        return millis.checked_mul(1_000_000).map(Timestamp::from_nanos);
    }
    if let Some(seconds) = decimal(text) {
        return Some(Timestamp::from_nanos(seconds.get()));
    }
    let others = || common_log(text.as_bytes()).or_else(|| near_rfc3339(text));
    rfc3339(text).or_else(others)
}

/// A span of as many seconds as a decimal number says. Of several, which nginx has where it asked
/// several upstreams, the sum. Google writes an `s` behind it.
pub(super) fn seconds(text: &str) -> Option<Nanos> {
    let parts = text
        .trim_end_matches('s')
        .split([',', ':'])
        .map(str::trim)
        .filter(|part| *part != "-");
    let mut sum = None;
    for part in parts {
        sum = Some(sum.unwrap_or(Nanos::ZERO) + decimal(part)?);
    }
    sum
}

/// A decimal number of seconds, to the nanosecond.
fn decimal(text: &str) -> Option<Nanos> {
    scaled(text, 9)
}

/// A decimal number with its point moved to the right by this many digits. Further ones are left
/// out.
fn scaled(text: &str, digits: usize) -> Option<Nanos> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let fraction = fraction.get(..digits).unwrap_or(fraction);
    let scale = |digits| {
        u32::try_from(digits)
            .ok()
            .and_then(|digits| 10_u64.checked_pow(digits))
    };
    let nanos = match fraction {
        "" => 0,
        fraction => fraction.parse::<u64>().ok()? * scale(digits - fraction.len())?,
    };
    // Microseconds since 1970 are too many seconds for nanoseconds.
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale(digits)?)?;
    Some(Nanos::new(whole.checked_add(nanos)?))
}

/// A span of this many nanoseconds.
pub(super) fn nanoseconds(text: &str) -> Option<Nanos> {
    text.parse().ok().map(Nanos::new)
}

/// A span of this many milliseconds, to the nanosecond.
pub(super) fn milliseconds(text: &str) -> Option<Nanos> {
    scaled(text, 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_moment_is_the_same_in_every_form() {
        let moment = Timestamp::from_nanos(1_795_223_139_000_000_000);
        assert_eq!(rfc3339("2026-11-21T01:05:39Z"), Some(moment));
        assert_eq!(rfc3339("2026-11-21T02:35:39+01:30"), Some(moment));
        assert_eq!(common_log(b"21/Nov/2026:01:05:39 +0000"), Some(moment));
        assert_eq!(common_log(b"20/Nov/2026:20:05:39 -0500"), Some(moment));
    }

    #[test]
    fn a_time_since_1970_is_one_of_seconds_or_milliseconds() {
        let moment = Timestamp::from_nanos(1_795_223_139_250_000_000);
        for text in [
            "1795223139.25",
            "1795223139.250000000",
            "1795223139250",
            "1795223139250000000",
            "2026-11-21 01:05:39.250",
            "2026-11-21 02:05:39.250 +0100",
            "21/Nov/2026:01:05:39.250",
            "21/Nov/2026:02:05:39.250 +0100",
        ] {
            assert_eq!(any_time(text), Some(moment), "{text}");
        }
        assert_eq!(any_time("2026-11-21T01:05:39.250Z"), Some(moment));
    }

    #[test]
    fn spans_of_several_upstreams_are_added_up() {
        assert_eq!(seconds("0.125"), Some(Nanos::new(125_000_000)));
        assert_eq!(seconds("0.125, 1 : -"), Some(Nanos::new(1_125_000_000)));
        assert_eq!(seconds("0.125s"), Some(Nanos::new(125_000_000)));
        for text in ["-", "", "x", "1e3", "-1", ".5"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn milliseconds_are_read_to_the_nanosecond() {
        for (text, nanos) in [
            ("0", 0),
            ("9.073", 9_073_000),
            ("0.000001", 1),
            ("0.0000019", 1),
            ("86400000.5", 86_400_000_500_000),
        ] {
            assert_eq!(milliseconds(text), Some(Nanos::new(nanos)), "{text}");
        }
        for text in ["", ".5", "-1", "1e3", "99999999999999"] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_time_is_none() {
        for text in [
            "",
            "-",
            "21/Nov/2026:01:05 +0000",
            "21/Nov/2026:01:05:39.x +0000",
            "32/Nov/2026:01:05:39 +0000",
            "21/Nope/2026:01:05:39 +0000",
            "21/Nov/2026:01:05:39 +ab",
            "21/Nov/2026:01:05:39 \u{e9}0000",
        ] {
            assert_eq!(common_log(text.as_bytes()), None, "{text}");
            assert_eq!(rfc3339(text), None, "{text}");
        }
        assert_eq!(rfc3339("1950-01-01T00:00:00Z"), None);
    }
}
