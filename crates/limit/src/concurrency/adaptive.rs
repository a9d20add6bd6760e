//! A limit on requests in flight that follows what their server can handle: a gradient of latency,
//! as in Envoy's adaptive concurrency and Netflix's concurrency-limits, with a baseline that is
//! probed at half the limit. `docs/decisions/0078-concurrency-limits.md` compares the candidates.

use std::num::NonZeroU32;

use crate::time::{Nanos, Timestamp};

/// A window of samples is at least this long, so that a burst is not taken for a trend.
const MIN_WINDOW: Nanos = Nanos::new(100_000_000);

/// Windows last for this many latencies, or slow responses would be missing from them.
const LATENCIES_PER_WINDOW: f64 = 2.0;

/// The median of exponential times varies by a fifth in as many samples.
const MIN_SAMPLES: usize = 50;

/// From so many samples on, latency that is twice what is borne ends a window early, and so does
/// latency as without a queue while all slots are taken: a limit that fell to a few requests would
/// else take a minute to come back.
const FEW_SAMPLES: usize = 20;
const CLEARLY: f64 = 2.0;

/// After so many nanoseconds, few samples are enough.
const LONG_WINDOW: f64 = 1e9;

/// Of more samples in a window, the last ones count.
const MAX_SAMPLES: usize = 256;

/// Latency over the baseline that is no sign of a queue.
const TOLERANCE: f64 = 1.25;

/// What sockets and threads add to latency under load is not the server's queue.
const SLACK: f64 = 1e6;

/// The least that is left of the limit after a window.
const MAX_DECREASE: f64 = 0.5;

/// The limit after a window in which a tenth of the responses said that the server is overloaded.
const OVERLOAD_DECREASE: f64 = 0.7;

/// The share that the limit grows by in a window, and the least that it grows by.
const GROWTH: f64 = 0.1;
const MIN_GROWTH: f64 = 0.5;

/// How long a baseline is relied upon while the limit is in use: a new one for the first of these
/// times, and one that was measured again, and found the same but for `CONFIRMS`, for twice as long
/// as before.
const CONFIRMS: f64 = 0.6;
const FIRST_LIFETIME: Nanos = Nanos::from_secs(1);
const MAX_LIFETIME: Nanos = Nanos::from_secs(30);

/// A baseline is relied upon for at least so many times as long as its measurement took, at half of
/// the limit: all measurements together cost at most a tenth of the capacity.
const LIFETIME_PER_PROBE: u64 = 5;

/// A limit that fell to this share, while latency stayed above `UNCHANGED` of its peak, fell in
/// vain: responses take longer without any queue. One that cannot fall so far, because it is never
/// below `min`, fell in vain from half on.
const IN_VAIN: f64 = 0.25;
const UNCHANGED: f64 = 0.7;

/// Latency that is below this share of the baseline in two windows has it measured again.
const FASTER: f64 = 0.75;

/// The most by which one measurement raises the baseline is half of this.
const SLOWER: f64 = 2.0;

/// Where half of the limit has at most this share of the latency, there was a queue at the whole.
const HAD_QUEUE: f64 = 0.6;

/// Where a limit begins and between which numbers it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyBounds {
    /// The limit is never below this.
    pub min: NonZeroU32,
    /// The limit is never above this; with `min` the same, it is fixed.
    pub max: NonZeroU32,
}

impl ConcurrencyBounds {
    /// Where the limit begins, unless that is out of bounds.
    pub const INITIAL: u32 = 20;

    fn clamp(self, limit: f64) -> f64 {
        limit.max(self.min()).min(f64::from(self.max.get()))
    }

    fn min(self) -> f64 {
        f64::from(self.min.get())
    }

    /// Whether the limit never changes.
    fn are_fixed(self) -> bool {
        self.min == self.max
    }
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerReply {
    /// A response, which took this long.
    Response(Nanos),
    /// The server said that it is overloaded, or did not respond in time.
    Overloaded,
    /// None: the client left after this long. The response would have taken longer.
    Abandoned(Nanos),
}

/// The limit on a server's requests in flight.
///
/// It falls when the median latency of a window exceeds the baseline, which is the latency without
/// a queue. It grows only after a window in which all slots were taken, and by a tenth at most.
#[derive(Clone, Debug)]
pub struct AdaptiveLimit {
    bounds: ConcurrencyBounds,
    limit: f64,
    window: Window,
    /// The median latency without a queue, in nanoseconds; none before the first window.
    baseline: Option<f64>,
    baseline_since: Timestamp,
    lifetime: Nanos,
    /// The limit to return to after a probe.
    probing: Option<f64>,
    /// The limit and the highest latency since latency began to exceed the baseline.
    descent: Option<(f64, f64)>,
    /// The latency of the window before.
    last: Option<f64>,
}

/// Replies to requests that were admitted since the limit changed.
#[derive(Clone, Debug)]
struct Window {
    since: Timestamp,
    latencies: Vec<u64>,
    responses: usize,
    overloaded: usize,
    /// Whether all slots were taken at some time.
    saturated: bool,
}

impl Window {
    const fn new(since: Timestamp) -> Self {
        Self {
            since,
            latencies: Vec::new(),
            responses: 0,
            overloaded: 0,
            saturated: false,
        }
    }

    fn begin(&mut self, since: Timestamp) {
        let mut latencies = std::mem::take(&mut self.latencies);
        latencies.clear();
        *self = Self {
            latencies,
            ..Self::new(since)
        };
    }

    fn add(&mut self, latency: Nanos) {
        let index = self.responses % MAX_SAMPLES;
        match self.latencies.get_mut(index) {
            Some(oldest) => *oldest = latency.get(),
            None => self.latencies.push(latency.get()),
        }
        self.responses += 1;
    }

    /// Whether there is enough to go by, with the latency that is borne.
    fn is_over(&mut self, now: Timestamp, borne: Option<f64>, grows: bool) -> bool {
        let samples = self.responses + self.overloaded;
        let length = now.since(self.since).get() as f64;
        let latency = borne.unwrap_or_default();
        let enough = match length >= LONG_WINDOW {
            true => FEW_SAMPLES,
            false => MIN_SAMPLES,
        };
        if samples >= enough {
            let shortest = (MIN_WINDOW.get() as f64).max(LATENCIES_PER_WINDOW * latency);
            return length >= shortest;
        }
        let is_turn = samples >= FEW_SAMPLES && samples.is_multiple_of(10);
        let (Some(borne), true) = (borne, is_turn) else {
            return false;
        };
        let is_long = length >= LATENCIES_PER_WINDOW * latency;
        self.median().is_some_and(|median| {
            let has_no_queue = grows && self.saturated && is_long && median < borne / TOLERANCE;
            has_no_queue || median > CLEARLY * borne
        })
    }

    fn says_overloaded(&self) -> bool {
        self.overloaded * 10 > self.responses + self.overloaded
    }

    fn median(&mut self) -> Option<f64> {
        let middle = self.latencies.len() / 2;
        if self.latencies.is_empty() {
            return None;
        }
        let (_, median, _) = self.latencies.select_nth_unstable(middle);
        Some(*median as f64)
    }
}

/// The latency that is no sign of a queue.
fn borne(baseline: f64) -> f64 {
    TOLERANCE.mul_add(baseline, SLACK)
}

impl AdaptiveLimit {
    /// A limit for a server of which nothing is known.
    pub fn new(bounds: ConcurrencyBounds, now: Timestamp) -> Self {
        Self {
            bounds,
            limit: bounds.clamp(f64::from(ConcurrencyBounds::INITIAL)),
            window: Window::new(now),
            baseline: None,
            baseline_since: now,
            lifetime: FIRST_LIFETIME,
            probing: None,
            descent: None,
            last: None,
        }
    }

    /// Goes on within other bounds, with what was found. A fixed limit was not found, before or
    /// after.
    pub fn set_bounds(&mut self, bounds: ConcurrencyBounds, now: Timestamp) {
        if bounds == self.bounds {
            return;
        }
        let found = self.probing.take().unwrap_or(self.limit);
        let found = match self.bounds.are_fixed() || bounds.are_fixed() {
            true => f64::from(ConcurrencyBounds::INITIAL),
            false => found,
        };
        self.bounds = bounds;
        self.limit = bounds.clamp(found);
        self.descent = None;
        self.window.begin(now);
    }

    /// How many requests may be in flight.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the limit is within bounds of 32 bits"
    )]
    pub fn get(&self) -> u32 {
        (self.limit as u32).max(1)
    }

    /// The latency without a queue, as far as it is known.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was measured in whole nanoseconds"
    )]
    pub fn baseline(&self) -> Option<Nanos> {
        self.baseline.map(|nanos| Nanos::new(nanos as u64))
    }

    /// Notes that all slots are taken.
    pub const fn saturated(&mut self) {
        self.window.saturated = true;
    }

    /// Learns what came of a request that got its slot at `admitted`.
    pub fn replied(&mut self, admitted: Timestamp, reply: ServerReply, now: Timestamp) {
        // A request of before the last change says nothing about the present limit.
        if admitted < self.window.since {
            return;
        }
        match reply {
            ServerReply::Overloaded => self.window.overloaded += 1,
            ServerReply::Response(latency) => self.window.add(latency),
            // Less than the usual latency says nothing about the whole.
            ServerReply::Abandoned(after) if self.baseline().is_some_and(|usual| after > usual) => {
                self.window.add(after);
            }
            ServerReply::Abandoned(_) => return,
        }
        let borne = self.baseline.map(borne);
        let grows = self.probing.is_none();
        if self.window.is_over(now, borne, grows) {
            self.conclude(now);
        }
    }

    fn conclude(&mut self, now: Timestamp) {
        let latency = self.window.median();
        let overloaded = self.window.says_overloaded();
        let saturated = self.window.saturated;
        let probed_from = self.probing.take();
        if overloaded {
            self.limit = self.bounds.clamp(self.limit * OVERLOAD_DECREASE);
        } else if let Some(latency) = latency {
            match probed_from {
                Some(from) => self.probed(from, latency, now),
                None => self.follow(latency, saturated, now),
            }
        }
        self.window.begin(now);
    }

    /// Follows the gradient.
    fn follow(&mut self, latency: f64, saturated: bool, now: Timestamp) {
        if self.bounds.are_fixed() {
            self.set_baseline(latency, now);
            return;
        }
        let Some(baseline) = self.baseline else {
            self.set_baseline(latency, now);
            // There may have been a queue already.
            self.probe();
            return;
        };
        let borne = borne(baseline);
        if self.window.responses < MIN_SAMPLES && latency < borne {
            // It may have ended when it looked best, so it says nothing about the baseline.
            self.descent = None;
            if saturated {
                self.limit = self.bounds.clamp(self.limit + self.headroom());
            }
            return;
        }
        if latency <= borne {
            self.descent = None;
        } else if !saturated && self.is_beyond_queue(latency, baseline) {
            let last = self.last.replace(latency);
            // Once, it may have been a pause of the server.
            if last.is_some_and(|last| self.is_beyond_queue(last, baseline)) {
                let from = self.descent.map_or(self.limit, |(from, _)| from);
                self.set_baseline(latency, now);
                self.lifetime = FIRST_LIFETIME;
                self.limit = self.bounds.clamp(from);
            }
            return;
        } else if self.fell_in_vain(latency) {
            let (from, _) = self.descent.unwrap_or((self.limit, latency));
            self.set_baseline(latency, now);
            self.limit = self.bounds.clamp(from * MAX_DECREASE);
            return;
        }
        let slower_of_two = self
            .last
            .replace(latency)
            .map_or(latency, |last| last.max(latency));
        if slower_of_two < baseline * FASTER {
            self.set_baseline(slower_of_two, now);
            self.probe();
            return;
        }
        if saturated && now.since(self.baseline_since) > self.lifetime {
            self.probe();
            return;
        }
        let gradient = (borne / latency).clamp(MAX_DECREASE, 1.0);
        let headroom = match saturated {
            // With a few slots, half a request more would outweigh the gradient.
            true if gradient < 1.0 => self.limit * GROWTH,
            true => self.headroom(),
            false => 0.0,
        };
        self.limit = self.bounds.clamp(self.limit.mul_add(gradient, headroom));
    }

    /// Goes on after a window at half the limit `from`.
    fn probed(&mut self, from: f64, latency: f64, now: Timestamp) {
        let baseline = self.baseline.unwrap_or(latency);
        if latency > CLEARLY * borne(baseline) {
            // The server has become slower meanwhile; whether by a queue will be seen.
            return;
        }
        if latency < baseline * HAD_QUEUE {
            // There was a queue at the whole limit, and there may be one at the half.
            self.set_baseline(latency, now);
            self.probe();
            return;
        }
        // Much slower without a queue is a change of the server, which `fell_in_vain` finds.
        let near = latency.min(baseline * SLOWER);
        self.lifetime = match latency > baseline * CONFIRMS && latency < baseline / CONFIRMS {
            true => Nanos::new(2 * self.lifetime.get()).min(MAX_LIFETIME),
            false => FIRST_LIFETIME,
        };
        self.set_baseline(f64::midpoint(baseline, near), now);
        // What took longer than one response after another was a pause.
        let one = self.baseline().unwrap_or(Nanos::ZERO).get();
        let longest = one.saturating_mul(MIN_SAMPLES as u64);
        let took = now.since(self.window.since).get().min(longest);
        let shortest = Nanos::new(took.saturating_mul(LIFETIME_PER_PROBE));
        self.lifetime = self.lifetime.max(shortest);
        self.limit = self.bounds.clamp(from);
    }

    /// Whether latency is more than any queue of as many requests as the limit explains, even at a
    /// server that is left with one worker. Where slots are free, there are fewer.
    fn is_beyond_queue(&self, latency: f64, baseline: f64) -> bool {
        latency > CLEARLY * self.limit * baseline
    }

    /// Whether latency stays high although the limit has fallen.
    fn fell_in_vain(&mut self, latency: f64) -> bool {
        let (from, peak) = self.descent.unwrap_or((self.limit, latency));
        self.descent = Some((from, peak.max(latency)));
        let least = self.bounds.min().min(from * MAX_DECREASE);
        let low = (from * IN_VAIN).max(least).max(1.0);
        self.limit <= low && latency > peak * UNCHANGED
    }

    fn headroom(&self) -> f64 {
        (self.limit * GROWTH).max(MIN_GROWTH)
    }

    fn probe(&mut self) {
        self.probing = Some(self.limit);
        self.limit = self.bounds.clamp(self.limit / 2.0);
    }

    fn set_baseline(&mut self, latency: f64, now: Timestamp) {
        self.baseline = Some(latency);
        self.baseline_since = now;
        self.descent = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const MILLI: u64 = 1_000_000;

    fn bounds(min: u32, max: u32) -> ConcurrencyBounds {
        ConcurrencyBounds {
            min: NonZeroU32::new(min).unwrap(),
            max: NonZeroU32::new(max).unwrap(),
        }
    }

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// A server of so many workers, always asked for more than it can do.
    struct Server {
        /// What each worker takes for a request.
        time: u64,
        workers: VecDeque<u64>,
        in_flight: VecDeque<(u64, u64)>,
        now: u64,
        /// For how long the limit was at its half, to measure.
        measured: u64,
    }

    impl Server {
        fn new(workers: usize) -> Self {
            Self {
                time: 20 * MILLI,
                workers: std::iter::repeat_n(0, workers).collect(),
                in_flight: VecDeque::new(),
                now: 0,
                measured: 0,
            }
        }

        /// Serves for a while, and returns how many requests it has served, and the latency of the
        /// last one.
        fn serve(&mut self, limit: &mut AdaptiveLimit, millis: u64) -> (u64, u64) {
            let (end, mut served, mut latency) = (self.now + millis * MILLI, 0, 0);
            while self.now < end {
                while self.in_flight.len() < limit.get() as usize {
                    let free = self.workers.pop_front().unwrap();
                    let done = free.max(self.now) + self.time;
                    self.workers.push_back(done);
                    self.in_flight.push_back((self.now, done));
                }
                limit.saturated();
                let (admitted, done) = self.in_flight.pop_front().unwrap();
                if limit.probing.is_some() {
                    self.measured += done.saturating_sub(self.now);
                }
                self.now = self.now.max(done);
                latency = self.now - admitted;
                served += 1;
                let reply = ServerReply::Response(Nanos::new(latency));
                limit.replied(at(admitted), reply, at(self.now));
            }
            (served, latency)
        }
    }

    #[test]
    fn the_limit_finds_what_a_server_bears_and_keeps_its_latency_below_twice_the_usual() {
        for workers in [2, 10, 100, 400] {
            let mut limit = AdaptiveLimit::new(bounds(1, 1000), at(0));
            let mut server = Server::new(workers);
            server.serve(&mut limit, 20_000);
            let (served, latency) = server.serve(&mut limit, 10_000);
            let capacity = workers as u64 * 10_000 / 20;
            assert!(
                served >= capacity * 9 / 10,
                "{workers}: {served} of {capacity}"
            );
            assert!(latency <= 40 * MILLI, "{workers}: {latency} ns");
        }
    }

    /// At half of the limit, up to half of the capacity is idle.
    #[test]
    fn measurements_do_not_cost_a_slow_server_more_than_a_tenth_of_its_capacity() {
        for seconds in [1, 5, 20, 60] {
            let mut limit = AdaptiveLimit::new(bounds(1, 1000), at(0));
            let mut server = Server::new(20);
            server.time = seconds * 1000 * MILLI;
            server.serve(&mut limit, seconds * 1_000_000);
            let share = server.measured as f64 / server.now as f64;
            assert!(share <= 0.2, "{seconds} s: {share}");
        }
    }

    #[test]
    fn a_server_that_loses_most_of_its_workers_does_not_stay_slow() {
        let mut limit = AdaptiveLimit::new(bounds(1, 1000), at(0));
        let mut server = Server::new(40);
        server.serve(&mut limit, 20_000);
        server.workers.drain(4..);
        server.serve(&mut limit, 3000);
        let (served, latency) = server.serve(&mut limit, 10_000);
        assert!(served >= 4 * 500 * 9 / 10, "{served}");
        assert!(latency < 50 * MILLI, "{latency} ns");
        let now = server.now;
        server.workers.extend(std::iter::repeat_n(now, 36));
        server.serve(&mut limit, 5000);
        let (served, _) = server.serve(&mut limit, 10_000);
        assert!(served >= 40 * 500 * 9 / 10, "{served}");
    }

    #[test]
    fn replies_that_are_slower_without_a_queue_do_not_keep_the_limit_low() {
        let mut limit = AdaptiveLimit::new(bounds(1, 1000), at(0));
        let mut now = 0;
        let mut reply = |latency: u64, limit: &mut AdaptiveLimit| {
            limit.saturated();
            let admitted = now;
            now += 4 * MILLI;
            let reply = ServerReply::Response(Nanos::new(latency * MILLI));
            limit.replied(at(admitted), reply, at(now));
        };
        for _ in 0..10_000 {
            reply(20, &mut limit);
        }
        let before = limit.get();
        for _ in 0..10_000 {
            reply(100, &mut limit);
        }
        assert!(limit.get() >= before / 2, "{} after {before}", limit.get());
        assert_eq!(limit.baseline(), Some(Nanos::new(100 * MILLI)));
    }

    /// Clients that ask again when they have their response, or a tenth of a second after they were
    /// shed. Each response takes as long, however many there are. Returns how many requests were
    /// served and how many were shed.
    fn ask(
        limit: &mut AdaptiveLimit,
        now: &mut u64,
        clients: usize,
        latency: u64,
        millis: u64,
    ) -> (u64, u64) {
        let end = *now + millis * MILLI;
        let (mut served, mut shed, mut in_flight) = (0, 0, 0);
        // When each goes on, and when its request was admitted, if it has one.
        let mut clients: Vec<(u64, Option<u64>)> = (0..clients as u64)
            .map(|nth| (*now + nth * 1000, None))
            .collect();
        loop {
            let (at_nanos, admitted) = clients.iter_mut().min_by_key(|(at, _)| *at).unwrap();
            *now = *at_nanos;
            if *now >= end {
                return (served, shed);
            }
            if let Some(since) = admitted.take() {
                in_flight -= 1;
                served += 1;
                limit.replied(
                    at(since),
                    ServerReply::Response(Nanos::new(*now - since)),
                    at(*now),
                );
                *at_nanos += 100_000;
            } else if in_flight < limit.get() {
                in_flight += 1;
                *admitted = Some(*now);
                *at_nanos += latency;
            } else {
                shed += 1;
                *at_nanos += 100 * MILLI;
            }
            if in_flight >= limit.get() {
                limit.saturated();
            }
        }
    }

    /// With a limit that was learned from them, 40% of what came was shed for three seconds.
    #[test]
    fn slow_requests_after_quick_ones_are_not_shed_where_the_server_bears_them() {
        for (latency, most) in [
            (2, 0),
            (5, 1),
            (12, 5),
            (30, 5),
            (50, 0),
            (100, 0),
            (400, 0),
        ] {
            for quick in [3, 20] {
                let mut limit = AdaptiveLimit::new(bounds(1, 1000), at(0));
                let mut now = 0;
                ask(&mut limit, &mut now, quick, MILLI, 3000);
                let (served, shed) = ask(&mut limit, &mut now, 18, latency * MILLI, 3000);
                let of = served + shed;
                assert!(shed * 100 <= most * of, "{latency} ms: {shed} of {of}");
            }
        }
    }

    #[test]
    fn a_pause_of_the_server_is_not_taken_for_its_usual_latency() {
        let mut limit = AdaptiveLimit::new(bounds(1, 1000), at(0));
        let mut now = 0;
        ask(&mut limit, &mut now, 18, 5 * MILLI, 3000);
        let before = limit.get();
        ask(&mut limit, &mut now, 18, 2000 * MILLI, 2100);
        ask(&mut limit, &mut now, 18, 5 * MILLI, 1000);
        assert!(
            limit.baseline() < Some(Nanos::new(10 * MILLI)),
            "{:?}",
            limit.baseline()
        );
        assert!(limit.get() >= before / 2, "{} after {before}", limit.get());
    }

    /// Latency is beyond what a queue explains at a server that is as quick as before. Slots are
    /// taken, though, and a lower limit shows that there is one.
    #[test]
    fn a_queue_at_a_server_that_is_slower_as_well_is_not_taken_for_its_usual_latency() {
        let mut limit = AdaptiveLimit::new(bounds(1, 1000), at(0));
        let mut server = Server::new(20);
        server.time = MILLI;
        server.serve(&mut limit, 5000);
        let before = limit.get();
        // One worker is left, and takes thrice as long.
        server.workers.truncate(1);
        server.time = 3 * MILLI;
        server.serve(&mut limit, 20_000);
        let (served, latency) = server.serve(&mut limit, 10_000);
        assert!(limit.get() <= before / 4, "{} after {before}", limit.get());
        assert!(latency <= 15 * MILLI, "{latency} ns");
        assert!(served >= 3000, "{served}");
    }

    #[test]
    fn a_limit_that_cannot_fall_to_a_quarter_does_not_stick_at_its_least_when_replies_get_slower() {
        let mut limit = AdaptiveLimit::new(bounds(100, 200), at(0));
        let mut now = 0;
        let mut most = 0;
        for latency in [20, 100] {
            most = 0;
            for request in 0..10_000 {
                limit.saturated();
                let admitted = now;
                now += 4 * MILLI;
                let reply = ServerReply::Response(Nanos::new(latency * MILLI));
                limit.replied(at(admitted), reply, at(now));
                if request > 5000 {
                    most = most.max(limit.get());
                }
            }
        }
        assert_eq!(most, 200);
        assert_eq!(limit.baseline(), Some(Nanos::new(100 * MILLI)));
    }

    /// A night counted as one long measurement, and the next one came after days.
    #[test]
    fn a_pause_in_a_measurement_does_not_put_off_the_next_one() {
        let mut limit = AdaptiveLimit::new(bounds(1, 1000), at(0));
        let mut now = 0;
        let reply = |limit: &mut AdaptiveLimit, now: &mut u64| {
            limit.saturated();
            let admitted = at(*now);
            *now += 4 * MILLI;
            let reply = ServerReply::Response(Nanos::new(20 * MILLI));
            limit.replied(admitted, reply, at(*now));
        };
        while limit.probing.is_none() {
            reply(&mut limit, &mut now);
        }
        now += 8 * 3600 * 1000 * MILLI;
        while limit.probing.is_some() {
            reply(&mut limit, &mut now);
        }
        assert!(limit.lifetime <= MAX_LIFETIME, "{:?}", limit.lifetime);
    }

    #[test]
    fn a_fixed_limit_keeps_no_latency_of_before() {
        let mut limit = AdaptiveLimit::new(bounds(8, 8), at(0));
        let mut now = 0;
        for latency in [20, 100, 30] {
            for _ in 0..500 {
                limit.saturated();
                let admitted = now;
                now += 4 * MILLI;
                let reply = ServerReply::Response(Nanos::new(latency * MILLI));
                limit.replied(at(admitted), reply, at(now));
            }
            assert_eq!(limit.get(), 8);
            assert_eq!(limit.baseline(), Some(Nanos::new(latency * MILLI)));
        }
    }

    #[test]
    fn a_server_that_says_it_is_overloaded_gets_less_though_it_says_so_quickly() {
        let mut limit = AdaptiveLimit::new(bounds(2, 1000), at(0));
        for request in 0..1000 {
            limit.saturated();
            let (admitted, now) = (request * 10 * MILLI, request * 10 * MILLI + MILLI);
            limit.replied(at(admitted), ServerReply::Overloaded, at(now));
        }
        assert_eq!(limit.get(), 2);
    }

    /// Requests that follow one another by the same rule.
    #[derive(Clone, Debug)]
    struct Phase {
        requests: usize,
        millis: std::ops::Range<u64>,
        /// How often, in a hundred replies, all slots are taken and the server says so.
        saturated: u64,
        overloaded: u64,
    }

    fn phases() -> impl Strategy<Value = Vec<Phase>> {
        let times = prop::sample::select(vec![1..10, 10..30, 20..22, 30..90, 60..400]);
        let saturated = prop::sample::select(vec![0, 0, 5, 100]);
        let overloaded = prop::sample::select(vec![0, 0, 0, 5, 30]);
        let phase = (20..300_usize, times, saturated, overloaded).prop_map(
            |(requests, millis, saturated, overloaded)| Phase {
                requests,
                millis,
                saturated,
                overloaded,
            },
        );
        prop::collection::vec(phase, 1..12)
    }

    proptest! {
        /// Beyond what it was before a measurement or a fall, that is.
        #[test]
        fn the_limit_is_never_out_of_bounds_nor_grows_while_slots_are_free(
            min in 1..50_u32,
            more in 0..500_u32,
            pause in 1..20_u64,
            phases in phases(),
            seed in any::<u64>(),
        ) {
            let bounds = bounds(min, min + more);
            let mut limit = AdaptiveLimit::new(bounds, at(0));
            let (mut now, mut random) = (0, seed);
            let mut below = |bound: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % bound
            };
            for Phase { requests, millis, saturated, overloaded } in phases {
                for _ in 0..requests {
                    if below(100) < saturated {
                        limit.saturated();
                    }
                    let latency = (millis.start + below(millis.end - millis.start)) * MILLI;
                    now += pause * MILLI;
                    let reply = match below(100) < overloaded {
                        true => ServerReply::Overloaded,
                        false => ServerReply::Response(Nanos::new(latency)),
                    };
                    let was_saturated = limit.window.saturated;
                    let fallen_from = limit.descent.map_or(0.0, |(from, _)| from);
                    let before = limit.probing.unwrap_or(limit.limit).max(fallen_from);
                    limit.replied(at(now.saturating_sub(latency)), reply, at(now));
                    prop_assert!((min..=min + more).contains(&limit.get()));
                    if !was_saturated {
                        prop_assert!(limit.limit <= before, "it grew without need");
                    }
                }
            }
        }
    }
}
