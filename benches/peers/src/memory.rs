//! How much memory buckets take: what the process grows by while they are made, as its operating
//! system counts it, so that what an allocator keeps back counts as well.

use std::fs;
use std::process::Command;

use crate::limiter::{self, Limiter, Visit};
use crate::timing::fill;

/// Prints the bytes a bucket of every limiter, each in a process of its own.
pub fn measure(buckets: u32) {
    println!(
        "| {:<24} | {:>14} | {:>14} |",
        "", "bytes a bucket", "at the peak"
    );
    println!("| {:-<24} | {:->13}: | {:->13}: |", "", "", "");
    let program = std::env::current_exe().expect("the path of this program");
    for name in limiter::NAMES {
        let mut child = Command::new(&program);
        let child = child.args(["memory", &buckets.to_string(), name]);
        assert!(child.status().expect("a process").success(), "{name}");
    }
}

/// Makes the buckets of one limiter in this process, and prints its line of the table.
pub struct Report {
    pub buckets: u32,
}

impl Visit for Report {
    fn visit<L: Limiter>(self) {
        let limiter = L::new(self.buckets);
        // What making keys takes is there before.
        fill(&limiter, 1);
        let before = status("VmRSS");
        fill(&limiter, self.buckets);
        let a_bucket = |bytes: u64| bytes.saturating_sub(before) as f64 / f64::from(self.buckets);
        let (now, peak) = (a_bucket(status("VmRSS")), a_bucket(status("VmHWM")));
        println!("| {:<24} | {now:>14.1} | {peak:>14.1} |", L::NAME);
    }
}

/// Bytes, from a line of `/proc/self/status`.
fn status(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux's /proc");
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let mut words = line.expect(key).split_whitespace();
    1024 * words
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok())
        .expect(key)
}
