//! docs/OPERATIONS.md holds to the code: it names every metric with its type and labels, every field
//! of the access log and every decision, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::StatusCode;

use super::{Disposition, Handshake, Metrics, Settled};

const OPERATIONS: &str = include_str!("../../docs/OPERATIONS.md");
const NAMES: &str = include_str!("names.rs");
const ACCESS: &str = include_str!("access.rs");

/// The rows of the table whose first column is called so, each a list of cells.
fn table(first_column: &str) -> Vec<Vec<String>> {
    let head = format!("\n| {first_column} |");
    let (_, rest) = OPERATIONS.split_once(&head).unwrap();
    let rows = rest
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').skip(1).map(unquoted).collect())
        .collect()
}

fn unquoted(cell: &str) -> String {
    cell.replace('`', "").trim().to_owned()
}

/// The first cells of a table.
fn words(first_column: &str) -> BTreeSet<String> {
    table(first_column)
        .into_iter()
        .map(|row| row[0].clone())
        .collect()
}

/// A type, and labels, separated by commas.
type Described = (String, String);

/// Metrics by the name that a dashboard asks for. Everything is counted once, for a family without
/// members is not on the page.
fn exposed() -> BTreeMap<String, Described> {
    let metrics = Metrics::new();
    let took = Duration::from_millis(1);
    let route = metrics.route("login");
    route.finished(StatusCode::OK, Disposition::Allowed, took);
    let limit = metrics.limit("LoginsPerAddress");
    limit.decided(Disposition::Allowed);
    limit.settled(Settled::Spent);
    metrics.kept_out().ban(&"abusers".into()).held(true);
    let _held = limit.leased();
    metrics.store_call("decide").called(took, Some("deadline"));
    metrics.memory_store(|| 0, || 0);
    metrics.log_lines_dropped(|| 0);
    metrics.server().handshakes.ended(Handshake::Full);
    metrics.certificates(|| 0);
    metrics.loaded(true);
    let page = metrics.encode().unwrap();
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let described = (kind.to_owned(), labels(&page, name));
            (format!("{name}{suffix}"), described)
        })
        .collect()
}

/// The labels of a metric's first sample, without those that every histogram has.
fn labels(page: &str, name: &str) -> String {
    let sample = page.lines().find(|line| line.starts_with(name)).unwrap();
    let labels = sample.split_once('{').map_or("", |(_, rest)| rest);
    let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    let names: Vec<&str> = pairs.map(|(name, _)| name).collect();
    names.join(", ")
}

#[test]
fn the_metrics_in_the_docs_are_those_on_the_page() {
    let documented: BTreeMap<String, Described> = table("metric")
        .into_iter()
        .map(|row| (row[0].clone(), (row[1].clone(), row[2].clone())))
        .collect();
    assert_eq!(documented, exposed());
}

#[test]
fn every_name_of_a_metric_is_on_the_page() {
    let names: BTreeSet<&str> = NAMES
        .split('"')
        .filter(|text| text.starts_with("weir_"))
        .collect();
    let exposed: BTreeSet<String> = exposed().into_keys().collect();
    let on_the_page = |name: &&str| {
        let mut forms = ["", "_total", "_info"].into_iter();
        forms.any(|suffix| exposed.contains(&format!("{name}{suffix}")))
    };
    let lacking: Vec<_> = names.iter().filter(|name| !on_the_page(name)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    assert_eq!(names.len(), exposed.len());
}

#[test]
fn the_fields_in_the_docs_are_those_of_the_access_log() {
    let (_, rest) = ACCESS.split_once("target: ACCESS_TARGET,").unwrap();
    let (fields, _) = rest.split_once(");\n").unwrap();
    let written: BTreeSet<String> = fields
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(words("field"), written);
}

#[test]
fn the_decisions_in_the_docs_are_all_there_are() {
    let all: BTreeSet<String> = Disposition::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(words("decision"), all);
}

/// The table of `proxy::error`: a status, and the word for it.
#[test]
fn the_upstream_errors_in_the_docs_are_those_of_the_proxy() {
    let proxy = include_str!("../proxy/error.rs");
    let rows = proxy.split("StatusCode::").skip(1);
    let written: BTreeMap<String, String> = rows
        .filter_map(|row| {
            let (status, rest) = row.split_once(',')?;
            let (reason, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
            Some((reason.to_owned(), number(status)))
        })
        .collect();
    let documented: BTreeMap<String, String> = table("upstream_error")
        .into_iter()
        .map(|row| (row[0].clone(), row[2].clone()))
        .collect();
    assert_eq!(documented, written);
}

/// The number of a status that has its name in capitals.
fn number(name: &str) -> String {
    let spoken = |status: &StatusCode| {
        let reason = status.canonical_reason().unwrap_or_default();
        reason.to_uppercase().replace(' ', "_") == name
    };
    let mut all = (100..600).filter_map(|number| StatusCode::from_u16(number).ok());
    all.find(spoken).unwrap().as_str().to_owned()
}
