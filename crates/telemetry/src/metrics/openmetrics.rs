//! The metrics page: in the text format of Prometheus (0.0.4), which every scraper reads, and in
//! that of OpenMetrics.

use std::fmt::Write;

/// The form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFormat {
    /// The text format of Prometheus, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl PageFormat {
    /// The media type of the page.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A page of OpenMetrics in the text format 0.0.4: the same samples, but families have the names of
/// their samples, and there is no type `info`. Nothing here has a unit, an exemplar or a time.
pub(super) fn text_format(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 16);
    let mut help = None;
    for line in page.lines().filter(|line| *line != "# EOF") {
        if let Some(family) = line.strip_prefix("# HELP ") {
            help = family.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = family_type(line) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            let help = help.take().unwrap_or_default();
            // A `String` takes whatever is written to it.
            let _ = writeln!(
                text,
                "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}"
            );
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The page without the empty braces of members that have no label in families where others have.
pub(super) fn without_empty_labels(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        match line.split_once("{} ") {
            // Elsewhere they are part of a label's value, or of a help.
            Some((name, value)) if !name.contains(['{', ' ']) => {
                text.extend([name, " ", value]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

fn family_type(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("# TYPE ")?.split_once(' ')
}
