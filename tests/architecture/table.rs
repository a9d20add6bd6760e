//! Who may know whom: the table of docs/ARCHITECTURE.md.
//!
//! It reads paths that start at the crate's root, by `crate::`, `super::` or `weir::`, and names of
//! other crates that only some modules may use.

use std::fs;
use std::path::Path;

use crate::source::{code_of, continues_a_name, is_in_name, module_of, rust_files, src};

/// Each module, and the modules that it may know. Those without any re-export a crate of ours; what that
/// may know stands in its `Cargo.toml`.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("time", &[]),
    ("limit", &[]),
    ("store", &[]),
    ("rules", &[]),
    ("telemetry", &[]),
    ("middleware", &[]),
    (
        "config",
        &["middleware", "rules", "store", "limit", "time", "telemetry"],
    ),
    (
        "app",
        &[
            "config",
            "middleware",
            "rules",
            "store",
            "limit",
            "time",
            "telemetry",
        ],
    ),
    (
        "replay",
        &[
            "app",
            "config",
            "middleware",
            "rules",
            "store",
            "limit",
            "time",
            "telemetry",
        ],
    ),
    ("cli", &["app", "config", "replay", "time"]),
    ("fuzzing", &["config"]),
    ("internals", &["app", "config", "middleware", "store"]),
    ("main", &["cli"]),
];

/// Crates that only some modules may use, by the start of their path.
const MAY_USE: &[(&str, &[&str])] = &[
    ("weir_http", &["app", "config"]),
    ("weir_limit", &["limit"]),
    ("weir_middleware", &["fuzzing", "middleware"]),
    ("weir_proxy", &["app", "config", "fuzzing", "internals"]),
    ("weir_rules", &["fuzzing", "rules"]),
    ("weir_runtime", &["app", "internals"]),
    ("weir_server", &["app", "config", "fuzzing", "internals"]),
    ("weir_store", &["fuzzing", "store"]),
    ("weir_telemetry", &["telemetry"]),
];

/// A name in a file, by the line that it stands in.
#[derive(Debug, PartialEq)]
struct Found {
    line: usize,
    name: String,
}

#[test]
fn every_module_knows_only_those_that_it_may() {
    let src = src();
    let mut complaints = Vec::new();
    for file in rust_files(&src) {
        let relative = file.strip_prefix(&src).unwrap();
        let code = code_of(&fs::read_to_string(&file).unwrap());
        for (line, complaint) in complaints_about(&module_of(relative), &code) {
            let place = Path::new("src").join(relative);
            complaints.push(format!("{}:{line}: {complaint}", place.display()));
        }
    }
    assert!(complaints.is_empty(), "\n\n{}\n", complaints.join("\n"));
}

fn complaints_about(module: &[String], code: &str) -> Vec<(usize, String)> {
    let Some(top) = module.first() else {
        // The library's root names every module.
        return Vec::new();
    };
    let Some((_, known)) = MAY_KNOW.iter().find(|(name, _)| name == top) else {
        let help = "add it to MAY_KNOW in tests/architecture/table.rs and to docs/ARCHITECTURE.md";
        return vec![(1, format!("the module `{top}` is in no table; {help}"))];
    };
    let is_module = |name: &str| MAY_KNOW.iter().any(|(module, _)| *module == name);
    let modules = own_names(code, module.len())
        .into_iter()
        .filter(|found| is_module(&found.name) && found.name != *top)
        .filter(|found| !known.contains(&found.name.as_str()))
        .map(|Found { line, name }| {
            let help = "move the code to a module that may, or have it handed in from above";
            (line, format!("`{top}` may not know `{name}`; {help}"))
        });
    modules.chain(crate_complaints(module, code)).collect()
}

fn crate_complaints(module: &[String], code: &str) -> Vec<(usize, String)> {
    let path = module.join("::");
    let mut complaints = Vec::new();
    for (name, places) in MAY_USE {
        let allowed = places
            .iter()
            .any(|place| path == *place || path.starts_with(&format!("{place}::")));
        if !allowed {
            complaints.extend(foreign_names(code, name).map(|line| {
                let help = format!("move the code to `{}`", places.join("` or `"));
                (
                    line,
                    format!("`{path}` may not use the crate `{name}`; {help}"),
                )
            }));
        }
    }
    complaints
}

/// The modules of this crate that code names by a path from the root.
fn own_names(code: &str, depth: usize) -> Vec<Found> {
    let up_to_root = "super::".repeat(depth);
    let mut found = Vec::new();
    for root in ["crate::", "weir::", up_to_root.as_str()] {
        for (start, _) in code.match_indices(root) {
            if !continues_a_name(code, start) {
                let line = line_of(code, start);
                let names = names_after(&code[start + root.len()..]);
                found.extend(names.into_iter().map(|name| Found { line, name }));
            }
        }
    }
    found
}

/// The lines where a path starts with the name of another crate.
fn foreign_names(code: &str, name: &str) -> impl Iterator<Item = usize> {
    code.match_indices(name)
        .filter(move |(start, _)| {
            let before = code[..*start].trim_end();
            let leads = !before.ends_with("::") || before.ends_with(" ::");
            leads && !continues_a_name(code, *start)
        })
        .filter(move |(start, _)| {
            let after = &code[start + name.len()..];
            let is_imported = code[..*start].ends_with("use ") && !after.starts_with(is_in_name);
            after.starts_with("::") || is_imported
        })
        .map(|(start, _)| line_of(code, start))
}

/// The first name of a path, or those of a group in braces.
fn names_after(code: &str) -> Vec<String> {
    let name = |code: &str| -> String { code.chars().take_while(|c| is_in_name(*c)).collect() };
    let Some(group) = code.strip_prefix('{') else {
        return vec![name(code)];
    };
    let mut depth = 1;
    let parts = group.split_inclusive([',', '{', '}']).map_while(|part| {
        let outermost = depth == 1;
        match part.chars().last() {
            Some('{') => depth += 1,
            Some('}') => depth -= 1,
            _ => {}
        }
        (depth > 0 || outermost).then(|| outermost.then(|| name(part.trim_start())))
    });
    parts.flatten().collect()
}

fn line_of(code: &str, start: usize) -> usize {
    1 + code[..start].matches('\n').count()
}

fn complaints(module: &str, code: &str) -> Vec<(usize, String)> {
    let module: Vec<_> = module.split("::").map(str::to_owned).collect();
    complaints_about(&module, &code_of(code))
}

#[test]
fn a_forbidden_name_is_found_in_every_form() {
    for code in [
        "\nuse crate::app::App;",
        "\nuse crate::{limit::Quota, app::{App, Other}};",
        "\nuse crate::{\n    limit::{Quota, Kind},\n    app,\n};",
        "\nlet app = crate::app::App::new();",
        "\nuse super::super::app;",
    ] {
        let found = complaints("config::limits", code);
        assert_eq!(found.len(), 1, "{code}: {found:?}");
        assert_eq!(found[0].0, 2, "{code}");
        assert!(found[0].1.contains("`config` may not know `app`"), "{code}");
    }
}

#[test]
fn what_is_allowed_or_no_code_is_not_complained_about() {
    for code in [
        "use crate::{limit::{Quota, app}, time};",
        "use super::app;",
        "// use crate::app;",
        "#[cfg(test)]\nmod tests {\n    use crate::app::App;\n}",
        "use my_crate::app;",
    ] {
        assert_eq!(complaints("config::limits", code), [], "{code}");
    }
}

#[test]
fn a_crate_is_used_only_where_it_may_be() {
    for code in [
        "use weir_store::Store;",
        "let x: weir_store::Outcome;",
        "use ::weir_store::Store;",
        "use weir_store;",
    ] {
        assert_eq!(complaints("app::stores", code).len(), 1, "{code}");
        assert_eq!(complaints("store", code), [], "{code}");
        assert_eq!(complaints("store::memory", code), [], "{code}");
    }
    for code in [
        "pub mod weir_store;",
        "use self::weir_store::Store;",
        "let weir_store = 1;",
    ] {
        assert_eq!(complaints("app", code), [], "{code}");
    }
}

#[test]
fn a_new_module_must_be_put_into_the_table() {
    assert!(complaints("novel", "")[0].1.contains("MAY_KNOW"));
}
