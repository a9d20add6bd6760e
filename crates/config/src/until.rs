//! When something ends, as it is written in a configuration.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{RoundMode, TimestampRound, Unit};
use thiserror::Error;
use weir_limit::time::Timestamp;
use weir_yaml::Lowering;

weir_yaml::read_from_text! {
    Until: "a date such as 2026-12-31",
}

/// When something ends, as it is written in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until(pub Timestamp);

/// A text that is not an end. The first line says what is wrong, the second what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a date\nwrite a day such as 2026-12-31, to the end of it in UTC, or a moment such as \
     2026-12-31T18:00:00+01:00"
)]
pub struct NotADate(String);

impl FromStr for Until {
    type Err = NotADate;

    fn from_str(text: &str) -> Result<Self, NotADate> {
        let moment = match is_day(text) {
            true => end_of_day(text),
            false => moment(text),
        };
        moment
            .map(|moment| Self(timestamp(moment)))
            .ok_or_else(|| NotADate(text.to_owned()))
    }
}

/// Whether a text has the form of a day, and not just one of the forms that a library would read.
fn is_day(text: &str) -> bool {
    let form = b"0000-00-00";
    text.len() == form.len()
        && text.bytes().zip(form).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            other => byte == *other,
        })
}

/// The last day of the calendar, which people write for "never", has no tomorrow.
fn end_of_day(text: &str) -> Option<jiff::Timestamp> {
    let day: Date = text.parse().ok()?;
    let midnight = day.tomorrow().and_then(|next| next.to_zoned(TimeZone::UTC));
    Some(midnight.map_or(jiff::Timestamp::MAX, |midnight| midnight.timestamp()))
}

/// A moment has a day, a `T` and an offset.
fn moment(text: &str) -> Option<jiff::Timestamp> {
    let (day, time) = text.split_once(['T', 't'])?;
    let has_seconds = time.bytes().filter(|byte| *byte == b':').count() >= 2;
    (is_day(day) && has_seconds && !text.contains('[')).then(|| text.parse().ok())?
}

/// The present of a load.
pub(crate) fn now(cx: &Lowering<'_>) -> Timestamp {
    Timestamp::from_nanos(u64::try_from(cx.now.as_nanos()).unwrap_or(u64::MAX))
}

/// A moment before 1970 is 1970: it is over either way.
fn timestamp(moment: jiff::Timestamp) -> Timestamp {
    let nanos = u64::try_from(moment.as_nanosecond().max(0)).unwrap_or(u64::MAX);
    Timestamp::from_nanos(nanos)
}

/// In UTC, to the second, or to the millisecond where a precision is asked for.
impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos().into();
        let moment = jiff::Timestamp::from_nanosecond(nanos).map_err(|_| fmt::Error)?;
        let smallest = match f.precision() {
            None => Unit::Second,
            Some(_) => Unit::Millisecond,
        };
        let round = TimestampRound::new()
            .smallest(smallest)
            .mode(RoundMode::Ceil);
        write!(f, "{}", moment.round(round).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> String {
        text.parse::<Until>().unwrap().to_string()
    }

    #[test]
    fn a_day_ends_at_midnight_utc() {
        assert_eq!(end("2026-12-31"), "2027-01-01T00:00:00Z");
        assert_eq!(end("2028-02-28"), "2028-02-29T00:00:00Z");
    }

    #[test]
    fn a_moment_is_itself_in_any_zone() {
        assert_eq!(end("2026-12-31T18:00:00Z"), "2026-12-31T18:00:00Z");
        assert_eq!(end("2026-12-31T18:00:00+01:00"), "2026-12-31T17:00:00Z");
        assert_eq!(end("2026-12-31t18:00:00.5z"), "2026-12-31T18:00:01Z");
    }

    #[test]
    fn ends_beyond_what_buckets_can_hold_are_cut_to_it() {
        assert_eq!(end("1969-07-20"), "1970-01-01T00:00:00Z");
        for never in ["9000-01-01", "9999-12-30", "9999-12-31"] {
            assert_eq!(never.parse(), Ok(Until(Timestamp::MAX)), "{never}");
        }
    }

    #[test]
    fn other_texts_are_no_ends() {
        for text in [
            "",
            "soon",
            "2026",
            "2026-13-01",
            "2026-02-30",
            "31.12.2026",
            "20261231",
            "9999-12-31x",
            "2026-12-31T18:00",
            "2026-12-31T18:00:00",
            "2026-12-31 18:00:00Z",
            "2026-12-31T18:00:00+01:00[Europe/Berlin]",
            "1h",
            "2026-W53-4",
        ] {
            assert!(text.parse::<Until>().is_err(), "{text} was read");
        }
    }
}
