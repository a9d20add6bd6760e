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
    /// How long a connection without a request is shared_sockets for one that may be on its way. HTTP/1.1
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
    sender: watch::Sender<bool>,
    flag: DrainFlag,
    shared_sockets: Arc<Mutex<SharedSockets>>,
}

/// Hears of the drain.
#[derive(Clone, Debug)]
pub struct Draining {
    receiver: watch::Receiver<bool>,
    flag: DrainFlag,
    shared_sockets: Arc<Mutex<SharedSockets>>,
}

/// What goes on without this process.
#[derive(Debug, Default)]
struct SharedSockets {
    /// Where another process listens with the same sockets.
    addresses: Vec<SocketAddr>,
    /// A successor serves new connections.
    has_successor: bool,
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
        let (sender, receiver) = watch::channel(false);
        let flag = DrainFlag::default();
        let shared_sockets = Arc::<Mutex<SharedSockets>>::default();
        let draining = Draining {
            receiver,
            flag: flag.clone(),
            shared_sockets: Arc::clone(&shared_sockets),
        };
        (
            Self {
                sender,
                flag,
                shared_sockets,
            },
            draining,
        )
    }

    /// The sockets of these addresses live on in another process, with the connections that wait
    /// there: no more are accepted when the drain begins, but none is refused either.
    pub fn keep_open(&self, addresses: &[SocketAddr]) {
        self.shared_sockets.lock().addresses.extend(addresses);
    }

    /// Starts the drain of a process that has a successor, which has taken these addresses.
    pub fn hand_over(&self, addresses: &[SocketAddr]) {
        self.keep_open(addresses);
        self.shared_sockets.lock().has_successor = true;
        self.start();
    }

    /// Starts the drain; there is no way back.
    pub fn start(&self) {
        self.flag.0.store(true, Ordering::Relaxed);
        self.sender.send_replace(true);
    }
}

impl Draining {
    /// A drain that never begins, for what serves until the process ends.
    pub fn never() -> Self {
        Drain::new().1
    }

    /// Whether the drain has begun.
    pub fn has_begun(&self) -> bool {
        self.flag.is_set()
    }

    /// The same, to be shared_sockets.
    pub(super) fn flag(&self) -> DrainFlag {
        self.flag.clone()
    }

    /// Becomes true when the drain begins, for what knows nothing of drains.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.receiver.clone()
    }

    /// Whether the sockets of this address live on.
    pub(super) fn keeps_open(&self, address: SocketAddr) -> bool {
        self.shared_sockets.lock().addresses.contains(&address)
    }

    /// How long a connection without a request is shared_sockets open. With a successor there is no hurry, and
    /// a client that is still there is better told to go by an answer.
    pub(super) fn linger(&self, settings: &DrainSettings) -> Duration {
        let most = settings.grace / 2;
        match self.shared_sockets.lock().has_successor {
            true => most,
            // A client that keeps quiet must not be waited for until it is cut off.
            false => settings.linger.min(most),
        }
    }

    /// Waits for the drain to begin.
    pub async fn begun(&mut self) {
        if self.receiver.wait_for(|draining| *draining).await.is_err() {
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
