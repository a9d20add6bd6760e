//! What must hold in every simulation. Each law quotes the sentence of the docs that promises it,
//! and is written from the docs, without a call of the product's code.

#![expect(
    clippy::indexing_slicing,
    reason = "an index that is out of range is a fault of these lines, and ends the run"
)]

mod availability;
mod bans;
mod bound;
mod delay;
pub mod history;
mod in_flight;
mod policy;
mod quiet;
mod reference;
mod retry_after;

#[cfg(test)]
mod tests;

use std::time::Duration;

use history::History;

use crate::scenario::Scenario;
use crate::trace::Trace;

/// A law.
#[derive(Debug)]
pub struct Law {
    /// Its name.
    pub name: &'static str,
    /// The sentences of the docs that it is written from: the page, and the words, with ` ... ` for
    /// those that are left out.
    pub promises: &'static [&'static str],
    check: fn(&History<'_>, &mut Vec<Failure>),
}

/// A law that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The law's name.
    pub law: &'static str,
    /// The sentence of the docs that is broken.
    pub promise: &'static str,
    /// World time at which the law can first prove it.
    pub at: Duration,
    /// What is wrong.
    pub what: String,
}

/// All laws.
pub const LAWS: &[Law] = &[
    bound::LAW,
    in_flight::LAW,
    delay::LAW,
    reference::LAW,
    policy::LAW,
    retry_after::LAW,
    bans::LAW,
    availability::LAW,
    quiet::LAW,
];

/// Every breach of every law, the earliest first.
#[must_use]
pub fn check(scenario: &Scenario, trace: &Trace) -> Vec<Failure> {
    let history = History::new(scenario, trace);
    let mut failures = Vec::new();
    for law in LAWS {
        (law.check)(&history, &mut failures);
    }
    failures.sort_by_key(|failure| failure.at);
    failures
}
