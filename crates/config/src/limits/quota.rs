//! How much a limit allows, and how it counts.

use weir_limit::{Algorithm, Alignment, Calendar, Quota, QuotaError};
use weir_rules::Enforcement;
use weir_yaml::{HumanDuration, Lowered, Lowering, Reported, Span, SpanOf, Spanned};

use super::schema::DefaultLimit;

/// The parameters of a limit or of an override, as they are written.
pub(super) struct QuotaParameters {
    /// The name of the limit that they are written under.
    pub(super) name: Span,
    pub(super) span: Span,
    pub(super) burst: Option<Spanned<u64>>,
    pub(super) count: Option<Spanned<u64>>,
    pub(super) period: Option<Spanned<HumanDuration>>,
    pub(super) in_flight: Option<Spanned<u64>>,
}

/// Where a burst is written; what has none has its count for one.
pub(super) fn burst_span(
    burst: Option<Spanned<u64>>,
    count: Option<Spanned<u64>>,
    otherwise: Span,
) -> Span {
    burst.or(count).map_or(otherwise, |written| written.span)
}

/// How a limit counts. Keys that another algorithm has are in error.
pub(super) fn algorithm(
    cx: &mut Lowering<'_>,
    limit: &Spanned<DefaultLimit>,
) -> Lowered<Algorithm> {
    let keys = ["algorithm", "calendar", "in_flight"];
    if let Some(reported) = cx.sources.key_in_error(limit.span, &keys) {
        return Err(reported);
    }
    if limit.in_flight.is_some() {
        in_flight_alone(cx, limit);
        return Ok(Algorithm::InFlight);
    }
    let named = limit.algorithm.map_or(Algorithm::Gcra, |name| name.value.0);
    let count_denied = limit.count_denied.is_some_and(|counts| counts.value);
    let algorithm = match named {
        Algorithm::FixedWindow(_) => Algorithm::FixedWindow(alignment(cx, limit)?),
        Algorithm::SlidingWindow { .. } => Algorithm::SlidingWindow { count_denied },
        Algorithm::SlidingLog { .. } => Algorithm::SlidingLog { count_denied },
        Algorithm::Gcra | Algorithm::InFlight => named,
    };
    let denied = limit.count_denied.span();
    let slides = matches!(
        algorithm,
        Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. }
    );
    let is_fixed = matches!(algorithm, Algorithm::FixedWindow(_));
    let sliding = "`algorithm: sliding_window` or `sliding_log`";
    let fixed = "`algorithm: fixed_window`";
    let keys = [
        ("count_denied", denied, slides, sliding),
        ("align", limit.align.span(), is_fixed, fixed),
        ("calendar", limit.calendar.span(), is_fixed, fixed),
        ("time_zone", limit.time_zone.span(), is_fixed, fixed),
    ];
    for (key, span, _, of) in keys.into_iter().filter(|(_, _, fits, _)| !fits) {
        if let Some(span) = span {
            let message = format!("`{key}` does not apply to {}", algorithm.name());
            cx.error(span, message)
                .help(format!("leave it out, or say {of}"));
        }
    }
    Ok(algorithm)
}

/// Where fixed windows begin.
fn alignment(cx: &mut Lowering<'_>, limit: &DefaultLimit) -> Lowered<Alignment> {
    let Some(calendar) = limit.calendar else {
        if let Some(zone) = &limit.time_zone {
            cx.error(zone.span, "only a calendar window has a time zone")
                .help("say `calendar: day`, `week` or `month`, or leave it out");
        }
        let align = limit.align.map(|align| align.value.0);
        return Ok(align.unwrap_or(Alignment::Period));
    };
    if let Some(align) = limit.align {
        cx.error(align.span, "a calendar window begins with its calendar")
            .help("leave `align` out, or `calendar`");
    }
    let zone = limit.time_zone.as_ref();
    let span = zone.map_or(calendar.span, |zone| zone.span);
    let zone = zone.map_or("UTC", |zone| zone.value.as_str());
    let calendar = cx.ok(span, Calendar::new(calendar.value.0, zone))?;
    Ok(Alignment::Calendar(calendar))
}

pub(super) fn quota(
    cx: &mut Lowering<'_>,
    algorithm: Algorithm,
    written: &QuotaParameters,
) -> Lowered<Quota> {
    if algorithm == Algorithm::InFlight {
        return in_flight_quota(cx, written);
    }
    refuse_in_flight(cx, written.in_flight);
    let count = required(cx, "count", written.count, written);
    let above_zero = refuse_zeros(cx, algorithm, written);
    let (count, quota) = match algorithm {
        Algorithm::Gcra => {
            let (burst, period) = (
                required(cx, "burst", written.burst, written),
                required(cx, "period", written.period, written),
            );
            let (burst, count, period) = (burst?, count?, period?);
            above_zero?;
            (count, Quota::new(burst.value, count.value, period.value.0))
        }
        _ => {
            let period = period(cx, algorithm, written);
            let count = count?;
            burst_is_count(cx, algorithm, written.burst, count)?;
            above_zero?;
            (count, Quota::windowed(algorithm, count.value, period?.0))
        }
    };
    quota.map_err(|error| refuse_quota(cx, error, count, written))
}

/// Refuses every parameter that is zero, of those that the algorithm has.
fn refuse_zeros(
    cx: &mut Lowering<'_>,
    algorithm: Algorithm,
    written: &QuotaParameters,
) -> Lowered<()> {
    let has_burst = !algorithm.is_windowed();
    let has_period = !matches!(algorithm, Algorithm::FixedWindow(Alignment::Calendar(_)));
    let is_zero = |number: &Spanned<u64>| number.value == 0;
    let burst = written.burst.filter(|burst| has_burst && is_zero(burst));
    let count = written.count.filter(is_zero);
    let period = written
        .period
        .filter(|period| has_period && period.value.0.is_zero());
    let zeros = [
        burst.map(|burst| (burst.span, QuotaError::ZeroBurst)),
        count.map(|count| (count.span, QuotaError::ZeroCount)),
        period.map(|period| (period.span, QuotaError::ZeroPeriod)),
    ];
    let mut none = Ok(());
    for (span, zero) in zeros.into_iter().flatten() {
        let help = remedy(zero).map(str::to_owned);
        none = Err(cx.error(span, zero.to_string()).maybe_help(help));
    }
    none
}

/// What to write instead of what makes no quota, where the error does not say it.
pub(crate) fn remedy(error: QuotaError) -> Option<&'static str> {
    match error {
        QuotaError::ZeroPeriod => Some("write a time such as `1m`"),
        QuotaError::LogTooLong => Some("choose sliding_window, which remembers some sixty numbers"),
        _ => None,
    }
}

/// A key that is there. One that is there in error was told of already.
fn required<T>(
    cx: &mut Lowering<'_>,
    key: &str,
    value: Option<Spanned<T>>,
    written: &QuotaParameters,
) -> Lowered<Spanned<T>> {
    value.ok_or_else(|| {
        let in_error = cx.sources.key_in_error(written.span, &[key]);
        in_error.unwrap_or_else(|| {
            let message = format!("the key \"{key}\" is missing");
            let help = what_to_write(key, written);
            cx.error(written.name, message).help(help)
        })
    })
}

/// What is to be written under a key, beside what is there already.
fn what_to_write(key: &str, written: &QuotaParameters) -> String {
    let count = written.count.map(|count| count.value);
    let count = count.filter(|count| *count > 0).unwrap_or(100);
    match key {
        "burst" => format!(
            "write how many pass at once: `burst: {count}` for as many as the count, or fewer"
        ),
        "count" => "write how many come back in a `period`, such as `count: 100`".to_owned(),
        "period" => "write in which time `count` come back, such as `period: 1m`".to_owned(),
        _ => "write how many may be in flight, such as `in_flight: 10`".to_owned(),
    }
}

fn period(
    cx: &mut Lowering<'_>,
    algorithm: Algorithm,
    written: &QuotaParameters,
) -> Lowered<HumanDuration> {
    let Algorithm::FixedWindow(Alignment::Calendar(calendar)) = algorithm else {
        return Ok(required(cx, "period", written.period, written)?.value);
    };
    if let Some(period) = written.period {
        let unit = calendar.unit().name();
        let message = format!("a window of this limit is as long as its {unit}");
        let error = cx.error(period.span, message);
        return Err(error.help("leave `period` out, or `calendar`"));
    }
    Ok(HumanDuration(calendar.unit().longest().into()))
}

fn burst_is_count(
    cx: &mut Lowering<'_>,
    algorithm: Algorithm,
    burst: Option<Spanned<u64>>,
    count: Spanned<u64>,
) -> Lowered<()> {
    let count = count.value;
    let Some(burst) = burst.filter(|burst| burst.value != count) else {
        return Ok(());
    };
    let name = algorithm.name();
    let error = cx.error(burst.span, format!("the burst of a {name} is its count"));
    Err(error.help(format!("leave `burst` out, or say {count}")))
}

fn refuse_quota(
    cx: &mut Lowering<'_>,
    error: QuotaError,
    count: Spanned<u64>,
    written: &QuotaParameters,
) -> Reported {
    let burst = written.burst.unwrap_or(count);
    let period = written.period.span().unwrap_or(count.span);
    let span = match error {
        QuotaError::PeriodTooLong | QuotaError::WindowTooShort => period,
        QuotaError::ToleranceTooLong if burst.value > count.value => burst.span,
        _ => count.span,
    };
    let help = remedy(error).map(str::to_owned);
    cx.error(span, error.to_string()).maybe_help(help)
}

/// Refuses what says how a limit on requests in flight counts: it counts in its own way.
fn in_flight_alone(cx: &mut Lowering<'_>, limit: &DefaultLimit) {
    refuse_beside_in_flight(
        cx,
        [
            ("algorithm", limit.algorithm.span()),
            ("align", limit.align.span()),
            ("calendar", limit.calendar.span()),
            ("time_zone", limit.time_zone.span()),
            ("count_denied", limit.count_denied.span()),
        ],
    );
}

/// The quota of a limit on requests in flight, or of an override of one.
fn in_flight_quota(cx: &mut Lowering<'_>, written: &QuotaParameters) -> Lowered<Quota> {
    refuse_beside_in_flight(
        cx,
        [
            ("burst", written.burst.span()),
            ("count", written.count.span()),
            ("period", written.period.span()),
        ],
    );
    let most = required(cx, "in_flight", written.in_flight, written)?;
    cx.ok(most.span, Quota::in_flight(most.value))
}

/// Refuses the number of requests in flight in the override of a limit of another kind.
fn refuse_in_flight(cx: &mut Lowering<'_>, most: Option<Spanned<u64>>) {
    if let Some(most) = most {
        cx.error(
            most.span,
            "this limit has a rate, and is not one on requests in flight",
        )
        .help("leave `in_flight` out, or define another limit with it");
    }
}

pub(super) fn refuse_beside_in_flight(
    cx: &mut Lowering<'_>,
    keys: impl IntoIterator<Item = (&'static str, Option<Span>)>,
) {
    for (key, span) in keys {
        if let Some(span) = span {
            cx.error(span, format!("`{key}` does not apply beside `in_flight`"))
                .help("leave it out, or use a limit of its own for the rate");
        }
    }
}

/// Whether decisions are acted upon; they are unless it is said.
pub(crate) fn enforcement(written: Option<&Spanned<Enforcement>>) -> Enforcement {
    written.map(|written| written.value).unwrap_or_default()
}
