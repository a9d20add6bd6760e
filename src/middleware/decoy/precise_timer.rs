//! How long a decoy takes: as long as one of the route's recent real responses, to some tens of
//! microseconds.
//!
//! The runtime's own timers, and the kernel's for sockets, count in whole milliseconds and round
//! up. In front of an app that answers in less, each decoy came one to two milliseconds later
//! than any real response, which gave it away at first sight. So the last milliseconds of a wait are
//! left to a thread that sleeps by the kernel's finer timer.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time;

/// By how much the runtime may wake too late.
const COARSE: Duration = Duration::from_millis(2);

/// One wait. The greatest is the one that ends first.
struct Timer {
    due: Instant,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        other.due.cmp(&self.due)
    }
}

/// Waits until `due`.
pub(super) async fn wait_until(due: time::Instant) {
    if let Some(coarse) = due.checked_sub(COARSE)
        && coarse > time::Instant::now()
    {
        time::sleep_until(coarse).await;
    }
    let rest = due.saturating_duration_since(time::Instant::now());
    if rest.is_zero() {
        return;
    }
    let (wake, woken) = oneshot::channel();
    let due_there = Instant::now() + rest;
    let timer = Timer {
        due: due_there,
        wake,
    };
    match timers() {
        Some(timers) if timers.send(timer).is_ok() => drop(woken.await),
        // Late is better than never.
        _ => {}
    }
    // It is due already, unless there is no such thread, or the runtime's clock is not the
    // thread's.
    if time::Instant::now() < due {
        time::sleep_until(due).await;
    }
}

/// The thread that all wait for, which is there from the first wait on; none where the
/// system gives no thread.
fn timers() -> Option<&'static Sender<Timer>> {
    static TIMERS: OnceLock<Option<Sender<Timer>>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = channel();
        let thread = thread::Builder::new().name("weir-timer".to_owned());
        thread.spawn(move || wake_in_time(&receiver)).ok()?;
        Some(sender)
    };
    TIMERS.get_or_init(start).as_ref()
}

fn wake_in_time(timers: &Receiver<Timer>) {
    let mut waiting = BinaryHeap::<Timer>::new();
    loop {
        let now = Instant::now();
        while let Some(first) = waiting.pop() {
            if first.due > now {
                waiting.push(first);
                break;
            }
            // The one that waited may be gone.
            let _ = first.wake.send(());
        }
        let next = match waiting.peek() {
            Some(first) => timers.recv_timeout(first.due.saturating_duration_since(now)),
            None => timers.recv().map_err(RecvTimeoutError::from),
        };
        match next {
            Ok(timer) => waiting.push(timer),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    /// A machine that is busy may wake a thread late, but not every time.
    #[tokio::test]
    async fn short_waits_end_when_they_are_due_and_not_at_the_next_millisecond() {
        let wanted = Duration::from_micros(300);
        let mut shortest = Duration::MAX;
        for _ in 0..100 {
            let start = time::Instant::now();
            wait_until(start + wanted).await;
            let took = start.elapsed();
            assert!(took >= wanted, "{took:?}");
            shortest = shortest.min(took);
        }
        assert!(shortest < Duration::from_millis(1), "{shortest:?}");
    }

    #[tokio::test]
    async fn waits_of_many_end_each_in_its_own_time() {
        let start = time::Instant::now();
        let waits = (0..200_u64).map(|at| async move {
            let due = start + Duration::from_micros(50 * (199 - at));
            wait_until(due).await;
            assert!(time::Instant::now() >= due);
        });
        join_all(waits).await;
    }
}
