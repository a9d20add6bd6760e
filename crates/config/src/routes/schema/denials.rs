//! What may be written of what denied requests get, and of decoys.

use std::num::NonZeroU32;

use serde::Deserialize;
use weir_yaml::{Entries, FieldName, HumanDuration, ResponseStatus, Spanned, WordOr};

/// What a request that a limit denies gets.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnDenied {
    Reject(Option<Rejection>),
    Shadow(Spanned<String>),
    Delay(Spanned<WordOr<Delay>>),
}

/// How requests wait for their turn in place of a denial, and what those get that may not wait.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Delay {
    /// How long a request may wait, at most `2s`.
    pub(crate) up_to: Spanned<HumanDuration>,
    /// How many requests of the route may wait at the same time in this process; one more is
    /// denied. Default: `1000`.
    pub(crate) max_requests: Option<NonZeroU32>,
    /// Whether responses say how long their requests waited: `Server-Timing:
    /// ratelimit;dur=MILLISECONDS`. Default: `false`.
    pub(crate) server_timing: Option<bool>,
    /// What a request gets that may not wait. Type: `reject`, `{reject: ...}` or `{shadow: ...}`.
    /// Default: `reject`.
    pub(crate) otherwise: Option<Box<Spanned<OnDenied>>>,
}

/// An answer to take the place of the problem document.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Rejection {
    /// The status. Default: `429` for a denial, `403` for a blocked client, `200`
    /// for a response of a route.
    pub(crate) status: Option<Spanned<ResponseStatus>>,
    /// Additional headers. The body of a route's `response` is `text/plain; charset=utf-8` unless
    /// they say otherwise.
    pub(crate) headers: Option<Entries<Spanned<String>, FieldName>>,
    /// The body, which `HEAD` does not get. Default: a problem document; empty for a response of a
    /// route.
    pub(crate) body: Option<String>,
}

/// The answer that a shadow-banned request gets.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Decoy {
    /// The status, which should be that of a real response. Default: `200`.
    pub(crate) status: Option<Spanned<ResponseStatus>>,
    /// Headers with fixed values, such as `content-type`.
    pub(crate) headers: Option<Entries<Spanned<String>, FieldName>>,
    /// The body. Type: template. Default: `""`.
    pub(crate) body: Option<Spanned<String>>,
}
