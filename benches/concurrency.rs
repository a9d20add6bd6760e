//! Which algorithm finds how many requests an app can handle: candidates before a model of an app
//! that loses nine tenths of its workers for a minute, under twice its load.
//!
//! All candidates admit through the same `Slots`, so that the numbers differ by the limit alone.
//! Time is virtual and chance has seeds, so the bench prints the same each time. Run it by
//!
//! ```text
//! cargo bench --bench concurrency                # the table of docs/decisions/0078
//! cargo bench --bench concurrency -- --curves    # a line for each second, as CSV
//! ```

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a simulation prints, and ends when something is wrong"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{
    AdaptiveLimit, Arrival, ConcurrencyBounds, Priority, ServerReply, SlotRequest, Slots, WaiterId,
    places,
};

const SECOND: u64 = 1_000_000_000;
const PHASE: u64 = 60 * SECOND;
/// Runs of each candidate: with few workers and times that vary much, one says little.
const SEEDS: u64 = 7;
/// So many seconds are judged together, as chance makes one of them bad where an app serves 20 to
/// 200 requests in it.
const TOGETHER: usize = 5;
/// A window of the candidates that have none of their own.
const WINDOW: u64 = SECOND / 10;

/// An app, and what is asked of it.
struct Scenario {
    name: &'static str,
    /// Workers and their mean time for a request in each phase.
    phases: [(usize, f64); 3],
    /// Of the first phase's capacity.
    load: f64,
    /// Whether times vary exponentially, or by a tenth.
    varies: bool,
}

const SCENARIOS: [Scenario; 5] = [
    Scenario {
        name: "a tenth of its workers for a minute",
        phases: [(40, 0.020), (4, 0.020), (40, 0.020)],
        load: 2.0,
        varies: true,
    },
    Scenario {
        name: "the same, regular times",
        phases: [(40, 0.020), (4, 0.020), (40, 0.020)],
        load: 2.0,
        varies: false,
    },
    Scenario {
        name: "20 workers that take 100 ms, then 2",
        phases: [(20, 0.100), (2, 0.100), (20, 0.100)],
        load: 2.0,
        varies: false,
    },
    Scenario {
        name: "thrice as slow for a minute, with as many workers",
        phases: [(40, 0.020), (40, 0.060), (40, 0.020)],
        load: 2.0,
        varies: true,
    },
    Scenario {
        name: "a small app: 4 workers, then 1",
        phases: [(4, 0.050), (1, 0.050), (4, 0.050)],
        load: 2.0,
        varies: true,
    },
];

trait Limit {
    fn limit(&self) -> u32;
    fn saturated(&mut self) {}
    fn replied(&mut self, admitted: u64, latency: u64, now: u64, in_flight: u32);
}

struct Fixed(u32);

impl Limit for Fixed {
    fn limit(&self) -> u32 {
        self.0
    }
    fn replied(&mut self, _: u64, _: u64, _: u64, _: u32) {}
}

struct Weir(AdaptiveLimit);

impl Limit for Weir {
    fn limit(&self) -> u32 {
        self.0.get()
    }
    fn saturated(&mut self) {
        self.0.saturated();
    }
    fn replied(&mut self, admitted: u64, latency: u64, now: u64, _: u32) {
        let reply = ServerReply::Response(Nanos::new(latency));
        let at = Timestamp::from_nanos;
        self.0.replied(at(admitted), reply, at(now));
    }
}

/// The latencies of a window, whenever their requests were admitted.
#[derive(Default)]
struct Samples {
    since: u64,
    latencies: Vec<u64>,
    most_in_flight: u32,
}

impl Samples {
    /// The median and the most requests in flight, once the window is over.
    fn add(&mut self, latency: u64, now: u64, in_flight: u32) -> Option<(f64, u32)> {
        self.latencies.push(latency);
        self.most_in_flight = self.most_in_flight.max(in_flight);
        if now - self.since < WINDOW || self.latencies.len() < 10 {
            return None;
        }
        self.latencies.sort_unstable();
        let median = self.latencies[self.latencies.len() / 2] as f64;
        let most = self.most_in_flight;
        *self = Self {
            since: now,
            ..Self::default()
        };
        Some((median, most))
    }
}

/// Netflix's AIMD: a tenth less after a response slower than a time that the operator has to know.
struct Aimd {
    limit: f64,
    too_slow: u64,
}

impl Limit for Aimd {
    fn limit(&self) -> u32 {
        self.limit as u32
    }
    fn replied(&mut self, _: u64, latency: u64, _: u64, in_flight: u32) {
        if latency > self.too_slow {
            self.limit *= 0.9;
        } else if f64::from(in_flight) * 2.0 >= self.limit {
            self.limit += 1.0;
        }
        self.limit = self.limit.clamp(1.0, 1000.0);
    }
}

/// Netflix's Vegas: the queue by the least latency, which is forgotten every so many samples.
struct Vegas {
    limit: f64,
    no_load: f64,
    windows: u32,
    samples: Samples,
}

impl Limit for Vegas {
    fn limit(&self) -> u32 {
        self.limit as u32
    }
    fn replied(&mut self, _: u64, latency: u64, now: u64, in_flight: u32) {
        let Some((latency, in_flight)) = self.samples.add(latency, now, in_flight) else {
            return;
        };
        self.windows += 1;
        if self.windows.is_multiple_of(300) || self.no_load == 0.0 || latency < self.no_load {
            self.no_load = latency;
            return;
        }
        if f64::from(in_flight) * 2.0 < self.limit {
            return;
        }
        let log = self.limit.log10().max(1.0);
        let queue = (self.limit * (1.0 - self.no_load / latency)).ceil();
        self.limit += match queue {
            queue if queue <= log => 6.0 * log,
            queue if queue < 3.0 * log => log,
            queue if queue > 6.0 * log => -log,
            _ => 0.0,
        };
        self.limit = self.limit.clamp(1.0, 1000.0);
    }
}

/// Netflix's Gradient2: the latency of now beside its long average.
struct Gradient2 {
    limit: f64,
    long: f64,
    samples: Samples,
}

impl Limit for Gradient2 {
    fn limit(&self) -> u32 {
        self.limit as u32
    }
    fn replied(&mut self, _: u64, latency: u64, now: u64, in_flight: u32) {
        let Some((short, in_flight)) = self.samples.add(latency, now, in_flight) else {
            return;
        };
        self.long = match self.long {
            0.0 => short,
            long => long + (short - long) * 2.0 / 601.0,
        };
        if self.long / short > 2.0 {
            self.long *= 0.95;
        }
        if f64::from(in_flight) * 2.0 < self.limit {
            return;
        }
        let gradient = (1.5 * self.long / short).clamp(0.5, 1.0);
        let next = self.limit * gradient + 4.0;
        self.limit = (self.limit * 0.8 + next * 0.2).clamp(1.0, 1000.0);
    }
}

/// Envoy's gradient controller with its defaults: the least latency is measured every minute, by 50
/// requests of which 3 are in flight at a time.
struct Envoy {
    limit: f64,
    min_rtt: f64,
    measured: u64,
    /// While the least latency is measured.
    measuring: Vec<u64>,
    is_measuring: bool,
    at_minimum: u32,
    samples: Samples,
}

impl Limit for Envoy {
    fn limit(&self) -> u32 {
        match self.is_measuring {
            true => 3,
            false => self.limit as u32,
        }
    }
    fn replied(&mut self, admitted: u64, latency: u64, now: u64, in_flight: u32) {
        if self.is_measuring {
            if admitted >= self.measured {
                self.measuring.push(latency);
            }
            if self.measuring.len() >= 50 {
                self.measuring.sort_unstable();
                self.min_rtt = self.measuring[25] as f64;
                self.measuring.clear();
                self.is_measuring = false;
                self.measured = now;
            }
            return;
        }
        let Some((sample, _)) = self.samples.add(latency, now, in_flight) else {
            return;
        };
        let gradient = (1.25 * self.min_rtt / sample).clamp(0.5, 2.0);
        self.limit = (self.limit * gradient + self.limit.sqrt()).clamp(3.0, 1000.0);
        self.at_minimum = if self.limit <= 3.0 {
            self.at_minimum + 1
        } else {
            0
        };
        if now - self.measured > 60 * SECOND || self.at_minimum >= 5 {
            self.is_measuring = true;
            self.measured = now;
            self.at_minimum = 0;
        }
    }
}

fn candidates(scenario: &Scenario) -> Vec<(&'static str, Box<dyn Limit>)> {
    let workers = scenario.phases[0].0 as u32;
    let bounds = ConcurrencyBounds {
        min: NonZeroU32::MIN,
        max: NonZeroU32::new(1000).unwrap(),
    };
    let usual = (scenario.phases[0].1 * SECOND as f64) as u64;
    vec![
        ("none", Box::new(Fixed(u32::MAX)) as _),
        ("fixed at its workers", Box::new(Fixed(workers)) as _),
        (
            "AIMD, slow is 4 x usual",
            Box::new(Aimd {
                limit: 20.0,
                too_slow: 4 * usual,
            }) as _,
        ),
        (
            "Vegas",
            Box::new(Vegas {
                limit: 20.0,
                no_load: 0.0,
                windows: 0,
                samples: Samples::default(),
            }) as _,
        ),
        (
            "Gradient2",
            Box::new(Gradient2 {
                limit: 20.0,
                long: 0.0,
                samples: Samples::default(),
            }) as _,
        ),
        (
            "Envoy",
            Box::new(Envoy {
                limit: 3.0,
                min_rtt: 0.0,
                measured: 0,
                measuring: Vec::new(),
                is_measuring: true,
                at_minimum: 0,
                samples: Samples::default(),
            }) as _,
        ),
        (
            "Weir",
            Box::new(Weir(AdaptiveLimit::new(bounds, Timestamp::from_nanos(0)))) as _,
        ),
    ]
}

#[derive(Clone, Copy)]
struct Request {
    arrived: u64,
    admitted: u64,
    priority: Priority,
    client: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    GivesUp(u64),
    Completes(usize),
}

#[derive(Clone, Default)]
struct Second {
    arrived: [u32; 2],
    served: [u32; 2],
    latencies: Vec<u64>,
    limit: f64,
}

/// What became of the requests of each second.
fn simulate(scenario: &Scenario, limit: &mut dyn Limit, seed: u64) -> Vec<Second> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut seconds = vec![Second::default(); 3 * (PHASE / SECOND) as usize];
    let (workers, time) = scenario.phases[0];
    let rate = scenario.load * workers as f64 / time;
    let mut slots: Slots<Request> = Slots::default();
    let mut waiting: Vec<(u64, WaiterId)> = Vec::new();
    let (mut queue, mut busy) = (VecDeque::new(), 0);
    let mut requests: Vec<Request> = Vec::new();
    let mut events = BinaryHeap::from([Reverse((0, Event::Arrives))]);
    let exponential = |mean: f64, random: &mut StdRng| {
        let uniform: f64 = random.random();
        (-mean * (1.0 - uniform).ln() * SECOND as f64) as u64
    };
    let mut number = 0;
    while let Some(Reverse((now, event))) = events.pop() {
        let Some(phase) = scenario.phases.get((now / PHASE) as usize) else {
            break;
        };
        let second = (now / SECOND) as usize;
        let mut admitted: Vec<Request> = Vec::new();
        match event {
            Event::Arrives => {
                events.push(Reverse((
                    now + exponential(1.0 / rate, &mut random),
                    Event::Arrives,
                )));
                let class = usize::from(random.random_range(0..4) == 0);
                seconds[second].arrived[class] += 1;
                let request = Request {
                    arrived: now,
                    admitted: now,
                    priority: [Priority::Low, Priority::High][class],
                    client: random.random_range(0..20),
                };
                let most = limit.limit();
                let asked = SlotRequest {
                    priority: request.priority,
                    client: request.client,
                    now: Timestamp::from_nanos(now),
                };
                // The least may wait for half of the usual latency, as the gateway has it.
                let usual = Nanos::new((scenario.phases[0].1 / 2.0 * SECOND as f64) as u64);
                let wait = slots.longest_wait(asked.priority, usual, asked.now);
                match slots.arrive(most, places(most), asked, || request) {
                    Arrival::Admitted => admitted.push(request),
                    Arrival::Waits { id, .. } => {
                        number += 1;
                        waiting.push((number, id));
                        events.push(Reverse((now + wait.get(), Event::GivesUp(number))));
                    }
                    Arrival::Shed => {}
                }
            }
            Event::GivesUp(number) => {
                let index = waiting.iter().position(|(of, _)| *of == number).unwrap();
                slots.give_up(waiting.swap_remove(index).1);
            }
            Event::Completes(index) => {
                busy -= 1;
                let request = requests[index];
                let class = usize::from(request.priority == Priority::High);
                seconds[second].served[class] += 1;
                seconds[second].latencies.push(now - request.arrived);
                let latency = now - request.admitted;
                limit.replied(request.admitted, latency, now, slots.taken());
                slots.release(request.client);
            }
        }
        while let Some((_, request)) = slots.grant(limit.limit(), Timestamp::from_nanos(now)) {
            admitted.push(Request {
                admitted: now,
                ..request
            });
        }
        if slots.is_short(limit.limit()) {
            limit.saturated();
        }
        for request in admitted {
            requests.push(request);
            queue.push_back(requests.len() - 1);
        }
        while busy < phase.0
            && let Some(index) = queue.pop_front()
        {
            busy += 1;
            let took = match scenario.varies {
                true => exponential(phase.1, &mut random),
                false => (phase.1 * random.random_range(0.9..1.1) * SECOND as f64) as u64,
            };
            events.push(Reverse((now + took.max(1), Event::Completes(index))));
        }
        seconds[second].limit = f64::from(limit.limit());
    }
    seconds
}

fn percentile(latencies: &mut [u64], percent: usize) -> f64 {
    latencies.sort_unstable();
    let index = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
    latencies
        .get(index)
        .map_or(f64::NAN, |nanos| *nanos as f64 / 1e6)
}

fn print_phases(scenario: &Scenario, runs: &[Vec<Second>]) {
    for (phase, (workers, time)) in scenario.phases.iter().enumerate() {
        let of_phase = |run: &Vec<Second>| run[phase * 60..(phase + 1) * 60].to_vec();
        let phases: Vec<Vec<Second>> = runs.iter().map(of_phase).collect();
        // The first seconds of a phase are the way there.
        let settled: Vec<&Second> = phases.iter().flat_map(|phase| &phase[5..]).collect();
        let capacity = *workers as f64 / time;
        let goodput = |seconds: &[Second]| {
            let served = seconds.iter().flat_map(|second| second.served);
            f64::from(served.sum::<u32>()) / capacity / seconds.len() as f64
        };
        let goodputs: Vec<f64> = phases.iter().map(|phase| goodput(&phase[5..])).collect();
        let better = |of: fn(&Second) -> u32| -> f64 {
            f64::from(settled.iter().map(|second| of(second)).sum::<u32>())
        };
        let better = better(|second| second.served[1]) / better(|second| second.arrived[1]);
        let mut latencies: Vec<u64> = (settled.iter())
            .flat_map(|second| second.latencies.iter().copied())
            .collect();
        let limits = settled.iter().map(|second| second.limit);
        let count = settled.len() as f64;
        let mean = limits.clone().sum::<f64>() / count;
        let variance = limits.map(|limit| (limit - mean).powi(2)).sum::<f64>() / count;
        let is_bad = |seconds: &[Second]| {
            let latencies = seconds.iter().flat_map(|second| &second.latencies);
            let mut latencies: Vec<u64> = latencies.copied().collect();
            goodput(seconds) < 0.85 || percentile(&mut latencies, 50) > 2000.0 * time
        };
        // Up to the last bad seconds: an app may be bad again after the first good ones.
        let settling = |phase: &Vec<Second>| match phase.windows(TOGETHER).rposition(is_bad) {
            Some(last) if last + TOGETHER == phase.len() => phase.len(),
            last => last.map_or(0, |last| last + 1),
        };
        let mut settling: Vec<usize> = phases.iter().map(settling).collect();
        settling.sort_unstable();
        print!(
            " | {:3.0} {:3.0} % {:6.0} {:6.0} ms {:3.0} % {:5.0} ±{:3.0} {:2} {:2} s",
            100.0 * goodputs.iter().copied().fold(f64::INFINITY, f64::min),
            100.0 * goodputs.iter().sum::<f64>() / goodputs.len() as f64,
            percentile(&mut latencies, 50),
            percentile(&mut latencies, 99),
            100.0 * better,
            mean.min(9999.0),
            variance.sqrt().min(999.0),
            settling[settling.len() / 2],
            settling[settling.len() - 1],
        );
    }
    println!();
}

fn main() {
    let has = |name| std::env::args().any(|argument| argument == name);
    let curves = has("--curves");
    // `cargo test` runs this too, without the argument: one scenario is enough to see that it works.
    let (scenarios, seeds) = match has("--bench") {
        true => (SCENARIOS.len(), SEEDS),
        false => (1, 1),
    };
    for scenario in SCENARIOS.iter().take(scenarios) {
        println!("\n{}", scenario.name);
        println!(
            "{:24} for each phase: least and mean goodput of capacity, median and 99th percentile \
             of latency, better class served, limit, seconds until it stays good in the median \
             and in the worst run (60: never)",
            ""
        );
        for (index, (name, _)) in candidates(scenario).iter().enumerate() {
            let run = |seed| {
                let (_, mut limit) = candidates(scenario).swap_remove(index);
                simulate(scenario, &mut *limit, seed)
            };
            let runs: Vec<_> = (0..seeds).map(run).collect();
            if curves {
                for (second, of) in runs[0].iter().enumerate() {
                    let mut latencies = of.latencies.clone();
                    let served: u32 = of.served.iter().sum();
                    let (median, limit) = (percentile(&mut latencies, 50), of.limit);
                    println!("{name},{second},{served},{median:.1},{limit}");
                }
                continue;
            }
            print!("{name:24}");
            print_phases(scenario, &runs);
        }
    }
}
