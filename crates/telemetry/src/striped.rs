//! What all workers write with each request: numbers that they add to, and lines of the log. Each
//! thread writes its own: processors that write to one line of the cache in turn wait for each
//! other.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::available_parallelism;

use prometheus_client::metrics::{counter, gauge};

/// A count that all threads add to.
pub type Counter = counter::Counter<u64, Striped<AtomicU64>>;

/// The same of what comes and goes. It is never set.
pub type StripedGauge = gauge::Gauge<i64, Striped<AtomicI64>>;

/// More threads than that share.
const MAX_STRIPES: usize = 64;

/// A `T` for each thread, in a line of the cache of its own. They are made when the first is used,
/// as most counters never count.
#[derive(Debug, Default)]
pub struct Striped<T>(OnceLock<Box<[Line<T>]>>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

impl<T: Default> Striped<T> {
    /// The calling thread's.
    pub fn own(&self) -> Option<&T> {
        let lines = self.0.get_or_init(|| {
            let threads = available_parallelism().map_or(1, usize::from);
            let stripes = threads.next_power_of_two().min(MAX_STRIPES);
            (0..stripes).map(|_| Line::default()).collect()
        });
        // Their number is a power of two.
        let line = lines.get(thread_index() & (lines.len() - 1));
        line.map(|line| &line.0)
    }

    /// Those of all threads.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.get().into_iter().flatten().map(|line| &line.0)
    }
}

impl counter::Atomic<u64> for Striped<AtomicU64> {
    fn inc(&self) -> u64 {
        self.inc_by(1)
    }

    /// Returns what this thread has added before.
    fn inc_by(&self, more: u64) -> u64 {
        self.own().map_or(0, |own| own.fetch_add(more, Relaxed))
    }

    fn get(&self) -> u64 {
        self.all().map(|stripe| stripe.load(Relaxed)).sum()
    }
}

impl gauge::Atomic<i64> for Striped<AtomicI64> {
    fn inc(&self) -> i64 {
        self.inc_by(1)
    }

    fn inc_by(&self, more: i64) -> i64 {
        self.own().map_or(0, |own| own.fetch_add(more, Relaxed))
    }

    fn dec(&self) -> i64 {
        self.inc_by(-1)
    }

    fn dec_by(&self, less: i64) -> i64 {
        self.inc_by(-less)
    }

    /// Other threads may add meanwhile, so it is right only while none does.
    fn set(&self, value: i64) -> i64 {
        self.inc_by(value - self.get())
    }

    fn get(&self) -> i64 {
        self.all().map(|stripe| stripe.load(Relaxed)).sum()
    }
}

/// A number of the calling thread, from zero on.
#[inline]
fn thread_index() -> usize {
    thread_local! {
        static INDEX: Cell<Option<usize>> = const { Cell::new(None) };
    }
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    INDEX.get().unwrap_or_else(|| {
        let index = THREADS.fetch_add(1, Relaxed);
        INDEX.set(Some(index));
        index
    })
}

/// These, each of another thread.
#[cfg(test)]
impl<T> FromIterator<T> for Striped<T> {
    fn from_iter<I: IntoIterator<Item = T>>(parts: I) -> Self {
        let lines: Box<[_]> = parts.into_iter().map(Line).collect();
        Self(OnceLock::from(lines))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn nothing_that_any_thread_adds_is_lost() {
        let (counter, gauge) = (Counter::default(), StripedGauge::default());
        assert_eq!((counter.get(), gauge.get()), (0, 0));
        thread::scope(|scope| {
            for _ in 0..2 * MAX_STRIPES {
                scope.spawn(|| {
                    counter.inc();
                    gauge.inc_by(3);
                });
            }
        });
        // Another thread takes away what those have added.
        gauge.dec_by(2 * MAX_STRIPES as i64);
        gauge.dec();
        assert_eq!((counter.get(), gauge.get()), (128, 4 * 64 - 1));
    }
}
