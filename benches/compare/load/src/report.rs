//! What came of a phase.

use std::time::Duration;

use crate::histogram::Histogram;

pub struct Report {
    pub latencies: Histogram,
    /// Requests that were answered.
    pub answered: u64,
    /// Of these, the ones with another status than expected.
    pub unexpected: u64,
    /// Requests that were lost with their connection.
    pub lost: u64,
    /// Requests that had no answer when patience ran out.
    pub unanswered: u64,
    /// From the first request to the last answer.
    pub took: Duration,
}

impl Report {
    pub fn new() -> Self {
        Self {
            latencies: Histogram::new(),
            answered: 0,
            unexpected: 0,
            lost: 0,
            unanswered: 0,
            took: Duration::ZERO,
        }
    }

    pub fn to_json(&self) -> String {
        let part = |part| self.latencies.quantile(part);
        format!(
            r#"{{"answered":{},"unexpected":{},"lost":{},"unanswered":{},"seconds":{:.6},"p50":{:.1},"p99":{:.1},"p999":{:.1}}}"#,
            self.answered,
            self.unexpected,
            self.lost,
            self.unanswered,
            self.took.as_secs_f64(),
            part(0.5),
            part(0.99),
            part(0.999),
        )
    }
}
