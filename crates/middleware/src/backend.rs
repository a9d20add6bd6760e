//! The store, and the work at it that outlives the request that it is for.

use std::sync::Arc;
use std::task::{Context, Waker};

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use weir_limit::time::{Clock, SystemClock, Timestamp};
use weir_limit::{Batch, Transaction};
use weir_store::{
    DecisionSource, Leases, Memory, MemoryLeases, Outcome, OwedBatch, Store, StoreFuture,
};

/// Tasks that a response waits for.
pub(super) type PendingTasks = SmallVec<[JoinHandle<()>; 1]>;

/// What limits and bans ask.
#[derive(Clone)]
pub struct Backend {
    /// The buckets.
    pub store: Arc<dyn Store>,
    /// The requests in flight.
    pub leases: Arc<dyn Leases>,
    /// The time by which it is decided.
    pub clock: Arc<dyn Clock>,
    /// What is still under way when all requests are answered.
    pub tasks: BackgroundTasks,
}

impl Backend {
    /// This store, by the system's clock, with requests in flight counted in memory.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            leases: Arc::new(MemoryLeases::default()),
            clock: Arc::new(SystemClock),
            tasks: BackgroundTasks::default(),
        }
    }

    /// This store, with requests in flight counted in it, by this clock.
    pub(super) fn in_memory(store: &Arc<Memory>, clock: Arc<dyn Clock>) -> Self {
        Self {
            leases: Arc::new(store.leases().clone()),
            clock,
            ..Self::new(Arc::<Memory>::clone(store))
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Asks the store about a request's batch, unless it is empty. `passes` is a request that is
    /// let through whatever the store decides, and charged.
    #[inline(always)]
    pub(super) fn admit(
        &self,
        batch: &Batch,
        now: Timestamp,
        passes: bool,
    ) -> StoreFuture<Outcome> {
        if batch.is_empty() {
            return StoreFuture::ready(Outcome {
                decisions: SmallVec::new(),
                source: DecisionSource::Store,
            });
        }
        // The pointer is a store as well, which would move the batch once more.
        let store = &*self.store;
        match passes {
            true => store.decide(batch, now),
            false => store.admit(batch, now),
        }
    }

    /// Gives back what a request took that goes no further: it is refused after all, or its client
    /// has left.
    pub(super) fn undo(&self, owed: OwedBatch) {
        if !owed.is_empty() {
            let answer = self.store.refund(owed, self.now());
            // The store reports its failures itself; without a refund it is too strict for a while.
            self.tasks.run(async move { drop(answer.await) });
        }
    }

    /// Gives back what was lent to a request that left, unless more was lent since `latest`.
    pub(super) fn undo_last(
        &self,
        (taken, by): (Transaction, DecisionSource),
        latest: Timestamp,
        now: Timestamp,
    ) {
        let answer = self.store.refund_last(taken, by, latest, now);
        self.tasks.run(async move { drop(answer.await) });
    }
}

/// What is under way at the store, whether or not its requests are still there: units to be taken
/// or given back, strikes to be counted. Clones count the same.
#[derive(Clone, Debug, Default)]
pub struct BackgroundTasks(Arc<watch::Sender<usize>>);

/// A task, which is counted until this is dropped.
struct UnderWay(Arc<watch::Sender<usize>>);

impl UnderWay {
    fn begin(tasks: &BackgroundTasks) -> Self {
        tasks.0.send_modify(|count| *count += 1);
        Self(Arc::clone(&tasks.0))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl BackgroundTasks {
    /// Waits until nothing is under way.
    pub async fn settled(&self) {
        // The sender lives as long as this, so that the wait has no other end.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Does some work: at once if nothing has to be waited for, else in the background, where the
    /// handle waits for it. Without a tokio runtime it is dropped undone.
    pub(super) fn run(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let runtime = Handle::try_current().ok()?;
        let mut work = Box::pin(work);
        let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if polled.is_ready() {
            return None;
        }
        let under_way = UnderWay::begin(self);
        Some(runtime.spawn(async move {
            work.await;
            drop(under_way);
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_waits_for_nothing_is_done_at_once() {
        let done = Arc::new(AtomicBool::new(false));
        let work = Arc::clone(&done);
        let tasks = BackgroundTasks::default();
        let under_way = tasks.run(async move { work.store(true, Ordering::Relaxed) });
        assert!(done.load(Ordering::Relaxed) && under_way.is_none());
    }

    #[tokio::test]
    async fn what_waits_is_waited_for() {
        let tasks = BackgroundTasks::default();
        let (answer, answered) = oneshot::channel();
        let mut under_way = tasks
            .run(async move { answered.await.unwrap() })
            .expect("a handle");
        assert_eq!(tasks.settled().now_or_never(), None);
        assert!((&mut under_way).now_or_never().is_none());
        answer.send(()).unwrap();
        under_way.await.unwrap();
        tasks.settled().await;
    }
}
