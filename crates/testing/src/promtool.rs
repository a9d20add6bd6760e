//! Prometheus's own tool, to say what a Prometheus makes of metrics and of the documented alerts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The recommended alerts.
pub const ALERTS: &str = include_str!("../../../deploy/prometheus/weir.rules.yml");

/// Whether the tool reads a page of metrics, and has nothing to find fault with.
pub fn check_metrics(page: &str) {
    let folder = tempfile::TempDir::with_prefix("weir-promtool-").expect("a folder");
    run(folder.path(), &["check", "metrics"], page);
}

/// Whether the tool reads these expressions.
pub fn check_expressions<'a>(expressions: impl IntoIterator<Item = &'a str>) {
    let folder = tempfile::TempDir::with_prefix("weir-promtool-").expect("a folder");
    let mut rules = "groups:\n- name: all\n  rules:\n".to_owned();
    for (index, expression) in expressions.into_iter().enumerate() {
        let quoted = expression.replace('\'', "''");
        let _ = writeln!(rules, "  - {{record: 'a:{index}', expr: '{quoted}'}}");
    }
    fs::write(folder.path().join("rules.yml"), rules).expect("a file");
    run(folder.path(), &["check", "rules", "rules.yml"], "");
}

/// The alerts that fire when Prometheus has scraped these pages, one each minute: just these.
pub fn check_alerts(pages: &[String], firing: &[&str]) {
    let folder = tempfile::TempDir::with_prefix("weir-promtool-").expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write("rules.yml", ALERTS);
    write("test.yml", &test_of(pages, firing));
    run(folder.path(), &["check", "rules", "rules.yml"], "");
    run(folder.path(), &["test", "rules", "test.yml"], "");
}

fn test_of(pages: &[String], firing: &[&str]) -> String {
    let mut test = "rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:\n".to_owned();
    test.push_str("- interval: 1m\n  input_series:\n");
    for (series, values) in series(pages) {
        let series = series.replace('\'', "''");
        let _ = writeln!(
            test,
            "  - series: '{series}'\n    values: '{}'",
            values.join(" ")
        );
    }
    let now = pages.len() - 1;
    test.push_str("  promql_expr_test:\n");
    test.push_str("  - expr: 'group by (alertname) (ALERTS{alertstate=\"firing\"})'\n");
    let _ = writeln!(test, "    eval_time: {now}m\n    exp_samples:");
    for name in firing {
        let labels = format!("'{{alertname=\"{name}\"}}'");
        let _ = writeln!(test, "    - {{labels: {labels}, value: 1}}");
    }
    test
}

/// The values of each series, with `_` where a page does not have it.
fn series(pages: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let names: BTreeSet<&str> = pages
        .iter()
        .flat_map(|page| read(page).map(|(name, _)| name))
        .collect();
    let mut all: BTreeMap<&str, Vec<&str>> =
        names.into_iter().map(|name| (name, Vec::new())).collect();
    for page in pages {
        let values: BTreeMap<&str, &str> = read(page).collect();
        for (name, series) in &mut all {
            series.push(values.get(name).copied().unwrap_or("_"));
        }
    }
    all
}

fn read(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.rsplit_once(' '))
}

fn run(folder: &Path, arguments: &[&str], input: &str) {
    let spawned = Command::new("promtool")
        .current_dir(folder)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut process = spawned.unwrap_or_else(|error| {
        panic!("promtool cannot be started ({error}): install it by `apt-get install prometheus`")
    });
    let mut stdin = process.stdin.take().expect("its input");
    stdin.write_all(input.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = process.wait_with_output().expect("promtool ends");
    let said = [&*output.stdout, &*output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    // Its warnings are on standard error, and end with success all the same.
    assert!(output.stderr.is_empty(), "promtool {arguments:?}: {said}");
}
