//! What may be written of the lists of who is allowed and blocked.

use serde::Deserialize;
use weir_middleware::TreatmentKeys;
use weir_yaml::{Spanned, WordOr};

/// Clients that are let through in any case.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Allow {
    /// Addresses and networks, and `{file: PATH}` for files of them.
    pub(crate) addresses: Option<Vec<Spanned<WordOr<ListFile>>>>,
    /// [Accounts](#account), written as they are or as `hash:` with their hash, and `{file: PATH}`
    /// for files of them.
    pub(crate) accounts: Option<Vec<Spanned<WordOr<ListFile>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Block {
    /// Addresses and networks, and `{file: PATH}` for files of them.
    pub(crate) addresses: Option<Vec<Spanned<WordOr<ListFile>>>>,
    /// [Accounts](#account), written as they are or as `hash:` with their hash, and `{file: PATH}`
    /// for files of them.
    pub(crate) accounts: Option<Vec<Spanned<WordOr<ListFile>>>>,
    /// What blocked clients get. Type: [as for bans](#bans). Default: `reject` with 403.
    pub(crate) on_denied: Option<Spanned<TreatmentKeys>>,
}

/// A file with an entry on each line.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFile {
    /// A file with one entry per line; a `#` at the start of a line or after a blank begins a
    /// comment. Type: path.
    pub(crate) file: Spanned<String>,
}
