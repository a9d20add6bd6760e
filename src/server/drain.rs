//! The end of serving: who says so, and how long it may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// How long a drain may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainSettings {
    /// How long requests in flight are waited for before they are cut off.
    pub grace: Duration,
    /// How long a connection without a request is kept for one that may be on its way. HTTP/1.1
    /// has no way to tell a client not to send another, other than with an answer; a request that
    /// meets a closing connection fails.
    pub linger: Duration,
}

impl Default for DrainSettings {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(30),
            linger: Duration::from_millis(500),
        }
    }
}

/// Tells everybody to drain; there is one in a process.
#[derive(Debug)]
pub struct Drain {
    tell: watch::Sender<bool>,
    begun: Begun,
}

/// Hears of the drain.
#[derive(Clone, Debug)]
pub struct Draining {
    told: watch::Receiver<bool>,
    begun: Begun,
}

/// Whether the drain has begun, for whoever asks at every request: no more than a flag.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun(Arc<AtomicBool>);

impl Begun {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drain {
    /// Nobody drains yet.
    pub fn new() -> (Self, Draining) {
        let (tell, told) = watch::channel(false);
        let begun = Begun::default();
        let draining = Draining {
            told,
            begun: begun.clone(),
        };
        (Self { tell, begun }, draining)
    }

    /// Starts the drain; there is no way back.
    pub fn start(&self) {
        self.begun.0.store(true, Ordering::Relaxed);
        self.tell.send_replace(true);
    }
}

impl Draining {
    /// A drain that never begins, for what serves until the process ends.
    pub fn never() -> Self {
        Drain::new().1
    }

    /// Whether the drain has begun.
    pub fn has_begun(&self) -> bool {
        self.begun.is_set()
    }

    /// The same, to be kept.
    pub(super) fn flag(&self) -> Begun {
        self.begun.clone()
    }

    /// Becomes true when the drain begins, for what knows nothing of drains.
    pub fn told(&self) -> watch::Receiver<bool> {
        self.told.clone()
    }

    /// Waits for the drain to begin.
    pub async fn begun(&mut self) {
        if self.told.wait_for(|draining| *draining).await.is_err() {
            // Whoever could have said so is gone, so it never begins.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_asks_late_still_hears_of_the_drain() {
        let (drain, draining) = Drain::new();
        assert!(!draining.has_begun());
        drain.start();
        draining.clone().begun().await;
        assert!(draining.has_begun());
    }
}
