//! The drain: when it begins, and how long it may take.

use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::unconstrained;

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
    ///
    /// A connection polls this whenever it is polled itself, so only a flag is looked at once the
    /// task is registered to be woken. The runtime must not put off the registration.
    pub async fn begun(&mut self) {
        let flag = &self.flag;
        let mut begun = pin!(unconstrained(async {
            if self.receiver.wait_for(|draining| *draining).await.is_err() {
                // The sender is gone, so the drain never begins.
                pending::<()>().await;
            }
        }));
        let mut registered: Option<Waker> = None;
        poll_fn(|cx| {
            let is_registered = |waker: &Waker| waker.will_wake(cx.waker());
            if !flag.is_set() && registered.as_ref().is_some_and(is_registered) {
                return Poll::Pending;
            }
            registered = Some(cx.waker().clone());
            begun.as_mut().poll(cx)
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake};

    use super::*;

    #[test]
    fn a_task_that_is_polled_for_other_reasons_is_still_woken_by_the_drain() {
        struct CountWakes(AtomicUsize);

        impl Wake for CountWakes {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let (drain, mut draining) = Drain::new();
        let mut begun = pin!(draining.begun());
        let wakes = [(); 2].map(|()| Arc::new(CountWakes(AtomicUsize::new(0))));
        for task in [&wakes[0], &wakes[0], &wakes[1], &wakes[1]] {
            let waker = Waker::from(Arc::clone(task));
            assert!(
                begun
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
        }
        drain.start();
        let last = &wakes[1];
        assert_eq!(last.0.load(Ordering::Relaxed), 1);
        let waker = Waker::from(Arc::clone(last));
        assert!(
            begun
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        );
    }

    #[tokio::test]
    async fn a_late_receiver_still_sees_the_drain() {
        let (drain, draining) = Drain::new();
        assert!(!draining.has_begun());
        drain.start();
        draining.clone().begun().await;
        assert!(draining.has_begun());
    }
}
