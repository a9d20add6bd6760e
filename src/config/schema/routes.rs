//! `gateway.yaml`: routes, upstreams and decoys.

use serde::Deserialize;

use super::limits::MissingValue;
use crate::config::duration::Span;
use crate::config::yaml::{Entries, OneOrMany, Placed, WordOr};

/// What holds for every route that does not say otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RouteDefaults {
    pub(in crate::config) limits: Option<Vec<Placed<WordOr<LimitUse>>>>,
    pub(in crate::config) on_denied: Option<Placed<OnDenied>>,
    pub(in crate::config) headers: Option<Placed<OneOrMany<Placed<HeaderForm>>>>,
}

/// Requests of one kind, and what becomes of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Route {
    pub(in crate::config) name: Option<Placed<String>>,
    #[serde(rename = "match")]
    pub(in crate::config) matches: Placed<Match>,
    pub(in crate::config) upstream: Placed<String>,
    pub(in crate::config) limits: Option<Vec<Placed<WordOr<LimitUse>>>>,
    pub(in crate::config) on_denied: Option<Placed<OnDenied>>,
    pub(in crate::config) headers: Option<Placed<OneOrMany<Placed<HeaderForm>>>>,
    pub(in crate::config) enforce: Option<Placed<Enforce>>,
    pub(in crate::config) cors: Option<Placed<Cors>>,
}

/// What pages of other origins may do.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Cors {
    pub(in crate::config) origins: Placed<OneOrMany<Placed<String>>>,
    pub(in crate::config) credentials: Option<Placed<bool>>,
    pub(in crate::config) count_preflights: Option<bool>,
}

/// Which requests take a route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Match {
    pub(in crate::config) host: Option<Placed<String>>,
    pub(in crate::config) path: Option<Placed<String>>,
    pub(in crate::config) case: Option<PathCase>,
    pub(in crate::config) methods: Option<OneOrMany<Placed<String>>>,
    pub(in crate::config) headers: Option<Entries<Placed<String>>>,
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
    pub(in crate::config) limit: Placed<String>,
    pub(in crate::config) enabled: Option<bool>,
    pub(in crate::config) kind: Option<Placed<UseKind>>,
    pub(in crate::config) cost: Option<Placed<WordOr<MeasuredCost>>>,
    pub(in crate::config) spend_on: Option<Placed<Responses>>,
    pub(in crate::config) refund_on: Option<Placed<Responses>>,
    pub(in crate::config) per: Option<OneOrMany<Placed<String>>>,
    pub(in crate::config) missing: Option<MissingValue>,
    pub(in crate::config) enforce: Option<Placed<Enforce>>,
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
    pub(in crate::config) request_header: Option<Placed<String>>,
    pub(in crate::config) response_header: Option<Placed<String>>,
    pub(in crate::config) request_bytes: Option<Placed<String>>,
    pub(in crate::config) default: Option<Placed<u64>>,
}

/// Responses of some kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Responses {
    pub(in crate::config) status: Placed<OneOrMany<Placed<String>>>,
}

/// `true`, `false` or a percentage, as text.
pub(in crate::config) type Enforce = String;

/// What a request that a limit denies gets.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum OnDenied {
    Reject(Option<Rejection>),
    Shadow(Placed<String>),
}

/// An answer to take the place of the problem document.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Rejection {
    pub(in crate::config) status: Option<Placed<u16>>,
    pub(in crate::config) headers: Option<Entries<Placed<String>>>,
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
    pub(in crate::config) servers: Option<Placed<Vec<Placed<String>>>>,
    pub(in crate::config) builtin: Option<Builtin>,
    pub(in crate::config) connect_timeout: Option<Placed<Span>>,
    pub(in crate::config) response_timeout: Option<Placed<Span>>,
    pub(in crate::config) idle_timeout: Option<Placed<Span>>,
    pub(in crate::config) host: Option<Placed<String>>,
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
    pub(in crate::config) status: Option<Placed<u16>>,
    pub(in crate::config) headers: Option<Entries<Placed<String>>>,
    pub(in crate::config) body: Option<Placed<String>>,
}
