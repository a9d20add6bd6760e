//! Limits, and the bucket that a request takes from.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use thiserror::Error;
use weir_http::address::Nat64Prefixes;
use weir_limit::time::Timestamp;
use weir_limit::{BucketKey, Quota};

use crate::key_parts::KeySchema;
use crate::overrides::{IdSubject, Overrides, RequestSubject, Wildcard};
use crate::{
    AccountWildcards, HashKey, IdError, IdWarning, KeySource, Override, OverrideScope,
    RequestAttributes,
};

const MAX_NAME_BYTES: usize = 64;

/// The treatment of requests that lack a value that a limit counts per.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Missing {
    /// The limit does not count it.
    #[default]
    Skip,
    /// The request is denied.
    Deny,
}

/// Why a name cannot name a limit, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LimitNameError {
    /// The name is empty.
    #[error("a limit needs a name, such as RequestsPerAddress")]
    Empty,
    /// The name is longer than 64 bytes.
    #[error("the name has {0} bytes; shorten it to 64")]
    TooLong(usize),
    /// The name has a character that would break headers or bucket keys.
    #[error("{0:?} cannot stand in a name; write it in letters, digits, '-' and '_'")]
    Character(char),
}

/// A named rule: how much, counted per what.
#[derive(Clone, Debug)]
pub struct Limit {
    name: String,
    /// The name, or the number that stands for it, and a colon: so all keys of the limit start.
    prefix: String,
    schema: KeySchema,
    /// None when only subjects with an override are counted.
    quota: Option<Quota>,
    missing: Missing,
    /// None where no subject has other parameters.
    overrides: Option<Box<Overrides>>,
}

impl Limit {
    /// A limit without overrides. What may be secret is hashed with `key`, which must be that of
    /// the [`AccountRules`](crate::AccountRules). Counted per nothing, it is counted per
    /// [`KeySource::Global`]. Without a quota it counts those subjects only that have an override.
    ///
    /// # Errors
    /// When the name cannot stand in headers and bucket keys.
    pub fn new(
        name: &str,
        per: Vec<KeySource>,
        quota: impl Into<Option<Quota>>,
        missing: Missing,
        key: HashKey,
    ) -> Result<Self, LimitNameError> {
        check_name(name)?;
        Ok(Self {
            name: name.to_owned(),
            prefix: format!("{name}:"),
            schema: KeySchema::new(per, key),
            quota: quota.into(),
            missing,
            overrides: None,
        })
    }

    /// Takes addresses with the prefixes of these translators for those of IPv4, in requests and in
    /// ids.
    #[must_use]
    pub fn with_nat64_prefixes(mut self, prefixes: Nat64Prefixes) -> Self {
        self.schema.nat64 = prefixes;
        self
    }

    /// Puts a number in the place of the name in bucket keys. They are shorter then, and stay the
    /// same if the name changes. No other limit may have the same number, or have it for its name.
    #[must_use]
    pub fn with_id(self, id: u64) -> Self {
        Self {
            prefix: format!("{id}:"),
            ..self
        }
    }

    /// Puts the rate beside the name in bucket keys, for a limit whose name was not chosen: another
    /// of the same name has other buckets.
    #[must_use]
    pub fn with_rate_in_keys(self) -> Self {
        let rate = |quota: Quota| (quota.burst().get(), quota.emission_interval().get());
        let (burst, interval) = self.quota.map_or((0, 0), rate);
        Self {
            prefix: format!("{}/{burst}/{interval}:", self.name),
            ..self
        }
    }

    /// Sets the quota of subjects that are not overridden.
    #[must_use]
    pub fn with_quota(self, quota: Quota) -> Self {
        Self {
            quota: Some(quota),
            ..self
        }
    }

    /// Adds an override for the subjects that its id stands for.
    ///
    /// Where accounts are counted and the id has a wildcard for them, the
    /// [`AccountRules`](crate::AccountRules) must know of it.
    ///
    /// # Errors
    /// When the id has not the form that the limit's sources ask for, or is overridden already.
    /// Only an override by the admin API may stand over one of the configuration.
    pub fn add_override(&mut self, added: impl Into<Arc<Override>>) -> Result<(), IdError> {
        let added = added.into();
        let pattern = self.schema.pattern(&added.id)?;
        let result = (self.overrides.get_or_insert_default()).add(pattern, Arc::clone(&added));
        result.map_err(|earlier| IdError::Duplicate {
            id: added.id.clone(),
            earlier: earlier.id.clone(),
        })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The sources that the limit is counted per.
    pub fn per(&self) -> &[KeySource] {
        &self.schema.per
    }

    /// The beginning of the keys of all its buckets.
    pub fn key_prefix(&self) -> &str {
        &self.prefix
    }

    /// The quota of subjects that are not overridden; none when those are not counted.
    pub fn quota(&self) -> Option<Quota> {
        self.quota
    }

    /// The treatment of requests that lack a value.
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// The overrides, in no order.
    pub fn overrides(&self) -> impl Iterator<Item = &Override> {
        self.overrides_at(Timestamp::default())
            .map(|(known, _)| known)
    }

    /// The overrides, in no order, and whether they are in force: neither those that have ended,
    /// nor those that one by the admin API replaces.
    pub fn overrides_at(&self, now: Timestamp) -> impl Iterator<Item = (&Override, bool)> {
        let overrides = self.overrides.iter();
        overrides.flat_map(move |overrides| overrides.iter(now))
    }

    /// How an override of this limit covers more than one subject.
    pub fn scope_of(&self, overridden: &Override) -> OverrideScope {
        self.schema.scope(&overridden.id)
    }

    fn wildcards_of(&self, source: &KeySource) -> Vec<&Wildcard> {
        let part = self.per().iter().position(|known| known == source);
        let overrides = self.overrides.as_ref().zip(part);
        let wildcards = overrides.map(|(overrides, part)| overrides.wildcards_of(part));
        wildcards.unwrap_or_default()
    }

    /// Whether an override has a wildcard for names that are known by their hashes alone.
    fn wildcards_of_hashed(&self) -> bool {
        let mut hashed = self.per().iter().filter(|source| source.is_hashed());
        hashed.any(|source| !self.wildcards_of(source).is_empty())
    }

    /// The bucket of a subject, whose id is written as those of overrides are.
    ///
    /// # Errors
    /// When the id has not the form that the limit's sources ask for.
    pub fn bucket_of(&self, id: &str) -> Result<BucketKey, IdError> {
        let mut key = BucketKey::from(&*self.prefix);
        self.schema.write_id(id, &mut key)?;
        Ok(key)
    }

    /// The id by which operators name the subject of a bucket, with hashes as `hash:`.
    pub fn id_of(&self, key: &str) -> String {
        let subject = key.strip_prefix(&*self.prefix).unwrap_or(key);
        self.schema.id_of(subject)
    }

    /// Why an id may not name the subject that is meant, if so.
    pub fn id_warning(&self, id: &str) -> Option<IdWarning> {
        let by_name = self.wildcards_of_hashed() && self.schema.has_hash(id);
        let wildcards = by_name.then_some(IdWarning::Wildcards);
        self.looks_hashed(id).or(wildcards)
    }

    /// Whether an id is taken for a name, and looks as if a hash were meant.
    pub fn looks_hashed(&self, id: &str) -> Option<IdWarning> {
        self.schema.looks_hashed(id)
    }

    /// The override of a subject, whose id is written as those of overrides are.
    ///
    /// # Errors
    /// When the id has not the form that the limit's sources ask for.
    pub fn override_of(&self, id: &str, now: Timestamp) -> Result<Option<&Override>, IdError> {
        let mut key = BucketKey::from(&*self.prefix);
        let texts = self.schema.write_id(id, &mut key)?;
        let (per, subject) = (self.per(), self.subject_in(&key));
        let parts = || IdSubject {
            per,
            texts,
            subject,
        };
        let overrides = self.overrides.as_ref();
        Ok(overrides.and_then(|overrides| overrides.find(subject, now, parts)))
    }

    /// The override of a request whose bucket has this key.
    pub(super) fn override_for(
        &self,
        key: &BucketKey,
        attributes: &RequestAttributes<'_>,
    ) -> Option<&Override> {
        let overrides = self.overrides.as_ref()?;
        let subject = self.subject_in(key);
        let per = self.per();
        let parts = || RequestSubject {
            per,
            client: self.schema.nat64.canonical(attributes.client),
            attributes,
            subject,
        };
        overrides.find(subject, attributes.now, parts)
    }

    fn subject_in<'k>(&self, key: &'k BucketKey) -> &'k str {
        key.as_str().strip_prefix(&*self.prefix).unwrap_or_default()
    }

    /// The value of each source in a request, as bucket keys show it, to explain a decision.
    pub fn parts(&self, attributes: &RequestAttributes<'_>) -> Vec<(&KeySource, Option<String>)> {
        let shown = |source| {
            let mut key = BucketKey::default();
            let yielded = self.schema.writer(&mut key).write(source, attributes);
            (source, yielded.map(|()| key.to_string()))
        };
        self.per().iter().map(shown).collect()
    }

    /// The bucket of a request, or the first source that it has no value for.
    pub(super) fn bucket(
        &self,
        attributes: &RequestAttributes<'_>,
    ) -> Result<BucketKey, &KeySource> {
        let mut key = BucketKey::default();
        key.push_str(&self.prefix);
        self.schema.write(attributes, &mut key)?;
        Ok(key)
    }
}

impl AccountWildcards {
    /// The wildcards of the overrides of these limits.
    pub fn from_limits<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> Self {
        let of_accounts = |limit: &'l Limit| limit.wildcards_of(&KeySource::Account);
        limits.into_iter().flat_map(of_accounts).collect()
    }
}

/// A limit's name is a string of structured fields (RFC 9651) and the start of bucket keys.
pub(super) fn check_name(name: &str) -> Result<(), LimitNameError> {
    if name.is_empty() {
        return Err(LimitNameError::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(LimitNameError::TooLong(name.len()));
    }
    let breaks = |char: &char| !matches!(char, ' '..='~') || matches!(char, '"' | '\\' | ':');
    name.chars()
        .find(breaks)
        .map_or(Ok(()), |char| Err(LimitNameError::Character(char)))
}
