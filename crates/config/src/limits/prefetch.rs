//! How many units gateways may take ahead of their requests, as limits say it.

use std::time::Duration;

use weir_limit::{Algorithm, Prefetch, Quota};
use weir_rules::hundredths;
use weir_yaml::{HumanDuration, Lowered, Lowering, Span, SpanOf, Spanned, WordOr, whole_number};

use super::quota::refuse_beside_in_flight;
use super::schema::DefaultLimit;

/// The hundredths of a percent in one.
const ONE: u64 = 10_000;

/// How long units may be held. A shorter time saves nothing, and a longer one would hide for too
/// long what other gateways take.
const MAX_AGES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(10)];

/// What is said of units that are taken ahead, from which each quota of a limit gets its own
/// number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefetchRule {
    units: PrefetchUnits,
    max_age: Duration,
}

/// How many units a gateway may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PrefetchUnits {
    /// Hundredths of a percent of the burst.
    Share(u64),
    Number(u64),
}

impl PrefetchRule {
    /// The quota with its units. An override of so small a burst that they are too few is counted
    /// without.
    pub(super) fn apply(self, quota: Quota) -> Quota {
        let burst = quota.burst().get();
        let units = self.units.of(burst);
        let units = units.min(PrefetchUnits::GREATEST.of(burst));
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        quota.with_prefetch(Prefetch::new(units, self.max_age))
    }
}

impl PrefetchUnits {
    /// The share of the burst that a gateway may hold at most.
    pub(super) const GREATEST: Self = Self::Share(ONE / 2);

    pub(super) fn of(self, burst: u64) -> u64 {
        match self {
            Self::Number(units) => units,
            Self::Share(share) => {
                let units = u128::from(burst) * u128::from(share) / u128::from(ONE);
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        }
    }
}

/// What a limit says of units that are taken ahead.
pub(super) fn prefetch(
    cx: &mut Lowering<'_>,
    limit: &Spanned<DefaultLimit>,
    algorithm: Algorithm,
) -> Lowered<Option<PrefetchRule>> {
    let Some(written) = &limit.prefetch else {
        let in_error = cx.sources.key_in_error(limit.span, &["prefetch"]);
        return in_error.map_or(Ok(None), Err);
    };
    if algorithm == Algorithm::InFlight {
        refuse_beside_in_flight(cx, [("prefetch", Some(written.span))]);
        return Ok(None);
    }
    if algorithm != Algorithm::Gcra {
        let message = format!("`prefetch` does not apply to {}", algorithm.name());
        let error = cx.error(written.span, message);
        return Err(error.help("leave it out, or say `algorithm: gcra`"));
    }
    let (span, text, max_age) = match &written.value {
        WordOr::Word(text) => (written.span, text, None),
        WordOr::More(more) => (more.units.span, &more.units.value, more.max_age),
    };
    let units = units(cx, span, text);
    let max_age = max_age.map_or(Ok(Prefetch::DEFAULT_MAX_AGE), |age| max_age_of(cx, age));
    Ok(Some(PrefetchRule {
        units: units?,
        max_age: max_age?,
    }))
}

fn parse_units(text: &str) -> Option<PrefetchUnits> {
    match text.strip_suffix('%') {
        Some(share) => hundredths(share).map(PrefetchUnits::Share),
        None => whole_number(text).map(PrefetchUnits::Number),
    }
}

fn units(cx: &mut Lowering<'_>, span: Span, text: &str) -> Lowered<PrefetchUnits> {
    parse_units(text).ok_or_else(|| {
        let error = cx.error(span, format!("`{text}` is not a number of units"));
        error.help("write a share of the burst such as 1%, or a number such as 200")
    })
}

fn max_age_of(cx: &mut Lowering<'_>, written: Spanned<HumanDuration>) -> Lowered<Duration> {
    let [shortest, longest] = MAX_AGES.map(HumanDuration);
    let age = written.value;
    if age < shortest || age > longest {
        let message = format!("units cannot be held for {age}");
        let error = cx.error(written.span, message);
        return Err(error.help(format!("choose a duration from {shortest} to {longest}")));
    }
    Ok(age.0)
}

/// The quota of a limit with its units, which must be neither too few nor too many.
pub(super) fn prefetched(
    cx: &mut Lowering<'_>,
    limit: &DefaultLimit,
    quota: Quota,
    prefetch: Option<PrefetchRule>,
) -> Lowered<Quota> {
    let (Some(prefetch), Some(span)) = (prefetch, limit.prefetch.span()) else {
        return Ok(quota);
    };
    let burst = quota.burst().get();
    let (units, most) = (prefetch.units.of(burst), PrefetchUnits::GREATEST.of(burst));
    let fewest = u64::from(Prefetch::MIN_UNITS);
    if most < fewest {
        let message = format!("a burst of {burst} is too small to prefetch from");
        return Err(cx.error(span, message).help("leave `prefetch` out"));
    }
    if units < fewest {
        let message = format!("{units} units of a burst of {burst} save nothing");
        let help = format!("say {fewest} at least, or leave `prefetch` out");
        return Err(cx.error(span, message).help(help));
    }
    if units > most {
        let message = format!("a gateway would hold {units} units of a burst of {burst}");
        let help = format!("say 50% or {most} at most");
        return Err(cx.error(span, message).help(help));
    }
    Ok(prefetch.apply(quota))
}
