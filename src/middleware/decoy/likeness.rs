//! Values in the likeness of real ones: an id for an id, digits for digits, letters for letters,
//! and a moment, a number or a time taken that make as much sense as the real one.
//!
//! A value is taken apart into words and what is between them. A word that two clients have got at
//! the same place, such as the directory of a `location`, is the app's own and stays; so does what
//! every client knows. Any other may be a client's name, and is made up.

use std::mem::discriminant;
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use uuid::Uuid;

use super::moment::Moment;

/// Words that tell nothing of a client: the schemes of URIs, the mark of weak entity tags, codings
/// that servers add to tags, units, and the parameter of `server-timing`.
const COMMON: [&str; 9] = ["http", "https", "W", "gzip", "br", "s", "ms", "us", "dur"];

/// Units of time that stand behind a number, and how many are a second.
const UNITS: [(&str, f64); 4] = [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)];

/// What the names of fields have in common that tell how long an answer took.
const TIMES: [&str; 5] = ["time", "timing", "duration", "elapsed", "latency"];

/// How long an id is as RFC 9562 writes it.
const UUID_BYTES: usize = 36;

/// A value of which likenesses are made.
#[derive(Clone, Debug)]
pub(super) struct Likeness(Vec<Part>);

#[derive(Clone, Debug)]
struct Part {
    kind: Kind,
    text: Box<str>,
    /// The only client that got this part so far; none when several did.
    only_seen_by: Option<u64>,
}

#[derive(Clone, Debug)]
enum Kind {
    Word,
    Uuid,
    Number,
    Taken(Taken),
    Moment(Box<Moment>),
    /// The length of the body in hexadecimal digits, as entity tags have it.
    Size,
    Between,
}

/// A number that tells how long an answer took.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// How long it took in fact.
    latency: Duration,
    /// In what the number counts.
    per_second: f64,
    /// Whether other answers told another number.
    varies: bool,
}

/// Where and when a value was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    /// The field's name.
    pub(super) name: &'a str,
    pub(super) client: u64,
    /// How long the answer took, as far as that is known.
    pub(super) latency: Option<Duration>,
    pub(super) now: Timestamp,
    /// The `origin` of the request.
    pub(super) origin: Option<&'a HeaderValue>,
}

/// What is to be told by values that are made up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    /// The host that the client has asked.
    pub(super) host: &'a str,
    /// How long the answer takes.
    pub(super) delay: Duration,
    /// When it is sent.
    pub(super) now: Timestamp,
    /// The `origin` of the request.
    pub(super) origin: Option<&'a HeaderValue>,
}

impl Likeness {
    /// The value that a client got after those that made `earlier`; none of what is no text.
    pub(super) fn of(value: &HeaderValue, seen: &Seen<'_>, earlier: Option<&Self>) -> Option<Self> {
        let mut parts = parts(value.to_str().ok()?, seen);
        if let Some(Self(earlier)) = earlier.filter(|earlier| earlier.is_built_like(&parts)) {
            for (part, before) in parts.iter_mut().zip(earlier) {
                part.follow(before, seen.client);
            }
        }
        Some(Self(parts))
    }

    fn is_built_like(&self, parts: &[Part]) -> bool {
        let alike = |(one, other): (&Part, &Part)| one.is_built_like(other);
        self.0.len() == parts.len() && self.0.iter().zip(parts).all(alike)
    }

    /// Whether the value has something that is another in each answer, though two clients may get
    /// the same: a moment that moves, or the time that was taken.
    pub(super) fn varies(&self) -> bool {
        self.0.iter().any(Part::varies)
    }

    /// Another value of the same form.
    pub(super) fn invent(&self, scene: &Scene<'_>) -> Option<HeaderValue> {
        let mut random = rand::rng();
        let invented = self.0.iter().map(|part| part.invent(scene, &mut random));
        HeaderValue::try_from(invented.collect::<String>()).ok()
    }
}

impl Part {
    /// The same kind of part, at the same place of another value.
    fn is_built_like(&self, other: &Self) -> bool {
        let is_number = |part: &Self| matches!(part.kind, Kind::Number | Kind::Taken(_));
        if is_number(self) && is_number(other) {
            return true;
        }
        discriminant(&self.kind) == discriminant(&other.kind)
            && (!matches!(self.kind, Kind::Between) || self.text == other.text)
    }

    /// Learns from the part that was at this place before.
    fn follow(&mut self, before: &Self, client: u64) {
        if self.text == before.text && before.only_seen_by != Some(client) {
            self.only_seen_by = None;
        }
        match (&mut self.kind, &before.kind) {
            (Kind::Moment(moment), Kind::Moment(before)) => moment.follow(before),
            (Kind::Taken(taken), Kind::Taken(earlier))
                if is_within(&self.text, taken.latency, earlier.per_second) =>
            {
                taken.per_second = earlier.per_second;
                taken.varies = earlier.varies || self.text != before.text;
            }
            // What counts the body's time too is longer than the answer took.
            (Kind::Number | Kind::Taken(_), Kind::Taken(_)) => *self = before.clone(),
            _ => {}
        }
    }

    fn varies(&self) -> bool {
        match &self.kind {
            Kind::Moment(moment) => moment.moves(),
            Kind::Taken(taken) => taken.varies,
            _ => false,
        }
    }

    fn invent(&self, scene: &Scene<'_>, random: &mut impl Rng) -> String {
        let text = &*self.text;
        let is_of_host = || {
            let mut words = scene.host.split(|char| !is_of_word(char));
            words.any(|word| word == text)
        };
        match &self.kind {
            Kind::Between => text.to_owned(),
            _ if self.only_seen_by.is_none() && !self.varies() => text.to_owned(),
            Kind::Moment(moment) => moment.invent(scene.now),
            Kind::Taken(taken) => {
                let share = scene.delay.div_duration_f64(taken.latency);
                scaled(text, share * random.random_range(0.9..1.0))
            }
            Kind::Word if COMMON.contains(&text) || is_of_host() => text.to_owned(),
            kind => another(kind, text, random),
        }
    }
}

/// Another id, number or word.
fn another(kind: &Kind, text: &str, random: &mut impl Rng) -> String {
    match kind {
        Kind::Uuid => uuid::Builder::from_random_bytes(random.random())
            .into_uuid()
            .to_string(),
        Kind::Number => another_number(text, random),
        _ => another_word(text, random),
    }
}

fn parts(text: &str, seen: &Seen<'_>) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, len) = first_part(rest, is_of_word(first), seen);
        let (part, after) = rest.split_at(len);
        parts.push(Part {
            kind,
            text: part.into(),
            only_seen_by: Some(seen.client),
        });
        rest = after;
    }
    parts
}

fn first_part(text: &str, is_word: bool, seen: &Seen<'_>) -> (Kind, usize) {
    let end = text.find(|char| is_of_word(char) != is_word);
    let end = end.unwrap_or(text.len());
    if !is_word {
        return (Kind::Between, end);
    }
    let uuid = text.get(..UUID_BYTES);
    if uuid.is_some_and(|uuid| Uuid::try_parse(uuid).is_ok()) {
        return (Kind::Uuid, UUID_BYTES);
    }
    if let Some((moment, len)) = Moment::at_start(text, seen.now, &mut rand::rng()) {
        return (Kind::Moment(Box::new(moment)), len);
    }
    match number(text) {
        Some(len) => (kind_of_number(text, len, seen), len),
        None => (Kind::Word, end),
    }
}

/// How many bytes of a text, which begins with a word, are a number. Its unit is no part of it, and
/// neither addresses nor versions are numbers.
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
    let after = rest.find(|char| !is_of_word(char)).unwrap_or(rest.len());
    let (unit, after) = rest.split_at_checked(after)?;
    let goes_on = after
        .strip_prefix('.')
        .is_some_and(|rest| rest.starts_with(|next: char| next.is_ascii_digit()));
    let ends = unit.is_empty() || UNITS.iter().any(|(name, _)| *name == unit);
    (whole > 0 && ends && !goes_on).then_some(len)
}

/// Whether a number tells how long the answer took: where it says that it does, and is not more.
fn kind_of_number(text: &str, len: usize, seen: &Seen<'_>) -> Kind {
    let (number, rest) = text.split_at(len);
    let says = TIMES.iter().any(|time| seen.name.contains(time));
    let told = UNITS.iter().filter(|(name, _)| is_unit(name, rest));
    let any = UNITS
        .iter()
        .filter(|_| says && !rest.starts_with(is_of_word));
    let latency = seen.latency.filter(|latency| !latency.is_zero());
    let taken = latency.and_then(|latency| {
        let mut units = told.chain(any).map(|(_, per_second)| *per_second);
        let per_second = units.find(|unit| is_within(number, latency, *unit))?;
        Some(Taken {
            latency,
            per_second,
            varies: false,
        })
    });
    taken.map_or(Kind::Number, Kind::Taken)
}

fn is_unit(name: &str, text: &str) -> bool {
    let after = text.strip_prefix(name);
    after.is_some_and(|after| !after.starts_with(is_of_word))
}

fn is_within(number: &str, latency: Duration, per_second: f64) -> bool {
    let number: f64 = number.parse().unwrap_or(f64::MAX);
    number <= latency.as_secs_f64() * per_second
}

fn is_of_word(char: char) -> bool {
    char.is_ascii_alphanumeric()
}

/// A share of a number, with as many decimal places as it has, and never more than it is.
fn scaled(number: &str, share: f64) -> String {
    let places = number.split_once('.').map_or(0, |(_, places)| places.len());
    let unit = 10_f64.powi(i32::try_from(places).unwrap_or(0));
    let scaled = number.parse::<f64>().unwrap_or_default() * share;
    format!("{:.places$}", (scaled * unit).floor() / unit)
}

/// A number with as many digits, and so of the same size.
fn another_number(number: &str, random: &mut impl Rng) -> String {
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
fn another_word(word: &str, random: &mut impl Rng) -> String {
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

/// What a route's entity tags are like.
#[derive(Clone, Debug)]
pub(super) struct TagLikeness(Vec<Part>);

impl TagLikeness {
    /// Tags like this one, of a body of `length` bytes.
    pub(super) fn of(tag: &HeaderValue, length: Option<u64>) -> Option<Self> {
        let seen = Seen {
            name: "",
            client: 0,
            latency: None,
            now: Timestamp::UNIX_EPOCH,
            origin: None,
        };
        let mut parts = parts(tag.to_str().ok()?, &seen);
        let size = length.map(|length| format!("{length:x}"));
        for part in &mut parts {
            if size.as_deref() == Some(&*part.text) {
                part.kind = Kind::Size;
            }
        }
        Some(Self(parts))
    }

    /// The tag of a body, of which `seed` is made: the same whenever the body is, and no client's.
    pub(super) fn invent(&self, seed: u64, length: usize) -> Option<HeaderValue> {
        let mut random = StdRng::seed_from_u64(seed);
        let invented = self.0.iter().map(|part| match &part.kind {
            Kind::Between => part.text.to_string(),
            Kind::Word if COMMON.contains(&&*part.text) => part.text.to_string(),
            Kind::Size => format!("{length:x}"),
            kind => another(kind, &part.text, &mut random),
        });
        HeaderValue::try_from(invented.collect::<String>()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: Duration = Duration::from_millis(20);

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(1_795_255_200 + secs).unwrap()
    }

    /// What is learnt after clients 1, 2, ... got these values of a field, in turn and a minute
    /// apart.
    fn learnt(name: &str, values: &[&str]) -> Likeness {
        let learn = |earlier: Option<Likeness>, (client, value): (u64, &&str)| {
            let value = HeaderValue::from_str(value).unwrap();
            let seen = Seen {
                name,
                client,
                latency: Some(LATENCY),
                now: at(60 * i64::try_from(client).unwrap()),
                origin: None,
            };
            Likeness::of(&value, &seen, earlier.as_ref())
        };
        (1..).zip(values).fold(None, learn).unwrap()
    }

    fn shown(likeness: &Likeness, delay: Duration) -> String {
        let scene = Scene {
            host: "app.example.com",
            delay,
            now: at(3600),
            origin: None,
        };
        let invented = likeness.invent(&scene).unwrap();
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
        let seen = Seen {
            name: "location",
            client: 1,
            latency: None,
            now: at(0),
            origin: None,
        };
        let once = Likeness::of(&same, &seen, None);
        let twice = Likeness::of(&same, &seen, once.as_ref()).unwrap();
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
        let seen = |client, value| Seen {
            name: "x-reset",
            client,
            latency: None,
            now: at(value),
            origin: None,
        };
        let value = HeaderValue::from_static(same[0]);
        let one = Likeness::of(&value, &seen(1, 60), None);
        let two = Likeness::of(&value, &seen(2, 61), one.as_ref()).unwrap();
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

    /// A runtime of seven seconds in an answer after ten milliseconds.
    #[test]
    fn the_time_that_an_answer_says_that_it_took_is_no_more_than_it_took() {
        for (name, value, per_second) in [
            ("x-runtime", "0.012345", 1.0),
            ("x-response-time", "12.3ms", 1e3),
            ("x-upstream-service-time", "12", 1e3),
            ("server-timing", "total;dur=12.3", 1e3),
            ("x-took", "12345us", 1e6),
        ] {
            let likeness = learnt(name, &[value]);
            for delay in [10, 20, 2000].map(Duration::from_millis) {
                let shown = shown(&likeness, delay);
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
        let likeness = learnt("x-runtime", &["0.015", "0.012", "0.012"]);
        assert!(likeness.varies());
        assert!(
            shown(&likeness, Duration::from_millis(5))
                .parse::<f64>()
                .unwrap()
                <= 0.005
        );
        // A constant that looks like one is.
        let likeness = learnt("x-timeout", &["5", "5"]);
        assert_eq!(shown(&likeness, LATENCY), "5");
        // What is longer than the answer took, as with a slow upload, teaches nothing.
        let likeness = learnt("x-runtime", &["0.015", "7.5"]);
        assert!(shown(&likeness, LATENCY).parse::<f64>().unwrap() <= 0.02);
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
        let likeness = TagLikeness::of(&real, Some(42)).unwrap();
        let tag = likeness.invent(1, 26).unwrap();
        assert_eq!(likeness.invent(1, 26).unwrap(), tag);
        assert_ne!(likeness.invent(2, 26).unwrap(), tag);
        let tag = tag.to_str().unwrap();
        assert!(
            tag.starts_with("W/\"1a-") && tag.len() == real.len(),
            "{tag}"
        );
        assert!(!tag.contains("98af6514f084433c9bc65a77"));
        let other = TagLikeness::of(&real, None).unwrap().invent(1, 26).unwrap();
        assert!(other.to_str().unwrap().starts_with("W/\""));
    }
}
