//! What the main thread does while the workers serve: it waits for signals, and for workers that
//! fail.

use super::drain::Drain;
use super::signals::Signal;
use super::workers::{WorkerFailed, Workers};

/// How serving came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All workers are done.
    Drained,
    /// A second signal asked to end at once.
    Forced,
}

/// Waits for the end: drains at the first signal that asks for it, ends at once at the second, and
/// calls `reload` whenever that is asked for.
///
/// # Errors
/// As soon as a worker fails.
pub async fn supervise(
    workers: &mut Workers,
    drain: &Drain,
    mut signal: impl AsyncFnMut() -> Signal,
    mut reload: impl FnMut(),
    mut draining: impl FnMut(),
) -> Result<Ended, WorkerFailed> {
    let mut is_draining = false;
    loop {
        let signal = tokio::select! {
            biased;
            ended = workers.finished() => return ended.map(|()| Ended::Drained),
            signal = signal() => signal,
        };
        match signal {
            Signal::Drain if is_draining => return Ok(Ended::Forced),
            Signal::Drain => {
                is_draining = true;
                draining();
                drain.start();
            }
            Signal::Reload => reload(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Draining;
    use std::cell::Cell;
    use std::future::pending;

    /// Workers that end when the drain begins, or never.
    fn workers(draining: Option<Draining>) -> Workers {
        Workers::spawn(vec![draining], |_, draining| async {
            match draining {
                Some(mut draining) => draining.begun().await,
                None => pending().await,
            }
            Ok(())
        })
        .unwrap()
    }

    /// Runs with these signals; returns the end, and how often it reloaded and drained.
    async fn run(workers: &mut Workers, drain: &Drain, signals: &[Signal]) -> (Ended, u32, u32) {
        let mut signals = signals.iter().copied();
        let next = async || match signals.next() {
            Some(signal) => signal,
            None => pending().await,
        };
        let (reloads, drains) = (Cell::new(0), Cell::new(0));
        let count = |cell: &Cell<u32>| cell.set(cell.get() + 1);
        let ended = supervise(workers, drain, next, || count(&reloads), || count(&drains)).await;
        (ended.unwrap(), reloads.get(), drains.get())
    }

    #[tokio::test]
    async fn the_first_signal_drains() {
        let (drain, draining) = Drain::new();
        let mut workers = workers(Some(draining));
        let signals = [Signal::Reload, Signal::Reload, Signal::Drain];
        let end = run(&mut workers, &drain, &signals).await;
        assert_eq!(end, (Ended::Drained, 2, 1));
    }

    #[tokio::test]
    async fn the_second_signal_ends_at_once() {
        let (drain, _draining) = Drain::new();
        let mut workers = workers(None);
        let signals = [Signal::Drain, Signal::Reload, Signal::Drain];
        let end = run(&mut workers, &drain, &signals).await;
        assert_eq!(end, (Ended::Forced, 1, 1));
    }
}
