//! The report of `weir check` for programs, and what it says of live subjects.

use std::fmt::Write;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value, json};
use weir_telemetry::printable;
use weir_yaml::{Diagnostic, Location, Severity, pluralized};

use super::checked::Checked;
use crate::app::{EffectKind, LiveCheck};

/// What a path must not have in a URI.
const NOT_IN_PATHS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// What the configuration would do to live subjects, a line each.
pub(super) fn live_text(live: &LiveCheck) -> String {
    let gateways = usize::try_from(live.gateways).unwrap_or(usize::MAX);
    let gateways = pluralized(gateways, "gateway");
    let subjects = pluralized(live.subjects, "subject");
    let alone = live.alone.as_ref();
    let alone = alone.map_or_else(String::new, |why| {
        format!(" (others unknown: {})", printable(why))
    });
    let missing = match live.uncounted {
        Some(0) => String::new(),
        Some(most) => format!(", of each of which up to {most} requests may be missing"),
        None => ", of which requests are missing, as not all gateways are counted".to_owned(),
    };
    let mut text = format!("against all {subjects} known to {gateways}{alone}{missing}: ");
    if live.effects.is_empty() {
        return text + "nobody would be over a limit\n";
    }
    let over = live.effects.iter();
    let over = over.filter(|effect| effect.kind == EffectKind::OverAtOnce);
    // Writing to a string never fails.
    let _ = writeln!(text, "{} over at once", over.count());
    for effect in &live.effects {
        let title = match effect.kind {
            EffectKind::OverAtOnce => "OVER AT ONCE",
            EffectKind::Unknown => "UNKNOWN",
            EffectKind::NotLimited => "NOT LIMITED",
        };
        let subject = effect.subject.as_ref();
        let subject = subject.map_or_else(String::new, |id| format!(" {}", printable(id)));
        let (limit, effect) = (printable(&effect.limit), printable(&effect.text));
        let _ = writeln!(text, "{title:<12}  {limit}{subject}: {effect}");
    }
    text
}

/// One object: whether the configuration is valid, each diagnostic with its place, and what it
/// would do to live subjects.
pub(super) fn json(checked: &Checked, live: Option<&LiveCheck>) -> Value {
    let found = &checked.diagnostics;
    let mut report = json!({
        "file": checked.file,
        "valid": checked.summary.is_some(),
        "errors": found.count(Severity::Error),
        "warnings": found.count(Severity::Warning),
        "summary": checked.summary,
        "notes": checked.notes,
        "diagnostics": found.iter().map(json_diagnostic).collect::<Vec<_>>(),
    });
    if let (Some(live), Some(members)) = (live, report.as_object_mut()) {
        members.insert("live".to_owned(), json!(live));
    }
    report
}

fn json_diagnostic(diagnostic: &Diagnostic) -> Value {
    let location = &diagnostic.location;
    let (line, column) = location.position.unzip();
    json!({
        "severity": word(diagnostic.severity),
        "file": location.file,
        "line": line,
        "column": column,
        "path": location.path,
        "message": diagnostic.message,
        "help": diagnostic.help,
    })
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

/// The message with the path within the file before it and the help behind it.
fn whole_message(diagnostic: &Diagnostic) -> String {
    let path = &diagnostic.location.path;
    let mut text = match path.is_empty() {
        true => diagnostic.message.clone(),
        false => format!("{path}: {}", diagnostic.message),
    };
    if let Some(help) = &diagnostic.help {
        text.push('\n');
        text.push_str(help);
    }
    text
}

/// A workflow command for each diagnostic, and a line for people at the end.
pub(super) fn github(checked: &Checked) -> String {
    let mut text = String::new();
    for diagnostic in checked.diagnostics.iter() {
        let Location { file, position, .. } = &diagnostic.location;
        let place = match position {
            Some((line, column)) => format!(",line={line},col={column}"),
            None => String::new(),
        };
        text.push_str(&format!(
            "::{} file={}{place},title=weir check::{}\n",
            word(diagnostic.severity),
            property(file),
            data(&whole_message(diagnostic)),
        ));
    }
    text + &checked.diagnostics.totals()
}

/// What follows a workflow command's second pair of colons.
fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// A property of a workflow command, which a comma or a colon would end.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// A log of one run.
pub(super) fn sarif(checked: &Checked) -> Value {
    let rule = |severity, description: &str| {
        json!({
            "id": rule_id(severity),
            "shortDescription": {"text": description},
            "defaultConfiguration": {"level": word(severity)},
        })
    };
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "weir",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [
                    rule(Severity::Error, "The configuration is refused"),
                    rule(Severity::Warning, "The configuration works, but hardly as it was meant"),
                ],
            }},
            "columnKind": "unicodeCodePoints",
            "results": checked.diagnostics.iter().map(sarif_result).collect::<Vec<_>>(),
        }],
    })
}

fn rule_id(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "configuration-error",
        Severity::Warning => "configuration-warning",
    }
}

fn sarif_result(diagnostic: &Diagnostic) -> Value {
    let Location {
        file,
        position,
        path,
    } = &diagnostic.location;
    let mut physical = json!({"artifactLocation": {"uri": uri(file)}});
    if let (Some((line, column)), Some(members)) = (position, physical.as_object_mut()) {
        let region = json!({"startLine": line, "startColumn": column});
        members.insert("region".to_owned(), region);
    }
    let mut location = Map::new();
    location.insert("physicalLocation".to_owned(), physical);
    if !path.is_empty() {
        let logical = json!([{"fullyQualifiedName": path}]);
        location.insert("logicalLocations".to_owned(), logical);
    }
    json!({
        "ruleId": rule_id(diagnostic.severity),
        "level": word(diagnostic.severity),
        "message": {"text": whole_message(diagnostic)},
        "locations": [location],
    })
}

/// A relative path stays one, as code scanners resolve it in the repository.
fn uri(file: &str) -> String {
    let path = utf8_percent_encode(file, NOT_IN_PATHS);
    match file.starts_with('/') {
        true => format!("file://{path}"),
        // `./a` and `a` are one file, and a scanner knows it as the latter.
        false => path.to_string().trim_start_matches("./").to_owned(),
    }
}
