//! Values in the likeness of real ones: an id for an id, digits for digits, letters for letters.
//!
//! A value is taken apart into words and what is between them. A word that two clients have got at
//! the same place, such as the directory of a `location`, is the app's own and stays; so does what
//! every client knows. Any other may be somebody's name, and is made up.

use http::HeaderValue;
use rand::{Rng, RngExt};
use uuid::Uuid;

/// Words that tell nothing of anybody: the schemes of URIs, and the mark of weak entity tags.
const COMMON: [&str; 3] = ["http", "https", "W"];

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    Uuid,
    Between,
}

impl Likeness {
    /// The value that `client` got after those that made `earlier`; none of what is no text.
    pub(super) fn of(value: &HeaderValue, client: u64, earlier: Option<&Self>) -> Option<Self> {
        let mut parts = parts(value.to_str().ok()?, client);
        if let Some(Self(earlier)) = earlier.filter(|earlier| earlier.is_built_like(&parts)) {
            for (part, before) in parts.iter_mut().zip(earlier) {
                if part.text == before.text && before.only_seen_by != Some(client) {
                    part.only_seen_by = None;
                }
            }
        }
        Some(Self(parts))
    }

    fn is_built_like(&self, parts: &[Part]) -> bool {
        let alike = |(one, other): (&Part, &Part)| {
            one.kind == other.kind && (one.kind != Kind::Between || one.text == other.text)
        };
        self.0.len() == parts.len() && self.0.iter().zip(parts).all(alike)
    }

    /// Another value of the same form, for a client that asked this host.
    pub(super) fn invent(&self, host: &str) -> Option<HeaderValue> {
        let mut random = rand::rng();
        let like: String = self
            .0
            .iter()
            .map(|part| part.invent(host, &mut random))
            .collect();
        HeaderValue::try_from(like).ok()
    }
}

impl Part {
    fn invent(&self, host: &str, random: &mut impl Rng) -> String {
        let text = &*self.text;
        let is_of_host = || {
            host.split(|char| !is_of_word(char))
                .any(|word| word == text)
        };
        match self.kind {
            Kind::Between => text.to_owned(),
            _ if self.only_seen_by.is_none() => text.to_owned(),
            Kind::Uuid => Uuid::new_v4().to_string(),
            Kind::Word if COMMON.contains(&text) || is_of_host() => text.to_owned(),
            Kind::Word => another_word(text, random),
        }
    }
}

fn parts(text: &str, client: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, len) = first_part(rest, is_of_word(first));
        let (part, after) = rest.split_at(len);
        parts.push(Part {
            kind,
            text: part.into(),
            only_seen_by: Some(client),
        });
        rest = after;
    }
    parts
}

fn first_part(text: &str, is_word: bool) -> (Kind, usize) {
    let uuid = text.get(..UUID_BYTES).filter(|_| is_word);
    if uuid.is_some_and(|uuid| Uuid::try_parse(uuid).is_ok()) {
        return (Kind::Uuid, UUID_BYTES);
    }
    let end = text.find(|char| is_of_word(char) != is_word);
    let kind = if is_word { Kind::Word } else { Kind::Between };
    (kind, end.unwrap_or(text.len()))
}

fn is_of_word(char: char) -> bool {
    char.is_ascii_alphanumeric()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is invented after clients 1, 2, ... got these values, in turn.
    fn after(values: &[&str]) -> String {
        let learn = |earlier: Option<Likeness>, (client, value): (u64, &&str)| {
            let value = HeaderValue::from_str(value).unwrap();
            Likeness::of(&value, client, earlier.as_ref())
        };
        let learnt = (1..).zip(values).fold(None, learn).unwrap();
        let invented = learnt.invent("app.example.com").unwrap();
        invented.to_str().unwrap().to_owned()
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
        let once = Likeness::of(&same, 1, None);
        let twice = Likeness::of(&same, 1, once.as_ref()).unwrap();
        assert_ne!(twice.invent("").unwrap(), same);
    }
}
