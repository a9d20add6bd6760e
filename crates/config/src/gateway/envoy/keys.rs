//! The keys of `decide.envoy`.

use serde::Deserialize;
use weir_yaml::{Spanned, WordOr};

use crate::limits::schema::LimitUse;

/// The descriptors of a domain of Envoy's rate limit service.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct EnvoyDomain {
    /// As Envoy's filter names it; a call of another domain is not limited. Type: name.
    pub(crate) domain: Spanned<String>,
    /// The descriptors that are limited. Type: list of `{key, value, limit, descriptors}`.
    pub(crate) descriptors: Vec<Spanned<EnvoyDescriptor>>,
}

/// What holds for an entry of a descriptor.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct EnvoyDescriptor {
    /// The key of the entry. Type: name.
    pub(crate) key: Spanned<String>,
    /// Its value, or how it begins, with a `*` at the end. Type: text. Default: any.
    pub(crate) value: Option<Spanned<String>>,
    /// The limit for descriptors that end with the entry. Type: name or [keys](#routes).
    /// Default: none.
    pub(crate) limit: Option<Spanned<WordOr<LimitUse>>>,
    /// The same for the entry behind it. Type: list of `{key, value, limit, descriptors}`. Default:
    /// none.
    #[serde(default)]
    pub(crate) descriptors: Vec<Spanned<EnvoyDescriptor>>,
}
