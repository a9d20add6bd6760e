//! Locks, atomics and threads, for what several threads share without a lock around it. With the
//! feature `interleavings` they are Shuttle's, so that a test can try the orders in which threads
//! meet.

#[cfg(not(feature = "interleavings"))]
pub use parking_lot::{Mutex, MutexGuard};
#[cfg(feature = "interleavings")]
pub use shuttle::{sync::atomic, thread};
#[cfg(feature = "interleavings")]
pub use shuttle_parking_lot::{Mutex, MutexGuard};
#[cfg(not(feature = "interleavings"))]
pub use std::{sync::atomic, thread};

/// Holds a law in so many orders in which its threads meet, at random.
#[cfg(feature = "interleavings")]
pub fn in_random_orders(law: impl Fn() + Send + Sync + 'static, orders: usize) {
    use shuttle::scheduler::RandomScheduler;
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    shuttle::Runner::new(RandomScheduler::new(orders), config).run(law);
}
