//! Worker threads, each with its own runtime that shares nothing with the others.
//!
//! On such a runtime a request never changes threads, which makes it about half as expensive as on
//! a work-stealing one.

use std::any::Any;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use thiserror::Error;
use tokio::runtime::Builder;
use tokio::sync::mpsc;

/// The workers that run.
#[derive(Debug)]
pub struct Workers {
    running: usize,
    ends: mpsc::UnboundedReceiver<Result<(), WorkerFailed>>,
}

/// A worker that failed.
#[derive(Debug, Error)]
#[error("worker {index} failed: {cause}")]
pub struct WorkerFailed {
    /// Which one, from 0.
    pub index: usize,
    /// Why: an error, or the message of a panic.
    pub cause: String,
}

impl Workers {
    /// Starts a worker for each of `inputs`, which belongs to that worker alone, such as its
    /// listening sockets. The future is created on the worker's thread and need not be `Send`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn<T, F, W>(inputs: Vec<T>, work: W) -> io::Result<Self>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<()>>,
        W: Fn(usize, T) -> F + Clone + Send + 'static,
    {
        let (sender, ends) = mpsc::unbounded_channel();
        let running = inputs.len();
        for (index, input) in inputs.into_iter().enumerate() {
            let (work, sender) = (work.clone(), sender.clone());
            let thread = thread::Builder::new().name(format!("weir-worker-{index}"));
            thread.spawn(move || {
                // When the receiver is gone, the process is about to end anyway.
                let _ = sender.send(run(index, || work(index, input)));
            })?;
        }
        Ok(Self { running, ends })
    }

    /// Waits until all workers are done, or one has failed.
    ///
    /// Cancel-safe: no end is lost.
    ///
    /// # Errors
    /// As soon as a worker panicked or returned an error. The others still run then.
    pub async fn finished(&mut self) -> Result<(), WorkerFailed> {
        while self.running > 0 {
            let Some(end) = self.ends.recv().await else {
                break;
            };
            self.running -= 1;
            end?;
        }
        Ok(())
    }
}

fn run<F>(index: usize, work: impl FnOnce() -> F) -> Result<(), WorkerFailed>
where
    F: Future<Output = io::Result<()>>,
{
    let failed = |cause: String| WorkerFailed { index, cause };
    let run = || runtime()?.block_on(work());
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(end) => end.map_err(|error| failed(error.to_string())),
        Err(panic) => Err(failed(format!("panic: {}", message(&*panic)))),
    }
}

/// A runtime on the current thread.
pub(super) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_worker_gets_its_own_input_on_its_own_thread() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut workers = Workers::spawn(vec!['a', 'b'], move |index, input| {
            let name = thread::current().name().map(str::to_owned);
            sender.send((index, input, name)).unwrap();
            async { Ok(()) }
        })
        .unwrap();
        workers.finished().await.unwrap();
        let mut seen = vec![
            receiver.recv().await.unwrap(),
            receiver.recv().await.unwrap(),
        ];
        seen.sort();
        let name = |index| Some(format!("weir-worker-{index}"));
        assert_eq!(seen, [(0, 'a', name(0)), (1, 'b', name(1))]);
    }

    #[tokio::test]
    async fn a_panic_of_one_worker_is_noticed_while_the_others_run() {
        let mut workers = Workers::spawn(vec![false, true], |_, fails| async move {
            assert!(!fails, "the worker's own words");
            std::future::pending().await
        })
        .unwrap();
        let failed = workers.finished().await.unwrap_err();
        assert_eq!(
            failed.to_string(),
            "worker 1 failed: panic: the worker's own words"
        );
    }

    #[tokio::test]
    async fn an_error_of_a_worker_is_reported() {
        let mut workers =
            Workers::spawn(vec![()], |_, ()| async { Err(io::Error::other("no more")) }).unwrap();
        let failed = workers.finished().await.unwrap_err();
        assert_eq!(failed.to_string(), "worker 0 failed: no more");
    }
}
