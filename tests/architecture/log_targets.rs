//! Filters in configurations name the targets of log lines. A crate's log lines say theirs, as
//! otherwise they would have the crate's name in place of `weir`; an event in the room of its
//! feature has that of all events. And docs/LOGS.md says what to do about each warning and error.

use std::fs;

use crate::source::{code_of, continues_a_name, crates, module_of, rust_files, src};

const MACROS: &[&str] = &["trace!(", "debug!(", "info!(", "warn!(", "error!("];

/// Crates that were modules of others: filters that operators have written name them so.
const MODULES: [(&str, &str); 3] = [
    ("compression", "middleware::steps::compression"),
    ("envoy", "middleware::rate_limit::envoy"),
    ("logging", "telemetry::logging"),
];

#[test]
fn log_lines_of_crates_have_the_target_of_their_module() {
    let mut complaints = Vec::new();
    for (name, folder) in crates() {
        let part = name.trim_start_matches("weir_");
        let known = MODULES.iter().find(|(moved, _)| *moved == part);
        let part = known.map_or(part, |(_, module)| module);
        for file in rust_files(&folder) {
            let code = code_of(&fs::read_to_string(&file).unwrap());
            let module = module_of(file.strip_prefix(&folder).unwrap());
            let target = [&["weir".to_owned(), part.to_owned()], &module[..]].concat();
            let target = format!("\"{}\"", target.join("::"));
            let calls = MACROS.iter().flat_map(|call| code.match_indices(call));
            for (start, call) in calls {
                let arguments = code[start + call.len()..].trim_start();
                let is_right = arguments.starts_with(&format!("target: {target}"))
                    || arguments.starts_with("target: AUDIT_TARGET")
                    || (part == "telemetry" && arguments.starts_with("target: events::TARGET"))
                    || (arguments.starts_with("target: TARGET")
                        && code.contains(&format!("const TARGET: &str = {target};")));
                if !is_right && !continues_a_name(&code, start) {
                    complaints.push(format!("{}: {call} wants {target}", file.display()));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

const LOGS: &str = include_str!("../../docs/LOGS.md");

/// No gateway logs these: they are for services that use the library in a wrong way.
const OF_THE_LIBRARY: [&str; 2] = [
    "a limit counts addresses, and the server leaves none",
    "keys are hashed by a random key of this process",
];

/// The message of a call, from behind its opening parenthesis: its last string.
fn message(call: &str) -> Option<String> {
    let call = call.split(");").next()?;
    let strings = call.split('"').skip(1).step_by(2);
    let lines = strings.last()?.split("\\\n");
    Some(lines.map(str::trim_start).collect())
}

#[test]
fn no_warning_is_without_a_row_in_the_page_on_logs() {
    let page = LOGS.replace('`', "");
    let mut missing = Vec::new();
    for folder in crates()
        .into_iter()
        .map(|(_, folder)| folder)
        .chain([src()])
    {
        for file in rust_files(&folder) {
            let code = code_of(&fs::read_to_string(&file).unwrap());
            let calls = ["::warn!(", "::error!("].into_iter();
            let calls = calls.flat_map(|call| code.split(call).skip(1));
            for message in calls.filter_map(message) {
                // What differs from line to line is no part of a row.
                let fixed = message.replace('`', "");
                let mut fixed = fixed.split(['{', '}', ';', ':', ',']).map(str::trim);
                let fixed = fixed.find(|text| !text.is_empty()).unwrap_or_default();
                let is_of_library = OF_THE_LIBRARY.iter().any(|own| message.starts_with(own));
                if !is_of_library && !page.contains(fixed) {
                    missing.push(format!("{}: {message}", file.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
