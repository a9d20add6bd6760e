//! What may be written of routes and upstreams.

pub(crate) mod steps;

use serde::Deserialize;
use weir_limit::Priority;
use weir_middleware::{
    ConcurrencyKeys, HeaderForm, HeaderForms, OnDeniedKeys, RejectionKeys, RequestBounds,
};
use weir_proxy::{Protocol, ProxyProtocol, Timeouts};
use weir_rules::Enforcement;
use weir_yaml::{
    Entries, FieldName, MethodName, OneOrMany, PositiveDuration, PositiveSize, Reported, Spanned,
    WordOr, words,
};

use super::balancing::ejection::EjectionKeys;
use super::balancing::health_check::HealthCheckKeys;
use super::balancing::retries::RetriesKeys;
use super::balancing::sticky::StickyKeys;
use super::request_buffering::RequestBufferingKeys;
use crate::addresses::{DnsServer, ServerUrl};
use crate::foreign::{Config, Word};
use crate::limits::schema::LimitUse;
use steps::with_step_keys;

with_step_keys! {
    "Default: none."
    /// What holds for every route that does not say otherwise.
    #[derive(Debug, Default, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(deny_unknown_fields)]
    pub(crate) struct RouteDefaults {
        /// The [limits](#routes) of routes that list none of their own.
        pub(crate) limits: Option<Vec<Spanned<WordOr<LimitUse>>>>,
        /// What a denied request gets on routes that do not say. Type: as of [routes](#routes).
        /// Default: `reject`.
        pub(crate) on_denied: Option<Spanned<OnDeniedKeys>>,
        /// The [headers](#routes) that tell a client where it stands, on routes that do not say. Type:
        /// form or list of them. Default: `draft`.
        pub(crate) ratelimit_headers: Option<HeaderFormsList>,
        /// The name that `ratelimit_headers` had before.
        #[cfg_attr(test, schemars(extend("deprecated" = true)))]
        pub(crate) headers: Option<HeaderFormsList>,
        /// How much requests [matter](#shedding) on routes that do not say. Type: `low`, `normal`,
        /// `high`, `critical`. Default: `normal`.
        pub(crate) priority: Option<Spanned<Word<Priority>>>,
    }
}

with_step_keys! {
    "Default: the defaults."
    /// Requests of one kind, and what becomes of them.
    #[derive(Debug, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(deny_unknown_fields)]
    pub(crate) struct Route {
        /// The name in logs, metrics and `per: route`. Default: made from what it matches.
        pub(crate) name: Option<Spanned<String>>,
        /// Which requests take the route; `{}` for all.
        #[serde(rename = "match")]
        pub(crate) matches: Spanned<Match>,
        /// Where they go; a route has either an `upstream`, a `redirect` or a `response`. Type: name.
        pub(crate) upstream: Option<Spanned<String>>,
        /// [Where clients are sent](#redirects-and-fixed-responses). Type: URL, or keys.
        pub(crate) redirect: Option<Spanned<WordOr<Redirect>>>,
        /// [What all requests get](#redirects-and-fixed-responses).
        pub(crate) response: Option<Spanned<RejectionKeys>>,
        /// How [the path is rewritten](#rewrites). Default: none.
        pub(crate) rewrite: Option<Spanned<Rewrite>>,
        /// The limits, each a name or keys, below; `[]` for none. `weir check` warns of a route that
        /// forwards requests and has neither its own nor the defaults. Default: the defaults.
        pub(crate) limits: Option<Vec<Spanned<WordOr<LimitUse>>>>,
        /// What a denied request gets. Type: below. Default: the defaults.
        pub(crate) on_denied: Option<Spanned<OnDeniedKeys>>,
        /// The headers that tell a client where it stands; a route that shadow-bans sends none unless
        /// it asks for them here. Type: form or list of them. Default: the defaults.
        pub(crate) ratelimit_headers: Option<HeaderFormsList>,
        /// The name that `ratelimit_headers` had before.
        #[cfg_attr(test, schemars(extend("deprecated" = true)))]
        pub(crate) headers: Option<HeaderFormsList>,
        /// How much its requests [matter](#shedding): when an upstream or the gateway has too much to
        /// do, the least are shed first. Type: `low`, `normal`, `high`, `critical`. Default: the
        /// defaults.
        pub(crate) priority: Option<Spanned<Word<Priority>>>,
        /// Whether denials on this route are acted upon: [dry runs](#dry-runs). Default: `true`.
        pub(crate) enforce: Option<Spanned<Enforcement>>,
        /// How long connecting may take; see [bounds](#bounds-of-requests). Default: the upstream's.
        pub(crate) connect_timeout: Option<Spanned<PositiveDuration>>,
        /// How long the head of a response may take; see [bounds](#bounds-of-requests). Default: the
        /// upstream's.
        pub(crate) response_timeout: Option<Spanned<PositiveDuration>>,
        /// How long Weir waits for more of a response's body; see [bounds](#bounds-of-requests).
        /// Default: the upstream's.
        pub(crate) body_timeout: Option<Spanned<PositiveDuration>>,
        /// How long a request may take in all; see [bounds](#bounds-of-requests). Default: the
        /// upstream's.
        pub(crate) total_timeout: Option<Spanned<PositiveDuration>>,
        /// How long a request body may be; see [bounds](#bounds-of-requests). Default: the upstream's.
        pub(crate) max_body_bytes: Option<PositiveSize>,
        /// How much of request bodies is read before they are sent on; see
        /// [bounds](#bounds-of-requests). Type: `off`, or keys. Default: the upstream's.
        pub(crate) request_buffering: Option<Spanned<WordOr<RequestBufferingKeys>>>,
    }
}

/// What a route may set in place of its upstream's settings.
impl Route {
    /// The route's time-outs, with those of its upstream where it sets none.
    pub(super) fn timeouts(&self, upstream: Timeouts) -> Timeouts {
        let or =
            |own: Option<Spanned<PositiveDuration>>, inherited| own.map_or(inherited, |own| own.0);
        Timeouts {
            connect: or(self.connect_timeout, upstream.connect),
            response: or(self.response_timeout, upstream.response),
            body: or(self.body_timeout, upstream.body),
            total: self.total_timeout.map(|own| own.0).or(upstream.total),
        }
    }

    /// The route's bounds, with those of its upstream where it sets none.
    pub(super) fn bounds(&self, upstream: RequestBounds) -> RequestBounds {
        RequestBounds {
            max_body_bytes: self
                .max_body_bytes
                .map(|own| own.0)
                .or(upstream.max_body_bytes),
        }
    }
}

/// Which requests take a route.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Match {
    /// `app.example.com`, or `*.example.com` for all below it. Type: host. Default: any.
    pub(crate) host: Option<Spanned<String>>,
    /// `/login`; `/teams/{team}/invites` captures a segment; `/api/*` matches `/api` and everything
    /// below it, but not `/apix`. A segment `:id` or `<id>` is an error, because it would match
    /// only itself, and so is a regular expression (see `path_regex`); a `:` within a segment is
    /// literal (`/v1/docs:batchGet`). At most 64 segments. Type: path. Default: `/*`.
    pub(crate) path: Option<Spanned<String>>,
    /// What the path must match [beside `path`](#expressions-queries-and-headers). Type: regular
    /// expression.
    pub(crate) path_regex: Option<Spanned<String>>,
    /// Whether `/Login` and `/login` are different paths. Beside a route for `/login`, a
    /// `sensitive` route for `/Login` takes the requests spelled that way. Default: `insensitive`.
    pub(crate) case: Option<PathCase>,
    /// Such as `[GET, HEAD]`; a request whose method has lower-case letters gets 501 on every
    /// route, as an app may take `post` for `POST`. Type: method or list of them. Default: any.
    pub(crate) methods: Option<Spanned<OneOrMany<Spanned<MethodName>>>>,
    /// Headers that the request must all have, each with exactly this value, or as
    /// [described](#expressions-queries-and-headers). Type: names and values.
    pub(crate) headers: Option<Spanned<HeaderMatches>>,
    /// Query parameters that it must all have, in the same way. Type: names and values.
    pub(crate) query: Option<Entries<Spanned<WordOr<ValueMatch>>>>,
}

/// What the values of a header or of a query parameter must be like.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ValueMatch {
    /// What the whole value must match; letters match in their case only. Type: regular expression.
    pub(crate) regex: Option<Spanned<String>>,
    /// Whether there must be a value, or must be none.
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

/// One form, or several. `headers` is the name that `ratelimit_headers` had before.
pub(crate) type HeaderFormsList = Spanned<OneOrMany<Spanned<Word<HeaderForms>>>>;

/// A server by its URL, or with more.
pub(crate) type ServerEntry = WordOr<Server, ServerUrl>;

/// What headers must be like, by their names.
pub(crate) type HeaderMatches = Entries<Spanned<WordOr<ValueMatch>>, FieldName>;

/// The app behind the gateway, or something built in.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Upstream {
    /// The servers, by default at port 80 or 443 and with a weight of 1; see [several
    /// servers](#several-servers). Type: list of `http://HOST:PORT`, `https://HOST:PORT`,
    /// `unix:///PATH` or [`http+srv://NAME`](#servers-that-come-and-go), or of `url` and `weight`.
    pub(crate) servers: Option<Spanned<Vec<Spanned<ServerEntry>>>>,
    /// A file with such a list, in place of `servers`, for [servers that come and
    /// go](#servers-that-come-and-go). Type: path. Default: none.
    pub(crate) servers_file: Option<Spanned<String>>,
    /// The error in the file, which was read before.
    #[serde(skip)]
    pub(crate) servers_file_error: Option<Reported>,
    /// [TLS to servers](#tls-to-upstreams) with `https://`.
    pub(crate) tls: Option<Spanned<UpstreamTls>>,
    /// With `servers`: what is [spoken to them](#http2-to-upstreams). Type: `http1`, `http2`, or
    /// `auto`. Default: `http1`.
    pub(crate) protocol: Option<Spanned<Word<Protocol>>>,
    /// The version of the [PROXY protocol](#the-proxy-protocol-to-upstreams) by which servers are
    /// told from whom a connection is.
    pub(crate) proxy_protocol: Option<Spanned<Word<ProxyProtocol>>>,
    /// The demo upstream, a server inside Weir that responds with the request as an upstream would
    /// receive it.
    pub(crate) builtin: Option<Builtin>,
    /// How long connecting may take. Default: `5s`.
    pub(crate) connect_timeout: Option<Spanned<PositiveDuration>>,
    /// How long the head of a response may take before Weir answers 504. Default: `60s`.
    pub(crate) response_timeout: Option<Spanned<PositiveDuration>>,
    /// How long Weir waits for more of a response's body before it closes both connections; the
    /// time that the client takes does not count. A WebSocket is closed when nothing has passed for
    /// as long, in either direction. Default: `5m`.
    pub(crate) body_timeout: Option<Spanned<PositiveDuration>>,
    /// How long a request may take in all; see [bounds](#bounds-of-requests).
    pub(crate) total_timeout: Option<Spanned<PositiveDuration>>,
    /// How long a request body may be.
    pub(crate) max_body_bytes: Option<PositiveSize>,
    /// How much of request bodies is [read before they are sent on](#bounds-of-requests). Type:
    /// `off`, or keys. Default: with `concurrency` [16 KiB](#shedding), else none.
    pub(crate) request_buffering: Option<Spanned<WordOr<RequestBufferingKeys>>>,
    /// How many connections [each server may have](#connections-of-a-server).
    pub(crate) max_connections: Option<Spanned<usize>>,
    /// How many requests it may have in flight; beyond that, requests [are shed](#shedding). Type:
    /// `adaptive`, a number, or keys. Default: none.
    pub(crate) concurrency: Option<Spanned<WordOr<ConcurrencyKeys>>>,
    /// How long an idle connection is kept; less long if [the server says
    /// so](#connections-of-a-server). Default: `60s`.
    pub(crate) idle_timeout: Option<PositiveDuration>,
    /// How long a connection to a server with a name serves requests; the next one resolves the
    /// name again, so that requests follow a name that moves. A name with several addresses is one
    /// server, of which the first that accepts is used. While the name cannot be resolved, or does
    /// not exist any more, its last known addresses are used, without a bound in time; Envoy does
    /// so only for the former. Default: `30s`.
    pub(crate) resolve_interval: Option<PositiveDuration>,
    /// The DNS servers, by default at port 53, that know the names and SRV records of the servers.
    /// Type: list of addresses. Default: those of the system.
    pub(crate) resolvers: Option<Spanned<Vec<Spanned<DnsServer>>>>,
    /// The `Host` that the upstream gets: the client's, the server's own, or this one. Type:
    /// `preserve`, `upstream`, or a host. Default: `preserve`.
    pub(crate) host: Option<Spanned<String>>,
    /// [Which server](#several-servers) gets a request. Type: `round_robin`, `least_requests`,
    /// `hash` and sources. Default: `round_robin`.
    pub(crate) balance: Option<Spanned<Balance>>,
    /// A cookie that [leads a client back](#sticky-balancing) to its server. Default: none.
    pub(crate) sticky: Option<Spanned<StickyKeys>>,
    /// For how long a server that is back, or new among others, gets less than its share.
    pub(crate) slow_start: Option<Spanned<PositiveDuration>>,
    /// How Weir [asks servers](#health-checks) whether they are healthy. Default: none.
    pub(crate) health_check: Option<Spanned<HealthCheckKeys>>,
    /// When a server that [fails](#servers-that-fail) gets no requests for a while. Type: `off`, or
    /// keys. Default: `{}`.
    pub(crate) ejection: Option<Spanned<WordOr<EjectionKeys>>>,
    /// When a request is [sent again](#retries). Type: `off`, or keys. Default: `{}`.
    pub(crate) retries: Option<Spanned<WordOr<RetriesKeys>>>,
}

impl Upstream {
    /// The upstream's time-outs, with `defaults` where it sets none.
    pub(super) fn timeouts(&self, defaults: Timeouts) -> Timeouts {
        let or =
            |own: Option<Spanned<PositiveDuration>>, inherited| own.map_or(inherited, |own| own.0);
        Timeouts {
            connect: or(self.connect_timeout, defaults.connect),
            response: or(self.response_timeout, defaults.response),
            body: or(self.body_timeout, defaults.body),
            total: self.total_timeout.map(|own| own.0).or(defaults.total),
        }
    }

    pub(super) fn bounds(&self) -> RequestBounds {
        RequestBounds {
            max_body_bytes: self.max_body_bytes.map(|own| own.0),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamTls {
    /// A PEM file of the certificates to trust in their place: of authorities, or of servers
    /// themselves, as `openssl req -x509` makes them. Type: path. Default: public authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// The name that certificates must be valid for, and that is asked for (SNI). Type: host.
    /// Default: the server's own.
    pub(crate) server_name: Option<Spanned<String>>,
    /// What Weir shows to servers that ask for a certificate: a PEM file of the leaf certificate
    /// with its intermediates. Type: path.
    pub(crate) certificate: Option<Spanned<String>>,
    /// The private key of `certificate`, a PEM file. Type: path.
    pub(crate) key: Option<Spanned<String>>,
}

/// The upstreams inside Weir.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Builtin {
    Echo,
}

/// How the path is rewritten.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Rewrite {
    /// Whole segments that are taken from the beginning of the path; all paths of the route must
    /// begin with them. Type: path.
    pub(crate) strip_prefix: Option<Spanned<String>>,
    /// Whole segments that are put in front of the rest. Type: path.
    pub(crate) add_prefix: Option<Spanned<String>>,
}

/// Where clients are sent.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Redirect {
    /// Where clients are sent; the values above may stand in it, percent-encoded; in the value of a
    /// parameter (`/login?next=https://{{ host }}{{ uri }}`), also `path`, `query` and `uri` with
    /// all that could end it. Type: path or URL.
    pub(crate) to: Spanned<String>,
    /// With 307 and 308, clients keep the method and the body. Type: 301, 302, 303, 307, 308.
    /// Default: `302`.
    pub(crate) status: Option<Spanned<u16>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// The server. Type: as in `servers`.
    pub(crate) url: Spanned<ServerUrl>,
    /// Its share of the requests, beside the weights of the upstream. Type: 1 to 1000. Default:
    /// `1`.
    pub(crate) weight: Option<Spanned<u32>>,
}

/// How the next server is chosen.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Balance {
    RoundRobin,
    LeastRequests,
    Hash(Spanned<OneOrMany<Spanned<String>>>),
}

words!(Priority, by Config:
    "low" => Self::Low,
    "normal" => Self::Normal,
    "high" => Self::High,
    "critical" => Self::Critical,
);

words!(HeaderForms, by Config:
    "draft" => Self::NONE.with(HeaderForm::Draft),
    "draft-03" => Self::NONE.with(HeaderForm::Draft03),
    "draft-06" => Self::NONE.with(HeaderForm::Draft06),
    "x-ratelimit" => Self::NONE.with(HeaderForm::XRateLimit),
    "x-ratelimit-epoch" => Self::NONE.with(HeaderForm::XRateLimitEpoch),
    "retry-after-ms" => Self::NONE.with(HeaderForm::RetryAfterMs),
    "none" => Self::NONE,
);

words!(Protocol, by Config: "http1" => Self::Http1, "http2" => Self::Http2, "auto" => Self::Auto);

words!(ProxyProtocol, by Config: "v1" => Self::V1, "v2" => Self::V2);
