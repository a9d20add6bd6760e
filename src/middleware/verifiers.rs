//! Where passwords are verified: on threads of their own, few at a time, so that a flood of wrong ones
//! takes neither the workers' time nor all processors.

use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::rules::Verification;
use crate::telemetry::LastWarning;

/// How many requests may wait for each verification at a time. A request beyond them has no account.
const QUEUE: usize = 64;

/// A verification under way, or one that waits for its turn.
pub(super) type Verifying = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Bounds verifications; all workers share it.
#[derive(Debug)]
pub(super) struct Verifiers {
    /// Those that run.
    running: Arc<Semaphore>,
    /// Those that run or wait.
    admitted: Arc<Semaphore>,
    warned: LastWarning,
}

impl Verifiers {
    /// Half of the processors, but one at least.
    pub(super) fn new() -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self::at_most((processors / 2).max(1))
    }

    fn at_most(running: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(running)),
            admitted: Arc::new(Semaphore::new(running * (1 + QUEUE))),
            warned: LastWarning::default(),
        }
    }

    /// Verifies; none if too many wait already.
    pub(super) fn verify(&self, verification: Verification) -> Option<Verifying> {
        let Ok(admitted) = Arc::clone(&self.admitted).try_acquire_owned() else {
            if self.warned.is_due() {
                tracing::warn!(
                    "too many passwords to verify; requests with further ones have no account, \
                     logged once a minute at most"
                );
            }
            return None;
        };
        let running = Arc::clone(&self.running);
        Some(Box::pin(async move {
            let Ok(turn) = running.acquire_owned().await else {
                return;
            };
            // A client that leaves does not stop it, so the thread keeps its place.
            let verified = spawn_blocking(move || {
                verification();
                drop((turn, admitted));
            });
            let _ = verified.await;
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn few_run_at_a_time_and_few_wait() {
        let verifiers = Verifiers::at_most(1);
        let (begun, most) = (Arc::<AtomicUsize>::default(), 1 + QUEUE);
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(parking_lot::Mutex::new(wait));
        let verification = || -> Verification {
            let (begun, wait) = (Arc::clone(&begun), Arc::clone(&wait));
            Box::new(move || {
                begun.fetch_add(1, SeqCst);
                let _ = wait.lock().recv();
            })
        };
        let admitted: Vec<_> = (0..most)
            .map(|_| tokio::spawn(verifiers.verify(verification()).unwrap()))
            .collect();
        assert!(verifiers.verify(verification()).is_none());
        while begun.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(SeqCst), 1);
        // A client that leaves while it waits gives its place back.
        admitted[most - 1].abort();
        while verifiers.admitted.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(SeqCst), 1);
        drop(go);
        for verifying in admitted.into_iter().take(most - 1) {
            verifying.await.unwrap();
        }
        assert_eq!(begun.load(SeqCst), most - 1);
        assert_eq!(verifiers.admitted.available_permits(), most);
    }
}
