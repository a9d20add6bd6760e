//! The two walks of docs/ARCHITECTURE.md name files that exist, and few enough of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The headings, and how many files there may be.
const WALKS: [(&str, usize); 2] = [("## A request", 40), ("## A limit", 30)];

const SOURCES: [&str; 2] = ["src/", "crates/"];

#[test]
fn the_walks_name_files_that_exist_and_not_too_many() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
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
fn every_file_that_the_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2);
    let folders = || SOURCES.iter().chain(&["tests/"]);
    let paths = quoted.filter(|word| folders().any(|folder| word.starts_with(folder)));
    for path in paths {
        assert!(root.join(path).exists(), "{path}");
    }
}
