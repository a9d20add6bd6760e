//! Decoys: what responds in place of the service, and what they learn from real responses.

use std::sync::Arc;
use std::time::Duration;

use http_body::Body;
use smallvec::SmallVec;
use tokio::time::Instant;
use weir_http::request::HttpRequest;
use weir_runtime::loop_time;
use weir_telemetry::Disposition;

use super::held::{Held, HeldResponse};
use super::metered::UploadTime;
use super::response_context::ResponseContext;
use super::{LimitedRequest, ResponseState};
use crate::ClientIdentity;
use crate::access::RouteDecoys;
use crate::decoy::{GzipHeadReader, Negotiation, ResponseSample, Shadow, target};

/// What decoys are to learn from an answer.
pub(super) struct DecoySample {
    shadows: SmallVec<[Arc<Shadow>; 1]>,
    negotiation: Negotiation,
    client: u64,
    target: u64,
    since: Instant,
    /// When the request's body was read, if it has one.
    upload: Option<Arc<UploadTime>>,
}

impl RouteDecoys {
    /// The sample of a request that is let through.
    pub(super) fn sample<Q>(&self, request: &Q) -> Box<DecoySample>
    where
        Q: HttpRequest<Body: Body>,
    {
        let shadows = self.all().map(|(_, shadow)| Arc::clone(shadow)).collect();
        let identity = ClientIdentity::from_extensions(request.extensions());
        let has_body = !request.body().is_end_stream();
        Box::new(DecoySample {
            shadows,
            negotiation: Negotiation::new(request.method(), request.headers()),
            client: identity.map_or(0, ClientIdentity::fingerprint),
            target: target(request.uri()),
            since: loop_time::now(),
            upload: has_body.then(Arc::default),
        })
    }
}

impl DecoySample {
    /// What notes when the request's body is read.
    pub(super) fn upload(&self) -> Option<Arc<UploadTime>> {
        self.upload.clone()
    }

    fn finish(&self) -> ResponseSample {
        ResponseSample {
            negotiation: self.negotiation.clone(),
            client: self.client,
            target: self.target,
            latency: self.latency(),
        }
    }

    /// How long the answer took. The time that the body took does not count, for a decoy waits
    /// after the end of the body too: a client could make decoys for others as slow as its own
    /// upload. A response that did not wait for the body's end has no latency.
    fn latency(&self) -> Option<Duration> {
        let upload = self.upload.as_ref();
        let took = upload.map_or(Some(Duration::ZERO), |upload| upload.took(None))?;
        let since_arrival = loop_time::now().saturating_duration_since(self.since);
        Some(since_arrival.saturating_sub(took))
    }
}

/// They learn before anything of Weir's is added to the response.
impl Held for DecoySample {
    fn concealed(&mut self, response: &mut HeldResponse) {
        let finished = self.finish();
        for shadow in &self.shadows {
            shadow.learn(&response.head, &finished);
        }
        if response.reader.is_none() {
            let reader = GzipHeadReader::new(&self.shadows, response.head.headers());
            response.reader = reader.map(|reader| reader as _);
        }
    }
}

impl Shadow {
    /// Answers a request that limits deny.
    pub(super) fn answer_denied<Q: LimitedRequest, F, R: Send + 'static>(
        self: &Arc<Self>,
        request: Q,
        mut context: ResponseContext,
    ) -> ResponseState<F, R> {
        context.verdict.disposition = Disposition::Shadowed;
        ResponseState::Answering {
            answer: Box::pin(Arc::clone(self).respond(request)),
            context: Box::new(context),
        }
    }
}
