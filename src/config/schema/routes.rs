//! `gateway.yaml`: routes, upstreams and decoys.

use serde::Deserialize;

use super::limits::MissingValue;
use crate::config::duration::HumanDuration;
use crate::config::yaml::{Entries, OneOrMany, Spanned, WordOr};

/// What holds for every route that does not say otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RouteDefaults {
    pub(in crate::config) limits: Option<Vec<Spanned<WordOr<LimitUse>>>>,
    pub(in crate::config) on_denied: Option<Spanned<OnDenied>>,
    pub(in crate::config) headers: Option<Spanned<OneOrMany<Spanned<HeaderForm>>>>,
    pub(in crate::config) cors: Option<Spanned<Cors>>,
}

/// Requests of one kind, and what becomes of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Route {
    pub(in crate::config) name: Option<Spanned<String>>,
    #[serde(rename = "match")]
    pub(in crate::config) matches: Spanned<Match>,
    pub(in crate::config) upstream: Spanned<String>,
    pub(in crate::config) limits: Option<Vec<Spanned<WordOr<LimitUse>>>>,
    pub(in crate::config) on_denied: Option<Spanned<OnDenied>>,
    pub(in crate::config) headers: Option<Spanned<OneOrMany<Spanned<HeaderForm>>>>,
    pub(in crate::config) enforce: Option<Spanned<Enforce>>,
    pub(in crate::config) cors: Option<Spanned<Cors>>,
}

/// What pages of other origins may do.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Cors {
    pub(in crate::config) origins: Spanned<OneOrMany<Spanned<String>>>,
    pub(in crate::config) credentials: Option<Spanned<bool>>,
    pub(in crate::config) count_preflights: Option<bool>,
}

/// Which requests take a route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Match {
    pub(in crate::config) host: Option<Spanned<String>>,
    pub(in crate::config) path: Option<Spanned<String>>,
    pub(in crate::config) case: Option<PathCase>,
    pub(in crate::config) methods: Option<OneOrMany<Spanned<String>>>,
    pub(in crate::config) headers: Option<Entries<Spanned<String>>>,
}

/// Whether the case of a path matters.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum PathCase {
    Insensitive,
    Sensitive,
}

/// A limit as one route uses it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct LimitUse {
    pub(in crate::config) limit: Spanned<String>,
    pub(in crate::config) enabled: Option<bool>,
    pub(in crate::config) kind: Option<Spanned<UseKind>>,
    pub(in crate::config) cost: Option<Spanned<WordOr<MeasuredCost>>>,
    pub(in crate::config) spend_on: Option<Spanned<Responses>>,
    pub(in crate::config) refund_on: Option<Spanned<Responses>>,
    pub(in crate::config) per: Option<OneOrMany<Spanned<String>>>,
    pub(in crate::config) missing: Option<MissingValue>,
    pub(in crate::config) enforce: Option<Spanned<Enforce>>,
}

/// What a request does with the bucket of a limit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum UseKind {
    CheckAndSpend,
    CheckOnly,
    SpendOnly,
}

/// Where the cost of a request is said.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct MeasuredCost {
    pub(in crate::config) request_header: Option<Spanned<String>>,
    pub(in crate::config) response_header: Option<Spanned<String>>,
    pub(in crate::config) request_bytes: Option<Spanned<String>>,
    pub(in crate::config) default: Option<Spanned<u64>>,
}

/// Responses of some kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Responses {
    pub(in crate::config) status: Spanned<OneOrMany<Spanned<String>>>,
}

/// `true`, `false` or a percentage, as text.
pub(in crate::config) type Enforce = String;

/// What a request that a limit denies gets.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum OnDenied {
    Reject(Option<Rejection>),
    Shadow(Spanned<String>),
}

/// An answer to take the place of the problem document.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Rejection {
    pub(in crate::config) status: Option<Spanned<u16>>,
    pub(in crate::config) headers: Option<Entries<Spanned<String>>>,
    pub(in crate::config) body: Option<String>,
}

/// The forms in which limits are told to clients.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(in crate::config) enum HeaderForm {
    Draft,
    #[serde(rename = "draft-03")]
    Draft03,
    XRatelimit,
    None,
}

/// The app behind the gateway, or something built in.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Upstream {
    pub(in crate::config) servers: Option<Spanned<Vec<Spanned<String>>>>,
    pub(in crate::config) builtin: Option<Builtin>,
    pub(in crate::config) connect_timeout: Option<Spanned<HumanDuration>>,
    pub(in crate::config) response_timeout: Option<Spanned<HumanDuration>>,
    pub(in crate::config) idle_timeout: Option<Spanned<HumanDuration>>,
    pub(in crate::config) host: Option<Spanned<String>>,
}

/// The upstreams that Weir has inside.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Builtin {
    Echo,
}

/// The answer that a shadow-banned request gets.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Decoy {
    pub(in crate::config) status: Option<Spanned<u16>>,
    pub(in crate::config) headers: Option<Entries<Spanned<String>>>,
    pub(in crate::config) body: Option<Spanned<String>>,
}
