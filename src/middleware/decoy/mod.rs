//! Decoys: invented answers that look like the upstream's own.
//!
//! A shadow-banned client must not learn that it is banned, from no part of what it gets. So a
//! decoy takes its status and body from the configuration, its other fields and their order from
//! the route's recent real answers ([`Shadow`]), and its delay from their latencies; and the
//! request's body is read to its end first, as an upstream would read it.

mod alarm;
mod fields;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod latency;
mod likeness;
mod template;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Response, StatusCode, request};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::Instant;

use self::fields::FieldShape;
use self::latency::Latencies;
pub use self::template::TemplateError;
use self::template::{Facts, Template};
use crate::middleware::Answer;
use crate::problem::{BROKEN_BODY, Problem};
use crate::rules::{Captures, RouteMatch};

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
    fields: FieldShape,
    latencies: Latencies,
}

impl Shadow {
    /// Shadow-bans with this decoy.
    pub fn new(decoy: Arc<Decoy>) -> Self {
        Self {
            decoy,
            fields: FieldShape::default(),
            latencies: Latencies::default(),
        }
    }

    /// The decoy.
    pub fn decoy(&self) -> &Decoy {
        &self.decoy
    }

    /// Takes over what `earlier`, which it replaces, has learnt from answers of the same status.
    pub fn inherit(&self, earlier: &Self) {
        if self.decoy.status == earlier.decoy.status {
            self.latencies.inherit(&earlier.latencies);
            self.fields.inherit(&earlier.fields);
        }
    }

    /// Learns from a real answer of the route, given to `client` after `latency`, counted from the end
    /// of the request's body; none is known of an answer that came before that.
    ///
    /// Only answers of the decoy's own status teach: a client compares like with like.
    pub fn learn<B: Body>(&self, answer: &Response<B>, client: u64, latency: Option<Duration>) {
        if answer.status() == self.decoy.status {
            if let Some(latency) = latency {
                self.latencies.record(latency);
            }
            self.fields.learn(answer.headers(), client);
        }
    }

    /// Answers a request with the decoy: reads its body to the end, waits as long as an upstream
    /// would have taken, and invents.
    pub async fn answer<B, R>(self: Arc<Self>, head: request::Parts, body: B) -> Response<Answer<R>>
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
            return Answer::problem(Problem::new(StatusCode::BAD_REQUEST, BROKEN_BODY));
        };
        let due = Instant::now() + self.latencies.draw();
        let response = self.invent(&head, &kept);
        alarm::wait_until(due).await;
        response
    }

    fn invent<R>(&self, head: &request::Parts, body: &[u8]) -> Response<Answer<R>> {
        let captures = head
            .extensions
            .get::<RouteMatch>()
            .map(|found| &found.captures);
        let body = self.render(captures, &head.headers, body);
        let length = HeaderValue::from(body.len());
        let mut response = Response::new(if self.fields.has_unknown_length() {
            Answer::chunked(body)
        } else {
            Answer::full(body)
        });
        *response.status_mut() = self.decoy.status;
        *response.headers_mut() = self.fields.imitate(&self.decoy.headers, length, host(head));
        response
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

/// Reads a body to its end and keeps its first `keep` bytes; none when it breaks off. Its sender may
/// still be there, as one that breaks the rules of chunks is.
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
