//! The header fields of a route's real answers, learnt so that a decoy can show the same ones in
//! the same order.
//!
//! What was meant for one client must never be shown to another. So a value is repeated only where
//! two clients have got the same one, or the field speaks of the server alone. Any
//! other is made up in its likeness; and fields that hand out identities, or that describe a body
//! which the decoy does not have, are neither repeated nor made up.

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use parking_lot::RwLock;

use super::likeness::{Likeness, Scene, Seen, TagLikeness};

/// Fields that say who a client is, or promise what a decoy does not have. A decoy shows them only
/// where it is configured to.
const UNSHARED: [HeaderName; 4] = [
    header::SET_COOKIE,
    header::WWW_AUTHENTICATE,
    header::PROXY_AUTHENTICATE,
    header::TRAILER,
];

/// Fields that speak of the server alone.
const OF_THE_SERVER: [HeaderName; 15] = [
    header::ALLOW,
    header::SERVER,
    header::VIA,
    HeaderName::from_static("x-powered-by"),
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::CACHE_CONTROL,
    header::VARY,
    header::ACCEPT_RANGES,
    header::ALT_SVC,
    header::STRICT_TRANSPORT_SECURITY,
    header::X_FRAME_OPTIONS,
    header::X_CONTENT_TYPE_OPTIONS,
    header::X_XSS_PROTECTION,
    header::REFERRER_POLICY,
];

/// Fields that tell browsers what scripts of other origins may do, and say the same to all of them.
const OF_ALL_ORIGINS: [HeaderName; 4] = [
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_EXPOSE_HEADERS,
    header::ACCESS_CONTROL_MAX_AGE,
];

/// What the proxy adds to every real answer of an HTTP/1.1 upstream.
const VIA: HeaderValue = HeaderValue::from_static("1.1 weir");

/// The fields of the last real answers, in their order.
#[derive(Debug, Default)]
pub(super) struct FieldShape(RwLock<Known>);

/// Apps say more to requests that name their `origin`, so that a client compares like with like.
#[derive(Clone, Debug, Default)]
struct Known {
    without_origin: Vec<Field>,
    with_origin: Vec<Field>,
}

impl Known {
    fn of(&self, has_origin: bool) -> &[Field] {
        if has_origin {
            &self.with_origin
        } else {
            &self.without_origin
        }
    }

    /// The fields of an answer to such a request, or, where there was none, to one of the others.
    fn like(&self, has_origin: bool) -> &[Field] {
        match self.of(has_origin) {
            [] => self.of(!has_origin),
            known => known,
        }
    }

    /// All fields, beginning with those of answers to such requests.
    fn all(&self, has_origin: bool) -> impl Iterator<Item = &Field> + Clone {
        self.of(has_origin).iter().chain(self.of(!has_origin))
    }

    fn put(&mut self, has_origin: bool, learnt: Vec<Field>) {
        let (place, others) = if has_origin {
            (&mut self.with_origin, &mut self.without_origin)
        } else {
            (&mut self.without_origin, &mut self.with_origin)
        };
        for other in others {
            let is_same = |field: &&Field| field.name == other.name && field.value == other.value;
            if let Some(same) = learnt.iter().find(is_same) {
                // A client that named no origin, or another one, got this value too.
                other.is_echo &= same.is_echo;
                other.only_seen_by = other.only_seen_by.and(same.only_seen_by);
            }
        }
        *place = learnt;
    }
}

/// What describes the body that is sent, and so is never a real answer's.
#[derive(Debug)]
pub(super) struct BodyFields {
    pub(super) length: HeaderValue,
    pub(super) encoding: Option<HeaderValue>,
    pub(super) range: Option<HeaderValue>,
    pub(super) tag: Option<HeaderValue>,
}

#[derive(Clone, Debug)]
struct Field {
    name: HeaderName,
    value: HeaderValue,
    /// The only client that got this value so far; none when several did.
    only_seen_by: Option<u64>,
    /// Whether the value is nothing but the request's own `origin`.
    is_echo: bool,
    /// What values of this field are like.
    likeness: Option<Likeness>,
}

impl FieldShape {
    /// Takes over what another has learnt.
    pub(super) fn inherit(&self, earlier: &Self) {
        let known = earlier.0.read().clone();
        *self.0.write() = known;
    }

    /// Learns the fields of a real answer. What was `seen` of it has the name of no field yet.
    pub(super) fn learn(&self, answer: &HeaderMap, seen: &Seen<'_>) {
        if self.knows(answer, seen) {
            return;
        }
        let has_origin = seen.origin.is_some();
        let mut known = self.0.write();
        let learnt = answer.iter().map(|(name, value)| {
            let namesakes = known.all(has_origin);
            let mut namesakes = namesakes.filter(|field| field.name == *name);
            let earlier = namesakes.clone().next();
            let same = namesakes.find(|field| field.value == *value);
            let seen = Seen {
                name: name.as_str(),
                ..*seen
            };
            Field::learn(name, value, &seen, same, earlier)
        });
        let learnt = learnt.collect();
        known.put(has_origin, learnt);
    }

    /// Whether an answer has nothing new to teach. Most have not, and cost no more than a look.
    fn knows(&self, answer: &HeaderMap, seen: &Seen<'_>) -> bool {
        let known = self.0.read();
        let known = known.of(seen.origin.is_some());
        known.len() == answer.len()
            && known
                .iter()
                .zip(answer)
                .all(|(field, (name, value))| field.name == *name && field.knows(value, seen))
    }

    /// Whether no field is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.read().all(false).next().is_none()
    }

    /// Whether real answers have this field.
    pub(super) fn has(&self, name: &HeaderName) -> bool {
        self.0.read().all(false).any(|field| field.name == *name)
    }

    /// Whether real answers differ by what codings the client accepts.
    pub(super) fn varies_by_coding(&self) -> bool {
        let known = self.0.read();
        let mut lines = known.all(false).filter(|field| field.name == header::VARY);
        lines.any(|field| {
            let names = field.value.to_str().unwrap_or_default().split(',');
            names
                .map(str::trim)
                .any(|name| name.eq_ignore_ascii_case(header::ACCEPT_ENCODING.as_str()))
        })
    }

    /// Fields like those of a real answer, with the `configured` ones in place of theirs, and those
    /// of the decoy's own body. There is a `content-length` where real answers have one.
    pub(super) fn imitate(
        &self,
        configured: &HeaderMap,
        body: &BodyFields,
        scene: &Scene<'_>,
    ) -> HeaderMap {
        let known = self.0.read();
        let known = known.like(scene.origin.is_some());
        let mut imitation = HeaderMap::with_capacity(known.len() + configured.len() + 3);
        if known.is_empty() {
            imitation.insert(header::CONTENT_LENGTH, body.length.clone());
            imitation.insert(header::DATE, date(scene));
            imitation.insert(header::VIA, VIA);
        }
        let framing = Framing::of(known, body);
        for field in known {
            if configured.contains_key(&field.name) {
                // Holds the place; the value is put in below.
                imitation
                    .entry(&field.name)
                    .or_insert_with(|| field.value.clone());
            } else if let Some(described) = framing.describe(&field.name) {
                imitation.extend(described);
            } else if let Some(value) = field.imitate(scene) {
                imitation.append(&field.name, value);
            }
        }
        framing.complete(&mut imitation);
        for name in configured.keys() {
            let mut values = configured.get_all(name).iter().cloned();
            if let Some(first) = values.next() {
                imitation.insert(name, first);
            }
            for value in values {
                imitation.append(name, value);
            }
        }
        imitation
    }
}

/// The fields that describe a body, put where real answers have theirs.
struct Framing<'a> {
    body: &'a BodyFields,
    has_length: bool,
    has_encoding: bool,
}

impl<'a> Framing<'a> {
    fn of(known: &[Field], body: &'a BodyFields) -> Self {
        let has = |name| known.iter().any(|field| field.name == name);
        Self {
            body,
            has_length: has(header::CONTENT_LENGTH),
            has_encoding: has(header::CONTENT_ENCODING),
        }
    }

    /// What stands in the place of a field that describes the real body; none for any other field.
    ///
    /// Servers that compress do not know the length beforehand. So where an answer of the other
    /// kind is all that is known, the length and the coding take each other's place.
    fn describe(&self, name: &HeaderName) -> Option<Option<(HeaderName, HeaderValue)>> {
        let encoding = || Some((header::CONTENT_ENCODING, self.body.encoding.clone()?));
        let length = || Some((header::CONTENT_LENGTH, self.body.length.clone()));
        let of = |name, value: &Option<HeaderValue>| Some((name, value.clone()?));
        match *name {
            header::CONTENT_LENGTH if self.has_encoding => Some(length()),
            header::CONTENT_LENGTH => Some(encoding().or_else(length)),
            header::CONTENT_ENCODING if self.has_length => Some(encoding()),
            header::CONTENT_ENCODING => Some(encoding().or_else(length)),
            header::CONTENT_RANGE => Some(of(header::CONTENT_RANGE, &self.body.range)),
            header::ETAG => Some(of(header::ETAG, &self.body.tag)),
            _ => None,
        }
    }

    /// Adds what has no place among the fields of real answers, and a client has to know.
    fn complete(&self, imitation: &mut HeaderMap) {
        let of = [
            (header::CONTENT_ENCODING, &self.body.encoding),
            (header::CONTENT_RANGE, &self.body.range),
        ];
        for (name, value) in of {
            if let Some(value) = value {
                imitation.entry(name).or_insert_with(|| value.clone());
            }
        }
    }
}

impl Field {
    /// The field of an answer after `earlier`, and after one of the `same` value.
    fn learn(
        name: &HeaderName,
        value: &HeaderValue,
        seen: &Seen<'_>,
        same: Option<&Self>,
        earlier: Option<&Self>,
    ) -> Self {
        let only_seen_by = match same.map(|field| field.only_seen_by) {
            Some(None) => None,
            Some(Some(other)) if other != seen.client => None,
            _ => Some(seen.client),
        };
        let earlier = earlier.and_then(|field| field.likeness.as_ref());
        let is_of_origins = is_of_origins(name);
        let likeness = || Likeness::of(value, seen, earlier);
        Self {
            is_echo: is_of_origins
                && seen.origin == Some(value)
                && same.is_none_or(|field| field.is_echo),
            likeness: (!is_of_origins).then(likeness).flatten(),
            name: name.clone(),
            value: value.clone(),
            only_seen_by,
        }
    }

    /// Whether a value teaches nothing, because it was seen before or is made anew each time.
    fn knows(&self, value: &HeaderValue, seen: &Seen<'_>) -> bool {
        if self.is_echo {
            return seen.origin == Some(value);
        }
        let seen = || self.only_seen_by.is_none_or(|only| only == seen.client);
        matches!(self.name, header::DATE | header::CONTENT_LENGTH)
            || self.value == *value && seen() && !self.varies()
    }

    fn varies(&self) -> bool {
        self.likeness.as_ref().is_some_and(Likeness::varies)
    }

    fn imitate(&self, scene: &Scene<'_>) -> Option<HeaderValue> {
        let is_past = self.name == header::EXPIRES && !self.varies();
        match self.name {
            header::DATE => Some(date(scene)),
            _ if UNSHARED.contains(&self.name) => None,
            _ if self.is_echo => scene.origin.cloned(),
            _ if OF_ALL_ORIGINS.contains(&self.name) => Some(self.value.clone()),
            _ if is_of_origins(&self.name) && self.value == "*" => Some(self.value.clone()),
            // An end in the past means never, and speaks of no client.
            _ if OF_THE_SERVER.contains(&self.name) || is_past => Some(self.value.clone()),
            _ if self.only_seen_by.is_none() && !self.varies() => Some(self.value.clone()),
            _ => self.likeness.as_ref()?.invent(scene),
        }
    }
}

/// Whether a field tells browsers what scripts of some origin may do. A value that is made up would
/// be one that no app says: a client knows its own origin.
fn is_of_origins(name: &HeaderName) -> bool {
    name.as_str().starts_with("access-control-") || *name == "timing-allow-origin"
}

/// The moment of an answer as a `date` field.
fn date(scene: &Scene<'_>) -> HeaderValue {
    let date = httpdate::fmt_http_date(scene.now.into());
    HeaderValue::try_from(date).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// What is like the tag of an answer with these fields.
pub(super) fn tag(answer: &HeaderMap) -> Option<TagLikeness> {
    let length = answer.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    TagLikeness::of(answer.get(header::ETAG)?, length)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// What `client` got.
    fn by(client: u64) -> Seen<'static> {
        Seen {
            name: "",
            client,
            latency: None,
            now: NOW,
            origin: None,
        }
    }

    fn answer(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|&(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_str(value).unwrap(),
                )
            })
            .collect()
    }

    fn imitate(shape: &FieldShape, configured: &HeaderMap) -> Vec<(String, String)> {
        imitate_for(shape, configured, &body())
    }

    /// A body of seven bytes.
    fn body() -> BodyFields {
        BodyFields {
            length: HeaderValue::from(7),
            encoding: None,
            range: None,
            tag: None,
        }
    }

    fn scene(secs: i64) -> Scene<'static> {
        Scene {
            host: "",
            delay: Duration::ZERO,
            now: Timestamp::from_second(secs).unwrap(),
            origin: None,
        }
    }

    fn imitate_for(
        shape: &FieldShape,
        configured: &HeaderMap,
        body: &BodyFields,
    ) -> Vec<(String, String)> {
        let pair = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        let imitation = shape.imitate(configured, body, &scene(0));
        imitation.iter().map(pair).collect()
    }

    fn value<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
        fields
            .iter()
            .find(|field| field.0 == name)
            .map(|field| field.1.as_str())
    }

    #[test]
    fn a_decoy_shows_the_fields_of_a_real_answer_in_their_order() {
        let shape = FieldShape::default();
        let real = answer(&[
            ("server", "app"),
            ("content-type", "text/plain"),
            ("date", "x"),
            ("content-length", "3"),
            ("via", "1.1 weir"),
        ]);
        shape.learn(&real, &by(1));
        shape.learn(&real, &by(2));
        let configured = answer(&[("content-type", "application/json"), ("x-extra", "1")]);
        let imitation = imitate(&shape, &configured);
        let names: Vec<_> = imitation.iter().map(|field| field.0.as_str()).collect();
        assert_eq!(
            names,
            [
                "server",
                "content-type",
                "date",
                "content-length",
                "via",
                "x-extra"
            ]
        );
        assert_eq!(value(&imitation, "content-type"), Some("application/json"));
        assert_eq!(value(&imitation, "content-length"), Some("7"));
        assert_eq!(value(&imitation, "server"), Some("app"));
    }

    #[test]
    fn what_only_one_client_was_given_is_never_repeated() {
        let shape = FieldShape::default();
        let real = answer(&[("x-customer", "customer-4711"), ("set-cookie", "s=secret")]);
        shape.learn(&real, &by(1));
        shape.learn(&real, &by(1));
        let imitation = imitate(&shape, &HeaderMap::new());
        let made_up = value(&imitation, "x-customer").unwrap();
        assert_ne!(made_up, "customer-4711");
        assert_eq!((made_up.len(), made_up.as_bytes()[8]), (13, b'-'));
        assert_eq!(value(&imitation, "set-cookie"), None);
    }

    #[test]
    fn what_speaks_of_the_server_alone_is_repeated_at_once() {
        let shape = FieldShape::default();
        shape.learn(&answer(&[("server", "app"), ("via", "1.1 weir")]), &by(1));
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_eq!(value(&imitation, "server"), Some("app"));
        assert_eq!(value(&imitation, "via"), Some("1.1 weir"));
    }

    #[test]
    fn a_compressed_body_is_not_promised() {
        let shape = FieldShape::default();
        for client in [1, 2] {
            shape.learn(
                &answer(&[("content-encoding", "gzip"), ("vary", "accept-encoding")]),
                &by(client),
            );
        }
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_eq!(value(&imitation, "content-encoding"), None);
        assert_eq!(value(&imitation, "vary"), Some("accept-encoding"));
    }

    #[test]
    fn identities_stay_with_their_owners_even_when_two_share_one() {
        let shape = FieldShape::default();
        let real = answer(&[("set-cookie", "s=shared")]);
        shape.learn(&real, &by(1));
        shape.learn(&real, &by(2));
        assert_eq!(imitate(&shape, &HeaderMap::new()), []);
    }

    #[test]
    fn ids_are_made_anew_for_each_decoy() {
        let shape = FieldShape::default();
        let id = Uuid::new_v4().to_string();
        shape.learn(&answer(&[("x-request-id", &id)]), &by(1));
        shape.learn(
            &answer(&[("x-request-id", &Uuid::new_v4().to_string())]),
            &by(2),
        );
        let first = imitate(&shape, &HeaderMap::new());
        assert_ne!(first, imitate(&shape, &HeaderMap::new()));
        assert!(Uuid::try_parse(value(&first, "x-request-id").unwrap()).is_ok());
    }

    #[test]
    fn the_fields_that_describe_a_body_describe_the_decoys_own() {
        let shape = FieldShape::default();
        let described = BodyFields {
            length: HeaderValue::from(7),
            encoding: Some(HeaderValue::from_static("gzip")),
            range: Some(HeaderValue::from_static("bytes 0-6/9")),
            tag: Some(HeaderValue::from_static("\"made\"")),
        };
        let all = |described| {
            let imitation = imitate_for(&shape, &HeaderMap::new(), described);
            let line = |(name, value)| format!("{name}: {value}");
            imitation.into_iter().map(line).collect::<Vec<_>>()
        };
        shape.learn(
            &answer(&[
                ("etag", "\"real\""),
                ("content-encoding", "br"),
                ("content-length", "3"),
                ("content-range", "bytes 1-2/3"),
            ]),
            &by(1),
        );
        assert_eq!(
            all(&described),
            [
                "etag: \"made\"",
                "content-encoding: gzip",
                "content-length: 7",
                "content-range: bytes 0-6/9"
            ]
        );
        // Where the other kind of answer is all that is known, one takes the other's place.
        shape.learn(&answer(&[("content-length", "3"), ("server", "a")]), &by(1));
        let swapped = [
            "content-encoding: gzip",
            "server: a",
            "content-range: bytes 0-6/9",
        ];
        assert_eq!(all(&described), swapped);
        let plain = body();
        shape.learn(
            &answer(&[("content-encoding", "br"), ("server", "a")]),
            &by(1),
        );
        assert_eq!(all(&plain), ["content-length: 7", "server: a"]);
        // Nothing is said of a length that was not known beforehand.
        shape.learn(&answer(&[("server", "a")]), &by(1));
        assert_eq!(all(&plain), ["server: a"]);
    }

    #[test]
    fn what_two_clients_have_got_is_shown_and_what_one_got_twice_is_not() {
        let shape = FieldShape::default();
        let real = |customer, turn| answer(&[("x-customer", customer), ("x-turn", turn)]);
        // The other field changes, or nothing would be learnt the second time.
        shape.learn(&real("customer-4711", "1"), &by(1));
        shape.learn(&real("customer-4711", "2"), &by(1));
        shape.learn(&real("customer-4711", "3"), &by(1));
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_ne!(value(&imitation, "x-customer"), Some("customer-4711"));
        shape.learn(&real("customer-4711", "4"), &by(2));
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_eq!(value(&imitation, "x-customer"), Some("customer-4711"));
        // And stays known as what several have got.
        shape.learn(&real("customer-4711", "5"), &by(1));
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_eq!(value(&imitation, "x-customer"), Some("customer-4711"));
        // Another value is one client's again.
        shape.learn(&real("customer-4712", "6"), &by(2));
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_ne!(value(&imitation, "x-customer"), Some("customer-4712"));
    }

    /// What is not text has no likeness: it is shown as it is, or not at all.
    #[test]
    fn a_value_that_is_no_text_is_shown_once_two_clients_have_got_it() {
        let shape = FieldShape::default();
        let value = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        for (turn, (client, is_shown)) in [(1, false), (1, false), (2, true), (1, true)]
            .into_iter()
            .enumerate()
        {
            let mut real = answer(&[("x-turn", &turn.to_string())]);
            real.insert("x-place", value.clone());
            shape.learn(&real, &by(client));
            let imitation = shape.imitate(&HeaderMap::new(), &body(), &scene(0));
            assert_eq!(
                imitation.get("x-place"),
                is_shown.then_some(&value),
                "{turn}"
            );
        }
    }

    #[test]
    fn a_second_client_is_noticed_though_nothing_else_changes() {
        let shape = FieldShape::default();
        let real = answer(&[("x-app", "shop-7"), ("date", "x"), ("content-length", "1")]);
        shape.learn(&real, &by(1));
        shape.learn(&real, &by(2));
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_eq!(value(&imitation, "x-app"), Some("shop-7"));
    }

    #[test]
    fn lines_of_one_field_are_told_apart_by_their_values() {
        let shape = FieldShape::default();
        let real = |link| answer(&[("link", "</app.css>"), ("link", link)]);
        shape.learn(&real("</of/mallory>"), &by(1));
        shape.learn(&real("</of/alexandra>"), &by(2));
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_eq!(imitation[0].1, "</app.css>");
        assert_eq!(imitation.len(), 2);
        assert!(!imitation[1].1.contains("alexandra"), "{imitation:?}");
    }

    #[test]
    fn a_configured_field_has_all_its_lines_in_place_of_the_real_ones() {
        let shape = FieldShape::default();
        shape.learn(
            &answer(&[("link", "<real>"), ("link", "<real2>"), ("via", "x")]),
            &by(1),
        );
        let mut configured = HeaderMap::new();
        configured.append("link", HeaderValue::from_static("<a>"));
        configured.append("link", HeaderValue::from_static("<b>"));
        let imitation = imitate(&shape, &configured);
        let lines: Vec<_> = imitation.iter().map(|field| field.1.as_str()).collect();
        assert_eq!(lines, ["<a>", "<b>", "x"]);
    }

    #[test]
    fn a_moment_ahead_that_all_get_at_all_times_is_shown_as_it_is() {
        let shape = FieldShape::default();
        let sunset = answer(&[("sunset", "Thu, 01 Jan 1970 10:00:00 GMT")]);
        for (client, secs) in [(1, 0), (2, 0), (1, 60), (2, 120)] {
            let now = Timestamp::from_second(secs).unwrap();
            shape.learn(&sunset, &Seen { now, ..by(client) });
        }
        let imitation = shape.imitate(&HeaderMap::new(), &body(), &scene(3600));
        assert_eq!(imitation["sunset"], "Thu, 01 Jan 1970 10:00:00 GMT");
    }

    #[test]
    fn a_field_that_is_gone_or_new_is_noticed_though_the_others_are_the_same() {
        let shape = FieldShape::default();
        let (two, one) = (
            answer(&[("server", "a"), ("via", "b")]),
            answer(&[("server", "a")]),
        );
        for (real, names) in [
            (&one, vec!["server"]),
            (&two, vec!["server", "via"]),
            (&one, vec!["server"]),
        ] {
            shape.learn(real, &by(1));
            let imitation = imitate(&shape, &HeaderMap::new());
            let shown: Vec<_> = imitation.iter().map(|field| field.0.as_str()).collect();
            assert_eq!(shown, names);
        }
    }

    /// The shape after clients 1, 2, ... sent these origins, to an app that answers with these.
    fn after_origins(told: &[(Option<&'static str>, Option<&str>)]) -> FieldShape {
        let shape = FieldShape::default();
        for (client, (sent, allowed)) in (1..).zip(told) {
            let sent = sent.map(HeaderValue::from_static);
            let mut real = answer(&[("server", "app"), ("access-control-allow-headers", "x-a")]);
            if let Some(allowed) = allowed {
                real.insert(
                    header::ACCESS_CONTROL_ALLOW_ORIGIN,
                    HeaderValue::from_str(allowed).unwrap(),
                );
                real.insert(
                    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
                    HeaderValue::from_static("true"),
                );
            }
            let origin = sent.as_ref();
            shape.learn(
                &real,
                &Seen {
                    origin,
                    ..by(client)
                },
            );
        }
        shape
    }

    /// What a decoy allows to a client that sends this origin.
    fn allowed(shape: &FieldShape, origin: Option<&'static str>) -> Option<String> {
        let origin = origin.map(HeaderValue::from_static);
        let scene = Scene {
            origin: origin.as_ref(),
            ..scene(0)
        };
        let imitation = shape.imitate(&HeaderMap::new(), &body(), &scene);
        let allowed = imitation.get(header::ACCESS_CONTROL_ALLOW_ORIGIN)?;
        Some(allowed.to_str().unwrap().to_owned())
    }

    const MINE: &str = "https://mine.example";

    /// An invented origin told a client that it was banned.
    #[test]
    fn an_origin_that_the_app_echoes_is_the_clients_own() {
        const ORIGINS: [&str; 4] = ["https://a.app", "https://b.app", "null", "http://d.app:81"];
        for count in [1, 2, 4] {
            let echoes: Vec<_> = ORIGINS[..count]
                .iter()
                .map(|id| (Some(*id), Some(*id)))
                .collect();
            // Whether or not others asked without.
            for others in [&[][..], &[(None, None)], &[(None, None), (None, None)]] {
                let shape = after_origins(&[&echoes, others].concat());
                assert_eq!(allowed(&shape, Some(MINE)).as_deref(), Some(MINE));
                assert_eq!(allowed(&shape, None), None);
                let shape = after_origins(&[others, &echoes].concat());
                assert_eq!(allowed(&shape, Some(MINE)).as_deref(), Some(MINE));
                assert_eq!(allowed(&shape, None), None);
            }
        }
    }

    #[test]
    fn an_origin_that_all_get_is_no_echo_though_it_is_that_of_some() {
        const APP: &str = "https://app.example";
        let (own, none) = ((Some(APP), Some(APP)), (None, Some(APP)));
        let other = (Some("https://b.app"), Some(APP));
        for told in [
            &[own, none, none][..],
            &[none, own, own],
            &[own, none, own],
            &[own, other, own],
            &[other, own, none],
        ] {
            let shape = after_origins(told);
            assert_eq!(
                allowed(&shape, Some(MINE)).as_deref(),
                Some(APP),
                "{told:?}"
            );
            assert_eq!(allowed(&shape, None).as_deref(), Some(APP), "{told:?}");
        }
        for origin in [None, Some(MINE)] {
            let all = after_origins(&[(origin, Some("*"))]);
            assert_eq!(allowed(&all, Some(MINE)).as_deref(), Some("*"));
        }
    }

    #[test]
    fn what_scripts_of_an_origin_may_do_is_never_made_up() {
        let shape = FieldShape::default();
        let real = |headers| {
            answer(&[
                ("access-control-allow-credentials", "true"),
                ("access-control-allow-headers", headers),
                ("access-control-allow-origin", "https://tenant-7.app"),
                ("timing-allow-origin", "https://tenant-7.app"),
            ])
        };
        shape.learn(&real("x-mallory"), &by(1));
        let shown = [("access-control-allow-credentials".into(), "true".into())];
        assert_eq!(imitate(&shape, &HeaderMap::new()), shown);
        shape.learn(&real("x-alexandra"), &by(2));
        let imitation = imitate(&shape, &HeaderMap::new());
        assert_eq!(value(&imitation, "access-control-allow-headers"), None);
        let fixed = value(&imitation, "access-control-allow-origin");
        assert_eq!(fixed, Some("https://tenant-7.app"));
    }

    #[test]
    fn an_end_in_the_past_is_repeated_and_one_ahead_moves_on() {
        let shape = FieldShape::default();
        let past = "Mon, 26 Jul 1967 05:00:00 GMT";
        for (real, shown) in [
            (past, past),
            ("0", "0"),
            (
                "Thu, 01 Jan 1970 00:01:00 GMT",
                "Thu, 01 Jan 1970 00:01:00 GMT",
            ),
        ] {
            shape.learn(&answer(&[("expires", real)]), &by(1));
            let imitation = imitate(&shape, &HeaderMap::new());
            assert_eq!(value(&imitation, "expires"), Some(shown));
        }
        // Two clients got the same one at the same time, and for a while there was no other.
        shape.learn(
            &answer(&[("expires", "Thu, 01 Jan 1970 00:01:00 GMT")]),
            &by(2),
        );
        let imitation = shape.imitate(&HeaderMap::new(), &body(), &scene(3600));
        assert_eq!(imitation["expires"], "Thu, 01 Jan 1970 01:01:00 GMT");
    }

    #[test]
    fn before_the_first_real_answer_a_decoy_has_what_every_answer_has() {
        let imitation = imitate(&FieldShape::default(), &answer(&[("content-type", "a/b")]));
        let names: Vec<_> = imitation.iter().map(|field| field.0.as_str()).collect();
        assert_eq!(names, ["content-length", "date", "via", "content-type"]);
    }
}
