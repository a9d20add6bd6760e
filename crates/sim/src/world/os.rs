//! The operating system's wall clock and randomness, as a simulation's thread sees them; and
//! runtimes whose randomness is always the same.
//!
//! The two functions below take the place of the C library's, so that whatever reads the time or
//! asks for random bytes gets those of the simulation: the product, the standard library's hash
//! maps and all crates. Other threads get the system's.

#![expect(
    unsafe_code,
    reason = "the C library's functions have no safe replacement"
)]

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_uint, c_void, clockid_t, size_t, ssize_t, timespec};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use super::idle;
use crate::random::Random;

const SECOND: i64 = 1_000_000_000;

thread_local! {
    static WALL: Cell<Option<Wall>> = const { Cell::new(None) };
    static RANDOM: Cell<Option<Random>> = const { Cell::new(None) };
}

/// A wall clock: what it shows at an instant of the runtime that reads it, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wall {
    pub(super) since: Instant,
    pub(super) shown: i64,
}

/// Draws this thread's randomness from here on from a seed.
pub(super) fn seed(random: Random) {
    RANDOM.set(Some(random));
}

/// What the wall clock shows to this thread from now on.
pub(super) fn set_wall(wall: Option<Wall>) {
    WALL.set(wall);
}

/// A builder that has built nothing. A runtime chooses at random among the branches of `select!`
/// and among those who wait for a `watch` channel. The seed of that comes from the standard
/// library's hash keys, and from how many seeds this process has made before: so there is one
/// builder, made before `main`, of whose copy each runtime is made.
///
/// Tokio has `Builder::rng_seed` for this, behind `--cfg tokio_unstable`. Cargo sets that for all
/// packages or for none, so the product would be compiled twice, and what is simulated would not be
/// what is shipped. `biased;` in the product's `select!`s is not enough: which of those who wait
/// for a `watch` channel wakes first is drawn in tokio.
static TEMPLATE: OnceLock<ManuallyDrop<Builder>> = OnceLock::new();

/// Whether the template was made before `main`. Made later, it would depend on what the process had
/// made by then, and a seed would replay as something else.
static IS_EARLY: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls what is in this section, without a need for arguments, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn make_template() {
        template();
        IS_EARLY.store(true, Ordering::Relaxed);
    }
    make_template
};

fn template() -> &'static Builder {
    TEMPLATE.get_or_init(|| {
        let before = RANDOM.replace(Some(Random::new(0, 0)));
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true);
        builder.on_thread_park(idle::reached);
        RANDOM.set(before);
        ManuallyDrop::new(builder)
    })
}

/// A runtime whose time stands still. Those of the same number draw the same randomness.
pub(super) fn runtime(number: u64) -> io::Result<Runtime> {
    if !IS_EARLY.load(Ordering::Relaxed) {
        return Err(io::Error::other(
            "the linker left out what runs before `main`",
        ));
    }
    // SAFETY: the parts of a builder are numbers, flags, an empty name, reference-counted callbacks
    // and a mutex that nobody holds: all may be moved, and none has to be the only one of its kind.
    // The template is not used but for copies, and neither it nor a copy is dropped, so no callback
    // is freed. A test asks to look again when the version of tokio changes.
    let mut builder = ManuallyDrop::new(unsafe { ptr::read(template()) });
    for _ in 0..number {
        builder.build()?;
    }
    builder.build()
}

impl Wall {
    fn now(self) -> i64 {
        let since = Instant::now().saturating_duration_since(self.since);
        let since = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        self.shown.saturating_add(since)
    }
}

// SAFETY: the signature is that of `clock_gettime(2)`.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let wall = WALL.try_with(Cell::get).ok().flatten();
    match wall.filter(|_| clock == libc::CLOCK_REALTIME) {
        Some(wall) => {
            let now = wall.now();
            let now = timespec {
                tv_sec: now.div_euclid(SECOND),
                tv_nsec: now.rem_euclid(SECOND),
            };
            // SAFETY: the caller passes a pointer to a `timespec`.
            unsafe { time.write(now) };
            0
        }
        // SAFETY: the arguments are those that the caller passes to the system.
        None => match unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } {
            0 => 0,
            _ => -1,
        },
    }
}

// SAFETY: the signature is that of `getrandom(2)`.
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    let random = RANDOM.try_with(Cell::take).ok().flatten();
    let Some(mut random) = random else {
        // SAFETY: the arguments are those that the caller passes to the system.
        let got = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
        return ssize_t::try_from(got).unwrap_or(-1);
    };
    for at in 0..length {
        let [byte, ..] = random.next().to_le_bytes();
        // SAFETY: the caller passes a pointer to `length` bytes.
        unsafe { buffer.cast::<u8>().add(at).write(byte) };
    }
    RANDOM.set(Some(random));
    ssize_t::try_from(length).unwrap_or(ssize_t::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::future::ready;
    use std::hash::{BuildHasher, RandomState};
    use std::thread;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn drawn(number: u64) -> (u64, u64, SystemTime) {
        let thread = thread::spawn(move || {
            seed(Random::new(number, 0));
            let since = Instant::now();
            set_wall(Some(Wall { since, shown: 0 }));
            let hash = RandomState::new().hash_one(1);
            (hash, rand::random(), SystemTime::now())
        });
        thread.join().unwrap()
    }

    #[test]
    fn hashes_and_random_numbers_of_a_thread_depend_on_its_seed_alone() {
        let (hash, random, _) = drawn(1);
        assert_eq!((hash, random), (drawn(1).0, drawn(1).1));
        let all: HashSet<_> = (1..9)
            .flat_map(|seed| [drawn(seed).0, drawn(seed).1])
            .collect();
        assert_eq!(all.len(), 16);
    }

    fn chosen(number: u64) -> Vec<bool> {
        let choices = async {
            let mut choices = Vec::new();
            for _ in 0..64 {
                choices.push(tokio::select! {
                    () = ready(()) => true,
                    () = ready(()) => false,
                });
            }
            choices
        };
        runtime(number).unwrap().block_on(choices)
    }

    #[test]
    fn what_a_runtime_chooses_depends_on_its_number_alone() {
        let first = chosen(1);
        drop(Builder::new_current_thread().build().unwrap());
        assert_eq!(chosen(1), first);
        assert_ne!(chosen(2), first);
    }

    #[test]
    fn the_builder_of_this_version_of_tokio_may_be_copied() {
        let lock = include_str!("../../../../Cargo.lock");
        assert!(
            lock.contains("name = \"tokio\"\nversion = \"1.54.1\"\n"),
            "see whether what `runtime` says of the parts of tokio's Builder is still true"
        );
    }

    #[test]
    fn the_wall_clock_of_a_thread_is_the_simulations_and_that_of_others_the_systems() {
        let (.., time) = drawn(1);
        assert!(time.duration_since(UNIX_EPOCH).unwrap().as_secs() < 60);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(now.as_secs() > 1_700_000_000);
    }
}
