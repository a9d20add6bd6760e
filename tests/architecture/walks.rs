//! The two walks of docs/WALKS.md name files that exist, and few enough of them: all that run for a
//! request, by a measurement, and those that a limit passes through. docs/ARCHITECTURE.md is short
//! enough to be read.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The headings, and how many files there may be. That the first lists what runs is checked by
/// `weir-instructions`; before it was, there were 102, and 17 files ran that the page did not have.
/// What is off does not run: its caller has nothing to ask, from the time when the configuration was
/// loaded.
const WALKS: [(&str, usize); 2] = [("## A request", 105), ("## A limit", 30)];

const SOURCES: [&str; 2] = ["src/", "crates/"];

#[test]
fn the_walks_name_files_that_exist_and_not_too_many() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/WALKS.md")).unwrap();
    for (heading, most) in WALKS {
        let section = page.split(&format!("\n{heading}\n")).nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter(|row| SOURCES.iter().any(|folder| row.starts_with(folder)));
        let files: Vec<_> = rows.map(|row| row.split('`').next().unwrap()).collect();
        for file in &files {
            assert!(root.join(file).is_file(), "{heading}: {file}");
        }
        assert_eq!(files.iter().collect::<BTreeSet<_>>().len(), files.len());
        assert!(
            (10..=most).contains(&files.len()),
            "{heading}: {}",
            files.len()
        );
    }
}

#[test]
fn every_file_that_the_pages_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in ["docs/ARCHITECTURE.md", "docs/WALKS.md"] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        let folders = || SOURCES.iter().chain(&["tests/"]);
        let paths = quoted.filter(|word| folders().any(|folder| word.starts_with(folder)));
        for path in paths {
            assert!(root.join(path).exists(), "{page}: {path}");
        }
    }
}

#[test]
fn the_page_about_the_architecture_is_never_too_long_to_be_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
    let words = page.split_whitespace().count();
    assert!(words <= 3500, "{words} words");
}

/// CONTRIBUTING.md has a table from the keys of the configuration to the tests that hold them.
#[test]
fn the_tests_that_hold_a_key_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let (_, table) = page.split_once("\n| key |").unwrap();
    for row in table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
    {
        let cells = row.split('|').skip(2);
        for (cell, folder) in cells.zip(["crates/config/src/tests", "tests/it"]) {
            for name in cell.split('`').filter(|word| word.ends_with(".rs")) {
                assert!(root.join(folder).join(name).is_file(), "{name}: {row}");
            }
        }
    }
}
