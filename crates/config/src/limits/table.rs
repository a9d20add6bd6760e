//! The table of all limits, and what is doubtful about them.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use weir_limit::{Algorithm, Quota};
use weir_rules::{Enforcement, HashKey, KeySource, Limit, Missing, Nat64Prefixes};
use weir_yaml::{
    HumanDuration, Lowered, Lowering, Reported, Sources, Span, SpanOf, Spanned, WordOr,
};

use super::override_rules::OverrideRules;
use super::prefetch::PrefetchRule;
use super::quota::burst_span;
use super::schema::{DefaultLimit, LimitUse, OverrideEntry};
use crate::foreign::Word;
use crate::settings::Parameters;
use crate::until::{Until, now};

/// With a longer period, a limit remembers for longer than an operator keeps a store.
const LONGEST_PERIOD: Duration = Duration::from_secs(366 * 24 * 3600);

/// A greater burst lets through more at once than a gateway forwards in minutes.
const GREATEST_BURST: u64 = 1_000_000;

/// Percent by which rounding may change a rate before it is worth a word.
const ROUNDING_PERCENT: u128 = 1;

pub(crate) struct LimitTable {
    pub(crate) limits: Vec<LimitDef>,
    /// Where in `limits` the limit of a name is.
    pub(super) by_name: HashMap<String, usize>,
    /// The span of all definitions; none when there is no file of them.
    pub(super) span: Lowered<Option<Span>>,
    /// The span of all overrides; none when there is no file of them.
    pub(super) overrides: Lowered<Option<Span>>,
    pub(crate) file: String,
    pub(crate) key: HashKey,
    pub(crate) ipv6_prefix: u8,
    pub(crate) nat64: Nat64Prefixes,
}

pub(crate) struct LimitDef {
    pub(crate) name: Spanned<String>,
    /// None when it is only overridden: then subjects with an override alone are counted.
    pub(crate) definition: Option<Spanned<DefaultLimit>>,
    pub(crate) overrides: Vec<OverrideDef>,
    /// A route uses it.
    pub(crate) used: bool,
    /// What routes do with requests without a value.
    pub(super) missing_values: Vec<Missing>,
    /// How it counts, and its overrides too.
    pub(crate) algorithm: Lowered<Algorithm>,
    /// None when it is only overridden.
    pub(super) quota: Lowered<Option<Quota>>,
    /// How many units gateways may take ahead, of its overrides too.
    pub(super) prefetch: Lowered<Option<PrefetchRule>>,
    /// On which subjects its denials are acted upon, wherever it is used.
    pub(super) enforcement: Enforcement,
    /// As the file says it, or else as the first route that does.
    pub(super) per: Lowered<Option<Vec<KeySource>>>,
    /// What was built, by what a request without a value gets.
    pub(super) built: Vec<(Missing, Lowered<Arc<Limit>>)>,
}

/// Other parameters for some ids.
pub(crate) struct OverrideDef {
    pub(crate) entry: Spanned<OverrideEntry>,
    pub(super) quota: Lowered<Quota>,
}

impl LimitTable {
    pub(crate) fn find(&self, name: &str) -> Option<&LimitDef> {
        self.limits.get(*self.by_name.get(name)?)
    }

    /// The span of all definitions, if there is a usable file of them.
    pub(crate) fn span(&self) -> Option<Span> {
        self.span.ok().flatten()
    }

    /// What overrides by the admin API go by.
    pub(crate) fn override_rules(&self) -> HashMap<String, OverrideRules> {
        let limits = self
            .limits
            .iter()
            .filter_map(|limit| Some((limit.name.value.clone(), limit.override_rules().ok()?)));
        limits.collect()
    }

    /// All parameters as they are written.
    pub(crate) fn parameters(&self) -> Vec<Parameters> {
        self.limits.iter().flat_map(LimitDef::parameters).collect()
    }

    /// Reports a limit that is defined nowhere, unless what cannot be read may define it.
    pub(crate) fn unknown(&self, cx: &mut Lowering<'_>, name: &Spanned<String>) -> Reported {
        let hint = format!("limits are defined in {}", self.file);
        self.may_have(name, cx.sources)
            .unwrap_or_else(|| cx.unknown("limit", name, self.span(), &hint))
    }

    /// The proof that a limit is there, but in error.
    pub(super) fn definition_in_error(&self, name: &str, sources: &Sources) -> Option<Reported> {
        sources.key_in_error(self.span()?, &[name])
    }

    /// The proof that a limit may well be there, but for what is in error.
    fn may_have(&self, name: &str, sources: &Sources) -> Option<Reported> {
        let files = self.span.err().or(self.overrides.err());
        let in_overrides = || sources.key_of_item_in_error(self.overrides.ok()??, name);
        files
            .or_else(|| self.definition_in_error(name, sources))
            .or_else(in_overrides)
    }

    /// A limit that has overrides, and is perhaps defined nowhere.
    pub(super) fn find_or_add(&mut self, name: &Spanned<String>) -> &mut LimitDef {
        let next = self.limits.len();
        let at = *self.by_name.entry(name.value.clone()).or_insert(next);
        if at == next {
            self.limits.push(LimitDef::new(name.clone()));
        }
        #[expect(clippy::indexing_slicing, reason = "it was found there, or put there")]
        &mut self.limits[at]
    }

    /// Learns from a route that it uses a limit, and what that is counted per if the definition
    /// does not say; whether all routes agree is seen when they are lowered.
    ///
    /// If a route says what it is counted per, an undefined limit is a warning and not an error:
    /// its last override may have been deleted. A name similar to another limit's is reported too.
    pub(super) fn add_use(&mut self, usage: &WordOr<LimitUse>, sources: &Sources) {
        let (name, missing, per) = match usage {
            WordOr::Word(name) => (name.as_str(), None, None),
            WordOr::More(usage) => (usage.limit.as_str(), usage.missing, usage.per.as_ref()),
        };
        let prefix = self.ipv6_prefix;
        if let (WordOr::More(usage), Some(_)) = (usage, per)
            && !name.is_empty()
            && self.find(name).is_none()
            && self.may_have(name, sources).is_none()
        {
            self.find_or_add(&usage.limit);
        }
        let at = self.by_name.get(name);
        let Some(limit) = at.and_then(|at| self.limits.get_mut(*at)) else {
            return;
        };
        limit.used = true;
        let missing = limit.missing(missing);
        if !limit.missing_values.contains(&missing) {
            limit.missing_values.push(missing);
        }
        if let (Some(per), Ok(None)) = (per, &limit.per) {
            let sources = per.0.iter().map(|text| KeySource::parse(text, prefix));
            let sources: Result<Vec<KeySource>, _> = sources.collect();
            limit.per = Ok(sources.ok().filter(|sources| !sources.is_empty()));
        }
    }
}

impl LimitDef {
    pub(super) fn new(name: Spanned<String>) -> Self {
        Self {
            name,
            definition: None,
            overrides: Vec::new(),
            used: false,
            missing_values: Vec::new(),
            algorithm: Ok(Algorithm::Gcra),
            quota: Ok(None),
            prefetch: Ok(None),
            enforcement: Enforcement::FULL,
            per: Ok(None),
            built: Vec::new(),
        }
    }

    /// What overrides of it go by.
    pub(super) fn override_rules(&self) -> Lowered<OverrideRules> {
        Ok(OverrideRules {
            algorithm: self.algorithm?,
            is_undefined: self.is_undefined(),
            prefetch: self.prefetch.ok().flatten(),
        })
    }

    /// Whether it is neither defined nor overridden, so that nothing says how it counts.
    pub(crate) fn is_undefined(&self) -> bool {
        self.definition.is_none() && self.overrides.is_empty()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.algorithm == Ok(Algorithm::InFlight)
    }

    /// Whether it is switched off wherever it is used.
    pub(super) fn is_off(&self) -> bool {
        let enabled = self.definition.as_ref().and_then(|limit| limit.enabled);
        enabled == Some(false)
    }

    /// What a request without a value gets, where a route may say otherwise than the definition.
    pub(super) fn missing(&self, of_route: Option<Word<Missing>>) -> Missing {
        let defined = self.definition.as_ref().and_then(|limit| limit.missing);
        of_route
            .or(defined)
            .map(|missing| missing.0)
            .unwrap_or_default()
    }

    /// The limit as a route uses it; none when nothing says what it is counted per.
    pub(super) fn limit(&self, of_route: Option<Word<Missing>>) -> Option<Lowered<Arc<Limit>>> {
        let missing = self.missing(of_route);
        let mut built = self.built.iter();
        let (_, limit) = built.find(|(built_for, _)| *built_for == missing)?;
        Some(limit.clone())
    }

    /// What all bucket keys of the limit start with, and where that is written.
    pub(super) fn prefix(&self) -> (String, Span) {
        match self.definition.as_ref().and_then(|limit| limit.id) {
            Some(id) => (id.value.to_string(), id.span),
            None => (self.name.value.clone(), self.name.span),
        }
    }

    fn parameters(&self) -> impl Iterator<Item = Parameters> {
        let own = self.definition.as_ref();
        let own = own.map(|limit| (self.quota.ok().flatten(), limit.count, limit.period));
        let overrides = self.overrides.iter();
        let overrides =
            overrides.map(|other| (other.quota.ok(), other.entry.count, other.entry.period));
        overrides.chain(own).filter_map(|(quota, count, period)| {
            Some(Parameters {
                limit: self.name.value.as_str().into(),
                quota: quota?,
                count: count.map(|count| count.value),
                period: period.map(|period| period.value),
            })
        })
    }

    /// The smallest burst of the limit and its overrides, and where it is written.
    pub(super) fn smallest_burst(&self) -> Option<(NonZeroU64, Span)> {
        let own = self.definition.as_ref();
        let own = own.map(|limit| {
            let span = burst_span(limit.burst, limit.count, self.name.span);
            (self.quota.ok().flatten(), span)
        });
        let overrides = self.overrides.iter().map(|other| {
            let span = burst_span(other.entry.burst, other.entry.count, self.name.span);
            (other.quota.ok(), span)
        });
        overrides
            .chain(own)
            .filter_map(|(quota, span)| Some((quota?.burst(), span)))
            .min_by_key(|(burst, _)| *burst)
    }
}

/// Reports what is doubtful about limits and their overrides. `is_alone` says that no other gateway
/// shares their buckets.
pub(crate) fn warn_of_limits(cx: &mut Lowering<'_>, table: &LimitTable, is_alone: bool) {
    if is_alone {
        warn_of_prefetch(cx, table);
    }
    for limit in &table.limits {
        if !limit.used && limit.definition.is_some() {
            cx.warn(limit.name.span, "no route uses this limit")
                .help("list it under a route's `limits`, or under `defaults`");
        }
        if limit.used && limit.is_undefined() {
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
        if let Some(written) = &limit.definition {
            warn_of_parameters(cx, written.burst, written.count, written.period, rounds);
        }
        for overriding in &limit.overrides {
            let written = &overriding.entry;
            warn_of_parameters(cx, written.burst, written.count, written.period, rounds);
            warn_if_ended(cx, written.until);
        }
    }
}

/// Warns of limits that are prefetched though no other gateway shares their buckets.
fn warn_of_prefetch(cx: &mut Lowering<'_>, table: &LimitTable) {
    let written = table.limits.iter().filter_map(|limit| {
        let definition = limit.definition.as_ref()?;
        definition.prefetch.span()
    });
    for span in written {
        cx.warn(span, "`prefetch` has no effect with the memory store")
            .help("it saves calls to Redis, and there are none; decisions are exact without them");
    }
}

/// Parameters that limit nothing, or not what they say.
pub(super) fn warn_of_parameters(
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
        warn_of_rounding(cx, count, period);
    }
}

/// Overrides that are there for nothing.
fn warn_if_ended(cx: &mut Lowering<'_>, until: Option<Spanned<Until>>) {
    if let Some(until) = until.filter(|until| until.value.0 <= now(cx)) {
        let message = format!("this override ended at {}", until.value);
        cx.warn(until.span, message)
            .help("it does not apply any more; remove it, or let it end later");
    }
}

/// The emission interval has whole nanoseconds; a very high rate is rounded up to fit.
fn warn_of_rounding(cx: &mut Lowering<'_>, count: Spanned<u64>, period: Spanned<HumanDuration>) {
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
