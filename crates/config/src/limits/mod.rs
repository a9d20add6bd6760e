//! Limits: what may be written of them, and what comes of it.

mod api_overrides;
mod boulder;
mod log_entries;
pub(crate) mod override_rules;
mod overrides;
mod prefetch;
mod prefetched;
mod quota;
pub(super) mod schema;
mod statuses;
mod table;
mod usage;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use overrides::{add_overrides, overrides, refuse_empty_ids, refuse_overrides_of_nothing};
use prefetch::{prefetch, prefetched};
use quota::{QuotaParameters, algorithm, quota};
use schema::{DefaultLimit, Defaults, LimitUse, Overrides};
use table::LimitDef;
use weir_rules::{HashKey, KeySource, Limit, Missing, Nat64Prefixes, SourceError};
use weir_yaml::{Lowered, Lowering, OneOrMany, Span, SpanOf, Spanned, WordOr, all, suggest};

pub use api_overrides::OverrideCheck;
pub(super) use log_entries::{HELP as FEWER_LOG_ENTRIES, too_many_log_entries};
pub(super) use quota::{enforcement, remedy as quota_remedy};
pub(super) use statuses::{StatusList, status_set};
pub(super) use table::{LimitTable, warn_of_limits};
pub(super) use usage::{limit_use, yield_denials};

/// Overrides are found by a recursion as deep as this.
const MAX_SOURCES: usize = 16;

/// Limits and overrides, as they were read from two files or from `gateway.yaml`.
pub(super) struct WrittenLimits {
    /// None when there are none, and need not be.
    pub(super) defaults: Lowered<Option<Defaults>>,
    /// None when there are none.
    pub(super) overrides: Lowered<Option<Overrides>>,
    /// Where limits are defined, for errors.
    pub(super) name: String,
}

/// All limits that are defined, overridden, or used by a route that says what they count.
pub(super) fn limits(
    cx: &mut Lowering<'_>,
    written: &WrittenLimits,
    uses: &[&WordOr<LimitUse>],
    key: HashKey,
    (ipv6_prefix, nat64): (u8, Nat64Prefixes),
) -> LimitTable {
    let mut table = LimitTable {
        limits: Vec::new(),
        by_name: HashMap::new(),
        span: span_of(&written.defaults),
        overrides: span_of(&written.overrides),
        file: written.name.clone(),
        key,
        ipv6_prefix,
        nat64,
    };
    let defined = written.defaults.iter().flatten();
    for (name, limit) in defined.flat_map(|file| &file.value.0) {
        *table.find_or_add(name) = definition(cx, name, limit, ipv6_prefix);
    }
    overrides(cx, &mut table, written.overrides.iter().flatten(), uses);
    for usage in uses {
        table.add_use(usage, cx.sources);
    }
    refuse_same_prefixes(cx, &table);
    refuse_overrides_of_nothing(cx, &table);
    for limit in &mut table.limits {
        build(cx, limit, &table.key, &table.nat64);
    }
    table
}

fn span_of<T>(file: &Lowered<Option<Spanned<T>>>) -> Lowered<Option<Span>> {
    let file = file.as_ref().map_err(|reported| *reported)?;
    Ok(file.span())
}

fn definition(
    cx: &mut Lowering<'_>,
    name: &Spanned<String>,
    limit: &Spanned<DefaultLimit>,
    ipv6_prefix: u8,
) -> LimitDef {
    let algorithm = algorithm(cx, limit);
    let written = QuotaParameters {
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
    let prefetch = algorithm.and_then(|algorithm| prefetch(cx, limit, algorithm));
    let quota = algorithm.and_then(|algorithm| quota(cx, algorithm, &written));
    let quota = quota.and_then(|quota| prefetched(cx, limit, quota, prefetch?));
    LimitDef {
        definition: Some(limit.clone()),
        algorithm,
        quota: quota.map(Some),
        prefetch,
        enforcement: enforcement(limit.enforce.as_ref()),
        per,
        ..LimitDef::new(name.clone())
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
fn build(cx: &mut Lowering<'_>, limit: &mut LimitDef, key: &HashKey, nat64: &Nat64Prefixes) {
    if limit.per == Ok(None) {
        if limit.definition.is_some() {
            check_without_sources(cx, limit, key);
        }
        return;
    }
    if limit.missing_values.is_empty() {
        limit.missing_values.push(limit.missing(None));
    }
    for missing in limit.missing_values.clone() {
        let built = new_limit(cx, limit, missing, (key, nat64)).map(Arc::new);
        limit.built.push((missing, built));
    }
}

fn new_limit(
    cx: &mut Lowering<'_>,
    def: &LimitDef,
    missing: Missing,
    (key, nat64): (&HashKey, &Nat64Prefixes),
) -> Lowered<Limit> {
    // The first time tells of all that is wrong.
    let first = def.built.first();
    if let Some(reported) = first.and_then(|(_, limit)| limit.as_ref().err()) {
        return Err(*reported);
    }
    let per = def.per.clone()?.unwrap_or_default();
    let limit = Limit::new(&def.name, per, def.quota?, missing, key.clone());
    let mut limit = cx
        .ok(def.name.span, limit)?
        .with_nat64_prefixes(nat64.clone());
    if let Some(id) = def.definition.as_ref().and_then(|written| written.id) {
        limit = limit.with_id(id.value);
    }
    add_overrides(cx, &mut limit, def, first.is_none());
    Ok(limit)
}

/// Where nothing says the sources of a limit, the ids may look like anything; but the limit needs a
/// usable name all the same, and ids must not be empty.
fn check_without_sources(cx: &mut Lowering<'_>, def: &LimitDef, key: &HashKey) {
    let nameable = Limit::new(&def.name, Vec::new(), None, Missing::Skip, key.clone());
    let _ = cx.ok(def.name.span, nameable);
    refuse_empty_ids(cx, def);
}

/// What something is counted per, such as an address.
pub(super) fn key_sources(
    cx: &mut Lowering<'_>,
    per: &Spanned<OneOrMany<Spanned<String>>>,
    span: Span,
    ipv6_prefix: u8,
) -> Lowered<Vec<KeySource>> {
    if per.value.0.len() > MAX_SOURCES {
        let message = format!("`per` lists more than {MAX_SOURCES} sources");
        let help = "each of them makes a bucket key longer; keep to those that matter";
        return Err(cx.error(span, message).help(help));
    }
    let sources = cx.items(per)?.iter();
    let sources: Vec<_> = all(sources.map(|text| key_source(cx, text, ipv6_prefix)))?;
    let mut seen = HashSet::new();
    if let Some(twice) = sources.iter().find(|source| !seen.insert(*source)) {
        let error = cx.error(span, format!("\"{twice}\" is there twice"));
        return Err(error.help("leave one out"));
    }
    if sources.is_empty() {
        let error = cx.error(span, "`per` is empty");
        return Err(error.help("say `per: global` for one bucket for all"));
    }
    if sources.len() > 1 && sources.contains(&KeySource::Global) {
        let message = "\"global\" stands alone, as it is one bucket for all";
        return Err(cx.error(span, message).help("leave it out, or the others"));
    }
    Ok(sources)
}

/// Help with the name of a header or a variable of nginx in the place of a source.
fn named_source(text: &str) -> Option<String> {
    let of_nginx = [
        ("$http_", "header"),
        ("$cookie_", "cookie"),
        ("$arg_", "query"),
    ];
    let named = of_nginx.iter().find_map(|(prefix, source)| {
        let name = text.strip_prefix(prefix)?;
        Some(match *source {
            "header" => format!("write `header:{}`", name.replace('_', "-")),
            source => format!("write `{source}:{name}`"),
        })
    });
    let is_header =
        || text.contains('-') && KeySource::parse(&format!("header:{text}"), 64).is_ok();
    named.or_else(|| is_header().then(|| format!("if it is a header, write `header:{text}`")))
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
        let help = named_source(text).or_else(|| suggest(word, KeySource::WORDS));
        return Err(cx.error(text.span, message).maybe_help(help));
    }
    cx.ok(text.span, source)
}
