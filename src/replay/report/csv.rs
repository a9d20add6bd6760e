//! The limits of a report as comma-separated values (RFC 4180), a row each; and a row for each value of
//! a sweep.

use super::{LimitReport, Report};

const COLUMNS: [&str; 16] = [
    "limit",
    "variant",
    "requests",
    "allowed",
    "denied",
    "would_deny",
    "denied_percent",
    "baseline_denied",
    "newly_denied",
    "no_longer_denied",
    "subjects",
    "denied_subjects",
    "first_denied",
    "last_denied",
    "need_p99",
    "suggested",
];

/// The whole text.
pub fn csv(report: &Report) -> String {
    let mut text = row(COLUMNS.map(str::to_owned));
    for limit in &report.limits {
        text.push_str(&row(cells(limit, "")));
    }
    for variant in &report.sweep {
        let name = format!("{}={}", variant.parameter, variant.value);
        text.push_str(&row(cells(&variant.limit, &name)));
    }
    text
}

fn cells(limit: &LimitReport, variant: &str) -> [String; 16] {
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    let need = limit.need.as_ref();
    let suggested = need.and_then(|need| need.suggested.as_ref());
    [
        limit.name.clone(),
        variant.to_owned(),
        limit.requests.to_string(),
        limit.allowed.to_string(),
        limit.denied.to_string(),
        limit.would_deny.to_string(),
        limit.denied_percent.to_string(),
        limit
            .baseline_denied
            .map(|count| count.to_string())
            .unwrap_or_default(),
        limit.newly_denied.to_string(),
        limit.no_longer_denied.to_string(),
        limit.subjects.to_string(),
        limit.denied_subjects.to_string(),
        optional(&limit.first_denied),
        optional(&limit.last_denied),
        need.map(|need| need.p99.to_string()).unwrap_or_default(),
        suggested
            .map(|suggested| suggested.yaml.clone())
            .unwrap_or_default(),
    ]
}

fn row<const N: usize>(cells: [String; N]) -> String {
    let quoted = |cell: String| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    };
    cells.map(quoted).join(",") + "\r\n"
}
