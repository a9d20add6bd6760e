//! Takes from buckets and gives back to them when no request waits for it any more.

use std::num::NonZeroU64;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tokio::task::JoinHandle;

use super::unsettled::Unsettled;
use crate::limit::{Algorithm, Batch, Mode, Quota, Transaction};
use crate::store::{DecisionSource, Leases, Outcome, Store, StoreFuture};
use crate::telemetry::{LimitMetrics, Settled};
use crate::time::{Clock, Timestamp};

/// How often it is tried to take what a bucket has left, while others take from it too. After that
/// they have left next to nothing.
const TRIES: usize = 4;

/// The store, for what is done when the response is on its way.
#[derive(Clone)]
pub(super) struct Background {
    pub(super) store: Arc<dyn Store>,
    pub(super) leases: Arc<dyn Leases>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) unsettled: Unsettled,
}

impl Background {
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What the store says of a request's batch; there is nothing to say of an empty one.
    /// `passes` is a request that is let through whatever the store says, and charged.
    pub(super) fn admit(&self, batch: Batch, now: Timestamp, passes: bool) -> StoreFuture<Outcome> {
        if batch.is_empty() {
            return StoreFuture::ready(Outcome {
                decisions: SmallVec::new(),
                basis: DecisionSource::Store,
            });
        }
        match passes {
            true => self.store.decide(batch, now),
            false => self.store.admit(batch, now),
        }
    }

    /// Takes the cost, or as much of it as the bucket holds. The handle, if any, waits for it.
    pub(super) fn take(&self, one: Transaction, metrics: &LimitMetrics) -> Option<JoinHandle<()>> {
        let count = Count::new(metrics, Settled::Spent);
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        self.unsettled.run(async move {
            count.end(drain(&*store, &*clock, one).await.is_some());
        })
    }

    /// Gives the cost back, as far as it is still owed. The handle, if any, waits for it.
    pub(super) fn give_back(
        &self,
        one: Transaction,
        metrics: &LimitMetrics,
    ) -> Option<JoinHandle<()>> {
        let count = Count::new(metrics, Settled::Refunded);
        let answer: StoreFuture<()> = self.store.refund(smallvec![one], self.now());
        self.unsettled
            .run(async move { count.end(answer.await.is_ok()) })
    }

    /// Gives back what a request took that is denied after all.
    pub(super) fn undo(&self, taken: Batch) {
        if !taken.is_empty() {
            let answer = self.store.refund(taken, self.now());
            // The store reports its failures itself; without a refund it is too strict for a while.
            self.unsettled.run(async move { drop(answer.await) });
        }
    }
}

/// Takes as much of the cost as the bucket holds; none when the store did not decide.
async fn drain(store: &dyn Store, clock: &dyn Clock, one: Transaction) -> Option<()> {
    let most = one.cost.min(one.quota.burst());
    let mut next = Transaction {
        kind: first_try(&one.quota, most),
        cost: most,
        ..one
    };
    for _ in 0..TRIES {
        let outcome = store.decide(smallvec![next.clone()], clock.now()).await;
        let decision = (*outcome.ok()?.decisions.first()?)?;
        if decision.fits() && next.kind.spends() {
            break;
        }
        let Some(left) = NonZeroU64::new(decision.remaining) else {
            break;
        };
        next.kind = Mode::SpendOnly;
        next.cost = most.min(left);
    }
    Some(())
}

/// What does not fit a sliding window is written to Redis for a moment all the same, in which it
/// seems to have nothing left; so it is looked at first whether more than one unit fits.
fn first_try(quota: &Quota, cost: NonZeroU64) -> Mode {
    match quota.algorithm() {
        Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. } if cost.get() > 1 => {
            Mode::Peek
        }
        _ => Mode::SpendOnly,
    }
}

/// Counts how something ended; what is dropped before its end has failed.
struct Count {
    metrics: LimitMetrics,
    success: Settled,
    ended: bool,
}

impl Count {
    fn new(metrics: &LimitMetrics, success: Settled) -> Self {
        Self {
            metrics: metrics.clone(),
            success,
            ended: false,
        }
    }

    fn end(mut self, succeeded: bool) {
        self.ended = succeeded;
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let how = if self.ended {
            self.success
        } else {
            Settled::Failed
        };
        self.metrics.settled(how);
    }
}
