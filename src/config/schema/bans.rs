//! `gateway.yaml`: bans, and the lists of who is allowed and blocked.

use std::num::NonZeroU32;

use serde::Deserialize;

use super::routes::{Enforce, Rejection};
use crate::config::duration::HumanDuration;
use crate::config::yaml::{OneOrMany, Spanned, WordOr};

/// Who is banned, for what, and for how long.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Ban {
    pub(in crate::config) per: OneOrMany<Spanned<String>>,
    pub(in crate::config) strikes: Spanned<Strikes>,
    #[serde(rename = "for")]
    pub(in crate::config) length: Spanned<HumanDuration>,
    pub(in crate::config) factor: Option<Spanned<NonZeroU32>>,
    pub(in crate::config) max: Option<Spanned<HumanDuration>>,
    pub(in crate::config) forget: Option<Spanned<HumanDuration>>,
    pub(in crate::config) on_denied: Option<Spanned<Treatment>>,
    pub(in crate::config) enforce: Option<Spanned<Enforce>>,
}

/// What counts as a strike, and how many in how long ban.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Strikes {
    pub(in crate::config) limits: Option<OneOrMany<Spanned<String>>>,
    pub(in crate::config) status: Option<Spanned<OneOrMany<Spanned<String>>>>,
    pub(in crate::config) paths: Option<OneOrMany<Spanned<String>>>,
    pub(in crate::config) count: Spanned<u64>,
    pub(in crate::config) period: Spanned<HumanDuration>,
}

/// What a banned or blocked request gets.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Treatment {
    Reject(Option<Rejection>),
    Shadow(Spanned<String>),
    Divert(Spanned<String>),
    Tarpit(Option<Tarpit>),
    Drop,
}

/// How requests are held.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Tarpit {
    pub(in crate::config) hold: Option<Spanned<HumanDuration>>,
    pub(in crate::config) most: Option<Spanned<NonZeroU32>>,
}

/// Who is let through in any case.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Allow {
    pub(in crate::config) addresses: Option<Vec<Spanned<WordOr<ListFile>>>>,
    pub(in crate::config) accounts: Option<Vec<Spanned<WordOr<ListFile>>>>,
}

/// Who is kept out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Block {
    pub(in crate::config) addresses: Option<Vec<Spanned<WordOr<ListFile>>>>,
    pub(in crate::config) accounts: Option<Vec<Spanned<WordOr<ListFile>>>>,
    pub(in crate::config) on_denied: Option<Spanned<Treatment>>,
}

/// A file with an entry on each line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ListFile {
    pub(in crate::config) file: Spanned<String>,
}
