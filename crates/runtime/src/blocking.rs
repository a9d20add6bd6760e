//! Work that may block: files may be on a file system that hangs, and that must hold up no request.

use std::future::pending;
use std::panic::resume_unwind;

use tokio::task::{JoinError, spawn_blocking};

#[cfg(feature = "internals")]
thread_local! {
    static INLINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// From now on this thread does such work itself, so that a simulation has no other thread.
#[cfg(feature = "internals")]
pub fn run_inline() {
    INLINE.set(true);
}

/// Does `work` on a thread of its own.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    #[cfg(feature = "internals")]
    if INLINE.get() {
        return work();
    }
    match spawn_blocking(work)
        .await
        .map_err(JoinError::try_into_panic)
    {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime ends.
        Err(Err(_)) => pending().await,
    }
}
