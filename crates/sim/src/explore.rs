//! Many simulations: each on a thread of its own, some at a time, with counts of what they met.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{self, UnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::laws::{self, Failure};
use crate::scenario::Scenario;
use crate::trace::{Trace, What, moment};
use crate::world;

/// A simulation that is over.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What was simulated.
    pub scenario: Scenario,
    /// What happened; nothing if it panicked.
    pub trace: Trace,
    /// The laws that were broken.
    pub failures: Vec<Failure>,
}

/// Simulates a scenario, which has a thread of its own: so nothing is left of the one before.
#[must_use]
pub fn simulate(scenario: &Scenario) -> Outcome {
    let ran = caught(|| world::run(scenario));
    let ran = ran.and_then(|ran| ran.map_err(|error| broke(error.to_string())));
    let (trace, failures) = match ran {
        Ok(trace) => {
            let failures = judged(scenario, &trace);
            (trace, failures)
        }
        Err(failure) => (Trace::default(), vec![failure]),
    };
    Outcome {
        scenario: scenario.clone(),
        trace,
        failures,
    }
}

/// What laws say of a trace. A law that panics is broken, and ends no search.
fn judged(scenario: &Scenario, trace: &Trace) -> Vec<Failure> {
    caught(|| laws::check(scenario, trace)).unwrap_or_else(|failure| vec![failure])
}

fn caught<T>(run: impl FnOnce() -> T + UnwindSafe) -> Result<T, Failure> {
    panic::catch_unwind(run).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        broke(format!("panicked: {}", text.unwrap_or("without a text")))
    })
}

fn broke(what: String) -> Failure {
    Failure {
        law: "no panic",
        promise: "docs/SIMULATION.md: neither a gateway nor the simulator panics",
        at: Duration::ZERO,
        what,
    }
}

/// Which seeds to run.
#[derive(Debug, Clone)]
pub enum Seeds {
    List(Vec<u64>),
    /// From a first one on, for a time.
    For(u64, Duration),
}

/// What happens in so long after a fault that is over in a moment is counted as its.
const AFTERMATH: Duration = Duration::from_secs(1);

/// What many simulations have found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Simulations that broke a law, with the first failure of each.
    pub failed: Vec<(u64, Failure)>,
    /// How many simulations there were.
    pub runs: u64,
    /// How long their worlds lasted, added up.
    pub worlds: Duration,
    /// How long gateways ran in them, added up.
    pub simulated: Duration,
    /// How much time processors spent.
    pub processors: Duration,
    /// By kind of fault, or circumstance of a scenario: how many there were, and what gateways
    /// logged and sent while they lasted.
    faults: BTreeMap<String, Met>,
}

#[derive(Debug, Default)]
struct Met {
    count: u64,
    statuses: BTreeMap<u16, u64>,
    logged: BTreeSet<String>,
}

/// Runs seeds on all processors. `failed` is called at each failure.
pub fn explore(seeds: &Seeds, failed: impl Fn(&Outcome) + Sync) -> Findings {
    let began = Instant::now();
    let processors = processor_time();
    let next = AtomicU64::new(0);
    let seed = || {
        let turn = next.fetch_add(1, Ordering::Relaxed);
        match seeds {
            Seeds::List(list) => list.get(usize::try_from(turn).ok()?).copied(),
            Seeds::For(first, time) => (began.elapsed() < *time).then_some(first + turn),
        }
    };
    let findings = Mutex::new(Findings::default());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = seed() {
                    let outcome = simulate(&Scenario::generate(seed));
                    if !outcome.failures.is_empty() {
                        failed(&outcome);
                    }
                    findings
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .add(&outcome);
                }
            });
        }
    });
    let mut findings = findings
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    findings.processors = processor_time().saturating_sub(processors);
    findings.failed.sort_by_key(|(seed, _)| *seed);
    findings
}

impl Findings {
    fn add(&mut self, outcome: &Outcome) {
        let scenario = &outcome.scenario;
        self.runs += 1;
        let gateways = u32::try_from(scenario.gateways.len()).unwrap_or(1);
        let lasts = scenario.duration + scenario.quiet;
        self.worlds += lasts;
        self.simulated += lasts * gateways;
        if let Some(failure) = outcome.failures.first() {
            self.failed.push((scenario.seed, failure.clone()));
        }
        let mut open: BTreeMap<usize, (String, Duration)> = BTreeMap::new();
        for (number, circumstance) in scenario.circumstances().into_iter().enumerate() {
            self.faults.entry(circumstance.into()).or_default().count += 1;
            open.insert(usize::MAX - number, (circumstance.into(), Duration::MAX));
        }
        for event in &outcome.trace.events {
            open.retain(|_, (_, until)| event.at <= *until);
            match &event.what {
                What::FaultBegan { fault } => {
                    let kind = scenario.faults.get(*fault).map(|fault| fault.kind.name());
                    let kind = kind.unwrap_or_default();
                    self.faults.entry(kind.clone()).or_default().count += 1;
                    open.insert(*fault, (kind, Duration::MAX));
                }
                What::FaultEnded { fault } => {
                    let began = scenario
                        .faults
                        .get(*fault)
                        .map_or(event.at, |fault| fault.at);
                    if let Some((_, until)) = open.get_mut(fault) {
                        *until = event.at.max(began + AFTERMATH);
                    }
                }
                What::Answered { status, .. } => {
                    for (kind, _) in open.values() {
                        let met = self.faults.entry(kind.clone()).or_default();
                        *met.statuses.entry(*status).or_default() += 1;
                    }
                }
                What::Log { line, .. } => {
                    // Without its fields.
                    let text = line.split(['=', '"']).next().unwrap_or_default();
                    for (kind, _) in open.values() {
                        self.faults
                            .entry(kind.clone())
                            .or_default()
                            .logged
                            .insert(text.into());
                    }
                }
                _ => {}
            }
        }
    }

    /// For people: what failed comes last, where they look first.
    #[must_use]
    pub fn report(&self) -> String {
        let mut out = String::new();
        for (kind, met) in &self.faults {
            let statuses: Vec<String> = met
                .statuses
                .iter()
                .map(|(status, count)| format!("{status} x {count}"))
                .collect();
            let _ = writeln!(
                out,
                "{:>7} {kind:<24} {} kinds of log lines; {}",
                met.count,
                met.logged.len(),
                statuses.join(", ")
            );
        }
        let minutes = self.processors.as_secs_f64() / 60.0;
        let worlds = self.worlds.as_secs_f64() / 3600.0;
        let hours = self.simulated.as_secs_f64() / 3600.0;
        let _ = writeln!(
            out,
            "{} simulations, {} failed; {worlds:.1} hours of worlds, {hours:.1} of gateways in \
             {minutes:.2} minutes of processors: {:.0} times real time, {:.0} by gateways",
            self.runs,
            self.failed.len(),
            60.0 * worlds / minutes.max(1e-9),
            60.0 * hours / minutes.max(1e-9),
        );
        for (seed, failure) in &self.failed {
            let Failure {
                law,
                promise,
                at,
                what,
            } = failure;
            let summary = Scenario::generate(*seed).summary();
            let _ = writeln!(out, "seed {seed}: {summary}");
            let _ = writeln!(out, "  {law} at {}: {what}", moment(*at));
            let _ = writeln!(out, "  promised by {promise}");
        }
        if !self.failed.is_empty() {
            out += "--seed N --shrink tells one of them as a story\n";
        }
        out
    }
}

/// What this process has spent, as Linux counts it in hundredths of a second.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|it| it.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

/// The seeds of a file with one a line, and behind it what the seed has found.
#[must_use]
pub fn kept(text: &str) -> Vec<u64> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::LAWS;
    use crate::scenario::{Fault, FaultKind};
    use crate::trace::Event;

    #[test]
    fn a_file_of_seeds_has_one_a_line_and_comments() {
        assert_eq!(kept("# seeds\n17 a refund\n\n4  # b\n"), [17, 4]);
    }

    #[test]
    fn what_failed_comes_last_each_with_its_sentence_and_how_to_go_on() {
        let mut findings = Findings::default();
        findings.add(&Outcome {
            scenario: Scenario::generate(7),
            trace: Trace::default(),
            failures: vec![Failure {
                law: LAWS[0].name,
                promise: LAWS[0].promises[0],
                at: Duration::from_millis(1500),
                what: "too much".into(),
            }],
        });
        let report = findings.report();
        let lines: Vec<&str> = report.lines().collect();
        let (counts, failed) = lines.split_at(lines.len() - 4);
        assert!(
            counts
                .last()
                .unwrap()
                .starts_with("1 simulations, 1 failed;")
        );
        assert!(failed[0].starts_with("seed 7: "));
        assert_eq!(
            failed[1..],
            [
                "  bound at 1.500000: too much",
                "  promised by docs/ALGORITHMS.md: passes in any period, at most",
                "--seed N --shrink tells one of them as a story",
            ]
        );
    }

    #[test]
    fn what_follows_a_momentary_fault_is_counted_as_its() {
        let mut scenario = Scenario::generate(7);
        scenario.faults = vec![Fault {
            at: Duration::from_secs(1),
            kind: FaultKind::Flush { server: 0 },
        }];
        let event = |millis, what| Event {
            at: Duration::from_millis(millis),
            what,
        };
        let answered = |millis| {
            let (request, status, headers) = ((0, 0), 200, Vec::new());
            event(
                millis,
                What::Answered {
                    request,
                    status,
                    headers,
                },
            )
        };
        let events = vec![
            answered(900),
            event(1000, What::FaultBegan { fault: 0 }),
            event(1000, What::FaultEnded { fault: 0 }),
            answered(1500),
            answered(2500),
        ];
        let mut findings = Findings::default();
        findings.add(&Outcome {
            scenario,
            trace: Trace { events },
            failures: Vec::new(),
        });
        let met = &findings.faults["Flush"];
        assert_eq!((met.count, met.statuses[&200]), (1, 1));
    }

    #[test]
    fn a_law_that_panics_is_a_failure_of_its_seed() {
        let scenario = Scenario::generate(7);
        let too_late_to_add_to = Event {
            at: Duration::MAX,
            what: What::Promoted {
                server: 0,
                replaced: 1,
                lost_writes: 0,
            },
        };
        let trace = Trace {
            events: vec![too_late_to_add_to],
        };
        let failures = judged(&scenario, &trace);
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].law, "no panic");
        assert!(failures[0].what.starts_with("panicked: "));
    }

    /// All of them take minutes without optimisation: CI runs `weir-sim --kept`.
    #[test]
    fn the_newest_seeds_that_found_something_do_not_fail_again() {
        let mut seeds = kept(include_str!("../seeds.txt"));
        let newest = seeds.split_off(seeds.len() - 6);
        let findings = explore(&Seeds::List(newest), |_| {});
        assert_eq!(findings.failed, []);
    }
}
