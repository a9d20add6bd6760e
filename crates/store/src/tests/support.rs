//! What the tests of stores share: a real Redis, and waiting with a deadline.

use std::error::Error;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{Call, ClockOffset, NodeChange, Observer, StoreError};

/// How long a test waits for what is to happen. Machines that build and test at once are slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something holds.
///
/// # Panics
/// When it still does not after two minutes.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        pause(what, deadline).await;
    }
}

/// Waits until something yields a value.
///
/// # Panics
/// When it still does not after two minutes.
pub async fn eventually_some<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        pause(what, deadline).await;
    }
}

async fn pause(what: &str, deadline: Instant) {
    assert!(Instant::now() < deadline, "did not happen in time: {what}");
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Writes down what it is told.
#[derive(Default)]
pub struct Recorder {
    calls: Mutex<Vec<(Call, bool)>>,
    changes: Mutex<Vec<bool>>,
    node_changes: Mutex<Vec<String>>,
    offsets: Mutex<Vec<Option<ClockOffset>>>,
    steps: Mutex<Vec<f64>>,
    nodes: Mutex<Vec<String>>,
    refusals: Mutex<Vec<String>>,
    peculiarities: Mutex<Vec<String>>,
}

impl Recorder {
    /// Each call and whether it was answered.
    pub fn calls(&self) -> Vec<(Call, bool)> {
        self.calls.lock().clone()
    }

    /// Each measurement of the clock; none for those that failed.
    pub fn offsets(&self) -> Vec<Option<ClockOffset>> {
        self.offsets.lock().clone()
    }

    /// The node of each measurement of one.
    pub fn measured_nodes(&self) -> Vec<String> {
        self.nodes.lock().clone()
    }

    /// Each jump that the clock has followed, in seconds.
    pub fn steps(&self) -> Vec<f64> {
        self.steps.lock().clone()
    }

    /// Each change to reachable or not.
    pub fn changes(&self) -> Vec<bool> {
        self.changes.lock().clone()
    }

    /// Why commands are refused, each time; empty when none is any more.
    pub fn refusals(&self) -> Vec<String> {
        self.refusals.lock().clone()
    }

    pub fn peculiarities(&self) -> Vec<String> {
        self.peculiarities.lock().clone()
    }

    /// What happened to nodes: the name of each, and a word.
    pub fn node_changes(&self) -> Vec<String> {
        self.node_changes.lock().clone()
    }
}

impl Observer for Recorder {
    fn called(&self, call: Call, _: Duration, failure: Option<&StoreError>) {
        self.calls.lock().push((call, failure.is_none()));
    }

    fn state_changed(&self, reachable: bool, cause: Option<&StoreError>) {
        assert_eq!(reachable, cause.is_none());
        self.changes.lock().push(reachable);
    }

    fn node_changed(&self, node: &str, change: NodeChange<'_>) {
        let word = match change {
            NodeChange::Joined => "joined",
            NodeChange::Unreachable(_) => "unreachable",
            NodeChange::Reachable => "reachable",
            NodeChange::Left => "left",
        };
        self.node_changes.lock().push(format!("{node} {word}"));
    }

    fn clock_measured(&self, node: Option<&str>, offset: Result<ClockOffset, &dyn Error>) {
        match node {
            None => self.offsets.lock().push(offset.ok()),
            Some(node) => self.nodes.lock().push(node.to_owned()),
        }
    }

    fn refuses_commands(&self, _: Option<&str>, cause: &StoreError) {
        let cause = cause.source().unwrap().to_string();
        self.refusals.lock().push(cause);
    }

    fn refuses_no_command(&self, _: Option<&str>) {
        self.refusals.lock().push(String::new());
    }

    fn server_is_peculiar(&self, why: &str) {
        self.peculiarities.lock().push(why.to_owned());
    }

    fn clock_stepped(&self, seconds: f64) {
        self.steps.lock().push(seconds);
    }
}
