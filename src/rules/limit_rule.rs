//! Limits, and the bucket that a request takes from.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use thiserror::Error;

use crate::limit::{BucketKey, Quota};
use crate::rules::override_id::{self, IdError};
use crate::rules::part::Parts;
use crate::rules::{Facts, HashKey, Source};

const MAX_NAME_BYTES: usize = 64;

/// What to do with a request that lacks a value that a limit counts per.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Missing {
    /// The limit does not count it.
    #[default]
    Skip,
    /// The request is denied.
    Deny,
}

/// Other parameters of a limit for one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The quota in place of the limit's.
    pub quota: Quota,
    /// Why it is there, in the operator's words.
    pub comment: Option<String>,
    /// The id as it is written.
    pub id: String,
}

/// Why a name cannot name a limit, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LimitNameError {
    /// The name is empty.
    #[error("a name is needed, such as RequestsPerAddress")]
    Empty,
    /// The name is longer than 64 bytes.
    #[error("the name has {0} bytes; shorten it to 64")]
    TooLong(usize),
    /// The name has a character that would break header fields or bucket keys.
    #[error("{0:?} cannot stand in a name; write it in letters, digits, '-' and '_'")]
    Character(char),
}

/// A named rule: how much, counted per what.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The name and a colon, as all keys of the limit start.
    prefix: String,
    per: Vec<Source>,
    quota: Quota,
    missing: Missing,
    key: HashKey,
    /// By subject.
    overrides: HashMap<Box<str>, Override>,
}

impl Limit {
    /// A limit without overrides. What may be secret is hashed with `key`, which must be that of
    /// the [`AccountRules`](crate::rules::AccountRules). Counted per nothing, it is counted per
    /// [`Source::Global`].
    ///
    /// # Errors
    /// When the name cannot stand in header fields and bucket keys.
    pub fn new(
        name: &str,
        mut per: Vec<Source>,
        quota: Quota,
        missing: Missing,
        key: HashKey,
    ) -> Result<Self, LimitNameError> {
        check_name(name)?;
        if per.is_empty() {
            per.push(Source::Global);
        }
        Ok(Self {
            prefix: format!("{name}:"),
            per,
            quota,
            missing,
            key,
            overrides: HashMap::new(),
        })
    }

    /// Gives the subject `id` other parameters.
    ///
    /// # Errors
    /// When the id has not the form that the limit's sources ask for, or is overridden already.
    pub fn add_override(&mut self, id: &str, parameters: Override) -> Result<(), IdError> {
        let mut subject = BucketKey::default();
        override_id::write_subject(&self.per, id, &self.key, &mut subject)?;
        match self.overrides.entry(subject.as_str().into()) {
            Entry::Vacant(vacant) => {
                vacant.insert(parameters);
                Ok(())
            }
            Entry::Occupied(earlier) => Err(IdError::Duplicate {
                id: id.to_owned(),
                earlier: earlier.get().id.clone(),
            }),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.prefix.strip_suffix(':').unwrap_or(&self.prefix)
    }

    /// What the limit is counted per.
    pub fn per(&self) -> &[Source] {
        &self.per
    }

    /// The quota of subjects that are not overridden.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// What becomes of a request that lacks a value.
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// The overrides, in no order.
    pub fn overrides(&self) -> impl Iterator<Item = &Override> {
        self.overrides.values()
    }

    /// How the ids of overrides are written, by example.
    pub fn id_form(&self) -> String {
        override_id::form(&self.per)
    }

    /// The bucket of a subject, whose id is written as those of overrides are.
    ///
    /// # Errors
    /// When the id has not the form that the limit's sources ask for.
    pub fn bucket_of(&self, id: &str) -> Result<BucketKey, IdError> {
        let mut key = BucketKey::default();
        key.push_str(&self.prefix);
        override_id::write_subject(&self.per, id, &self.key, &mut key)?;
        Ok(key)
    }

    /// The override of a bucket of this limit.
    pub fn override_for(&self, key: &BucketKey) -> Option<&Override> {
        if self.overrides.is_empty() {
            return None;
        }
        let subject = key.as_str().strip_prefix(self.prefix.as_str())?;
        self.overrides.get(subject)
    }

    /// The quota of a bucket of this limit: its override's, or the limit's own.
    pub fn quota_for(&self, key: &BucketKey) -> Quota {
        self.override_for(key)
            .map_or(self.quota, |overridden| overridden.quota)
    }

    /// What each source yields for a request, as bucket keys show it, to explain a decision.
    pub fn parts(&self, facts: &Facts<'_>) -> Vec<(&Source, Option<String>)> {
        let shown = |source| {
            let mut key = BucketKey::default();
            let yielded = self.parts_of(&mut key).write(source, facts);
            (source, yielded.map(|()| key.to_string()))
        };
        self.per.iter().map(shown).collect()
    }

    /// The bucket of a request, or the first source that it has no value for.
    pub(super) fn bucket(&self, facts: &Facts<'_>) -> Result<BucketKey, &Source> {
        let mut key = BucketKey::default();
        key.push_str(&self.prefix);
        for (index, source) in self.per.iter().enumerate() {
            if index > 0 {
                key.push_str(":");
            }
            let mut parts = self.parts_of(&mut key);
            parts.write(source, facts).ok_or(source)?;
        }
        Ok(key)
    }

    fn parts_of<'k>(&'k self, key: &'k mut BucketKey) -> Parts<'k> {
        Parts {
            key,
            hash_key: &self.key,
            composite: self.per.len() > 1,
        }
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
