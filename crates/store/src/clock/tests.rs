//! In readings of a clock that only the test moves.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use weir_limit::time::{ManualClock, Nanos};

use super::*;

const MILLI: i64 = SECOND / 1_000;
const MICRO: i64 = MILLI / 1_000;

/// The store's time at the reading 0.
const STORE: i64 = 1_750_000_000 * SECOND;

/// A gateway whose connections ask a store for its time.
struct World {
    sync: ClockSync,
    reading: i64,
    /// What the store's clock is set forward by.
    store: i64,
    /// How long the way to the store and back takes.
    there: i64,
    back: i64,
}

impl World {
    fn new() -> Self {
        Self {
            sync: ClockSync::default(),
            reading: 0,
            store: STORE,
            there: 50 * MICRO,
            back: 50 * MICRO,
        }
    }

    /// One that has asked before.
    fn settled() -> Self {
        let mut world = Self::new();
        assert_eq!(world.ask(), None);
        assert_eq!(world.error(), 0);
        world
    }

    fn ask(&mut self) -> Option<i64> {
        let took = self.there + self.back;
        let sample = Sample {
            at: self.reading + took / 2,
            offset: self.store + self.there - took / 2,
            uncertainty: took / 2,
        };
        self.reading += took;
        self.sync.measured(sample, self.reading)
    }

    /// Asks once a second, and returns how often the clock was set.
    fn seconds(&mut self, seconds: usize) -> usize {
        let asked = (0..seconds).filter_map(|_| {
            self.reading += SECOND;
            self.ask()
        });
        asked.count()
    }

    fn now(&self) -> i64 {
        self.reading + self.sync.correction.unwrap().at(self.reading)
    }

    /// By how much the clock is ahead of the store's.
    fn error(&self) -> i64 {
        self.now() - (self.reading + self.store)
    }
}

#[test]
fn the_first_measurement_sets_the_clock_whatever_the_local_time_is() {
    let local = ManualClock::new(Timestamp::from_nanos(7));
    let clock = StoreClock::new(Arc::new(local.clone()));
    assert_eq!(clock.now(), Timestamp::from_nanos(7));
    local.advance(Duration::from_secs(1));
    assert_eq!(clock.now(), Timestamp::from_nanos(7 + 1_000_000_000));

    let store = Timestamp::from_nanos(1 << 60);
    assert_eq!(clock.measured(Instant::now(), Duration::ZERO, store), None);
    let first = clock.now();
    assert!(first >= store && first.since(store) < Nanos::from_secs(60));
    assert!(clock.now() >= first);
    // Others may not have noticed yet that the store's clock was set.
    assert!(!clock.is_settled());
}

#[test]
fn an_offset_is_off_by_half_of_what_the_question_took_at_most_and_better_ones_replace_it() {
    let mut world = World::new();
    (world.there, world.back) = (0, 400 * MILLI);
    world.ask();
    assert_eq!(world.error(), -200 * MILLI);
    (world.there, world.back) = (50 * MICRO, 50 * MICRO);
    world.seconds(3);
    assert_eq!(world.error(), 0);
    // Lopsided and slow answers are no better than what is known, and change nothing.
    (world.there, world.back) = (0, 10 * MILLI);
    world.seconds(SAMPLES - 2);
    assert_eq!(world.error(), 0);
    // Until nothing better is remembered.
    world.seconds(3);
    assert_eq!(world.error(), -5 * MILLI);
}

#[test]
fn a_small_jump_is_slewed_at_a_tenth_and_the_clock_never_steps_back() {
    for jump in [
        -2 * SECOND,
        -SECOND,
        -5 * MILLI,
        5 * MILLI,
        SECOND,
        2 * SECOND,
    ] {
        let mut world = World::settled();
        let began = world.sync.stepped_at;
        world.store += jump;
        world.reading += SECOND;
        assert_eq!(world.ask(), None);
        assert!(
            (world.error() + jump).abs() <= MICRO,
            "{jump} {}",
            world.error()
        );
        let (mut before, mut left) = (world.now(), world.error().abs());
        let step = 100 * MILLI;
        while left > 0 {
            world.reading += step;
            let now = world.now();
            let passed = now - before;
            assert!(
                passed >= step - step / SLEW && passed <= step + step / SLEW,
                "{jump}"
            );
            let slewed = left - world.error().abs();
            assert!(slewed > 0 && slewed <= step / SLEW, "{jump} {slewed}");
            (before, left) = (now, world.error().abs());
        }
        assert!(world.reading < 22 * SECOND + SLEW * jump.abs());
        assert_eq!(world.sync.stepped_at, began);
        assert_eq!(world.seconds(3), 0);
        assert_eq!(world.error(), 0);
    }
}

#[test]
fn a_greater_jump_is_followed_at_once_when_it_has_lasted_for_a_second() {
    for jump in [-3600 * SECOND, -3 * SECOND, 3 * SECOND, 3600 * SECOND] {
        let mut world = World::settled();
        world.store += jump;
        assert_eq!(world.seconds(1), 0);
        assert_eq!(world.error(), -jump);
        // Several connections ask, and it has not lasted yet.
        world.reading += SECOND / 2;
        assert_eq!(world.ask(), None);
        assert_eq!(world.error(), -jump);
        world.reading += SECOND / 2;
        assert_eq!(world.ask(), Some(jump));
        assert_eq!(world.error(), 0);
        assert_eq!(world.sync.stepped_at, Some(world.reading));
    }
}

/// While a store fails over, some connections may still lead to the old server.
#[test]
fn while_connections_lead_to_two_clocks_the_clock_stays() {
    let mut world = World::settled();
    for second in 0..10 {
        world.store = STORE + [0, 3600 * SECOND][second % 2];
        assert_eq!(world.seconds(1), 0);
    }
    world.store = STORE;
    assert_eq!(world.error(), 0);
    // One that wanders has not lasted either.
    for hours in 2..10 {
        world.store = STORE + hours * 3600 * SECOND;
        assert_eq!(world.seconds(1), 0);
    }
}

#[test]
fn without_answers_the_clock_goes_on_by_itself_and_slews_what_it_has_drifted() {
    let mut world = World::settled();
    // Six hours at 20 ppm.
    world.reading += 6 * 3600 * SECOND;
    let before = world.now();
    world.store += 432 * MILLI;
    assert_eq!(world.seconds(1), 0);
    assert!(world.now() > before && (world.error() + 432 * MILLI).abs() <= MICRO);
    assert_eq!(world.seconds(5), 0);
    assert_eq!(world.error(), 0);
}

/// Readings stand still while a machine sleeps.
#[test]
fn a_machine_that_has_slept_is_in_the_present_again_after_two_seconds() {
    let mut world = World::settled();
    world.store += 600 * SECOND;
    assert_eq!(world.seconds(2), 1);
    assert_eq!(world.error(), 0);
}

#[test]
fn an_answer_that_took_too_long_does_not_set_the_clock() {
    let mut world = World::settled();
    (world.there, world.back) = (0, 20 * SECOND);
    assert_eq!(world.seconds(3), 0);
    assert_eq!(world.error(), 0);
}

/// Whatever the network does, two gateways never differ by more than their answers explain.
#[test]
fn gateways_agree_within_what_the_network_explains() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut gateways = [-3600 * SECOND, 0, 3600 * SECOND].map(|boot| {
        let mut world = World::new();
        world.store -= boot;
        world
    });
    for second in 0..1000 {
        if second == 500 {
            gateways.iter_mut().for_each(|world| world.store += SECOND);
        }
        for world in &mut gateways {
            world.there = random.random_range(20 * MICRO..2 * MILLI);
            world.back = random.random_range(20 * MICRO..2 * MILLI);
            let took = world.there + world.back;
            world.reading += SECOND - took;
            assert_eq!(world.ask(), None);
        }
        let errors = gateways.each_ref().map(World::error);
        let spread = errors.iter().max().unwrap() - errors.iter().min().unwrap();
        assert!(spread <= 4 * MILLI + JITTER, "{second}: {errors:?}");
        if !(500..515).contains(&second) {
            assert!(
                errors.iter().all(|error| error.abs() <= 3 * MILLI),
                "{second}: {errors:?}"
            );
        }
    }
}

#[test]
fn a_store_that_does_not_tell_its_time_leaves_the_local_time_to_go_by() {
    let local = ManualClock::new(Timestamp::from_nanos(1 << 60));
    let clock = StoreClock::new(Arc::new(local.clone()));
    assert_eq!(clock.follow_local(), None);
    assert!(clock.now() >= local.now());
    local.advance(Duration::from_secs(1));
    assert_eq!(clock.follow_local(), None);
    assert!(
        clock.slew() < 0.0 && clock.slew() >= -1.0,
        "{}",
        clock.slew()
    );
}

/// Gateways that agreed went by their own machines' clocks when Redis's user lost a right, and let
/// 10 of 8 pass.
#[test]
fn a_store_that_tells_its_time_no_more_leaves_the_last_offset_to_go_by() {
    let local = ManualClock::new(Timestamp::from_nanos(1 << 60));
    let clock = StoreClock::new(Arc::new(local.clone()));
    let store = local.now() + Nanos::from_secs(3600);
    clock.measured(Instant::now(), Duration::ZERO, store);
    for _ in 0..5 {
        assert_eq!(clock.follow_local(), None);
        local.advance(Duration::from_secs(1));
    }
    assert!(clock.now() >= store);
}

#[test]
fn a_clock_that_was_set_is_settled_when_all_others_had_the_time_to_notice() {
    let clock = StoreClock::new(Arc::new(SystemClock));
    let set = |stepped_at| clock.sync.lock().stepped_at = stepped_at;
    set(Some(clock.reading()));
    assert!(!clock.is_settled());
    set(Some(clock.reading() - SETTLED_AFTER));
    assert!(clock.is_settled());
    assert!(DecisionClock::new(ClockSource::Local).is_settled());
}

/// Both parts of a correction are of one and the same.
#[test]
fn a_correction_is_read_whole_while_others_are_written() {
    let shared = SharedCorrection::default();
    assert_eq!(shared.load(), None);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = || {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                if let Some(read) = shared.load() {
                    assert_eq!(read.offset, read.slewed_at);
                    assert!(read.offset >= last);
                    last = read.offset;
                }
            }
        };
        scope.spawn(reader);
        scope.spawn(reader);
        for number in 1..=100_000 {
            shared.store(Correction {
                offset: number,
                slewed_at: number,
            });
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(shared.load().unwrap().offset, 100_000);
}
