//! Filters in configurations name the targets of log lines. A crate's log lines say theirs, as
//! otherwise they would have the crate's name in place of `weir`.

use std::fs;

use crate::source::{code_of, continues_a_name, crates, module_of, rust_files};

const MACROS: &[&str] = &["trace!(", "debug!(", "info!(", "warn!(", "error!("];

#[test]
fn log_lines_of_crates_have_the_target_of_their_module() {
    let mut complaints = Vec::new();
    for (name, folder) in crates() {
        let part = name.trim_start_matches("weir_");
        for file in rust_files(&folder) {
            let code = code_of(&fs::read_to_string(&file).unwrap());
            let module = module_of(file.strip_prefix(&folder).unwrap()).join("::");
            let target = format!("\"weir::{part}::{module}\"");
            let calls = MACROS.iter().flat_map(|call| code.match_indices(call));
            for (start, call) in calls {
                let arguments = code[start + call.len()..].trim_start();
                let is_right = arguments.starts_with(&format!("target: {target}"))
                    || arguments.starts_with("target: ACCESS_TARGET")
                    || arguments.starts_with("target: AUDIT_TARGET")
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
