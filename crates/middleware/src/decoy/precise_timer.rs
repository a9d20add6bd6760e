//! A timer that wakes within some tens of microseconds, in the worker's own event loop.
//!
//! The runtime's timers count in whole milliseconds and round up. In front of an app that responds
//! faster, each decoy came one to two milliseconds later than any real response, which gave it away
//! at first sight. So each thread has a timerfd that its runtime polls along with its sockets. The
//! timerfd is always armed for the earliest entry or before it.
//!
//! On a virtual machine each arming leaves to the hypervisor, and each expiry is a turn of the event
//! loop. So an entry that is due wakes those along with it that say that they may end so early. When
//! it is due is random, and an entry that is alone ends when it is due.

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

use super::latencies::MAX_SLACK;

thread_local! {
    /// The queue of this thread, and the runtime that drives it.
    static QUEUE: RefCell<Option<(runtime::Id, Arc<TimerQueue>)>> = const { RefCell::new(None) };
}

/// Waits from `now` until `due`, or up to `slack` less if another wait ends then. Returns false, at
/// once, where the system or the runtime has no such timer.
pub(super) async fn wait_until(due: Instant, slack: Duration, now: Instant) -> bool {
    match TimerQueue::of_thread() {
        Ok(queue) => queue.wait_until(due, slack, now).await,
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
    waiting: BTreeMap<(Instant, u64), WaitingEntry>,
    next_number: u64,
    /// When the timerfd expires, if it has not yet; never later than the earliest entry.
    armed: Option<Instant>,
    /// Whether nothing polls the timerfd any more.
    is_closed: bool,
}

#[derive(Debug)]
struct WaitingEntry {
    slack: Duration,
    waker: Waker,
}

impl TimerEntries {
    /// Takes out the entries that are due `now`, and with them, if there are any, those that may end
    /// so early.
    fn take_due(&mut self, now: Instant) -> Vec<WaitingEntry> {
        let first = self.waiting.first_entry();
        let Some(first) = first.filter(|first| first.key().0 <= now) else {
            return Vec::new();
        };
        let mut taken = vec![first.remove()];
        // Most are alone.
        let last = now + MAX_SLACK;
        let next = self.waiting.first_key_value();
        if next.is_some_and(|((due, _), _)| *due <= last) {
            let may_end =
                |(due, _): &(Instant, u64), entry: &mut WaitingEntry| *due <= now + entry.slack;
            let others = self.waiting.extract_if(..=(last, u64::MAX), may_end);
            taken.extend(others.map(|(_, entry)| entry));
        }
        taken
    }
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

    fn wait_until(self: Arc<Self>, due: Instant, slack: Duration, now: Instant) -> TimerEntry {
        TimerEntry {
            queue: self,
            due,
            slack,
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

    /// Wakes all entries that end `now`, and the others too if the timerfd cannot be armed for them.
    fn wake_due(&self, now: Instant) {
        let mut entries = self.entries.lock();
        entries.armed = entries.armed.filter(|armed| *armed > now);
        let mut woken = entries.take_due(now);
        let first = entries.waiting.first_key_value();
        if let Some((due, _)) = first.map(|(key, _)| *key)
            && !self.arm(&mut entries, due, now)
        {
            woken.extend(std::mem::take(&mut entries.waiting).into_values());
        }
        // Wakers are called, and dropped, without the lock: they may drop a wait.
        drop(entries);
        woken.into_iter().for_each(|entry| entry.waker.wake());
    }

    /// Wakes all entries, as nothing will wake them later.
    fn close(&self) {
        let mut entries = self.entries.lock();
        entries.is_closed = true;
        let waiting = std::mem::take(&mut entries.waiting);
        drop(entries);
        waiting.into_values().for_each(|entry| entry.waker.wake());
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
    slack: Duration,
    now: Instant,
    /// In the queue, from the first poll on.
    number: Option<u64>,
}

/// Returns whether it was due, or might end so early.
impl Future for TimerEntry {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let this = &mut *self;
        let (due, slack) = (this.due, this.slack);
        let waker = context.waker().clone();
        let mut entries = this.queue.entries.lock();
        let earlier = match this.number {
            Some(number) => match entries.waiting.get_mut(&(due, number)) {
                Some(entry) => Some(std::mem::replace(&mut entry.waker, waker)),
                None => return Poll::Ready(due <= Instant::now() + slack),
            },
            None => {
                if due <= this.now {
                    return Poll::Ready(true);
                }
                if entries.is_closed || !this.queue.arm(&mut entries, due, this.now) {
                    return Poll::Ready(false);
                }
                let number = entries.next_number;
                entries.next_number += 1;
                this.number = Some(number);
                let entry = WaitingEntry { slack, waker };
                let before = entries.waiting.insert((due, number), entry);
                before.map(|entry| entry.waker)
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
            let entry = self
                .queue
                .entries
                .lock()
                .waiting
                .remove(&(self.due, number));
            // After the lock, which is gone by now.
            drop(entry);
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

    use super::super::latencies::{DrawnLatency, Latencies};
    use super::*;

    const NO_SLACK: Duration = Duration::ZERO;
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
        begun_with(queue, due, NO_SLACK, waker)
    }

    fn begun_with(
        queue: &Arc<TimerQueue>,
        due: Instant,
        slack: Duration,
        waker: &Waker,
    ) -> TimerEntry {
        let mut wait = Arc::clone(queue).wait_until(due, slack, Instant::now());
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
        for _ in 0..100 {
            let start = Instant::now();
            wait_until(start + wanted, NO_SLACK, start).await;
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
            wait_until(due, NO_SLACK, Instant::now()).await;
            assert!(Instant::now() >= due);
        });
        within_a_minute(join_all(entries)).await;
        let queue = TimerQueue::of_thread().unwrap();
        assert_eq!(queue.entries.lock().waiting.len(), 0);
    }

    #[tokio::test]
    async fn a_wait_is_not_held_up_by_a_later_one_that_began_first() {
        let start = Instant::now();
        let queue = TimerQueue::of_thread().unwrap();
        let _later = begun(&queue, start + AN_HOUR, Waker::noop());
        let short = start + Duration::from_micros(300);
        within_a_minute(wait_until(short, NO_SLACK, start)).await;
    }

    #[tokio::test]
    async fn a_wait_is_not_lost_when_the_one_before_it_is_dropped() {
        let start = Instant::now();
        let queue = TimerQueue::of_thread().unwrap();
        let first = begun(&queue, start + Duration::from_millis(3), Waker::noop());
        let due = start + Duration::from_millis(4);
        let next = tokio::spawn(wait_until(due, NO_SLACK, start));
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

    /// With a slack of 50 µs.
    fn beside(queue: &Arc<TimerQueue>, due: Instant, wakes: &Arc<CountWakes>) -> TimerEntry {
        begun_with(queue, due, MAX_SLACK, &Waker::from(Arc::clone(wakes)))
    }

    #[test]
    fn a_wait_that_ends_takes_those_along_that_may_end_so_early() {
        let (queue, wakes) = (queue(), Arc::<CountWakes>::default());
        let due = Instant::now() + AN_HOUR;
        let at = |micros| due + Duration::from_micros(micros);
        let _first = begun(&queue, due, &Waker::from(Arc::clone(&wakes)));
        let _waits = [51, 20, 0, 50].map(|micros| beside(&queue, at(micros), &wakes));
        let _exact = begun(&queue, at(1), Waker::noop());
        assert_eq!(armed(&queue), Some(due), "armed once");
        queue.wake_due(due);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 4);
        assert_eq!(armed(&queue), Some(at(1)));
        queue.wake_due(at(1));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 5);
        assert_eq!(armed(&queue), None);
    }

    #[test]
    fn a_wait_that_is_alone_does_not_end_before_it_is_due() {
        let (queue, wakes) = (queue(), Arc::<CountWakes>::default());
        let due = Instant::now() + AN_HOUR;
        let gone = beside(&queue, due - MAX_SLACK / 2, &wakes);
        let _wait = beside(&queue, due, &wakes);
        drop(gone);
        queue.wake_due(due - MAX_SLACK / 2);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        assert_eq!(armed(&queue), Some(due));
        queue.wake_due(due);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }

    /// It would wait for the runtime's next millisecond if it were said not to have been due.
    #[test]
    fn a_wait_that_is_taken_along_is_over() {
        let queue = queue();
        let now = Instant::now();
        let mut wait = Arc::clone(&queue).wait_until(now + AN_HOUR, AN_HOUR, now);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut wait).poll(&mut context).is_pending());
        queue.entries.lock().waiting.clear();
        assert_eq!(Pin::new(&mut wait).poll(&mut context), Poll::Ready(true));
    }

    /// Numbers below one, the same in each run.
    struct Random(u64);

    impl Random {
        fn step(&mut self) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.0
        }

        fn next(&mut self) -> f64 {
            (self.step() >> 33) as f64 / (1_u64 << 31) as f64
        }

        /// A latency of an app: nearly normal, with this mean and deviation, in microseconds.
        fn latency(&mut self, mean: f64, deviation: f64) -> Duration {
            let sum: f64 = (0..12).map(|_| self.next()).sum();
            Duration::from_secs_f64((mean + deviation * (sum - 6.0)) / 1e6)
        }

        fn responses(&mut self, mean: f64, deviation: f64) -> Vec<Duration> {
            (0..256).map(|_| self.latency(mean, deviation)).collect()
        }

        fn draw(&mut self, latencies: &Latencies) -> DrawnLatency {
            let rank = usize::try_from(self.step() >> 56).unwrap();
            latencies.nth(rank).unwrap()
        }

        /// What a network adds, in microseconds on average.
        fn delay(&mut self, mean: f64) -> Duration {
            Duration::from_secs_f64(-mean * (1.0 - self.next()).ln() / 1e6)
        }
    }

    fn learnt(real: &[Duration]) -> Latencies {
        let latencies = Latencies::default();
        real.iter().for_each(|latency| latencies.record(*latency));
        latencies
    }

    /// Notes who is woken.
    struct Note(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().push(self.0);
        }
    }

    /// When decoys for requests of these times are sent by a timer that expires on time, and how
    /// often it was armed. Times are those since the first request.
    fn sent(requests: &[(Duration, DrawnLatency)]) -> (Vec<Duration>, usize) {
        let (queue, woken) = (queue(), Arc::<Mutex<Vec<usize>>>::default());
        let start = Instant::now() + AN_HOUR;
        let (mut waits, mut arms) = (Vec::new(), 0);
        let mut sent = vec![Duration::ZERO; requests.len()];
        loop {
            let before = armed(&queue);
            let next = requests.get(waits.len());
            match (before, next) {
                (Some(now), next) if next.is_none_or(|(at, _)| now <= start + *at) => {
                    queue.wake_due(now);
                    for number in std::mem::take(&mut *woken.lock()) {
                        sent[number] = now - start;
                    }
                }
                (_, Some((at, drawn))) => {
                    let note = Note(waits.len(), Arc::clone(&woken));
                    let waker = Waker::from(Arc::new(note));
                    let due = start + *at + drawn.latency;
                    waits.push(begun_with(&queue, due, drawn.slack, &waker));
                }
                (_, None) => return (sent, arms),
            }
            arms += usize::from(armed(&queue).is_some() && armed(&queue) != before);
        }
    }

    /// The Kolmogorov-Smirnov statistic.
    fn distance(one: &[Duration], other: &[Duration]) -> f64 {
        let sorted = |sample: &[Duration]| {
            let mut sample = sample.to_vec();
            sample.sort();
            sample
        };
        let (one, other) = (sorted(one), sorted(other));
        let share = |sample: &[Duration], most: Duration| {
            sample.partition_point(|it| *it <= most) as f64 / sample.len() as f64
        };
        let apart = |most: &Duration| (share(&one, *most) - share(&other, *most)).abs();
        one.iter().chain(&other).map(apart).fold(0.0, f64::max)
    }

    /// Two samples of 256 from one distribution lie further apart than 0.08 in most cases. What
    /// shared turns add must not be seen beside that, whether the app's responses differ much or
    /// hardly at all. 20,000 decoys a second.
    #[test]
    fn nobody_can_tell_by_their_latency_that_decoys_share_a_turn() {
        for (mean, deviation, most_arms) in [
            (5000.0, 1000.0, 0.6),
            (300.0, 60.0, 0.9),
            (300.0, 10.0, 1.0),
            (80.0, 20.0, 1.0),
        ] {
            let mut random = Random(7);
            let real = random.responses(mean, deviation);
            let latencies = learnt(&real);
            let requests: Vec<_> = (0..4000)
                .map(|number| {
                    let at = Duration::from_micros(50) * number;
                    (at, random.draw(&latencies))
                })
                .collect();
            let (sent, arms) = sent(&requests);
            let took = sent
                .iter()
                .zip(&requests)
                .map(|(sent, (at, _))| *sent - *at);
            let took: Vec<_> = took.collect();
            let apart = distance(&real, &took);
            let arms = arms as f64 / requests.len() as f64;
            println!("{mean} µs, {deviation} µs: {apart:.3} apart, {arms:.2} armings a decoy");
            assert!(apart < 0.04, "{apart}");
            assert!(arms <= most_arms, "{arms}");
            // The test would see one deviation.
            let off = Duration::from_secs_f64(deviation / 1e6);
            let later: Vec<_> = took.iter().map(|took| *took + off).collect();
            assert!(distance(&real, &later) > 0.2);
        }
    }

    /// What a client sees of the times between responses, each after so many µs of the worker's
    /// time, behind a network that adds 30 µs on average.
    fn gaps(random: &mut Random, mut due: Vec<Duration>, micros: u64) -> Vec<Duration> {
        due.sort();
        let mut free = Duration::ZERO;
        let mut seen: Vec<_> = due
            .into_iter()
            .map(|due| {
                free = free.max(due) + Duration::from_micros(micros);
                free + random.delay(30.0)
            })
            .collect();
        seen.sort();
        seen.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// A client that sends 16 requests at once sees which responses come together. A worker takes
    /// some 20 µs to forward a response and 8 for a decoy, so some real ones come together too.
    #[test]
    fn a_client_of_many_requests_cannot_tell_by_their_gaps_that_decoys_share_a_turn() {
        for (mean, deviation) in [(2000.0, 400.0), (5000.0, 1000.0), (20_000.0, 5000.0)] {
            let mut random = Random(7);
            let latencies = learnt(&random.responses(mean, deviation));
            let (mut real, mut decoys, mut in_steps) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..250 {
                let due = (0..16).map(|_| random.draw(&latencies).latency).collect();
                real.extend(gaps(&mut random, due, 20));
                let drawn = (0..16).map(|_| (Duration::ZERO, random.draw(&latencies)));
                let (due, _) = sent(&drawn.collect::<Vec<_>>());
                decoys.extend(gaps(&mut random, due.clone(), 8));
                let step = |due: Duration| {
                    let steps = u32::try_from(due.as_micros() / 500).unwrap();
                    Duration::from_micros(500) * steps
                };
                let due = due.into_iter().map(step).collect();
                in_steps.extend(gaps(&mut random, due, 8));
            }
            let (apart, of_steps) = (distance(&real, &decoys), distance(&real, &in_steps));
            println!("{mean} µs, {deviation} µs: {apart:.3} apart, {of_steps:.3} in steps");
            assert!(apart < 0.08, "{apart}");
            // The test would see steps of 500 µs.
            assert!(of_steps > 2.0 * apart, "{of_steps}");
        }
    }

    #[test]
    fn a_wait_that_is_dropped_leaves_nothing_behind() {
        let queue = queue();
        let due = Instant::now() + AN_HOUR;
        let wakes = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let entries: Vec<_> = (0..100).map(|_| begun(&queue, due, &waker)).collect();
        drop(entries);
        assert_eq!(queue.entries.lock().waiting.len(), 0);
        drop(waker);
        assert_eq!(Arc::strong_count(&wakes), 1);
    }

    #[test]
    fn a_wait_is_not_left_to_a_runtime_that_is_gone() {
        for _ in 0..3 {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let short = async {
                let now = Instant::now();
                wait_until(now + Duration::from_micros(300), NO_SLACK, now).await;
            };
            runtime.block_on(within_a_minute(short));
            let queue = runtime.block_on(async { TimerQueue::of_thread().unwrap() });
            drop(runtime);
            assert!(queue.entries.lock().is_closed);
        }
    }
}
