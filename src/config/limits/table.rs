//! The limits, with their overrides: complete before the first route uses one.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use super::quota::{WrittenQuota, algorithm, enforcement, quota};
use super::schema::{DefaultLimit, Defaults, LimitUse, MissingValue, OverrideEntry, Overrides};
use crate::config::diagnostics::{Lowered, Reported};
use crate::config::lowering::Lowering;
use crate::config::nearest::suggest;
use crate::config::settings::Parameters;
use crate::config::yaml::{OneOrMany, Sources, Span, Spanned, WordOr};
use crate::limit::{Algorithm, Quota};
use crate::rules::{
    Enforcement, HashKey, IdError, KeySource, Limit, Missing, Override, SourceError,
};

/// Overrides are found by a recursion as deep as this.
const MAX_SOURCES: usize = 16;

/// All limits.
pub(crate) struct LimitTable {
    pub(crate) limits: Vec<LimitDef>,
    /// Where in `limits` the limit of a name is.
    by_name: HashMap<String, usize>,
    /// The span of all definitions; none when there is no file of them.
    span: Lowered<Option<Span>>,
    /// The span of all overrides; none when there is no file of them.
    overrides: Lowered<Option<Span>>,
    pub(crate) file: String,
    pub(crate) key: HashKey,
    pub(crate) ipv6_prefix: u8,
}

/// One limit.
pub(crate) struct LimitDef {
    pub(crate) name: Spanned<String>,
    /// None when it is only overridden: then subjects with an override alone are counted.
    pub(crate) written: Option<Spanned<DefaultLimit>>,
    pub(crate) overrides: Vec<Overriding>,
    /// A route uses it.
    pub(crate) used: bool,
    /// What routes do with requests without a value.
    missing_values: Vec<Missing>,
    /// How it counts, and its overrides too.
    pub(crate) algorithm: Lowered<Algorithm>,
    /// None when it is only overridden.
    quota: Lowered<Option<Quota>>,
    /// On which subjects its denials are acted upon, wherever it is used.
    pub(super) enforcement: Lowered<Enforcement>,
    /// As the file says it, or else as the first route that does.
    pub(super) per: Lowered<Option<Vec<KeySource>>>,
    /// What was built, by what a request without a value gets.
    built: Vec<(Missing, Lowered<Arc<Limit>>)>,
}

/// Other parameters for some ids.
pub(crate) struct Overriding {
    pub(crate) written: Spanned<OverrideEntry>,
    quota: Lowered<Quota>,
}

/// The two files of limits, as they were read.
pub(crate) struct LimitFiles<'w> {
    pub(crate) defaults: Lowered<Option<&'w Defaults>>,
    pub(crate) overrides: Lowered<Option<&'w Overrides>>,
    /// Where limits are defined, for errors.
    pub(crate) name: String,
}

/// All limits that are defined, overridden, or used by a route that says what they count.
pub(crate) fn limits(
    cx: &mut Lowering<'_>,
    files: LimitFiles<'_>,
    uses: &[&WordOr<LimitUse>],
    key: HashKey,
    ipv6_prefix: u8,
) -> LimitTable {
    let mut table = LimitTable {
        limits: Vec::new(),
        by_name: HashMap::new(),
        span: files.defaults.map(|file| file.map(|file| file.span)),
        overrides: files.overrides.map(|file| file.map(|file| file.span)),
        file: files.name,
        key,
        ipv6_prefix,
    };
    let defined = files.defaults.into_iter().flatten();
    for (name, limit) in defined.flat_map(|file| &file.value.0) {
        *table.find_or_add(name) = definition(cx, name, limit, ipv6_prefix);
    }
    overrides(cx, &mut table, files.overrides, uses);
    for usage in uses {
        table.learn(usage, cx.sources);
    }
    refuse_same_prefixes(cx, &table);
    refuse_overrides_of_nothing(cx, &table);
    for limit in &mut table.limits {
        build(cx, limit, &table.key);
    }
    table
}

impl LimitTable {
    pub(crate) fn find(&self, name: &str) -> Option<&LimitDef> {
        self.limits.get(*self.by_name.get(name)?)
    }

    /// The span of all definitions, if there is a usable file of them.
    pub(crate) fn span(&self) -> Option<Span> {
        self.span.ok().flatten()
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
    fn definition_in_error(&self, name: &str, sources: &Sources) -> Option<Reported> {
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
    fn find_or_add(&mut self, name: &Spanned<String>) -> &mut LimitDef {
        let next = self.limits.len();
        let at = *self.by_name.entry(name.value.clone()).or_insert(next);
        if at == next {
            self.limits.push(LimitDef::undefined(name.clone()));
        }
        #[expect(clippy::indexing_slicing, reason = "it was found there, or put there")]
        &mut self.limits[at]
    }

    /// Learns from a route that it uses a limit, and what that is counted per if the definition
    /// does not say; whether all routes agree is seen when they are lowered.
    ///
    /// Where a route says what it would be counted per, there is room for a limit that no file
    /// names: its last override may have been deleted, which does not refuse all the rest, however
    /// much it is called like another limit. A slip is warned of as well.
    fn learn(&mut self, usage: &WordOr<LimitUse>, sources: &Sources) {
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
    fn undefined(name: Spanned<String>) -> Self {
        Self {
            name,
            written: None,
            overrides: Vec::new(),
            used: false,
            missing_values: Vec::new(),
            algorithm: Ok(Algorithm::Gcra),
            quota: Ok(None),
            enforcement: Ok(Enforcement::FULL),
            per: Ok(None),
            built: Vec::new(),
        }
    }

    /// Whether it is neither defined nor overridden, so that nothing says how it counts.
    pub(crate) fn is_nowhere(&self) -> bool {
        self.written.is_none() && self.overrides.is_empty()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.algorithm == Ok(Algorithm::InFlight)
    }

    /// Whether it is switched off wherever it is used.
    pub(super) fn is_off(&self) -> bool {
        let enabled = self.written.as_ref().and_then(|limit| limit.enabled);
        enabled == Some(false)
    }

    /// What a request without a value gets, where a route may say otherwise than the definition.
    fn missing(&self, of_route: Option<MissingValue>) -> Missing {
        let defined = self.written.as_ref().and_then(|limit| limit.missing);
        match of_route.or(defined) {
            Some(MissingValue::Deny) => Missing::Deny,
            Some(MissingValue::Skip) | None => Missing::Skip,
        }
    }

    /// The limit as a route uses it; none when nothing says what it is counted per.
    pub(super) fn limit(&self, of_route: Option<MissingValue>) -> Option<Lowered<Arc<Limit>>> {
        let missing = self.missing(of_route);
        let mut built = self.built.iter();
        let (_, limit) = built.find(|(built_for, _)| *built_for == missing)?;
        Some(limit.clone())
    }

    /// What all bucket keys of the limit start with, and where that is written.
    fn prefix(&self) -> (String, Span) {
        match self.written.as_ref().and_then(|limit| limit.id) {
            Some(id) => (id.value.to_string(), id.span),
            None => (self.name.value.clone(), self.name.span),
        }
    }

    fn parameters(&self) -> impl Iterator<Item = Parameters> {
        let own = self.written.as_ref();
        let own = own.map(|limit| (self.quota.ok().flatten(), limit.count, limit.period));
        let overrides = self.overrides.iter();
        let overrides =
            overrides.map(|other| (other.quota.ok(), other.written.count, other.written.period));
        overrides.chain(own).filter_map(|(quota, count, period)| {
            Some(Parameters {
                limit: self.name.value.clone(),
                quota: quota?,
                count: count.map(|count| count.value),
                period: period.map(|period| period.value),
            })
        })
    }

    /// The smallest burst of the limit and its overrides, and where it is written.
    pub(super) fn smallest_burst(&self) -> Option<(NonZeroU64, Span)> {
        let own = self.written.as_ref();
        let own = own.map(|limit| {
            let span = burst_span(limit.burst, limit.count, self.name.span);
            (self.quota.ok().flatten(), span)
        });
        let overrides = self.overrides.iter().map(|other| {
            let span = burst_span(other.written.burst, other.written.count, self.name.span);
            (other.quota.ok(), span)
        });
        overrides
            .chain(own)
            .filter_map(|(quota, span)| Some((quota?.burst(), span)))
            .min_by_key(|(burst, _)| *burst)
    }
}

/// Where a burst is written; what has none has its count for one.
fn burst_span(burst: Option<Spanned<u64>>, count: Option<Spanned<u64>>, otherwise: Span) -> Span {
    burst.or(count).map_or(otherwise, |written| written.span)
}

fn definition(
    cx: &mut Lowering<'_>,
    name: &Spanned<String>,
    limit: &Spanned<DefaultLimit>,
    ipv6_prefix: u8,
) -> LimitDef {
    let algorithm = algorithm(cx, limit);
    let written = WrittenQuota {
        name: name.span,
        span: limit.span,
        burst: limit.burst,
        count: limit.count,
        period: limit.period,
        in_flight: limit.in_flight,
    };
    let per = match &limit.per {
        Some(per) => key_sources(cx, per, name.span, ipv6_prefix).map(Some),
        None => {
            let in_error = cx.sources.key_in_error(limit.span, &["per"]);
            in_error.map_or(Ok(None), Err)
        }
    };
    LimitDef {
        written: Some(limit.clone()),
        algorithm,
        quota: algorithm.and_then(|algorithm| quota(cx, algorithm, &written).map(Some)),
        enforcement: enforcement(cx, limit.enforce.as_ref()),
        per,
        ..LimitDef::undefined(name.clone())
    }
}

/// Adds the overrides to their limits. Those that are kept although their file says nothing any
/// more must not refuse what is right as it is written, so one whose limit was removed is left out.
fn overrides(
    cx: &mut Lowering<'_>,
    table: &mut LimitTable,
    file: Lowered<Option<&Overrides>>,
    uses: &[&WordOr<LimitUse>],
) {
    let used = cx.kept.map(|_| greatest_costs(uses));
    let mut unknown: HashSet<&str> = HashSet::new();
    let items = file.into_iter().flatten().flat_map(|file| &file.value);
    for (name, written) in items.flat_map(|item| &item.value.0) {
        let cost = used.as_ref().and_then(|costs| costs.get(name.as_str()));
        let is_known = table.find(name).is_some();
        if table.definition_in_error(name, cx.sources).is_some() && !is_known {
            require_ids(cx, written);
        } else if used.is_some() && cost.is_none() && !is_known {
            if unknown.insert(name) {
                let message = format!("this overrides the unknown limit \"{}\"", name.value);
                cx.error(name.span, message)
                    .help(format!("limits are defined in {}", table.file));
            }
        } else {
            overriding(
                cx,
                table.find_or_add(name),
                name.span,
                written,
                cost.copied(),
            );
        }
    }
}

fn require_ids(cx: &mut Lowering<'_>, written: &OverrideEntry) {
    let _ = cx.filled(
        &written.ids,
        "an override needs ids",
        "say whom it is for, such as `ids: [203.0.113.9]`",
    );
}

fn overriding(
    cx: &mut Lowering<'_>,
    limit: &mut LimitDef,
    name: Span,
    written: &Spanned<OverrideEntry>,
    cost: Option<u64>,
) {
    require_ids(cx, written);
    let parameters = WrittenQuota {
        name,
        span: written.span,
        burst: written.burst,
        count: written.count,
        period: written.period,
        in_flight: written.in_flight,
    };
    if limit.is_nowhere() && written.in_flight.is_some() {
        limit.algorithm = Ok(Algorithm::InFlight);
    }
    let quota = limit
        .algorithm
        .and_then(|algorithm| quota(cx, algorithm, &parameters));
    limit.overrides.push(Overriding {
        written: written.clone(),
        quota: quota.and_then(|quota| passable(cx, quota, cost, written)),
    });
}

/// Leaves out a kept override that could never let a request of this cost pass. Where overrides
/// are written, it is the cost that is in error.
fn passable(
    cx: &mut Lowering<'_>,
    quota: Quota,
    cost: Option<u64>,
    written: &Spanned<OverrideEntry>,
) -> Lowered<Quota> {
    let burst = quota.burst().get();
    let Some(cost) = cost.filter(|cost| burst < *cost) else {
        return Ok(quota);
    };
    let span = burst_span(written.burst, written.count, written.span);
    let message = format!("a cost of {cost} never passes a burst of {burst}");
    Err(cx.error(span, message).into())
}

/// The most that a request costs for each limit that a route uses, as far as that is written.
fn greatest_costs<'w>(uses: &[&'w WordOr<LimitUse>]) -> HashMap<&'w str, u64> {
    let mut costs = HashMap::new();
    for usage in uses {
        let (name, cost) = match usage {
            WordOr::Word(name) => (name.as_str(), None),
            WordOr::More(usage) => {
                let cost = usage.cost.as_ref().and_then(|cost| match &cost.value {
                    WordOr::Word(number) => number.parse().ok(),
                    WordOr::More(measured) => measured.default.map(|cost| cost.value),
                });
                (usage.limit.as_str(), cost)
            }
        };
        let greatest: &mut u64 = costs.entry(name).or_default();
        *greatest = cost.unwrap_or_default().max(*greatest);
    }
    costs
}

/// Overrides of limits that are neither defined nor used.
fn refuse_overrides_of_nothing(cx: &mut Lowering<'_>, table: &LimitTable) {
    let nowhere = |limit: &&LimitDef| limit.written.is_none() && !limit.used;
    for LimitDef { name, .. } in table.limits.iter().filter(nowhere) {
        let message = format!("this overrides the unknown limit \"{}\"", name.value);
        let hint = format!("limits are defined in {}", table.file);
        let help = match cx.suggest(name, table.span()) {
            Some(question) if question.ends_with('?') => format!("{question} {hint}"),
            _ => hint,
        };
        cx.error(name.span, message).help(help);
    }
}

/// Two limits whose buckets would be the same.
fn refuse_same_prefixes(cx: &mut Lowering<'_>, table: &LimitTable) {
    let mut first: HashMap<String, &LimitDef> = HashMap::new();
    for limit in &table.limits {
        let (prefix, span) = limit.prefix();
        let Some(other) = first.get(&prefix) else {
            first.insert(prefix, limit);
            continue;
        };
        let at = cx.sources.location(other.prefix().1);
        let (first, second) = (&other.name.value, &limit.name.value);
        let message = format!("the buckets of \"{first}\" begin with \"{prefix}:\" already");
        cx.error(span, message).help(format!(
            "give \"{second}\" another `id`; the other is at {at} {}",
            at.path
        ));
    }
}

/// Builds a limit for each thing that routes do with requests without a value; one that no route
/// uses as well, so that its ids are checked.
fn build(cx: &mut Lowering<'_>, limit: &mut LimitDef, key: &HashKey) {
    if limit.per == Ok(None) {
        if limit.written.is_some() {
            check_formless(cx, limit, key);
        }
        return;
    }
    if limit.missing_values.is_empty() {
        limit.missing_values.push(limit.missing(None));
    }
    for missing in limit.missing_values.clone() {
        let built = new_limit(cx, limit, missing, key).map(Arc::new);
        limit.built.push((missing, built));
    }
}

fn new_limit(
    cx: &mut Lowering<'_>,
    def: &LimitDef,
    missing: Missing,
    key: &HashKey,
) -> Lowered<Limit> {
    // The first time tells of all that is wrong.
    let first = def.built.first();
    if let Some(reported) = first.and_then(|(_, limit)| limit.as_ref().err()) {
        return Err(*reported);
    }
    let per = def.per.clone()?.unwrap_or_default();
    let limit = Limit::new(&def.name, per, def.quota?, missing, key.clone());
    let mut limit = cx.ok(def.name.span, limit)?;
    if let Some(id) = def.written.as_ref().and_then(|written| written.id) {
        limit = limit.with_id(id.value);
    }
    add_overrides(cx, &mut limit, def, first.is_none());
    Ok(limit)
}

/// Where nothing says the sources of a limit, the ids may look like anything; but the limit needs a
/// usable name all the same, and ids must not be empty.
fn check_formless(cx: &mut Lowering<'_>, def: &LimitDef, key: &HashKey) {
    let nameable = Limit::new(&def.name, Vec::new(), None, Missing::Skip, key.clone());
    let _ = cx.ok(def.name.span, nameable);
    let ids = def.overrides.iter().flat_map(parameters);
    for (span, _) in ids.filter(|(_, id)| id.id.trim().is_empty()) {
        cx.error(span, "the id is empty")
            .help("write whom the override is for, or leave it out");
    }
}

/// Gives a limit its overrides. What is wrong with their ids is told when a limit is built for the
/// first time.
fn add_overrides(cx: &mut Lowering<'_>, limit: &mut Limit, def: &LimitDef, is_first: bool) {
    let mut spans: HashMap<String, Span> = HashMap::new();
    for (span, parameters) in def.overrides.iter().flat_map(parameters) {
        let id = parameters.id.clone();
        match limit.add_override(parameters) {
            Ok(()) => {
                if is_first && let Some(doubt) = limit.looks_hashed(&id) {
                    cx.doubt(span, &doubt);
                }
                spans.insert(id, span);
            }
            Err(error) if is_first => refuse_id(cx, span, &error, &spans),
            Err(_) => {}
        }
    }
}

fn refuse_id(cx: &mut Lowering<'_>, span: Span, error: &IdError, spans: &HashMap<String, Span>) {
    let earlier = match error {
        IdError::Duplicate { earlier, .. } => spans.get(earlier),
        _ => None,
    };
    let Some(earlier) = earlier else {
        cx.refuse(span, error);
        return;
    };
    let at = cx.sources.location(*earlier);
    let message = error.to_string();
    let what = message.split("; ").next().unwrap_or_default();
    cx.error(span, what).help(format!(
        "remove one of them; the other is at {at} {}",
        at.path
    ));
}

/// The overrides of all ids of an entry, with their spans.
fn parameters(overriding: &Overriding) -> impl Iterator<Item = (Span, Override)> {
    let quota = overriding.quota.into_iter();
    quota.flat_map(move |quota| {
        let ids = overriding.written.ids.iter();
        ids.map(move |id| {
            let (text, comment) = match &id.value {
                WordOr::Word(text) => (text, None),
                WordOr::More(id) => (&id.id, id.comment.0.clone()),
            };
            let parameters = Override {
                quota,
                comment,
                id: text.clone(),
                until: overriding.written.until.map(|until| until.value.0),
            };
            (id.span, parameters)
        })
    })
}

/// What something is counted per.
pub(crate) fn key_sources(
    cx: &mut Lowering<'_>,
    per: &OneOrMany<Spanned<String>>,
    span: Span,
    ipv6_prefix: u8,
) -> Lowered<Vec<KeySource>> {
    if per.0.len() > MAX_SOURCES {
        let message = format!("`per` lists more than {MAX_SOURCES} sources");
        let help = "each of them makes a bucket key longer; keep to those that matter";
        return Err(cx.error(span, message).help(help));
    }
    let sources = per.0.iter().map(|text| key_source(cx, text, ipv6_prefix));
    let sources: Vec<Lowered<KeySource>> = sources.collect();
    let sources: Vec<KeySource> = sources.into_iter().collect::<Lowered<_>>()?;
    let mut seen = HashSet::new();
    if let Some(twice) = sources.iter().find(|source| !seen.insert(*source)) {
        let complaint = cx.error(span, format!("\"{twice}\" is there twice"));
        return Err(complaint.help("leave one out"));
    }
    if sources.is_empty() {
        let complaint = cx.error(span, "`per` is empty");
        return Err(complaint.help("say `per: global` for one bucket for all"));
    }
    if sources.len() > 1 && sources.contains(&KeySource::Global) {
        let message = "\"global\" stands alone, as it is one bucket for all";
        return Err(cx.error(span, message).help("leave it out, or the others"));
    }
    Ok(sources)
}

fn key_source(
    cx: &mut Lowering<'_>,
    text: &Spanned<String>,
    ipv6_prefix: u8,
) -> Lowered<KeySource> {
    let source = KeySource::parse(text, ipv6_prefix);
    if let Err(SourceError::Unknown(_)) = source {
        let word = text.split([':', '/']).next().unwrap_or_default();
        let message = format!("unknown source \"{}\"", text.value);
        let nearest = suggest(word, KeySource::WORDS);
        return Err(cx.error(text.span, message).maybe_help(nearest));
    }
    cx.ok(text.span, source)
}
