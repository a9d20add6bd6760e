//! Limits and their overrides.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::{Lowering, Written};
use crate::config::duration::Span;
use crate::config::nearest::suggest;
use crate::config::schema::{self, MissingValue};
use crate::config::settings::Parameters;
use crate::config::yaml::{OneOrMany, Place, Placed, Sources, WordOr};
use crate::limit::{Quota, QuotaError};
use crate::rules::{HashKey, Limit, LimitUse, Missing, Override, Source, SourceError};

/// All limits that are defined, to be built as routes use them.
pub(in crate::config) struct Book {
    pub(in crate::config) entries: Vec<Entry>,
    names: Option<Place>,
    file: String,
    key: HashKey,
    pub(super) ipv6_prefix: u8,
}

/// One limit.
pub(in crate::config) struct Entry {
    pub(in crate::config) name: Placed<String>,
    pub(in crate::config) written: Placed<schema::DefaultLimit>,
    pub(in crate::config) quota: Option<Quota>,
    pub(in crate::config) overrides: Vec<Overriding>,
    pub(in crate::config) used: bool,
    /// As the file says it, or else as the first route says it.
    per: Option<Vec<Source>>,
    /// What was built, by what requests without a value get.
    built: Vec<(Missing, Option<Arc<Limit>>)>,
}

/// Other parameters for some ids.
pub(in crate::config) struct Overriding {
    pub(in crate::config) written: Placed<schema::OverrideEntry>,
    pub(in crate::config) quota: Option<Quota>,
}

impl Lowering<'_> {
    pub(super) fn limits(&mut self, written: &Written, key: HashKey) -> Book {
        let defaults = written.defaults.as_ref();
        let prefix = self.ipv6_prefix(written.gateway.client_address.as_ref());
        let entries = defaults.into_iter().flat_map(|it| &it.value.0);
        let mut book = Book {
            entries: entries
                .map(|(name, it)| self.entry(name, it, prefix))
                .collect(),
            names: defaults.map(|it| it.place),
            file: written.limits_file.clone(),
            key,
            ipv6_prefix: prefix,
        };
        for item in written.overrides.iter().flatten() {
            for (name, overriding) in &item.value.0 {
                self.overriding(&mut book, name, overriding);
            }
        }
        book
    }

    fn entry(
        &mut self,
        name: &Placed<String>,
        limit: &Placed<schema::DefaultLimit>,
        ipv6_prefix: u8,
    ) -> Entry {
        Entry {
            name: name.clone(),
            written: limit.clone(),
            quota: self.quota(limit.burst, limit.count, limit.period),
            overrides: Vec::new(),
            used: false,
            per: limit
                .per
                .as_ref()
                .and_then(|per| self.sources(per, name.place, ipv6_prefix)),
            built: Vec::new(),
        }
    }

    fn overriding(
        &mut self,
        book: &mut Book,
        name: &Placed<String>,
        written: &Placed<schema::OverrideEntry>,
    ) {
        let quota = self.quota(written.burst, written.count, written.period);
        if written.ids.is_empty() {
            self.error(written.ids.place, "an override needs ids");
        }
        match book.find(&name.value) {
            Some(entry) => entry.overrides.push(Overriding {
                written: written.clone(),
                quota,
            }),
            None => self.override_of_nothing(book, name),
        }
    }

    fn override_of_nothing(&mut self, book: &Book, name: &Placed<String>) {
        let known = book.names(self.sources);
        if !known.contains(&name.value.as_str()) {
            let remedy = suggest(name, known);
            let message = format!("this overrides the unknown limit \"{}\"", name.value);
            self.warn(name.place, message).remedy = remedy;
        }
    }

    fn quota(
        &mut self,
        burst: Placed<u64>,
        count: Placed<u64>,
        period: Placed<Span>,
    ) -> Option<Quota> {
        Quota::new(burst.value, count.value, period.value.0)
            .map_err(|error| {
                let place = match error {
                    QuotaError::ZeroBurst => burst.place,
                    QuotaError::ZeroPeriod | QuotaError::PeriodTooLong => period.place,
                    QuotaError::ToleranceTooLong if burst.value > count.value => burst.place,
                    _ => count.place,
                };
                self.error(place, error.to_string());
            })
            .ok()
    }

    /// What a limit is counted per.
    fn sources(
        &mut self,
        per: &OneOrMany<Placed<String>>,
        place: Place,
        ipv6_prefix: u8,
    ) -> Option<Vec<Source>> {
        let mut sources = Vec::new();
        for text in &per.0 {
            let source = self.source(text, ipv6_prefix)?;
            if sources.contains(&source) {
                self.error(text.place, format!("\"{}\" is there twice", text.value));
                return None;
            }
            sources.push(source);
        }
        if sources.is_empty() {
            self.error(place, "`per` is empty")
                .remedy("say `per: global` for one bucket for all");
            return None;
        }
        if sources.len() > 1 && sources.contains(&Source::Global) {
            self.error(
                place,
                "\"global\" stands alone, as it is one bucket for all",
            );
            return None;
        }
        Some(sources)
    }

    fn source(&mut self, text: &Placed<String>, ipv6_prefix: u8) -> Option<Source> {
        Source::parse(text, ipv6_prefix)
            .map_err(|error| {
                let finding = self.error(text.place, error.to_string());
                if let SourceError::Unknown(_) = error {
                    let word = text.split([':', '/']).next().unwrap_or_default();
                    finding.remedy = suggest(word, Source::WORDS);
                }
            })
            .ok()
    }

    /// A limit as a route uses it.
    pub(super) fn limit_use(
        &mut self,
        book: &mut Book,
        written: &Placed<WordOr<schema::LimitUse>>,
    ) -> Option<LimitUse> {
        let plain;
        let usage = match &written.value {
            WordOr::More(usage) => usage,
            WordOr::Word(name) => {
                plain = schema::LimitUse::of(Placed {
                    place: written.place,
                    value: name.clone(),
                });
                &plain
            }
        };
        let ipv6_prefix = book.ipv6_prefix;
        let per = usage
            .per
            .as_ref()
            .map(|per| self.sources(per, written.place, ipv6_prefix));
        let Some(at) = book
            .entries
            .iter()
            .position(|it| it.name.value == usage.limit.value)
        else {
            let hint = format!("limits are defined in {}", book.file);
            let known = book.names(self.sources);
            self.unknown("limit", &usage.limit, &known, &hint);
            return None;
        };
        let key = book.key.clone();
        let entry = book.entries.get_mut(at)?;
        entry.used = true;
        let cost = self.cost(entry, usage, written.place);
        self.agree_on_per(entry, per, usage.limit.place)?;
        let limit = self.build(entry, usage.missing, &key)?;
        Some(LimitUse { limit, cost: cost? })
    }

    /// The cost of a request, which every bucket of the limit must be able to hold.
    fn cost(
        &mut self,
        entry: &Entry,
        usage: &schema::LimitUse,
        place: Place,
    ) -> Option<NonZeroU64> {
        let cost = usage.cost.map_or(NonZeroU64::MIN, |cost| cost.value);
        let place = usage.cost.map_or(place, |cost| cost.place);
        let overriding = entry
            .overrides
            .iter()
            .map(|it| (it.quota, it.written.burst.place));
        let quotas = overriding.chain([(entry.quota, entry.written.burst.place)]);
        let too_small = quotas
            .filter_map(|(quota, place)| quota.map(|quota| (quota.burst(), place)))
            .filter(|(burst, _)| *burst < cost)
            .min_by_key(|(burst, _)| *burst);
        let Some((burst, burst_place)) = too_small else {
            return Some(cost);
        };
        let at = self.sources.location(burst_place);
        let message = format!("a cost of {cost} never passes \"{}\"", entry.name.value);
        self.error(place, message).remedy(format!(
            "its burst is only {burst}, as {at} {} says",
            at.path
        ));
        None
    }

    /// Makes sure that a limit is counted per the same everywhere: its buckets have one form.
    fn agree_on_per(
        &mut self,
        entry: &mut Entry,
        per: Option<Option<Vec<Source>>>,
        place: Place,
    ) -> Option<()> {
        match (&entry.per, per) {
            (_, Some(None)) => None,
            // What the file says is in error, which is reported already.
            (None, None) if entry.written.per.is_some() => None,
            (None, None) => {
                let name = &entry.name.value;
                self.error(
                    place,
                    format!("nothing says what \"{name}\" is counted per"),
                )
                .remedy("add `per: address` or the like, here or where it is defined");
                None
            }
            (None, Some(per)) => {
                entry.per = per;
                Some(())
            }
            (Some(known), Some(Some(per))) if *known != per => {
                let name = &entry.name.value;
                self.error(
                    place,
                    format!("\"{name}\" is counted per something else already"),
                )
                .remedy("leave `per` out here, or define a limit of another name");
                None
            }
            (Some(_), _) => Some(()),
        }
    }

    /// The limit with its overrides; ids are checked when it is first built.
    fn build(
        &mut self,
        entry: &mut Entry,
        missing: Option<MissingValue>,
        key: &HashKey,
    ) -> Option<Arc<Limit>> {
        let missing = match missing.or(entry.written.missing) {
            Some(MissingValue::Deny) => Missing::Deny,
            _ => Missing::Skip,
        };
        if let Some((_, limit)) = entry.built.iter().find(|(it, _)| *it == missing) {
            return limit.clone();
        }
        let limit = self.new_limit(entry, missing, key).map(Arc::new);
        entry.built.push((missing, limit.clone()));
        limit
    }

    fn new_limit(&mut self, entry: &Entry, missing: Missing, key: &HashKey) -> Option<Limit> {
        let per = entry.per.clone()?;
        let first = entry.built.is_empty();
        let limit = Limit::new(&entry.name.value, per, entry.quota?, missing, key.clone());
        let mut limit = if first {
            self.ok(entry.name.place, limit)?
        } else {
            limit.ok()?
        };
        for overriding in &entry.overrides {
            let Some(quota) = overriding.quota else {
                continue;
            };
            for id in overriding.written.ids.iter() {
                let (text, comment) = match &id.value {
                    WordOr::Word(text) => (text, None),
                    WordOr::More(it) => (&it.id, it.comment.clone()),
                };
                let parameters = Override {
                    quota,
                    comment,
                    id: text.clone(),
                };
                let added = limit.add_override(text, parameters);
                if first {
                    self.ok(id.place, added);
                }
            }
        }
        Some(limit)
    }

    /// Builds what no route uses, so that its ids are checked as well.
    pub(super) fn check_unused(&mut self, book: &mut Book) {
        let key = book.key.clone();
        for entry in book.entries.iter_mut().filter(|it| !it.used) {
            self.build(entry, None, &key);
        }
    }
}

impl Book {
    /// The names of all limits in the file, those included that are in error.
    fn names<'s>(&self, sources: &'s Sources) -> Vec<&'s str> {
        let names = self.names.into_iter();
        names.flat_map(|place| sources.keys_at(place)).collect()
    }

    /// All parameters as they are written.
    pub(super) fn parameters(&self) -> Vec<Parameters> {
        self.entries.iter().flat_map(Entry::parameters).collect()
    }

    fn find(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|it| it.name.value == name)
    }
}

impl Entry {
    fn parameters(&self) -> impl Iterator<Item = Parameters> {
        let own = (self.quota, self.written.count, self.written.period);
        let overrides = self.overrides.iter();
        let overrides = overrides.map(|it| (it.quota, it.written.count, it.written.period));
        overrides.chain([own]).filter_map(|(quota, count, period)| {
            Some(Parameters {
                limit: self.name.value.clone(),
                quota: quota?,
                count: count.value,
                period: period.value,
            })
        })
    }
}

impl schema::LimitUse {
    /// A limit that is used as it is defined.
    fn of(limit: Placed<String>) -> Self {
        Self {
            limit,
            cost: None,
            per: None,
            missing: None,
        }
    }
}
