//! When the runtime that this thread drives has nothing left to do at a moment.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Idle>>> = const { RefCell::new(None) };
}

/// What is told from now on that this thread's runtime is about to wait.
pub(super) fn set_current(idle: Option<Arc<Idle>>) {
    CURRENT.set(idle);
}

/// The runtime that this thread drives is about to wait.
pub(super) fn reached() {
    CURRENT.with_borrow(|idle| {
        if let Some(idle) = idle {
            idle.reached();
        }
    });
}

/// Tells when a runtime has nothing to do at the present moment.
#[derive(Default)]
pub(super) struct Idle {
    is_awaited: AtomicBool,
    is_reached: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Idle {
    /// The runtime is about to wait.
    fn reached(&self) {
        if self.is_awaited.swap(false, Ordering::Relaxed) {
            self.is_reached.store(true, Ordering::Relaxed);
            let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(waker) = &*waker {
                waker.wake_by_ref();
            }
        }
    }

    /// Waits until nothing is left to do. The runtime looks for timers that are due only when it is
    /// about to wait, so that has to happen twice.
    pub(super) async fn settle(&self) {
        for _ in 0..2 {
            self.is_reached.store(false, Ordering::Relaxed);
            poll_fn(|cx| self.poll_reached(cx)).await;
        }
    }

    fn poll_reached(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_reached.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        self.is_awaited.store(true, Ordering::Relaxed);
        Poll::Pending
    }
}
