//! The one way to wait.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take that is not measured. Nothing on a working machine takes that long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Asks until there is an answer, and fails when there is none for too long.
pub fn eventually<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not seen in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
