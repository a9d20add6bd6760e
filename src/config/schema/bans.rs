//! `gateway.yaml`: bans, and the lists of who is allowed and blocked.

use std::num::NonZeroU32;

use serde::Deserialize;

use super::routes::{Enforce, Rejection};
use crate::config::duration::Span;
use crate::config::yaml::{OneOrMany, Placed, WordOr};

/// Who is banned, for what, and for how long.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Ban {
    pub(in crate::config) per: OneOrMany<Placed<String>>,
    pub(in crate::config) strikes: Placed<Strikes>,
    #[serde(rename = "for")]
    pub(in crate::config) length: Placed<Span>,
    pub(in crate::config) factor: Option<Placed<NonZeroU32>>,
    pub(in crate::config) max: Option<Placed<Span>>,
    pub(in crate::config) forget: Option<Placed<Span>>,
    pub(in crate::config) on_denied: Option<Placed<Treatment>>,
    pub(in crate::config) enforce: Option<Placed<Enforce>>,
}

/// What counts as a strike, and how many in how long ban.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Strikes {
    pub(in crate::config) limits: Option<OneOrMany<Placed<String>>>,
    pub(in crate::config) status: Option<Placed<OneOrMany<Placed<String>>>>,
    pub(in crate::config) paths: Option<OneOrMany<Placed<String>>>,
    pub(in crate::config) count: Placed<u64>,
    pub(in crate::config) period: Placed<Span>,
}

/// What a banned or blocked request gets.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Treatment {
    Reject(Option<Rejection>),
    Shadow(Placed<String>),
    Divert(Placed<String>),
    Tarpit(Option<Tarpit>),
    Drop,
}

/// How requests are held.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Tarpit {
    pub(in crate::config) hold: Option<Placed<Span>>,
    pub(in crate::config) most: Option<Placed<NonZeroU32>>,
}

/// Who is let through in any case.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Allow {
    pub(in crate::config) addresses: Option<Vec<Placed<WordOr<ListFile>>>>,
    pub(in crate::config) accounts: Option<Vec<Placed<WordOr<ListFile>>>>,
}

/// Who is kept out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Block {
    pub(in crate::config) addresses: Option<Vec<Placed<WordOr<ListFile>>>>,
    pub(in crate::config) accounts: Option<Vec<Placed<WordOr<ListFile>>>>,
    pub(in crate::config) on_denied: Option<Placed<Treatment>>,
}

/// A file with an entry on each line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ListFile {
    pub(in crate::config) file: Placed<String>,
}
