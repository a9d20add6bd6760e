//! What is added to a response on its way out.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::gate::BanCheck;
use super::leasing::InFlight;
use super::metered::UploadTime;
use super::plan::{Prepared, QueriedLimits};
use super::settlement::{Settlement, Settling};
use super::{HeaderForms, OnDenied, fields};
use crate::middleware::decoy::{Requested, Sample, Shadow};
use crate::middleware::{ClientIdentity, Verdict};
use crate::store::Outcome;
use crate::telemetry::{Disposition, Strictest, is_logged};

/// What is to be added to a response on its way out.
pub(super) struct ResponseContext {
    pub(super) verdict: Verdict,
    /// The policy that the request was held to, if any.
    pub(super) policy: Option<Prepared>,
    /// Where the client stands, where a limit applied.
    pub(super) standing: Option<(QueriedLimits, Outcome)>,
    /// Who learns from the answer, if it is a real one. Most routes have no decoy.
    pub(super) lesson: Option<Box<DecoySample>>,
    /// What is left to be done when the answer is there.
    pub(super) settlement: Option<Arc<Settlement>>,
    /// Whether the answer is a strike.
    pub(super) watch: Option<Box<BanCheck>>,
    /// What the request holds until its response is over.
    pub(super) in_flight: Option<InFlight>,
}

/// What decoys are to learn from an answer.
pub(super) struct DecoySample {
    shadows: SmallVec<[Arc<Shadow>; 1]>,
    requested: Requested,
    client: u64,
    since: Instant,
    /// When the request's body was read, if it has one.
    upload: Option<Arc<UploadTime>>,
}

impl ResponseContext {
    pub(super) fn of(disposition: Disposition, policy: Option<Prepared>) -> Self {
        Self {
            verdict: Verdict::new(disposition),
            policy,
            standing: None,
            lesson: None,
            settlement: None,
            watch: None,
            in_flight: None,
        }
    }

    /// Makes the inner service's response one for the client, which is to get it when all this is
    /// settled.
    pub(super) fn pass<B: Body>(&mut self, response: &mut Response<B>) -> Settling {
        let mut settling = self.settle(response);
        if let Some(watch) = &mut self.watch {
            watch.answered(response.status());
        }
        settling.append(&mut self.struck());
        self.teach(response);
        self.mark(response);
        settling
    }

    /// The strikes that the response waits for.
    pub(super) fn struck(&mut self) -> Settling {
        let watch = self.watch.take();
        watch.map_or_else(Settling::new, |watch| watch.striking())
    }

    /// Lets go of what is left to be done, now that the response is there, unless the request's body
    /// is still on its way and matters.
    fn settle<B>(&mut self, response: &mut Response<B>) -> Settling {
        let mut settling = Settling::new();
        if let Some(settlement) = self.settlement.take() {
            settlement.learn(response.status(), response.headers());
            if let Some((asked, outcome)) = &mut self.standing {
                settlement.foresee(asked, outcome);
            }
            settling = Arc::into_inner(settlement).map_or(settling, Settlement::finish);
        }
        if let Some(policy) = &self.policy {
            policy.conceal(response.headers_mut());
        }
        settling
    }

    /// Learns that there will be no response.
    pub(super) fn fail(&mut self) {
        if let Some(settlement) = self.settlement.take() {
            settlement.fail();
        }
        self.watch = None;
    }

    /// Lets a decoy learn from a real answer, before anything of ours is added to it.
    fn teach<B: Body>(&self, response: &Response<B>) {
        if let Some(lesson) = &self.lesson {
            let sample = lesson.sample();
            for shadow in &lesson.shadows {
                shadow.learn(response, &sample);
            }
        }
    }

    /// Adds the verdict, and the fields that tell where the client stands. A verdict that is there
    /// already, of whoever answered where there is no route, says more than ours.
    pub(super) fn mark<B>(&self, response: &mut Response<B>) {
        if let (Some(policy), Some((asked, outcome))) = (&self.policy, &self.standing)
            && policy.policy().headers != HeaderForms::NONE
        {
            let mut standings = policy.standings(asked, outcome);
            let forms = policy.policy().headers;
            fields::append(response.headers_mut(), forms, &mut standings);
            if let Some(cors) = &policy.policy().cors {
                cors.expose(response.headers_mut());
            }
        }
        response
            .extensions_mut()
            .get_or_insert_with(|| self.verdict.clone());
        if let Some(strictest) = self.strictest() {
            response.extensions_mut().insert(strictest);
        }
    }

    /// What is there for the log alone; nothing where nobody reads it.
    fn strictest(&self) -> Option<Strictest> {
        // Of who is kept out by a ban, no limit was asked.
        let kept_out =
            self.verdict.banned_by.is_some() && self.verdict.disposition != Disposition::WouldDeny;
        if kept_out || !is_logged() {
            return None;
        }
        let (asked, outcome) = self.standing.as_ref()?;
        self.policy.as_ref()?.strictest(asked, outcome)
    }
}

impl DecoySample {
    /// The lesson of a request that is let through, where its route has a decoy, or the banned would
    /// get one on it.
    pub(super) fn of<B: Body>(
        policy: &Prepared,
        watch: Option<&BanCheck>,
        request: &Request<B>,
    ) -> Option<Box<Self>> {
        let mut shadows = watch.map_or_else(SmallVec::new, BanCheck::learning);
        if let OnDenied::Shadow(shadow) = &policy.policy().on_denied {
            shadows.push(Arc::clone(shadow));
        }
        if shadows.is_empty() {
            return None;
        }
        let sender = request.extensions().get::<ClientIdentity>();
        let has_body = !request.body().is_end_stream();
        Some(Box::new(Self {
            shadows,
            requested: Requested::of(request.method(), request.headers()),
            client: sender.map_or(0, ClientIdentity::fingerprint),
            since: Instant::now(),
            upload: has_body.then(Arc::default),
        }))
    }

    /// What notes when the request's body is read.
    pub(super) fn upload(&self) -> Option<Arc<UploadTime>> {
        self.upload.clone()
    }

    fn sample(&self) -> Sample {
        Sample {
            requested: self.requested.clone(),
            client: self.client,
            latency: self.latency(),
        }
    }

    /// How long the answer took. The time that the body took does not count, for a decoy waits after
    /// the end of the body too: a client could make decoys for others as slow as its own upload. There
    /// is no such time for an answer that did not wait for the body's end.
    fn latency(&self) -> Option<Duration> {
        let upload = self.upload.as_ref();
        let took = upload.map_or(Some(Duration::ZERO), |upload| upload.took())?;
        Some(self.since.elapsed().saturating_sub(took))
    }
}
