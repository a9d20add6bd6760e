//! What may be written of bans.

use std::num::NonZeroU32;

use serde::Deserialize;
use weir_middleware::TreatmentKeys;
use weir_rules::Enforcement;
use weir_yaml::{HumanDuration, OneOrMany, Required, Spanned};

use crate::limits::StatusList;

/// Which clients are banned, for what, and for how long.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Ban {
    /// What it bans, as for [limits](#defaultsyaml); a request without a value is never banned.
    /// Type: source or list of them.
    #[cfg_attr(test, schemars(extend("examples" = crate::tests::json_schema::SOURCES)))]
    pub(crate) per: Spanned<OneOrMany<Spanned<String>>>,
    /// What earns a strike, and how many strikes within how long cause a ban. Without it, it bans [by
    /// hand](ADMIN_API.md#bans) alone. Default: none.
    pub(crate) strikes: Option<Spanned<Strikes>>,
    /// How long the first ban is, and one by hand that does not say, at least `1s`.
    #[serde(rename = "for")]
    pub(crate) length: Spanned<Required<HumanDuration>>,
    /// How many times longer each ban is than the one before. Default: `1`.
    pub(crate) factor: Option<Spanned<NonZeroU32>>,
    /// For bans that grow: the longest ban. Default: `24h`.
    pub(crate) max: Option<Spanned<HumanDuration>>,
    /// For bans that grow: how long after the start of its ban an offence is forgotten, one by one;
    /// longer than `for`. Default: the longest.
    pub(crate) forget: Option<Spanned<HumanDuration>>,
    /// What banned clients get. Type: below. Default: `reject` with 429.
    pub(crate) on_denied: Option<Spanned<TreatmentKeys>>,
    /// Whether the ban is enforced: [dry runs](#dry-runs).
    /// Default: `true`.
    pub(crate) enforce: Option<Spanned<Enforcement>>,
}

/// What counts as a strike, and how many in how long ban.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Strikes {
    /// A request that one of these limits denies is a strike if it is told no wait, or if the
    /// subject was told as many waits as `workers` says that are not over yet. Type: name or list
    /// of them.
    pub(crate) limits: Option<OneOrMany<Spanned<String>>>,
    /// For `limits`: how many workers that wait may share a subject, up to 1000; see
    /// [below](#clients-that-wait). With `0` every denial is a strike. Default: `20`.
    pub(crate) workers: Option<Spanned<u64>>,
    /// A request that passes and gets a response with such a status is a strike: `404`, `4xx`,
    /// `500-503`. The status is the upstream's, or Weir's if there is no route (404) or no server
    /// (502 to 504).
    pub(crate) status: Option<StatusList>,
    /// A request for one of these paths, [in any spelling](#routes) and case, is a strike, whatever
    /// its response; `/.git/*` includes `/.git`. Type: path or list of them.
    pub(crate) paths: Option<OneOrMany<Spanned<String>>>,
    /// The number of strikes that cause a ban; it begins with the last of them.
    pub(crate) count: Spanned<Required<u64>>,
    /// The time within which they count; strikes are forgotten one by one, as units of a `gcra`
    /// limit come back. A last strike that comes less than a second (or less than an eighth of
    /// `period` / `count`) before one is forgotten begins no ban, as gateways' clocks may differ by
    /// so much.
    pub(crate) period: Spanned<Required<HumanDuration>>,
}
