//! Limits and overrides as they are defined.

use std::collections::{HashMap, HashSet};

use super::book::{LimitDef, LimitTable, Overriding};
use super::quota::WrittenQuota;
use super::{Lowered, Lowering, ParsedFiles};
use crate::config::nearest::suggest;
use crate::config::schema;
use crate::config::yaml::{OneOrMany, Span, Spanned, WordOr};
use crate::limit::{Algorithm, Quota};
use crate::rules::{HashKey, KeySource, SourceError};

/// Overrides are found by a recursion as deep as this.
const MAX_SOURCES: usize = 16;

impl Lowering<'_> {
    pub(super) fn limits(&mut self, written: &ParsedFiles, key: HashKey) -> LimitTable {
        let defaults = written.defaults.as_ref().map(Option::as_ref);
        let overrides = written.overrides.as_ref().map(Option::as_ref);
        let prefix = self.ipv6_prefix(written.gateway.client_address.as_ref());
        let defined = defaults.into_iter().flatten().flat_map(|it| &it.value.0);
        let entries: Vec<LimitDef> = defined
            .map(|(name, limit)| self.entry(name, limit, prefix))
            .collect();
        let names = entries.iter().map(|entry| entry.name.value.clone());
        let mut table = LimitTable {
            by_name: names.zip(0..).collect(),
            entries,
            span: defaults.map(|it| it.map(|it| it.span)).map_err(|it| *it),
            overrides: overrides.map(|it| it.map(|it| it.span)).map_err(|it| *it),
            file: written.limits_file.clone(),
            key,
            ipv6_prefix: prefix,
        };
        let mut left_out: HashSet<&str> = HashSet::new();
        let kept = self.kept.map(|_| {
            let known = known(&written.gateway, &table);
            (known, greatest_costs(&written.gateway))
        });
        for item in overrides.into_iter().flatten().flat_map(|it| &it.value) {
            for (name, overriding) in &item.value.0 {
                let mut cost = None;
                if let Some((known, costs)) = &kept {
                    if !known.contains(name.as_str()) {
                        if left_out.insert(name) {
                            self.leave_out(name, &table);
                        }
                        continue;
                    }
                    cost = costs.get(name.as_str()).copied();
                }
                self.overriding(&mut table, name, overriding, cost);
            }
        }
        self.refuse_same_prefixes(&table);
        table
    }

    /// What is kept in force of an unknown limit's overrides would refuse what is right as it is
    /// written: the limit was removed.
    fn leave_out(&mut self, name: &Spanned<String>, table: &LimitTable) {
        if table.definition_in_error(name, self.sources).is_some() {
            return;
        }
        let message = format!("this overrides the unknown limit \"{}\"", name.value);
        let help = format!("limits are defined in {}", table.file);
        self.error(name.span, message).help(help);
    }

    fn entry(
        &mut self,
        name: &Spanned<String>,
        limit: &Spanned<schema::DefaultLimit>,
        ipv6_prefix: u8,
    ) -> LimitDef {
        let per = limit.per.as_ref();
        let algorithm = self.algorithm(limit);
        let written = WrittenQuota {
            name: name.span,
            span: limit.span,
            burst: limit.burst,
            count: limit.count,
            period: limit.period,
            in_flight: limit.in_flight,
        };
        LimitDef {
            name: name.clone(),
            written: Some(limit.clone()),
            algorithm,
            quota: algorithm.and_then(|algorithm| self.quota(algorithm, &written).map(Some)),
            enforcement: self.enforcement(limit.enforce.as_ref()),
            overrides: Vec::new(),
            used: false,
            per: self.per(per, limit.span, name.span, ipv6_prefix),
            built: Vec::new(),
        }
    }

    fn overriding(
        &mut self,
        table: &mut LimitTable,
        name: &Spanned<String>,
        written: &Spanned<schema::OverrideEntry>,
        cost: Option<u64>,
    ) {
        let _ = self.filled(
            &written.ids,
            "an override needs ids",
            "say whom it is for, such as `ids: [203.0.113.9]`",
        );
        if table.find(name).is_none() && table.definition_in_error(name, self.sources).is_some() {
            return;
        }
        let entry = table.find_or_add(name);
        let parameters = WrittenQuota {
            name: name.span,
            span: written.span,
            burst: written.burst,
            count: written.count,
            period: written.period,
            in_flight: written.in_flight,
        };
        if entry.is_nowhere() && written.in_flight.is_some() {
            entry.algorithm = Ok(Algorithm::InFlight);
        }
        let quota = entry
            .algorithm
            .and_then(|algorithm| self.quota(algorithm, &parameters));
        entry.overrides.push(Overriding {
            written: written.clone(),
            quota: quota.and_then(|quota| self.passable(quota, cost, written)),
        });
    }

    /// Leaves out a kept override that could never let a request of this cost pass: where it is
    /// written, the request's cost is in error.
    fn passable(
        &mut self,
        quota: Quota,
        cost: Option<u64>,
        written: &Spanned<schema::OverrideEntry>,
    ) -> Lowered<Quota> {
        let burst = quota.burst().get();
        let Some(cost) = cost.filter(|cost| burst < *cost) else {
            return Ok(quota);
        };
        let span = written
            .burst
            .or(written.count)
            .map_or(written.span, |it| it.span);
        let message = format!("a cost of {cost} never passes a burst of {burst}");
        Err(self.error(span, message).into())
    }

    /// Makes room for a limit that no file names, where a route says what it would be counted per:
    /// its last override may have been deleted, which is no reason to refuse all the rest, however
    /// much it is called like another limit. A slip is warned of as well.
    pub(super) fn admit(&mut self, table: &mut LimitTable, usage: &WordOr<schema::LimitUse>) {
        let WordOr::More(schema::LimitUse {
            limit,
            per: Some(_),
            ..
        }) = usage
        else {
            return;
        };
        if table.find(limit).is_some() || table.may_have(limit, self.sources).is_some() {
            return;
        }
        if !limit.is_empty() {
            table.find_or_add(limit);
        }
    }

    /// Overrides of limits that are neither defined nor used.
    pub(super) fn refuse_overrides_of_nothing(&mut self, table: &LimitTable) {
        let nowhere = |entry: &&LimitDef| entry.written.is_none() && !entry.used;
        for LimitDef { name, .. } in table.entries.iter().filter(nowhere) {
            let message = format!("this overrides the unknown limit \"{}\"", name.value);
            let hint = format!("limits are defined in {}", table.file);
            let help = match self.suggest(name, table.span()) {
                Some(question) if question.ends_with('?') => format!("{question} {hint}"),
                _ => hint,
            };
            self.error(name.span, message).help(help);
        }
    }

    /// Two limits whose buckets would be the same.
    fn refuse_same_prefixes(&mut self, table: &LimitTable) {
        let mut first: HashMap<String, &LimitDef> = HashMap::new();
        for entry in &table.entries {
            let prefix = entry.prefix();
            let Some(other) = first.get(&prefix) else {
                first.insert(prefix, entry);
                continue;
            };
            let at = self.sources.location(other.prefix_span());
            let names = (&other.name.value, &entry.name.value);
            let message = format!(
                "the buckets of \"{}\" begin with \"{prefix}:\" already",
                names.0
            );
            self.error(entry.prefix_span(), message).help(format!(
                "give \"{}\" another `id`; the other is at {at} {}",
                names.1, at.path
            ));
        }
    }

    /// What a limit is counted per, if its definition says so.
    fn per(
        &mut self,
        per: Option<&OneOrMany<Spanned<String>>>,
        limit: Span,
        name: Span,
        ipv6_prefix: u8,
    ) -> Lowered<Option<Vec<KeySource>>> {
        match per {
            Some(per) => self.sources(per, name, ipv6_prefix).map(Some),
            None => self
                .sources
                .key_in_error(limit, &["per"])
                .map_or(Ok(None), Err),
        }
    }

    /// What a limit is counted per.
    pub(super) fn sources(
        &mut self,
        per: &OneOrMany<Spanned<String>>,
        span: Span,
        ipv6_prefix: u8,
    ) -> Lowered<Vec<KeySource>> {
        if per.0.len() > MAX_SOURCES {
            let message = format!("`per` lists more than {MAX_SOURCES} sources");
            let help = "each of them makes a bucket key longer; keep to those that matter";
            return Err(self.error(span, message).help(help));
        }
        let sources: Vec<_> = per
            .0
            .iter()
            .map(|it| self.source(it, ipv6_prefix))
            .collect();
        let sources: Vec<KeySource> = sources.into_iter().collect::<Lowered<_>>()?;
        for (at, source) in sources.iter().enumerate() {
            if sources.iter().position(|it| it == source) != Some(at) {
                let complaint = self.error(span, format!("\"{source}\" is there twice"));
                return Err(complaint.help("leave one out"));
            }
        }
        if sources.is_empty() {
            let complaint = self.error(span, "`per` is empty");
            return Err(complaint.help("say `per: global` for one bucket for all"));
        }
        if sources.len() > 1 && sources.contains(&KeySource::Global) {
            let message = "\"global\" stands alone, as it is one bucket for all";
            return Err(self
                .error(span, message)
                .help("leave it out, or the others"));
        }
        Ok(sources)
    }

    fn source(&mut self, text: &Spanned<String>, ipv6_prefix: u8) -> Lowered<KeySource> {
        let source = KeySource::parse(text, ipv6_prefix);
        if let Err(SourceError::Unknown(_)) = source {
            let word = text.split([':', '/']).next().unwrap_or_default();
            let message = format!("unknown source \"{}\"", text.value);
            let nearest = suggest(word, KeySource::WORDS);
            return Err(self.error(text.span, message).maybe_help(nearest));
        }
        self.ok(text.span, source)
    }
}

/// The names of limits that are defined, or that a route lists.
fn known(gateway: &schema::Gateway, table: &LimitTable) -> HashSet<String> {
    let listed = uses(gateway).map(|usage| match usage {
        WordOr::Word(name) => name.clone(),
        WordOr::More(usage) => usage.limit.value.clone(),
    });
    listed.chain(table.by_name.keys().cloned()).collect()
}

/// The most that a request costs which some route counts by a limit, as far as that is written.
fn greatest_costs(gateway: &schema::Gateway) -> HashMap<&str, u64> {
    let mut costs = HashMap::new();
    for usage in uses(gateway) {
        let WordOr::More(usage) = usage else { continue };
        let cost = usage.cost.as_ref().and_then(|cost| match &cost.value {
            WordOr::Word(number) => number.parse().ok(),
            WordOr::More(measured) => measured.default.map(|it| it.value),
        });
        let greatest: &mut u64 = costs.entry(usage.limit.as_str()).or_default();
        *greatest = cost.unwrap_or_default().max(*greatest);
    }
    costs
}

/// All limits as routes list them.
fn uses(gateway: &schema::Gateway) -> impl Iterator<Item = &WordOr<schema::LimitUse>> {
    let of_routes = gateway.routes.iter().map(|it| &it.limits);
    let inherited = gateway.defaults.iter().map(|it| &it.limits);
    let listed = of_routes.chain(inherited).flatten().flatten();
    listed.map(|usage| &usage.value)
}
