//! What the decoys of a route learn from one of its responses.

use std::sync::Arc;
use std::time::Duration;

use http_body::Body;
use smallvec::SmallVec;
use tokio::time::Instant;
use weir_http::request::HttpRequest;
use weir_runtime::loop_time;

use super::RouteDecoys;
use crate::ClientIdentity;
use crate::decoy::{GzipHeadReader, Negotiation, ResponseSample, Shadow, target};
use crate::rate_limit::UploadTime;
use crate::rate_limit::held::{Held, HeldResponse};

/// What decoys are to learn from an answer.
pub(crate) struct DecoySample {
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
    pub(crate) fn sample<Q>(&self, request: &Q) -> Box<DecoySample>
    where
        Q: HttpRequest<Body: Body>,
    {
        let shadows = self.0.iter().map(|(_, shadow)| Arc::clone(shadow));
        let identity = ClientIdentity::from_extensions(request.extensions());
        let has_body = !request.body().is_end_stream();
        Box::new(DecoySample {
            shadows: shadows.collect(),
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
    pub(crate) fn upload(&self) -> Option<Arc<UploadTime>> {
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
