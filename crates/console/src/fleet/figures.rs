//! The figures of a gateway: of each limit, and as many as may be published.

use std::collections::HashMap;
use std::time::Duration;

use weir_limit::time::Timestamp;
use weir_telemetry::{Metrics, Period};

use super::published::{Figures, LimitFigures, PeriodFigures, SubjectFigures, keep_subjects};

/// Upper bounds on what is published, so that a gateway costs Redis the same whatever clients do.
const MAX_SUBJECTS: usize = 256;
const MAX_BYTES: usize = 32 * 1024;
const MAX_FINDINGS: usize = 8;
const MAX_FINDING_BYTES: usize = 400;
const MAX_FORWARDERS: usize = 16;

const PERIODS: [Period; 3] = [Period::Recent, Period::Minute, Period::Hour];

impl Figures {
    /// As many of the figures as may be published, as text. Beside its subjects, each limit in use
    /// takes some hundred bytes.
    pub fn bounded_text(mut self) -> String {
        self.findings.truncate(MAX_FINDINGS);
        for finding in &mut self.findings {
            let end = finding.text.floor_char_boundary(MAX_FINDING_BYTES);
            finding.text.truncate(end);
        }
        self.forwarders.truncate(MAX_FORWARDERS);
        bounded_text(self, MAX_SUBJECTS, MAX_BYTES)
    }
}

/// Leaves out subjects, which may have long names, until the text has at most so many bytes.
fn bounded_text(mut figures: Figures, max_subjects: usize, max_bytes: usize) -> String {
    let mut count = max_subjects;
    loop {
        keep_subjects(&mut figures.limits, count);
        let text = figures.text();
        if text.len() <= max_bytes || count == 0 {
            return text;
        }
        count /= 2;
    }
}

/// The figures of a limit, with each subject once.
pub fn limit_figures(
    metrics: &Metrics,
    limit: &str,
    shows_names: bool,
    now: Timestamp,
) -> LimitFigures {
    let since_epoch = Duration::from_nanos(now.as_nanos());
    let seconds = now.as_secs();
    let mut all: HashMap<String, SubjectFigures> = HashMap::new();
    for period in PERIODS {
        for mut subject in metrics.subjects(limit, period, seconds) {
            subject.name = subject.name.filter(|_| shows_names);
            let figures = all.entry(subject.key.clone());
            let figures = figures.or_insert_with_key(|key| SubjectFigures::new(key.clone()));
            figures.add(period, subject);
        }
    }
    let periods = PERIODS.map(|period| PeriodFigures {
        seconds: metrics.counted_seconds(limit, period, since_epoch),
        uncounted: metrics.uncounted(limit, period, seconds),
        left_out: 0,
    });
    LimitFigures::new(periods, all.into_values().collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use weir_telemetry::SubjectActivity;

    /// A client may choose what it counts as, and how long that is.
    #[test]
    fn figures_never_take_more_bytes_than_they_may_whatever_clients_are_called() {
        let subject = |name: String| {
            let mut figures = SubjectFigures::new(name.clone());
            let activity = SubjectActivity {
                key: name,
                name: None,
                requests: 10,
                denied: 5,
                used_percent: 100,
            };
            figures.add(Period::Minute, activity);
            figures
        };
        let period = PeriodFigures {
            seconds: 60.0,
            uncounted: 0,
            left_out: 0,
        };
        for length in [10, 500, 8_000, 200_000] {
            let names = (0..300).map(|number| format!("L:{number}-{}", "\u{1}".repeat(length)));
            let limit = LimitFigures::new([period; 3], names.map(subject).collect());
            let limits = BTreeMap::from([("L".to_owned(), limit)]);
            let figures = Figures {
                limits,
                ..Figures::new()
            };
            let text = bounded_text(figures, MAX_SUBJECTS, MAX_BYTES);
            assert!(text.len() <= MAX_BYTES, "{length}: {}", text.len());
            let read = Figures::parse(&text).unwrap();
            assert_eq!(read.limits["L"].period(Period::Minute).left_out, 10);
        }
    }
}
