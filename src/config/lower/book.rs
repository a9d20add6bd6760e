//! The limits that are defined, before routes use them.

use std::sync::Arc;

use crate::config::schema;
use crate::config::settings::Parameters;
use crate::config::yaml::{Place, Placed, Sources};
use crate::limit::{Algorithm, Quota};
use crate::rules::{Enforcement, HashKey, Limit, Missing, Source};

/// All limits, to be built as routes use them.
pub(in crate::config) struct Book {
    pub(in crate::config) entries: Vec<Entry>,
    /// The place of all definitions; none when there is no usable file of them.
    pub(super) place: Option<Place>,
    pub(super) file: String,
    pub(super) key: HashKey,
    pub(super) ipv6_prefix: u8,
}

/// One limit.
pub(in crate::config) struct Entry {
    pub(in crate::config) name: Placed<String>,
    pub(in crate::config) written: Placed<schema::DefaultLimit>,
    pub(in crate::config) overrides: Vec<Overriding>,
    pub(in crate::config) used: bool,
    /// How it counts, and its overrides too.
    pub(in crate::config) algorithm: Option<Algorithm>,
    pub(super) quota: Option<Quota>,
    /// On which subjects its denials are acted upon, wherever it is used.
    pub(super) enforcement: Option<Enforcement>,
    /// As the file says it, or else as the first route says it.
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

    pub(super) fn find(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|it| it.name.value == name)
    }

    /// All parameters as they are written.
    pub(super) fn parameters(&self) -> Vec<Parameters> {
        self.entries.iter().flat_map(Entry::parameters).collect()
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
                period: period.map(|it| it.value),
            })
        })
    }

    /// The smallest burst of the limit and its overrides, and where it is written.
    pub(super) fn smallest_burst(&self) -> Option<(std::num::NonZeroU64, Place)> {
        // What has no burst has its count for one.
        let place = |burst: Option<Placed<u64>>, count: Placed<u64>| burst.unwrap_or(count).place;
        let own = (self.quota, place(self.written.burst, self.written.count));
        let overrides = self.overrides.iter();
        let overrides = overrides.map(|it| (it.quota, place(it.written.burst, it.written.count)));
        let all = overrides.chain([own]);
        all.filter_map(|(quota, place)| Some((quota?.burst(), place)))
            .min_by_key(|(burst, _)| *burst)
    }
}
