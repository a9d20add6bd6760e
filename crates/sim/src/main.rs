//! The simulator's command.

#![expect(clippy::print_stderr, reason = "a command prints")]

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use weir_sim::explore::{Outcome, Seeds, explore, kept, simulate};
use weir_sim::laws::Failure;
use weir_sim::scenario::Scenario;
use weir_sim::{shrink, timeline};

const USAGE: &str = "\
usage: weir-sim --seed N [--shrink]          replays a seed, and tells what happened
       weir-sim --scenario FILE [--shrink]   the same of a scenario that was saved
       weir-sim --seeds A..B                 runs the seeds from A on, B not included
       weir-sim --for 60s [--from A]         runs seeds that were not run before, or those from A on
       weir-sim --kept                       runs the seeds that once found something
 --save FILE with --seed or --scenario saves the scenario, shrunk if it was, as JSON
 --quiet     with --seed or --scenario prints the verdict alone
 --help      prints this
Exit codes: 0 all laws were kept, 1 one was broken, 2 bad usage.
";

/// How many simulations shrinking takes at most.
const TRIES: usize = 600;

#[derive(Debug, Default)]
struct Arguments {
    scenario: Option<Scenario>,
    seeds: Option<Seeds>,
    from: Option<u64>,
    time: Option<Duration>,
    save: Option<String>,
    shrink: bool,
    quiet: bool,
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help") {
        say(USAGE);
        return ExitCode::SUCCESS;
    }
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprint!("weir-sim: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match (&arguments.scenario, &arguments.seeds) {
        (Some(scenario), None) => replay(scenario, &arguments),
        (None, Some(seeds)) => search(seeds),
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(argument) = given.next() {
        let mut value = || {
            given
                .next()
                .ok_or_else(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--seed" => arguments.scenario = Some(Scenario::generate(number(&value()?)?)),
            "--scenario" => arguments.scenario = Some(read(&value()?)?),
            "--seeds" => {
                let range = value()?;
                let (from, until) = range.split_once("..").ok_or("--seeds A..B")?;
                let list = (number(from)?..number(until)?).collect();
                arguments.seeds = Some(Seeds::List(list));
            }
            "--for" => {
                let text = value()?;
                let seconds = number(text.trim_end_matches(['s', 'm', 'h']))?;
                let factor = match text.chars().last() {
                    Some('h') => 3600,
                    Some('m') => 60,
                    _ => 1,
                };
                arguments.time = Some(Duration::from_secs(seconds * factor));
            }
            "--from" => arguments.from = Some(number(&value()?)?),
            "--kept" => arguments.seeds = Some(Seeds::List(kept(include_str!("../seeds.txt")))),
            "--save" => arguments.save = Some(value()?),
            "--shrink" => arguments.shrink = true,
            "--quiet" => arguments.quiet = true,
            _ => return Err(format!("{argument} is unknown")),
        }
    }
    if let Some(time) = arguments.time {
        // The clock gives seeds that nobody has run.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let fresh = now.map_or(0, |since| since.as_secs()) * 1_000_000;
        arguments.seeds = Some(Seeds::For(arguments.from.unwrap_or(fresh), time));
    }
    Ok(arguments)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number"))
}

fn read(path: &str) -> Result<Scenario, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))
}

/// Simulates one scenario, and tells about it.
fn replay(scenario: &Scenario, arguments: &Arguments) -> ExitCode {
    let mut outcome = simulate(scenario);
    if let (true, Some(first)) = (arguments.shrink, outcome.failures.first()) {
        let (law, promise) = (first.law, first.promise);
        let began = Instant::now();
        let smallest = shrink::shrink(scenario, TRIES, |candidate| {
            simulate(candidate)
                .failures
                .iter()
                .any(|failure| failure.law == law && failure.promise == promise)
        });
        say(&format!("shrunk in {:?}\n", began.elapsed()));
        outcome = simulate(&smallest);
    }
    if let Some(path) = &arguments.save {
        let text = serde_json::to_string_pretty(&outcome.scenario).unwrap_or_default();
        if let Err(error) = std::fs::write(path, text + "\n") {
            eprintln!("weir-sim: {path}: {error}");
            return ExitCode::from(2);
        }
    }
    tell(&outcome, arguments.quiet);
    if outcome.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn tell(outcome: &Outcome, quiet: bool) {
    let Outcome {
        scenario,
        trace,
        failures,
    } = outcome;
    if !quiet {
        say(&timeline::setting(scenario));
        say(&timeline::events(scenario, trace, failures));
    }
    say(&timeline::verdict(failures));
}

/// Prints, to nobody if the reader has what it wants and is gone: `| head` changes no exit code.
fn say(text: &str) {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => eprintln!("weir-sim: {error}"),
        _ => {}
    }
}

/// Simulates many seeds, and tells at the end of those that break a law. They are named at once as
/// well, for who ends a long search early.
fn search(seeds: &Seeds) -> ExitCode {
    let findings = explore(
        seeds,
        |Outcome {
             scenario, failures, ..
         }| {
            if let Some(Failure { law, .. }) = failures.first() {
                let _ = writeln!(io::stderr(), "seed {} breaks {law}", scenario.seed);
            }
        },
    );
    say(&findings.report());
    if findings.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
