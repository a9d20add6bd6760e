//! The time of the event loop: one reading of the clock for each poll of a connection.
//!
//! The layers that a request passes each want to know the time: when it arrived, when the store was
//! called, when the upstream's timeout began. Less than microseconds pass between two of them, and
//! reading the clock costs as much as some of them. So the first reading within a poll is kept for
//! the others; a poll is over before its task waits for anything. Without a [`PollClock`], as in
//! the server of a library's user, each call reads the clock.
//!
//! Code that measures work within a poll must not use this: it would find that the work took no
//! time.

use std::cell::Cell;

use tokio::time::Instant;

thread_local! {
    static CACHE: Cell<CachedTime> = const { Cell::new(CachedTime::Disabled) };
    static POLLS: Cell<u64> = const { Cell::new(0) };
}

#[derive(Clone, Copy)]
enum CachedTime {
    /// No connection is being polled.
    Disabled,
    /// Nothing has asked for the time during this poll.
    Unread,
    Read(Instant),
}

/// Keeps the time that this thread reads until this is dropped. Hold it in no future: a poll is
/// over when its task waits. One within another is part of that.
#[must_use = "the clock is read anew when this is dropped"]
pub struct PollClock {
    is_outermost: bool,
}

impl PollClock {
    /// Begins a poll, or joins the one that has begun.
    pub fn begin() -> Self {
        let is_outermost = matches!(CACHE.get(), CachedTime::Disabled);
        if is_outermost {
            CACHE.set(CachedTime::Unread);
            POLLS.set(POLLS.get().wrapping_add(1));
        }
        Self { is_outermost }
    }
}

impl Drop for PollClock {
    fn drop(&mut self) {
        if self.is_outermost {
            CACHE.set(CachedTime::Disabled);
        }
    }
}

/// The number of the present poll, which no other poll on this thread has. Without a [`PollClock`]
/// it does not change.
pub fn poll_number() -> u64 {
    POLLS.get()
}

/// The present time, as it was when this poll first asked for it.
pub fn now() -> Instant {
    match CACHE.get() {
        CachedTime::Read(now) => now,
        CachedTime::Disabled => Instant::now(),
        CachedTime::Unread => {
            let now = Instant::now();
            CACHE.set(CachedTime::Read(now));
            now
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_poll_reads_the_clock_once() {
        let clock = PollClock::begin();
        let first = now();
        let within = PollClock::begin();
        // One within another must not end it.
        drop(within);
        advance(Duration::from_secs(1)).await;
        assert_eq!(now(), first);
        drop(clock);
        let next = PollClock::begin();
        assert_eq!(now() - first, Duration::from_secs(1));
        drop(next);
    }

    #[test]
    fn each_poll_has_a_number_of_its_own() {
        let numbers = [(); 2].map(|()| {
            let _clock = PollClock::begin();
            let number = poll_number();
            drop(PollClock::begin());
            assert_eq!(poll_number(), number, "one within another is part of it");
            number
        });
        assert_ne!(numbers[0], numbers[1]);
    }

    #[tokio::test(start_paused = true)]
    async fn outside_of_a_poll_each_reading_is_a_new_one() {
        let first = now();
        advance(Duration::from_secs(1)).await;
        assert_eq!(now() - first, Duration::from_secs(1));
    }
}
