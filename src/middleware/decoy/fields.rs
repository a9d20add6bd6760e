//! The header fields of a route's real answers, learnt so that a decoy can show the same ones in
//! the same order.
//!
//! What was meant for one client must never be shown to another. So a value is repeated only where
//! two clients have got the same one, or the field speaks of the server and of nobody else. Any
//! other is made up in its likeness; and fields that hand out identities, or that describe a body
//! which the decoy does not have, are neither repeated nor made up.

use std::time::SystemTime;

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use parking_lot::RwLock;

use super::likeness::Likeness;

/// Fields that say who a client is, or how the real body was put together. A decoy shows them only
/// where it is configured to.
const UNSHARED: [HeaderName; 6] = [
    header::SET_COOKIE,
    header::WWW_AUTHENTICATE,
    header::PROXY_AUTHENTICATE,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::TRAILER,
];

/// Fields that speak of the server and of nobody else.
const OF_THE_SERVER: [HeaderName; 14] = [
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

/// What the proxy adds to every real answer of an HTTP/1.1 upstream.
const VIA: HeaderValue = HeaderValue::from_static("1.1 weir");

/// The fields of the last real answer, in their order.
#[derive(Debug, Default)]
pub(super) struct FieldShape(RwLock<Vec<Field>>);

#[derive(Clone, Debug)]
struct Field {
    name: HeaderName,
    value: HeaderValue,
    /// The only client that got this value so far; none when several did.
    only_seen_by: Option<u64>,
    /// What values of this field are like.
    likeness: Option<Likeness>,
}

impl FieldShape {
    /// Takes over what another has learnt.
    pub(super) fn inherit(&self, earlier: &Self) {
        let known = earlier.0.read().clone();
        *self.0.write() = known;
    }

    /// Learns the fields of a real answer that `client` got.
    pub(super) fn learn(&self, answer: &HeaderMap, client: u64) {
        if self.knows(answer, client) {
            return;
        }
        let mut known = self.0.write();
        let learnt = answer.iter().map(|(name, value)| {
            let before = known
                .iter()
                .find(|field| field.name == *name && field.value == *value);
            let only_seen_by = match before.map(|field| field.only_seen_by) {
                Some(None) => None,
                Some(Some(other)) if other != client => None,
                _ => Some(client),
            };
            let earlier = known.iter().find(|field| field.name == *name);
            let earlier = earlier.and_then(|field| field.likeness.as_ref());
            Field {
                likeness: Likeness::of(value, client, earlier),
                name: name.clone(),
                value: value.clone(),
                only_seen_by,
            }
        });
        *known = learnt.collect();
    }

    /// Whether an answer has nothing new to teach. Most have not, and cost no more than a look.
    fn knows(&self, answer: &HeaderMap, client: u64) -> bool {
        let known = self.0.read();
        known.len() == answer.len()
            && known
                .iter()
                .zip(answer)
                .all(|(field, (name, value))| field.name == *name && field.knows(value, client))
    }

    /// Whether real answers come without a `content-length`, and so in chunks.
    pub(super) fn has_unknown_length(&self) -> bool {
        let known = self.0.read();
        !known.is_empty()
            && !known
                .iter()
                .any(|field| field.name == header::CONTENT_LENGTH)
    }

    /// Fields like those of a real answer to one who asked this host, with the `configured` ones in
    /// place of theirs.
    pub(super) fn imitate(
        &self,
        configured: &HeaderMap,
        length: HeaderValue,
        host: &str,
    ) -> HeaderMap {
        let known = self.0.read();
        let mut imitation = HeaderMap::with_capacity(known.len() + configured.len() + 2);
        if known.is_empty() {
            imitation.insert(header::CONTENT_LENGTH, length.clone());
            imitation.insert(header::DATE, now());
            imitation.insert(header::VIA, VIA);
        }
        for field in known.iter() {
            if configured.contains_key(&field.name) {
                // Holds the place; the value is put in below.
                imitation
                    .entry(&field.name)
                    .or_insert_with(|| field.value.clone());
            } else if let Some(value) = field.imitate(&length, host) {
                imitation.append(&field.name, value);
            }
        }
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

impl Field {
    /// Whether a value teaches nothing, because it was seen before or is made anew each time.
    fn knows(&self, value: &HeaderValue, client: u64) -> bool {
        let seen = || self.only_seen_by.is_none_or(|only| only == client);
        matches!(self.name, header::DATE | header::CONTENT_LENGTH) || self.value == *value && seen()
    }

    fn imitate(&self, length: &HeaderValue, host: &str) -> Option<HeaderValue> {
        match self.name {
            header::DATE => Some(now()),
            header::CONTENT_LENGTH => Some(length.clone()),
            _ if UNSHARED.contains(&self.name) => None,
            _ if self.only_seen_by.is_none() => Some(self.value.clone()),
            _ if OF_THE_SERVER.contains(&self.name) => Some(self.value.clone()),
            _ => self.likeness.as_ref()?.invent(host),
        }
    }
}

/// The present moment as a `date` field.
fn now() -> HeaderValue {
    let now = httpdate::fmt_http_date(SystemTime::now());
    HeaderValue::try_from(now).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

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
        let pair = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        shape
            .imitate(configured, HeaderValue::from(7), "")
            .iter()
            .map(pair)
            .collect()
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
        shape.learn(&real, 1);
        shape.learn(&real, 2);
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
        shape.learn(&real, 1);
        shape.learn(&real, 1);
        let imitation = imitate(&shape, &HeaderMap::new());
        let made_up = value(&imitation, "x-customer").unwrap();
        assert_ne!(made_up, "customer-4711");
        assert_eq!((made_up.len(), made_up.as_bytes()[8]), (13, b'-'));
        assert_eq!(value(&imitation, "set-cookie"), None);
    }

    #[test]
    fn what_speaks_of_the_server_alone_is_repeated_at_once() {
        let shape = FieldShape::default();
        shape.learn(&answer(&[("server", "app"), ("via", "1.1 weir")]), 1);
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
                client,
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
        shape.learn(&real, 1);
        shape.learn(&real, 2);
        assert_eq!(imitate(&shape, &HeaderMap::new()), []);
    }

    #[test]
    fn ids_are_made_anew_for_each_decoy() {
        let shape = FieldShape::default();
        let id = Uuid::new_v4().to_string();
        shape.learn(&answer(&[("x-request-id", &id)]), 1);
        shape.learn(&answer(&[("x-request-id", &Uuid::new_v4().to_string())]), 2);
        let first = imitate(&shape, &HeaderMap::new());
        assert_ne!(first, imitate(&shape, &HeaderMap::new()));
        assert!(Uuid::try_parse(value(&first, "x-request-id").unwrap()).is_ok());
    }

    #[test]
    fn answers_in_chunks_are_imitated_in_chunks() {
        let shape = FieldShape::default();
        assert!(!shape.has_unknown_length());
        shape.learn(&answer(&[("server", "app")]), 1);
        assert!(shape.has_unknown_length());
        shape.learn(&answer(&[("content-length", "2")]), 1);
        assert!(!shape.has_unknown_length());
    }

    #[test]
    fn before_the_first_real_answer_a_decoy_has_what_every_answer_has() {
        let imitation = imitate(&FieldShape::default(), &answer(&[("content-type", "a/b")]));
        let names: Vec<_> = imitation.iter().map(|field| field.0.as_str()).collect();
        assert_eq!(names, ["content-length", "date", "via", "content-type"]);
    }
}
