//! What the crates depend on: the table of docs/ARCHITECTURE.md, and libraries that a crate must
//! not have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Libraries by which code waits, does I/O or logs.
const IO: &[&str] = &[
    "futures-util",
    "hyper",
    "redis",
    "rustls",
    "socket2",
    "tokio",
    "tower",
    "tracing",
];

/// The names of what each crate below `crates/` depends on, but for tests.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let crates = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let of_one = crates.map(|entry| {
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
        let (_, rest) = manifest.split_once("[dependencies]\n").unwrap();
        let section = rest.split("\n[").next().unwrap();
        let lines = section.lines().filter(|line| line.contains('='));
        let names = lines.map(|line| line.split([' ', '.', '=']).next().unwrap().to_owned());
        let name = entry.file_name().into_string().unwrap();
        (format!("weir-{name}"), names.collect())
    });
    of_one.collect()
}

/// The folders of the crate of layers and of all crates below it: where a limit decides. That no other
/// has to be read, Cargo holds.
pub(crate) fn crates_of_a_decision() -> BTreeSet<String> {
    let all = dependencies();
    let mut found = BTreeSet::new();
    let mut open = vec!["weir-middleware"];
    while let Some(name) = open.pop() {
        if found.insert(name.replace("weir-", "crates/") + "/") {
            let ours = all[name].iter().map(String::as_str);
            open.extend(ours.filter(|name| name.starts_with("weir-")));
        }
    }
    found
}

#[test]
fn the_table_of_crates_says_which_others_each_depends_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `weir-"));
    let documented: BTreeMap<_, BTreeSet<_>> = rows
        .map(|row| {
            let ours = row.rsplit('|').nth(1).unwrap().split('`');
            let ours = ours.filter(|word| word.starts_with("weir-"));
            let name = row.split('`').nth(1).unwrap();
            (name.to_owned(), ours.map(str::to_owned).collect())
        })
        .collect();
    let mut actual = dependencies();
    actual.retain(|name, _| {
        !["weir-sim", "weir-testing", "weir-instructions"].contains(&name.as_str())
    });
    for names in actual.values_mut() {
        names.retain(|name| name.starts_with("weir-"));
    }
    assert_eq!(documented, actual);
}

#[test]
fn the_frame_of_the_configuration_depends_on_no_other_crate_of_ours() {
    let all = dependencies();
    let ours = all["weir-yaml"].iter();
    let ours: Vec<_> = ours.filter(|name| name.starts_with("weir-")).collect();
    assert!(ours.is_empty(), "weir-yaml depends on {ours:?}");
}

/// Code that is compiled for the gateway alone would have to be read, and tested, in two builds.
#[test]
fn no_crate_has_a_feature_for_the_gateway() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path().join("Cargo.toml");
        let manifest = fs::read_to_string(&path).unwrap();
        assert!(!manifest.contains("gateway\""), "{}", path.display());
        assert!(!manifest.contains("\ngateway ="), "{}", path.display());
    }
}

#[test]
fn only_one_crate_speaks_to_redis() {
    let all = dependencies();
    let users = all.iter().filter(|(_, names)| names.contains("redis"));
    let users: Vec<_> = users.map(|(name, _)| name.as_str()).collect();
    assert_eq!(users, ["weir-redis"]);
    let root = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    assert!(!root.unwrap().contains("\nredis.workspace"));
}

#[test]
fn limits_and_rules_neither_wait_nor_log() {
    let all = dependencies();
    for name in ["weir-limit", "weir-rules", "weir-http"] {
        let found: Vec<_> = IO.iter().filter(|io| all[name].contains(**io)).collect();
        assert!(found.is_empty(), "{name} depends on {found:?}");
    }
}
