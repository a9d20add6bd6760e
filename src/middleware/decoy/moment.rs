//! Moments in values: HTTP's dates, those of RFC 3339 and its kin, and seconds or milliseconds
//! since 1970.
//!
//! Some move with the clock, as `expires` does, and some stay, as `last-modified` does for as long
//! as nothing is changed. Which it is shows in the answers of two different moments.

use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use rand::{Rng, RngExt};

/// How moments are written, in the terms of `strftime`. A form that another begins with comes after
/// it.
const FORMS: [&str; 8] = [
    "%a, %d %b %Y %H:%M:%S GMT",
    "%A, %d-%b-%y %H:%M:%S GMT",
    "%a %b %e %H:%M:%S %Y",
    "%Y-%m-%dT%H:%M:%S%.fZ",
    "%Y-%m-%dT%H:%M:%S%.f%:z",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f",
    DAY,
];

const DAY: &str = "%Y-%m-%d";

const FRACTION: &str = "%.f";

/// No form is shorter.
const SHORTEST: usize = 10;

/// A number further from now, in seconds, is not a moment.
const FAR: u64 = 366 * 86_400;

/// Two clocks, and what is cut off of seconds, may differ by this much.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

/// A moment that a value names.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    form: Form,
    value: Timestamp,
    /// When it was seen.
    seen: Timestamp,
    /// When an earlier one was seen, and which, for comparison.
    earlier: (Timestamp, Timestamp),
    moves: bool,
    /// What is shown in its place where it does not move.
    like: Timestamp,
}

#[derive(Clone, Debug)]
enum Form {
    Text { pattern: String, offset: Offset },
    Seconds,
    Millis,
}

impl Moment {
    /// The moment that a text begins with, as it is seen `now`, and how many bytes name it.
    pub(super) fn at_start(
        text: &str,
        now: Timestamp,
        random: &mut impl Rng,
    ) -> Option<(Self, usize)> {
        if text.len() < SHORTEST {
            return None;
        }
        let (form, value, len) = number(text, now).or_else(|| written(text))?;
        let ends = !text
            .get(len..)?
            .starts_with(|next: char| next.is_ascii_alphanumeric());
        let distance = value.duration_since(now);
        let nearer = distance.mul_f64(random.random_range(0.5..0.9));
        let moment = Self {
            form,
            value,
            seen: now,
            earlier: (now, value),
            moves: distance >= -TOLERANCE,
            like: now.checked_add(nearer).ok()?,
        };
        ends.then_some((moment, len))
    }

    /// Learns from the one that was at the same place before.
    pub(super) fn follow(&mut self, before: &Self) {
        self.like = before.like;
        let (seen, value) = before.earlier;
        let (passed, moved) = (
            self.seen.duration_since(seen),
            self.value.duration_since(value),
        );
        if passed < TOLERANCE {
            self.moves = before.moves;
            self.earlier = before.earlier;
        } else if moved.is_zero() {
            self.moves = false;
        } else if !self.moves {
            self.moves = (moved - passed).abs() <= TOLERANCE;
        }
    }

    /// Whether it moves with the clock.
    pub(super) fn moves(&self) -> bool {
        self.moves
    }

    /// Another one like it, to be shown `now`: as far from now as it was, or always the same.
    pub(super) fn invent(&self, now: Timestamp) -> String {
        let moment = if self.moves {
            let distance = self.value.duration_since(self.seen);
            now.checked_add(distance).unwrap_or(self.value)
        } else {
            self.like
        };
        match &self.form {
            Form::Seconds => moment.as_second().to_string(),
            Form::Millis => moment.as_millisecond().to_string(),
            Form::Text { pattern, offset } => {
                let zoned = moment.to_zoned(TimeZone::fixed(*offset));
                zoned.strftime(pattern).to_string()
            }
        }
    }
}

/// Seconds or milliseconds since 1970.
fn number(text: &str, now: Timestamp) -> Option<(Form, Timestamp, usize)> {
    let len = text.find(|next: char| !next.is_ascii_digit());
    let len = len.unwrap_or(text.len());
    let number = text.get(..len)?.parse().ok()?;
    let (form, moment) = match len {
        10 => (Form::Seconds, Timestamp::from_second(number).ok()?),
        13 => (Form::Millis, Timestamp::from_millisecond(number).ok()?),
        _ => return None,
    };
    let is_near = moment.duration_since(now).unsigned_abs().as_secs() < FAR;
    is_near.then_some((form, moment, len))
}

/// A date, or a date and a time, in one of the usual forms.
fn written(text: &str) -> Option<(Form, Timestamp, usize)> {
    FORMS.iter().find_map(|form| {
        let (time, len) = BrokenDownTime::parse_prefix(form, text).ok()?;
        let civil = match *form {
            DAY => time.to_date().ok()?.at(0, 0, 0, 0),
            _ => time.to_datetime().ok()?,
        };
        let offset = time.offset().unwrap_or(Offset::UTC);
        let moment = offset.to_timestamp(civil).ok()?;
        let pattern = form.replace(FRACTION, &fraction(text.get(..len)?));
        Some((Form::Text { pattern, offset }, moment, len))
    })
}

/// The fraction of a second as it is to be written: with as many digits as this has.
fn fraction(text: &str) -> String {
    let digits = text.split_once('.').map_or(0, |(_, after)| {
        after.bytes().take_while(u8::is_ascii_digit).count()
    });
    match digits {
        0 => String::new(),
        digits => format!("%.{}f", digits.min(9)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    const NOW: &str = "2026-11-21T10:00:00Z";

    fn at(secs: i64) -> Timestamp {
        let now: Timestamp = NOW.parse().unwrap();
        now + SignedDuration::from_secs(secs)
    }

    fn seen(text: &str, secs: i64) -> Moment {
        let (moment, len) = Moment::at_start(text, at(secs), &mut rand::rng()).unwrap();
        assert_eq!(len, text.len());
        moment
    }

    /// What is shown after a minute when these were seen at their seconds.
    fn after(values: &[(&str, i64)]) -> String {
        let learn = |before: Option<Moment>, (text, secs): &(&str, i64)| {
            let mut moment = seen(text, *secs);
            if let Some(before) = before {
                moment.follow(&before);
            }
            Some(moment)
        };
        let learnt = values.iter().fold(None, learn).unwrap();
        learnt.invent(at(60))
    }

    #[test]
    fn what_lies_ahead_moves_with_the_clock_in_its_own_form() {
        for (value, later) in [
            (
                "Sat, 21 Nov 2026 10:01:00 GMT",
                "Sat, 21 Nov 2026 10:02:00 GMT",
            ),
            (
                "Saturday, 21-Nov-26 23:59:30 GMT",
                "Sunday, 22-Nov-26 00:00:30 GMT",
            ),
            ("Sat Nov 21 10:01:00 2026", "Sat Nov 21 10:02:00 2026"),
            ("2026-11-21T10:00:00Z", "2026-11-21T10:01:00Z"),
            ("2026-11-21T10:00:00.250Z", "2026-11-21T10:01:00.250Z"),
            ("2026-11-21T12:00:00.5+02:00", "2026-11-21T12:01:00.5+02:00"),
            ("2026-11-21T10:00:07", "2026-11-21T10:01:07"),
            ("2026-11-21 10:00:07", "2026-11-21 10:01:07"),
            ("2026-11-22", "2026-11-22"),
            ("1795255261", "1795255321"),
            ("1795255261500", "1795255321500"),
        ] {
            assert_eq!(after(&[(value, 0)]), later);
        }
    }

    #[test]
    fn what_lies_behind_stays_and_is_another_one() {
        let value = "Fri, 20 Nov 2026 10:00:00 GMT";
        let moment = seen(value, 0);
        assert!(!moment.moves());
        let shown = moment.invent(at(0));
        assert_eq!(shown, moment.invent(at(3600)));
        assert_ne!(shown, value);
        let parsed = httpdate::parse_http_date(&shown).unwrap();
        assert!(parsed < SystemTime::from(at(0)), "{shown}");
        // And stays when another client's comes by.
        let mut next = seen("Thu, 19 Nov 2026 10:00:00 GMT", 60);
        next.follow(&moment);
        assert_eq!(next.invent(at(60)), shown);
    }

    #[test]
    fn answers_of_two_moments_tell_whether_one_moves() {
        // It stays: an end of support.
        let end = "Sat, 21 Nov 2026 11:00:00 GMT";
        let mut moment = seen(end, 0);
        assert!(moment.moves());
        let mut next = seen(end, 1);
        next.follow(&moment);
        assert!(next.moves(), "a second says nothing");
        moment = seen(end, 2);
        moment.follow(&next);
        assert!(!moment.moves());
        // It moves: what was made a minute ago.
        let made = [
            ("Sat, 21 Nov 2026 09:59:00 GMT", 0),
            ("Sat, 21 Nov 2026 09:59:30 GMT", 30),
        ];
        assert_eq!(after(&made), "Sat, 21 Nov 2026 10:00:00 GMT");
        // It neither stays nor moves along: each answer has its own time to live.
        let lives = [
            ("Sat, 21 Nov 2026 10:01:00 GMT", 0),
            ("Sat, 21 Nov 2026 11:00:30 GMT", 30),
        ];
        assert_eq!(after(&lives), "Sat, 21 Nov 2026 11:01:00 GMT");
        // It does not move along, and lies behind: each answer has its own age.
        let ages = [
            ("Fri, 20 Nov 2026 10:00:00 GMT", 0),
            ("Thu, 19 Nov 2026 10:00:00 GMT", 30),
        ];
        let shown = httpdate::parse_http_date(&after(&ages)).unwrap();
        assert!(shown < SystemTime::from(at(-3600)), "{shown:?}");
    }

    #[test]
    fn what_is_no_moment_is_left_alone() {
        for text in [
            "1.2.3",
            "2026-11-2",
            "2026-13-45",
            "1234567890",
            "17952552610",
            "1795255261a",
            "2026-11-21T10:00:00Zulu",
            "app.example.com",
        ] {
            let found = Moment::at_start(text, at(0), &mut rand::rng());
            assert!(found.is_none_or(|(_, len)| len < text.len()), "{text}");
        }
    }
}
