//! Values of the same pattern as real ones: an id for an id, digits for digits, letters for
//! letters, and a date, a number or a duration that make as much sense as the real one.
//!
//! A value is split into tokens: words and what is between them. A word that two clients have got
//! at the same place, such as the directory of a `location`, is the app's own and stays; so does
//! what every client knows. Any other may be a client's name, and is replaced.
//!
//! Dates are those of HTTP, of RFC 3339 and its kin, and seconds or milliseconds since 1970. Some
//! move with the clock, as `expires` does, and some stay, as `last-modified` does as long as
//! nothing changes. Which it is shows in the responses of two different times.

use std::mem::discriminant;
use std::time::Duration;

use http::{HeaderValue, Version};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use uuid::Uuid;

/// Words that tell nothing of a client: the schemes of URIs, the mark of weak entity tags, codings
/// that servers add to tags, units, and the parameter of `server-timing`.
const COMMON_WORDS: [&str; 9] = ["http", "https", "W", "gzip", "br", "s", "ms", "us", "dur"];

/// Units of time that stand behind a number, and how many are a second.
const UNITS: [(&str, f64); 4] = [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)];

/// Parts of the names of headers that tell the response's duration.
const DURATION_NAMES: [&str; 5] = ["time", "timing", "duration", "elapsed", "latency"];

/// The length of an id in the form of RFC 9562.
const UUID_LEN: usize = 36;

/// The form of a header's values.
#[derive(Clone, Debug)]
pub(super) struct ValuePattern(Vec<Token>);

#[derive(Clone, Debug)]
struct Token {
    kind: TokenKind,
    text: Box<str>,
    /// `None` once several clients got this token.
    only_client: Option<u64>,
}

#[derive(Clone, Debug)]
enum TokenKind {
    Word,
    Uuid,
    Number,
    Elapsed(Elapsed),
    Date(Box<DateValue>),
    /// The length of the body in hexadecimal digits, as entity tags have it.
    Size,
    Between,
}

/// A number that is the duration of a response.
#[derive(Clone, Copy, Debug)]
struct Elapsed {
    latency: Duration,
    /// Units of the number in a second.
    per_second: f64,
    /// Whether the number differs between responses.
    varies: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Observation<'a> {
    /// The header's name.
    pub(super) name: &'a str,
    pub(super) client: u64,
    pub(super) latency: Option<Duration>,
    pub(super) now: Timestamp,
    pub(super) origin: Option<&'a HeaderValue>,
}

/// The response that generated values have to agree with.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecoyContext<'a> {
    pub(super) host: &'a str,
    /// The latency of the response.
    pub(super) delay: Duration,
    pub(super) now: Timestamp,
    pub(super) origin: Option<&'a HeaderValue>,
    /// The version of HTTP by which real responses come.
    pub(super) upstream_version: Version,
}

impl ValuePattern {
    /// The pattern after one more value; `None` if that is not text.
    pub(super) fn learn(
        value: &HeaderValue,
        seen: &Observation<'_>,
        earlier: Option<&Self>,
    ) -> Option<Self> {
        let mut tokens = tokenize(value.to_str().ok()?, seen);
        if let Some(Self(earlier)) = earlier.filter(|earlier| earlier.is_built_like(&tokens)) {
            for (token, before) in tokens.iter_mut().zip(earlier) {
                token.learn_from(before, seen.client);
            }
        }
        Some(Self(tokens))
    }

    fn is_built_like(&self, tokens: &[Token]) -> bool {
        let alike = |(one, other): (&Token, &Token)| one.is_built_like(other);
        self.0.len() == tokens.len() && self.0.iter().zip(tokens).all(alike)
    }

    /// Whether the value has something that is another in each response, though two clients may get
    /// the same: a date that moves, or an elapsed time.
    pub(super) fn varies(&self) -> bool {
        self.0.iter().any(Token::varies)
    }

    /// Another value of the same form.
    pub(super) fn generate(&self, context: &DecoyContext<'_>) -> Option<HeaderValue> {
        let mut random = rand::rng();
        let generated = self
            .0
            .iter()
            .map(|token| token.generate(context, &mut random));
        HeaderValue::try_from(generated.collect::<String>()).ok()
    }
}

impl Token {
    fn is_built_like(&self, other: &Self) -> bool {
        let is_number =
            |token: &Self| matches!(token.kind, TokenKind::Number | TokenKind::Elapsed(_));
        if is_number(self) && is_number(other) {
            return true;
        }
        discriminant(&self.kind) == discriminant(&other.kind)
            && (!matches!(self.kind, TokenKind::Between) || self.text == other.text)
    }

    fn learn_from(&mut self, before: &Self, client: u64) {
        if self.text == before.text && before.only_client != Some(client) {
            self.only_client = None;
        }
        match (&mut self.kind, &before.kind) {
            (TokenKind::Date(date), TokenKind::Date(before)) => date.learn_from(before),
            (TokenKind::Elapsed(elapsed), TokenKind::Elapsed(earlier))
                if is_within(&self.text, elapsed.latency, earlier.per_second) =>
            {
                elapsed.per_second = earlier.per_second;
                elapsed.varies = earlier.varies || self.text != before.text;
            }
            // What counts the body's time too is longer than the response took.
            (TokenKind::Number | TokenKind::Elapsed(_), TokenKind::Elapsed(_)) => {
                *self = before.clone();
            }
            _ => {}
        }
    }

    fn varies(&self) -> bool {
        match &self.kind {
            TokenKind::Date(date) => date.moves(),
            TokenKind::Elapsed(elapsed) => elapsed.varies,
            _ => false,
        }
    }

    fn generate(&self, context: &DecoyContext<'_>, random: &mut impl Rng) -> String {
        let text = &*self.text;
        let is_of_host = || {
            let mut words = context.host.split(|char| !is_word_char(char));
            words.any(|word| word == text)
        };
        match &self.kind {
            TokenKind::Between => text.to_owned(),
            _ if self.only_client.is_none() && !self.varies() => text.to_owned(),
            TokenKind::Date(date) => date.generate(context.now),
            TokenKind::Elapsed(elapsed) => {
                let share = context.delay.div_duration_f64(elapsed.latency);
                scaled(text, share * random.random_range(0.9..1.0))
            }
            TokenKind::Word if COMMON_WORDS.contains(&text) || is_of_host() => text.to_owned(),
            kind => replacement(kind, text, random),
        }
    }
}

fn replacement(kind: &TokenKind, text: &str, random: &mut impl Rng) -> String {
    match kind {
        TokenKind::Uuid => uuid::Builder::from_random_bytes(random.random())
            .into_uuid()
            .to_string(),
        TokenKind::Number => random_number(text, random),
        _ => random_word(text, random),
    }
}

fn tokenize(text: &str, seen: &Observation<'_>) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, len) = first_token(rest, is_word_char(first), seen);
        let (token, after) = rest.split_at(len);
        tokens.push(Token {
            kind,
            text: token.into(),
            only_client: Some(seen.client),
        });
        rest = after;
    }
    tokens
}

fn first_token(text: &str, is_word: bool, seen: &Observation<'_>) -> (TokenKind, usize) {
    let end = text.find(|char| is_word_char(char) != is_word);
    let end = end.unwrap_or(text.len());
    if !is_word {
        return (TokenKind::Between, end);
    }
    let uuid = text.get(..UUID_LEN);
    if uuid.is_some_and(|uuid| Uuid::try_parse(uuid).is_ok()) {
        return (TokenKind::Uuid, UUID_LEN);
    }
    if let Some((date, len)) = DateValue::at_start(text, seen.now, &mut rand::rng()) {
        return (TokenKind::Date(Box::new(date)), len);
    }
    match number(text) {
        Some(len) => (kind_of_number(text, len, seen), len),
        None => (TokenKind::Word, end),
    }
}

/// The length of a number at the start of a text that begins with a word. Its unit is not part of
/// it, and neither addresses nor versions are numbers.
fn number(text: &str) -> Option<usize> {
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.find(|char: char| !char.is_ascii_digit())
            .unwrap_or(rest.len())
    };
    let whole = digits(0);
    let point = usize::from(text.get(whole..)?.starts_with('.'));
    let len = match digits(whole + point) {
        0 => whole,
        fraction => whole + point * (1 + fraction),
    };
    let rest = text.get(len..)?;
    let after = rest.find(|char| !is_word_char(char)).unwrap_or(rest.len());
    let (unit, after) = rest.split_at_checked(after)?;
    let goes_on = after
        .strip_prefix('.')
        .is_some_and(|rest| rest.starts_with(|next: char| next.is_ascii_digit()));
    let ends = unit.is_empty() || UNITS.iter().any(|(name, _)| *name == unit);
    (whole > 0 && ends && !goes_on).then_some(len)
}

/// Finds out whether a number is the response's duration: it is named so, and does not exceed it.
fn kind_of_number(text: &str, len: usize, seen: &Observation<'_>) -> TokenKind {
    let (number, rest) = text.split_at(len);
    let says = DURATION_NAMES.iter().any(|time| seen.name.contains(time));
    let told = UNITS.iter().filter(|(name, _)| is_unit(name, rest));
    let any = UNITS
        .iter()
        .filter(|_| says && !rest.starts_with(is_word_char));
    let latency = seen.latency.filter(|latency| !latency.is_zero());
    let elapsed = latency.and_then(|latency| {
        let mut units = told.chain(any).map(|(_, per_second)| *per_second);
        let per_second = units.find(|unit| is_within(number, latency, *unit))?;
        Some(Elapsed {
            latency,
            per_second,
            varies: false,
        })
    });
    elapsed.map_or(TokenKind::Number, TokenKind::Elapsed)
}

fn is_unit(name: &str, text: &str) -> bool {
    let after = text.strip_prefix(name);
    after.is_some_and(|after| !after.starts_with(is_word_char))
}

fn is_within(number: &str, latency: Duration, per_second: f64) -> bool {
    let number: f64 = number.parse().unwrap_or(f64::MAX);
    number <= latency.as_secs_f64() * per_second
}

fn is_word_char(char: char) -> bool {
    char.is_ascii_alphanumeric()
}

/// A share of a number, rounded down to the decimal places of the number.
fn scaled(number: &str, share: f64) -> String {
    let places = number.split_once('.').map_or(0, |(_, places)| places.len());
    let unit = 10_f64.powi(i32::try_from(places).unwrap_or(0));
    let scaled = number.parse::<f64>().unwrap_or_default() * share;
    format!("{:.places$}", (scaled * unit).floor() / unit)
}

/// A number with as many digits.
fn random_number(number: &str, random: &mut impl Rng) -> String {
    let is_padded = number.starts_with('0');
    let is_long = number.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    let another = number
        .bytes()
        .enumerate()
        .map(|(at, byte)| match (at, byte) {
            // A leading zero is there, or is not.
            (0, b'0') => b'0',
            (0, _) if is_long && !is_padded => random.random_range(b'1'..=b'9'),
            (_, b'0'..=b'9') => random.random_range(b'0'..=b'9'),
            (_, other) => other,
        });
    another.map(char::from).collect()
}

/// Hex stays hex, or an entity tag would give itself away.
fn random_word(word: &str, random: &mut impl Rng) -> String {
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let last_letter = if is_hex { b'f' } else { b'z' };
    let another = word.bytes().map(|byte| match byte {
        b'0'..=b'9' => random.random_range(b'0'..=b'9'),
        b'a'..=b'z' => random.random_range(b'a'..=last_letter),
        b'A'..=b'Z' => random.random_range(b'A'..=last_letter.to_ascii_uppercase()),
        other => other,
    });
    another.map(char::from).collect()
}

/// The form of a route's entity tags.
#[derive(Clone, Debug)]
pub(super) struct TagPattern(Vec<Token>);

impl TagPattern {
    /// The pattern of a tag of a body of `length` bytes.
    pub(super) fn parse(tag: &HeaderValue, length: Option<u64>) -> Option<Self> {
        let seen = Observation {
            name: "",
            client: 0,
            latency: None,
            now: Timestamp::UNIX_EPOCH,
            origin: None,
        };
        let mut tokens = tokenize(tag.to_str().ok()?, &seen);
        let size = length.map(|length| format!("{length:x}"));
        for token in &mut tokens {
            if size.as_deref() == Some(&*token.text) {
                token.kind = TokenKind::Size;
            }
        }
        Some(Self(tokens))
    }

    /// A tag for a body of which `seed` is a hash: the same body gets the same tag.
    pub(super) fn generate(&self, seed: u64, length: usize) -> Option<HeaderValue> {
        let mut random = StdRng::seed_from_u64(seed);
        let generated = self.0.iter().map(|token| match &token.kind {
            TokenKind::Between => token.text.to_string(),
            TokenKind::Word if COMMON_WORDS.contains(&&*token.text) => token.text.to_string(),
            TokenKind::Size => format!("{length:x}"),
            kind => replacement(kind, &token.text, &mut random),
        });
        HeaderValue::try_from(generated.collect::<String>()).ok()
    }
}

/// Forms of dates, in the terms of `strftime`. A form that begins like another comes before it.
const DATE_FORMATS: [&str; 8] = [
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

/// The shortest form of a date.
const MIN_DATE_BYTES: usize = 10;

/// A number of seconds since 1970 that is further from now is not a date.
const MAX_DISTANCE_SECS: u64 = 366 * 86_400;

/// Upper bound on the difference of two clocks, rounding of seconds included.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

#[derive(Clone, Debug)]
pub(super) struct DateValue {
    format: DateFormat,
    value: Timestamp,
    seen: Timestamp,
    /// When an earlier date was seen, and that date.
    earlier: (Timestamp, Timestamp),
    moves: bool,
    /// The date that is shown if it does not move.
    substitute: Timestamp,
}

#[derive(Clone, Debug)]
enum DateFormat {
    Text { pattern: String, offset: Offset },
    Seconds,
    Millis,
}

impl DateValue {
    /// Reads a date at the start of a text that is seen `now`, and returns its length in bytes too.
    pub(super) fn at_start(
        text: &str,
        now: Timestamp,
        random: &mut impl Rng,
    ) -> Option<(Self, usize)> {
        if text.len() < MIN_DATE_BYTES {
            return None;
        }
        let (format, value, len) = unix_time(text, now).or_else(|| formatted_date(text))?;
        let ends = !text
            .get(len..)?
            .starts_with(|next: char| next.is_ascii_alphanumeric());
        let distance = value.duration_since(now);
        let nearer = distance.mul_f64(random.random_range(0.5..0.9));
        let date = Self {
            format,
            value,
            seen: now,
            earlier: (now, value),
            moves: distance >= -CLOCK_TOLERANCE,
            substitute: now.checked_add(nearer).ok()?,
        };
        ends.then_some((date, len))
    }

    /// Learns from the earlier date at the same position.
    pub(super) fn learn_from(&mut self, before: &Self) {
        self.substitute = before.substitute;
        let (seen, value) = before.earlier;
        let (passed, moved) = (
            self.seen.duration_since(seen),
            self.value.duration_since(value),
        );
        if passed < CLOCK_TOLERANCE {
            self.moves = before.moves;
            self.earlier = before.earlier;
        } else if moved.is_zero() {
            self.moves = false;
        } else if !self.moves {
            self.moves = (moved - passed).abs() <= CLOCK_TOLERANCE;
        }
    }

    pub(super) fn moves(&self) -> bool {
        self.moves
    }

    /// A date to show `now`: as far from now as this was when it was seen, or always the same.
    pub(super) fn generate(&self, now: Timestamp) -> String {
        let date = if self.moves {
            let distance = self.value.duration_since(self.seen);
            now.checked_add(distance).unwrap_or(self.value)
        } else {
            self.substitute
        };
        match &self.format {
            DateFormat::Seconds => date.as_second().to_string(),
            DateFormat::Millis => date.as_millisecond().to_string(),
            DateFormat::Text { pattern, offset } => {
                let zoned = date.to_zoned(TimeZone::fixed(*offset));
                zoned.strftime(pattern).to_string()
            }
        }
    }
}

/// Seconds or milliseconds since 1970.
fn unix_time(text: &str, now: Timestamp) -> Option<(DateFormat, Timestamp, usize)> {
    let len = text.find(|next: char| !next.is_ascii_digit());
    let len = len.unwrap_or(text.len());
    let number = text.get(..len)?.parse().ok()?;
    let (format, date) = match len {
        10 => (DateFormat::Seconds, Timestamp::from_second(number).ok()?),
        13 => (
            DateFormat::Millis,
            Timestamp::from_millisecond(number).ok()?,
        ),
        _ => return None,
    };
    let is_near = date.duration_since(now).unsigned_abs().as_secs() < MAX_DISTANCE_SECS;
    is_near.then_some((format, date, len))
}

/// A date, or a date and a time, in one of the usual forms.
fn formatted_date(text: &str) -> Option<(DateFormat, Timestamp, usize)> {
    DATE_FORMATS.iter().find_map(|form| {
        let (time, len) = BrokenDownTime::parse_prefix(form, text).ok()?;
        let civil = match *form {
            DAY => time.to_date().ok()?.at(0, 0, 0, 0),
            _ => time.to_datetime().ok()?,
        };
        let offset = time.offset().unwrap_or(Offset::UTC);
        let date = offset.to_timestamp(civil).ok()?;
        let pattern = form.replace(FRACTION, &fraction(text.get(..len)?));
        Some((DateFormat::Text { pattern, offset }, date, len))
    })
}

/// The format of a fraction of a second with as many digits.
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
    use super::*;

    const LATENCY: Duration = Duration::from_millis(20);

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(1_795_255_200 + secs).unwrap()
    }

    /// What is learnt after clients 1, 2, ... got these values of a header, in turn and a minute
    /// apart.
    fn learnt(name: &str, values: &[&str]) -> ValuePattern {
        let learn = |earlier: Option<ValuePattern>, (client, value): (u64, &&str)| {
            let value = HeaderValue::from_str(value).unwrap();
            let seen = Observation {
                name,
                client,
                latency: Some(LATENCY),
                now: at(60 * i64::try_from(client).unwrap()),
                origin: None,
            };
            ValuePattern::learn(&value, &seen, earlier.as_ref())
        };
        (1..).zip(values).fold(None, learn).unwrap()
    }

    fn shown(pattern: &ValuePattern, delay: Duration) -> String {
        let context = DecoyContext {
            host: "app.example.com",
            delay,
            now: at(3600),
            origin: None,
            upstream_version: Version::HTTP_11,
        };
        let invented = pattern.generate(&context).unwrap();
        invented.to_str().unwrap().to_owned()
    }

    fn after(values: &[&str]) -> String {
        shown(&learnt("x-value", values), LATENCY)
    }

    #[test]
    fn what_is_the_apps_own_stays_and_ids_are_made_anew() {
        let one = "https://app.example.com/invites/02946c45-7c42-4f7a-8de9-7575eb9df9df";
        let other = "https://app.example.com/invites/65a55417-4938-4db6-801c-2b441320f50e";
        let invented = after(&[one, other]);
        let id = invented
            .strip_prefix("https://app.example.com/invites/")
            .unwrap();
        assert_eq!(Uuid::try_parse(id).unwrap().get_version_num(), 4);
        assert!(!one.ends_with(id) && !other.ends_with(id));
        let tag = after(&["W/\"98af6514f084433c9bc65a77b31d949c\""]);
        let hex = tag.strip_prefix("W/\"").unwrap().strip_suffix('"').unwrap();
        assert!(hex.bytes().all(|byte| byte.is_ascii_hexdigit()), "{tag}");
    }

    #[test]
    fn what_one_client_alone_has_got_is_never_shown() {
        assert!(!after(&["/users/mallory/x", "/users/alexandra/x"]).contains("alexandra"));
        assert!(after(&["/users/mallory/x", "/users/alexandra/x"]).starts_with("/users/"));
        // Another form than before: nothing is known of any of its words.
        assert!(!after(&["/users/mallory", "/alexandra"]).contains("alexandra"));
        let same = HeaderValue::from_static("/users/alexandra");
        let seen = Observation {
            name: "location",
            client: 1,
            latency: None,
            now: at(0),
            origin: None,
        };
        let once = ValuePattern::learn(&same, &seen, None);
        let twice = ValuePattern::learn(&same, &seen, once.as_ref()).unwrap();
        assert!(!shown(&twice, LATENCY).contains("alexandra"));
    }

    #[test]
    fn a_word_between_the_same_words_of_another_mark_is_not_taken_for_the_apps_own() {
        // `/a-b` and `/a/b` are built in different ways, though their words are the same.
        let shown = after(&["/alexandra-x", "/alexandra/x"]);
        assert!(!shown.contains("alexandra"), "{shown}");
    }

    /// `Sat, 21 Nov 2026 69:95:85 GMT` was seen.
    #[test]
    fn a_moment_is_a_moment_and_moves_with_the_clock() {
        let expires = after(&["Sat, 21 Nov 2026 10:02:00 GMT"]);
        assert_eq!(expires, "Sat, 21 Nov 2026 11:01:00 GMT");
        // So it does if two clients have got the same, for it was frozen then.
        let same = ["1795255290", "1795255290"];
        let seen = |client, value| Observation {
            name: "x-reset",
            client,
            latency: None,
            now: at(value),
            origin: None,
        };
        let value = HeaderValue::from_static(same[0]);
        let one = ValuePattern::learn(&value, &seen(1, 60), None);
        let two = ValuePattern::learn(&value, &seen(2, 61), one.as_ref()).unwrap();
        assert!(two.varies());
        assert_eq!(
            shown(&two, LATENCY),
            (1_795_255_200 + 3600 + 29).to_string()
        );
        // One that both get at different times stays.
        assert_eq!(after(&same), same[0]);
    }

    #[test]
    fn what_was_made_in_the_past_was_made_in_the_past_in_a_decoy() {
        let shown = after(&["made=2026-11-20T10:00:00.5Z;by=mallory"]);
        let (_, made) = shown.split_once('=').unwrap();
        let (made, _) = made.split_once(';').unwrap();
        assert_eq!(made.len(), "2026-11-20T10:00:00.5Z".len());
        let made: Timestamp = made.parse().unwrap();
        assert!(made < at(0) && made > at(-86_400), "{made}");
    }

    #[test]
    fn a_number_is_a_number_of_the_same_size() {
        for _ in 0..100 {
            let total: u32 = after(&["4711"]).parse().unwrap();
            assert!((1000..10_000).contains(&total), "{total}");
            let share = after(&["0.25"]);
            assert!(share.starts_with("0.") && share.len() == 4, "{share}");
            let price = after(&["19.90"]);
            assert!(price.parse::<f64>().unwrap() >= 10.0, "{price}");
            assert!(after(&["7"]).parse::<u8>().unwrap() < 10);
            assert_eq!(after(&["007"]).len(), 3);
        }
    }

    /// A runtime of seven seconds in a response after ten milliseconds.
    #[test]
    fn the_time_that_an_answer_says_that_it_took_is_no_more_than_it_took() {
        for (name, value, per_second) in [
            ("x-runtime", "0.012345", 1.0),
            ("x-response-time", "12.3ms", 1e3),
            ("x-upstream-service-time", "12", 1e3),
            ("server-timing", "total;dur=12.3", 1e3),
            ("x-took", "12345us", 1e6),
        ] {
            let pattern = learnt(name, &[value]);
            for delay in [10, 20, 2000].map(Duration::from_millis) {
                let shown = shown(&pattern, delay);
                let time = shown.split_once('=').map_or(&*shown, |(_, time)| time);
                let digits = time.trim_end_matches(char::is_alphabetic);
                let told: f64 = digits.parse().unwrap();
                let delay = delay.as_secs_f64() * per_second;
                assert!(told <= delay && told >= delay / 4.0, "{name}: {shown}");
                let places = |text: &str| text.split_once('.').map(|(_, decimals)| decimals.len());
                assert_eq!(places(&shown), places(value));
            }
        }
    }

    #[test]
    fn a_time_that_differs_from_answer_to_answer_is_not_repeated_when_two_are_alike() {
        let pattern = learnt("x-runtime", &["0.015", "0.012", "0.012"]);
        assert!(pattern.varies());
        assert!(
            shown(&pattern, Duration::from_millis(5))
                .parse::<f64>()
                .unwrap()
                <= 0.005
        );
        // A constant that looks like one is.
        let pattern = learnt("x-timeout", &["5", "5"]);
        assert_eq!(shown(&pattern, LATENCY), "5");
        // What is longer than the response took, as with a slow upload, teaches nothing.
        let pattern = learnt("x-runtime", &["0.015", "7.5"]);
        assert!(shown(&pattern, LATENCY).parse::<f64>().unwrap() <= 0.02);
    }

    #[test]
    fn versions_and_addresses_are_no_numbers() {
        for text in ["1.18.0", "10.0.0.1", "12ab", "1e5"] {
            assert_eq!(number(text), None, "{text}");
        }
        for (text, len) in [
            ("1.5", 3),
            ("1.", 1),
            ("12, 13", 2),
            ("5ms", 1),
            ("1.5s;", 3),
        ] {
            assert_eq!(number(text), Some(len), "{text}");
        }
    }

    #[test]
    fn a_tag_is_the_same_for_the_same_body_and_has_nothing_of_a_real_one() {
        let real = HeaderValue::from_static("W/\"2a-98af6514f084433c9bc65a77\"");
        let pattern = TagPattern::parse(&real, Some(42)).unwrap();
        let tag = pattern.generate(1, 26).unwrap();
        assert_eq!(pattern.generate(1, 26).unwrap(), tag);
        assert_ne!(pattern.generate(2, 26).unwrap(), tag);
        let tag = tag.to_str().unwrap();
        assert!(
            tag.starts_with("W/\"1a-") && tag.len() == real.len(),
            "{tag}"
        );
        assert!(!tag.contains("98af6514f084433c9bc65a77"));
        let other = TagPattern::parse(&real, None)
            .unwrap()
            .generate(1, 26)
            .unwrap();
        assert!(other.to_str().unwrap().starts_with("W/\""));
    }
}

#[cfg(test)]
mod date_tests {
    use std::time::SystemTime;

    use super::*;

    const NOW: &str = "2026-11-21T10:00:00Z";

    fn at(secs: i64) -> Timestamp {
        let now: Timestamp = NOW.parse().unwrap();
        now + SignedDuration::from_secs(secs)
    }

    fn seen(text: &str, secs: i64) -> DateValue {
        let (date, len) = DateValue::at_start(text, at(secs), &mut rand::rng()).unwrap();
        assert_eq!(len, text.len());
        date
    }

    /// What is shown after a minute when these were seen at their seconds.
    fn after(values: &[(&str, i64)]) -> String {
        let learn = |before: Option<DateValue>, (text, secs): &(&str, i64)| {
            let mut date = seen(text, *secs);
            if let Some(before) = before {
                date.learn_from(&before);
            }
            Some(date)
        };
        let learnt = values.iter().fold(None, learn).unwrap();
        learnt.generate(at(60))
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
        let date = seen(value, 0);
        assert!(!date.moves());
        let shown = date.generate(at(0));
        assert_eq!(shown, date.generate(at(3600)));
        assert_ne!(shown, value);
        let parsed = httpdate::parse_http_date(&shown).unwrap();
        assert!(parsed < SystemTime::from(at(0)), "{shown}");
        // And stays when another client's comes by.
        let mut next = seen("Thu, 19 Nov 2026 10:00:00 GMT", 60);
        next.learn_from(&date);
        assert_eq!(next.generate(at(60)), shown);
    }

    #[test]
    fn answers_of_two_moments_tell_whether_one_moves() {
        // It stays: an end of support.
        let end = "Sat, 21 Nov 2026 11:00:00 GMT";
        let mut date = seen(end, 0);
        assert!(date.moves());
        let mut next = seen(end, 1);
        next.learn_from(&date);
        assert!(next.moves(), "a second says nothing");
        date = seen(end, 2);
        date.learn_from(&next);
        assert!(!date.moves());
        // It moves: what was made a minute ago.
        let made = [
            ("Sat, 21 Nov 2026 09:59:00 GMT", 0),
            ("Sat, 21 Nov 2026 09:59:30 GMT", 30),
        ];
        assert_eq!(after(&made), "Sat, 21 Nov 2026 10:00:00 GMT");
        // It neither stays nor moves along: each response has its own time to live.
        let lives = [
            ("Sat, 21 Nov 2026 10:01:00 GMT", 0),
            ("Sat, 21 Nov 2026 11:00:30 GMT", 30),
        ];
        assert_eq!(after(&lives), "Sat, 21 Nov 2026 11:01:00 GMT");
        // It does not move along, and lies behind: each response has its own age.
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
            let found = DateValue::at_start(text, at(0), &mut rand::rng());
            assert!(found.is_none_or(|(_, len)| len < text.len()), "{text}");
        }
    }
}
