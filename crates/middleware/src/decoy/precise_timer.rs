//! A timer that wakes within some tens of microseconds, in the worker's own event loop.
//!
//! The runtime's timers count in whole milliseconds and round up. In front of an app that responds
//! faster, each decoy came one to two milliseconds later than any real response, which gave it away
//! at first sight. So each thread has a timerfd that its runtime polls along with its sockets. The
//! timerfd is always armed for the earliest entry or before it, and all entries that are due by
//! then are woken together.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;

thread_local! {
    /// The queue of this thread, and the runtime that drives it.
    static QUEUE: RefCell<Option<(runtime::Id, Arc<TimerQueue>)>> = const { RefCell::new(None) };
}

/// Waits from `now` until `due`. Returns false, at once, where the system or the runtime has no
/// such timer.
pub(super) async fn wait_until(due: Instant, now: Instant) -> bool {
    match TimerQueue::of_thread() {
        Ok(queue) => queue.wait_until(due, now).await,
        Err(_) => false,
    }
}

#[derive(Debug)]
struct TimerQueue {
    timerfd: OwnedFd,
    entries: Mutex<TimerEntries>,
}

#[derive(Debug, Default)]
struct TimerEntries {
    /// By due time, then by number.
    wakers: BTreeMap<(Instant, u64), Waker>,
    next_number: u64,
    /// When the timerfd expires, if it has not yet; never later than the earliest entry.
    armed: Option<Instant>,
    /// Whether nothing polls the timerfd any more.
    is_closed: bool,
}

impl TimerQueue {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            timerfd: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            entries: Mutex::default(),
        })
    }

    /// The queue of this thread, which the current runtime drives from the first wait on.
    fn of_thread() -> io::Result<Arc<Self>> {
        let runtime = Handle::current();
        let id = runtime.id();
        QUEUE.with_borrow_mut(|queue| match queue {
            Some((driven_by, queue)) if *driven_by == id => Ok(Arc::clone(queue)),
            _ => {
                let new = Arc::new(Self::new()?);
                runtime.spawn(drive(CloseOnDrop(Arc::clone(&new))));
                *queue = Some((id, Arc::clone(&new)));
                Ok(new)
            }
        })
    }

    fn wait_until(self: Arc<Self>, due: Instant, now: Instant) -> TimerEntry {
        TimerEntry {
            queue: self,
            due,
            now,
            number: None,
        }
    }

    /// Arms the timerfd for `due` or before, and returns whether that succeeded.
    fn arm(&self, entries: &mut TimerEntries, due: Instant, now: Instant) -> bool {
        if entries.armed.is_some_and(|armed| armed <= due) {
            return true;
        }
        // Zero would disarm it.
        let rest = due.saturating_duration_since(now);
        let rest = rest.max(Duration::from_nanos(1));
        let once = Timespec::try_from(rest).map(|it_value| Itimerspec {
            it_interval: Timespec::default(),
            it_value,
        });
        let no_flags = TimerfdTimerFlags::empty();
        let set = once.map(|once| timerfd_settime(&self.timerfd, no_flags, &once));
        entries.armed = matches!(set, Ok(Ok(_))).then_some(due);
        entries.armed.is_some()
    }

    /// Wakes all entries that are due `now`.
    fn wake_due(&self, now: Instant) {
        let mut due = Vec::new();
        let mut entries = self.entries.lock();
        entries.armed = entries.armed.filter(|armed| *armed > now);
        while let Some(first) = entries.wakers.first_entry() {
            let (at, _) = *first.key();
            if at > now && self.arm(&mut entries, at, now) {
                break;
            }
            due.extend(entries.wakers.pop_first());
        }
        // Wakers are called, and dropped, without the lock: they may drop a wait.
        drop(entries);
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Wakes all entries, as nothing will wake them later.
    fn close(&self) {
        let mut entries = self.entries.lock();
        entries.is_closed = true;
        let wakers = std::mem::take(&mut entries.wakers);
        drop(entries);
        wakers.into_values().for_each(Waker::wake);
    }
}

impl AsRawFd for TimerQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.timerfd.as_raw_fd()
    }
}

/// Closes the queue when the runtime drops the task that drives it.
struct CloseOnDrop(Arc<TimerQueue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Wakes entries when the timerfd expires. A runtime without I/O panics here, which closes the
/// queue.
async fn drive(queue: CloseOnDrop) -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "what replaces it is unsafe; the queue never replaces its descriptor"
    )]
    let timerfd = AsyncFd::with_interest(Arc::clone(&queue.0), Interest::READABLE)?;
    loop {
        // The timerfd is not read: the runtime is told of each time that it expires, though it be
        // readable already.
        timerfd.readable().await?.clear_ready();
        queue.0.wake_due(Instant::now());
    }
}

/// A timer, which leaves the queue when it is dropped.
#[derive(Debug)]
struct TimerEntry {
    queue: Arc<TimerQueue>,
    due: Instant,
    now: Instant,
    /// In the queue, from the first poll on.
    number: Option<u64>,
}

/// Returns whether it was due.
impl Future for TimerEntry {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let this = &mut *self;
        let waker = context.waker().clone();
        let mut entries = this.queue.entries.lock();
        let earlier = match this.number {
            Some(number) => match entries.wakers.get_mut(&(this.due, number)) {
                Some(earlier) => Some(std::mem::replace(earlier, waker)),
                None => return Poll::Ready(this.due <= Instant::now()),
            },
            None => {
                if this.due <= this.now {
                    return Poll::Ready(true);
                }
                if entries.is_closed || !this.queue.arm(&mut entries, this.due, this.now) {
                    return Poll::Ready(false);
                }
                let number = entries.next_number;
                entries.next_number += 1;
                this.number = Some(number);
                entries.wakers.insert((this.due, number), waker)
            }
        };
        drop(entries);
        drop(earlier);
        Poll::Pending
    }
}

impl Drop for TimerEntry {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.queue.entries.lock().wakers.remove(&(self.due, number));
            // After the lock, which is gone by now.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use futures_util::future::join_all;
    use tokio::runtime::Builder;
    use tokio::time;

    use super::*;

    const AN_HOUR: Duration = Duration::from_secs(3600);

    #[derive(Default)]
    struct CountWakes(AtomicUsize);

    impl Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn queue() -> Arc<TimerQueue> {
        Arc::new(TimerQueue::new().unwrap())
    }

    /// A wait that has been polled once.
    fn begun(queue: &Arc<TimerQueue>, due: Instant, waker: &Waker) -> TimerEntry {
        let mut wait = Arc::clone(queue).wait_until(due, Instant::now());
        let _ = Pin::new(&mut wait).poll(&mut Context::from_waker(waker));
        wait
    }

    fn armed(queue: &TimerQueue) -> Option<Instant> {
        queue.entries.lock().armed
    }

    /// Fails where a wait has not ended after a minute.
    async fn within_a_minute<F: Future>(wait: F) -> F::Output {
        time::timeout(Duration::from_secs(60), wait).await.unwrap()
    }

    /// A machine that is busy may wake a thread late, but not every time.
    #[tokio::test]
    async fn short_waits_end_when_they_are_due_and_not_at_the_next_millisecond() {
        let wanted = Duration::from_micros(300);
        let mut shortest = Duration::MAX;
        for number in 0..100_000 {
            if number >= 100 && shortest < Duration::from_millis(1) {
                break;
            }
            let start = Instant::now();
            wait_until(start + wanted, start).await;
            let took = start.elapsed();
            assert!(took >= wanted, "{took:?}");
            shortest = shortest.min(took);
        }
        assert!(shortest < Duration::from_millis(1), "{shortest:?}");
    }

    #[tokio::test]
    async fn no_wait_of_many_ends_early_or_never() {
        let start = Instant::now();
        let entries = (0..200_u64).map(|at| async move {
            let due = start + Duration::from_micros(50 * (199 - at));
            wait_until(due, Instant::now()).await;
            assert!(Instant::now() >= due);
        });
        within_a_minute(join_all(entries)).await;
        let queue = TimerQueue::of_thread().unwrap();
        assert_eq!(queue.entries.lock().wakers.len(), 0);
    }

    #[tokio::test]
    async fn a_wait_is_not_held_up_by_a_later_one_that_began_first() {
        let start = Instant::now();
        let queue = TimerQueue::of_thread().unwrap();
        let _later = begun(&queue, start + AN_HOUR, Waker::noop());
        within_a_minute(wait_until(start + Duration::from_micros(300), start)).await;
    }

    #[tokio::test]
    async fn a_wait_is_not_lost_when_the_one_before_it_is_dropped() {
        let start = Instant::now();
        let queue = TimerQueue::of_thread().unwrap();
        let first = begun(&queue, start + Duration::from_millis(3), Waker::noop());
        let next = tokio::spawn(wait_until(start + Duration::from_millis(4), start));
        tokio::task::yield_now().await;
        drop(first);
        within_a_minute(next).await.unwrap();
    }

    #[test]
    fn waits_that_are_due_at_once_are_not_woken_one_by_one() {
        let queue = queue();
        let wakes = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let due = Instant::now() + AN_HOUR;
        let entries: Vec<_> = (0..100).map(|_| begun(&queue, due, &waker)).collect();
        queue.wake_due(due - Duration::from_nanos(1));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        queue.wake_due(due);
        assert_eq!(wakes.0.load(Ordering::Relaxed), entries.len());
    }

    #[test]
    fn the_timer_is_not_armed_again_for_what_is_not_the_earliest() {
        let (queue, waker) = (queue(), Waker::noop());
        let now = Instant::now();
        let _second = begun(&queue, now + 2 * AN_HOUR, waker);
        let first = begun(&queue, now + AN_HOUR, waker);
        let _third = begun(&queue, now + 3 * AN_HOUR, waker);
        assert_eq!(armed(&queue), Some(now + AN_HOUR));
        drop(first);
        queue.wake_due(now);
        assert_eq!(armed(&queue), Some(now + AN_HOUR), "too early is no harm");
        queue.wake_due(now + AN_HOUR);
        assert_eq!(armed(&queue), Some(now + 2 * AN_HOUR));
    }

    #[test]
    fn a_wait_that_is_dropped_leaves_nothing_behind() {
        let queue = queue();
        let due = Instant::now() + AN_HOUR;
        let wakes = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let entries: Vec<_> = (0..100).map(|_| begun(&queue, due, &waker)).collect();
        drop(entries);
        assert_eq!(queue.entries.lock().wakers.len(), 0);
        drop(waker);
        assert_eq!(Arc::strong_count(&wakes), 1);
    }

    #[test]
    fn a_wait_is_not_left_to_a_runtime_that_is_gone() {
        for _ in 0..3 {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let short = async {
                let now = Instant::now();
                wait_until(now + Duration::from_micros(300), now).await;
            };
            runtime.block_on(within_a_minute(short));
            let queue = runtime.block_on(async { TimerQueue::of_thread().unwrap() });
            drop(runtime);
            assert!(queue.entries.lock().is_closed);
        }
    }
}
