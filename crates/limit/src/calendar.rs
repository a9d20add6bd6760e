//! Days, weeks and months as the people of a place have them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::ToSpan;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use thiserror::Error;

use crate::time::{Nanos, Timestamp};

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// The bits that hold the length of the window in force, in seconds; more than any month has.
const LENGTH_BITS: u32 = 22;

/// The length of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday, as ISO 8601 counts weeks.
    Week,
    /// From the first of a month to the first of the next.
    Month,
}

/// The windows of a calendar in one time zone.
///
/// It is a handle, which is copied freely: there is one calendar for each unit and zone that a
/// process has ever used, and it lives as long as the process.
#[derive(Clone, Copy)]
pub struct Calendar(&'static ZoneCalendar);

struct ZoneCalendar {
    unit: CalendarUnit,
    zone: TimeZone,
    zone_name: String,
    /// The window that was asked for last, so that the time zone is consulted once a window:
    /// the second of its start above its length in seconds. Both change at once.
    current: AtomicU64,
}

/// All calendars that were ever used.
static CALENDARS: Mutex<Vec<&'static ZoneCalendar>> = Mutex::new(Vec::new());

/// There is no such time zone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "there is no time zone \"{0}\"; write a name of the IANA time zone database, such as Europe/Berlin or UTC"
)]
pub struct UnknownTimeZone(pub String);

impl Calendar {
    /// The calendar of a time zone, by the zone's name in the IANA database, which is built in.
    ///
    /// # Errors
    /// When there is no zone of this name.
    pub fn new(unit: CalendarUnit, zone: &str) -> Result<Self, UnknownTimeZone> {
        let mut calendars = CALENDARS.lock();
        let known = calendars
            .iter()
            .find(|known| known.unit == unit && known.zone_name.eq_ignore_ascii_case(zone));
        if let Some(known) = known {
            return Ok(Self(known));
        }
        let found = TimeZone::get(zone).map_err(|_| UnknownTimeZone(zone.to_owned()))?;
        let inner = Box::leak(Box::new(ZoneCalendar {
            unit,
            zone_name: found.iana_name().unwrap_or(zone).to_owned(),
            zone: found,
            current: AtomicU64::new(0),
        }));
        calendars.push(inner);
        Ok(Self(inner))
    }

    /// The length of a window.
    pub fn unit(self) -> CalendarUnit {
        self.0.unit
    }

    /// The time zone's name.
    pub fn time_zone(self) -> &'static str {
        &self.0.zone_name
    }

    /// When the window that holds `now` ends, and the next begins.
    pub fn end(self, now: Timestamp) -> Timestamp {
        let second = now.as_nanos() / NANOS_PER_SEC;
        let (start, length) = unpacked(self.0.current.load(Ordering::Relaxed));
        let end = if (start..start + length).contains(&second) {
            start + length
        } else {
            self.compute(second)
        };
        Timestamp::from_nanos(end.saturating_mul(NANOS_PER_SEC))
    }

    /// Computes the window that holds a second, remembers it, and returns the second of its end.
    fn compute(self, second: u64) -> u64 {
        let Some((start, end)) = self.0.window(second) else {
            // No calendar goes so far: the window is one that never ends.
            return u64::MAX;
        };
        let window = packed(start, end - start);
        self.0.current.store(window, Ordering::Relaxed);
        end
    }
}

impl CalendarUnit {
    /// How long a window is, or a month at its longest.
    pub const fn longest(self) -> Nanos {
        const DAY: u64 = 24 * 3600;
        Nanos::from_secs(match self {
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 31 * DAY,
        })
    }

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    fn first_day(self, date: Date) -> Option<Date> {
        match self {
            Self::Day => Some(date),
            Self::Week => {
                let since_monday = date.weekday().to_monday_zero_offset();
                date.checked_sub(i32::from(since_monday).days()).ok()
            }
            Self::Month => Some(date.first_of_month()),
        }
    }

    fn next(self, first_day: Date) -> Option<Date> {
        let span = match self {
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
        };
        first_day.checked_add(span).ok()
    }
}

impl ZoneCalendar {
    /// The first second of the window that holds this one, and the first of the next window.
    fn window(&self, second: u64) -> Option<(u64, u64)> {
        let moment = jiff::Timestamp::from_second(second.try_into().ok()?).ok()?;
        let first_day = self
            .unit
            .first_day(moment.to_zoned(self.zone.clone()).date())?;
        let end = self.midnight(self.unit.next(first_day)?)?;
        let start = self.midnight(first_day)?;
        Some((start, end))
    }

    /// The second with which a day begins. Where clocks are put forward at midnight it begins
    /// later; what lies before 1970 is cut off.
    fn midnight(&self, date: Date) -> Option<u64> {
        let midnight = date.to_zoned(self.zone.clone()).ok()?;
        Some(u64::try_from(midnight.timestamp().as_second()).unwrap_or(0))
    }
}

fn packed(start: u64, length: u64) -> u64 {
    (start << LENGTH_BITS) | length
}

fn unpacked(window: u64) -> (u64, u64) {
    (window >> LENGTH_BITS, window & ((1 << LENGTH_BITS) - 1))
}

/// There is one calendar for each unit and zone.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

/// Such as `day in Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.unit().name(), self.time_zone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        let moment: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_nanos(moment.as_nanosecond().try_into().unwrap())
    }

    fn end(unit: CalendarUnit, zone: &str, now: &str) -> Timestamp {
        Calendar::new(unit, zone).unwrap().end(at(now))
    }

    #[test]
    fn a_day_ends_at_midnight_of_its_zone() {
        let day = |zone, now| end(CalendarUnit::Day, zone, now);
        assert_eq!(
            day("UTC", "2026-03-01T23:59:59.999999999Z"),
            at("2026-03-02T00:00:00Z")
        );
        assert_eq!(
            day("UTC", "2026-03-02T00:00:00Z"),
            at("2026-03-03T00:00:00Z")
        );
        assert_eq!(
            day("Europe/Berlin", "2026-03-01T23:30:00Z"),
            at("2026-03-02T23:00:00Z")
        );
    }

    #[test]
    fn a_day_on_which_clocks_are_changed_has_23_or_25_hours() {
        let day = |now| end(CalendarUnit::Day, "Europe/Berlin", now);
        assert_eq!(day("2026-03-28T23:00:00Z"), at("2026-03-29T22:00:00Z"));
        assert_eq!(day("2026-10-24T22:00:00Z"), at("2026-10-25T23:00:00Z"));
    }

    #[test]
    fn a_day_without_a_midnight_begins_when_clocks_have_been_put_forward() {
        let day = |now| end(CalendarUnit::Day, "Africa/Cairo", now);
        assert_eq!(day("2026-04-23T12:00:00Z"), at("2026-04-23T22:00:00Z"));
        assert_eq!(day("2026-04-23T22:00:00Z"), at("2026-04-24T21:00:00Z"));
    }

    #[test]
    fn a_week_begins_on_monday_and_a_month_on_the_first() {
        assert_eq!(
            end(CalendarUnit::Week, "UTC", "2026-03-01T12:00:00Z"),
            at("2026-03-02T00:00:00Z")
        );
        assert_eq!(
            end(
                CalendarUnit::Month,
                "America/New_York",
                "2026-03-01T04:59:59Z"
            ),
            at("2026-03-01T05:00:00Z")
        );
        assert_eq!(
            end(CalendarUnit::Month, "UTC", "1970-01-01T00:00:00Z"),
            at("1970-02-01T00:00:00Z")
        );
    }

    #[test]
    fn a_zone_that_is_unknown_is_refused_and_one_that_is_known_is_one_calendar() {
        assert!(Calendar::new(CalendarUnit::Day, "Europe/Atlantis").is_err());
        let zone = |name| Calendar::new(CalendarUnit::Day, name).unwrap();
        assert_eq!(zone("Europe/Paris"), zone("europe/paris"));
        assert_ne!(zone("Europe/Paris"), zone("Europe/Rome"));
        assert_eq!(zone("europe/paris").to_string(), "day in Europe/Paris");
    }

    proptest! {
        #[test]
        fn windows_follow_each_other_without_a_gap(seconds in 0..4_000_000_000_u64, forth: bool) {
            for unit in [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month] {
                let calendar = Calendar::new(unit, "America/Sao_Paulo").unwrap();
                let now = Timestamp::from_nanos(seconds * NANOS_PER_SEC);
                let end = calendar.end(now);
                // The window that is remembered must not colour the answer about another.
                if forth {
                    calendar.end(end + Nanos::from_secs(40 * 86_400));
                }
                let just_before = Timestamp::from_nanos(end.as_nanos() - 1);
                prop_assert!(end > now);
                prop_assert_eq!(calendar.end(just_before), end);
                prop_assert_eq!(calendar.end(now), end);
                prop_assert!(calendar.end(end).since(end) <= unit.longest() + Nanos::from_secs(7200));
            }
        }
    }
}
