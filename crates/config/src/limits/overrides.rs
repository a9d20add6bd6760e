//! Overrides: which of them there are, and the subjects that have them.

use std::collections::{HashMap, HashSet};

use weir_limit::Algorithm;
use weir_rules::{IdError, Limit, Override, OverrideOrigin};
use weir_yaml::{Lowering, Span, Spanned, WordOr};

use super::boulder;
use super::schema::{LimitUse, OverrideEntry, Overrides};
use super::table::{LimitDef, LimitTable, OverrideDef};

/// Adds the overrides to their limits. Retained overrides must not make a valid configuration fail,
/// so one whose limit was removed is left out.
pub(super) fn overrides<'w>(
    cx: &mut Lowering<'_>,
    table: &mut LimitTable,
    files: impl Iterator<Item = &'w Overrides>,
    uses: &[&WordOr<LimitUse>],
) {
    let used = cx.retained.map(|_| greatest_costs(uses));
    let mut unknown: HashSet<&str> = HashSet::new();
    let items = files.flat_map(|file| &file.value);
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
    if limit.is_undefined() && written.in_flight.is_some() {
        limit.algorithm = Ok(Algorithm::InFlight);
    }
    let rules = limit.override_rules();
    limit.overrides.push(OverrideDef {
        entry: written.clone(),
        quota: rules.and_then(|rules| rules.quota(cx, name, written, cost)),
    });
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
pub(super) fn refuse_overrides_of_nothing(cx: &mut Lowering<'_>, table: &LimitTable) {
    let nowhere = |limit: &&LimitDef| limit.definition.is_none() && !limit.used;
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

/// Gives a limit its overrides. What is wrong with their ids is told when a limit is built for the
/// first time.
pub(super) fn add_overrides(
    cx: &mut Lowering<'_>,
    limit: &mut Limit,
    def: &LimitDef,
    is_first: bool,
) {
    let mut spans: HashMap<String, Span> = HashMap::new();
    for (span, parameters) in def.overrides.iter().flat_map(parameters) {
        let id = parameters.id.clone();
        match limit.add_override(parameters) {
            Ok(()) => {
                if is_first && let Some(warning) = limit.looks_hashed(&id) {
                    cx.warn_of(span, &warning);
                }
                if is_first && let Some(what) = boulder::refused_id(&def.name.value, &id) {
                    cx.warn(span, format!("Boulder refuses \"{id}\" here: {what}"))
                        .help("Weir takes it; name the limit otherwise if it is not Boulder's");
                }
                spans.insert(id, span);
            }
            // Boulder loads such an id, which counts for nobody there either.
            Err(error @ IdError::NotADomain(..)) if is_first => {
                let message = error.to_string();
                let (what, help) = message
                    .split_once("; ")
                    .unwrap_or((&message, "leave it out"));
                cx.warn(span, format!("{what}, so this is for nobody"))
                    .help(help);
            }
            Err(error) if is_first => refuse_id(cx, span, &error, &spans),
            Err(_) => {}
        }
    }
}

/// For limits whose ids have no form that is known.
pub(super) fn refuse_empty_ids(cx: &mut Lowering<'_>, def: &LimitDef) {
    let ids = def.overrides.iter().flat_map(parameters);
    for (span, _) in ids.filter(|(_, id)| id.id.trim().is_empty()) {
        cx.error(span, "the id is empty")
            .help("write whom the override is for, or leave it out");
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
pub(super) fn parameters(overriding: &OverrideDef) -> impl Iterator<Item = (Span, Override)> {
    let quota = overriding.quota.into_iter();
    quota.flat_map(move |quota| {
        let ids = overriding.entry.ids.iter();
        ids.map(move |id| {
            let (text, comment) = match &id.value {
                WordOr::Word(text) => (text, None),
                WordOr::More(id) => (&id.id, id.comment.0.clone()),
            };
            let parameters = Override {
                quota,
                comment,
                id: text.clone(),
                until: overriding.entry.until.map(|until| until.value.0),
                origin: OverrideOrigin::Configuration,
            };
            (id.span, parameters)
        })
    })
}
