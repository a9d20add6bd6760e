//! Limits and overrides as they are defined.

use std::collections::{HashMap, HashSet};

use super::book::{Entry, LimitTable, Overriding};
use super::quota::WrittenQuota;
use super::{Lowered, Lowering, Written};
use crate::config::nearest::suggest;
use crate::config::schema;
use crate::config::yaml::{OneOrMany, Span, Spanned, WordOr};
use crate::limit::Algorithm;
use crate::rules::{HashKey, KeySource, SourceError};

/// Overrides are found by a recursion as deep as this.
const MAX_SOURCES: usize = 16;

impl Lowering<'_> {
    pub(super) fn limits(&mut self, written: &Written, key: HashKey) -> LimitTable {
        let defaults = written.defaults.as_ref().map(Option::as_ref);
        let overrides = written.overrides.as_ref();
        let prefix = self.ipv6_prefix(written.gateway.client_address.as_ref());
        let entries = defaults.into_iter().flatten().flat_map(|it| &it.value.0);
        let mut book = LimitTable {
            entries: entries
                .map(|(name, it)| self.entry(name, it, prefix))
                .collect(),
            place: defaults.map(|it| it.map(|it| it.place)).map_err(|it| *it),
            overrides: overrides
                .map(|it| it.iter().map(|item| item.place).collect())
                .map_err(|it| *it),
            file: written.limits_file.clone(),
            key,
            ipv6_prefix: prefix,
        };
        let mut left_out: HashSet<&str> = HashSet::new();
        let known = written
            .kept_overrides
            .then(|| known(&written.gateway, &book));
        for item in overrides.into_iter().flatten() {
            for (name, overriding) in &item.value.0 {
                if known.as_ref().is_some_and(|it| !it.contains(name.as_str())) {
                    if left_out.insert(name) {
                        self.leave_out(name, &book);
                    }
                    continue;
                }
                self.overriding(&mut book, name, overriding);
            }
        }
        self.refuse_same_prefixes(&book);
        book
    }

    /// What is kept in force of an unknown limit's overrides would refuse what is right as it is
    /// written: the limit was removed.
    fn leave_out(&mut self, name: &Spanned<String>, book: &LimitTable) {
        if book.definition_in_error(name, self.sources).is_some() {
            return;
        }
        let message = format!(
            "this overrides the unknown limit \"{}\", and is left out",
            name.value
        );
        let remedy = format!("limits are defined in {}", book.file);
        self.warn(name.place, message).remedy(remedy);
    }

    fn entry(
        &mut self,
        name: &Spanned<String>,
        limit: &Spanned<schema::DefaultLimit>,
        ipv6_prefix: u8,
    ) -> Entry {
        let per = limit.per.as_ref();
        let algorithm = self.algorithm(limit);
        let written = WrittenQuota {
            name: name.place,
            place: limit.place,
            burst: limit.burst,
            count: limit.count,
            period: limit.period,
            in_flight: limit.in_flight,
        };
        Entry {
            name: name.clone(),
            written: Some(limit.clone()),
            algorithm,
            quota: algorithm.and_then(|algorithm| self.quota(algorithm, &written).map(Some)),
            enforcement: self.enforcement(limit.enforce.as_ref()),
            overrides: Vec::new(),
            used: false,
            per: self.per(per, limit.place, name.place, ipv6_prefix),
            built: Vec::new(),
        }
    }

    fn overriding(
        &mut self,
        book: &mut LimitTable,
        name: &Spanned<String>,
        written: &Spanned<schema::OverrideEntry>,
    ) {
        let _ = self.filled(
            &written.ids,
            "an override needs ids",
            "say whom it is for, such as `ids: [203.0.113.9]`",
        );
        if book.find(name).is_none() && book.definition_in_error(name, self.sources).is_some() {
            return;
        }
        let entry = book.find_or_add(name);
        let parameters = WrittenQuota {
            name: name.place,
            place: written.place,
            burst: written.burst,
            count: written.count,
            period: written.period,
            in_flight: written.in_flight,
        };
        if entry.is_nowhere() && written.in_flight.is_some() {
            entry.algorithm = Ok(Algorithm::InFlight);
        }
        let algorithm = entry.algorithm;
        entry.overrides.push(Overriding {
            written: written.clone(),
            quota: algorithm.and_then(|algorithm| self.quota(algorithm, &parameters)),
        });
    }

    /// Makes room for a limit that no file names, where a route says what it would be counted per:
    /// its last override may have been deleted, which is no reason to refuse all the rest, however
    /// much it is called like another limit. A slip is warned of as well.
    pub(super) fn admit(&mut self, book: &mut LimitTable, usage: &WordOr<schema::LimitUse>) {
        let WordOr::More(schema::LimitUse {
            limit,
            per: Some(_),
            ..
        }) = usage
        else {
            return;
        };
        if book.find(limit).is_some() || book.may_have(limit, self.sources).is_some() {
            return;
        }
        if !limit.is_empty() {
            book.find_or_add(limit);
        }
    }

    /// Overrides of limits that are neither defined nor used.
    pub(super) fn refuse_overrides_of_nothing(&mut self, book: &LimitTable) {
        let nowhere = |entry: &&Entry| entry.written.is_none() && !entry.used;
        for Entry { name, .. } in book.entries.iter().filter(nowhere) {
            let message = format!("this overrides the unknown limit \"{}\"", name.value);
            let hint = format!("limits are defined in {}", book.file);
            let remedy = match self.suggest(name, book.place()) {
                Some(question) if question.ends_with('?') => format!("{question} {hint}"),
                _ => hint,
            };
            self.error(name.place, message).remedy(remedy);
        }
    }

    /// Two limits whose buckets would be the same.
    fn refuse_same_prefixes(&mut self, book: &LimitTable) {
        let mut first: HashMap<String, &Entry> = HashMap::new();
        for entry in &book.entries {
            let prefix = entry.prefix();
            let Some(other) = first.get(&prefix) else {
                first.insert(prefix, entry);
                continue;
            };
            let at = self.sources.location(other.prefix_place());
            let names = (&other.name.value, &entry.name.value);
            let message = format!(
                "the buckets of \"{}\" begin with \"{prefix}:\" already",
                names.0
            );
            self.error(entry.prefix_place(), message).remedy(format!(
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
        place: Span,
        ipv6_prefix: u8,
    ) -> Lowered<Vec<KeySource>> {
        if per.0.len() > MAX_SOURCES {
            let message = format!("`per` lists more than {MAX_SOURCES} sources");
            let remedy = "each of them makes a bucket key longer; keep to those that matter";
            return Err(self.error(place, message).remedy(remedy));
        }
        let sources: Vec<_> = per
            .0
            .iter()
            .map(|it| self.source(it, ipv6_prefix))
            .collect();
        let sources: Vec<KeySource> = sources.into_iter().collect::<Lowered<_>>()?;
        for (at, source) in sources.iter().enumerate() {
            if sources.iter().position(|it| it == source) != Some(at) {
                let complaint = self.error(place, format!("\"{source}\" is there twice"));
                return Err(complaint.remedy("leave one out"));
            }
        }
        if sources.is_empty() {
            let complaint = self.error(place, "`per` is empty");
            return Err(complaint.remedy("say `per: global` for one bucket for all"));
        }
        if sources.len() > 1 && sources.contains(&KeySource::Global) {
            let message = "\"global\" stands alone, as it is one bucket for all";
            return Err(self
                .error(place, message)
                .remedy("leave it out, or the others"));
        }
        Ok(sources)
    }

    fn source(&mut self, text: &Spanned<String>, ipv6_prefix: u8) -> Lowered<KeySource> {
        let source = KeySource::parse(text, ipv6_prefix);
        if let Err(SourceError::Unknown(_)) = source {
            let word = text.split([':', '/']).next().unwrap_or_default();
            let message = format!("unknown source \"{}\"", text.value);
            let nearest = suggest(word, KeySource::WORDS);
            return Err(self.error(text.place, message).perhaps(nearest));
        }
        self.ok(text.place, source)
    }
}

/// The names of limits that are defined, or that a route lists.
fn known(gateway: &schema::Gateway, book: &LimitTable) -> HashSet<String> {
    let of_routes = gateway.routes.iter().map(|it| &it.limits);
    let inherited = gateway.defaults.iter().map(|it| &it.limits);
    let listed = of_routes.chain(inherited).flatten().flatten();
    let listed = listed.map(|it| match &it.value {
        WordOr::Word(name) => name.clone(),
        WordOr::More(usage) => usage.limit.value.clone(),
    });
    let defined = book.entries.iter().map(|it| it.name.value.clone());
    listed.chain(defined).collect()
}
