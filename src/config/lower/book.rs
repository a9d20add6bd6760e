//! The limits that are defined, before routes use them.

use std::sync::Arc;

use crate::config::schema;
use crate::config::settings::Parameters;
use crate::config::yaml::{Place, Placed, Sources, WordOr};
use crate::limit::{Algorithm, Quota};
use crate::rules::{Enforcement, HashKey, Limit, Missing, Source};

/// All limits, to be built as routes use them.
pub(in crate::config) struct Book {
    pub(in crate::config) entries: Vec<Entry>,
    /// The place of all definitions; none when there is no usable file of them.
    pub(super) place: Option<Place>,
    /// The places of the items of all overrides; none when their file is in error.
    pub(super) overrides: Option<Vec<Place>>,
    pub(super) file: String,
    pub(super) key: HashKey,
    pub(super) ipv6_prefix: u8,
}

/// One limit.
pub(in crate::config) struct Entry {
    pub(in crate::config) name: Placed<String>,
    /// None when it is only overridden: then subjects with an override alone are counted.
    pub(in crate::config) written: Option<Placed<schema::DefaultLimit>>,
    pub(in crate::config) overrides: Vec<Overriding>,
    pub(in crate::config) used: bool,
    /// How it counts, and its overrides too.
    pub(in crate::config) algorithm: Option<Algorithm>,
    pub(super) quota: Option<Quota>,
    /// On which subjects its denials are acted upon, wherever it is used.
    pub(super) enforcement: Option<Enforcement>,
    /// As the file says it, or else as the first route that does.
    pub(super) per: Option<Vec<Source>>,
    /// What was built so far, by what a request without a value gets.
    pub(super) built: Vec<(Missing, Option<Arc<Limit>>)>,
}

/// Other parameters for some ids.
pub(in crate::config) struct Overriding {
    pub(in crate::config) written: Placed<schema::OverrideEntry>,
    pub(super) quota: Option<Quota>,
}

impl Book {
    /// The names of all limits in the file, those included that are in error.
    pub(super) fn names<'s>(&self, sources: &'s Sources) -> Vec<&'s str> {
        let place = self.place.into_iter();
        place.flat_map(|place| sources.keys_at(place)).collect()
    }

    /// Whether a limit may well be there, but for what is in error.
    pub(super) fn may_have(&self, name: &str, sources: &Sources) -> bool {
        let (Some(_), Some(overrides)) = (self.place, &self.overrides) else {
            return true;
        };
        let mut overridden = overrides.iter().flat_map(|it| sources.keys_at(*it));
        overridden.any(|it| it == name) || self.names(sources).contains(&name)
    }

    pub(super) fn find(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|it| it.name.value == name)
    }

    /// What a limit is counted per, where a route says so and the definition does not. Any route
    /// may; whether all agree is seen when they are lowered.
    pub(super) fn learn_per(&mut self, usage: &WordOr<schema::LimitUse>) {
        let WordOr::More(usage) = usage else { return };
        let prefix = self.ipv6_prefix;
        let (Some(per), Some(entry)) = (&usage.per, self.find(&usage.limit)) else {
            return;
        };
        let defined = entry.written.as_ref().is_some_and(|it| it.per.is_some());
        if !defined && entry.per.is_none() {
            let sources = per.0.iter().map(|it| Source::parse(it, prefix));
            let sources: Result<Vec<Source>, _> = sources.collect();
            entry.per = sources.ok().filter(|it| !it.is_empty());
        }
    }

    /// A limit that has overrides, and is perhaps defined nowhere.
    pub(super) fn find_or_add(&mut self, name: &Placed<String>) -> &mut Entry {
        let found = self
            .entries
            .iter()
            .position(|it| it.name.value == name.value);
        let at = found.unwrap_or_else(|| {
            self.entries.push(Entry::undefined(name.clone()));
            self.entries.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "it was found there, or put there")]
        &mut self.entries[at]
    }

    /// All parameters as they are written.
    pub(super) fn parameters(&self) -> Vec<Parameters> {
        self.entries.iter().flat_map(Entry::parameters).collect()
    }
}

impl Entry {
    fn undefined(name: Placed<String>) -> Self {
        Self {
            name,
            written: None,
            overrides: Vec::new(),
            used: false,
            algorithm: Some(Algorithm::Gcra),
            quota: None,
            enforcement: Some(Enforcement::FULL),
            per: None,
            built: Vec::new(),
        }
    }

    /// Whether nothing says yet how it counts, as it is defined nowhere and has no override so far.
    pub(super) fn is_undecided(&self) -> bool {
        self.written.is_none() && self.overrides.is_empty()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.algorithm == Some(Algorithm::InFlight)
    }

    /// Whether it is switched off wherever it is used.
    pub(super) fn is_off(&self) -> bool {
        let enabled = self.written.as_ref().and_then(|it| it.enabled);
        enabled == Some(false)
    }

    /// What all bucket keys of the limit start with.
    pub(super) fn prefix(&self) -> String {
        let id = self.written.as_ref().and_then(|it| it.id);
        id.map_or_else(|| self.name.value.clone(), |id| id.to_string())
    }

    /// Where that is written.
    pub(super) fn prefix_place(&self) -> Place {
        let id = self.written.as_ref().and_then(|it| it.id);
        id.map_or(self.name.place, |id| id.place)
    }

    fn parameters(&self) -> impl Iterator<Item = Parameters> {
        let own = self.written.as_ref();
        let own = own.map(|it| (self.quota, it.count, it.period));
        let overrides = self.overrides.iter();
        let overrides = overrides.map(|it| (it.quota, it.written.count, it.written.period));
        overrides.chain(own).filter_map(|(quota, count, period)| {
            Some(Parameters {
                limit: self.name.value.clone(),
                quota: quota?,
                count: count.map(|it| it.value),
                period: period.map(|it| it.value),
            })
        })
    }

    /// The smallest burst of the limit and its overrides, and where it is written.
    pub(super) fn smallest_burst(&self) -> Option<(std::num::NonZeroU64, Place)> {
        // What has no burst has its count for one.
        let place = |burst: Option<Placed<u64>>, count: Option<Placed<u64>>| {
            burst.or(count).map_or(self.name.place, |it| it.place)
        };
        let own = self.written.as_ref();
        let own = own.map(|it| (self.quota, place(it.burst, it.count)));
        let overrides = self.overrides.iter();
        let overrides = overrides.map(|it| (it.quota, place(it.written.burst, it.written.count)));
        let all = overrides.chain(own);
        all.filter_map(|(quota, place)| Some((quota?.burst(), place)))
            .min_by_key(|(burst, _)| *burst)
    }
}
