//! The report as one page of HTML: nothing is loaded from elsewhere, no script runs, and every text of
//! a log is escaped.

use std::fmt::{self, Write};

use super::{ChangesReport, LimitReport, Moment, Report, SweepReport, Totals};

const HEAD: &str = r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>weir replay</title>
<style>
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --line: #d5dbe3; --soft: #f3f5f8;
  --requests: #9db7d5; --denied: #c8402f; --before: #8a6d1b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --paper: #14181e; --line: #36404d;
  --soft: #1d232b; --requests: #47678d; --denied: #f0705f; --before: #d8b44c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem; border-top: 1px solid var(--line);
  padding-top: 1rem }
table { border-collapse: collapse; margin: .75rem 0; display: block; overflow-x: auto }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
code, pre { font: 13px/1.5 ui-monospace, monospace; background: var(--soft); border-radius: 4px }
pre { padding: .6rem; overflow-x: auto } code { padding: .1rem .3rem }
svg { width: 100%; height: auto; background: var(--soft); border-radius: 4px }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif }
.requests { fill: var(--requests) } .denied { fill: var(--denied) }
.before { fill: none; stroke: var(--before); stroke-width: 1.5 }
.curve { fill: none; stroke: var(--denied); stroke-width: 2 }
.big { font-size: 1.3rem }
</style></head><body>
"#;

/// The whole page.
pub fn html(report: &Report) -> String {
    let mut page = HEAD.to_owned();
    // Writing to a `String` never fails.
    let _ = write_page(&mut page, report);
    page.push_str("</body></html>\n");
    page
}

fn write_page(out: &mut String, report: &Report) -> fmt::Result {
    let log = &report.log;
    writeln!(out, "<h1>Replay of {} requests</h1>", log.counts.requests)?;
    if let (Some(from), Some(to)) = (&log.from, &log.to) {
        writeln!(
            out,
            "<p>{} to {}, in the form {}</p>",
            Text(from),
            Text(to),
            log.format
        )?;
    }
    let Totals {
        total,
        denied,
        denied_percent,
        ..
    } = report.requests;
    writeln!(
        out,
        "<p class=big>With {}: <b>{denied} of {total} requests denied ({denied_percent}%)</b></p>",
        Text(&report.config)
    )?;
    if let Some(before) = &report.baseline_requests {
        let name = report.baseline.as_deref().unwrap_or_default();
        let (denied, percent) = (before.denied, before.denied_percent);
        writeln!(
            out,
            "<p>With {}: {denied} denied ({percent}%)</p>",
            Text(name)
        )?;
    }
    write_timeline(out, &report.timeline)?;
    if let Some(changes) = &report.changes {
        write_changes(out, changes, report.baseline.as_deref().unwrap_or_default())?;
    }
    write_limits(out, &report.limits)?;
    for limit in report.limits.iter().filter(|limit| limit.requests > 0) {
        write_limit(out, limit)?;
    }
    write_sweep(out, &report.sweep)?;
    write_rest(out, report)
}

/// Bars of requests and of denials over time, and the denials of the baseline as a line.
fn write_timeline(out: &mut String, moments: &[Moment]) -> fmt::Result {
    const WIDTH: f64 = 960.0;
    const HEIGHT: f64 = 180.0;
    let most = moments
        .iter()
        .map(|moment| moment.requests)
        .max()
        .unwrap_or(0)
        .max(1);
    let step = WIDTH / number(moments.len() as u64).max(1.0);
    let height = |count: u64| HEIGHT * number(count) / number(most);
    writeln!(
        out,
        "<svg viewBox=\"0 0 960 210\" role=img aria-label=\"Requests and denials over time\">"
    )?;
    for (moment, x) in moments
        .iter()
        .zip(0_u64..)
        .map(|(moment, at)| (moment, number(at) * step))
    {
        let title = format!(
            "{}: {} requests, {} denied",
            moment.at, moment.requests, moment.denied
        );
        writeln!(out, "<g><title>{}</title>", Text(&title))?;
        for (class, count) in [("requests", moment.requests), ("denied", moment.denied)] {
            let (tall, wide) = (height(count), (step - 0.5).max(0.5));
            let y = HEIGHT - tall;
            writeln!(
                out,
                "<rect class={class} x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{tall:.1}\"/>"
            )?;
        }
        out.push_str("</g>");
    }
    if moments.iter().any(|moment| moment.denied_before > 0) {
        let points = moments.iter().zip(0_u64..).map(|(moment, at)| {
            let (x, y) = (
                (number(at) + 0.5) * step,
                HEIGHT - height(moment.denied_before),
            );
            format!("{x:.1},{y:.1}")
        });
        let points: Vec<String> = points.collect();
        writeln!(
            out,
            "<polyline class=before points=\"{}\"/>",
            points.join(" ")
        )?;
    }
    if let (Some(first), Some(last)) = (moments.first(), moments.last()) {
        writeln!(out, "<text x=2 y=204>{}</text>", Text(&first.at))?;
        writeln!(
            out,
            "<text x=958 y=204 text-anchor=end>{}</text>",
            Text(&last.at)
        )?;
    }
    let length = moments.first().map_or(60, |moment| moment.seconds);
    writeln!(
        out,
        "</svg><p>Bars of {length} s: all requests, and those denied in red; those denied \
                   in the baseline as a line. The highest is {most} requests.</p>"
    )
}

fn write_changes(out: &mut String, changes: &ChangesReport, baseline: &str) -> fmt::Result {
    let name = match baseline {
        "recorded" => "what the log says was decided",
        name => name,
    };
    let ChangesReport {
        compared,
        same,
        newly_denied,
        no_longer_denied,
        ..
    } = changes;
    writeln!(
        out,
        "<h2>Compared with {}</h2><p>{same} of {compared} requests fare alike; {newly_denied} are \
         newly denied, {no_longer_denied} no longer denied.</p>",
        Text(name)
    )?;
    if changes.examples.is_empty() {
        return Ok(());
    }
    out.push_str("<table><tr><th>time<th>client<th>request<th>was<th>is</tr>\n");
    for example in &changes.examples {
        writeln!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            Text(&example.at),
            Text(&example.client),
            Text(&example.request),
            Text(&example.was),
            Text(&example.is)
        )?;
    }
    out.write_str("</table>\n")
}

fn write_limits(out: &mut String, limits: &[LimitReport]) -> fmt::Result {
    out.push_str(
        "<h2>Limits</h2><table><tr><th>limit<th class=n>requests<th class=n>denied<th class=n>would \
         deny<th class=n>%<th class=n>subjects<th class=n>of these denied<th class=n>need p50<th \
         class=n>p99<th class=n>max</tr>\n",
    );
    for limit in limits {
        let need = limit
            .need
            .as_ref()
            .map(|need| [need.p50, need.p99, need.max]);
        let need = need.map_or_else(Default::default, |need| need.map(|units| units.to_string()));
        writeln!(
            out,
            "<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td \
             class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}</tr>",
            Text(&limit.name),
            limit.requests,
            limit.denied,
            limit.would_deny,
            limit.denied_percent,
            limit.subjects,
            limit.denied_subjects,
            need[0],
            need[1],
            need[2]
        )?;
    }
    out.write_str("</table>\n")
}

fn write_limit(out: &mut String, limit: &LimitReport) -> fmt::Result {
    writeln!(
        out,
        "<h2>{}</h2><p>per {}; routes {}</p>",
        Text(&limit.name),
        Text(&limit.per.join(" and ")),
        Text(&limit.routes.join(", "))
    )?;
    if !limit.top.is_empty() {
        out.push_str(
            "<table><tr><th>subject<th class=n>denied<th class=n>of<th>first<th>last</tr>\n",
        );
    }
    for subject in &limit.top {
        writeln!(
            out,
            "<tr><td><code>{}</code><td class=n>{}<td class=n>{}<td>{}<td>{}</tr>",
            Text(&subject.subject),
            subject.denied,
            subject.requests,
            Text(&subject.first),
            Text(&subject.last)
        )?;
    }
    if !limit.top.is_empty() {
        out.push_str("</table>\n");
    }
    let suggested = limit.need.as_ref().and_then(|need| need.suggested.as_ref());
    let Some(suggested) = suggested else {
        return Ok(());
    };
    let promise = &suggested.promise;
    writeln!(
        out,
        "<p>Suggested; it would have denied {} subjects, and at most {} requests ({}%):</p><pre>{}</pre>",
        promise.denied_subjects,
        promise.denied_at_most,
        promise.denied_at_most_percent,
        Text(&suggested.yaml)
    )
}

/// The share of denials by the value of a parameter.
fn write_sweep(out: &mut String, sweep: &[SweepReport]) -> fmt::Result {
    let Some(first) = sweep.first() else {
        return Ok(());
    };
    writeln!(
        out,
        "<h2>{} by {}</h2>",
        Text(&first.limit.name),
        Text(first.parameter)
    )?;
    let most = sweep
        .iter()
        .map(|variant| variant.limit.denied_percent)
        .fold(0.001, f64::max);
    let step = 900.0 / number(sweep.len().saturating_sub(1).max(1) as u64);
    let mut points: Vec<(f64, f64, &SweepReport)> = Vec::new();
    for (variant, at) in sweep.iter().zip(0_u64..) {
        let y = 180.0 - 160.0 * variant.limit.denied_percent / most;
        points.push((30.0 + number(at) * step, y, variant));
    }
    let line: Vec<String> = points
        .iter()
        .map(|(x, y, _)| format!("{x:.1},{y:.1}"))
        .collect();
    writeln!(
        out,
        "<svg viewBox=\"0 0 960 210\" role=img aria-label=\"Denials by value\"><polyline class=curve \
         points=\"{}\"/>",
        line.join(" ")
    )?;
    for (x, y, variant) in &points {
        let percent = variant.limit.denied_percent;
        writeln!(
            out,
            "<text x=\"{x:.1}\" y=204 text-anchor=middle>{}</text><text x=\"{x:.1}\" y=\"{:.1}\" \
             text-anchor=middle>{percent}%</text>",
            Text(&variant.value),
            y - 6.0
        )?;
    }
    out.write_str("</svg>\n")
}

fn write_rest(out: &mut String, report: &Report) -> fmt::Result {
    if !report.not_replayed.is_empty() {
        out.push_str("<h2>Not replayed</h2><ul>\n");
        for gap in &report.not_replayed {
            writeln!(out, "<li>{}: {}</li>", Text(&gap.what), Text(&gap.why))?;
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<h2>Keep in mind</h2><ul>\n");
    for caveat in &report.caveats {
        writeln!(out, "<li>{}</li>", Text(caveat))?;
    }
    out.push_str("</ul>\n");
    let counts = &report.log.counts;
    if counts.malformed > 0 {
        writeln!(
            out,
            "<h2>{} lines that cannot be read</h2><ul>",
            counts.malformed
        )?;
        for line in &counts.examples {
            let (file, number, why) = (Text(&line.file), line.line, line.why);
            writeln!(
                out,
                "<li>{file}:{number}: {why}: <code>{}</code></li>",
                Text(&line.text)
            )?;
        }
        out.push_str("</ul>\n");
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a drawing is not that exact")]
const fn number(count: u64) -> f64 {
    count as f64
}

/// Text that stays text wherever it stands in a page.
struct Text<'t>(&'t str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_log_stays_text() {
        let shown = Text("<script>alert('x')</script> & \"q\"").to_string();
        assert_eq!(
            shown,
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;q&quot;"
        );
    }
}
