//! A thread that sleeps while there is no work for it. Whoever leaves work reads one flag, which is
//! written only when the thread falls asleep or wakes up.

use std::sync::OnceLock;

use weir_runtime::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use weir_runtime::sync::thread::{self, Thread};

#[derive(Debug, Default)]
pub(super) struct Sleeper {
    /// The one that sleeps, once it has.
    thread: OnceLock<Thread>,
    sleeps: AtomicBool,
}

impl Sleeper {
    /// Sleeps until somebody calls [`wake`](Self::wake), unless there is work. To look for work,
    /// `has_work` takes the locks under which it is left.
    pub(super) fn sleep_unless(&self, has_work: impl FnOnce() -> bool) {
        self.thread.get_or_init(thread::current);
        self.sleeps.store(true, Release);
        // Work that is missed here is left later, under a lock that `has_work` had before, so who
        // leaves it sees the flag.
        if !has_work() {
            while self.sleeps.load(Relaxed) {
                thread::park();
            }
        }
        self.sleeps.store(false, Relaxed);
    }

    /// Called after work was left under a lock.
    pub(super) fn wake(&self) {
        if self.sleeps.load(Relaxed)
            && self.sleeps.swap(false, Acquire)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

#[cfg(all(test, feature = "interleavings"))]
mod interleavings {
    use std::sync::Arc;

    use weir_runtime::sync::{Mutex, in_random_orders};

    use super::*;

    /// Shuttle takes all atomics for sequentially consistent: that the flag may be read and written
    /// in weaker orders, as work is left under locks, it cannot tell.
    #[test]
    fn the_thread_never_sleeps_while_there_is_work() {
        let law = || {
            let (sleeper, work) = (Arc::new(Sleeper::default()), Arc::new(Mutex::new(0)));
            let leave = || {
                let (sleeper, work) = (Arc::clone(&sleeper), Arc::clone(&work));
                thread::spawn(move || {
                    for _ in 0..2 {
                        *work.lock() += 1;
                        sleeper.wake();
                    }
                })
            };
            let threads = [leave(), leave()];
            // It would sleep for ever, which is a deadlock.
            let mut done = 0;
            while done < 4 {
                done += std::mem::take(&mut *work.lock());
                if done < 4 {
                    sleeper.sleep_unless(|| *work.lock() > 0);
                }
            }
            for thread in threads {
                thread.join().unwrap();
            }
        };
        in_random_orders(law, 5_000);
    }
}
