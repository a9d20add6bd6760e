//! The circuit breaker: after enough failures no call waits for the store, until it is back; and
//! how long to wait before a store is tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::store::{Observer, StoreError};

/// When a breaker opens, and how often it is tried to close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// The breaker opens after this many failures in a row, and at once when the connection is
    /// lost.
    pub failures: u32,
    /// While it is open, the store is probed about this often. No request serves as a probe.
    pub retry: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures: 5,
            retry: Duration::from_millis(100),
        }
    }
}

/// Whether the store can be reached by all workers of a process.
///
/// Each worker has a connection and a breaker of its own; this counts the open ones, so that a
/// change is reported once for all.
pub struct Reachability {
    open: AtomicUsize,
    /// Held while a change is reported, so that reports come in the order of the changes.
    changing: Mutex<()>,
    observer: Arc<dyn Observer>,
}

impl Reachability {
    /// Reachable by all workers, until one says otherwise.
    pub fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            open: AtomicUsize::new(0),
            changing: Mutex::new(()),
            observer,
        }
    }

    /// Whether every worker reaches the store.
    pub fn is_reachable(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    /// The observer that is told of calls and of changes.
    pub fn observer(&self) -> &Arc<dyn Observer> {
        &self.observer
    }

    fn opened(&self, cause: &StoreError) {
        let _changing = self.changing.lock();
        if self.open.fetch_add(1, Ordering::SeqCst) == 0 {
            self.observer.state_changed(false, Some(cause));
        }
    }

    fn closed(&self) {
        let _changing = self.changing.lock();
        if self.open.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.observer.state_changed(true, None);
        }
    }

    /// A worker is gone with its breaker open, which says nothing about the store.
    fn abandoned(&self) {
        let _changing = self.changing.lock();
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One worker's breaker.
pub(super) struct Breaker {
    settings: BreakerSettings,
    /// Failures in a row.
    failures: AtomicU32,
    open: watch::Sender<bool>,
    reachability: Arc<Reachability>,
}

impl Breaker {
    pub(super) fn new(settings: BreakerSettings, reachability: Arc<Reachability>) -> Self {
        Self {
            settings,
            failures: AtomicU32::new(0),
            open: watch::Sender::new(false),
            reachability,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.reachability.observer
    }

    /// Waits until the breaker is open.
    pub(super) async fn opened(&self) {
        self.becomes(true).await;
    }

    /// Waits until the breaker is closed.
    pub(super) async fn closed(&self) {
        self.becomes(false).await;
    }

    async fn becomes(&self, open: bool) {
        let mut changes = self.open.subscribe();
        // The sender is this breaker's own, so it cannot be gone.
        let _ = changes.wait_for(|state| *state == open).await;
    }

    /// Counts how a call went. A success that comes in late does not close an open breaker.
    pub(super) fn record(&self, failure: Option<&StoreError>) {
        // A store that refuses a command of one limit is there for all others.
        let Some(error) = failure.filter(|error| !error.is_forbidden()) else {
            self.failures.store(0, Ordering::Relaxed);
            return;
        };
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if error.is_out_of_reach() || failures >= self.settings.failures {
            self.open(error);
        }
    }

    pub(super) fn open(&self, cause: &StoreError) {
        if self.switch(true) {
            self.reachability.opened(cause);
        }
    }

    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if self.switch(false) {
            self.reachability.closed();
        }
    }

    /// Tells whether this changed anything.
    fn switch(&self, open: bool) -> bool {
        self.open
            .send_if_modified(|state| std::mem::replace(state, open) != open)
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if self.is_open() {
            self.reachability.abandoned();
        }
    }
}

/// Waits that double up to a greatest one, each cut at random by up to a half, so that many
/// gateways do not come back to a Redis in step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    next: Duration,
    greatest: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, greatest: Duration) -> Self {
        Self {
            next: first.min(greatest),
            greatest,
        }
    }

    /// The next wait.
    pub(super) fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.greatest);
        wait.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::support::Recorder;

    fn breaker(recorder: &Arc<Recorder>) -> (Breaker, Arc<Reachability>) {
        let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(recorder);
        let reachability = Arc::new(Reachability::new(observer));
        let settings = BreakerSettings::default();
        let breaker = Breaker::new(settings, Arc::clone(&reachability));
        (breaker, reachability)
    }

    #[test]
    fn it_opens_after_five_failures_in_a_row() {
        let (breaker, _) = breaker(&Arc::default());
        for _ in 0..4 {
            breaker.record(Some(&StoreError::Deadline));
        }
        breaker.record(None);
        for _ in 0..4 {
            breaker.record(Some(&StoreError::Deadline));
        }
        assert!(!breaker.is_open());
        breaker.record(Some(&StoreError::Deadline));
        assert!(breaker.is_open());
    }

    #[test]
    fn it_opens_at_once_when_the_connection_is_lost() {
        let (breaker, _) = breaker(&Arc::default());
        breaker.record(Some(&StoreError::OutOfReach));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_late_success_does_not_close_it() {
        let (breaker, _) = breaker(&Arc::default());
        breaker.open(&StoreError::Deadline);
        breaker.record(None);
        assert!(breaker.is_open());
        breaker.close();
        assert!(!breaker.is_open());
    }

    /// Calls that were under way when it opened go on to fail while it is open.
    #[test]
    fn what_failed_before_it_closed_does_not_open_it_again() {
        let (breaker, _) = breaker(&Arc::default());
        for _ in 0..8 {
            breaker.record(Some(&StoreError::Deadline));
        }
        breaker.close();
        for _ in 0..4 {
            breaker.record(Some(&StoreError::Deadline));
        }
        assert!(!breaker.is_open());
        breaker.record(Some(&StoreError::Deadline));
        assert!(breaker.is_open());
    }

    #[test]
    fn an_error_of_a_store_that_is_there_is_one_failure_and_no_more() {
        let (breaker, _) = breaker(&Arc::default());
        for _ in 0..4 {
            breaker.record(Some(&StoreError::Failed("no memory".into())));
            assert!(!breaker.is_open());
        }
        breaker.record(Some(&StoreError::Failed("no memory".into())));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_change_is_reported_once_however_many_workers_see_it() {
        let recorder = Arc::<Recorder>::default();
        let (one, reachability) = breaker(&recorder);
        let other = Breaker::new(BreakerSettings::default(), Arc::clone(&reachability));
        for breaker in [&one, &other, &one] {
            breaker.open(&StoreError::OutOfReach);
        }
        assert!(!reachability.is_reachable());
        one.close();
        assert_eq!(recorder.changes(), [false]);
        other.close();
        other.close();
        assert_eq!(recorder.changes(), [false, true]);
        assert!(reachability.is_reachable());
    }

    #[test]
    fn a_worker_that_is_gone_holds_nobody_unreachable() {
        let recorder = Arc::<Recorder>::default();
        let (breaker, reachability) = breaker(&recorder);
        breaker.open(&StoreError::OutOfReach);
        drop(breaker);
        assert!(reachability.is_reachable());
        assert_eq!(recorder.changes(), [false]);
    }

    #[test]
    fn waits_double_up_to_the_greatest_and_are_cut_by_at_most_a_half() {
        let ms = Duration::from_millis;
        for _ in 0..100 {
            let mut backoff = Backoff::new(ms(50), ms(150));
            for longest in [50, 100, 150, 150].map(ms) {
                let wait = backoff.wait();
                assert!(wait <= longest && wait >= longest / 2, "{wait:?}");
            }
        }
    }
}
