//! The keys of `priorities`. Those of `concurrency` and `overload` are beside what they configure.

use serde::Deserialize;

use crate::access::schema::Allow;

/// Clients by how much their requests matter.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Priorities {
    /// Clients whose requests are shed first, on all routes. Type: `{addresses, accounts}`, as of
    /// [`allow`](#allow-and-block). Default: none.
    pub(crate) low: Option<Allow>,
    /// Clients whose requests have at least this priority. Type: the same. Default: none.
    pub(crate) high: Option<Allow>,
    /// Clients whose requests are shed last. Type: the same. Default: none.
    pub(crate) critical: Option<Allow>,
}
