//! Limits as routes use them.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::Lowering;
use super::book::{Book, Entry, Overriding};
use crate::config::schema::{self, MissingValue};
use crate::config::yaml::{Place, Placed, WordOr};
use crate::limit::Algorithm;
use crate::rules::{HashKey, Limit, LimitUse, Missing, Override, Source};

impl Lowering<'_> {
    /// A limit as a route uses it.
    pub(super) fn limit_use(
        &mut self,
        book: &mut Book,
        written: &Placed<WordOr<schema::LimitUse>>,
    ) -> Option<LimitUse> {
        let usage = &spelt_out(written);
        let prefix = book.ipv6_prefix;
        let per = usage.per.as_ref();
        let per = per.map(|per| self.sources(per, written.place, prefix));
        let key = book.key.clone();
        let entry = self.find_limit(book, &usage.limit)?;
        entry.used = true;
        let cost = self.cost(entry, usage);
        self.agree_on_per(entry, per, usage.limit.place)?;
        let limit = self.build(entry, usage.missing, &key)?;
        Some(LimitUse { limit, cost: cost? })
    }

    fn find_limit<'b>(
        &mut self,
        book: &'b mut Book,
        name: &Placed<String>,
    ) -> Option<&'b mut Entry> {
        let names = book.names(self.sources);
        let hint = format!("limits are defined in {}", book.file);
        // Without a usable file every name is unknown, and the file is what is to be told of.
        let usable = book.place.is_some();
        let found = book.find(name);
        if found.is_none() && usable {
            self.unknown("limit", name, &names, &hint);
        }
        found
    }

    /// The cost of a request, which every bucket of the limit must be able to hold.
    fn cost(&mut self, entry: &Entry, usage: &schema::LimitUse) -> Option<NonZeroU64> {
        let Some(cost) = usage.cost else {
            return Some(NonZeroU64::MIN);
        };
        if entry.algorithm == Some(Algorithm::InFlight) {
            let message = format!(
                "\"{}\" counts requests, whatever they cost",
                usage.limit.value
            );
            self.error(cost.place, message).remedy("leave `cost` out");
            return None;
        }
        let smallest = entry.smallest_burst();
        let Some((burst, place)) = smallest.filter(|(burst, _)| *burst < cost.value) else {
            return Some(cost.value);
        };
        let at = self.sources.location(place);
        let message = format!(
            "a cost of {} never passes \"{}\"",
            cost.value, usage.limit.value
        );
        self.error(cost.place, message)
            .remedy(format!("its burst is only {burst} at {at} {}", at.path));
        None
    }

    /// Makes sure that a limit is counted per the same everywhere: its buckets have one form.
    fn agree_on_per(
        &mut self,
        entry: &mut Entry,
        per: Option<Option<Vec<Source>>>,
        place: Place,
    ) -> Option<()> {
        let name = &entry.name.value;
        match (&entry.per, per) {
            (_, Some(None)) => return None,
            // What the file says is in error, and was reported.
            (None, None) if entry.written.per.is_some() => return None,
            (None, None) => {
                self.error(
                    place,
                    format!("nothing says what \"{name}\" is counted per"),
                )
                .remedy("add `per: address` or the like, here or where it is defined");
                return None;
            }
            (Some(known), Some(Some(per))) if *known != per => {
                self.error(
                    place,
                    format!("\"{name}\" is counted per something else already"),
                )
                .remedy("leave `per` out here, or define a limit of another name");
                return None;
            }
            (None, Some(per)) => entry.per = per,
            (Some(_), _) => {}
        }
        Some(())
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
        let limit = Limit::new(&entry.name, per, entry.quota?, missing, key.clone());
        let first = entry.built.is_empty();
        let mut limit = match first {
            true => self.ok(entry.name.place, limit)?,
            false => limit.ok()?,
        };
        for overriding in &entry.overrides {
            for (place, parameters) in parameters(overriding) {
                let id = parameters.id.clone();
                let added = limit.add_override(&id, parameters);
                if first {
                    self.ok(place, added);
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

/// A use with nothing but a name is a use of the limit as it is defined.
fn spelt_out(written: &Placed<WordOr<schema::LimitUse>>) -> schema::LimitUse {
    match &written.value {
        WordOr::More(usage) => usage.clone(),
        WordOr::Word(name) => schema::LimitUse {
            limit: Placed {
                place: written.place,
                value: name.clone(),
            },
            cost: None,
            per: None,
            missing: None,
        },
    }
}

/// The overrides of all ids of an entry, with their places.
fn parameters(overriding: &Overriding) -> impl Iterator<Item = (Place, Override)> {
    let quota = overriding.quota.into_iter();
    quota.flat_map(|quota| {
        let ids = overriding.written.ids.iter();
        ids.map(move |id| {
            let (text, comment) = match &id.value {
                WordOr::Word(text) => (text, None),
                WordOr::More(it) => (&it.id, it.comment.clone()),
            };
            let id_text = text.clone();
            (
                id.place,
                Override {
                    quota,
                    comment,
                    id: id_text,
                },
            )
        })
    })
}
