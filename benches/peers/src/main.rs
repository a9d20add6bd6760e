//! Weir's memory store beside governor's keyed limiter and throttlecrab's: time, memory and
//! instructions of a decision.
//!
//! ```text
//! weir-peers speed [BUCKETS [ROUNDS]]    times and ratios, interleaved
//! weir-peers memory [BUCKETS]            bytes a bucket, each limiter in a process of its own
//! weir-peers instructions [BUCKETS]      instructions and cache misses, by valgrind
//! ```

mod instructions;
mod job;
mod limiter;
mod memory;
mod speed;
mod timing;

use std::process::ExitCode;

use speed::Plan;

const USAGE: &str = "usage: weir-peers speed|memory|instructions [BUCKETS [ROUNDS]]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprintln!("{USAGE}; at most {} buckets", job::MAX_BUCKETS);
            ExitCode::from(2)
        }
    }
}

/// What was asked for; nothing when it makes no sense.
fn run(words: &[String]) -> Option<()> {
    let what = words.first()?;
    let buckets = words
        .get(1)
        .map_or(Some(1_000_000), |word| word.parse().ok())?;
    if !(1..=job::MAX_BUCKETS).contains(&buckets) {
        return None;
    }
    match (what.as_str(), words.get(2)) {
        ("speed", rounds) => speed::measure(Plan {
            buckets,
            rounds: rounds.map_or(Some(9), |word| word.parse().ok())?,
            decisions: 500_000,
        }),
        ("memory", None) => memory::measure(buckets),
        ("instructions", None) => instructions::measure(buckets),
        // What these start in processes of their own.
        ("memory", Some(name)) => limiter::visit(name, memory::Report { buckets }),
        ("instructions", Some(name)) => limiter::visit(name, instructions::Hits { buckets }),
        _ => return None,
    }
    Some(())
}
