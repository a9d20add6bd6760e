//! The slot of its upstream that a request holds until its response begins.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};
use weir_runtime::loop_time;

use super::deferred_slot::{DeferredSlot, by_upstream};
use super::held::{Held, HeldResponse, Refused};
use super::metered::UploadTime;
use crate::concurrency::Slot;
use crate::{Shed, Verdict};

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
    fn poll_deferred(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Shed>, Box<Refused>>> {
        let Some(deferred) = &mut self.deferred else {
            return Poll::Pending;
        };
        let granted = ready!(deferred.poll(cx));
        self.deferred = None;
        let slot = granted?;
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
    fn poll_lent(&mut self, cx: &mut Context<'_>) {
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

impl Held for HeldSlot {
    /// Ready when a slot that was deferred is granted, or the request is shed.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        verdict: &mut Verdict,
    ) -> Poll<Result<(), Box<Refused>>> {
        self.poll_lent(cx);
        let would_shed = ready!(self.poll_deferred(cx))?;
        verdict.shed = verdict.shed.or(would_shed);
        Poll::Ready(Ok(()))
    }

    fn responded(&mut self, response: &mut HeldResponse) {
        if let Some(slot) = self.slot.take() {
            slot.replied(&response.head, self.upload());
        }
        // What is still deferred ends here, before its limits charge by the response.
        self.deferred = None;
    }
}
