//! The drain: when it begins, and how long it may take.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

/// How long a drain may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainSettings {
    /// How long requests in flight may take before they are aborted.
    pub grace: Duration,
    /// How long an idle connection is kept for a request that may be on its way. HTTP/1.1 can
    /// only tell a client in a response not to send another request; a request that meets a closing
    /// connection fails.
    pub idle_grace: Duration,
}

impl Default for DrainSettings {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(30),
            idle_grace: Duration::from_millis(500),
        }
    }
}

/// Starts the drain; a process has one.
#[derive(Debug)]
pub struct Drain {
    sender: watch::Sender<bool>,
    flag: DrainFlag,
    shared_sockets: Arc<Mutex<SharedSockets>>,
}

/// A receiver of the drain.
#[derive(Clone, Debug)]
pub struct Draining {
    receiver: watch::Receiver<bool>,
    flag: DrainFlag,
    shared_sockets: Arc<Mutex<SharedSockets>>,
}

/// The sockets that other processes serve as well.
#[derive(Debug, Default)]
struct SharedSockets {
    /// Their addresses.
    addresses: Vec<SocketAddr>,
    /// A successor serves new connections.
    has_successor: bool,
}

/// Whether the drain has begun, as cheap as a check at every request has to be.
#[derive(Clone, Debug, Default)]
pub(super) struct DrainFlag(Arc<AtomicBool>);

impl DrainFlag {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drain {
    /// The drain has not begun.
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

    /// Another process keeps the sockets of these addresses, with the connections in their queues:
    /// when the drain begins, this process accepts no more, and refuses none either.
    pub fn keep_open(&self, addresses: &[SocketAddr]) {
        self.shared_sockets.lock().addresses.extend(addresses);
    }

    /// Starts the drain because a successor has taken these addresses.
    pub fn hand_over(&self, addresses: &[SocketAddr]) {
        self.keep_open(addresses);
        self.shared_sockets.lock().has_successor = true;
        self.start();
    }

    /// Starts the drain, which cannot be undone.
    pub fn start(&self) {
        self.flag.0.store(true, Ordering::Relaxed);
        self.sender.send_replace(true);
    }
}

impl Draining {
    /// A drain that never begins, for what serves until the process ends.
    #[cfg(feature = "internals")]
    pub fn never() -> Self {
        Drain::new().1
    }

    /// Whether the drain has begun.
    pub fn has_begun(&self) -> bool {
        self.flag.is_set()
    }

    /// The same, to be stored.
    pub(super) fn flag(&self) -> DrainFlag {
        self.flag.clone()
    }

    /// Becomes true when the drain begins, for code that does not know this type.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.receiver.clone()
    }

    /// Whether another process keeps the sockets of this address.
    pub(super) fn keeps_open(&self, address: SocketAddr) -> bool {
        self.shared_sockets.lock().addresses.contains(&address)
    }

    /// How long an idle connection is kept open. With a successor there is no hurry,
    /// and it is better to tell a client in its next response to go.
    pub(super) fn idle_grace(&self, settings: &DrainSettings) -> Duration {
        let most = settings.grace / 2;
        match self.shared_sockets.lock().has_successor {
            true => most,
            // A quiet client must be closed before the grace period aborts it.
            false => settings.idle_grace.min(most),
        }
    }

    /// Waits for the drain to begin.
    pub async fn begun(&mut self) {
        if self.receiver.wait_for(|draining| *draining).await.is_err() {
            // The sender is gone, so the drain never begins.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_receiver_still_sees_the_drain() {
        let (drain, draining) = Drain::new();
        assert!(!draining.has_begun());
        drain.start();
        draining.clone().begun().await;
        assert!(draining.has_begun());
    }
}
