//! Decoys: invented answers that look like the upstream's own.
//!
//! A shadow-banned client must not learn that it is banned, from no part of what it gets. So a
//! decoy takes its status and body from the configuration, its other fields and their order from
//! the route's recent real answers ([`Shadow`]), and its delay from their latencies; it is
//! compressed, cut to a part, or left out where real answers are ([`Requested`]); and the request's
//! body is read to its end first, as an upstream would read it.

mod delay;
mod fields;
mod invention;
mod likeness;
mod moment;
mod negotiation;
mod template;

use std::hash::RandomState;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderMap, Response, StatusCode, request};
use http_body::Body;
use http_body_util::BodyExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use self::delay::Latencies;
use self::fields::FieldShape;
use self::invention::Invention;
use self::likeness::{Seen, TagLikeness};
pub use self::negotiation::Requested;
use self::negotiation::{Form, OptionsKind, Refusals, Selected, Whole};
pub use self::template::TemplateError;
#[cfg(any(test, fuzzing))]
pub use self::template::fuzz as fuzz_template;
use self::template::{Facts, Template};
use crate::middleware::ResponseBody;
use crate::problem::{BROKEN_BODY, Problem};
use crate::rules::Captures;

/// How much of a request's body a template can use. What is beyond is read and thrown away.
const BODY_KEPT: usize = 64 * 1024;

/// An invented answer, as it is configured.
#[derive(Debug)]
pub struct Decoy {
    name: String,
    status: StatusCode,
    headers: HeaderMap,
    body: Template,
}

impl Decoy {
    /// A decoy of this status, with these fields and a body from this template.
    ///
    /// The fields stand for themselves wherever the upstream's real answers have others, or none.
    /// Values that the template inserts are escaped as `content-type` demands: as JSON, as HTML,
    /// or not at all.
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

    /// The decoy's name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The status of the answer.
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

/// A decoy on a route, with what was learnt from the route's real answers.
#[derive(Debug)]
pub struct Shadow {
    decoy: Arc<Decoy>,
    /// By the form of the answer, as a client compares like with like.
    answers: ByForm,
    preflights: OptionsAnswers,
    other_options: OptionsAnswers,
    tag: OnceLock<TagLikeness>,
    refusals: Refusals,
    /// What tags are made with, so that none can be computed from a body.
    secret: RandomState,
}

#[derive(Debug, Default)]
struct ByForm {
    read: WholeAnswers,
    written: WholeAnswers,
    not_modified: Answers,
    partial: Answers,
    failed: Answers,
}

impl ByForm {
    fn all(&self) -> [&Answers; 7] {
        let Self {
            read,
            written,
            not_modified,
            partial,
            failed,
        } = self;
        [
            &read.plain,
            &read.coded,
            &written.plain,
            &written.coded,
            not_modified,
            partial,
            failed,
        ]
    }
}

#[derive(Debug, Default)]
struct WholeAnswers {
    plain: Answers,
    coded: Answers,
}

/// What was learnt from answers of one form.
#[derive(Debug, Default)]
struct Answers {
    fields: FieldShape,
    latencies: Latencies,
}

impl Answers {
    fn inherit(&self, earlier: &Self) {
        self.latencies.inherit(&earlier.latencies);
        self.fields.inherit(&earlier.fields);
    }

    fn learn(&self, headers: &HeaderMap, sample: &Sample) {
        let seen = Seen {
            name: "",
            client: sample.client,
            latency: sample.latency,
            now: Timestamp::now(),
            origin: sample.requested.origin.as_ref(),
        };
        self.fields.learn(headers, &seen);
        if let Some(latency) = sample.latency {
            self.latencies.record(latency);
        }
    }

    fn is_known(&self) -> bool {
        !self.fields.is_empty() || self.latencies.is_known()
    }
}

/// What was learnt from answers to OPTIONS, which have a status of their own: that of the decoy
/// says nothing of them, and their fields nothing of other answers.
#[derive(Debug, Default)]
struct OptionsAnswers(Mutex<Option<(StatusCode, Arc<Answers>)>>);

impl OptionsAnswers {
    /// Learns from an answer, unless it is a failure and others were not: any client can send what
    /// an app does not understand.
    fn learn(&self, status: StatusCode, headers: &HeaderMap, sample: &Sample) {
        if status.is_server_error() {
            return;
        }
        let answers = match &mut *self.0.lock() {
            Some((known, answers)) if *known == status => Arc::clone(answers),
            Some((known, _)) if known.is_success() && !status.is_success() => return,
            other => Arc::clone(&other.insert((status, Arc::default())).1),
        };
        answers.learn(headers, sample);
    }

    fn known(&self) -> Option<(StatusCode, Arc<Answers>)> {
        self.0.lock().clone()
    }

    fn inherit(&self, earlier: &Self) {
        let known = earlier.known();
        *self.0.lock() = known;
    }
}

/// How a real answer came about.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What the request wanted.
    pub requested: Requested,
    /// A number that tells clients apart.
    pub client: u64,
    /// How long the answer took, counted from the end of the request's body; none is known of one
    /// that came before that.
    pub latency: Option<Duration>,
}

impl Shadow {
    /// Shadow-bans with this decoy.
    pub fn new(decoy: Arc<Decoy>) -> Self {
        Self {
            decoy,
            answers: Default::default(),
            preflights: OptionsAnswers::default(),
            other_options: OptionsAnswers::default(),
            tag: OnceLock::new(),
            refusals: Refusals::default(),
            secret: RandomState::new(),
        }
    }

    /// The decoy.
    pub fn decoy(&self) -> &Decoy {
        &self.decoy
    }

    /// Takes over what `earlier`, which it replaces, has learnt from answers of the same status.
    pub fn inherit(&self, earlier: &Self) {
        self.preflights.inherit(&earlier.preflights);
        self.other_options.inherit(&earlier.other_options);
        if self.decoy.status != earlier.decoy.status {
            return;
        }
        for (answers, earlier) in self.answers.all().into_iter().zip(earlier.answers.all()) {
            answers.inherit(earlier);
        }
        if let Some(tag) = earlier.tag.get() {
            self.tag.get_or_init(|| tag.clone());
        }
        self.refusals.inherit(&earlier.refusals);
    }

    /// Learns from a real answer of the route.
    ///
    /// Only answers of the decoy's own status teach, and other forms of them: a client compares
    /// like with like. Answers to OPTIONS teach what OPTIONS is answered, and nothing else.
    pub fn learn<B: Body>(&self, answer: &Response<B>, sample: &Sample) {
        let requested = &sample.requested;
        let headers = answer.headers();
        if let Some(kind) = requested.options {
            self.options(kind).learn(answer.status(), headers, sample);
            return;
        }
        let Some(form) = requested.form(answer.status(), self.decoy.status) else {
            return;
        };
        self.refusals.learn(requested, form, headers);
        // Some apps say less in answer to HEAD than others.
        if requested.is_head {
            return;
        }
        if self.tag.get().is_none()
            && let Some(tag) = fields::tag(headers)
        {
            self.tag.get_or_init(|| tag);
        }
        let answers = self.of(form);
        if answers.fields.is_empty()
            && let Some(like) = self.like(requested.whole()).next()
        {
            // Words and moments that are known from answers of another form are known.
            answers.fields.inherit(&like.fields);
        }
        answers.learn(headers, sample);
    }

    fn options(&self, kind: OptionsKind) -> &OptionsAnswers {
        match kind {
            OptionsKind::Preflight => &self.preflights,
            OptionsKind::Other => &self.other_options,
        }
    }

    fn of(&self, form: Form) -> &Answers {
        let whole = match form {
            Form::Whole(whole) => whole,
            Form::NotModified => return &self.answers.not_modified,
            Form::Partial => return &self.answers.partial,
            Form::Failed => return &self.answers.failed,
        };
        let answers = if whole.is_read {
            &self.answers.read
        } else {
            &self.answers.written
        };
        if whole.is_coded {
            &answers.coded
        } else {
            &answers.plain
        }
    }

    /// What is known of whole answers, beginning with those that are most like this one.
    fn like(&self, whole: Whole) -> impl Iterator<Item = &Answers> {
        let other = whole.coded(!whole.is_coded);
        let forms = [
            whole,
            other,
            whole.of_other_methods(),
            other.of_other_methods(),
        ];
        let answers = forms.map(|whole| self.of(Form::Whole(whole)));
        answers.into_iter().filter(|answers| answers.is_known())
    }

    /// Whether answers to such requests are compressed: so they were, or the route has told others
    /// that they would be.
    fn is_compressed(&self, whole: Whole) -> bool {
        let of = |whole: Whole, is_coded| self.of(Form::Whole(whole.coded(is_coded)));
        let by = |whole: Whole| {
            let (plain, coded) = (of(whole, false), of(whole, true));
            match (coded.is_known(), plain.is_known()) {
                (true, _) => Some(coded.fields.has(&CONTENT_ENCODING)),
                (false, true) => Some(plain.fields.varies_by_coding()),
                (false, false) => None,
            }
        };
        let known = by(whole).or_else(|| by(whole.of_other_methods()));
        whole.is_coded && known.unwrap_or(false)
    }

    /// Answers a request, whose extensions may have [`Captures`], with the decoy: reads its body to
    /// the end, waits as long as an upstream would have taken, and invents.
    pub async fn answer<B, R>(
        self: Arc<Self>,
        head: request::Parts,
        body: B,
    ) -> Response<ResponseBody<R>>
    where
        B: Body,
    {
        let kept = read_to_end(
            body,
            if self.decoy.body.uses_body() {
                BODY_KEPT
            } else {
                0
            },
        )
        .await;
        let Some(kept) = kept else {
            // So does the proxy answer, and a decoy would be too much of an answer.
            return ResponseBody::problem(Problem::new(StatusCode::BAD_REQUEST, BROKEN_BODY));
        };
        let start = Instant::now();
        let (response, delay) = self.invent(&head, &kept);
        delay::wait_until(start + delay).await;
        response
    }

    /// The answer, and how long it is to take.
    fn invent<R>(
        &self,
        head: &request::Parts,
        body: &[u8],
    ) -> (Response<ResponseBody<R>>, Duration) {
        let captures = head.extensions.get::<Captures>();
        let body = self.render(captures, &head.headers, body);
        let requested = Requested::of(&head.method, &head.headers);
        let invention = Invention::new(self, host(head), body, &requested);
        if let Some(kind) = requested.options {
            return invention.options(self.options(kind).known());
        }
        let length = invention.content.len();
        let gives_parts = self.of(Form::Partial).is_known();
        let selected = if self.decoy.status == StatusCode::OK {
            let headers = &invention.headers;
            self.refusals
                .select(&requested, headers, length, gives_parts)
        } else {
            Selected::Whole
        };
        match selected {
            Selected::Whole => invention.whole(),
            Selected::NotModified => invention.not_modified(),
            Selected::Part(part) => invention.part(part),
            Selected::Nothing => invention.nothing(),
            Selected::Failed => invention.failed(),
        }
    }

    fn render(&self, captures: Option<&Captures>, headers: &HeaderMap, body: &[u8]) -> Bytes {
        let facts = Facts {
            captures,
            headers,
            body,
        };
        match self.decoy.body.render(&facts) {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(decoy = self.decoy.name, %error, "a decoy's body cannot be rendered");
                Bytes::new()
            }
        }
    }
}

/// The host that a request asks for, as far as it is told.
fn host(head: &request::Parts) -> &str {
    let field = || head.headers.get(HOST)?.to_str().ok();
    let authority = head.uri.authority().map(Authority::as_str);
    authority.or_else(field).unwrap_or_default()
}

/// Reads a body to its end and keeps its first `keep` bytes; none when it breaks off. Its client
/// may still be there, as one that breaks the rules of chunks is.
async fn read_to_end<B: Body>(body: B, keep: usize) -> Option<Bytes> {
    let mut body = std::pin::pin!(body);
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(mut data) = frame.ok()?.into_data() {
            let wanted = data.remaining().min(keep.saturating_sub(kept.len()));
            kept.extend_from_slice(&data.copy_to_bytes(wanted));
        }
    }
    Some(kept.freeze())
}

#[cfg(test)]
mod tests;
