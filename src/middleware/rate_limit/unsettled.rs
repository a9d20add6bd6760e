//! Work that outlives the request that it is for, and that a drain waits for.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What is under way at the store, whether or not its requests are still there: units to be taken
/// or given back. Clones count the same.
#[derive(Clone, Debug, Default)]
pub struct Unsettled(Arc<watch::Sender<usize>>);

impl Unsettled {
    /// Waits until nothing is under way.
    pub async fn settled(&self) {
        // The sender is there as long as this is, so the wait has no other end.
        let _ = self.0.subscribe().wait_for(|tasks| *tasks == 0).await;
    }

    /// Does some work: at once if nothing has to be waited for, else in the background, where the
    /// handle waits for it. Without a tokio runtime it is dropped undone.
    pub(super) fn run(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let runtime = Handle::try_current().ok()?;
        let mut work = Box::pin(work);
        if (&mut work).now_or_never().is_some() {
            return None;
        }
        let task = Task::new(self);
        Some(runtime.spawn(async move {
            work.await;
            drop(task);
        }))
    }
}

/// Counts a task for as long as it lives.
struct Task(Unsettled);

impl Task {
    fn new(unsettled: &Unsettled) -> Self {
        unsettled.0.send_modify(|tasks| *tasks += 1);
        Self(unsettled.clone())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.0.send_modify(|tasks| *tasks -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_waits_for_nothing_is_done_at_once() {
        let done = Arc::new(AtomicBool::new(false));
        let work = Arc::clone(&done);
        let under_way =
            Unsettled::default().run(async move { work.store(true, Ordering::Relaxed) });
        assert!(done.load(Ordering::Relaxed) && under_way.is_none());
    }

    #[tokio::test]
    async fn what_waits_is_waited_for() {
        let unsettled = Unsettled::default();
        let (answer, answered) = oneshot::channel();
        let mut under_way = unsettled
            .run(async move { answered.await.unwrap() })
            .expect("a handle");
        assert_eq!(unsettled.settled().now_or_never(), None);
        assert!((&mut under_way).now_or_never().is_none());
        answer.send(()).unwrap();
        under_way.await.unwrap();
        unsettled.settled().await;
    }
}
