//! What `--fail-if` asks of a report, such as `denied>0.5%`.

use std::fmt;
use std::str::FromStr;

use super::report::{Report, percent};

/// Something that a replay must not come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    /// The limit whose count it is; that of all requests if there is none.
    limit: Option<String>,
    metric: Metric,
    or_equal: bool,
    threshold: f64,
    is_percent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Denied,
    WouldDeny,
    NewlyDenied,
    NoLongerDenied,
    Malformed,
}

const METRICS: [(&str, Metric); 5] = [
    ("denied", Metric::Denied),
    ("would_deny", Metric::WouldDeny),
    ("newly_denied", Metric::NewlyDenied),
    ("no_longer_denied", Metric::NoLongerDenied),
    ("malformed", Metric::Malformed),
];

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            let names: Vec<&str> = METRICS.iter().map(|(name, _)| *name).collect();
            format!(
                "write a count, > or >=, and a number or a percentage, such as denied>0.5% or \
                 LoginsPerAddress.denied>=10; counts are {}",
                names.join(", ")
            )
        };
        let (count, threshold) = text.split_once('>').ok_or_else(malformed)?;
        let or_equal = threshold.starts_with('=');
        let threshold = threshold.trim_start_matches('=').trim();
        let is_percent = threshold.ends_with('%');
        let number = threshold.trim_end_matches('%').trim().parse().ok();
        let threshold = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
        let (limit, metric) = match count.trim().rsplit_once('.') {
            Some((limit, metric)) => (Some(limit.to_owned()), metric),
            None => (None, count.trim()),
        };
        let mut metrics = METRICS.iter();
        let metric = metrics
            .find(|(name, _)| *name == metric)
            .map(|(_, metric)| *metric);
        match (metric, threshold) {
            (Some(Metric::Malformed), _) if limit.is_some() => Err(malformed()),
            (Some(metric), Some(threshold)) => Ok(Self {
                text: text.to_owned(),
                limit,
                metric,
                or_equal,
                threshold,
                is_percent,
            }),
            _ => Err(malformed()),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    /// What the count is, if the report has come to it.
    ///
    /// # Errors
    /// When the report has no such limit.
    pub fn met_by(&self, report: &Report) -> Result<Option<String>, String> {
        let (count, whole) = match &self.limit {
            Some(name) => {
                let mut limits = report.limits.iter();
                let limit = limits.find(|limit| limit.name == *name);
                let limit = limit
                    .ok_or_else(|| format!("--fail-if {self}: no limit {name} is replayed"))?;
                let count = match self.metric {
                    Metric::Denied => limit.denied,
                    Metric::WouldDeny => limit.would_deny,
                    Metric::NewlyDenied => limit.newly_denied,
                    Metric::NoLongerDenied => limit.no_longer_denied,
                    Metric::Malformed => 0,
                };
                (count, limit.requests)
            }
            None => {
                let changes = report.changes.as_ref();
                match self.metric {
                    Metric::Denied => (report.requests.denied, report.requests.total),
                    Metric::WouldDeny => (report.requests.would_deny, report.requests.total),
                    Metric::NewlyDenied => (
                        changes.map_or(0, |changes| changes.newly_denied),
                        report.requests.total,
                    ),
                    Metric::NoLongerDenied => (
                        changes.map_or(0, |changes| changes.no_longer_denied),
                        report.requests.total,
                    ),
                    Metric::Malformed => (report.log.counts.malformed, report.log.counts.lines),
                }
            }
        };
        #[expect(clippy::cast_precision_loss, reason = "a threshold is not that exact")]
        let value = match self.is_percent {
            true => percent(count, whole),
            false => count as f64,
        };
        let is_met = value > self.threshold || self.or_equal && value >= self.threshold;
        let unit = if self.is_percent { "%" } else { "" };
        Ok(is_met.then(|| format!("{self}: it is {value}{unit}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_read_and_anything_else_says_what_to_write() {
        let read: Condition = "Logins.denied >= 0.5%".parse().unwrap();
        assert_eq!(read.limit.as_deref(), Some("Logins"));
        assert_eq!(
            (read.threshold, read.is_percent, read.or_equal),
            (0.5, true, true)
        );
        for text in [
            "",
            "denied",
            "denied>",
            "denied<1",
            "denie>1",
            "denied>x%",
            "L.malformed>1",
            "denied>-1",
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.contains("denied>0.5%"), "{text}: {error}");
        }
    }
}
