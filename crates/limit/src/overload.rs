//! How much is shed while a thread that serves requests has more to do than its CPU bears, told from
//! how late it is, as in CoDel ([RFC 8289](https://www.rfc-editor.org/rfc/rfc8289)): what counts is
//! the least delay of an interval, which a burst leaves small and a standing queue does not. See
//! `docs/decisions/0082-own-overload.md`.

use std::mem;

use crate::Priority;
use crate::time::{Nanos, Timestamp};

/// How long delays are watched before the level changes.
const INTERVAL: Nanos = millis(100);

/// Delays that an interval needs: a single pause of the machine is no overload.
const MIN_DELAYS: u32 = 2;

/// Steps from nothing of a priority to all of it.
const STEPS: u8 = 10;

/// All of the three priorities that are ever shed.
const MAX_LEVEL: u8 = 3 * STEPS;

/// Upper bound on the steps up of an interval.
const MAX_RISE: u64 = 4;

/// How long a client's luck holds: for a page with all that belongs to it, and no longer than a
/// client that is shed is told to wait at most.
const LUCK: Nanos = Nanos::from_secs(10);

/// How much is shed: a share of one priority, and all of those below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShedLevel(u8);

const fn millis(millis: u64) -> Nanos {
    Nanos::new(millis * 1_000_000)
}

impl ShedLevel {
    /// Nothing is shed.
    pub const NONE: Self = Self(0);

    /// The highest priority of which some is shed.
    pub fn highest(self) -> Option<Priority> {
        let mut highest_first = Priority::ALL.into_iter().rev();
        highest_first.find(|priority| self.steps_of(*priority) > 0)
    }

    /// Whether the request of a client, by its number, is shed at this time. Critical ones never are.
    pub fn sheds(self, priority: Priority, client: u64, now: Timestamp) -> bool {
        let steps = u64::from(self.steps_of(priority));
        steps > 0 && luck(client, now) % u64::from(STEPS) < steps
    }

    fn steps_of(self, priority: Priority) -> u8 {
        let below = STEPS.saturating_mul(priority as u8);
        self.0.saturating_sub(below).min(STEPS)
    }
}

/// A number that is the same for all requests of a client for a while. SplitMix64's finalizer mixes
/// the number of that while into all bits.
fn luck(client: u64, now: Timestamp) -> u64 {
    let mut mixed = client.wrapping_add(now.as_nanos() / LUCK.get());
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Finds how much a thread has to shed.
#[derive(Clone, Debug)]
pub struct OverloadControl {
    max_delay: Nanos,
    level: ShedLevel,
    /// When the interval began.
    since: Timestamp,
    delays: u32,
    /// The least delay of this interval, and that of the last one.
    least: Nanos,
    before: Nanos,
}

impl OverloadControl {
    /// One that sheds nothing yet. A thread is overloaded while it is later than `max_delay`.
    pub fn new(max_delay: Nanos, now: Timestamp) -> Self {
        Self {
            max_delay,
            level: ShedLevel::NONE,
            since: now,
            delays: 0,
            least: Nanos::NEVER,
            before: Nanos::ZERO,
        }
    }

    /// How much is to be shed now.
    pub fn level(&self) -> ShedLevel {
        self.level
    }

    /// Notes how late the thread is. At the end of an interval the level changes, and this returns the
    /// interval's least delay.
    ///
    /// The level rises by as many steps as the delay is times the bound, unless the delay falls
    /// already, and falls by one while the delay is half the bound or less.
    pub fn observe(&mut self, delay: Nanos, now: Timestamp) -> Option<Nanos> {
        self.least = self.least.min(delay);
        self.delays += 1;
        if self.delays < MIN_DELAYS || now.since(self.since) < INTERVAL {
            return None;
        }
        self.since = now;
        self.delays = 0;
        let least = mem::replace(&mut self.least, Nanos::NEVER);
        let before = mem::replace(&mut self.before, least);
        let level = self.level.0;
        if least > self.max_delay && least >= before {
            let times = least.get() / self.max_delay.get().max(1);
            let rise = times.clamp(1, MAX_RISE) as u8;
            self.level.0 = level.saturating_add(rise).min(MAX_LEVEL);
        } else if least.get() <= self.max_delay.get() / 2 {
            self.level.0 = level.saturating_sub(1);
        }
        Some(least)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MAX_DELAY: Nanos = millis(50);

    /// A control that was told these delays, one each 10 ms after the other.
    struct Told {
        control: OverloadControl,
        now: Timestamp,
    }

    impl Told {
        fn new() -> Self {
            let now = Timestamp::from_nanos(0);
            Self {
                control: OverloadControl::new(MAX_DELAY, now),
                now,
            }
        }

        fn tell(&mut self, delay: u64) -> ShedLevel {
            let delay = millis(delay);
            self.now = self.now + millis(10) + delay;
            self.control.observe(delay, self.now);
            self.control.level()
        }

        /// Tells the same delay until so many intervals are over.
        fn intervals(&mut self, intervals: usize, delay: u64) -> ShedLevel {
            for _ in 0..intervals {
                let began = self.control.since;
                while self.control.since == began {
                    self.tell(delay);
                }
            }
            self.control.level()
        }
    }

    fn all_shed(level: ShedLevel, priority: Priority) -> bool {
        (0..100).all(|client| level.sheds(priority, client, Timestamp::from_nanos(0)))
    }

    proptest! {
        #[test]
        fn nothing_is_shed_while_no_delay_is_above_the_bound(delays in vec(0..=50_u64, 0..500)) {
            let mut told = Told::new();
            for delay in delays {
                prop_assert_eq!(told.tell(delay), ShedLevel::NONE);
            }
        }

        #[test]
        fn a_burst_that_is_over_within_each_interval_sheds_nothing(delays in vec(0..90_u64, 0..200)) {
            let mut told = Told::new();
            for delay in delays {
                told.tell(delay);
                prop_assert_eq!(told.tell(0), ShedLevel::NONE);
            }
        }

        #[test]
        fn a_lower_priority_is_shed_as_a_whole_before_a_higher_one_is_touched(
            delays in vec(0..2000_u64, 0..300),
            client: u64,
            at: u64,
        ) {
            let (mut told, at) = (Told::new(), Timestamp::from_nanos(at));
            for delay in delays {
                let level = told.tell(delay);
                prop_assert!(!level.sheds(Priority::Critical, client, at));
                for (lower, higher) in [
                    (Priority::Low, Priority::Normal),
                    (Priority::Normal, Priority::High),
                ] {
                    let touched = level.sheds(higher, client, at);
                    prop_assert!(!touched || all_shed(level, lower), "{level:?}");
                }
            }
        }

        #[test]
        fn whatever_was_shed_all_comes_back_within_bounded_time(
            delays in vec(0..5000_u64, 0..300),
            calm in 0..=25_u64,
        ) {
            let mut told = Told::new();
            for delay in delays {
                told.tell(delay);
            }
            // The interval that has begun may count for the overload.
            prop_assert_eq!(told.intervals(usize::from(MAX_LEVEL) + 1, calm), ShedLevel::NONE);
        }

        #[test]
        fn a_client_is_not_shed_again_once_more_is_let_in(client: u64, at: u64, level in 0..MAX_LEVEL) {
            let at = Timestamp::from_nanos(at);
            for priority in Priority::ALL {
                let (less, more) = (ShedLevel(level), ShedLevel(level + 1));
                prop_assert!(!less.sheds(priority, client, at) || more.sheds(priority, client, at));
            }
        }
    }

    #[test]
    fn an_overload_that_stays_sheds_all_but_the_critical() {
        let mut told = Told::new();
        assert_eq!(told.intervals(1, 60).highest(), Some(Priority::Low));
        assert_eq!(told.intervals(10, 60).highest(), Some(Priority::Normal));
        let level = told.intervals(20, 60);
        assert_eq!(level, ShedLevel(MAX_LEVEL));
        assert_eq!(level.highest(), Some(Priority::High));
        for priority in [Priority::Low, Priority::Normal, Priority::High] {
            assert!(all_shed(level, priority), "{priority:?}");
        }
    }

    /// Half a minute of a queue that gets `load` times what its server can do, half of it normal and
    /// half low; a shed request costs `cost` of a served one. Returns what was served of each, as a
    /// share of what the server can do, and the delay that was exceeded for a tenth of the time.
    fn served(load: f64, cost: f64) -> (f64, f64, f64) {
        let mut control = OverloadControl::new(MAX_DELAY, Timestamp::from_nanos(0));
        let (mut queue, mut normal, mut low) = (0.0_f64, 0.0, 0.0);
        let mut delays = Vec::new();
        for tick in 1..=3000 {
            let shed = |priority| f64::from(control.level().steps_of(priority)) / f64::from(STEPS);
            let (shed_normal, shed_low) = (shed(Priority::Normal), shed(Priority::Low));
            normal += load / 2.0 * (1.0 - shed_normal);
            low += load / 2.0 * (1.0 - shed_low);
            let saved = (shed_normal + shed_low) / 2.0 * (1.0 - cost);
            queue = (queue + (load * (1.0 - saved) - 1.0) * 0.01).max(0.0);
            delays.push(queue);
            let delay = Nanos::new((queue * 1e9) as u64);
            control.observe(delay, Timestamp::from_nanos(millis(10).get() * tick));
        }
        delays.sort_by(f64::total_cmp);
        (normal / 3000.0, low / 3000.0, delays[2700])
    }

    #[test]
    fn a_flood_leaves_a_server_neither_slow_nor_idle() {
        for (load, cost) in [
            (1.1, 0.1),
            (1.1, 0.3),
            (1.3, 0.1),
            (1.3, 0.3),
            (2.5, 0.1),
            (2.5, 0.3),
        ] {
            let possible = (1.0 - load * cost) / (1.0 - cost);
            let (normal, low, delay) = served(load, cost);
            let share = (normal + low) / possible;
            assert!(share > 0.85, "{load} {cost}: {share}");
            assert!(delay < 0.2, "{load} {cost}: {delay}");
        }
        assert!(served(0.9, 0.1).1 > 0.44);
    }

    #[test]
    fn no_more_is_shed_while_the_delay_falls_already() {
        let mut told = Told::new();
        let level = told.intervals(3, 400);
        assert_eq!(level, ShedLevel(12));
        for delay in [300, 200, 100, 60] {
            assert_eq!(told.intervals(1, delay), level);
        }
        assert_eq!(told.intervals(1, 30), level);
    }

    #[test]
    fn a_single_pause_of_the_machine_sheds_nothing() {
        let mut told = Told::new();
        assert_eq!(told.tell(3000), ShedLevel::NONE);
        assert_eq!(told.tell(1), ShedLevel::NONE);
    }

    #[test]
    fn a_client_is_shed_for_no_longer_than_its_luck_holds() {
        let level = ShedLevel(STEPS / 2);
        let unlucky = |seconds: u64, client| {
            let at = Timestamp::from_nanos(Nanos::from_secs(seconds).get());
            level.sheds(Priority::Low, client, at)
        };
        let clients = 0..10_000;
        let shed: Vec<u64> = clients.filter(|client| unlucky(0, *client)).collect();
        assert!((4500..5500).contains(&shed.len()), "{}", shed.len());
        assert!(shed.iter().all(|client| unlucky(9, *client)));
        let again = shed.iter().filter(|client| unlucky(10, **client)).count();
        assert!((2000..3000).contains(&again), "{again}");
    }
}
