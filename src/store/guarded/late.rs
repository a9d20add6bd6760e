//! What comes of answers that come after their deadline.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Guard;
use crate::limit::Batch;
use crate::store::{Call, Outcome, Remote, StoreError, StoreFuture};
use crate::time::{Nanos, Timestamp};

/// Why there is no answer, and the answer itself where it may still come.
pub(super) struct NoAnswer<T> {
    pub(super) error: StoreError,
    pub(super) late: Option<Late<T>>,
}

/// An answer that was not there by the deadline.
pub(super) struct Late<T> {
    pub(super) answer: StoreFuture<T>,
    pub(super) asked_at: Instant,
}

impl<T> From<StoreError> for NoAnswer<T> {
    fn from(error: StoreError) -> Self {
        Self { error, late: None }
    }
}

impl<T> NoAnswer<T> {
    /// There was none by the deadline.
    pub(super) fn late(answer: StoreFuture<T>, asked_at: Instant) -> Self {
        Self {
            error: StoreError::Deadline,
            late: Some(Late { answer, asked_at }),
        }
    }
}

impl<T: Send + Unpin + 'static> NoAnswer<T> {
    /// The error, while the call is brought to its end in the background.
    pub(super) fn finished(self) -> StoreError {
        if let Some(late) = self.late {
            finish(late.answer);
        }
        self.error
    }
}

/// Brings a call to its end that no caller waits for. A connection that breaks ends it, too.
pub(super) fn finish<T: Send + Unpin + 'static>(answer: StoreFuture<T>) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move { drop(answer.await) });
    }
}

/// A batch that was not decided in time, with the answer that may still come.
pub(super) struct LateDecision<S> {
    pub(super) guard: Arc<Guard<S>>,
    pub(super) batch: Batch,
    pub(super) now: Timestamp,
    pub(super) asked_at: Instant,
    pub(super) answer: StoreFuture<Outcome>,
}

impl<S: Remote> LateDecision<S> {
    /// Gives back what the answer will show as taken.
    pub(super) fn give_back(self) {
        tokio::spawn(self.give_back_taken());
    }

    async fn give_back_taken(self) {
        let outcome = match self.answer.await {
            Ok(outcome) => outcome,
            // Some limits lack a right; the others have taken their costs.
            Err(StoreError::Undecided { outcome, .. }) => *outcome,
            Err(_) => return,
        };
        // By the connection that brought the answer there may be no way back.
        self.guard.breaker.closed().await;
        let now = self.now + Nanos::from(self.asked_at.elapsed());
        let owed = owed(&self.batch, &outcome, self.now, now);
        if !owed.is_empty() {
            let refunded = self.guard.store.refund(owed, now);
            let refunded = self.guard.in_time(Call::Refund, refunded).await;
            let _ = refunded.map_err(NoAnswer::finished);
        }
    }
}

/// What was taken at a time and is still owed now. What has come back by itself meanwhile is not.
fn owed(batch: &Batch, outcome: &Outcome, taken_at: Timestamp, now: Timestamp) -> Batch {
    if !outcome.is_allowed() {
        return Batch::new();
    }
    let taken = outcome.taken(batch);
    let owed = taken.filter(|(_, decision)| taken_at + decision.reset_in > now);
    owed.map(|(transaction, _)| transaction.clone()).collect()
}
