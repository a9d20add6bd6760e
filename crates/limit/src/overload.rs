//! How much is shed while a thread that serves requests has more to do than its CPU can handle,
//! told from how late it is, as in CoDel ([RFC 8289](https://www.rfc-editor.org/rfc/rfc8289)): what
//! counts is the least delay of an interval, which a burst leaves small and a standing queue does
//! not. See `docs/decisions/0082-own-overload.md`.

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

/// Intervals at or below the bound, but above its half, for each step down.
const MILD: u32 = 10;

/// After how many intervals in which all was shed and the delay stayed nothing is shed for a
/// minute, and for how many intervals it is not tried again if the delay doubled then.
const MAX_IN_VAIN: u32 = 10;
const REST: u32 = 600;
const USEFUL: u32 = 300;

/// How long a client's draw holds: for a page with all that belongs to it.
const DRAW_PERIOD: Nanos = Nanos::from_secs(10);

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

    /// The percentage of the clients whose requests of this priority are shed.
    pub fn percent_of(self, priority: Priority) -> u8 {
        self.steps_of(priority).saturating_mul(100 / STEPS)
    }

    /// Whether the request of a client, by its number, is shed at this time. Critical ones never
    /// are.
    pub fn sheds(self, priority: Priority, client: u64, now: Timestamp) -> bool {
        let steps = u64::from(self.steps_of(priority));
        steps > 0 && draw(client, now) % u64::from(STEPS) < steps
    }

    /// When a client whose requests are shed may be let in although the level stays: it draws
    /// again. That differs from client to client by up to ten seconds, and is never at once.
    pub fn retry_in(client: u64, now: Timestamp) -> Nanos {
        Nanos::new(DRAW_PERIOD.get() - shifted(client, now) % DRAW_PERIOD.get())
    }

    fn steps_of(self, priority: Priority) -> u8 {
        let below = STEPS.saturating_mul(priority as u8);
        self.0.saturating_sub(below).min(STEPS)
    }
}

/// A number that is the same for all requests of a client for a while, which ends at another time
/// for each client. The last steps are SplitMix64's finalizer.
fn draw(client: u64, now: Timestamp) -> u64 {
    let period = shifted(client, now) / DRAW_PERIOD.get();
    let mut mixed = client ^ period.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The time, shifted for each client: it draws again at each multiple of [`DRAW_PERIOD`].
fn shifted(client: u64, now: Timestamp) -> u64 {
    now.as_nanos().saturating_add(client % DRAW_PERIOD.get())
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
    /// Intervals in a row below the bound, but above its half.
    mild: u32,
    /// While all is shed: the delay when that began, and for how many intervals it has lasted.
    all_shed: Option<(Nanos, u32)>,
    /// The delay when all was shed in vain, and for how many intervals nothing is shed.
    rest: Option<(Nanos, u32)>,
    /// For how many intervals shedding counts as useful, because the delay grew without it.
    useful: u32,
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
            mild: 0,
            all_shed: None,
            rest: None,
            useful: 0,
        }
    }

    /// How much is to be shed now.
    pub fn level(&self) -> ShedLevel {
        self.level
    }

    /// Goes on with another bound.
    pub fn set_max_delay(&mut self, max_delay: Nanos) {
        self.max_delay = max_delay;
    }

    /// Notes how late the thread is. At the end of an interval the level changes, and this returns
    /// the interval's least delay.
    pub fn observe(&mut self, delay: Nanos, now: Timestamp) -> Option<Nanos> {
        self.least = self.least.min(delay);
        self.delays += 1;
        if self.delays < MIN_DELAYS || now.since(self.since) < INTERVAL {
            return None;
        }
        self.since = now;
        self.delays = 0;
        let least = mem::replace(&mut self.least, Nanos::NEVER);
        match self.rest {
            Some(rest) => self.go_on_resting(rest, least),
            None => self.change_level(least),
        }
        self.before = least;
        Some(least)
    }

    /// The level rises by as many steps as the delay is times the bound, unless the delay falls by
    /// a tenth each interval already. It falls by one while the delay is half the bound or less,
    /// and each second while it is no more than the bound.
    fn change_level(&mut self, least: Nanos) {
        let (before, bound) = (self.before, self.max_delay.get());
        let level = self.level.0;
        self.useful = self.useful.saturating_sub(1);
        self.mild = match (bound / 2 + 1..=bound).contains(&least.get()) {
            true => self.mild + 1,
            false => 0,
        };
        if least.get() > bound {
            let rise = (least.get() / bound.max(1)).clamp(1, MAX_RISE) as u8;
            if !has_fallen(before, least) {
                self.level.0 = level.saturating_add(rise).min(MAX_LEVEL);
            }
            self.all_shed = match self.all_shed {
                Some((first, MAX_IN_VAIN)) if !has_fallen(first, least) && self.useful == 0 => {
                    self.level = ShedLevel::NONE;
                    self.rest = Some((least, REST));
                    None
                }
                Some((first, intervals)) if intervals < MAX_IN_VAIN => Some((first, intervals + 1)),
                _ => (level == MAX_LEVEL).then_some((least, 1)),
            };
        } else {
            self.all_shed = None;
            let falls = self.mild == 0 || self.mild.is_multiple_of(MILD);
            self.level.0 = level.saturating_sub(u8::from(falls));
        }
    }

    /// All was shed, and the delay stayed: what takes the time is no request, or one that is never
    /// shed. If the delay doubles now, shedding helped after all.
    fn go_on_resting(&mut self, (in_vain, left): (Nanos, u32), least: Nanos) {
        if least.get() / 2 > in_vain.get() {
            self.rest = None;
            self.useful = USEFUL;
            self.level.0 = MAX_LEVEL;
        } else if left == 0 || least.get() <= self.max_delay.get() / 2 {
            self.rest = None;
        } else {
            self.rest = Some((in_vain, left - 1));
        }
    }
}

/// Whether a delay is a tenth less than it was.
fn has_fallen(before: Nanos, now: Nanos) -> bool {
    now.get() <= before.get() - before.get() / 10
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

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
        fn a_delay_that_is_no_longer_above_the_bound_ends_all_shedding(
            delays in vec(0..5000_u64, 0..100),
            mild in 0..=50_u64,
        ) {
            let mut told = Told::new();
            for delay in delays {
                told.tell(delay);
            }
            let intervals = usize::from(MAX_LEVEL) * 10 + 11;
            prop_assert_eq!(told.intervals(intervals, mild), ShedLevel::NONE);
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

    /// Half a minute of a `queue` of so many seconds that gets, give or take a fifth, `load` times
    /// what its server can do, half of it normal and half low; a shed request costs `cost` of a
    /// served one. Returns what was served of each, as a share of what the server can do, and the
    /// delay that was exceeded for a tenth of the time.
    fn served(load: f64, cost: f64, queue: f64) -> (f64, f64, f64) {
        let mut control = OverloadControl::new(MAX_DELAY, Timestamp::from_nanos(0));
        let (mut queue, mut normal, mut low) = (queue, 0.0, 0.0);
        let mut delays = Vec::new();
        for tick in 1..=3000 {
            let shed = |priority| f64::from(control.level().steps_of(priority)) / f64::from(STEPS);
            let (shed_normal, shed_low) = (shed(Priority::Normal), shed(Priority::Low));
            let load = load
                * (0.8
                    + 0.4
                        * (draw(7, Timestamp::from_nanos(DRAW_PERIOD.get() * tick)) % 100) as f64
                        / 99.0);
            normal += load / 2.0 * (1.0 - shed_normal);
            low += load / 2.0 * (1.0 - shed_low);
            let saved = (shed_normal + shed_low) / 2.0 * (1.0 - cost);
            queue = f64::max(0.0, queue + (load * (1.0 - saved) - 1.0) * 0.01);
            delays.push(queue);
            let delay = Duration::from_secs_f64(queue).into();
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
            for queue in [0.0, 2.0] {
                let (normal, low, delay) = served(load, cost, queue);
                let share = (normal + low) / possible;
                assert!(share > 0.65, "{load} {cost} {queue}: {share}");
                assert!(queue > 0.0 || delay < 0.2, "{load} {cost} {queue}: {delay}");
            }
        }
        assert!(served(0.9, 0.1, 0.0).1 > 0.44);
    }

    #[test]
    fn no_more_is_shed_while_the_delay_falls_already() {
        let mut told = Told::new();
        let level = told.intervals(3, 400);
        assert_eq!(level, ShedLevel(12));
        for delay in [300, 200, 100, 60, 51] {
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
    fn a_client_is_shed_for_no_longer_than_its_draw_holds() {
        let level = ShedLevel(STEPS / 2);
        let is_shed = |seconds: u64, client: u64| {
            let at = Timestamp::from_nanos(Nanos::from_secs(seconds).get());
            level.sheds(
                Priority::Low,
                client.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                at,
            )
        };
        let shed: Vec<u64> = (0..10_000).filter(|client| is_shed(100, *client)).collect();
        assert!((4500..5500).contains(&shed.len()), "{}", shed.len());
        let share = |seconds| {
            let again = shed.iter().filter(|client| is_shed(seconds, **client));
            again.count() * 100 / shed.len()
        };
        // Half of them have drawn again after half of the time, and all after the whole.
        assert!((70..80).contains(&share(105)), "{}", share(105));
        assert!((45..55).contains(&share(110)), "{}", share(110));
    }

    #[test]
    fn clients_that_come_back_as_told_never_come_all_at_once_or_with_the_draw_they_had() {
        let now = Timestamp::from_nanos(Nanos::from_secs(100).get() + 1);
        let mut returning = HashMap::new();
        for client in (0..10_000_u64).map(|client| client.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let retry_in = ShedLevel::retry_in(client, now);
            assert!(
                (1..=DRAW_PERIOD.get()).contains(&retry_in.get()),
                "{retry_in:?}"
            );
            *returning.entry(retry_in.ceil_secs()).or_insert(0) += 1;
            let last = Timestamp::from_nanos(now.as_nanos() + retry_in.get() - 1);
            assert_eq!(draw(client, last), draw(client, now));
            assert_ne!(draw(client, now + retry_in), draw(client, now));
        }
        for second in 1..=10 {
            assert!((850..1150).contains(&returning[&second]), "{returning:?}");
        }
    }

    #[test]
    fn a_worker_that_shedding_does_not_help_sheds_for_no_more_than_seconds_a_minute() {
        let mut told = Told::new();
        let shedding = (0..1200).filter(|_| told.intervals(1, 60) != ShedLevel::NONE);
        // Told::intervals takes 140 ms for each: two in a row are the least.
        assert!(shedding.count() < 120);
    }

    #[test]
    fn a_worker_that_is_late_although_it_sheds_all_goes_on_if_it_would_be_later_without() {
        let mut told = Told::new();
        let mut delay = 60;
        let mut shedding = 0;
        for _ in 0..1200 {
            let level = told.intervals(1, delay);
            shedding += usize::from(level == ShedLevel(MAX_LEVEL));
            delay = match level.0 {
                MAX_LEVEL => (delay * 9 / 10).max(80),
                level => delay + 100 - u64::from(level) * 3,
            };
        }
        assert!(shedding > 1100, "{shedding}");
    }
}
