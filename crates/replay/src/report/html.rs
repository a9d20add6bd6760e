//! The report as one page of HTML: nothing is loaded from elsewhere, no script runs, and every text
//! of a log is escaped.
//!
//! Plots are stretched to the width of the page, and what is written beside them is not, so that it
//! can be read on a phone.

use std::fmt::{self, Write};

use weir_telemetry::printable;

use super::{Changes, LimitReport, Report, SweepReport, TimelineSpan, Totals};
use crate::need::{MIN_SUBJECTS, NeedReport};
use crate::tally::Example;
use crate::{percent, shown};

const HEAD: &str = r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>weir replay</title>
<style>
:root { --ink: #1a2230; --soft-ink: #5b6675; --paper: #f6f7f9; --card: #fff; --line: #e0e5eb;
  --requests: #a9c1de; --denied: #d1432f; --before: #96700c; --good: #1f7a4d; --accent: #2f6bb3;
  --shade: rgb(26 34 48 / 28%) }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft-ink: #9aa7b8; --paper: #10141a;
  --card: #181e26; --line: #2b3440; --requests: #3f5f86; --denied: #ff7a66; --before: #d8b44c;
  --good: #58c08d; --accent: #7fb2ee; --shade: rgb(0 0 0 / 75%) } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink);
  background: var(--paper); margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem }
header p, .note { color: var(--soft-ink); margin: .2rem 0 }
h1 { font-size: clamp(1.4rem, 4vw, 2.1rem); line-height: 1.2; margin: .2rem 0 .4rem }
h2 { font-size: 1.1rem; margin: 0 0 .2rem } h3 { font-size: .95rem; margin: 1.4rem 0 .3rem }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.2rem; margin: 1rem 0 }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem;
  margin: 1rem 0 }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .7rem 1rem; color: var(--soft-ink); font-size: .85rem }
section .cards div { background: var(--paper) }
.cards b { display: block; font-size: 1.45rem; line-height: 1.3; color: var(--ink);
  font-variant-numeric: tabular-nums } .cards .bad b { color: var(--denied) }
.cards .good b { color: var(--good) }
.wide { overflow-x: auto; background: linear-gradient(to right, var(--card) 2rem, transparent) 0 0,
  linear-gradient(to left, var(--card) 2rem, transparent) 100% 0,
  linear-gradient(to right, var(--shade), transparent) 0 0,
  linear-gradient(to left, var(--shade), transparent) 100% 0; background-repeat: no-repeat;
  background-size: 3rem 100%, 3rem 100%, 1rem 100%, 1rem 100%;
  background-attachment: local, local, scroll, scroll }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
th { font-weight: 600; color: var(--soft-ink); font-size: .8rem; text-align: left }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.time { white-space: nowrap; font-variant-numeric: tabular-nums }
td.text { overflow-wrap: anywhere; min-width: 9rem } tr:last-child td { border-bottom: 0 }
td.share { width: 30%; min-width: 8rem }
.bar { display: block; height: .8rem; margin-top: .3rem; border-radius: 3px; background: var(--line);
  overflow: hidden } .bar i { display: block; height: 100%; background: var(--denied) }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, monospace; background: var(--paper);
  border-radius: 6px } code { padding: .1rem .3rem }
pre { padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); margin: .4rem 0 }
.plot { position: relative; height: 190px; margin: .6rem 0 .2rem; border-bottom: 1px solid var(--line);
  background: linear-gradient(var(--line) 1px, transparent 1px) 0 0 / 100% 25% }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible }
.plot small, .axis { color: var(--soft-ink); font-size: .75rem }
.plot > small { position: absolute; top: 2px; left: 4px }
.axis { display: flex; justify-content: space-between; gap: .5rem; font-variant-numeric: tabular-nums }
.mark { position: absolute; top: 0; bottom: 0; border-left: 2px dashed var(--accent); width: 0 }
.mark.new { border-color: var(--good) }
.mark small { position: absolute; top: 30%; left: 5px; white-space: nowrap; background: var(--card) }
.mark.new small { top: 50% } .mark.flip small { left: auto; right: 5px }
.requests { fill: var(--requests) } .denied { fill: var(--denied) }
.before, .curve { fill: none; stroke: var(--before); stroke-width: 2; vector-effect: non-scaling-stroke }
.curve { stroke: var(--denied) }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; color: var(--soft-ink); font-size: .85rem;
  margin: .3rem 0 0; padding: 0; list-style: none }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem;
  vertical-align: -1px }
li { margin: .2rem 0 } a { color: var(--accent) }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem }
</style></head><body>
"#;

/// The report as one page.
pub fn html(report: &Report) -> String {
    let mut page = HEAD.to_owned();
    // Writing to a `String` never fails.
    let _ = write_page(&mut page, report);
    page.push_str("</body></html>\n");
    page
}

fn write_page(out: &mut String, report: &Report) -> fmt::Result {
    write_head(out, report)?;
    write_timeline(out, report)?;
    if let Some(changes) = &report.changes {
        write_changes(out, changes, report.baseline_name())?;
    }
    write_limits(out, &report.limits)?;
    for (index, limit) in told(&report.limits) {
        write_limit(out, index, limit)?;
    }
    write_sweep(out, &report.sweep)?;
    write_rest(out, report)
}

fn write_head(out: &mut String, report: &Report) -> fmt::Result {
    let log = &report.log;
    let Totals {
        total,
        denied,
        denied_percent,
        would_deny,
        allowed,
        ..
    } = report.requests;
    writeln!(
        out,
        "<header><p>weir replay</p><h1>{} would deny {} of {} requests ({denied_percent}%)</h1>",
        Text(&report.config),
        Count(denied),
        Count(total)
    )?;
    if let (Some(from), Some(to)) = (&log.from, &log.to) {
        let (from, to, format) = (Time(from), Time(to), &log.format);
        writeln!(out, "<p>{from} to {to} UTC, in the form {format}</p>")?;
    }
    write_links(out, report)?;
    out.push_str("</header><div class=cards>\n");
    card(out, "", Count(total), "requests")?;
    card(out, "", Count(allowed), "allowed")?;
    card(out, mood(denied), Count(denied), "denied")?;
    if would_deny > 0 {
        card(
            out,
            "",
            Count(would_deny),
            "would be denied, were all enforced",
        )?;
    }
    if let Some(before) = &report.baseline_requests {
        card(out, "", Count(before.denied), "denied in the baseline")?;
    }
    if let Some(changes) = &report.changes {
        let (newly, no_longer) = (changes.newly_denied, changes.no_longer_denied);
        card(out, mood(newly), Count(newly), "newly denied")?;
        card(out, "good", Count(no_longer), "no longer denied")?;
    }
    out.write_str("</div>\n")
}

/// Links to what is below.
fn write_links(out: &mut String, report: &Report) -> fmt::Result {
    out.push_str("<nav aria-label=Sections>");
    if report.changes.is_some() {
        out.push_str("<a href=\"#changes\">What changes</a>");
    }
    out.push_str("<a href=\"#limits\">Limits</a>");
    for (index, limit) in told(&report.limits) {
        write!(out, "<a href=\"#limit-{index}\">{}</a>", Text(&limit.name))?;
    }
    if !report.sweep.is_empty() {
        out.push_str("<a href=\"#sweep\">Other values</a>");
    }
    out.write_str("<a href=\"#caveats\">Keep in mind</a></nav>")
}

/// The limits that requests were subject to, each of which has a section.
fn told(limits: &[LimitReport]) -> impl Iterator<Item = (usize, &LimitReport)> {
    let limits = limits.iter().enumerate();
    limits.filter(|(_, limit)| limit.requests > 0)
}

/// The class of a count that is better zero.
const fn mood(count: u64) -> &'static str {
    match count {
        0 => "good",
        _ => "bad",
    }
}

fn card(out: &mut String, class: &str, number: Count, what: &str) -> fmt::Result {
    writeln!(out, "<div class=\"{class}\"><b>{number}</b>{what}</div>")
}

/// Bars of requests and of denials over time, and the denials of the baseline as a line.
fn write_timeline(out: &mut String, report: &Report) -> fmt::Result {
    let moments = &report.timeline;
    let (Some(first), Some(last)) = (moments.first(), moments.last()) else {
        return Ok(());
    };
    let most = moments.iter().map(|moment| moment.requests).max();
    let most = most.unwrap_or(0).max(1);
    let height = |count: u64| 100.0 * number(count) / number(most);
    let count = moments.len();
    let seconds = first.seconds;
    writeln!(
        out,
        "<section><h2>Requests over time</h2><div class=plot><small>{} in {seconds} s</small><svg \
         viewBox=\"0 0 {count} 100\" preserveAspectRatio=none role=img \
         aria-label=\"Requests and denials over time\">",
        Count(most)
    )?;
    for (x, moment) in moments.iter().enumerate() {
        let (at, requests, denied) = (Time(&moment.at), moment.requests, moment.denied);
        write!(
            out,
            "<g><title>{at}: {} requests, {} denied</title>",
            Count(requests),
            Count(denied)
        )?;
        for (class, count) in [("requests", requests), ("denied", denied)] {
            let (y, tall) = (100.0 - height(count), height(count));
            write!(
                out,
                "<rect class={class} x=\"{x}.05\" y=\"{y:.2}\" width=\".9\" height=\"{tall:.2}\"/>"
            )?;
        }
        out.push_str("</g>\n");
    }
    let has_before = moments.iter().any(|moment| moment.denied_before > 0);
    if has_before {
        let point = |(x, moment): (usize, &TimelineSpan)| {
            format!("{x}.5,{:.2}", 100.0 - height(moment.denied_before))
        };
        let points: Vec<String> = moments.iter().enumerate().map(point).collect();
        writeln!(
            out,
            "<polyline class=before points=\"{}\"/>",
            points.join(" ")
        )?;
    }
    out.push_str("</svg></div><div class=axis>");
    let middle = moments.get(count / 2).filter(|_| count > 2);
    for moment in [Some(first), middle, Some(last)].into_iter().flatten() {
        write!(out, "<span>{}</span>", Time(&moment.at))?;
    }
    out.push_str(
        "</div><ul class=legend><li><i style=\"background:var(--requests)\"></i>requests\
         <li><i style=\"background:var(--denied)\"></i>denied",
    );
    if has_before {
        out.push_str("<li><i style=\"background:var(--before)\"></i>denied in the baseline");
    }
    out.write_str("</ul></section>\n")
}

fn write_changes(out: &mut String, changes: &Changes, baseline: &str) -> fmt::Result {
    let Changes {
        compared,
        same,
        newly_denied,
        no_longer_denied,
        ..
    } = *changes;
    writeln!(
        out,
        "<section id=changes><h2>Compared with {}</h2><p class=note>{} of {} requests fare alike ({}%); {} are \
         newly denied, {} no longer denied.</p>",
        Text(baseline),
        Count(same),
        Count(compared),
        percent(same, compared),
        Count(newly_denied),
        Count(no_longer_denied)
    )?;
    if !changes.examples.is_empty() {
        out.push_str(
            "<div class=wide><table><tr><th>time<th>client<th>request<th>was<th>is</tr>\n",
        );
        for (example, times) in alike(&changes.examples) {
            let (at, more) = (shown(example.at), times - 1);
            write!(
                out,
                "<tr><td class=time>{}<td>{}<td class=text>{}",
                Time(&at),
                example.client,
                Text(&example.request),
            )?;
            if more > 0 {
                write!(out, " <span class=note>and {more} like it</span>")?;
            }
            let (was, is) = (Text(&example.was), Text(&example.is));
            writeln!(out, "<td>{was}<td>{is}</tr>")?;
        }
        out.push_str("</table></div>\n");
    }
    out.write_str("</section>\n")
}

/// The first of those that differ in their time alone, and how many there are of it.
fn alike(examples: &[Example]) -> Vec<(&Example, usize)> {
    let mut groups: Vec<(&Example, usize)> = Vec::new();
    let what = |example: &Example| {
        let Example {
            client,
            request,
            was,
            is,
            ..
        } = example;
        (*client, request.clone(), was.clone(), is.clone())
    };
    for example in examples {
        match groups
            .iter_mut()
            .find(|(first, _)| what(first) == what(example))
        {
            Some((_, times)) => *times += 1,
            None => groups.push((example, 1)),
        }
    }
    groups
}

fn write_limits(out: &mut String, limits: &[LimitReport]) -> fmt::Result {
    out.push_str(
        "<section id=limits><h2>Limits</h2><div class=wide><table><tr><th>limit<th class=n>requests<th \
         class=n>denied<th class=n>would deny<th>share<th class=n>subjects<th class=n>of these \
         denied</tr>\n",
    );
    for limit in limits {
        writeln!(
            out,
            "<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=share>{}<td class=n>{}<td \
             class=n>{}</tr>",
            Text(&limit.name),
            Count(limit.requests),
            Count(limit.denied),
            Count(limit.would_deny),
            Bar(limit.denied_percent),
            Count(limit.subjects),
            Count(limit.denied_subjects)
        )?;
    }
    out.write_str("</table></div></section>\n")
}

fn write_limit(out: &mut String, index: usize, limit: &LimitReport) -> fmt::Result {
    writeln!(
        out,
        "<section id=limit-{index}><h2>{}</h2><p class=note>per {}; routes {}</p>",
        Text(&limit.name),
        Text(&limit.per.join(" and ")),
        Text(&limit.routes.join(", "))
    )?;
    if let Some(need) = &limit.need {
        write_need(out, need)?;
    }
    if !limit.top.is_empty() {
        out.push_str(
            "<h3>Who is denied</h3><div class=wide><table><tr><th>subject<th class=n>denied<th \
             class=n>of requests<th>share<th>first<th>last</tr>\n",
        );
        for subject in &limit.top {
            writeln!(
                out,
                "<tr><td class=text><code>{}</code><td class=n>{}<td class=n>{}<td class=share>{}<td \
                 class=time>{}<td class=time>{}</tr>",
                Text(&subject.subject),
                Count(subject.denied),
                Count(subject.requests),
                Bar(percent(subject.denied, subject.requests)),
                Time(&subject.first),
                Time(&subject.last)
            )?;
        }
        out.push_str("</table></div>\n");
    }
    out.write_str("</section>\n")
}

/// What subjects need, and the share of them that each value would deny as a curve.
fn write_need(out: &mut String, need: &NeedReport) -> fmt::Result {
    let of = need.of;
    write_left_out(out, need)?;
    if need.subjects == 0 {
        return Ok(());
    }
    out.push_str("<div class=cards>\n");
    let own = need.own.unwrap_or_default();
    for (value, who) in [
        (own, "now"),
        (need.p50, "is enough for half of the subjects"),
        (need.p99, "for 99% of them"),
        (need.max, "for all"),
    ] {
        card(out, "", Count(value), &format!("{of} {who}"))?;
    }
    out.push_str("</div>\n");
    let most = need.curve.last().map_or(1, |step| step.value).max(2);
    // Values are as far from each other as their logarithms.
    let x = |value: u64| 100.0 * number(value.clamp(1, most)).ln() / number(most).ln();
    let share = |denied: u64| percent(denied, need.subjects);
    let top = need
        .curve
        .first()
        .map_or(0.0, |step| share(step.denied_subjects));
    // Of a few subjects a curve is a staircase that says nothing.
    if top > 0.0 && need.subjects >= MIN_SUBJECTS {
        let point = |step: &crate::need::Step| {
            let y = 100.0 - 100.0 * share(step.denied_subjects) / top;
            format!("{:.2},{y:.2}", x(step.value))
        };
        let points: Vec<String> = need.curve.iter().map(point).collect();
        writeln!(
            out,
            "<h3>Share of subjects that a {of} denies, by its value on a logarithmic scale</h3><div class=plot><small>{top}%</small><svg \
             viewBox=\"0 0 100 100\" preserveAspectRatio=none role=img aria-label=\"Subjects denied by \
             {of}\"><polyline class=curve points=\"{}\"/></svg>",
            points.join(" ")
        )?;
        let smallest = need.smallest.value;
        for (class, value, what) in [("", own, "now"), ("new", smallest, "smallest")] {
            let x = x(value);
            let flip = if x > 60.0 { "flip" } else { "" };
            writeln!(
                out,
                "<div class=\"mark {class} {flip}\" style=\"left:{x:.2}%\"><small>{what}: \
                 {}</small></div>",
                Count(value)
            )?;
        }
        out.push_str("</div><div class=axis>");
        for value in [1, most.isqrt(), most] {
            write!(out, "<span>{}</span>", Count(value))?;
        }
        out.push_str("</div>\n");
    }
    let Some(suggested) = &need.suggested else {
        return writeln!(
            out,
            "<p class=note>No limit is suggested: {} subjects are too few to say what is normal \
             ({MIN_SUBJECTS} at least).</p>",
            Count(need.subjects)
        );
    };
    let promise = &suggested.promise;
    writeln!(
        out,
        "<h3>Suggested</h3><pre>{}</pre><p class=note>It would have denied {} of {} subjects, and at \
         most {} requests ({}%).</p>",
        Text(&suggested.yaml),
        Count(promise.denied_subjects),
        Count(need.subjects),
        Count(promise.denied_at_most),
        promise.denied_at_most_percent
    )
}

/// The subjects whose needs are no measure.
fn write_left_out(out: &mut String, need: &NeedReport) -> fmt::Result {
    if need.left_out.is_empty() {
        return Ok(());
    }
    write!(
        out,
        "<p class=note>{} subjects are no measure of what is normal, as most of their requests were \
         refused (401, 403, 429) or denied at the time:",
        Count(need.left_out_subjects)
    )?;
    for subject in &need.left_out {
        write!(
            out,
            " <code>{}</code> ({} of {})",
            Text(&subject.subject),
            Count(subject.refused.into()),
            Count(subject.requests)
        )?;
    }
    out.write_str("</p>\n")
}

/// The share of denials by the value of a parameter.
fn write_sweep(out: &mut String, sweep: &[SweepReport]) -> fmt::Result {
    let Some(first) = sweep.first() else {
        return Ok(());
    };
    writeln!(
        out,
        "<section id=sweep><h2>{} by {}</h2><div class=wide><table><tr><th class=n>{}<th>share<th \
         class=n>denied<th class=n>of requests<th class=n>subjects denied</tr>",
        Text(&first.limit.name),
        first.parameter,
        first.parameter
    )?;
    for variant in sweep {
        let limit = &variant.limit;
        writeln!(
            out,
            "<tr><td class=n>{}<td class=share>{}<td class=n>{}<td class=n>{}<td class=n>{}</tr>",
            Text(&variant.value),
            Bar(limit.denied_percent),
            Count(limit.denied + limit.would_deny),
            Count(limit.requests),
            Count(limit.denied_subjects)
        )?;
    }
    out.write_str("</table></div></section>\n")
}

fn write_rest(out: &mut String, report: &Report) -> fmt::Result {
    if !report.not_replayed.is_empty() {
        out.push_str("<section><h2>Not replayed</h2><ul>\n");
        for gap in &report.not_replayed {
            writeln!(out, "<li>{}: {}</li>", Text(&gap.what), Text(&gap.why))?;
        }
        out.push_str("</ul></section>\n");
    }
    out.push_str("<section id=caveats><h2>Keep in mind</h2><ul>\n");
    for caveat in &report.caveats {
        writeln!(out, "<li>{}</li>", Text(caveat))?;
    }
    out.push_str("</ul></section>\n");
    let counts = &report.log.counts;
    if counts.malformed > 0 {
        let malformed = Count(counts.malformed);
        writeln!(
            out,
            "<section><h2>{malformed} lines that cannot be read</h2><ul>"
        )?;
        for line in &counts.examples {
            let (file, number, why) = (Text(&line.file), line.line, line.why);
            writeln!(
                out,
                "<li>{file}:{number}: {why}: <code>{}</code></li>",
                Text(&line.text)
            )?;
        }
        out.push_str("</ul></section>\n");
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a drawing is not that exact")]
const fn number(count: u64) -> f64 {
    count as f64
}

/// A number with commas between its thousands.
struct Count(u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// A time in UTC, to the second.
struct Time<'t>(&'t str);

impl fmt::Display for Time<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.0.split('.').next().unwrap_or_default();
        Text(&time.replace('T', " ")).fmt(f)
    }
}

/// A share in percent, and a bar that shows it.
struct Bar(f64);

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0;
        write!(
            f,
            "{percent}%<span class=bar><i style=\"width:{percent}%\"></i></span>"
        )
    }
}

/// Text that stays text wherever it stands in a page, and turns nothing around.
struct Text<'t>(&'t str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in printable(self.0).chars() {
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
        assert_eq!(
            Text("/a\u{202e}nimda\u{1b}").to_string(),
            r"/a\u{202e}nimda\u{1b}"
        );
    }

    /// Ten rows said the same of one client.
    #[test]
    fn requests_that_differ_in_their_time_alone_are_one_row_with_their_number() {
        let example = |at: u64, request: &str| Example {
            at: weir_limit::time::Timestamp::from_nanos(at),
            client: [192, 0, 2, 1].into(),
            request: request.to_owned(),
            was: "passes".to_owned(),
            is: "denied by L".to_owned(),
        };
        let examples = [
            example(1, "GET /a"),
            example(2, "GET /b"),
            example(3, "GET /a"),
        ];
        let rows: Vec<_> = alike(&examples)
            .into_iter()
            .map(|(first, times)| (first.request.as_str(), times))
            .collect();
        assert_eq!(rows, [("GET /a", 2), ("GET /b", 1)]);
    }

    #[test]
    fn thousands_are_told_apart() {
        let shown = [0, 12, 999, 1000, 1_234_567].map(|count| Count(count).to_string());
        assert_eq!(shown, ["0", "12", "999", "1,000", "1,234,567"]);
    }
}
