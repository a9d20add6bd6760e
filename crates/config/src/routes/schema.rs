//! What may be written of routes, upstreams and decoys.

use std::num::NonZeroU32;

use serde::Deserialize;

use crate::limits::schema::{Enforce, LimitUse};
use crate::values::{ByteSize, HumanDuration};
use crate::yaml::{Entries, OneOrMany, Spanned, WordOr};

/// What holds for every route that does not say otherwise.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteDefaults {
    pub(crate) limits: Option<Vec<Spanned<WordOr<LimitUse>>>>,
    pub(crate) on_denied: Option<Spanned<OnDenied>>,
    pub(crate) ratelimit_headers: Option<HeaderFormsList>,
    /// The name that `ratelimit_headers` had before.
    #[cfg_attr(test, schemars(extend("deprecated" = true)))]
    pub(crate) headers: Option<HeaderFormsList>,
    pub(crate) cors: Option<Spanned<Cors>>,
    pub(crate) compression: Option<Spanned<WordOr<Compression>>>,
    pub(crate) request_headers: Option<Spanned<HeaderEdits>>,
    pub(crate) response_headers: Option<Spanned<HeaderEdits>>,
}

/// Requests of one kind, and what becomes of them.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    pub(crate) name: Option<Spanned<String>>,
    #[serde(rename = "match")]
    pub(crate) matches: Spanned<Match>,
    pub(crate) upstream: Option<Spanned<String>>,
    pub(crate) redirect: Option<Spanned<WordOr<Redirect>>>,
    pub(crate) response: Option<Spanned<Rejection>>,
    pub(crate) rewrite: Option<Spanned<Rewrite>>,
    pub(crate) request_headers: Option<Spanned<HeaderEdits>>,
    pub(crate) response_headers: Option<Spanned<HeaderEdits>>,
    pub(crate) limits: Option<Vec<Spanned<WordOr<LimitUse>>>>,
    pub(crate) on_denied: Option<Spanned<OnDenied>>,
    pub(crate) ratelimit_headers: Option<HeaderFormsList>,
    /// The name that `ratelimit_headers` had before.
    #[cfg_attr(test, schemars(extend("deprecated" = true)))]
    pub(crate) headers: Option<HeaderFormsList>,
    pub(crate) enforce: Option<Spanned<Enforce>>,
    pub(crate) cors: Option<Spanned<Cors>>,
    pub(crate) connect_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) response_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) body_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) total_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) max_body_bytes: Option<Spanned<ByteSize>>,
    pub(crate) request_buffering: Option<Spanned<WordOr<RequestBuffering>>>,
    pub(crate) compression: Option<Spanned<WordOr<Compression>>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Compression {
    pub(crate) algorithms: Option<Spanned<OneOrMany<Spanned<ContentCoding>>>>,
    pub(crate) types: Option<Spanned<OneOrMany<Spanned<String>>>>,
    pub(crate) min_bytes: Option<Spanned<ByteSize>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContentCoding {
    Zstd,
    Br,
    Gzip,
}

/// How much of request bodies is read before they are sent on.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestBuffering {
    pub(crate) max: Spanned<ByteSize>,
    pub(crate) total: Option<Spanned<ByteSize>>,
}

/// What pages of other origins may do.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Cors {
    pub(crate) origins: Spanned<OneOrMany<Spanned<String>>>,
    pub(crate) methods: Option<Spanned<OneOrMany<Spanned<String>>>>,
    pub(crate) headers: Option<Spanned<OneOrMany<Spanned<String>>>>,
    pub(crate) expose: Option<Spanned<OneOrMany<Spanned<String>>>>,
    pub(crate) max_age: Option<Spanned<HumanDuration>>,
    pub(crate) credentials: Option<Spanned<bool>>,
    pub(crate) count_preflights: Option<bool>,
}

/// Which requests take a route.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Match {
    pub(crate) host: Option<Spanned<String>>,
    pub(crate) path: Option<Spanned<String>>,
    pub(crate) path_regex: Option<Spanned<String>>,
    pub(crate) case: Option<PathCase>,
    pub(crate) methods: Option<OneOrMany<Spanned<String>>>,
    pub(crate) headers: Option<Entries<Spanned<WordOr<ValueMatch>>>>,
    pub(crate) query: Option<Entries<Spanned<WordOr<ValueMatch>>>>,
}

/// What the values of a header or of a query parameter must be like.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ValueMatch {
    pub(crate) regex: Option<Spanned<String>>,
    pub(crate) present: Option<bool>,
}

/// Whether the case of a path matters.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum PathCase {
    Insensitive,
    Sensitive,
}

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
    pub(crate) up_to: Spanned<HumanDuration>,
    pub(crate) max_requests: Option<NonZeroU32>,
    pub(crate) server_timing: Option<bool>,
    pub(crate) otherwise: Option<Box<Spanned<OnDenied>>>,
}

/// An answer to take the place of the problem document.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Rejection {
    /// The status: by default 429 for a denial, 403 for a blocked client, 200 for a response of a
    /// route.
    pub(crate) status: Option<Spanned<u16>>,
    pub(crate) headers: Option<Entries<Spanned<String>>>,
    /// The body: by default a problem document, and nothing for a response of a route.
    pub(crate) body: Option<String>,
}

/// One form, or several. `headers` is the name that `ratelimit_headers` had before.
pub(crate) type HeaderFormsList = Spanned<OneOrMany<Spanned<HeaderForm>>>;

/// The forms in which limits are told to clients.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HeaderForm {
    Draft,
    #[serde(rename = "draft-03")]
    Draft03,
    XRatelimit,
    None,
}

/// The app behind the gateway, or something built in.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Upstream {
    pub(crate) servers: Option<Spanned<Vec<Spanned<WordOr<Server>>>>>,
    pub(crate) tls: Option<Spanned<UpstreamTls>>,
    pub(crate) protocol: Option<Spanned<Protocol>>,
    pub(crate) proxy_protocol: Option<Spanned<ProxyProtocol>>,
    pub(crate) builtin: Option<Builtin>,
    pub(crate) balance: Option<Spanned<Balance>>,
    pub(crate) slow_start: Option<Spanned<HumanDuration>>,
    pub(crate) health_check: Option<Spanned<HealthCheck>>,
    pub(crate) ejection: Option<Spanned<WordOr<Ejection>>>,
    pub(crate) retries: Option<Spanned<WordOr<Retries>>>,
    pub(crate) connect_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) response_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) body_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) total_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) max_body_bytes: Option<Spanned<ByteSize>>,
    pub(crate) request_buffering: Option<Spanned<WordOr<RequestBuffering>>>,
    pub(crate) max_connections: Option<Spanned<usize>>,
    pub(crate) resolve_interval: Option<Spanned<HumanDuration>>,
    pub(crate) idle_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) host: Option<Spanned<String>>,
}

/// What is spoken to the servers of an upstream.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    Http1,
    Http2,
    Auto,
}

/// The version of the PROXY protocol that servers are told by from whom connections are.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProxyProtocol {
    V1,
    V2,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamTls {
    pub(crate) ca: Option<Spanned<String>>,
    pub(crate) server_name: Option<Spanned<String>>,
    pub(crate) certificate: Option<Spanned<String>>,
    pub(crate) key: Option<Spanned<String>>,
}

/// The upstreams inside Weir.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Builtin {
    Echo,
}

/// The answer that a shadow-banned request gets.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Decoy {
    pub(crate) status: Option<Spanned<u16>>,
    pub(crate) headers: Option<Entries<Spanned<String>>>,
    pub(crate) body: Option<Spanned<String>>,
}

/// How the path is rewritten.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Rewrite {
    pub(crate) strip_prefix: Option<Spanned<String>>,
    pub(crate) add_prefix: Option<Spanned<String>>,
}

/// Where clients are sent.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Redirect {
    pub(crate) to: Spanned<String>,
    pub(crate) status: Option<Spanned<u16>>,
}

/// What is changed about headers. `always` is for those of responses alone.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderEdits {
    pub(crate) set: Option<Entries<Spanned<String>>>,
    pub(crate) add: Option<Entries<Spanned<String>>>,
    pub(crate) remove: Option<OneOrMany<Spanned<String>>>,
    pub(crate) always: Option<Spanned<bool>>,
}

/// Retry after the server closed the connection without a response.
pub(super) const CLOSED: &str = "closed";
/// Retry after the server did not respond in time.
pub(super) const TIMEOUT: &str = "timeout";

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    pub(crate) url: Spanned<String>,
    pub(crate) weight: Option<Spanned<u32>>,
}

/// How the next server is chosen.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Balance {
    RoundRobin,
    LeastRequests,
    Hash(OneOrMany<Spanned<String>>),
}

/// When a server that fails gets no requests.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Ejection {
    pub(crate) failures: Option<Spanned<u32>>,
    pub(crate) status: Option<Spanned<OneOrMany<Spanned<String>>>>,
    pub(crate) base_time: Option<Spanned<HumanDuration>>,
    pub(crate) max_time: Option<Spanned<HumanDuration>>,
    pub(crate) max_ejected: Option<Spanned<String>>,
}

/// When a request is sent again.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Retries {
    pub(crate) budget: Option<Spanned<String>>,
    pub(crate) on: Option<Spanned<OneOrMany<Spanned<String>>>>,
}

/// How servers are asked whether they are healthy.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HealthCheck {
    pub(crate) path: Spanned<String>,
    pub(crate) interval: Option<Spanned<HumanDuration>>,
    pub(crate) timeout: Option<Spanned<HumanDuration>>,
    pub(crate) healthy_after: Option<Spanned<u32>>,
    pub(crate) unhealthy_after: Option<Spanned<u32>>,
    pub(crate) expect: Option<Spanned<OneOrMany<Spanned<String>>>>,
}
