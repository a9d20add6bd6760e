//! The limits that are defined, before routes use them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::diagnostics::{Lowered, Reported};
use crate::config::schema;
use crate::config::settings::Parameters;
use crate::config::yaml::{Sources, Span, Spanned, WordOr};
use crate::limit::{Algorithm, Quota};
use crate::rules::{Enforcement, HashKey, KeySource, Limit, Missing};

/// All limits, to be built as routes use them.
pub(in crate::config) struct LimitTable {
    pub(in crate::config) entries: Vec<LimitDef>,
    /// Where in `entries` the limit of a name is.
    pub(super) by_name: HashMap<String, usize>,
    /// The place of all definitions; none when there is no file of them.
    pub(super) span: Lowered<Option<Span>>,
    /// The place of all overrides; none when there is no file of them.
    pub(super) overrides: Lowered<Option<Span>>,
    pub(in crate::config) file: String,
    pub(super) key: HashKey,
    pub(super) ipv6_prefix: u8,
}

/// One limit.
pub(in crate::config) struct LimitDef {
    pub(in crate::config) name: Spanned<String>,
    /// None when it is only overridden: then subjects with an override alone are counted.
    pub(in crate::config) written: Option<Spanned<schema::DefaultLimit>>,
    pub(in crate::config) overrides: Vec<Overriding>,
    pub(in crate::config) used: bool,
    /// How it counts, and its overrides too.
    pub(in crate::config) algorithm: Lowered<Algorithm>,
    /// None when it is only overridden.
    pub(super) quota: Lowered<Option<Quota>>,
    /// On which subjects its denials are acted upon, wherever it is used.
    pub(super) enforcement: Lowered<Enforcement>,
    /// As the file says it, or else as the first route that does.
    pub(super) per: Lowered<Option<Vec<KeySource>>>,
    /// What was built so far, by what a request without a value gets.
    pub(super) built: Vec<(Missing, Lowered<Arc<Limit>>)>,
}

/// Other parameters for some ids.
pub(in crate::config) struct Overriding {
    pub(in crate::config) written: Spanned<schema::OverrideEntry>,
    pub(super) quota: Lowered<Quota>,
}

impl LimitTable {
    /// The place of all definitions, if there is a usable file of them.
    pub(in crate::config) fn span(&self) -> Option<Span> {
        self.span.ok().flatten()
    }

    /// The proof that a limit is there, but in error.
    pub(super) fn definition_in_error(&self, name: &str, sources: &Sources) -> Option<Reported> {
        sources.key_in_error(self.span()?, &[name])
    }

    /// The proof that a limit may well be there, but for what is in error.
    pub(super) fn may_have(&self, name: &str, sources: &Sources) -> Option<Reported> {
        let files = self.span.err().or(self.overrides.err());
        let in_overrides = || sources.key_of_item_in_error(self.overrides.ok()??, name);
        let defined = || self.definition_in_error(name, sources);
        files.or_else(defined).or_else(in_overrides)
    }

    pub(super) fn find(&self, name: &str) -> Option<&LimitDef> {
        self.entries.get(*self.by_name.get(name)?)
    }

    fn find_mut(&mut self, name: &str) -> Option<&mut LimitDef> {
        self.entries.get_mut(*self.by_name.get(name)?)
    }

    /// What a limit is counted per, where a route says so and the definition does not. Any route
    /// may; whether all agree is seen when they are lowered.
    pub(super) fn learn_per(&mut self, usage: &WordOr<schema::LimitUse>) {
        let WordOr::More(usage) = usage else { return };
        let prefix = self.ipv6_prefix;
        let (Some(per), Some(entry)) = (&usage.per, self.find_mut(&usage.limit)) else {
            return;
        };
        let defined = entry.written.as_ref().is_some_and(|it| it.per.is_some());
        if !defined && entry.per == Ok(None) {
            let sources = per.0.iter().map(|it| KeySource::parse(it, prefix));
            let sources: Result<Vec<KeySource>, _> = sources.collect();
            entry.per = Ok(sources.ok().filter(|it| !it.is_empty()));
        }
    }

    /// A limit that has overrides, and is perhaps defined nowhere.
    pub(super) fn find_or_add(&mut self, name: &Spanned<String>) -> &mut LimitDef {
        let next = self.entries.len();
        let at = *self.by_name.entry(name.value.clone()).or_insert(next);
        if at == next {
            self.entries.push(LimitDef::undefined(name.clone()));
        }
        #[expect(clippy::indexing_slicing, reason = "it was found there, or put there")]
        &mut self.entries[at]
    }

    /// All parameters as they are written.
    pub(super) fn parameters(&self) -> Vec<Parameters> {
        self.entries.iter().flat_map(LimitDef::parameters).collect()
    }
}

impl LimitDef {
    fn undefined(name: Spanned<String>) -> Self {
        Self {
            name,
            written: None,
            overrides: Vec::new(),
            used: false,
            algorithm: Ok(Algorithm::Gcra),
            quota: Ok(None),
            enforcement: Ok(Enforcement::FULL),
            per: Ok(None),
            built: Vec::new(),
        }
    }

    /// Whether it is defined nowhere and has no override, so far, so that nothing says how it counts.
    pub(in crate::config) fn is_nowhere(&self) -> bool {
        self.written.is_none() && self.overrides.is_empty()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.algorithm == Ok(Algorithm::InFlight)
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
    pub(super) fn prefix_span(&self) -> Span {
        let id = self.written.as_ref().and_then(|it| it.id);
        id.map_or(self.name.span, |id| id.span)
    }

    fn parameters(&self) -> impl Iterator<Item = Parameters> {
        let own = self.written.as_ref();
        let own = own.map(|it| (self.quota.ok().flatten(), it.count, it.period));
        let overrides = self.overrides.iter();
        let overrides = overrides.map(|it| (it.quota.ok(), it.written.count, it.written.period));
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
    pub(super) fn smallest_burst(&self) -> Option<(std::num::NonZeroU64, Span)> {
        // What has no burst has its count for one.
        let span = |burst: Option<Spanned<u64>>, count: Option<Spanned<u64>>| {
            burst.or(count).map_or(self.name.span, |it| it.span)
        };
        let own = self.written.as_ref();
        let own = own.map(|it| (self.quota.ok().flatten(), span(it.burst, it.count)));
        let overrides = self.overrides.iter();
        let overrides =
            overrides.map(|it| (it.quota.ok(), span(it.written.burst, it.written.count)));
        let all = overrides.chain(own);
        all.filter_map(|(quota, span)| Some((quota?.burst(), span)))
            .min_by_key(|(burst, _)| *burst)
    }
}
