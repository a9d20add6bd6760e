//! What may be written of what a route does beside forwarding.

use serde::Deserialize;

use crate::config::yaml::{Entries, OneOrMany, Spanned};

/// How the path is rewritten.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rewrite {
    pub(crate) strip_prefix: Option<Spanned<String>>,
    pub(crate) add_prefix: Option<Spanned<String>>,
}

/// Where clients are sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redirect {
    pub(crate) to: Spanned<String>,
    pub(crate) status: Option<Spanned<u16>>,
}

/// What is changed about headers. `always` is for those of responses alone.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderEdits {
    pub(crate) set: Option<Entries<Spanned<String>>>,
    pub(crate) add: Option<Entries<Spanned<String>>>,
    pub(crate) remove: Option<OneOrMany<Spanned<String>>>,
    pub(crate) always: Option<Spanned<bool>>,
}
