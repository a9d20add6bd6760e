//! What came of a phase.

use std::time::Duration;

use crate::histogram::Histogram;

pub struct Report {
    pub latencies: Histogram,
    /// Requests that were answered.
    pub answered: u64,
    /// Of these, the ones with another status than expected.
    pub unexpected: u64,
    /// Those whose connection had resumed a TLS session.
    pub resumed: u64,
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
            resumed: 0,
            lost: 0,
            unanswered: 0,
            took: Duration::ZERO,
        }
    }

    /// Counts what came of other requests of the same phase.
    #[cfg(feature = "http3")]
    pub fn add(&mut self, other: &Self) {
        self.latencies.add_all(&other.latencies);
        self.answered += other.answered;
        self.unexpected += other.unexpected;
        self.resumed += other.resumed;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
    }

    pub fn to_json(&self) -> String {
        let part = |part| self.latencies.quantile(part);
        format!(
            r#"{{"answered":{},"unexpected":{},"resumed":{},"lost":{},"unanswered":{},"seconds":{:.6},"p50":{:.1},"p99":{:.1},"p999":{:.1}}}"#,
            self.answered,
            self.unexpected,
            self.resumed,
            self.lost,
            self.unanswered,
            self.took.as_secs_f64(),
            part(0.5),
            part(0.99),
            part(0.999),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_line_of_json_with_latencies_in_microseconds() {
        let mut report = Report::new();
        report.latencies.add(Duration::from_micros(100));
        (report.answered, report.unexpected, report.resumed) = (5, 4, 3);
        (report.lost, report.unanswered) = (2, 1);
        report.took = Duration::from_millis(1500);
        let json = report.to_json();
        let counts = r#"{"answered":5,"unexpected":4,"resumed":3,"lost":2,"unanswered":1,"#;
        let rest = json.strip_prefix(counts).unwrap();
        let latencies = rest.strip_prefix(r#""seconds":1.500000,"p50":"#).unwrap();
        let p50: f64 = latencies.split(',').next().unwrap().parse().unwrap();
        assert!((99.0..102.0).contains(&p50), "{p50}");
        assert!(json.ends_with('}') && !json.contains('\n'));
    }
}
