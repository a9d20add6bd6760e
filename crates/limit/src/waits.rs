//! The waits that the denied clients of one bucket were told, so that the next one is told another:
//! all who share a bucket would come back in the same second otherwise, for the same unit.
//!
//! This is an estimate. It reserves nothing: decisions go by the bucket alone, and a wait is never
//! shorter than the bucket asks for. How the policies were chosen, and what they come to, is in
//! `docs/decisions/0083-spread-waits.md`.

use std::num::NonZeroU64;

use crate::time::{Nanos, Timestamp};
use crate::{Algorithm, Quota};

/// Upper bound on what a wait is longer than the bucket asks for: the time in which so many units
/// come back, and five minutes. Clients that left, and those that ignore what they are told,
/// lengthen the waits of others no further.
const MAX_INTERVALS: u64 = 256;
const MAX_SPREAD: Nanos = Nanos::from_secs(300);

/// The same for places in flight, and how many requests a second are expected to end: neither is
/// known.
const MAX_SPREAD_IN_FLIGHT: Nanos = Nanos::from_secs(4);
const IN_FLIGHT_INTERVAL: Nanos = Nanos::new(250_000_000);

/// Clients wait whole seconds, so from this interval on a client may come nearly an interval late.
const CLIENT_RESOLUTION: Nanos = Nanos::from_secs(1);

/// The waits that were told for one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldWaits {
    /// With GCRA, when the next unit comes back that no told client waits for. Otherwise, the end
    /// of the round.
    until: Timestamp,
    /// The beginning of the round, which is as long as the longest wait that is told in it. So each
    /// client that waits is denied, or passes, once a round.
    began: Timestamp,
    /// The waits told in this round, and in the one before it.
    told: u32,
    told_before: u32,
}

impl ToldWaits {
    /// Until when the waits may concern the next client.
    pub const fn until(&self) -> Timestamp {
        self.until
    }

    /// Records and returns the wait to tell a client whose cost fits after `wait`, if nobody else
    /// comes. It is no shorter than that, and the same for a client that is alone.
    pub fn tell(&mut self, quota: &Quota, cost: NonZeroU64, wait: Nanos, now: Timestamp) -> Nanos {
        match quota.algorithm() {
            _ if wait == Nanos::NEVER => wait,
            Algorithm::Gcra => self.queue(quota, cost.get(), wait, now),
            Algorithm::InFlight => {
                self.scatter(IN_FLIGHT_INTERVAL, MAX_SPREAD_IN_FLIGHT, wait, now)
            }
            _ => self.scatter(quota.emission_interval(), max_spread(quota), wait, now),
        }
    }

    /// The number of clients that wait, by an estimate, if each of them does as it was told.
    pub fn waiting(&self, quota: &Quota, now: Timestamp) -> u64 {
        let left = self.until.since(now);
        let interval = quota.emission_interval();
        match quota.algorithm() {
            _ if left.is_zero() => 0,
            Algorithm::Gcra if is_tight(quota, 1) => left.get() / tenths(interval, 7).get().max(1),
            Algorithm::Gcra => left.get() / interval.get().max(1),
            Algorithm::InFlight => self.scattered(IN_FLIGHT_INTERVAL, MAX_SPREAD_IN_FLIGHT),
            _ => self.scattered(interval, max_spread(quota)),
        }
    }

    /// The number of clients in a round. From the second round on, those with a wait below its length
    /// are told several.
    fn scattered(&self, interval: Nanos, max: Nanos) -> u64 {
        if self.told_before == 0 {
            return self.told.into();
        }
        let (told, round) = (
            self.told_in_round(),
            self.until.since(self.began).get().max(1),
        );
        let mean = round.saturating_sub(self.span(interval, max).get() / 2);
        let clients = u128::from(told) * u128::from(mean) / u128::from(round);
        u64::try_from(clients).unwrap_or(told)
    }

    /// The waits told in a round, by the last two.
    fn told_in_round(&self) -> u64 {
        self.told.max(self.told_before).into()
    }

    /// Gives each client the unit behind that of the client before. Units of GCRA come back one by
    /// one, and a burst keeps them for clients that are late.
    fn queue(&mut self, quota: &Quota, cost: u64, wait: Nanos, now: Timestamp) -> Nanos {
        let interval = quota.emission_interval();
        let alone = now + wait;
        let mut at = alone.max(self.until + times(interval, cost - 1));
        // Whoever comes next shares the units of the first.
        if at.since(alone) > max_spread(quota) {
            at = alone;
        }
        self.until = at + interval;
        if is_tight(quota, cost) {
            // A client that comes a moment too early loses its unit, and nothing keeps it. So units
            // are promised to more clients than there are, and not to the same ones each time.
            let taken = times(interval, cost);
            let late = self.draw(now, at.since(alone).min(taken));
            self.until = self.until.saturating_sub(tenths(taken, 3));
            at = (at + late).min(alone + max_spread(quota));
        }
        at.since(now)
    }

    /// Scatters the clients at random over the time in which their units would come back one by
    /// one. Units of a window come back together, and whoever is first takes many: which one that is
    /// has to change.
    fn scatter(&mut self, interval: Nanos, max: Nanos, wait: Nanos, now: Timestamp) -> Nanos {
        if now >= self.until || now < self.began {
            self.begin_round(now);
        }
        self.told = self.told.saturating_add(1);
        let span = self.span(interval, max);
        let told = Nanos::new(wait.get().saturating_add(self.draw(now, span).get()));
        self.until = self.until.max(self.began + told);
        told
    }

    /// The time over which the clients of a round are scattered.
    fn span(&self, interval: Nanos, max: Nanos) -> Nanos {
        let others = self.told_in_round().saturating_sub(1);
        // Clients with a short wait are counted twice in a round.
        Nanos::new(times(interval, others).get() / 2).min(max)
    }

    fn begin_round(&mut self, now: Timestamp) {
        let round = self.until.since(self.began);
        let is_over = now < self.began || now.since(self.until) >= round;
        self.told_before = if is_over { 0 } else { self.told };
        (self.told, self.began, self.until) = (0, now, now);
    }

    /// A time up to `max`, by what differs from client to client. It is the same each time in the
    /// simulator, whose runs are repeated.
    fn draw(&self, now: Timestamp, max: Nanos) -> Nanos {
        let seed = now.as_nanos() ^ self.until.as_nanos().rotate_left(32) ^ u64::from(self.told);
        let drawn = u128::from(mix(seed)) * (u128::from(max.get()) + 1);
        Nanos::new(u64::try_from(drawn >> 64).unwrap_or_default())
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
const fn mix(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Whether a bucket holds less than two costs, so that it keeps nothing for a client that is late,
/// and clients can be told to come one after the other.
fn is_tight(quota: &Quota, cost: u64) -> bool {
    let taken = times(quota.emission_interval(), cost);
    cost.saturating_mul(2) > quota.burst().get() && taken >= CLIENT_RESOLUTION
}

fn max_spread(quota: &Quota) -> Nanos {
    times(quota.emission_interval(), MAX_INTERVALS).min(MAX_SPREAD)
}

fn times(span: Nanos, factor: u64) -> Nanos {
    Nanos::new(span.get().saturating_mul(factor))
}

fn tenths(span: Nanos, tenths: u64) -> Nanos {
    Nanos::new(span.get() / 10 * tenths)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::{Alignment, Transaction, Usage, Window};

    const SECOND: u64 = 1_000_000_000;
    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000 * SECOND);

    fn gcra(burst: u64, count: u64, period: u64) -> Quota {
        Quota::new(burst, count, Duration::from_secs(period)).unwrap()
    }

    fn fixed_window(count: u64, period: u64) -> Quota {
        let algorithm = Algorithm::FixedWindow(Alignment::Period);
        Quota::windowed(algorithm, count, Duration::from_secs(period)).unwrap()
    }

    fn quotas() -> [Quota; 7] {
        let [sliding, log] = [
            Algorithm::SlidingWindow {
                count_denied: false,
            },
            Algorithm::SlidingLog {
                count_denied: false,
            },
        ]
        .map(|algorithm| Quota::windowed(algorithm, 60, Duration::from_secs(60)).unwrap());
        [
            gcra(1, 1, 1),
            gcra(20, 10, 1),
            gcra(20, 100, 60),
            fixed_window(60, 60),
            sliding,
            log,
            Quota::in_flight(3).unwrap(),
        ]
    }

    fn most(quota: &Quota) -> Nanos {
        match quota.is_in_flight() {
            true => MAX_SPREAD_IN_FLIGHT,
            false => max_spread(quota),
        }
    }

    fn one() -> NonZeroU64 {
        NonZeroU64::MIN
    }

    #[test]
    fn those_denied_at_once_are_told_one_unit_after_the_other() {
        let (quota, mut waits) = (gcra(20, 100, 60), ToldWaits::default());
        let first = Nanos::new(SECOND / 4);
        for others in 0..20 {
            let told = waits.tell(&quota, one(), first, NOW);
            assert_eq!(told.get(), SECOND / 4 + others * SECOND * 6 / 10);
        }
    }

    #[test]
    fn as_many_clients_wait_as_were_told_to_until_their_waits_are_over() {
        for quota in quotas().into_iter().filter(|quota| !quota.is_in_flight()) {
            let mut waits = ToldWaits::default();
            assert_eq!(waits.waiting(&quota, NOW), 0);
            for _ in 0..20 {
                waits.tell(&quota, one(), quota.emission_interval(), NOW);
            }
            let waiting = waits.waiting(&quota, NOW);
            assert!((18..=22).contains(&waiting), "{waiting}: {quota:?}");
            let later = NOW + max_spread(&quota) + Nanos::from_secs(1);
            assert_eq!(waits.waiting(&quota, later), 0);
        }
    }

    #[test]
    fn a_cost_waits_for_all_its_units_behind_those_of_others() {
        let (quota, mut waits) = (gcra(20, 10, 10), ToldWaits::default());
        let costs = [1, 5, 1].map(|cost| {
            let alone = Nanos::from_secs(cost);
            let cost = NonZeroU64::new(cost).unwrap();
            waits.tell(&quota, cost, alone, NOW).get() / SECOND
        });
        assert_eq!(costs, [1, 6, 7]);
    }

    #[test]
    fn a_window_is_not_entered_by_all_in_the_second_of_its_edge() {
        let (quota, mut waits) = (fixed_window(60, 60), ToldWaits::default());
        let mut tell = |now| {
            let told: Vec<_> = (0..200)
                .map(|_| waits.tell(&quota, one(), Nanos::from_secs(10), now))
                .map(Nanos::ceil_secs)
                .collect();
            (0..=110)
                .map(|second| told.iter().filter(|&&told| told == second).count())
                .max()
        };
        tell(NOW);
        let together = tell(NOW + Nanos::from_secs(110));
        assert!(together < Some(12), "200 clients over 100 s: {together:?}");
    }

    /// Whether a bucket of GCRA, or of a window, lets a request pass; if not, how long it waits.
    fn wait(
        transaction: &Transaction,
        tat: &mut Timestamp,
        window: &mut Window,
        now: Timestamp,
    ) -> Nanos {
        if transaction.is_windowed() {
            let usage: Usage = window.usage(transaction, now);
            let decision = transaction.decide_in_window(&usage);
            if decision.fits() {
                window.take(transaction, now);
            }
            return decision.retry_in;
        }
        let decision = transaction.decide(tat.since(now));
        if decision.fits() {
            *tat = now + decision.reset_in;
        }
        decision.retry_in
    }

    #[test]
    fn a_client_that_is_alone_is_told_when_its_next_unit_is_there() {
        for quota in quotas().into_iter().filter(|quota| !quota.is_in_flight()) {
            let transaction = Transaction::new("L:a".into(), quota, one());
            let (mut waits, mut tat) = (ToldWaits::default(), Timestamp::default());
            let mut window =
                Window::full(&quota).unwrap_or_else(|| Window::full(&fixed_window(1, 1)).unwrap());
            let mut now = NOW;
            for _ in 0..1000 {
                let alone = wait(&transaction, &mut tat, &mut window, now);
                if !alone.is_zero() {
                    let told = waits.tell(&quota, one(), alone, now);
                    assert_eq!(told, alone, "{quota:?}");
                    now = now + Nanos::from_secs(told.ceil_secs());
                }
            }
        }
    }

    #[test]
    fn clients_that_left_lengthen_the_waits_of_others_up_to_the_bound_and_no_longer() {
        for quota in quotas() {
            let mut waits = ToldWaits::default();
            let mut now = NOW;
            for _ in 0..10_000 {
                waits.tell(&quota, one(), Nanos::new(SECOND / 2), now);
                now = now + Nanos::new(SECOND / 50);
            }
            let later = now + times(most(&quota), 2) + Nanos::from_secs(1);
            let told = waits.tell(&quota, one(), Nanos::new(SECOND / 2), later);
            assert_eq!(told, Nanos::new(SECOND / 2), "{quota:?}");
        }
    }

    #[test]
    fn no_wait_is_told_where_none_helps() {
        let mut waits = ToldWaits::default();
        assert_eq!(
            waits.tell(&gcra(1, 1, 1), one(), Nanos::NEVER, NOW),
            Nanos::NEVER
        );
        assert_eq!(waits, ToldWaits::default());
    }

    proptest! {
        /// Limits change, hammerers ignore what they are told, and clocks step back.
        #[test]
        fn no_wait_is_shorter_than_the_bucket_asks_for_or_longer_than_the_bound(
            denials in vec(
                (0..7_usize, 1..100_u64, 0..100 * SECOND, any::<bool>(), 0..10 * SECOND),
                1..300,
            ),
        ) {
            let (mut waits, mut now) = (ToldWaits::default(), NOW);
            for (quota, cost, wait, back, step) in denials {
                let quota = quotas()[quota];
                now = match back {
                    true => now.saturating_sub(Nanos::new(step)),
                    false => now + Nanos::new(step),
                };
                let cost = NonZeroU64::new(cost).unwrap();
                let told = waits.tell(&quota, cost, Nanos::new(wait), now).get();
                prop_assert!((wait..=wait + most(&quota).get()).contains(&told), "{told}");
            }
        }

        #[test]
        fn no_time_overflows(
            (burst, count) in (1..=u64::MAX, 1..=u64::MAX),
            (cost, wait, now) in (1..=u64::MAX, any::<u64>(), any::<u64>()),
        ) {
            let Ok(quota) = Quota::new(burst, count, Duration::from_secs(86_400)) else {
                return Ok(());
            };
            let cost = NonZeroU64::new(cost).unwrap();
            let mut waits = ToldWaits::default();
            for _ in 0..3 {
                waits.tell(&quota, cost, Nanos::new(wait), Timestamp::from_nanos(now));
            }
        }
    }
}
