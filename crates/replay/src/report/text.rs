//! The report as text, for people, and as comma-separated values.

use std::fmt::{self, Write};

use weir_telemetry::printable;

use super::{Changes, LimitReport, Report, Totals};
use crate::need::{MIN_SUBJECTS, NeedReport, Promise};
use crate::{percent, shown};

/// Writes the report.
///
/// # Errors
/// When `out` fails, as a `String` never does.
pub fn write_text(out: &mut String, report: &Report) -> fmt::Result {
    write_log(out, report)?;
    write_totals(out, report)?;
    if let Some(changes) = &report.changes {
        write_changes(out, changes, report.baseline_name())?;
    }
    if let Some(fidelity) = &report.fidelity {
        let percent = percent(fidelity.same, fidelity.compared);
        writeln!(
            out,
            "\nthe baseline decides {percent}% of {} requests as the log says",
            fidelity.compared
        )?;
    }
    for limit in &report.limits {
        write_limit(out, limit)?;
    }
    write_sweep(out, report)?;
    report.access.write_text(out)?;
    if !report.not_replayed.is_empty() {
        writeln!(out, "\nnot replayed:")?;
    }
    for gap in &report.not_replayed {
        writeln!(out, "  {}: {}", gap.what, gap.why)?;
    }
    writeln!(out, "\nkeep in mind:")?;
    for caveat in &report.caveats {
        writeln!(out, "  - {caveat}")?;
    }
    Ok(())
}

fn write_log(out: &mut String, report: &Report) -> fmt::Result {
    let log = &report.log;
    let counts = &log.counts;
    write!(out, "log: {} requests", counts.requests)?;
    if let (Some(from), Some(to)) = (&log.from, &log.to) {
        write!(out, " from {from} to {to}")?;
    }
    writeln!(out, ", in the form {}", log.format)?;
    if counts.outside > 0 {
        writeln!(out, "  {} outside of --from and --to", counts.outside)?;
    }
    if counts.other > 0 {
        writeln!(out, "  {} lines that are not about requests", counts.other)?;
    }
    if counts.malformed > 0 {
        writeln!(out, "  {} lines that cannot be read:", counts.malformed)?;
    }
    for line in &counts.examples {
        let (file, number, why) = (&line.file, line.line, line.why);
        writeln!(out, "    {file}:{number}: {why}: {}", line.text)?;
    }
    Ok(())
}

fn write_totals(out: &mut String, report: &Report) -> fmt::Result {
    let Totals {
        total,
        denied,
        denied_percent,
        would_deny,
        delayed,
        allowed,
        unlimited,
        unrouted,
        refused,
        blocked,
        carried_over,
    } = &report.requests;
    writeln!(out, "\nwith {}:", report.config)?;
    writeln!(
        out,
        "  {denied} of {total} requests denied ({denied_percent}%)"
    )?;
    let parts = [
        (
            *would_deny,
            "would be denied, were all limits and bans enforced",
        ),
        (*delayed, "wait for their turn"),
        (*allowed, "allowed"),
        (*unlimited, "that no limit applies to"),
        (*unrouted, "without a route"),
        (*refused, "refused before any limit"),
        (*blocked, "of clients on the block list"),
        (
            *carried_over,
            "denied at the time by a limit that cannot be replayed, and so here",
        ),
    ];
    for (count, what) in parts.iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "  {count} {what}")?;
    }
    if let Some(baseline) = &report.baseline_requests {
        let name = report.baseline.as_deref().unwrap_or_default();
        let (denied, percent) = (baseline.denied, baseline.denied_percent);
        writeln!(
            out,
            "with {name}:\n  {denied} of {} requests denied ({percent}%)",
            baseline.total
        )?;
    }
    Ok(())
}

fn write_changes(out: &mut String, changes: &Changes, baseline: &str) -> fmt::Result {
    writeln!(out, "\ncompared with {baseline}:")?;
    writeln!(
        out,
        "  {} of {} requests fare alike ({}%)",
        changes.same,
        changes.compared,
        percent(changes.same, changes.compared)
    )?;
    let parts = [
        (changes.newly_denied, "newly denied"),
        (changes.no_longer_denied, "no longer denied"),
        (changes.denied_by_another, "denied by another limit or ban"),
        (changes.not_compared, "not compared"),
    ];
    for (count, what) in parts.iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "  {count} {what}")?;
    }
    for example in &changes.examples {
        writeln!(
            out,
            "    {} {} {}: was {}, is {}",
            shown(example.at),
            example.client,
            printable(&example.request),
            example.was,
            example.is
        )?;
    }
    Ok(())
}

fn write_limit(out: &mut String, limit: &LimitReport) -> fmt::Result {
    writeln!(
        out,
        "\nlimit {}, per {}:",
        limit.name,
        limit.per.join(" and ")
    )?;
    if limit.requests == 0 {
        return writeln!(out, "  was not asked");
    }
    let (requests, percent) = (limit.requests, limit.denied_percent);
    let would = match (limit.denied, limit.would_deny) {
        (denied, 0) => format!("{denied} denied"),
        (0, would) => format!("{would} that it would deny"),
        (denied, would) => format!("{denied} denied, {would} more that it would deny"),
    };
    writeln!(out, "  {requests} requests, {would} ({percent}%)")?;
    if let (Some(newly), Some(no_longer)) = (limit.newly_denied, limit.no_longer_denied)
        && newly + no_longer > 0
    {
        writeln!(out, "  {newly} newly denied, {no_longer} no longer denied")?;
    }
    if let (Some(first), Some(last)) = (&limit.first_denied, &limit.last_denied) {
        writeln!(out, "  denials from {first} to {last}")?;
    }
    let (denied, subjects) = (limit.denied_subjects, limit.subjects);
    writeln!(out, "  {denied} of {subjects} subjects denied")?;
    for subject in &limit.top {
        writeln!(
            out,
            "    {}: {} of {} requests denied, from {} to {}",
            printable(&subject.subject),
            subject.denied,
            subject.requests,
            subject.first,
            subject.last
        )?;
    }
    if limit.untracked > 0 {
        writeln!(out, "  {} requests of further subjects", limit.untracked)?;
    }
    limit
        .need
        .as_ref()
        .map_or(Ok(()), |need| write_need(out, need))
}

fn write_sweep(out: &mut String, report: &Report) -> fmt::Result {
    let Some(first) = report.sweep.first() else {
        return Ok(());
    };
    writeln!(out, "\nsweep of {}.{}:", first.limit.name, first.parameter)?;
    for variant in &report.sweep {
        let limit = &variant.limit;
        let denied = limit.denied + limit.would_deny;
        writeln!(
            out,
            "  {:>8}: {denied} of {} requests denied ({}%), of {} subjects",
            variant.value, limit.requests, limit.denied_percent, limit.denied_subjects
        )?;
    }
    Ok(())
}

fn write_need(out: &mut String, need: &NeedReport) -> fmt::Result {
    let NeedReport {
        of,
        p50,
        p99,
        max,
        target_percent,
        ..
    } = need;
    write_left_out(out, need)?;
    if need.subjects == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  {of} that subjects need: {p50} for half of them, {p99} for 99%, {max} for all"
    )?;
    writeln!(
        out,
        "  smallest {of} that denies at most {target_percent}% of subjects: {}, which denies {}",
        need.smallest.value,
        promised(&need.smallest, need)
    )?;
    let Some(suggested) = &need.suggested else {
        let subjects = need.subjects;
        return writeln!(
            out,
            "  suggested: none, as {subjects} subjects are too few to say what is normal \
             ({MIN_SUBJECTS} at least)"
        );
    };
    writeln!(
        out,
        "  suggested, which denies {}:",
        promised(&suggested.promise, need)
    )?;
    writeln!(out, "    {}", suggested.yaml)
}

/// The subjects whose needs are no measure.
fn write_left_out(out: &mut String, need: &NeedReport) -> fmt::Result {
    if need.left_out_subjects > 0 {
        writeln!(
            out,
            "  {} subjects are no measure of what is normal, as most of their requests were refused \
             (401, 403, 429) or denied at the time:",
            need.left_out_subjects
        )?;
    }
    for subject in &need.left_out {
        let (refused, requests) = (subject.refused, subject.requests);
        writeln!(
            out,
            "    {}: {refused} of {requests} requests",
            subject.subject
        )?;
    }
    Ok(())
}

/// The denials of a limit.
fn promised(promise: &Promise, need: &NeedReport) -> String {
    let Promise {
        denied_subjects,
        denied_left_out,
        denied_at_most,
        denied_at_most_percent,
        ..
    } = promise;
    if denied_subjects + denied_left_out == 0 {
        return "none".to_owned();
    }
    let left_out = match denied_left_out {
        0 => String::new(),
        denied => format!(
            " and {denied} of {} that are no measure",
            need.left_out_subjects
        ),
    };
    format!(
        "{denied_subjects} of {}{left_out}, at most {denied_at_most} requests \
         ({denied_at_most_percent}%)",
        need.subjects
    )
}

const COLUMNS: [&str; 16] = [
    "limit",
    "variant",
    "requests",
    "allowed",
    "denied",
    "would_deny",
    "denied_percent",
    "baseline_denied",
    "newly_denied",
    "no_longer_denied",
    "subjects",
    "denied_subjects",
    "first_denied",
    "last_denied",
    "need_p99",
    "suggested",
];

/// The limits as comma-separated values (RFC 4180), a row each; and a row for each value of a
/// sweep.
pub fn csv(report: &Report) -> String {
    let mut text = row(COLUMNS.map(str::to_owned));
    for limit in &report.limits {
        text.push_str(&row(cells(limit, "")));
    }
    for variant in &report.sweep {
        let name = format!("{}={}", variant.parameter, variant.value);
        text.push_str(&row(cells(&variant.limit, &name)));
    }
    text
}

fn cells(limit: &LimitReport, variant: &str) -> [String; 16] {
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    let count = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
    let need = limit.need.as_ref();
    let suggested = need.and_then(|need| need.suggested.as_ref());
    [
        limit.name.clone(),
        variant.to_owned(),
        limit.requests.to_string(),
        limit.allowed.to_string(),
        limit.denied.to_string(),
        limit.would_deny.to_string(),
        limit.denied_percent.to_string(),
        count(limit.baseline_denied),
        count(limit.newly_denied),
        count(limit.no_longer_denied),
        limit.subjects.to_string(),
        limit.denied_subjects.to_string(),
        optional(&limit.first_denied),
        optional(&limit.last_denied),
        need.map(|need| need.p99.to_string()).unwrap_or_default(),
        suggested
            .map(|suggested| suggested.yaml.clone())
            .unwrap_or_default(),
    ]
}

fn row<const N: usize>(cells: [String; N]) -> String {
    let quoted = |cell: String| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    };
    cells.map(quoted).join(",") + "\r\n"
}
