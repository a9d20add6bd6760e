//! One gateway's process: a runtime whose time stands still unless the world moves it.
//!
//! The runtime's timers count in whole milliseconds, and a paused runtime moves its clock to the
//! next one of them when it is idle. The process lets it do so over whole milliseconds, and moves
//! the clock itself over the rest, so that it stops at any nanosecond. It stops earlier when the
//! gateway does something that concerns the world, and in any case only when nothing is left to do
//! at that moment.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{EnterGuard, Runtime};
use tokio::time::{Instant, advance, sleep_until};

use super::idle::{self, Idle};
use super::os::{self, Wall};
use super::port::{self, Port};

const MILLISECOND: u128 = 1_000_000;

/// What the process runs beside the tasks of its runtime.
pub(super) type Main = Pin<Box<dyn Future<Output = Infallible>>>;

pub(super) struct Process {
    runtime: Runtime,
    main: Main,
    idle: Arc<Idle>,
    port: Arc<Port>,
    /// When it began, by its own clock.
    began: Instant,
    /// What the machine's wall clock showed then.
    shown: i64,
    /// Whether something has come from the world since it ran last.
    is_due: bool,
    position: Duration,
}

impl Process {
    /// A process that has not run yet. The machine's clock shows `wall`; `number` says which
    /// randomness its runtime draws.
    pub(super) fn new(
        port: &Arc<Port>,
        wall: i64,
        number: u64,
        main: impl FnOnce() -> Main,
    ) -> io::Result<Self> {
        let runtime = os::runtime(number)?;
        let entered = runtime.enter();
        let (began, main) = (Instant::now(), main());
        drop(entered);
        Ok(Self {
            runtime,
            main,
            idle: Arc::default(),
            port: Arc::clone(port),
            began,
            shown: wall,
            is_due: true,
            position: Duration::ZERO,
        })
    }

    /// How long it has run, by its own clock.
    pub(super) const fn position(&self) -> Duration {
        self.position
    }

    /// How many tasks its runtime has.
    pub(super) fn tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }

    /// Sets the machine's wall clock ahead.
    pub(super) const fn step_wall(&mut self, by: i64) {
        self.shown = self.shown.saturating_add(by);
    }

    /// Something has come from the world.
    pub(super) const fn wake(&mut self) {
        self.is_due = true;
    }

    /// Runs until `target`, by its own clock, or until it does something that concerns the world.
    pub(super) fn run(&mut self, target: Duration) {
        if self.position >= target && !self.is_due {
            return;
        }
        self.drive(target, false);
    }

    /// Finds that its clock shows `target` already, as after SIGCONT.
    pub(super) fn jump(&mut self, target: Duration) {
        self.drive(target, true);
    }

    fn drive(&mut self, target: Duration, jumps: bool) {
        let _machine = self.machine();
        let is_due = std::mem::take(&mut self.is_due) && !jumps;
        let pace = ClockDriver {
            began: self.began,
            idle: &self.idle,
            port: &self.port,
        };
        let main = &mut self.main;
        self.position = self.runtime.block_on(async {
            let mut pace = pin!(pace.reach(target, is_due, jumps));
            poll_fn(|cx| {
                let Poll::Pending = main.as_mut().poll(cx);
                pace.as_mut().poll(cx)
            })
            .await
        });
    }

    /// Has this thread's calls of the system answered as on the process's machine.
    fn machine(&self) -> Machine {
        os::set_wall(Some(Wall {
            since: self.began,
            shown: self.shown,
        }));
        port::set_current(Some(Arc::clone(&self.port)));
        idle::set_current(Some(Arc::clone(&self.idle)));
        Machine
    }

    /// Does something within the process, between two of its moments.
    pub(super) fn within<T>(&mut self, act: impl FnOnce() -> T) -> T {
        self.is_due = true;
        let _machine = self.machine();
        let _entered: EnterGuard<'_> = self.runtime.enter();
        act()
    }

    /// Runs a task in it.
    pub(super) fn spawn(
        &mut self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        self.is_due = true;
        self.runtime.spawn(task).abort_handle()
    }

    /// Ends it at once, as `kill -9` does.
    pub(super) fn kill(self) {
        let _machine = self.machine();
        let entered = self.runtime.enter();
        drop(self.main);
        drop(entered);
        drop(self.runtime);
    }
}

/// This thread's calls of the system are answered as on a machine until this is dropped.
struct Machine;

impl Drop for Machine {
    fn drop(&mut self) {
        os::set_wall(None);
        port::set_current(None);
        idle::set_current(None);
    }
}

/// Moves a process's clock.
struct ClockDriver<'p> {
    began: Instant,
    idle: &'p Idle,
    port: &'p Port,
}

impl ClockDriver<'_> {
    /// Returns where the clock is then.
    async fn reach(self, target: Duration, is_due: bool, jumps: bool) -> Duration {
        if is_due {
            self.idle.settle().await;
        }
        loop {
            let position = self.position();
            if position >= target || self.port.has_emissions() {
                return position;
            }
            let into = position.as_nanos() % MILLISECOND;
            let whole = target - nanos(target.as_nanos() % MILLISECOND);
            if jumps {
                advance(target - position).await;
            } else if into > 0 {
                let next = position + nanos(MILLISECOND - into);
                advance(next.min(target) - position).await;
            } else if whole > position {
                self.sleep_until(whole).await;
            } else {
                advance(target - position).await;
            }
            self.idle.settle().await;
        }
    }

    fn position(&self) -> Duration {
        Instant::now().saturating_duration_since(self.began)
    }

    /// Lets the runtime move the clock from timer to timer.
    async fn sleep_until(&self, at: Duration) {
        let mut sleep = pin!(sleep_until(self.began + at));
        poll_fn(|cx| {
            if self.port.has_emissions() {
                return Poll::Ready(());
            }
            self.port.wake_by(cx.waker());
            sleep.as_mut().poll(cx)
        })
        .await;
    }
}

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
