//! An answer that is made up, in the form in which it is sent.

use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, HeaderName, LAST_MODIFIED,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use jiff::Timestamp;

use super::delay;
use super::fields::BodyFields;
use super::likeness::Scene;
use super::negotiation::{Form, Requested, compress};
use super::{Answers, Shadow};
use crate::middleware::ResponseBody;

/// Fields of a whole answer that one without a body lacks (RFC 9110, section 15.4.5).
const OF_THE_BODY: [HeaderName; 6] = [
    CONTENT_TYPE,
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_RANGE,
    ACCEPT_RANGES,
];

/// A whole answer that is made up, of which less may be sent.
pub(super) struct Invention<'a> {
    shadow: &'a Shadow,
    host: &'a str,
    origin: Option<&'a HeaderValue>,
    pub(super) content: Bytes,
    encoding: Option<HeaderValue>,
    tag: Option<HeaderValue>,
    pub(super) headers: HeaderMap,
    delay: Duration,
}

impl<'a> Invention<'a> {
    pub(super) fn new(
        shadow: &'a Shadow,
        host: &'a str,
        body: Bytes,
        requested: &'a Requested,
    ) -> Self {
        let seed = shadow.secret.hash_one(&body);
        let tag = shadow.tag.get();
        let tag = tag.and_then(|tag| tag.invent(seed, body.len()));
        // An empty body is not compressed, and a configured coding is the template's own.
        let is_open = !shadow.decoy.headers.contains_key(CONTENT_ENCODING) && !body.is_empty();
        let is_coded = is_open && shadow.is_compressed(requested.whole());
        let mut like = shadow.like(requested.whole());
        let delay = shadow.like(requested.whole());
        let delay = delay.filter_map(|answers| answers.latencies.draw()).next();
        let mut invention = Self {
            shadow,
            host,
            origin: requested.origin.as_ref(),
            content: if is_coded { compress(&body) } else { body },
            encoding: is_coded.then(|| HeaderValue::from_static("gzip")),
            tag,
            headers: HeaderMap::new(),
            delay: delay.unwrap_or_else(delay::unknown),
        };
        let nothing = Answers::default();
        invention.headers = invention.imitate(like.next().unwrap_or(&nothing), None);
        if shadow.decoy.status == StatusCode::NO_CONTENT {
            invention.headers.remove(CONTENT_LENGTH);
        }
        invention
    }

    fn imitate(&self, answers: &Answers, range: Option<HeaderValue>) -> HeaderMap {
        self.imitate_with(answers, &self.shadow.decoy.headers, range)
    }

    fn imitate_with(
        &self,
        answers: &Answers,
        configured: &HeaderMap,
        range: Option<HeaderValue>,
    ) -> HeaderMap {
        let body = BodyFields {
            length: HeaderValue::from(self.content.len()),
            encoding: self.encoding.clone(),
            range,
            tag: self.tag.clone(),
        };
        let now = Timestamp::now();
        let scene = Scene {
            host: self.host,
            delay: self.delay,
            // A real answer is dated when it is sent.
            now: now + self.delay,
            origin: self.origin,
        };
        answers.fields.imitate(configured, &body, &scene)
    }

    /// The fields of an answer of this form, of which a whole one is known in any case, and the
    /// validators of the whole one.
    fn reshape(&mut self, form: Form, range: Option<HeaderValue>) {
        let answers = self.shadow.of(form);
        if let Some(delay) = answers.latencies.draw() {
            self.delay = delay;
        }
        if answers.fields.is_empty() {
            if let Some(range) = range {
                self.headers.insert(CONTENT_RANGE, range);
                let length = HeaderValue::from(self.content.len());
                self.headers.insert(CONTENT_LENGTH, length);
            }
            return;
        }
        let whole = std::mem::take(&mut self.headers);
        self.headers = self.imitate(answers, range);
        for name in [ETAG, LAST_MODIFIED] {
            if let (Some(shown), Some(value)) = (self.headers.get_mut(&name), whole.get(&name)) {
                value.clone_into(shown);
            }
        }
    }

    pub(super) fn whole<R>(self) -> (Response<ResponseBody<R>>, Duration) {
        let status = self.shadow.decoy.status;
        self.finish(status)
    }

    pub(super) fn not_modified<R>(mut self) -> (Response<ResponseBody<R>>, Duration) {
        self.content = Bytes::new();
        self.reshape(Form::NotModified, None);
        let known = &self.shadow.of(Form::NotModified).fields;
        self.headers = without_body(self.headers, |name| known.has(name));
        self.finish(StatusCode::NOT_MODIFIED)
    }

    pub(super) fn part<R>(mut self, part: Range<usize>) -> (Response<ResponseBody<R>>, Duration) {
        let (first, last) = (part.start, part.end.saturating_sub(1));
        let range = format!("bytes {first}-{last}/{}", self.content.len());
        self.content = self.content.slice(part);
        self.reshape(Form::Partial, HeaderValue::try_from(range).ok());
        self.finish(StatusCode::PARTIAL_CONTENT)
    }

    pub(super) fn nothing<R>(mut self) -> (Response<ResponseBody<R>>, Duration) {
        let range = format!("bytes */{}", self.content.len());
        self.content = Bytes::new();
        self.headers = without_body(self.headers, |_| false);
        if let Ok(range) = HeaderValue::try_from(range) {
            self.headers.insert(CONTENT_RANGE, range);
        }
        self.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        self.finish(StatusCode::RANGE_NOT_SATISFIABLE)
    }

    pub(super) fn failed<R>(mut self) -> (Response<ResponseBody<R>>, Duration) {
        self.content = Bytes::new();
        self.reshape(Form::Failed, None);
        let known = &self.shadow.of(Form::Failed).fields;
        self.headers = without_body(self.headers, |name| known.has(name));
        if known.is_empty() {
            self.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        self.finish(StatusCode::PRECONDITION_FAILED)
    }

    /// An answer to OPTIONS, of the status of real ones and with their fields. Before the first of
    /// them it says as little as there is to say.
    pub(super) fn options<R>(
        mut self,
        known: Option<(StatusCode, Arc<Answers>)>,
    ) -> (Response<ResponseBody<R>>, Duration) {
        self.content = Bytes::new();
        self.encoding = None;
        let Some((status, answers)) = known else {
            self.headers = without_body(self.headers, |_| false);
            return self.finish(StatusCode::NO_CONTENT);
        };
        if let Some(delay) = answers.latencies.draw() {
            self.delay = delay;
        }
        // What is configured is for the body that this answer lacks, but where real ones have it
        // too.
        let mut configured = self.shadow.decoy.headers.clone();
        for name in self.shadow.decoy.headers.keys() {
            if !answers.fields.has(name) {
                configured.remove(name);
            }
        }
        self.headers = self.imitate_with(&answers, &configured, None);
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

/// The fields without those of a body, unless real answers have them, and still in their order,
/// which removing one would change.
fn without_body(mut headers: HeaderMap, is_real: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let mut rest = HeaderMap::with_capacity(headers.len());
    let mut last = None;
    for (name, value) in headers.drain() {
        last = name.or(last);
        if let Some(name) = last.as_ref()
            && (!OF_THE_BODY.contains(name) || is_real(name))
        {
            rest.append(name, value);
        }
    }
    rest
}
