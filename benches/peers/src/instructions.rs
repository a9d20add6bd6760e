//! How many instructions a decision takes and how many cache lines it waits for, by callgrind: the
//! same on every machine, however busy, up to the random hashes.

use std::fs;
use std::process::{Command, Stdio};

use crate::job::Random;
use crate::limiter::{self, Limiter, Visit, WeirThrice};
use crate::timing::{decide_all, fill, in_blocks};

const DECISIONS: u32 = 20_000;

/// A first-level cache as it is common; there is no second in the simulation's figures here.
const FIRST_LEVEL: &str = "--D1=49152,12,64";

/// Prints instructions and cache misses of every limiter, each in a process of its own.
pub fn measure(buckets: u32) {
    println!(
        "| {:<24} | {:>12} | {:>12} |",
        "", "instructions", "cache misses"
    );
    println!("| {:-<24} | {:->11}: | {:->11}: |", "", "", "");
    for name in limiter::NAMES.into_iter().chain([WeirThrice::NAME]) {
        let profile = std::env::temp_dir().join(format!("weir-peers.{}", std::process::id()));
        let run = Command::new("valgrind")
            .args(["--tool=callgrind", "--cache-sim=yes", FIRST_LEVEL])
            .arg("--toggle-collect=*counted*")
            .arg(format!("--callgrind-out-file={}", profile.display()))
            .arg(std::env::current_exe().expect("the path of this program"))
            .args(["instructions", &buckets.to_string(), name])
            .stderr(Stdio::null())
            .status();
        assert!(
            run.expect("valgrind, which has to be installed").success(),
            "{name}"
        );
        let text = fs::read_to_string(&profile).expect("callgrind's profile");
        let a_decision = |event| total(&text, event) as f64 / f64::from(DECISIONS);
        let misses = a_decision("D1mr") + a_decision("D1mw");
        println!(
            "| {name:<24} | {:>12.0} | {misses:>12.1} |",
            a_decision("Ir")
        );
        // The profile is of no further use, and in nobody's way.
        let _ = fs::remove_file(&profile);
    }
}

/// The sum of an event's count, by the lines of a profile that name the events and their totals.
fn total(profile: &str, event: &str) -> u64 {
    let words = |key| {
        let line = profile
            .lines()
            .find_map(|line: &str| line.strip_prefix(key));
        line.expect("a line of callgrind's profile")
            .split_whitespace()
    };
    let at = words("events:")
        .position(|name| name == event)
        .expect(event);
    words("totals:")
        .nth(at)
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

/// What is run under callgrind: hits of known buckets, at random.
pub struct Hits {
    pub buckets: u32,
}

impl Visit for Hits {
    fn visit<L: Limiter>(self) {
        let limiter = L::new(self.buckets);
        fill(&limiter, self.buckets);
        let mut random = Random::new(1);
        let numbers = (0..DECISIONS).map(|_| random.below(self.buckets));
        in_blocks(&limiter, numbers, |block| counted(&limiter, block));
    }
}

/// Callgrind counts from its beginning to its end.
#[inline(never)]
fn counted<L: Limiter>(limiter: &L, block: &mut [L::Query]) -> usize {
    decide_all(limiter, block)
}
