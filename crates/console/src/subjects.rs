//! A subject as it is counted.

use weir_telemetry::SubjectActivity;

/// A subject of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedSubject {
    /// What it has sent, and what became of that.
    pub activity: SubjectActivity,
    /// Requests a second: of the last minute, by the last seconds alone.
    pub rate: f64,
    /// How many of its requests, and of its requests a second, may be missing, at most; none where
    /// a gateway is not counted.
    pub uncounted: Option<(u64, f64)>,
}

impl CountedSubject {
    pub(crate) fn add(&mut self, other: SubjectActivity) {
        let sum = &mut self.activity;
        sum.name = sum.name.take().or(other.name);
        sum.requests = sum.requests.saturating_add(other.requests);
        sum.denied = sum.denied.saturating_add(other.denied);
        sum.used_percent = sum.used_percent.max(other.used_percent);
    }
}
