//! Limits, and the bucket that a request takes from.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use thiserror::Error;

use crate::limit::{Quota, Transaction};
use crate::rules::{Facts, HashKey, Source};

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

/// Why a name cannot name a limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LimitNameError {
    /// The name is empty.
    #[error("a limit needs a name")]
    Empty,
    /// The name is longer than 64 bytes.
    #[error("the name has {0} bytes; shorten it to at most 64")]
    TooLong(usize),
    /// The name has a character that would break header fields or bucket keys.
    #[error("the name has a {0:?}; use printable ASCII without '\"', '\\' and ':'")]
    Character(char),
}

/// Why an id cannot be overridden, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdError {
    /// The id is empty.
    #[error("the id is empty")]
    Empty,
}

/// A named rule: how much, counted per what.
#[derive(Clone, Debug)]
pub struct Limit {
    name: String,
    per: Vec<Source>,
    quota: Quota,
    missing: Missing,
    key: HashKey,
    overrides: HashMap<String, Override>,
}

impl Limit {
    /// A limit without overrides.
    ///
    /// # Errors
    /// When the name cannot stand in header fields and bucket keys.
    pub fn new(
        name: &str,
        per: Vec<Source>,
        quota: Quota,
        missing: Missing,
        key: HashKey,
    ) -> Result<Self, LimitNameError> {
        Ok(Self {
            name: name.to_owned(),
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
        if id.is_empty() {
            return Err(IdError::Empty);
        }
        let _ = &self.key;
        self.overrides.insert(id.to_owned(), parameters);
        Ok(())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
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
}

/// A limit as a route uses it.
#[derive(Clone, Debug)]
pub struct LimitUse {
    /// The limit.
    pub limit: Arc<Limit>,
    /// Units that a request takes.
    pub cost: NonZeroU64,
}

/// Whom a limit counts a request against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject<'l> {
    /// Against this bucket.
    Counted {
        /// What is asked of the bucket.
        transaction: Transaction,
        /// The override that applies.
        overridden: Option<&'l Override>,
    },
    /// Against none: the request has no value for this source.
    Skipped(&'l Source),
    /// The request is to be denied: it has no value for this source.
    Missing(&'l Source),
}

impl LimitUse {
    /// Whom the request counts against.
    pub fn subject(&self, facts: &Facts<'_>) -> Subject<'_> {
        let _ = facts;
        let key = self.limit.name.as_str().into();
        Subject::Counted {
            transaction: Transaction::new(key, self.limit.quota, self.cost),
            overridden: None,
        }
    }
}
