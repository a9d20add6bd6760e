//! What may be written of bans, and of the lists of who is allowed and blocked.

use std::num::NonZeroU32;

use serde::Deserialize;

use crate::limits::schema::Enforce;
use crate::routes::schema::Rejection;
use crate::values::HumanDuration;
use crate::yaml::{OneOrMany, Spanned, WordOr};

/// Which clients are banned, for what, and for how long.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Ban {
    pub(crate) per: OneOrMany<Spanned<String>>,
    pub(crate) strikes: Spanned<Strikes>,
    #[serde(rename = "for")]
    pub(crate) length: Spanned<HumanDuration>,
    pub(crate) factor: Option<Spanned<NonZeroU32>>,
    pub(crate) max: Option<Spanned<HumanDuration>>,
    pub(crate) forget: Option<Spanned<HumanDuration>>,
    pub(crate) on_denied: Option<Spanned<Treatment>>,
    pub(crate) enforce: Option<Spanned<Enforce>>,
}

/// What counts as a strike, and how many in how long ban.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Strikes {
    pub(crate) limits: Option<OneOrMany<Spanned<String>>>,
    pub(crate) status: Option<Spanned<OneOrMany<Spanned<String>>>>,
    pub(crate) paths: Option<OneOrMany<Spanned<String>>>,
    pub(crate) count: Spanned<u64>,
    pub(crate) period: Spanned<HumanDuration>,
}

/// What a banned or blocked request gets.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Treatment {
    Reject(Option<Rejection>),
    Shadow(Spanned<String>),
    Divert(Spanned<String>),
    Tarpit(Option<Tarpit>),
    Drop,
}

/// How requests are held.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Tarpit {
    pub(crate) hold: Option<Spanned<HumanDuration>>,
    pub(crate) most: Option<Spanned<NonZeroU32>>,
}

/// Clients that are let through in any case.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Allow {
    pub(crate) addresses: Option<Vec<Spanned<WordOr<ListFile>>>>,
    pub(crate) accounts: Option<Vec<Spanned<WordOr<ListFile>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Block {
    pub(crate) addresses: Option<Vec<Spanned<WordOr<ListFile>>>>,
    pub(crate) accounts: Option<Vec<Spanned<WordOr<ListFile>>>>,
    pub(crate) on_denied: Option<Spanned<Treatment>>,
}

/// A file with an entry on each line.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFile {
    /// A file with an entry on each line, which is read again when it changes.
    pub(crate) file: Spanned<String>,
}
