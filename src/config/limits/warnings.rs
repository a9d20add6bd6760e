//! Limits that work, but hardly as they were meant.

use std::time::Duration;

use super::table::LimitTable;
use crate::config::lowering::Lowering;
use crate::config::values::{HumanDuration, Until};
use crate::config::yaml::Spanned;
use crate::limit::Algorithm;

/// With a longer period, a limit remembers for longer than anybody keeps a gateway's store.
const LONGEST_PERIOD: Duration = Duration::from_secs(366 * 24 * 3600);

/// A greater burst lets through more at once than a gateway forwards in minutes.
const GREATEST_BURST: u64 = 1_000_000;

/// Percent by which rounding may change a rate before it is worth a word.
const ROUNDING_PERCENT: u128 = 1;

/// Reports what is doubtful about limits and their overrides.
pub(crate) fn warn_of_limits(cx: &mut Lowering<'_>, table: &LimitTable) {
    for limit in &table.limits {
        if !limit.used && limit.written.is_some() {
            cx.warn(limit.name.span, "no route uses this limit")
                .help("list it under a route's `limits`, or under `defaults`");
        }
        if limit.used && limit.is_nowhere() {
            let message = format!(
                "nothing defines or overrides \"{}\", so it counts nothing",
                limit.name.value
            );
            let hint = format!("define it in {}, or leave it out", table.file);
            let nearest = cx.suggest(&limit.name, table.span());
            let help = match nearest.filter(|nearest| nearest.ends_with('?')) {
                Some(question) => format!("{question} {hint}"),
                None => hint,
            };
            cx.warn(limit.name.span, message).help(help);
        }
        let rounds = limit.algorithm == Ok(Algorithm::Gcra);
        if let Some(written) = &limit.written {
            parameters(cx, written.burst, written.count, written.period, rounds);
        }
        for overriding in &limit.overrides {
            let written = &overriding.written;
            parameters(cx, written.burst, written.count, written.period, rounds);
            ended(cx, written.until);
        }
    }
}

/// Parameters that limit nothing, or not what they say.
fn parameters(
    cx: &mut Lowering<'_>,
    burst: Option<Spanned<u64>>,
    count: Option<Spanned<u64>>,
    period: Option<Spanned<HumanDuration>>,
    rounds: bool,
) {
    if let Some(burst) = burst.filter(|burst| burst.value > GREATEST_BURST) {
        let message = format!("a burst of {} limits nothing", burst.value);
        cx.warn(burst.span, message).help(format!(
            "that much passes at once; choose at most {GREATEST_BURST}"
        ));
    }
    let Some(period) = period else { return };
    if period.value.0 > LONGEST_PERIOD {
        let message = format!("a period of {} outlasts every store", period.value);
        cx.warn(period.span, message)
            .help("when the store forgets, every client starts afresh; choose at most 366d");
    }
    if let Some(count) = count.filter(|_| rounds) {
        rounding(cx, count, period);
    }
}

/// Overrides that are there for nothing.
fn ended(cx: &mut Lowering<'_>, until: Option<Spanned<Until>>) {
    if let Some(until) = until.filter(|until| until.value.0 <= cx.now) {
        let message = format!("this override ended at {}", until.value);
        cx.warn(until.span, message)
            .help("it does not apply any more; remove it, or let it end later");
    }
}

/// The emission interval has whole nanoseconds; a very high rate is rounded up to fit.
fn rounding(cx: &mut Lowering<'_>, count: Spanned<u64>, period: Spanned<HumanDuration>) {
    let nanos = period.value.0.as_nanos();
    let Some(interval) = nanos
        .checked_div(u128::from(count.value))
        .filter(|interval| *interval > 0)
    else {
        return;
    };
    let lost = nanos - interval * u128::from(count.value);
    if lost * 100 > nanos * ROUNDING_PERCENT {
        let percent = lost * 100 / (nanos - lost);
        let message = format!("this rate is rounded up by {percent}%");
        cx.warn(count.span, message)
            .help("units come back at intervals of whole nanoseconds; lower the count");
    }
}
