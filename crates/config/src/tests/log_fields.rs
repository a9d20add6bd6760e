//! docs/LOGS.md has a table of the fields that steps on responses add to a line, made of what they
//! say of them.

use std::fs;

use super::documented::top_level;
use crate::routes::schema::steps::LOG_FIELDS;

const BEGIN: &str = "<!-- fields of steps -->\n";
const END: &str = "<!-- end -->\n";

/// `UPDATE_REFERENCE=1` writes it anew.
#[test]
fn the_tables_of_the_log_have_the_fields_that_steps_declare() {
    let path = top_level("docs/LOGS.md");
    let read = || fs::read_to_string(&path).unwrap();
    let page = read();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let rows = LOG_FIELDS.iter().map(|field| {
        let doc = field.doc().replace('|', "\\|");
        format!("| `{}` | {doc} |\n", field.name())
    });
    let table = format!(
        "\n| step's field | what it is |\n|---|---|\n{}\n",
        rows.collect::<String>()
    );
    let derived = [before, BEGIN, &table, END, after].concat();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&path, &derived).unwrap();
    }
    assert!(
        read() == derived,
        "docs/LOGS.md is not up to date: set UPDATE_REFERENCE=1"
    );
}

#[test]
fn no_step_has_a_field_of_all_lines_or_of_another_step() {
    let of_all = weir_telemetry::ACCESS_LOG_FIELDS.iter();
    let names = of_all
        .map(|field| field.name)
        .chain(LOG_FIELDS.iter().map(|field| field.name()));
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
}
