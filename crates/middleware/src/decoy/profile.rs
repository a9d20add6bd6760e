//! The headers and latencies of a route's real responses, so that a decoy can show the same headers
//! in the same order, and take as long.
//!
//! What was meant for one client must never be shown to another. So a value is repeated only where
//! two clients have got the same one, or the header speaks of the server alone. For any other,
//! one of the same pattern is generated; and headers that hand out identities, or that describe a
//! body which the decoy does not have, are neither repeated nor generated.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use rand::seq::IndexedRandom;
use weir_http::list;
use weir_http::request::via;

use super::ResponseSample;
use super::value_pattern::{DecoyContext, Observation, TagPattern, ValuePattern};

/// The headers of the last real responses, in their order.
#[derive(Debug, Default)]
pub(super) struct HeaderProfile {
    known: RwLock<LearnedHeaders>,
    lessons: AtomicU32,
    /// In milliseconds since 1970.
    last_lesson: AtomicI64,
}

/// After this many lessons, one is taken each [`LESSON_INTERVAL`] at most. Otherwise a header that
/// differs in each response, such as an id, would make every response write what all workers read.
const MANY_LESSONS: u32 = 64;

/// In milliseconds.
const LESSON_INTERVAL: u64 = 100;

/// Apps have more headers for requests with an `origin`, so the two kinds are kept apart.
#[derive(Clone, Debug, Default)]
struct LearnedHeaders {
    without_origin: Vec<LearnedHeader>,
    with_origin: Vec<LearnedHeader>,
}

impl LearnedHeaders {
    fn for_requests(&self, has_origin: bool) -> &[LearnedHeader] {
        if has_origin {
            &self.with_origin
        } else {
            &self.without_origin
        }
    }

    /// The headers for such requests, or before the first one, for the others.
    fn closest(&self, has_origin: bool) -> &[LearnedHeader] {
        match self.for_requests(has_origin) {
            [] => self.for_requests(!has_origin),
            known => known,
        }
    }

    /// All headers, those for such requests first.
    fn all(&self, has_origin: bool) -> impl Iterator<Item = &LearnedHeader> + Clone {
        self.for_requests(has_origin)
            .iter()
            .chain(self.for_requests(!has_origin))
    }

    fn put(&mut self, has_origin: bool, learnt: Vec<LearnedHeader>) {
        let (place, others) = if has_origin {
            (&mut self.with_origin, &mut self.without_origin)
        } else {
            (&mut self.without_origin, &mut self.with_origin)
        };
        for other in others {
            let is_same =
                |header: &&LearnedHeader| header.name == other.name && header.value == other.value;
            if let Some(same) = learnt.iter().find(is_same) {
                // A client without this origin got the value too.
                other.is_echo &= same.is_echo;
                other.only_client = other.only_client.and(same.only_client);
            }
        }
        *place = learnt;
    }
}

/// The headers that describe the decoy's body. They are never taken from a real response.
#[derive(Debug)]
pub(super) struct BodyHeaders {
    pub(super) length: HeaderValue,
    pub(super) encoding: Option<HeaderValue>,
    pub(super) range: Option<HeaderValue>,
    pub(super) tag: Option<HeaderValue>,
}

#[derive(Clone, Debug)]
struct LearnedHeader {
    name: HeaderName,
    value: HeaderValue,
    /// `None` once several clients got this value.
    only_client: Option<u64>,
    /// Whether the value is the request's own `origin`.
    is_echo: bool,
    pattern: Option<ValuePattern>,
}

impl HeaderProfile {
    /// Takes over the headers of `earlier`.
    pub(super) fn inherit(&self, earlier: &Self) {
        let known = earlier.known.read().clone();
        *self.known.write() = known;
    }

    /// Learns the headers of a real response. `seen` has no header's name yet.
    pub(super) fn learn(&self, response: &HeaderMap, seen: &Observation<'_>) {
        if self.knows(response, seen) || !self.takes_lesson(seen.now) {
            return;
        }
        let has_origin = seen.origin.is_some();
        let mut known = self.known.write();
        let learnt = response.iter().map(|(name, value)| {
            let namesakes = known.all(has_origin);
            let mut namesakes = namesakes.filter(|header| header.name == *name);
            let earlier = namesakes.clone().next();
            let same = namesakes.find(|header| header.value == *value);
            let seen = Observation {
                name: name.as_str(),
                ..*seen
            };
            LearnedHeader::learn(name, value, &seen, same, earlier)
        });
        let learnt = learnt.collect();
        known.put(has_origin, learnt);
    }

    /// Whether it is time for a lesson. Of simultaneous responses, one is learnt from.
    fn takes_lesson(&self, now: Timestamp) -> bool {
        let now = now.as_millisecond();
        let last = self.last_lesson.load(Ordering::Relaxed);
        let is_begun = self.lessons.load(Ordering::Relaxed) >= MANY_LESSONS;
        if is_begun && now.abs_diff(last) < LESSON_INTERVAL {
            return false;
        }
        if !is_begun {
            self.lessons.fetch_add(1, Ordering::Relaxed);
        }
        let relaxed = Ordering::Relaxed;
        let taken = self
            .last_lesson
            .compare_exchange(last, now, relaxed, relaxed);
        taken.is_ok() || !is_begun
    }

    /// Whether a response has nothing new, as most have.
    fn knows(&self, response: &HeaderMap, seen: &Observation<'_>) -> bool {
        let known = self.known.read();
        let known = known.for_requests(seen.origin.is_some());
        known.len() == response.len()
            && known
                .iter()
                .zip(response)
                .all(|(header, (name, value))| header.name == *name && header.knows(value, seen))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.read().all(false).next().is_none()
    }

    pub(super) fn has(&self, name: &HeaderName) -> bool {
        self.known
            .read()
            .all(false)
            .any(|header| header.name == *name)
    }

    /// Whether real responses vary by `Accept-Encoding`.
    pub(super) fn varies_by_coding(&self) -> bool {
        let known = self.known.read();
        let mut lines = known
            .all(false)
            .filter(|header| header.name == header::VARY);
        lines.any(|line| {
            let accept_encoding = header::ACCEPT_ENCODING.as_str().as_bytes();
            list::members(&line.value).any(|name| name.eq_ignore_ascii_case(accept_encoding))
        })
    }

    /// Headers like those of a real response, with the `configured` ones in place of theirs, and
    /// those of the decoy's own body. There is a `content-length` where real responses have one.
    pub(super) fn imitate(
        &self,
        configured: &HeaderMap,
        body: &BodyHeaders,
        context: &DecoyContext<'_>,
    ) -> HeaderMap {
        let known = self.known.read();
        let known = known.closest(context.origin.is_some());
        let mut headers = HeaderMap::with_capacity(known.len() + configured.len() + 3);
        if known.is_empty() {
            headers.insert(header::CONTENT_LENGTH, body.length.clone());
            headers.insert(header::DATE, date(context));
            headers.insert(header::VIA, via(context.upstream_version));
        }
        let slots = BodyHeaderSlots::new(known, body);
        for header in known {
            if let Some(first) = configured.get(&header.name) {
                let place = headers.entry(&header.name);
                place.or_insert_with(|| first.clone());
            } else if let Some(described) = slots.describe(&header.name) {
                headers.extend(described);
            } else if let Some(value) = header.imitate(context) {
                headers.append(&header.name, value);
            }
        }
        slots.complete(&mut headers);
        for name in configured.keys() {
            let mut values = configured.get_all(name).iter();
            let first = values.next();
            if let Some(first) = first.filter(|first| headers.get(name) != Some(*first)) {
                headers.insert(name, first.clone());
            }
            for value in values {
                headers.append(name, value.clone());
            }
        }
        headers
    }
}

/// The headers that describe a body, at the positions of those of real responses.
struct BodyHeaderSlots<'a> {
    body: &'a BodyHeaders,
    has_length: bool,
    has_encoding: bool,
}

impl<'a> BodyHeaderSlots<'a> {
    fn new(known: &[LearnedHeader], body: &'a BodyHeaders) -> Self {
        let has = |name| known.iter().any(|header| header.name == name);
        Self {
            body,
            has_length: has(header::CONTENT_LENGTH),
            has_encoding: has(header::CONTENT_ENCODING),
        }
    }

    /// The replacement for a header that describes the real body; `None` for any other header.
    ///
    /// Servers that compress do not know the length beforehand. So if only responses of the other
    /// kind were seen, the length and the coding take each other's position.
    fn describe(&self, name: &HeaderName) -> Option<Option<(HeaderName, HeaderValue)>> {
        let encoding = || Some((header::CONTENT_ENCODING, self.body.encoding.clone()?));
        let length = || Some((header::CONTENT_LENGTH, self.body.length.clone()));
        let line = |name, value: &Option<HeaderValue>| Some((name, value.clone()?));
        match *name {
            header::CONTENT_LENGTH if self.has_encoding => Some(length()),
            header::CONTENT_LENGTH => Some(encoding().or_else(length)),
            header::CONTENT_ENCODING if self.has_length => Some(encoding()),
            header::CONTENT_ENCODING => Some(encoding().or_else(length)),
            header::CONTENT_RANGE => Some(line(header::CONTENT_RANGE, &self.body.range)),
            header::ETAG => Some(line(header::ETAG, &self.body.tag)),
            _ => None,
        }
    }

    /// Adds headers that the client needs and real responses lack.
    fn complete(&self, headers: &mut HeaderMap) {
        let needed = [
            (header::CONTENT_ENCODING, &self.body.encoding),
            (header::CONTENT_RANGE, &self.body.range),
        ];
        for (name, value) in needed {
            if let Some(value) = value {
                headers.entry(name).or_insert_with(|| value.clone());
            }
        }
    }
}

impl LearnedHeader {
    /// The header of a response after `earlier`, and after one of the `same` value.
    fn learn(
        name: &HeaderName,
        value: &HeaderValue,
        seen: &Observation<'_>,
        same: Option<&Self>,
        earlier: Option<&Self>,
    ) -> Self {
        let only_client = match same.map(|header| header.only_client) {
            Some(None) => None,
            Some(Some(other)) if other != seen.client => None,
            _ => Some(seen.client),
        };
        let earlier = earlier.and_then(|header| header.pattern.as_ref());
        let is_cors = is_cors(name);
        let pattern = || ValuePattern::learn(value, seen, earlier);
        Self {
            is_echo: is_cors
                && seen.origin == Some(value)
                && same.is_none_or(|header| header.is_echo),
            pattern: (!is_cors).then(pattern).flatten(),
            name: name.clone(),
            value: value.clone(),
            only_client,
        }
    }

    /// Whether a value is known, or made anew each time.
    fn knows(&self, value: &HeaderValue, seen: &Observation<'_>) -> bool {
        if self.is_echo {
            return seen.origin == Some(value);
        }
        let seen = || self.only_client.is_none_or(|only| only == seen.client);
        matches!(self.name, header::DATE | header::CONTENT_LENGTH)
            || self.value == *value && seen() && !self.varies()
    }

    fn varies(&self) -> bool {
        self.pattern.as_ref().is_some_and(ValuePattern::varies)
    }

    fn imitate(&self, context: &DecoyContext<'_>) -> Option<HeaderValue> {
        let is_past = self.name == header::EXPIRES && !self.varies();
        match self.name {
            header::DATE => Some(date(context)),
            _ if is_never_shown(&self.name) => None,
            _ if self.is_echo => context.origin.cloned(),
            _ if is_cors_for_all_origins(&self.name) => Some(self.value.clone()),
            _ if is_cors(&self.name) && self.value == "*" => Some(self.value.clone()),
            // An end in the past means never, for all clients.
            _ if is_about_server(&self.name) || is_past => Some(self.value.clone()),
            _ if self.only_client.is_none() && !self.varies() => Some(self.value.clone()),
            _ => self.pattern.as_ref()?.generate(context),
        }
    }
}

/// Whether a header says who a client is, or promises what a decoy does not have. A decoy shows it
/// only where it is configured to.
fn is_never_shown(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::SET_COOKIE
            | header::WWW_AUTHENTICATE
            | header::PROXY_AUTHENTICATE
            | header::TRAILER
    )
}

/// Whether a header is about the server alone.
fn is_about_server(name: &HeaderName) -> bool {
    let is_standard = matches!(
        *name,
        header::ALLOW
            | header::SERVER
            | header::VIA
            | header::CONTENT_TYPE
            | header::CONTENT_LANGUAGE
            | header::CACHE_CONTROL
            | header::VARY
            | header::ACCEPT_RANGES
            | header::ALT_SVC
            | header::STRICT_TRANSPORT_SECURITY
            | header::X_FRAME_OPTIONS
            | header::X_CONTENT_TYPE_OPTIONS
            | header::X_XSS_PROTECTION
            | header::REFERRER_POLICY
    );
    is_standard || *name == "x-powered-by"
}

/// Whether a header is about the rights of scripts, and the same for all origins.
fn is_cors_for_all_origins(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::ACCESS_CONTROL_ALLOW_METHODS
            | header::ACCESS_CONTROL_ALLOW_CREDENTIALS
            | header::ACCESS_CONTROL_EXPOSE_HEADERS
            | header::ACCESS_CONTROL_MAX_AGE
    )
}

/// Whether a header is about the rights of scripts of some origin. Values are not generated: a
/// client knows its own origin.
fn is_cors(name: &HeaderName) -> bool {
    name.as_str().starts_with("access-control-") || *name == "timing-allow-origin"
}

/// The time of the response as a `date` header; the text of the last second is cached.
fn date(context: &DecoyContext<'_>) -> HeaderValue {
    thread_local! {
        static LAST: RefCell<Option<(i64, HeaderValue)>> = const { RefCell::new(None) };
    }
    let second = context.now.as_second();
    LAST.with_borrow_mut(|last| match last {
        Some((cached, date)) if *cached == second => date.clone(),
        _ => {
            let date = httpdate::fmt_http_date(context.now.into());
            let date = HeaderValue::try_from(date);
            let date = date.unwrap_or_else(|_| HeaderValue::from_static(""));
            *last = Some((second, date.clone()));
            date
        }
    })
}

pub(super) fn tag_pattern(response: &HeaderMap) -> Option<TagPattern> {
    let length = response.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    TagPattern::parse(response.get(header::ETAG)?, length)
}

/// Enough latencies for the tail to show, few enough to follow the present.
const KEPT_LATENCIES: usize = 256;

/// Latencies of decoys before the route's first response, in microseconds.
const DEFAULT_LATENCY: std::ops::Range<u64> = 5_000..50_000;

#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<Ring>);

#[derive(Clone, Debug, Default)]
struct Ring {
    recent: Vec<Duration>,
    next: usize,
}

impl Latencies {
    /// Takes over what another remembers.
    pub(super) fn inherit(&self, earlier: &Self) {
        let ring = earlier.0.lock().clone();
        *self.0.lock() = ring;
    }

    /// Remembers one latency, in place of the oldest.
    pub(super) fn record(&self, latency: Duration) {
        let mut ring = self.0.lock();
        let next = ring.next;
        match ring.recent.get_mut(next) {
            Some(oldest) => *oldest = latency,
            None => ring.recent.push(latency),
        }
        ring.next = (next + 1) % KEPT_LATENCIES;
    }

    pub(super) fn is_known(&self) -> bool {
        !self.0.lock().recent.is_empty()
    }

    /// A random one of the recent latencies; `None` before the first.
    pub(super) fn draw(&self) -> Option<Duration> {
        self.0.lock().recent.choose(&mut rand::rng()).copied()
    }
}

/// A plausible latency of a response of which nothing is known.
pub(super) fn default_latency() -> Duration {
    Duration::from_micros(rand::random_range(DEFAULT_LATENCY))
}

#[derive(Debug, Default)]
pub(super) struct ProfilesByForm {
    pub(super) read: FullProfiles,
    pub(super) written: FullProfiles,
    pub(super) not_modified: ResponseProfile,
    pub(super) partial: ResponseProfile,
    pub(super) failed: ResponseProfile,
}

impl ProfilesByForm {
    pub(super) fn all(&self) -> [&ResponseProfile; 7] {
        let Self {
            read,
            written,
            not_modified,
            partial,
            failed,
        } = self;
        [
            &read.plain,
            &read.compressed,
            &written.plain,
            &written.compressed,
            not_modified,
            partial,
            failed,
        ]
    }
}

#[derive(Debug, Default)]
pub(super) struct FullProfiles {
    pub(super) plain: ResponseProfile,
    pub(super) compressed: ResponseProfile,
}

/// The headers and latencies of responses of one form.
#[derive(Debug, Default)]
pub(super) struct ResponseProfile {
    pub(super) headers: HeaderProfile,
    pub(super) latencies: Latencies,
}

impl ResponseProfile {
    pub(super) fn inherit(&self, earlier: &Self) {
        self.latencies.inherit(&earlier.latencies);
        self.headers.inherit(&earlier.headers);
    }

    pub(super) fn learn(&self, headers: &HeaderMap, sample: &ResponseSample) {
        let seen = Observation {
            name: "",
            client: sample.client,
            latency: sample.latency,
            now: Timestamp::now(),
            origin: sample.negotiation.origin.as_ref(),
        };
        self.headers.learn(headers, &seen);
        if let Some(latency) = sample.latency {
            self.latencies.record(latency);
        }
    }

    pub(super) fn is_known(&self) -> bool {
        !self.headers.is_empty() || self.latencies.is_known()
    }
}

/// The status, headers and latencies of responses to OPTIONS, apart from those to other methods.
#[derive(Debug, Default)]
pub(super) struct OptionsProfile(Mutex<Option<(StatusCode, Arc<ResponseProfile>)>>);

impl OptionsProfile {
    /// Learns from a response, unless it is a failure and others were not: any client can send what
    /// an app does not understand.
    pub(super) fn learn(&self, status: StatusCode, headers: &HeaderMap, sample: &ResponseSample) {
        if status.is_server_error() {
            return;
        }
        let profile = match &mut *self.0.lock() {
            Some((known, profile)) if *known == status => Arc::clone(profile),
            Some((known, _)) if known.is_success() && !status.is_success() => return,
            other => Arc::clone(&other.insert((status, Arc::default())).1),
        };
        profile.learn(headers, sample);
    }

    pub(super) fn known(&self) -> Option<(StatusCode, Arc<ResponseProfile>)> {
        self.0.lock().clone()
    }

    pub(super) fn inherit(&self, earlier: &Self) {
        let known = earlier.known();
        *self.0.lock() = known;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// What `client` got.
    fn by(client: u64) -> Observation<'static> {
        Observation {
            name: "",
            client,
            latency: None,
            now: NOW,
            origin: None,
        }
    }

    fn response(fields: &[(&'static str, &str)]) -> HeaderMap {
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

    fn imitate(profile: &HeaderProfile, configured: &HeaderMap) -> Vec<(String, String)> {
        imitate_for(profile, configured, &body())
    }

    /// A body of seven bytes.
    fn body() -> BodyHeaders {
        BodyHeaders {
            length: HeaderValue::from(7),
            encoding: None,
            range: None,
            tag: None,
        }
    }

    fn context(secs: i64) -> DecoyContext<'static> {
        DecoyContext {
            host: "",
            delay: Duration::ZERO,
            now: Timestamp::from_second(secs).unwrap(),
            origin: None,
            upstream_version: http::Version::HTTP_11,
        }
    }

    fn imitate_for(
        profile: &HeaderProfile,
        configured: &HeaderMap,
        body: &BodyHeaders,
    ) -> Vec<(String, String)> {
        let pair = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        let headers = profile.imitate(configured, body, &context(0));
        headers.iter().map(pair).collect()
    }

    fn value<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
        fields
            .iter()
            .find(|field| field.0 == name)
            .map(|field| field.1.as_str())
    }

    #[test]
    fn a_decoy_shows_the_fields_of_a_real_answer_in_their_order() {
        let profile = HeaderProfile::default();
        let real = response(&[
            ("server", "app"),
            ("content-type", "text/plain"),
            ("date", "x"),
            ("content-length", "3"),
            ("via", "1.1 weir"),
        ]);
        profile.learn(&real, &by(1));
        profile.learn(&real, &by(2));
        let configured = response(&[("content-type", "application/json"), ("x-extra", "1")]);
        let headers = imitate(&profile, &configured);
        let names: Vec<_> = headers.iter().map(|field| field.0.as_str()).collect();
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
        assert_eq!(value(&headers, "content-type"), Some("application/json"));
        assert_eq!(value(&headers, "content-length"), Some("7"));
        assert_eq!(value(&headers, "server"), Some("app"));
    }

    /// Each real response of a route with such a header wrote what all workers read.
    #[test]
    fn a_header_that_is_another_each_time_does_not_have_every_response_teach() {
        let profile = HeaderProfile::default();
        let mut lessons = 0;
        let mut learn = |number: i64, at| {
            let real = response(&[("x-request-id", &number.to_string())]);
            let seen = Observation {
                now: Timestamp::from_millisecond(at).unwrap(),
                ..by(1)
            };
            profile.learn(&real, &seen);
            let learnt = profile.known.read().without_origin[0].value.clone();
            lessons += usize::from(learnt == real["x-request-id"]);
            lessons
        };
        for number in 0..10_000 {
            learn(number, 0);
        }
        assert_eq!(learn(10_000, 50), MANY_LESSONS as usize);
        assert_eq!(learn(10_001, 100), MANY_LESSONS as usize + 1);
        // A clock that is set back does not end it.
        assert_eq!(learn(10_002, -1_000_000), MANY_LESSONS as usize + 2);
    }

    #[test]
    fn what_only_one_client_was_given_is_never_repeated() {
        let profile = HeaderProfile::default();
        let real = response(&[("x-customer", "customer-4711"), ("set-cookie", "s=secret")]);
        profile.learn(&real, &by(1));
        profile.learn(&real, &by(1));
        let headers = imitate(&profile, &HeaderMap::new());
        let made_up = value(&headers, "x-customer").unwrap();
        assert_ne!(made_up, "customer-4711");
        assert_eq!((made_up.len(), made_up.as_bytes()[8]), (13, b'-'));
        assert_eq!(value(&headers, "set-cookie"), None);
    }

    #[test]
    fn what_speaks_of_the_server_alone_is_repeated_at_once() {
        let profile = HeaderProfile::default();
        profile.learn(&response(&[("server", "app"), ("via", "1.1 weir")]), &by(1));
        let headers = imitate(&profile, &HeaderMap::new());
        assert_eq!(value(&headers, "server"), Some("app"));
        assert_eq!(value(&headers, "via"), Some("1.1 weir"));
    }

    #[test]
    fn a_compressed_body_is_not_promised() {
        let profile = HeaderProfile::default();
        for client in [1, 2] {
            profile.learn(
                &response(&[("content-encoding", "gzip"), ("vary", "accept-encoding")]),
                &by(client),
            );
        }
        let headers = imitate(&profile, &HeaderMap::new());
        assert_eq!(value(&headers, "content-encoding"), None);
        assert_eq!(value(&headers, "vary"), Some("accept-encoding"));
    }

    #[test]
    fn identities_stay_with_their_owners_even_when_two_share_one() {
        let profile = HeaderProfile::default();
        let real = response(&[("set-cookie", "s=shared")]);
        profile.learn(&real, &by(1));
        profile.learn(&real, &by(2));
        assert_eq!(imitate(&profile, &HeaderMap::new()), []);
    }

    #[test]
    fn ids_are_made_anew_for_each_decoy() {
        let profile = HeaderProfile::default();
        let id = Uuid::new_v4().to_string();
        profile.learn(&response(&[("x-request-id", &id)]), &by(1));
        profile.learn(
            &response(&[("x-request-id", &Uuid::new_v4().to_string())]),
            &by(2),
        );
        let first = imitate(&profile, &HeaderMap::new());
        assert_ne!(first, imitate(&profile, &HeaderMap::new()));
        assert!(Uuid::try_parse(value(&first, "x-request-id").unwrap()).is_ok());
    }

    #[test]
    fn the_fields_that_describe_a_body_describe_the_decoys_own() {
        let profile = HeaderProfile::default();
        let described = BodyHeaders {
            length: HeaderValue::from(7),
            encoding: Some(HeaderValue::from_static("gzip")),
            range: Some(HeaderValue::from_static("bytes 0-6/9")),
            tag: Some(HeaderValue::from_static("\"made\"")),
        };
        let all = |described| {
            let headers = imitate_for(&profile, &HeaderMap::new(), described);
            let line = |(name, value)| format!("{name}: {value}");
            headers.into_iter().map(line).collect::<Vec<_>>()
        };
        profile.learn(
            &response(&[
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
        // Where the other kind of response is all that is known, one takes the other's place.
        profile.learn(
            &response(&[("content-length", "3"), ("server", "a")]),
            &by(1),
        );
        let swapped = [
            "content-encoding: gzip",
            "server: a",
            "content-range: bytes 0-6/9",
        ];
        assert_eq!(all(&described), swapped);
        let plain = body();
        profile.learn(
            &response(&[("content-encoding", "br"), ("server", "a")]),
            &by(1),
        );
        assert_eq!(all(&plain), ["content-length: 7", "server: a"]);
        // Nothing is said of a length that was not known beforehand.
        profile.learn(&response(&[("server", "a")]), &by(1));
        assert_eq!(all(&plain), ["server: a"]);
    }

    #[test]
    fn what_two_clients_have_got_is_shown_and_what_one_got_twice_is_not() {
        let profile = HeaderProfile::default();
        let real = |customer, turn| response(&[("x-customer", customer), ("x-turn", turn)]);
        // The other header changes, or nothing would be learnt the second time.
        profile.learn(&real("customer-4711", "1"), &by(1));
        profile.learn(&real("customer-4711", "2"), &by(1));
        profile.learn(&real("customer-4711", "3"), &by(1));
        let headers = imitate(&profile, &HeaderMap::new());
        assert_ne!(value(&headers, "x-customer"), Some("customer-4711"));
        profile.learn(&real("customer-4711", "4"), &by(2));
        let headers = imitate(&profile, &HeaderMap::new());
        assert_eq!(value(&headers, "x-customer"), Some("customer-4711"));
        // And stays known as what several have got.
        profile.learn(&real("customer-4711", "5"), &by(1));
        let headers = imitate(&profile, &HeaderMap::new());
        assert_eq!(value(&headers, "x-customer"), Some("customer-4711"));
        // Another value is one client's again.
        profile.learn(&real("customer-4712", "6"), &by(2));
        let headers = imitate(&profile, &HeaderMap::new());
        assert_ne!(value(&headers, "x-customer"), Some("customer-4712"));
    }

    /// What is not text has no pattern: it is shown as it is, or not at all.
    #[test]
    fn a_value_that_is_no_text_is_shown_once_two_clients_have_got_it() {
        let profile = HeaderProfile::default();
        let value = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        for (turn, (client, is_shown)) in [(1, false), (1, false), (2, true), (1, true)]
            .into_iter()
            .enumerate()
        {
            let mut real = response(&[("x-turn", &turn.to_string())]);
            real.insert("x-place", value.clone());
            profile.learn(&real, &by(client));
            let headers = profile.imitate(&HeaderMap::new(), &body(), &context(0));
            assert_eq!(headers.get("x-place"), is_shown.then_some(&value), "{turn}");
        }
    }

    #[test]
    fn a_second_client_is_noticed_though_nothing_else_changes() {
        let profile = HeaderProfile::default();
        let real = response(&[("x-app", "shop-7"), ("date", "x"), ("content-length", "1")]);
        profile.learn(&real, &by(1));
        profile.learn(&real, &by(2));
        let headers = imitate(&profile, &HeaderMap::new());
        assert_eq!(value(&headers, "x-app"), Some("shop-7"));
    }

    #[test]
    fn lines_of_one_field_are_told_apart_by_their_values() {
        let profile = HeaderProfile::default();
        let real = |link| response(&[("link", "</app.css>"), ("link", link)]);
        profile.learn(&real("</of/mallory>"), &by(1));
        profile.learn(&real("</of/alexandra>"), &by(2));
        let headers = imitate(&profile, &HeaderMap::new());
        assert_eq!(headers[0].1, "</app.css>");
        assert_eq!(headers.len(), 2);
        assert!(!headers[1].1.contains("alexandra"), "{headers:?}");
    }

    #[test]
    fn a_configured_field_has_all_its_lines_in_place_of_the_real_ones() {
        let profile = HeaderProfile::default();
        profile.learn(
            &response(&[("link", "<real>"), ("link", "<real2>"), ("via", "x")]),
            &by(1),
        );
        let mut configured = HeaderMap::new();
        configured.append("link", HeaderValue::from_static("<a>"));
        configured.append("link", HeaderValue::from_static("<b>"));
        let headers = imitate(&profile, &configured);
        let lines: Vec<_> = headers.iter().map(|field| field.1.as_str()).collect();
        assert_eq!(lines, ["<a>", "<b>", "x"]);
    }

    #[test]
    fn a_moment_ahead_that_all_get_at_all_times_is_shown_as_it_is() {
        let profile = HeaderProfile::default();
        let sunset = response(&[("sunset", "Thu, 01 Jan 1970 10:00:00 GMT")]);
        for (client, secs) in [(1, 0), (2, 0), (1, 60), (2, 120)] {
            let now = Timestamp::from_second(secs).unwrap();
            profile.learn(&sunset, &Observation { now, ..by(client) });
        }
        let headers = profile.imitate(&HeaderMap::new(), &body(), &context(3600));
        assert_eq!(headers["sunset"], "Thu, 01 Jan 1970 10:00:00 GMT");
    }

    #[test]
    fn a_field_that_is_gone_or_new_is_noticed_though_the_others_are_the_same() {
        let profile = HeaderProfile::default();
        let (two, one) = (
            response(&[("server", "a"), ("via", "b")]),
            response(&[("server", "a")]),
        );
        for (real, names) in [
            (&one, vec!["server"]),
            (&two, vec!["server", "via"]),
            (&one, vec!["server"]),
        ] {
            profile.learn(real, &by(1));
            let headers = imitate(&profile, &HeaderMap::new());
            let shown: Vec<_> = headers.iter().map(|field| field.0.as_str()).collect();
            assert_eq!(shown, names);
        }
    }

    /// The profile after clients 1, 2, ... sent these origins, to an app that responds with these.
    fn after_origins(told: &[(Option<&'static str>, Option<&str>)]) -> HeaderProfile {
        let profile = HeaderProfile::default();
        for (client, (sent, allowed)) in (1..).zip(told) {
            let sent = sent.map(HeaderValue::from_static);
            let mut real = response(&[("server", "app"), ("access-control-allow-headers", "x-a")]);
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
            profile.learn(
                &real,
                &Observation {
                    origin,
                    ..by(client)
                },
            );
        }
        profile
    }

    /// What a decoy allows to a client that sends this origin.
    fn allowed(profile: &HeaderProfile, origin: Option<&'static str>) -> Option<String> {
        let origin = origin.map(HeaderValue::from_static);
        let context = DecoyContext {
            origin: origin.as_ref(),
            ..context(0)
        };
        let headers = profile.imitate(&HeaderMap::new(), &body(), &context);
        let allowed = headers.get(header::ACCESS_CONTROL_ALLOW_ORIGIN)?;
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
                let profile = after_origins(&[&echoes, others].concat());
                assert_eq!(allowed(&profile, Some(MINE)).as_deref(), Some(MINE));
                assert_eq!(allowed(&profile, None), None);
                let profile = after_origins(&[others, &echoes].concat());
                assert_eq!(allowed(&profile, Some(MINE)).as_deref(), Some(MINE));
                assert_eq!(allowed(&profile, None), None);
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
            let profile = after_origins(told);
            assert_eq!(
                allowed(&profile, Some(MINE)).as_deref(),
                Some(APP),
                "{told:?}"
            );
            assert_eq!(allowed(&profile, None).as_deref(), Some(APP), "{told:?}");
        }
        for origin in [None, Some(MINE)] {
            let all = after_origins(&[(origin, Some("*"))]);
            assert_eq!(allowed(&all, Some(MINE)).as_deref(), Some("*"));
        }
    }

    #[test]
    fn what_scripts_of_an_origin_may_do_is_never_made_up() {
        let profile = HeaderProfile::default();
        let real = |headers| {
            response(&[
                ("access-control-allow-credentials", "true"),
                ("access-control-allow-headers", headers),
                ("access-control-allow-origin", "https://tenant-7.app"),
                ("timing-allow-origin", "https://tenant-7.app"),
            ])
        };
        profile.learn(&real("x-mallory"), &by(1));
        let shown = [("access-control-allow-credentials".into(), "true".into())];
        assert_eq!(imitate(&profile, &HeaderMap::new()), shown);
        profile.learn(&real("x-alexandra"), &by(2));
        let headers = imitate(&profile, &HeaderMap::new());
        assert_eq!(value(&headers, "access-control-allow-headers"), None);
        let fixed = value(&headers, "access-control-allow-origin");
        assert_eq!(fixed, Some("https://tenant-7.app"));
    }

    #[test]
    fn an_end_in_the_past_is_repeated_and_one_ahead_moves_on() {
        let profile = HeaderProfile::default();
        let past = "Mon, 26 Jul 1967 05:00:00 GMT";
        for (real, shown) in [
            (past, past),
            ("0", "0"),
            (
                "Thu, 01 Jan 1970 00:01:00 GMT",
                "Thu, 01 Jan 1970 00:01:00 GMT",
            ),
        ] {
            profile.learn(&response(&[("expires", real)]), &by(1));
            let headers = imitate(&profile, &HeaderMap::new());
            assert_eq!(value(&headers, "expires"), Some(shown));
        }
        // Two clients got the same one at the same time, and for a while there was no other.
        profile.learn(
            &response(&[("expires", "Thu, 01 Jan 1970 00:01:00 GMT")]),
            &by(2),
        );
        let headers = profile.imitate(&HeaderMap::new(), &body(), &context(3600));
        assert_eq!(headers["expires"], "Thu, 01 Jan 1970 01:01:00 GMT");
    }

    #[test]
    fn before_the_first_real_answer_a_decoy_has_what_every_answer_has() {
        let headers = imitate(
            &HeaderProfile::default(),
            &response(&[("content-type", "a/b")]),
        );
        let names: Vec<_> = headers.iter().map(|field| field.0.as_str()).collect();
        assert_eq!(names, ["content-length", "date", "via", "content-type"]);
    }

    #[test]
    fn a_drawn_latency_is_one_of_the_recent_ones() {
        let latencies = Latencies::default();
        for millis in 0..1_000 {
            latencies.record(Duration::from_millis(millis));
        }
        for _ in 0..100 {
            let drawn = latencies.draw().unwrap().as_millis();
            assert!(
                (1_000 - KEPT_LATENCIES as u128..1_000).contains(&drawn),
                "{drawn}"
            );
        }
    }

    #[test]
    fn before_the_first_real_answer_a_plausible_latency_is_drawn() {
        assert_eq!(Latencies::default().draw(), None);
        let drawn = default_latency();
        assert!(drawn >= Duration::from_millis(5) && drawn < Duration::from_millis(50));
    }
}
