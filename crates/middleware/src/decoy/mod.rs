//! Decoys, the responses to shadow-banned clients: invented, and looking like the upstream's own.
//!
//! A shadow-banned client must not be able to tell from any part of a response that it is banned.
//! So a decoy takes its status and body from the configuration, its other headers and their order
//! from the route's recent real responses ([`Shadow`]), and its delay from their latencies; it is
//! compressed, cut to a range, or left out where real responses are ([`Negotiation`]); and the
//! request body is read to its end first, as an upstream would read it.
//!
//! ```
//! # mod weir {
//! #     pub mod middleware { pub use weir_middleware::*; }
//! # }
//! use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE};
//! use weir::middleware::decoy::Decoy;
//!
//! let json = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
//! let body = r#"{"id": "{{ uuid() }}", "team": {{ path.team }}}"#;
//! let decoy = Decoy::new("invite-sent", StatusCode::CREATED, json, body)?;
//! assert_eq!(decoy.captures_used(), ["team"]);
//! # Ok::<(), weir::middleware::decoy::TemplateError>(())
//! ```

mod call_reply;
#[cfg(feature = "config")]
mod config;
mod counters;
mod gzip;
mod lateness;
mod negotiation;
#[cfg(target_os = "linux")]
mod precise_timer;
mod profile;
mod tag_cache;
mod template;
mod value_pattern;

use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{
    ACCEPT_RANGES, AGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, EXPIRES, HOST, HeaderName, LAST_MODIFIED,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, Version, request};
use http_body::Body;
use http_body_util::BodyExt;
use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};
use weir_http::problem::{INVALID_RESPONSE, Problem, body_problem};
use weir_http::request::{BoxedRequest, HttpRequest, WebSocketStream, give_back};
use weir_rules::Captures;
use weir_runtime::loop_time;

#[cfg(feature = "config")]
pub use self::config::{DecoyKeys, Decoys};
pub(crate) use self::counters::withhold;
use self::gzip::GzipHead;
pub(crate) use self::gzip::GzipHeadReader;
pub use self::negotiation::Negotiation;
use self::negotiation::{FullResponse, IgnoredHeaders, OptionsKind, ResponseForm, Selection};
use self::profile::{BodyHeaders, OptionsProfile, ProfilesByForm, ResponseProfile};
use self::tag_cache::TagCache;
pub use self::template::TemplateError;
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub use self::template::fuzz as fuzz_template;
use self::template::{Template, TemplateContext};
use self::value_pattern::{DecoyContext, TagPattern};
use crate::{ClientIdentity, RequestContext, ResponseBody};

/// The part of a request's body that a template can use, in bytes. The rest is read and dropped.
const MAX_KEPT_BODY: usize = 64 * 1024;

/// An invented response, as it is configured.
#[derive(Debug)]
pub struct Decoy {
    name: String,
    status: StatusCode,
    headers: HeaderMap,
    body: Template,
}

/// Says which it is.
impl fmt::Display for Decoy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "decoy {} ({})", self.name, self.status)
    }
}

impl Decoy {
    /// A decoy of this status, with these headers and a body from this template.
    ///
    /// The headers replace those of the upstream's real responses, or are added to them. Values
    /// that the template inserts are escaped as `content-type` demands: as JSON, as HTML, or not
    /// at all.
    ///
    /// # Errors
    /// When the body is not a template.
    pub fn new(
        name: &str,
        status: StatusCode,
        headers: HeaderMap,
        body: &str,
    ) -> Result<Self, TemplateError> {
        let content_type = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let body = Template::parse(body, content_type.unwrap_or_default())?;
        Ok(Self {
            name: name.to_owned(),
            status,
            headers,
            body,
        })
    }

    /// The name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether the body has the form that its `content-type` says, for a request that has no value
    /// to put in. Of all forms only JSON is looked at.
    pub fn is_well_formed(&self) -> bool {
        self.body.is_well_formed()
    }

    /// The captured path segments that the body uses.
    pub fn captures_used(&self) -> Vec<String> {
        self.body.captures_used()
    }
}

/// A decoy on a route, and what it has learnt from the route's real responses.
#[derive(Debug)]
pub struct Shadow {
    decoy: Arc<Decoy>,
    /// By the form of the response, as a client compares like with like.
    profiles: ProfilesByForm,
    preflights: OptionsProfile,
    other_options: OptionsProfile,
    tag_pattern: OnceLock<TagPattern>,
    tags: TagCache,
    ignored: IgnoredHeaders,
    /// The key of made-up tags, so that none can be computed from a body.
    secret: RandomState,
    /// How the app's gzip begins, once a real body was seen.
    gzip: OnceLock<GzipHead>,
    /// A counter of the app that real responses had, and clients do not get.
    counter: OnceLock<HeaderName>,
}

/// The circumstances of a real response.
#[derive(Clone, Debug)]
pub struct ResponseSample {
    /// The request's part in its form.
    pub negotiation: Negotiation,
    /// A fingerprint of the client.
    pub client: u64,
    /// A hash of the request's target.
    pub target: u64,
    /// From the end of the request's body to the response. `None` if the response came before.
    pub latency: Option<Duration>,
}

impl Shadow {
    /// Nothing learnt yet.
    pub fn new(decoy: Arc<Decoy>) -> Self {
        Self {
            decoy,
            profiles: Default::default(),
            preflights: OptionsProfile::default(),
            other_options: OptionsProfile::default(),
            tag_pattern: OnceLock::new(),
            tags: TagCache::default(),
            ignored: IgnoredHeaders::default(),
            secret: RandomState::new(),
            gzip: OnceLock::new(),
            counter: OnceLock::new(),
        }
    }

    /// The decoy that it shows.
    pub fn decoy(&self) -> &Decoy {
        &self.decoy
    }

    /// Whether the decoy is configured to have this field, whatever real responses have.
    fn has_configured(&self, name: &HeaderName) -> bool {
        self.decoy.headers.contains_key(name)
    }

    /// Notes that this field counts for each client, and that clients do not get it.
    fn withheld(&self, counter: HeaderName) {
        self.counter.get_or_init(|| {
            tracing::warn!(
                target: "weir::middleware::decoy",
                decoy = self.decoy.name,
                header = counter.as_str(),
                "the app counts for each client, which no decoy can go on with: clients of the \
                 decoy's route do not get its headers that count"
            );
            counter
        });
    }

    /// A header in which the app counts for each client, if it has one. Clients do not get it.
    pub fn counter(&self) -> Option<&HeaderName> {
        self.counter.get()
    }

    /// Takes over from `earlier` what that has learnt from responses of the same status.
    pub fn inherit(&self, earlier: &Self) {
        if let Some(counter) = earlier.counter() {
            self.counter.get_or_init(|| counter.clone());
        }
        if let Some(head) = earlier.gzip.get() {
            self.gzip.get_or_init(|| *head);
        }
        self.preflights.inherit(&earlier.preflights);
        self.other_options.inherit(&earlier.other_options);
        if self.decoy.status != earlier.decoy.status {
            return;
        }
        for (profile, earlier) in self.profiles.all().into_iter().zip(earlier.profiles.all()) {
            profile.inherit(earlier);
        }
        if let Some(tag) = earlier.tag_pattern.get() {
            self.tag_pattern.get_or_init(|| tag.clone());
        }
        self.tags.inherit(&earlier.tags);
        self.ignored.inherit(&earlier.ignored);
    }

    /// Learns from a real response of the route.
    ///
    /// Only responses of the decoy's own status teach, and other forms of them: a client compares
    /// like with like. Responses to OPTIONS teach nothing but how to respond to OPTIONS.
    pub fn learn<B: Body>(&self, response: &Response<B>, sample: &ResponseSample) {
        let negotiation = &sample.negotiation;
        let headers = response.headers();
        if call_reply::is_failed_call(headers) {
            return;
        }
        if let Some(kind) = negotiation.options {
            let profile = self.options(kind);
            profile.learn(response.status(), headers, sample);
            return;
        }
        let Some(form) = negotiation.form(response.status(), self.decoy.status) else {
            return;
        };
        self.ignored.learn(negotiation, form, headers);
        // Some apps say less in response to HEAD than others.
        if negotiation.is_head {
            return;
        }
        if self.tag_pattern.get().is_none()
            && let Some(tag) = profile::tag_pattern(headers)
        {
            self.tag_pattern.get_or_init(|| tag);
        }
        if let Some(tag) = headers.get(ETAG) {
            let full = negotiation.full();
            self.tags.learn((sample.target, full), tag, sample.client);
        }
        let profile = self.profile(form);
        if profile.headers.is_empty()
            && let Some(closest) = self.closest(negotiation.full()).next()
        {
            // Words and dates of another form of the response tell what is constant in this one.
            profile.headers.inherit(&closest.headers);
        }
        profile.learn(headers, sample);
    }

    fn options(&self, kind: OptionsKind) -> &OptionsProfile {
        match kind {
            OptionsKind::Preflight => &self.preflights,
            OptionsKind::Other => &self.other_options,
        }
    }

    fn profile(&self, form: ResponseForm) -> &ResponseProfile {
        let full = match form {
            ResponseForm::Full(full) => full,
            ResponseForm::NotModified => return &self.profiles.not_modified,
            ResponseForm::Partial => return &self.profiles.partial,
            ResponseForm::PreconditionFailed => return &self.profiles.failed,
        };
        let profile = if full.is_read {
            &self.profiles.read
        } else {
            &self.profiles.written
        };
        if full.is_compressed {
            &profile.compressed
        } else {
            &profile.plain
        }
    }

    /// The profiles of full responses, the most similar form first.
    fn closest(&self, full: FullResponse) -> impl Iterator<Item = &ResponseProfile> {
        let other = full.with_compression(!full.is_compressed);
        let forms = [
            full,
            other,
            full.with_other_methods(),
            other.with_other_methods(),
        ];
        let profiles = forms.map(|full| self.profile(ResponseForm::Full(full)));
        profiles.into_iter().filter(|profile| profile.is_known())
    }

    /// Whether responses to such requests are compressed: earlier ones were, or vary by the
    /// accepted coding.
    fn is_compressed(&self, full: FullResponse) -> bool {
        let profile = |full: FullResponse, is_compressed| {
            self.profile(ResponseForm::Full(full.with_compression(is_compressed)))
        };
        let by = |full: FullResponse| {
            let (plain, compressed) = (profile(full, false), profile(full, true));
            match (compressed.is_known(), plain.is_known()) {
                (true, _) => Some(compressed.headers.has(&CONTENT_ENCODING)),
                (false, true) => Some(plain.headers.varies_by_coding()),
                (false, false) => None,
            }
        };
        let known = || by(full).or_else(|| by(full.with_other_methods()));
        full.is_compressed && known().unwrap_or(false)
    }

    /// The tag of a decoy with this body: the real one if it is constant, or else one like it.
    fn tag(
        &self,
        request: &request::Parts,
        full: FullResponse,
        body: &Bytes,
    ) -> Option<HeaderValue> {
        let identity = ClientIdentity::from_extensions(&request.extensions);
        let client = identity.map_or(0, ClientIdentity::fingerprint);
        let known = || {
            let target = target(&request.uri);
            let other = full.with_compression(!full.is_compressed);
            let known = |full| self.tags.get((target, full), client);
            known(full).or_else(|| known(other))
        };
        let invented = || {
            let pattern = self.tag_pattern.get()?;
            pattern.generate(self.secret.hash_one(body), body.len())
        };
        // Most apps have no tags: then nothing is hashed.
        let known = (!self.tags.is_empty()).then(known).flatten();
        known.or_else(invented)
    }

    /// Responds with the decoy: reads the request's body to the end, builds the response, and waits
    /// as long as an upstream would take.
    pub async fn respond<R>(
        self: Arc<Self>,
        request: impl HttpRequest<Body: Body + 'static>,
    ) -> Response<ResponseBody<R>> {
        let BoxedRequest { head, body } = request.into_boxed();
        let uses_body = self.decoy.body.uses_body();
        let keep = if uses_body { MAX_KEPT_BODY } else { 0 };
        let kept = match read_to_end(body, keep).await {
            Ok(kept) => kept,
            // As the proxy responds; a decoy would give the ban away.
            Err(error) => return ResponseBody::problem(body_problem(&error)),
        };
        let start = loop_time::now();
        let (response, delay) = self.build(&head, &kept);
        give_back(head);
        wait(start, delay).await;
        response
    }

    /// The response, and its latency.
    fn build<R>(
        &self,
        head: &request::Parts,
        body: &[u8],
    ) -> (Response<ResponseBody<R>>, Duration) {
        let routed = RequestContext::routed(&head.extensions);
        let captures = routed.map(|routed| &routed.captures);
        let body = self.render(captures, &head.headers, body);
        let negotiation = Negotiation::new(&head.method, &head.headers);
        if let Some(content_type) = call_reply::content_type(head) {
            let empty = DecoyResponse::new(self, head, Bytes::new(), &negotiation);
            let delay = empty.delay;
            return (empty.reply(&content_type, &body, &negotiation), delay);
        }
        let response = DecoyResponse::new(self, head, body, &negotiation);
        if self.decoy.status.is_success() && asks_for_websocket(head) {
            // As the proxy responds: a success would say that the WebSocket has begun.
            let problem = Problem::new(StatusCode::BAD_GATEWAY, INVALID_RESPONSE);
            return (ResponseBody::problem(problem), response.delay);
        }
        if let Some(kind) = negotiation.options {
            return response.options(self.options(kind).known());
        }
        let length = response.content.len();
        let serves_ranges = self.profile(ResponseForm::Partial).is_known();
        let selection = if self.decoy.status == StatusCode::OK {
            let headers = &response.headers;
            self.ignored
                .select(&negotiation, headers, length, serves_ranges)
        } else {
            Selection::Full
        };
        match selection {
            Selection::Full => response.full(),
            Selection::NotModified => response.not_modified(),
            Selection::Range(range) => response.range(range),
            Selection::Unsatisfiable => response.unsatisfiable(),
            Selection::PreconditionFailed => response.precondition_failed(),
        }
    }

    fn render(&self, captures: Option<&Captures>, headers: &HeaderMap, body: &[u8]) -> Bytes {
        let context = TemplateContext {
            captures,
            headers,
            body,
        };
        match self.decoy.body.render(&context) {
            Ok(text) => text,
            Err(error) => {
                let decoy = &self.decoy.name;
                tracing::warn!(
                    target: "weir::middleware::decoy",
                    decoy,
                    %error,
                    "a decoy's body cannot be rendered"
                );
                Bytes::new()
            }
        }
    }
}

/// Headers of a full response that a response without a body lacks (RFC 9110, section 15.4.5).
const BODY_HEADERS: [HeaderName; 6] = [
    CONTENT_TYPE,
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_RANGE,
    ACCEPT_RANGES,
];

/// Headers about the validity of a full response.
const VALIDITY_HEADERS: [HeaderName; 4] = [AGE, ETAG, EXPIRES, LAST_MODIFIED];

/// A full decoy response, which may be cut to another form.
struct DecoyResponse<'a> {
    shadow: &'a Shadow,
    host: &'a str,
    upstream_version: Version,
    origin: Option<&'a HeaderValue>,
    content: Bytes,
    encoding: Option<HeaderValue>,
    tag: Option<HeaderValue>,
    headers: HeaderMap,
    delay: Duration,
}

impl<'a> DecoyResponse<'a> {
    fn new(
        shadow: &'a Shadow,
        request: &'a request::Parts,
        body: Bytes,
        negotiation: &'a Negotiation,
    ) -> Self {
        let tag = shadow.tag(request, negotiation.full(), &body);
        // An empty body is not compressed, and a configured coding is the template's own.
        let is_open = !shadow.decoy.headers.contains_key(CONTENT_ENCODING) && !body.is_empty();
        let is_compressed = is_open && shadow.is_compressed(negotiation.full());
        let mut similar = shadow.closest(negotiation.full());
        let closest = similar.next();
        let delay = closest.into_iter().chain(similar);
        let delay = delay.filter_map(|profile| profile.latencies.draw()).next();
        let delay = delay.unwrap_or_else(profile::default_latency);
        let pack = |body: &[u8]| {
            let head = shadow.gzip.get().copied().unwrap_or_default();
            head.pack(body, Timestamp::now() + delay)
        };
        let mut response = Self {
            shadow,
            host: host(request),
            upstream_version: upstream_version(request),
            origin: negotiation.origin.as_ref(),
            content: if is_compressed { pack(&body) } else { body },
            encoding: is_compressed.then(|| HeaderValue::from_static("gzip")),
            tag,
            headers: HeaderMap::new(),
            delay,
        };
        let nothing = ResponseProfile::default();
        response.headers = response.imitate(closest.unwrap_or(&nothing), None);
        if shadow.decoy.status == StatusCode::NO_CONTENT {
            response.headers.remove(CONTENT_LENGTH);
        }
        response
    }

    fn imitate(&self, profile: &ResponseProfile, range: Option<HeaderValue>) -> HeaderMap {
        self.imitate_with(profile, &self.shadow.decoy.headers, range)
    }

    fn imitate_with(
        &self,
        profile: &ResponseProfile,
        configured: &HeaderMap,
        range: Option<HeaderValue>,
    ) -> HeaderMap {
        let body = BodyHeaders {
            length: HeaderValue::from(self.content.len()),
            encoding: self.encoding.clone(),
            range,
            tag: self.tag.clone(),
        };
        let now = Timestamp::now();
        let context = DecoyContext {
            host: self.host,
            delay: self.delay,
            // A real response is dated when it is sent.
            now: now + self.delay,
            origin: self.origin,
            upstream_version: self.upstream_version,
        };
        profile.headers.imitate(configured, &body, &context)
    }

    /// Changes the headers to those of this form of response, with the validators of the full one.
    fn reshape(&mut self, form: ResponseForm, range: Option<HeaderValue>) {
        let profile = self.shadow.profile(form);
        if let Some(delay) = profile.latencies.draw() {
            self.delay = delay;
        }
        if profile.headers.is_empty() {
            if let Some(range) = range {
                self.headers.insert(CONTENT_RANGE, range);
                let length = HeaderValue::from(self.content.len());
                self.headers.insert(CONTENT_LENGTH, length);
            }
            return;
        }
        let full = std::mem::take(&mut self.headers);
        self.headers = self.imitate(profile, range);
        for name in [ETAG, LAST_MODIFIED] {
            if let (Some(shown), Some(value)) = (self.headers.get_mut(&name), full.get(&name)) {
                value.clone_into(shown);
            }
        }
    }

    fn full<R>(self) -> (Response<ResponseBody<R>>, Duration) {
        let status = self.shadow.decoy.status;
        self.finish(status)
    }

    fn not_modified<R>(mut self) -> (Response<ResponseBody<R>>, Duration) {
        self.content = Bytes::new();
        self.reshape(ResponseForm::NotModified, None);
        let known = &self.shadow.profile(ResponseForm::NotModified).headers;
        self.headers = without_body(self.headers, |name| known.has(name));
        self.finish(StatusCode::NOT_MODIFIED)
    }

    fn range<R>(mut self, range: Range<usize>) -> (Response<ResponseBody<R>>, Duration) {
        let (first, last) = (range.start, range.end.saturating_sub(1));
        let content_range = format!("bytes {first}-{last}/{}", self.content.len());
        self.content = self.content.slice(range);
        self.reshape(
            ResponseForm::Partial,
            HeaderValue::try_from(content_range).ok(),
        );
        self.finish(StatusCode::PARTIAL_CONTENT)
    }

    fn unsatisfiable<R>(mut self) -> (Response<ResponseBody<R>>, Duration) {
        let range = format!("bytes */{}", self.content.len());
        self.content = Bytes::new();
        self.headers = without_body(self.headers, |_| false);
        if let Ok(range) = HeaderValue::try_from(range) {
            self.headers.insert(CONTENT_RANGE, range);
        }
        self.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        self.finish(StatusCode::RANGE_NOT_SATISFIABLE)
    }

    fn precondition_failed<R>(mut self) -> (Response<ResponseBody<R>>, Duration) {
        self.content = Bytes::new();
        self.reshape(ResponseForm::PreconditionFailed, None);
        let known = &self
            .shadow
            .profile(ResponseForm::PreconditionFailed)
            .headers;
        self.headers = without_body(self.headers, |name| known.has(name));
        if known.is_empty() {
            self.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        self.finish(StatusCode::PRECONDITION_FAILED)
    }

    /// A response to OPTIONS, with the status and the headers of real ones. Before the first real
    /// one it has no headers about the body.
    fn options<R>(
        mut self,
        known: Option<(StatusCode, Arc<ResponseProfile>)>,
    ) -> (Response<ResponseBody<R>>, Duration) {
        self.content = Bytes::new();
        self.encoding = None;
        let Some((status, profile)) = known else {
            let is_of_body =
                |name: &HeaderName| BODY_HEADERS.contains(name) || VALIDITY_HEADERS.contains(name);
            self.headers = without(self.headers, is_of_body);
            return self.finish(StatusCode::NO_CONTENT);
        };
        if let Some(delay) = profile.latencies.draw() {
            self.delay = delay;
        }
        // Configured headers are about the body, which this response lacks. Those that real
        // responses have stay.
        let mut configured = self.shadow.decoy.headers.clone();
        for name in self.shadow.decoy.headers.keys() {
            if !profile.headers.has(name) {
                configured.remove(name);
            }
        }
        self.headers = self.imitate_with(&profile, &configured, None);
        if status == StatusCode::NO_CONTENT {
            self.headers.remove(CONTENT_LENGTH);
        }
        self.finish(status)
    }

    fn finish<R>(self, status: StatusCode) -> (Response<ResponseBody<R>>, Duration) {
        let mut response = Response::new(if self.headers.contains_key(CONTENT_LENGTH) {
            ResponseBody::full(self.content)
        } else {
            ResponseBody::chunked(self.content)
        });
        *response.status_mut() = status;
        *response.headers_mut() = self.headers;
        (response, self.delay)
    }
}

/// The headers without those of a body, unless real responses have them.
fn without_body(headers: HeaderMap, is_real: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    without(headers, |name| {
        BODY_HEADERS.contains(name) && !is_real(name)
    })
}

/// Leaves out headers and keeps the order of the others, which `HeaderMap::remove` would change.
fn without(mut headers: HeaderMap, is_left_out: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let mut rest = HeaderMap::with_capacity(headers.len());
    let mut last = None;
    for (name, value) in headers.drain() {
        last = name.or(last);
        if let Some(name) = last.as_ref()
            && !is_left_out(name)
        {
            rest.append(name, value);
        }
    }
    rest
}

/// Waits until `delay` after `start`, to some tens of microseconds, or without a precise timer to
/// the runtime's millisecond. On a busy thread this holds on average.
async fn wait(start: Instant, delay: Duration) {
    let due = lateness::aim(start + delay);
    // Not the cached time of this poll: a timer of the runtime rounds a wait that is already over
    // up to its next millisecond.
    let now = Instant::now();
    if now < due {
        wait_until(start, due, now).await;
    }
    lateness::ended(Instant::now().saturating_duration_since(due));
}

async fn wait_until(start: Instant, due: Instant, now: Instant) {
    // A clock that has not moved while the decoy was built is a paused one of a test. It moves when
    // a task waits for a timer of the runtime.
    #[cfg(target_os = "linux")]
    if now > start && precise_timer::wait_until(due, now).await {
        return;
    }
    sleep_until(due).await;
}

/// A hash of a request's target.
pub(super) fn target(uri: &Uri) -> u64 {
    let mut hasher = DefaultHasher::new();
    (uri.path(), uri.query()).hash(&mut hasher);
    hasher.finish()
}

/// Whether a request by a stream of HTTP/2 is for a WebSocket (RFC 8441).
fn asks_for_websocket(head: &request::Parts) -> bool {
    head.version == Version::HTTP_2 && head.extensions.get::<WebSocketStream>().is_some()
}

fn upstream_version(head: &request::Parts) -> Version {
    let routed = RequestContext::routed(&head.extensions);
    routed.map_or(Version::HTTP_11, |routed| routed.route.upstream_version)
}

fn host(head: &request::Parts) -> &str {
    let header = || head.headers.get(HOST)?.to_str().ok();
    let authority = head.uri.authority().map(Authority::as_str);
    authority.or_else(header).unwrap_or_default()
}

/// Reads a body to its end and returns its first `keep` bytes.
async fn read_to_end<B: Body>(body: B, keep: usize) -> Result<Bytes, B::Error> {
    let mut body = std::pin::pin!(body);
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(mut data) = frame?.into_data() {
            let wanted = data.remaining().min(keep.saturating_sub(kept.len()));
            kept.extend_from_slice(&data.copy_to_bytes(wanted));
        }
    }
    Ok(kept.freeze())
}

#[cfg(test)]
mod tests;
