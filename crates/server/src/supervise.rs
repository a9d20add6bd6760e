//! The worker threads, and what the main thread does while they serve: it waits for signals, for a
//! successor, and for failing workers.
//!
//! Each worker has its own runtime that shares nothing with the others. On such a runtime a request
//! never changes threads, which makes it about half as expensive as on a work-stealing one.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use thiserror::Error;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::mpsc;

use super::drain::Drain;

/// The meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM` or `SIGINT`: finish what is in flight and end. A second one: end at once.
    Drain,
    /// `SIGHUP`: load the configuration again.
    Reload,
    /// `SIGUSR2`: start a successor.
    Restart,
}

/// The signals that arrive from now on.
#[derive(Debug)]
pub struct Signals {
    terminate: Stream,
    interrupt: Stream,
    hangup: Stream,
    user2: Stream,
}

impl Signals {
    /// Takes over the four signals, whose default action is to end the process. Call it on the
    /// runtime that will wait for them.
    ///
    /// # Errors
    /// When the system refuses to hand a signal over.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next signal. Signals of one kind that arrive together are one.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Signal::Drain,
            _ = self.interrupt.recv() => Signal::Drain,
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.user2.recv() => Signal::Restart,
        }
    }
}

/// An event that the main thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A signal to the process.
    Signal(Signal),
    /// A successor serves on these addresses.
    Replaced(Vec<SocketAddr>),
}

/// Handles events.
pub trait EventHandler {
    /// Loads the configuration again.
    fn reload(&self);
    /// Starts a successor.
    fn restart(&self);
    /// The drain is about to begin, because a successor serves or because of a signal.
    fn draining(&self, replaced: bool);
    /// A successor has these addresses.
    fn replaced(&self, addresses: &[SocketAddr]);
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All workers are done.
    Drained,
    /// A second signal asked to end at once.
    Forced,
}

/// Handles events until the process ends: drains at the first drain signal or when a successor
/// serves, and ends at once at the second signal.
///
/// # Errors
/// As soon as a worker fails.
pub async fn supervise(
    workers: &mut Workers,
    drain: &Drain,
    mut next: impl AsyncFnMut() -> Event,
    handler: &impl EventHandler,
) -> Result<Ended, WorkerFailed> {
    let (mut is_draining, mut was_asked) = (false, false);
    loop {
        let event = tokio::select! {
            biased;
            ended = workers.finished() => return ended.map(|()| Ended::Drained),
            event = next() => event,
        };
        match event {
            Event::Signal(Signal::Drain) if was_asked => return Ok(Ended::Forced),
            Event::Signal(Signal::Drain) => {
                was_asked = true;
                if !is_draining {
                    handler.draining(false);
                    drain.start();
                }
                is_draining = true;
            }
            Event::Replaced(addresses) => {
                if !is_draining {
                    handler.draining(true);
                    drain.hand_over(&addresses);
                }
                is_draining = true;
                handler.replaced(&addresses);
            }
            Event::Signal(Signal::Reload) => handler.reload(),
            Event::Signal(Signal::Restart) => handler.restart(),
        }
    }
}

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
    use crate::Draining;
    use std::cell::RefCell;
    use std::future::pending;

    /// Workers that end when the drain begins, or never.
    fn workers(draining: Option<Draining>) -> Workers {
        Workers::spawn(vec![draining], |_, draining| async {
            match draining {
                Some(draining) => draining.begun().await,
                None => pending().await,
            }
            Ok(())
        })
        .unwrap()
    }

    #[derive(Default)]
    struct Done(RefCell<Vec<&'static str>>);

    impl EventHandler for Done {
        fn reload(&self) {
            self.0.borrow_mut().push("reload");
        }

        fn restart(&self) {
            self.0.borrow_mut().push("restart");
        }

        fn draining(&self, replaced: bool) {
            let why = if replaced { "succeeded" } else { "draining" };
            self.0.borrow_mut().push(why);
        }

        fn replaced(&self, _: &[SocketAddr]) {
            self.0.borrow_mut().push("replaced");
        }
    }

    /// Runs with these events; returns the end, and what was done.
    async fn run(
        workers: &mut Workers,
        drain: &Drain,
        events: Vec<Event>,
    ) -> (Ended, Vec<&'static str>) {
        let mut events = events.into_iter();
        let next = async || match events.next() {
            Some(event) => event,
            None => pending().await,
        };
        let done = Done::default();
        let ended = supervise(workers, drain, next, &done).await;
        (ended.unwrap(), done.0.into_inner())
    }

    const DRAIN: Event = Event::Signal(Signal::Drain);
    const RELOAD: Event = Event::Signal(Signal::Reload);
    const RESTART: Event = Event::Signal(Signal::Restart);

    #[tokio::test]
    async fn the_first_signal_drains() {
        let (drain, draining) = Drain::new();
        let mut workers = workers(Some(draining));
        let events = vec![RELOAD, RESTART, RELOAD, DRAIN];
        let end = run(&mut workers, &drain, events).await;
        let done = vec!["reload", "restart", "reload", "draining"];
        assert_eq!(end, (Ended::Drained, done));
    }

    #[tokio::test]
    async fn the_second_signal_ends_at_once() {
        let (drain, _draining) = Drain::new();
        let end = run(&mut workers(None), &drain, vec![DRAIN, RELOAD, DRAIN]).await;
        assert_eq!(end, (Ended::Forced, vec!["draining", "reload"]));
    }

    #[tokio::test]
    async fn a_successor_that_serves_makes_it_drain_and_keep_its_sockets() {
        let (drain, draining) = Drain::new();
        let address = "127.0.0.1:80".parse().unwrap();
        let replaced = Event::Replaced(vec![address]);
        let end = run(&mut workers(Some(draining.clone())), &drain, vec![replaced]).await;
        assert_eq!(end, (Ended::Drained, vec!["succeeded", "replaced"]));
        assert!(draining.keeps_open(address));
    }

    #[tokio::test]
    async fn the_signal_that_stops_a_service_cuts_no_predecessor_short() {
        let (drain, _draining) = Drain::new();
        let replaced = Event::Replaced(Vec::new());
        let end = run(&mut workers(None), &drain, vec![replaced, DRAIN, DRAIN]).await;
        assert_eq!(end, (Ended::Forced, vec!["succeeded", "replaced"]));
    }

    use std::process::{Command, id};

    fn send(signal: &str) {
        let kill = format!("kill -{signal} {}", id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
    }

    #[tokio::test]
    async fn the_signals_ask_for_what_the_manual_says() {
        let mut signals = Signals::new().unwrap();
        for (name, asks) in [
            ("TERM", Signal::Drain),
            ("INT", Signal::Drain),
            ("HUP", Signal::Reload),
            ("USR2", Signal::Restart),
        ] {
            send(name);
            assert_eq!(signals.next().await, asks, "{name}");
        }
    }

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
            pending().await
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
