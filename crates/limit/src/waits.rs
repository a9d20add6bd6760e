//! The waits that the denied clients of one bucket were told, so that the next one is told another:
//! all who share a bucket would come back in the same second otherwise, for the same unit.
//!
//! This is an estimate. It reserves nothing: decisions go by the bucket alone, and a wait is never
//! shorter than the bucket asks for. How the policies were chosen, and what they come to, is in
//! `docs/decisions/0083-spread-waits.md`.

use std::num::NonZeroU64;

use crate::time::{Nanos, Timestamp};
use crate::{Algorithm, Quota};

/// Upper bound on what a wait is longer than the bucket asks for, in clients whose units come back
/// in that time. It is doubled, so often at the most, while more clients than that are seen to obey:
/// somebody who ignores waits does not lengthen those of others further.
const MIN_CROWD: u64 = 32;
const MAX_DOUBLINGS: u8 = 3;

/// Upper bound on it, however many clients there are.
const MAX_SPREAD: Nanos = Nanos::from_secs(300);

/// The same for places in flight, and how many requests a second are expected to end: neither is
/// known.
const MAX_SPREAD_IN_FLIGHT: Nanos = Nanos::from_secs(4);
const IN_FLIGHT_INTERVAL: Nanos = Nanos::new(250_000_000);

/// How clients are told a wait, and so how late they may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitForm {
    /// `Retry-After`, rounded up.
    Seconds,
    /// `Retry-After-Ms`.
    Milliseconds,
}

impl WaitForm {
    /// How late a client may come: what is rounded, or how late its timer is.
    const fn lateness(self) -> Nanos {
        match self {
            Self::Seconds => Nanos::from_secs(1),
            Self::Milliseconds => Nanos::new(50_000_000),
        }
    }

    /// Whether clients of a bucket of GCRA are told to come one after the other. If more units are
    /// lost while a client is late than the bucket keeps, fewer are lost if all come at once, and
    /// the first of them takes the unit.
    pub fn can_order(self, quota: &Quota, cost: u64) -> bool {
        let kept = quota.burst().get().saturating_sub(cost);
        let kept_for = times(quota.emission_interval(), kept);
        kept_for >= self.lateness() || is_tight(quota, cost, self)
    }
}

/// The waits that were told for one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldWaits {
    /// With GCRA, when the next unit comes back that no told client waits for. Otherwise, the end
    /// of the round.
    until: Timestamp,
    /// The beginning of the round. With GCRA it is as long as the bound; otherwise as the longest
    /// wait that is told in it. So each client that waits is denied, or passes, once a round, or
    /// twice if its wait is short.
    began: Timestamp,
    /// The waits told in this round, and in the one before it.
    told: u32,
    told_before: u32,
    /// The units that the last client asked for; none if all are told alike.
    cost: u32,
    /// How often the bound on the crowd was doubled.
    doublings: u8,
}

impl ToldWaits {
    /// Whether several clients were told waits that are not over.
    pub fn is_spread(&self, now: Timestamp) -> bool {
        self.told.max(self.told_before) > 1 && now < self.until
    }

    /// Records and returns the wait to tell a client whose cost fits after `wait`, if nobody else
    /// comes. It is no shorter than that, and the same for a client that is alone.
    pub fn tell(
        &mut self,
        quota: &Quota,
        cost: NonZeroU64,
        wait: Nanos,
        form: WaitForm,
        now: Timestamp,
    ) -> Nanos {
        if wait == Nanos::NEVER {
            return wait;
        }
        self.cost = u32::try_from(cost.get()).unwrap_or(u32::MAX);
        match quota.algorithm() {
            Algorithm::Gcra if !form.can_order(quota, cost.get()) => {
                self.cost = 0;
                self.tell_all_alike(wait, form, now)
            }
            Algorithm::Gcra => self.queue(quota, cost.get(), wait, form, now),
            Algorithm::InFlight => {
                self.begin_scattered_round(now);
                self.scatter(IN_FLIGHT_INTERVAL, MAX_SPREAD_IN_FLIGHT, wait, now)
            }
            _ => {
                self.begin_scattered_round(now);
                let taken = times(quota.emission_interval(), cost.get());
                self.scatter(taken, self.max_spread(taken), wait, now)
            }
        }
    }

    /// The number of clients that wait, by an estimate, if each of them does as it was told.
    pub fn waiting(&self, quota: &Quota, now: Timestamp) -> u64 {
        let left = self.until.since(now);
        let cost = self.cost.into();
        let taken = times(quota.emission_interval(), cost);
        match quota.algorithm() {
            _ if left.is_zero() => 0,
            Algorithm::Gcra if cost == 0 => self.told_in_round(),
            Algorithm::Gcra if is_tight(quota, cost, WaitForm::Seconds) => {
                left.get() / tenths(taken, 7).get().max(1)
            }
            Algorithm::Gcra => left.get() / taken.get().max(1),
            Algorithm::InFlight => self.scattered(IN_FLIGHT_INTERVAL, MAX_SPREAD_IN_FLIGHT),
            _ => self.scattered(taken, self.max_spread(taken)),
        }
    }

    /// The number of clients in a round. From the second round on, those with a wait below its length
    /// are told several.
    fn scattered(&self, taken: Nanos, max: Nanos) -> u64 {
        if self.told_before == 0 {
            return self.told.into();
        }
        let (told, round) = (
            self.told_in_round(),
            self.until.since(self.began).get().max(1),
        );
        let mean = round.saturating_sub(self.span(taken, max).get() / 2);
        let clients = u128::from(told) * u128::from(mean) / u128::from(round);
        u64::try_from(clients).unwrap_or(told)
    }

    /// The waits told in a round, by the last two.
    fn told_in_round(&self) -> u64 {
        self.told.max(self.told_before).into()
    }

    /// Tells a client the bucket's own wait. As all come when that is over, each is told one a
    /// round.
    fn tell_all_alike(&mut self, wait: Nanos, form: WaitForm, now: Timestamp) -> Nanos {
        self.begin_scattered_round(now);
        let over = match form {
            WaitForm::Seconds => Nanos::from_secs(wait.ceil_secs()),
            WaitForm::Milliseconds => wait,
        };
        self.until = self.until.max(self.began + over);
        wait
    }

    /// Gives each client the units behind those of the client before. Units of GCRA come back one by
    /// one, and a burst keeps them for clients that are late.
    fn queue(
        &mut self,
        quota: &Quota,
        cost: u64,
        wait: Nanos,
        form: WaitForm,
        now: Timestamp,
    ) -> Nanos {
        let unit = quota.emission_interval();
        let taken = times(unit, cost);
        self.begin_queued_round(taken, now);
        let (alone, max) = (now + wait, self.max_spread(taken));
        let mut at = alone.max(self.until + times(unit, cost - 1));
        // Whoever comes next shares the units of the first.
        if at.since(alone) > max {
            at = alone;
        }
        self.until = at + unit;
        if is_tight(quota, cost, form) {
            // A client that comes a moment too early loses its unit, and nothing keeps it. So units
            // are promised to more clients than there are, and not to the same ones each time.
            let late = self.draw(now, at.since(alone).min(taken));
            self.until = self.until.saturating_sub(tenths(taken, 3));
            at = (at + late).min(alone + max);
        }
        at.since(now)
    }

    /// Scatters the clients at random over the time in which their units would come back one by
    /// one. Units of a window come back together, and whoever is first takes many: which one that is
    /// has to change.
    fn scatter(&mut self, taken: Nanos, max: Nanos, wait: Nanos, now: Timestamp) -> Nanos {
        let span = self.span(taken, max);
        let told = Nanos::new(wait.get().saturating_add(self.draw(now, span).get()));
        self.until = self.until.max(self.began + told);
        told
    }

    /// The time over which the clients of a round are scattered.
    fn span(&self, taken: Nanos, max: Nanos) -> Nanos {
        let others = self.told_in_round().saturating_sub(1);
        // Clients with a short wait are counted twice in a round.
        Nanos::new(times(taken, others).get() / 2).min(max)
    }

    /// Counts a client of a queue, in a new round if the last one is over.
    fn begin_queued_round(&mut self, taken: Nanos, now: Timestamp) {
        // Clients that wait for whole seconds are not seen again any sooner.
        let round = self.max_spread(taken).max(WaitForm::Seconds.lateness());
        let passed = now.since(self.began);
        if now < self.began || passed >= round {
            self.begin_round(now, now < self.began || passed >= times(round, 2));
        }
        self.told = self.told.saturating_add(1);
    }

    /// The same of clients that are scattered.
    fn begin_scattered_round(&mut self, now: Timestamp) {
        if now < self.began || now >= self.until {
            let round = self.until.since(self.began);
            let is_over = now < self.began || now.since(self.until) >= round;
            self.begin_round(now, is_over);
            self.until = now;
        }
        self.told = self.told.saturating_add(1);
    }

    fn begin_round(&mut self, now: Timestamp, forget: bool) {
        if forget {
            *self = Self {
                until: self.until,
                cost: self.cost,
                ..Self::default()
            };
        }
        self.doublings = self.learned_doublings();
        (self.told_before, self.told, self.began) = (self.told, 0, now);
    }

    /// What the waits of a round say of the bound on the crowd. Clients that obey are told about
    /// two each, however long the round is: if there are more of them than the bound, it is
    /// doubled. If the longer round had half as many waits more, somebody did not wait, or clients
    /// do not come back, and nobody profits from a longer wait.
    fn learned_doublings(&self) -> u8 {
        let (told, before) = (u64::from(self.told), u64::from(self.told_before));
        let bound = self.max_crowd();
        let obeys = self.doublings == 0 || told * 2 <= before * 3;
        match told > 2 * bound {
            true if obeys => (self.doublings + 1).min(MAX_DOUBLINGS),
            true => 0,
            false if told <= bound / 2 => self.doublings.saturating_sub(1),
            false => self.doublings,
        }
    }

    fn max_crowd(&self) -> u64 {
        MIN_CROWD << self.doublings
    }

    fn max_spread(&self, taken: Nanos) -> Nanos {
        times(taken, self.max_crowd()).min(MAX_SPREAD)
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
fn is_tight(quota: &Quota, cost: u64, form: WaitForm) -> bool {
    let taken = times(quota.emission_interval(), cost);
    cost.saturating_mul(2) > quota.burst().get() && taken >= form.lateness()
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

    const SECONDS: WaitForm = WaitForm::Seconds;

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

    /// The longest spread there is, in clients.
    const MAX_CROWD: u64 = MIN_CROWD << MAX_DOUBLINGS;

    fn most(quota: &Quota, cost: u64, crowd: u64) -> Nanos {
        let taken = times(quota.emission_interval(), cost);
        match quota.is_in_flight() {
            true => MAX_SPREAD_IN_FLIGHT,
            false => times(taken, crowd).min(MAX_SPREAD),
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
            let told = waits.tell(&quota, one(), first, SECONDS, NOW);
            assert_eq!(told.get(), SECOND / 4 + others * SECOND * 6 / 10);
        }
    }

    #[test]
    fn as_many_clients_wait_as_were_told_to_until_their_waits_are_over() {
        for quota in quotas().into_iter().filter(|quota| !quota.is_in_flight()) {
            let mut waits = ToldWaits::default();
            assert_eq!(waits.waiting(&quota, NOW), 0);
            for _ in 0..20 {
                waits.tell(&quota, one(), quota.emission_interval(), SECONDS, NOW);
            }
            let waiting = waits.waiting(&quota, NOW);
            assert!((18..=22).contains(&waiting), "{waiting}: {quota:?}");
            let later = NOW + most(&quota, 1, MIN_CROWD) + Nanos::from_secs(1);
            assert_eq!(waits.waiting(&quota, later), 0);
        }
    }

    #[test]
    fn clients_that_wait_are_counted_by_what_they_cost_and_where_all_are_told_alike() {
        for (quota, cost) in [
            (gcra(20, 10, 1), 5),
            (fixed_window(60, 60), 5),
            (gcra(5, 10, 1), 1),
        ] {
            let mut waits = ToldWaits::default();
            let cost = NonZeroU64::new(cost).unwrap();
            for _ in 0..20 {
                waits.tell(&quota, cost, Nanos::new(SECOND / 20), SECONDS, NOW);
            }
            let waiting = waits.waiting(&quota, NOW + Nanos::new(SECOND / 25));
            assert!((18..=22).contains(&waiting), "{waiting}: {quota:?}");
        }
    }

    #[test]
    fn a_cost_waits_for_all_its_units_behind_those_of_others() {
        let (quota, mut waits) = (gcra(20, 10, 10), ToldWaits::default());
        let costs = [1, 5, 1].map(|cost| {
            let alone = Nanos::from_secs(cost);
            let cost = NonZeroU64::new(cost).unwrap();
            waits.tell(&quota, cost, alone, SECONDS, NOW).get() / SECOND
        });
        assert_eq!(costs, [1, 6, 7]);
    }

    #[test]
    fn a_cost_of_many_units_has_as_many_clients_behind_it_as_one() {
        let (quota, mut waits) = (gcra(50, 10, 10), ToldWaits::default());
        let cost = NonZeroU64::new(8).unwrap();
        for others in 0..=MIN_CROWD {
            let told = waits.tell(&quota, cost, Nanos::from_secs(3), SECONDS, NOW);
            assert_eq!(told, Nanos::from_secs(3 + 8 * others));
        }
    }

    #[test]
    fn clients_of_a_window_are_scattered_by_what_they_cost() {
        let longest = |cost| {
            let mut waits = ToldWaits::default();
            let cost = NonZeroU64::new(cost).unwrap();
            let window = fixed_window(60, 60);
            let told =
                (0..20).map(|_| waits.tell(&window, cost, Nanos::from_secs(1), SECONDS, NOW));
            told.max().unwrap().get() / SECOND - 1
        };
        assert!(longest(1) < 10, "{}", longest(1));
        assert!((25..50).contains(&longest(5)), "{}", longest(5));
    }

    /// What comes back while clients wait for whole seconds is lost, and a crowd that comes at once
    /// loses least.
    #[test]
    fn a_bucket_that_keeps_less_than_a_second_has_no_queue_of_clients_that_wait_for_seconds() {
        let wait = Nanos::new(SECOND / 20);
        let told = |quota, form| {
            let mut waits = ToldWaits::default();
            [(); 3].map(|()| waits.tell(&quota, one(), wait, form, NOW).get() - wait.get())
        };
        for (quota, interval) in [
            (gcra(5, 10, 1), SECOND / 10),
            (gcra(2, 100, 60), SECOND * 6 / 10),
        ] {
            assert_eq!(told(quota, SECONDS), [0; 3]);
            let told = told(quota, WaitForm::Milliseconds);
            assert_eq!(told, [0, interval, 2 * interval]);
        }
        assert_eq!(told(gcra(1, 10, 1), SECONDS), [0; 3]);
        assert_eq!(told(gcra(1, 100, 1), WaitForm::Milliseconds), [0; 3]);
        assert_ne!(told(gcra(1, 10, 1), WaitForm::Milliseconds), [0; 3]);
        assert_ne!(told(gcra(11, 10, 1), SECONDS), [0; 3]);
    }

    #[test]
    fn a_window_is_not_entered_by_all_in_the_second_of_its_edge() {
        let (quota, mut waits) = (fixed_window(60, 60), ToldWaits::default());
        let mut tell = |now| {
            let told: Vec<_> = (0..200)
                .map(|_| waits.tell(&quota, one(), Nanos::from_secs(10), SECONDS, now))
                .map(Nanos::ceil_secs)
                .collect();
            let together = |&second: &u64| told.iter().filter(|&&told| told == second).count();
            let longest = told.iter().copied().max().unwrap();
            ((0..=longest).map(|second| together(&second)).max(), longest)
        };
        let mut now = NOW;
        for together in [20, 12, 8] {
            let (most, longest) = tell(now);
            assert!(
                most < Some(together),
                "200 clients over {longest} s: {most:?}"
            );
            now = now + Nanos::from_secs(longest);
        }
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
                    let told = waits.tell(&quota, one(), alone, SECONDS, now);
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
                waits.tell(&quota, one(), Nanos::new(SECOND / 2), SECONDS, now);
                now = now + Nanos::new(SECOND / 50);
            }
            let later = now + times(most(&quota, 1, MAX_CROWD), 2) + Nanos::from_secs(1);
            let told = waits.tell(&quota, one(), Nanos::new(SECOND / 2), SECONDS, later);
            assert_eq!(told, Nanos::new(SECOND / 2), "{quota:?}");
        }
    }

    /// For an hour, 50 times a second.
    #[test]
    fn a_client_that_does_not_wait_never_makes_others_wait_for_more_than_twice_the_least_bound() {
        for quota in quotas() {
            let (mut waits, mut now) = (ToldWaits::default(), NOW);
            let bound = most(&quota, 1, 2 * MIN_CROWD) + quota.emission_interval();
            for _ in 0..180_000 {
                let told = waits.tell(&quota, one(), Nanos::new(SECOND / 2), SECONDS, now);
                assert!(
                    told <= Nanos::new(SECOND / 2) + bound,
                    "{quota:?}: {told:?}"
                );
                now = now + Nanos::new(SECOND / 50);
            }
        }
    }

    #[test]
    fn a_quarter_of_a_thousand_quick_denials_do_not_idle_a_shared_bucket() {
        let (quota, mut waits) = (gcra(2, 1, 1), ToldWaits::default());
        for quick in 0..250 {
            let now = NOW + Nanos::new(quick * SECOND / 50);
            waits.tell(&quota, one(), Nanos::new(SECOND / 2), SECONDS, now);
        }
        let now = NOW + Nanos::from_secs(5);
        let told = (0..20)
            .map(|_| waits.tell(&quota, one(), Nanos::new(SECOND / 2), SECONDS, now))
            .collect::<Vec<_>>();
        assert!(
            told.iter().all(|told| *told <= Nanos::from_secs(33)),
            "{told:?}"
        );
        // Somebody comes soon.
        assert!(
            told.iter().any(|told| *told <= Nanos::from_secs(15)),
            "{told:?}"
        );
    }

    #[test]
    fn no_wait_is_told_where_none_helps() {
        let mut waits = ToldWaits::default();
        assert_eq!(
            waits.tell(&gcra(1, 1, 1), one(), Nanos::NEVER, SECONDS, NOW),
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
                let told = waits.tell(&quota, cost, Nanos::new(wait), SECONDS, now).get();
                let most = most(&quota, cost.get(), MAX_CROWD).get();
                prop_assert!((wait..=wait + most).contains(&told), "{told}");
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
                waits.tell(&quota, cost, Nanos::new(wait), SECONDS, Timestamp::from_nanos(now));
            }
        }
    }
}
