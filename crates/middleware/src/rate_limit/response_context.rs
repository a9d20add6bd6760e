//! What goes with a request through the inner service: the body that the service gets, and what is
//! added to the response on its way out, and learnt from it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Buf;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep};
use weir_http::request::HttpRequest;
use weir_runtime::loop_time;
use weir_store::Outcome;
use weir_telemetry::{Disposition, Strictest, is_logged};

use super::decisions::QueriedLimits;
use super::deferred_charge::{DeferredCharges, ResponseCost};
use super::deferred_slot::{DeferredSlot, ShedAtGate, by_upstream};
use super::header_fields::{self, HeaderForms, LimitStatus};
use super::in_flight::InFlight;
use super::policy::{OnDenied, PreparedLimit, RoutePolicy};
use crate::backend::PendingTasks;
use crate::bans::BanCheck;
use crate::concurrency::Slot;
use crate::decoy::{GzipHeadReader, Negotiation, ResponseSample, Shadow, target};
use crate::header_text::append_to;
use crate::response_body::BodyReader;
use crate::route::RouteState;
use crate::{ClientIdentity, Shed, Verdict};

/// What is to be added to a response on its way out.
pub(super) struct ResponseContext {
    pub(super) verdict: Verdict,
    /// The route whose policy the request was held to, if any.
    pub(super) route: Option<Arc<RouteState>>,
    /// Where the client stands, where a limit applied.
    pub(super) status: Option<(QueriedLimits, Outcome)>,
    /// What decoys learn from the answer, if it is a real one. Most routes have no decoy.
    pub(super) sample: Option<Box<DecoySample>>,
    pub(super) charges: Option<Arc<DeferredCharges>>,
    /// Whether the answer is a strike.
    pub(super) bans: Option<Box<BanCheck>>,
    /// What the request holds until its response is over.
    pub(super) in_flight: Option<InFlight>,
    /// What it holds of its upstream until the response has begun.
    pub(super) slot: Option<Box<HeldSlot>>,
}

/// How long a request body may take before its request keeps no slot meanwhile.
const MAX_UPLOAD: Duration = Duration::from_secs(1);

/// A slot of the upstream, and when the request's body was read, if it has one.
pub(super) struct HeldSlot {
    /// From when it is granted until there is a response.
    slot: Option<Slot>,
    /// The slot that is asked for when the body has been read.
    deferred: Option<DeferredSlot>,
    upload: Option<Arc<UploadTime>>,
    /// When it was granted, if that was in the middle of the body.
    since: Option<Instant>,
    lends_at: Option<Pin<Box<Sleep>>>,
}

impl HeldSlot {
    pub(super) fn new(slot: Slot, upload: Option<Arc<UploadTime>>) -> Self {
        Self {
            slot: Some(slot),
            deferred: None,
            lends_at: upload.is_some().then(|| Box::pin(sleep(MAX_UPLOAD))),
            upload,
            since: None,
        }
    }

    pub(super) fn deferred(deferred: DeferredSlot, upload: Option<Arc<UploadTime>>) -> Self {
        Self {
            slot: None,
            deferred: Some(deferred),
            upload,
            since: None,
            lends_at: None,
        }
    }

    /// Goes on towards a deferred slot.
    fn poll_deferred(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Shed>, ShedAtGate>> {
        let Some(deferred) = &mut self.deferred else {
            return Poll::Pending;
        };
        let granted = ready!(deferred.poll(cx));
        self.deferred = None;
        let slot = granted.map_err(|shed| *shed)?;
        let would_shed = slot.would_shed.map(by_upstream);
        self.slot = Some(slot);
        self.upload.take_if(|upload| upload.ended.get().is_some());
        if self.upload.is_some() {
            self.since = Some(loop_time::now());
            self.lends_at = Some(Box::pin(sleep(MAX_UPLOAD)));
        }
        Poll::Ready(Ok(would_shed))
    }

    /// How long the request's body took; none while it is still on its way.
    fn upload(&self) -> Option<Duration> {
        let upload = self.upload.as_ref();
        upload.map_or(Some(Duration::ZERO), |upload| upload.took(self.since))
    }

    /// Lends the slot to others while a slow body is on its way, so that a few of them do not keep
    /// all slots. A body that has not begun waits for the upstream.
    fn poll(&mut self, cx: &mut Context<'_>) {
        let (Some(slot), Some(upload)) = (&mut self.slot, &self.upload) else {
            return;
        };
        while let Some(lends_at) = &mut self.lends_at
            && lends_at.as_mut().poll(cx).is_ready()
        {
            if upload.begun.get().is_none() {
                lends_at.as_mut().reset(Instant::now() + MAX_UPLOAD);
                continue;
            }
            self.lends_at = None;
            if upload.took(self.since).is_none() {
                slot.lend();
            }
        }
        if slot.is_lent() && upload.has_ended(cx) {
            slot.take_back();
            self.upload = None;
        }
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.abandoned(self.upload());
        }
    }
}

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

impl ResponseContext {
    pub(super) fn new(verdict: Verdict, route: Option<Arc<RouteState>>) -> Self {
        Self {
            verdict,
            route,
            status: None,
            sample: None,
            charges: None,
            bans: None,
            in_flight: None,
            slot: None,
        }
    }

    /// Makes the inner service's response one for the client, which is to get it when all this is
    /// done, and what reads its body on the way, if that says the cost or decoys learn from it.
    pub(super) fn pass<B: Body>(
        &mut self,
        response: &mut Response<B>,
    ) -> (PendingTasks, Option<Box<dyn BodyReader>>) {
        if let Some(mut held) = self.slot.take()
            && let Some(slot) = held.slot.take()
        {
            slot.replied(response, held.upload());
        }
        let (pending, cost) = self.settle(response);
        if let Some(route) = &self.route {
            route.conceal(response.headers_mut());
        }
        self.add_sample(response);
        self.tell_delay(response);
        self.add_verdict_and_headers(response);
        let reader = match cost {
            Some(cost) => Some(cost as Box<dyn BodyReader>),
            None => self.learning(response),
        };
        (pending, reader)
    }

    /// What decoys learn by from a real answer's body.
    fn learning<B>(&self, response: &Response<B>) -> Option<Box<dyn BodyReader>> {
        let sample = self.sample.as_ref()?;
        let reader = GzipHeadReader::new(&sample.shadows, response.headers())?;
        Some(reader as Box<dyn BodyReader>)
    }

    /// Goes on with the slot while there is no response. Ready when a slot that was deferred is
    /// granted, or the request is shed.
    #[inline]
    pub(super) fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ShedAtGate>> {
        let Some(held) = &mut self.slot else {
            return Poll::Pending;
        };
        held.poll(cx);
        let would_shed = ready!(held.poll_deferred(cx))?;
        self.verdict.shed = self.verdict.shed.or(would_shed);
        Poll::Ready(Ok(()))
    }

    /// Charges what the response decides, and counts the strike that it may be.
    pub(super) fn settle<B: Body>(
        &mut self,
        response: &Response<B>,
    ) -> (PendingTasks, Option<Box<ResponseCost>>) {
        let (mut pending, cost) = self.charge(response);
        if let Some(bans) = &mut self.bans {
            bans.answered(response.status());
        }
        pending.append(&mut self.strikes());
        (pending, cost)
    }

    /// Tells how long the request waited for its turn, where that is wanted.
    fn tell_delay<B>(&self, response: &mut Response<B>) {
        let policy = self.route.as_ref().map(|route| &route.policy);
        let delay = policy.and_then(|policy| policy.delay.as_ref());
        if let (Some(delay), Some(waited)) = (delay, self.verdict.delay)
            && delay.server_timing
            && let Ok(value) = format!("ratelimit;dur={}", waited.as_millis()).parse()
        {
            response.headers_mut().append("server-timing", value);
        }
    }

    pub(super) fn strikes(&mut self) -> PendingTasks {
        let bans = self.bans.take();
        bans.map_or_else(PendingTasks::new, |bans| bans.striking())
    }

    /// Charges what the response decides, unless its body, or the request's body that is still on
    /// its way, matters.
    pub(super) fn charge<B: Body>(
        &mut self,
        response: &Response<B>,
    ) -> (PendingTasks, Option<Box<ResponseCost>>) {
        let Some(charges) = self.charges.take() else {
            return (PendingTasks::new(), None);
        };
        charges.record_response(response.status(), response.headers());
        if let Some((queried, outcome)) = &mut self.status {
            charges.project(queried, outcome);
        }
        match charges.reading(response) {
            Ok(cost) => (PendingTasks::new(), Some(cost)),
            Err(charges) => {
                let charges = Arc::into_inner(charges);
                (
                    charges.map_or_else(PendingTasks::new, DeferredCharges::finish),
                    None,
                )
            }
        }
    }

    /// Learns that there will be no response.
    pub(super) fn fail(&mut self) {
        if let Some(charges) = self.charges.take() {
            charges.fail();
        }
        self.bans = None;
    }

    /// Lets decoys learn from a real answer, before anything of ours is added to it.
    fn add_sample<B: Body>(&self, response: &Response<B>) {
        if let Some(sample) = &self.sample {
            let finished = sample.finish();
            for shadow in &sample.shadows {
                shadow.learn(response, &finished);
            }
        }
    }

    /// Adds the verdict, and the headers that show where the client stands. A verdict that is there
    /// already, from the router without a route, takes precedence.
    pub(super) fn add_verdict_and_headers<B>(&self, response: &mut Response<B>) {
        self.show_limits(response);
        let verdict = response.extensions_mut().get_or_insert_with(|| Verdict {
            strictest: self.strictest(),
            ..self.verdict.clone()
        });
        verdict.shed = verdict.shed.or(self.verdict.shed);
    }

    /// The same for a response that is made here, with which all of this ends. Returns the strikes
    /// that it waits for.
    pub(super) fn complete<B>(mut self, response: &mut Response<B>) -> PendingTasks {
        self.show_limits(response);
        let strikes = self.strikes();
        let strictest = self.strictest();
        let verdict = self.verdict;
        response.extensions_mut().insert(Verdict {
            strictest,
            ..verdict
        });
        strikes
    }

    fn show_limits<B>(&self, response: &mut Response<B>) {
        if let (Some(route), Some((queried, outcome))) = (&self.route, &self.status) {
            show_limits(route, queried, outcome, Shown::Admission, response);
        }
    }

    /// What is there for the log alone; nothing where it is not read.
    fn strictest(&self) -> Option<Strictest> {
        // Where a ban or the block list keeps the request out, no bucket that others share was
        // asked.
        let is_banned =
            self.verdict.banned_by.is_some() && self.verdict.disposition != Disposition::WouldDeny;
        if is_banned || self.verdict.listed.is_some() || !is_logged() {
            return None;
        }
        let (queried, outcome) = self.status.as_ref()?;
        self.route.as_ref()?.policy.strictest(queried, outcome)
    }
}

/// What a response lets its client know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// That a limit denied the request.
    Denial,
    /// No denial. A decoy shows the limits as an answer of the app does.
    Admission,
}

/// Adds the headers that show where the client stands, if the route has them sent; after the edits
/// of the route, which concern the fields of the app.
pub(super) fn show_limits<B>(
    route: &Arc<RouteState>,
    queried: &QueriedLimits,
    outcome: &Outcome,
    shown: Shown,
    response: &mut Response<B>,
) {
    if route.policy.header_forms == HeaderForms::NONE {
        return;
    }
    if route.edits_app_fields {
        let (route, queried, outcome) = (Arc::clone(route), queried.clone(), outcome.clone());
        response.extensions_mut().insert(PendingFields {
            route,
            queried,
            outcome,
            shown,
        });
        return;
    }
    append_fields(&route.policy, queried, outcome, shown, response);
}

/// The headers that show where a client stands, while the route's edits of the response are still
/// to come.
#[derive(Clone)]
pub struct PendingFields {
    route: Arc<RouteState>,
    queried: QueriedLimits,
    outcome: Outcome,
    shown: Shown,
}

impl PendingFields {
    /// Adds them to a response whose headers have been edited.
    pub fn add<B>(&self, response: &mut Response<B>) {
        let (policy, queried) = (&self.route.policy, &self.queried);
        append_fields(policy, queried, &self.outcome, self.shown, response);
    }
}

fn append_fields<B>(
    policy: &RoutePolicy<PreparedLimit>,
    queried: &QueriedLimits,
    outcome: &Outcome,
    shown: Shown,
    response: &mut Response<B>,
) {
    let mut statuses = policy.statuses(queried, outcome);
    if shown == Shown::Admission {
        statuses.iter_mut().for_each(LimitStatus::conceal_denial);
    }
    append_to(response, |fields| {
        header_fields::append(fields, policy.header_forms, &mut statuses);
    });
    if let Some(hook) = &policy.hook {
        hook.limits_shown(response.headers_mut());
    }
}

impl DecoySample {
    /// The sample of a request that is let through, where its route has a decoy, or the banned
    /// would get one on it.
    pub(super) fn new<Q>(route: &RouteState, request: &Q) -> Option<Box<Self>>
    where
        Q: HttpRequest<Body: Body>,
    {
        let mut shadows: SmallVec<[_; 1]> = route.decoys().cloned().collect();
        if let OnDenied::Shadow(shadow) = &route.policy.on_denied {
            shadows.push(Arc::clone(shadow));
        }
        if shadows.is_empty() {
            return None;
        }
        let identity = ClientIdentity::from_extensions(request.extensions());
        let has_body = !request.body().is_end_stream();
        Some(Box::new(Self {
            shadows,
            negotiation: Negotiation::new(request.method(), request.headers()),
            client: identity.map_or(0, ClientIdentity::fingerprint),
            target: target(request.uri()),
            since: loop_time::now(),
            upload: has_body.then(Arc::default),
        }))
    }

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

pin_project! {
    /// A request's body as the inner service gets it.
    pub struct Metered<B> {
        #[pin]
        body: B,
        // What learns the size. It is held until the body is over, whichever way.
        meter: Option<Arc<DeferredCharges>>,
        upload: Option<Arc<UploadTime>>,
    }
}

/// When a request's body was read.
#[derive(Debug, Default)]
pub(super) struct UploadTime {
    begun: OnceLock<Instant>,
    ended: OnceLock<Instant>,
    /// Woken at the end: with HTTP/2 it is the task of the connection that reads the body.
    waiting: Mutex<Option<Waker>>,
}

impl UploadTime {
    /// How long the body took, from `since` on; none while it is still on its way.
    pub(super) fn took(&self, since: Option<Instant>) -> Option<Duration> {
        let Some(begun) = self.begun.get() else {
            return Some(Duration::ZERO);
        };
        let since = since.map_or(*begun, |since| since.max(*begun));
        Some(self.ended.get()?.saturating_duration_since(since))
    }

    /// Whether the body is over; if not, the task is woken when it is.
    fn has_ended(&self, cx: &Context<'_>) -> bool {
        *self.waiting.lock() = Some(cx.waker().clone());
        self.ended.get().is_some()
    }

    fn begin(&self) {
        self.begun.get_or_init(loop_time::now);
    }

    fn end(&self) {
        self.ended.get_or_init(loop_time::now);
        let waiting = self.waiting.lock().take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl<B> Metered<B> {
    /// A body whose size does not matter.
    pub(super) fn unmetered(body: B) -> Self {
        Self::new(body, None, None)
    }

    pub(super) fn new(
        body: B,
        meter: Option<Arc<DeferredCharges>>,
        upload: Option<Arc<UploadTime>>,
    ) -> Self {
        Self {
            body,
            meter,
            upload,
        }
    }
}

impl<B: Body> Body for Metered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        if let Some(upload) = this.upload {
            upload.begin();
        }
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if let Some(upload) = this.upload
            && is_last(&frame, &*this.body)
        {
            upload.end();
        }
        if let (Some(meter), Some(Ok(frame))) = (this.meter, &frame) {
            meter.count(frame.data_ref().map_or(0, Buf::remaining));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether nothing that a reader would wait for comes after a frame.
fn is_last<B: Body>(frame: &Option<Result<Frame<B::Data>, B::Error>>, body: &B) -> bool {
    let is_data = matches!(frame, Some(Ok(frame)) if frame.is_data());
    !is_data || body.is_end_stream()
}

impl<B> std::fmt::Debug for Metered<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered").finish_non_exhaustive()
    }
}
