//! The end of serving: who says so, and how long it may take.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
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
    begun: DrainFlag,
    kept: Arc<Mutex<Kept>>,
}

/// Hears of the drain.
#[derive(Clone, Debug)]
pub struct Draining {
    told: watch::Receiver<bool>,
    begun: DrainFlag,
    kept: Arc<Mutex<Kept>>,
}

/// What goes on without this process.
#[derive(Debug, Default)]
struct Kept {
    /// Where another process listens with the same sockets.
    addresses: Vec<SocketAddr>,
    /// A successor serves new connections.
    succeeded: bool,
}

/// Whether the drain has begun, for whoever asks at every request: no more than a flag.
#[derive(Clone, Debug, Default)]
pub(super) struct DrainFlag(Arc<AtomicBool>);

impl DrainFlag {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drain {
    /// Nobody drains yet.
    pub fn new() -> (Self, Draining) {
        let (tell, told) = watch::channel(false);
        let begun = DrainFlag::default();
        let kept = Arc::<Mutex<Kept>>::default();
        let draining = Draining {
            told,
            begun: begun.clone(),
            kept: Arc::clone(&kept),
        };
        (Self { tell, begun, kept }, draining)
    }

    /// The sockets of these addresses live on in another process, with the connections that wait
    /// there: no more are accepted when the drain begins, but none is refused either.
    pub fn keep(&self, addresses: &[SocketAddr]) {
        self.kept.lock().addresses.extend(addresses);
    }

    /// Starts the drain of a process that has a successor, which has taken these addresses.
    pub fn hand_over(&self, addresses: &[SocketAddr]) {
        self.keep(addresses);
        self.kept.lock().succeeded = true;
        self.start();
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
    pub(super) fn flag(&self) -> DrainFlag {
        self.begun.clone()
    }

    /// Becomes true when the drain begins, for what knows nothing of drains.
    pub fn told(&self) -> watch::Receiver<bool> {
        self.told.clone()
    }

    /// Whether the sockets of this address live on.
    pub(super) fn keeps(&self, address: SocketAddr) -> bool {
        self.kept.lock().addresses.contains(&address)
    }

    /// How long a connection without a request is kept open. With a successor there is no hurry, and
    /// a client that is still there is better told to go by an answer.
    pub(super) fn linger(&self, settings: &DrainSettings) -> Duration {
        let most = settings.grace / 2;
        match self.kept.lock().succeeded {
            true => most,
            // A client that keeps quiet must not be waited for until it is cut off.
            false => settings.linger.min(most),
        }
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
