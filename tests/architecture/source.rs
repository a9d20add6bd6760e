//! The files of `src/` and of the crates that it is made of, as the other tests read them.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The crates below `crates/` that the product is made of, each by the name that code calls it by and
/// the folder of its source.
pub(crate) fn crates() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    let parts = names.filter(|name| !["sim", "testing", "instructions"].contains(&name.as_str()));
    parts
        .map(|name| (format!("weir_{name}"), folder.join(name).join("src")))
        .collect()
}

/// All code that is not the tests': the package, the product's crates, the simulator, what tests
/// share, and the load of the comparison with other servers. The package has no name.
pub(crate) fn all_code() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let others = [
        ("weir_sim", "crates/sim/src"),
        ("weir_testing", "crates/testing/src"),
        ("weir_load", "benches/compare/load/src"),
    ];
    let others = others.map(|(name, folder)| (name.to_owned(), root.join(folder)));
    let package = (String::new(), src());
    crates()
        .into_iter()
        .chain(others)
        .chain([package])
        .collect()
}

pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_tests(&path) {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn is_tests(path: &Path) -> bool {
    let within = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
    within
        .iter()
        .any(|name| name == "tests" || name == "tests.rs")
}

/// The path of the module that a file of a crate's source holds; empty for the crate's root.
pub(crate) fn module_of(file: &Path) -> Vec<String> {
    let file = file.with_extension("");
    let names = file.iter().map(|name| name.to_str().unwrap().to_owned());
    names
        .filter(|name| name != "mod" && name != "lib")
        .collect()
}

/// The code without the unit tests at its end.
pub(crate) fn without_tests(text: &str) -> &str {
    let mut starts = text.match_indices("#[cfg(test)]\nmod ");
    let tests = starts.find(|(start, found)| {
        let name = text[start + found.len()..].lines().next();
        name.is_some_and(|line| line.ends_with('{')) && is_line_start(text, *start)
    });
    tests.map_or(text, |(start, _)| &text[..start])
}

fn is_line_start(text: &str, at: usize) -> bool {
    at == 0 || text[..at].ends_with('\n')
}

/// The code without comments, and without the unit tests at its end. Lines keep their numbers.
pub(crate) fn code_of(text: &str) -> String {
    let without_comment = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    without_tests(text)
        .lines()
        .map(without_comment)
        .collect::<Vec<_>>()
        .join("\n")
}

pub(crate) fn continues_a_name(code: &str, start: usize) -> bool {
    code[..start].ends_with(is_in_name) || code[..start].ends_with("super::")
}

pub(crate) fn is_in_name(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

#[test]
fn files_are_modules() {
    let module = |file: &str| module_of(Path::new(file)).join("::");
    assert_eq!(module("rules/route/table.rs"), "rules::route::table");
    assert_eq!(module("store/mod.rs"), "store");
    assert_eq!(
        (module("lib.rs"), module("main.rs")),
        (String::new(), "main".to_owned())
    );
}
