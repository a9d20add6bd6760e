//! What the admin API answered, as tables and lines for people.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use weir_telemetry::printable;
use weir_yaml::{HumanDuration, pluralized};

/// The gateways, why no others are shown, and the limits that differ.
pub(super) fn gateway_table(answer: &Value) -> String {
    let heads = [
        "GATEWAY",
        "ADDRESS",
        "VERSION",
        "CONFIGURATION",
        "SINCE",
        "STATE",
        "FIGURES",
        "REQUESTS",
        "DENIED",
        "FAILED",
    ];
    let own = answer.pointer("/gateways/0/configuration");
    let rows = rows(answer, "gateways", |gateway| {
        let name = match gateway["is_self"].as_bool() {
            Some(true) => format!("{} *", shown(&gateway["name"])),
            _ => shown(&gateway["name"]),
        };
        let state = match gateway["state"].as_str() {
            Some("up") if gateway["configuration_refused"] == true => {
                "up, configuration refused".to_owned()
            }
            Some("up") => "up".to_owned(),
            _ => {
                let seen = gateway["seen"].as_f64().unwrap_or_default();
                format!("{} for {}", shown(&gateway["state"]), span(seen))
            }
        };
        let configuration = match Some(&gateway["configuration"]) == own {
            true => shown(&gateway["configuration"]),
            false => format!("{} differs", shown(&gateway["configuration"])),
        };
        let count = |name: &str| match gateway["counts"].get(name) {
            None | Some(Value::Null) => "-".to_owned(),
            Some(count) => count.to_string(),
        };
        [
            name,
            shown(&gateway["address"]),
            shown(&gateway["version"]),
            configuration,
            shown(&gateway["since"]),
            state,
            shown(&gateway["figures"]).replace('_', " "),
            count("requests"),
            count("denied"),
            count("failed"),
        ]
    });
    let mut text = table(heads, 7, &rows, "no gateways");
    if let Value::String(why) = &answer["alone"] {
        // Writing to a string never fails.
        let _ = writeln!(text, "alone: {}", printable(why));
    }
    for other in answer["configurations"].as_array().into_iter().flatten() {
        write_differences(&mut text, other);
    }
    write_other_keys(&mut text, answer);
    text
}

/// The gateways whose `hash_key` is another than that of the first, a line each.
fn write_other_keys(text: &mut String, answer: &Value) {
    let own = answer.pointer("/gateways/0/hash_key");
    let own = own.and_then(Value::as_str);
    for gateway in answer["gateways"].as_array().into_iter().flatten() {
        let keys = own.zip(gateway["hash_key"].as_str());
        if keys.is_some_and(|(own, key)| own != key) {
            let (name, address) = (shown(&gateway["name"]), shown(&gateway["address"]));
            // Writing to a string never fails.
            let _ = writeln!(
                text,
                "{name} ({address}): another hash_key, so it counts accounts apart"
            );
        }
    }
}

/// The limits of another configuration that differ, a line each.
fn write_differences(text: &mut String, other: &Value) {
    let digest = shown(&other["configuration"]);
    let (limits, none) = (other["limits"].as_array(), Vec::new());
    // Writing to a string never fails.
    let _ = match limits {
        None => writeln!(text, "{digest}: its limits are not known"),
        Some(limits) if limits.is_empty() => writeln!(text, "{digest}: no limit differs"),
        Some(_) => Ok(()),
    };
    for limit in limits.unwrap_or(&none) {
        let side = |name: &str| match &limit[name] {
            Value::Null => "none".to_owned(),
            definition => shown(definition),
        };
        let _ = writeln!(
            text,
            "{digest}: {}: here {}; there {}\n  meanwhile: {}",
            shown(&limit["limit"]),
            side("here"),
            side("there"),
            shown(&limit["meanwhile"])
        );
    }
}

pub(super) fn top_table(answer: &Value) -> String {
    let heads = [
        "LIMIT",
        "SUBJECT",
        "REQUESTS",
        "DENIED",
        "PER SECOND",
        "USED",
    ];
    let rows = rows(answer, "subjects", |subject| {
        let used = subject["used"].as_f64().unwrap_or_default() * 100.0;
        [
            shown(&subject["limit"]),
            shown(name_or_id(subject)),
            subject["requests"].to_string(),
            subject["denied"].to_string(),
            subject["rate"].to_string(),
            format!("{used:.0}%"),
        ]
    });
    let mut text = table(heads, 2, &rows, "no subjects");
    if let Some(counted) = counted_line(answer) {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&counted);
        text.push('\n');
    }
    text
}

/// Which gateways are counted, and how many requests of a subject may be missing. None where there
/// is but one gateway.
pub(super) fn counted_line(answer: &Value) -> Option<String> {
    let number = |name: &str| {
        let number = answer[name].as_u64().unwrap_or_default();
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    let (counted, known) = (number("gateways"), number("known"));
    if answer["scope"] != "fleet" {
        return (known > 1).then(|| format!("this gateway of {known}"));
    }
    let is_one = counted.max(known) < 2 && answer["alone"].is_null();
    if is_one || answer["is_fleet"] == false {
        return None;
    }
    let subjects = answer["subjects"].as_array().into_iter().flatten();
    let uncounted = subjects.filter_map(|subject| subject["uncounted"].as_u64());
    let uncounted = uncounted.max().unwrap_or_default();
    let mut text = match counted < known {
        true => format!("{counted} of {}", pluralized(known, "gateway")),
        false => pluralized(counted, "gateway"),
    };
    if let Value::String(why) = &answer["alone"] {
        text = format!("this gateway alone: {}", printable(why));
    }
    if uncounted > 0 {
        let requests = pluralized(usize::try_from(uncounted).unwrap_or(usize::MAX), "request");
        // Writing to a string never fails.
        let _ = write!(text, "; up to {requests} of a subject may be missing");
    }
    Some(text)
}

/// The name of a subject's account where that is known, and else its id.
pub(super) fn name_or_id(subject: &Value) -> &Value {
    match &subject["name"] {
        Value::Null => &subject["subject"],
        name => name,
    }
}

pub(super) fn bucket_table(answer: &Value) -> String {
    let heads = ["SUBJECT", "REMAINING", "BURST", "FULL IN"];
    let rows = rows(answer, "buckets", |bucket| {
        let burst = bucket.get("burst").or(bucket.get("most"));
        [
            shown(name_or_id(bucket)),
            bucket["remaining"].to_string(),
            burst.map_or_else(String::new, Value::to_string),
            bucket["reset_in"].as_f64().map_or_else(String::new, span),
        ]
    });
    table(heads, 1, &rows, "no subjects") + more(answer)
}

/// A line that says that there are others.
pub(super) fn more(answer: &Value) -> &'static str {
    match answer["next"].is_null() {
        true => "",
        false => "and others; see --count\n",
    }
}

pub(super) fn span(seconds: f64) -> String {
    // A duration has no form for parts of a second that is as short.
    let seconds = Duration::try_from_secs_f64(seconds.ceil());
    let span = seconds.map(|span| HumanDuration(span).to_string());
    span.unwrap_or_default()
}

pub(super) fn rows<const N: usize>(
    answer: &Value,
    items: &str,
    row: impl Fn(&Value) -> [String; N],
) -> Vec<[String; N]> {
    let items = answer[items].as_array();
    items.into_iter().flatten().map(row).collect()
}

/// The number of overrides of an answer.
pub(super) fn total(answer: &Value) -> u64 {
    answer["total"].as_u64().unwrap_or_default()
}

pub(super) fn override_table(answer: &Value) -> String {
    let rows = rows(answer, "overrides", |listed| {
        let number = |name: &str| match &listed[name] {
            Value::Null => "-".to_owned(),
            number => number.to_string(),
        };
        let in_flight = &listed["in_flight"];
        let rate = match in_flight.is_null() {
            true => format!(
                "{}, {} per {}",
                number("burst"),
                number("count"),
                shown(&listed["period"])
            ),
            false => format!("{in_flight} in flight"),
        };
        let state = match listed["in_force"].as_bool() {
            Some(true) => "in force".to_owned(),
            _ => format!("not: {}", shown(&listed["reason"])),
        };
        let by = match listed["origin"].as_str() {
            Some("file") => "a file".to_owned(),
            _ => shown(&listed["set_by"]),
        };
        [
            shown(&listed["limit"]),
            shown(&listed["id"]),
            rate,
            shown(&listed["until"]),
            by,
            state,
            shown(&listed["comment"]),
        ]
    });
    let heads = [
        "LIMIT",
        "ID",
        "BURST, RATE",
        "UNTIL",
        "SET BY",
        "STATE",
        "COMMENT",
    ];
    let mut text = table(heads, heads.len(), &rows, "no overrides");
    let rest = total(answer).saturating_sub(rows.len() as u64);
    if !rows.is_empty() && rest > 0 {
        // Writing to a string never fails.
        let _ = writeln!(
            text,
            "... and {rest} more; name a limit, or ask the admin API by pages"
        );
    }
    text
}

/// A text as a terminal may show it.
pub(super) fn shown(value: &Value) -> String {
    match value.as_str() {
        Some(text) => printable(text).into_owned(),
        None => "-".to_owned(),
    }
}

/// Rows under their heads, or the text for none. The first `texts` columns are aligned to the left.
pub(super) fn table<const N: usize>(
    heads: [&str; N],
    texts: usize,
    rows: &[[String; N]],
    none: &str,
) -> String {
    if rows.is_empty() {
        return none.to_owned();
    }
    let mut table = String::new();
    for row in std::iter::once(&heads.map(str::to_owned)).chain(rows) {
        let mut line = String::new();
        for (column, (cell, head)) in row.iter().zip(heads).enumerate() {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let width = cells.map(|cell| cell.chars().count()).max();
            let width = width.unwrap_or_default().max(head.len());
            let gap = if column == 0 { "" } else { "  " };
            // Writing to a string never fails.
            let _ = match column < texts {
                true => write!(line, "{gap}{cell:width$}"),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

/// The members of an object, a line each; of one within it, by its name and theirs.
pub(super) fn lines(answer: &Value) -> String {
    let mut text = String::new();
    write_lines(&mut text, "", answer);
    text
}

fn write_lines(text: &mut String, prefix: &str, value: &Value) {
    let Some(members) = value.as_object() else {
        return;
    };
    for (name, value) in members {
        let name = printable(name);
        // Writing to a string never fails.
        let _ = match value {
            Value::Null => Ok(()),
            Value::Object(_) => {
                write_lines(text, &format!("{prefix}{name}."), value);
                Ok(())
            }
            Value::String(value) => writeln!(text, "{prefix}{name}: {}", printable(value)),
            value => writeln!(text, "{prefix}{name}: {value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_columns_of_the_table_stand_under_each_other() {
        let subject = |limit: &str, subject: &str, requests: u32, rate: f64| {
            json!({
                "limit": limit, "subject": subject, "requests": requests,
                "denied": 0, "rate": rate, "used": 0.5,
            })
        };
        let subjects = [
            subject("Logins", "203.0.113.9", 1234, 20.57),
            subject("SearchesPerAccount", "a\u{1b}[2J", 5, 0.08),
        ];
        insta::assert_snapshot!(top_table(&json!({ "subjects": subjects })), @r"
        LIMIT               SUBJECT      REQUESTS  DENIED  PER SECOND  USED
        Logins              203.0.113.9      1234       0       20.57   50%
        SearchesPerAccount  a\u{1b}[2J          5       0        0.08   50%
        ");
        assert_eq!(top_table(&json!({ "subjects": [] })), "no subjects");
    }

    #[test]
    fn a_gateway_that_is_silent_or_differs_never_looks_like_the_others() {
        let gateway = |name: &str, configuration: &str, state: &str, counts: Value| {
            json!({
                "name": name, "address": "10.0.0.1:9901", "version": "0.1.0",
                "configuration": configuration, "since": "2026-11-26T12:00:07Z",
                "is_self": name == "gw-1", "state": state, "seen": 8.2,
                "figures": if counts.is_null() { "another_version" } else { "shared" },
                "counts": counts,
            })
        };
        let counts = json!({"requests": 412, "denied": 3, "failed": 0});
        let mut refused = gateway("gw-4", "5b1d", "up", counts.clone());
        refused["configuration_refused"] = true.into();
        let answer = json!({
            "alone": "NOPERM\u{1b}[2J",
            "gateways": [
                gateway("gw-1", "5b1d", "up", counts.clone()),
                gateway("gw-2", "90e2", "behind", counts),
                gateway("gw\u{1b}[2J", "5b1d", "silent", Value::Null),
                refused,
            ],
            "configurations": [
                {"configuration": "90e2", "gateways": ["gw-2"], "limits": [
                    {"limit": "L", "here": "5 at once", "there": null, "meanwhile": "all"},
                ]},
                {"configuration": "77aa", "gateways": ["gw-4"], "limits": null},
            ],
        });
        insta::assert_snapshot!(gateway_table(&answer), @r"
        GATEWAY      ADDRESS        VERSION  CONFIGURATION  SINCE                 STATE                      FIGURES          REQUESTS  DENIED  FAILED
        gw-1 *       10.0.0.1:9901  0.1.0    5b1d           2026-11-26T12:00:07Z  up                         shared                412       3       0
        gw-2         10.0.0.1:9901  0.1.0    90e2 differs   2026-11-26T12:00:07Z  behind for 9s              shared                412       3       0
        gw\u{1b}[2J  10.0.0.1:9901  0.1.0    5b1d           2026-11-26T12:00:07Z  silent for 9s              another version         -       -       -
        gw-4         10.0.0.1:9901  0.1.0    5b1d           2026-11-26T12:00:07Z  up, configuration refused  shared                412       3       0
        alone: NOPERM\u{1b}[2J
        90e2: L: here 5 at once; there none
          meanwhile: all
        77aa: its limits are not known
        ");
        let top = json!({"scope": "fleet", "gateways": 3, "alone": null, "subjects": [
            {"limit": "L", "subject": "a", "requests": 9, "denied": 0, "rate": 0.1, "used": 0.5,
             "uncounted": 4},
        ]});
        insta::assert_snapshot!(top_table(&top), @r"
        LIMIT  SUBJECT  REQUESTS  DENIED  PER SECOND  USED
        L      a               9       0         0.1   50%
        3 gateways; up to 4 requests of a subject may be missing
        ");
        let top = json!({"scope": "fleet", "gateways": 2, "known": 3, "alone": null});
        assert_eq!(counted_line(&top).unwrap(), "2 of 3 gateways");
    }

    #[test]
    fn buckets_are_lines_with_nothing_that_a_terminal_obeys() {
        let bucket = |subject: &str, name: Value| {
            json!({
                "subject": subject, "name": name, "remaining": 3, "burst": 20, "reset_in": 60.0,
            })
        };
        let named = bucket("41dafd041fa88f6a2abda85bf3564aa2", json!("acme"));
        let buckets = json!({"buckets": [bucket("a\nb", Value::Null), named], "next": "more"});
        insta::assert_snapshot!(bucket_table(&buckets), @r"
        SUBJECT  REMAINING  BURST  FULL IN
        a\nb             3     20       1m
        acme             3     20       1m
        and others; see --count
        ");
    }

    #[test]
    fn an_objects_members_are_lines_without_those_that_are_null() {
        let answer =
            json!({"limit": "L", "override": {"id": "a\nb", "until": null}, "remaining": 3});
        assert_eq!(
            lines(&answer),
            "limit: L\noverride.id: a\\nb\nremaining: 3\n"
        );
    }
}
