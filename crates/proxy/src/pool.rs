//! A pool of idle things, such as connections that wait for their next request. The one that waited
//! the shortest is used first, so that surplus ones grow old and are closed.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A bounded stack of idle things that are thrown away when they have been idle for too long.
pub(super) struct Pool<T> {
    idle: Mutex<Idle<T>>,
    max: usize,
    timeout: Duration,
}

struct Idle<T> {
    /// With the time from which on each is too old: the one that is idle the longest is in front.
    entries: VecDeque<(Instant, T)>,
    swept: bool,
}

impl<T> Pool<T> {
    pub(super) fn new(max: usize, timeout: Duration) -> Self {
        let entries = VecDeque::new();
        Self {
            idle: Mutex::new(Idle {
                entries,
                swept: false,
            }),
            max,
            timeout,
        }
    }

    /// Keeps `item`, if need be in the place of the one that was idle the longest, and not longer
    /// than `at_most`. Returns when the caller must [`sweep`](Self::sweep), unless a sweep is due
    /// already.
    #[must_use]
    pub(super) fn put(&self, item: T, now: Instant, at_most: Option<Duration>) -> Option<Instant> {
        if self.max == 0 {
            return None;
        }
        let timeout = at_most.map_or(self.timeout, |at_most| at_most.min(self.timeout));
        let expires = now + timeout;
        let mut idle = self.idle.lock();
        if idle.entries.len() >= self.max {
            idle.entries.pop_front();
        }
        idle.entries.push_back((expires, item));
        (!mem::replace(&mut idle.swept, true)).then_some(expires)
    }

    /// Takes the item that was idle the shortest and is usable; those that are not are dropped.
    pub(super) fn take(&self, now: Instant, usable: impl Fn(&mut T) -> bool) -> Option<T> {
        let mut idle = self.idle.lock();
        while let Some((expires, mut item)) = idle.entries.pop_back() {
            if expires > now && usable(&mut item) {
                return Some(item);
            }
        }
        None
    }

    /// Drops the item that was idle the longest.
    fn drop_oldest(&self) -> bool {
        let oldest = self.idle.lock().entries.pop_front();
        oldest.is_some()
    }

    /// Drops what is too old or not usable any more, and returns when to sweep next: `None` when
    /// nothing is left, which makes the next [`put`](Self::put) ask for a sweep again.
    pub(super) fn sweep(&self, now: Instant, usable: impl Fn(&mut T) -> bool) -> Option<Instant> {
        let mut idle = self.idle.lock();
        idle.entries
            .retain_mut(|(expires, item)| *expires > now && usable(item));
        let next = idle.entries.iter().map(|(expires, _)| *expires).min();
        idle.swept = next.is_some();
        next
    }
}

/// Something idle of which a part can be thrown away.
pub(super) trait Evict: Send + Sync {
    /// Throws one away, if there is one.
    fn evict(&self) -> bool;
}

impl<T: Send> Evict for Pool<T> {
    fn evict(&self) -> bool {
        self.drop_oldest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn any(_: &mut u32) -> bool {
        true
    }

    #[test]
    fn the_last_one_in_is_the_first_one_out() {
        let (pool, now) = (Pool::new(3, TIMEOUT), Instant::now());
        assert_eq!(pool.put(1, now, None), Some(now + TIMEOUT));
        assert_eq!(pool.put(2, now, None), None, "one sweeper is enough");
        assert_eq!(pool.take(now, any), Some(2));
        assert_eq!(pool.take(now, any), Some(1));
        assert_eq!(pool.take(now, any), None);
    }

    #[test]
    fn a_full_pool_drops_the_one_that_was_idle_the_longest() {
        let (pool, now) = (Pool::new(2, TIMEOUT), Instant::now());
        for item in 1..=3 {
            let _ = pool.put(item, now, None);
        }
        assert_eq!(pool.take(now, any), Some(3));
        assert_eq!(pool.take(now, any), Some(2));
        assert_eq!(pool.take(now, any), None);
    }

    #[test]
    fn a_pool_of_none_keeps_none() {
        let (pool, now) = (Pool::new(0, TIMEOUT), Instant::now());
        assert_eq!(pool.put(1, now, None), None);
        assert_eq!(pool.take(now, any), None);
    }

    #[test]
    fn what_is_too_old_or_unusable_is_not_given_out() {
        let (pool, now) = (Pool::new(9, TIMEOUT), Instant::now());
        let _ = pool.put(1, now, None);
        let _ = pool.put(2, now + TIMEOUT / 2, None);
        let _ = pool.put(3, now + TIMEOUT / 2, None);
        assert_eq!(pool.take(now + TIMEOUT, |item| *item != 3), Some(2));
        assert_eq!(pool.take(now + TIMEOUT, any), None);
    }

    #[test]
    fn sweeping_takes_what_is_unusable_too() {
        let (pool, now) = (Pool::new(9, TIMEOUT), Instant::now());
        let _ = pool.put(1, now, None);
        let _ = pool.put(2, now, None);
        assert_eq!(pool.sweep(now, |item| *item != 1), Some(now + TIMEOUT));
        assert_eq!(pool.sweep(now, |item| *item != 2), None);
    }

    #[test]
    fn sweeping_goes_on_until_nothing_is_left() {
        let (pool, now) = (Pool::new(9, TIMEOUT), Instant::now());
        let later = now + TIMEOUT / 2;
        let _ = pool.put(1, now, None);
        let _ = pool.put(2, later, None);
        assert_eq!(pool.sweep(now + TIMEOUT, any), Some(later + TIMEOUT));
        assert_eq!(pool.sweep(later + TIMEOUT, any), None);
        let put = pool.put(3, later + TIMEOUT, None);
        assert_eq!(
            put,
            Some(later + TIMEOUT * 2),
            "sweeping is asked for again"
        );
    }

    #[test]
    fn what_may_not_be_idle_for_as_long_as_others_is_not_given_out_after_its_own_time() {
        let (pool, now) = (Pool::new(9, TIMEOUT), Instant::now());
        assert_eq!(pool.put(1, now, None), Some(now + TIMEOUT));
        for (item, at_most) in [(2, TIMEOUT / 4), (3, TIMEOUT * 2)] {
            assert_eq!(pool.put(item, now, Some(at_most)), None);
        }
        assert_eq!(pool.sweep(now, any), Some(now + TIMEOUT / 4));
        assert_eq!(pool.take(now + TIMEOUT / 4, any), Some(3));
        assert_eq!(pool.take(now + TIMEOUT / 4, any), Some(1));
    }
}
