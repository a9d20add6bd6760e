//! The drain: when it begins, and how long it may take.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::task::coop::{Unconstrained, unconstrained};

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
pub struct Drain(Arc<Shared>);

/// A receiver of the drain. Every connection has one, so it is a reference alone.
#[derive(Clone, Debug)]
pub struct Draining(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// A flag, as cheap as a check at every request has to be: nothing that is written meanwhile
    /// lies beside it.
    has_begun: CacheLine<AtomicBool>,
    /// Wakes who waits for the drain: one lock for some of the connections each.
    begins: [CacheLine<Notify>; 8],
    /// For code that does not know these types.
    told: watch::Sender<bool>,
    sockets: Mutex<SharedSockets>,
}

/// Shares no line of a core's cache with anything else.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheLine<T>(T);

/// The sockets that other processes serve as well.
#[derive(Debug, Default)]
struct SharedSockets {
    addresses: Vec<SocketAddr>,
    /// A successor serves new connections.
    has_successor: bool,
}

impl Drain {
    /// The drain has not begun.
    pub fn new() -> (Self, Draining) {
        let shared = Arc::<Shared>::default();
        (Self(Arc::clone(&shared)), Draining(shared))
    }

    /// Another process keeps the sockets of these addresses, with the connections in their queues:
    /// when the drain begins, this process accepts no more, and refuses none either.
    pub fn keep_open(&self, addresses: &[SocketAddr]) {
        self.0.sockets.lock().addresses.extend(addresses);
    }

    /// Starts the drain because a successor has taken these addresses.
    pub fn hand_over(&self, addresses: &[SocketAddr]) {
        self.keep_open(addresses);
        self.0.sockets.lock().has_successor = true;
        self.start();
    }

    /// Starts the drain, which cannot be undone.
    pub fn start(&self) {
        self.0.has_begun.0.store(true, Ordering::Relaxed);
        // After the flag: who does not see it set is among those that wait by now.
        for begins in &self.0.begins {
            begins.0.notify_waiters();
        }
        self.0.told.send_replace(true);
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
        self.0.has_begun.0.load(Ordering::Relaxed)
    }

    /// Becomes true when the drain begins, for code that does not know this type.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.told.subscribe()
    }

    /// Whether another process keeps the sockets of this address.
    pub(super) fn keeps_open(&self, address: SocketAddr) -> bool {
        self.0.sockets.lock().addresses.contains(&address)
    }

    /// How long an idle connection is kept open. With a successor there is no hurry,
    /// and it is better to tell a client in its next response to go.
    pub(super) fn idle_grace(&self, settings: &DrainSettings) -> Duration {
        let most = settings.grace / 2;
        match self.0.sockets.lock().has_successor {
            true => most,
            // A quiet client must be closed before the grace period aborts it.
            false => settings.idle_grace.min(most),
        }
    }

    /// Waits for the drain to begin.
    pub fn begun(&self) -> impl Future<Output = ()> + Send {
        // Each connection has its own receiver, and so an address of its own.
        let address = std::ptr::from_ref(self).addr() / align_of::<CacheLine<u8>>();
        let [first, ..] = &self.0.begins;
        let begins = self.0.begins.get(address % self.0.begins.len());
        Begun {
            draining: self,
            begins: unconstrained(begins.unwrap_or(first).0.notified()),
            registered: None,
        }
    }
}

pin_project! {
    /// Waits for the drain to begin. Written out, as each connection keeps one, and what an
    /// `async` function makes of it is larger.
    ///
    /// A connection polls this whenever it is polled itself, so only a flag is looked at once the
    /// task is registered to be woken. The runtime must not put off the registration.
    struct Begun<'a> {
        draining: &'a Draining,
        #[pin]
        begins: Unconstrained<Notified<'a>>,
        registered: Option<Waker>,
    }
}

impl Future for Begun<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.draining.has_begun() {
            return Poll::Ready(());
        }
        let is_registered = |waker: &Waker| waker.will_wake(cx.waker());
        if !this.registered.as_ref().is_some_and(is_registered) {
            *this.registered = Some(cx.waker().clone());
            return this.begins.poll(cx);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[test]
    fn a_task_that_is_polled_for_other_reasons_is_still_woken_by_the_drain() {
        struct CountWakes(AtomicUsize);

        impl Wake for CountWakes {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let (drain, draining) = Drain::new();
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
