//! What may be written of the gateway as a whole: everything but limits, routes and bans.

use serde::Deserialize;
use weir_middleware::decoy::DecoyKeys;
use weir_middleware::{HstsKeys, OverloadKeys};
use weir_rules::{Enforcement, Statuses};
use weir_server::HttpSettings;
use weir_yaml::{Entries, FieldName, HumanDuration, OneOrMany, Required, Secret, Spanned, WordOr};

use super::account::AccountSourceKeys;
use super::listen::listener::{Decide, ListenerKeys};
use super::process::{Log, Store, Telemetry};
use crate::access::bans::schema::Ban;
use crate::access::schema::{Allow, Block};
use crate::addresses::{ListenAddress, Nat64Prefix, Network};
use crate::foreign::Parsed;
use crate::limits::schema::{DefaultLimits, Overrides};
use crate::routes::concurrency::keys::Priorities;
use crate::routes::schema::{Route, RouteDefaults, Upstream};

/// The whole file.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Gateway {
    /// [Where requests are taken](#listen). Type: `{address, tls}` or list of them. Default:
    /// `{address: 127.0.0.1:8080}`, or none beside `decide`. Takes a restart.
    pub(crate) listen: Option<Spanned<OneOrMany<Spanned<WordOr<ListenerKeys>>>>>,
    /// [Decisions about requests that other proxies forward](#decide): nginx, Traefik or Caddy.
    /// Default: none. Takes a restart.
    pub(crate) decide: Option<Spanned<Decide>>,
    /// What browsers are told about [HTTPS](#https). Default: none.
    pub(crate) hsts: Option<Spanned<HstsKeys>>,
    /// [The admin listener](#admin). Default: none.
    pub(crate) admin: Option<Admin>,
    /// Whether changed files are [reloaded automatically](OPERATIONS.md#reload). Default: `true`.
    pub(crate) watch: Option<bool>,
    /// Threads; `auto` is one per core. Type: `auto` or 1 to 1024. Default: `auto`. Takes a
    /// restart.
    #[cfg_attr(test, schemars(extend("type" = ["integer", "string"], "pattern" = r"^(auto|\d+)$")))]
    pub(crate) workers: Option<Spanned<Workers>>,
    /// [What clients' connections may do](#connections). Default: `{}`. Takes a restart.
    pub(crate) connections: Option<HttpSettings>,
    /// How long requests in flight may take to finish on SIGTERM. Default: `30s`. Takes a restart.
    pub(crate) grace: Option<HumanDuration>,
    /// [Which proxies may say what the client's address is](#client_address). Default: `{}`.
    pub(crate) client_address: Option<ClientAddress>,
    /// [Ids](#request_id) by which logs, apps and clients speak of the same request. Type: `true`,
    /// `false`, or `{header}`. Default: `false`.
    pub(crate) request_id: Option<Spanned<WordOr<RequestId>>>,
    /// [Where requests name their account](#account).
    pub(crate) account: Option<Spanned<Vec<Spanned<AccountSourceKeys>>>>,
    /// [The key of hashes](#hash_key). Default: random.
    pub(crate) hash_key: Option<Spanned<Secret>>,
    /// [What remembers buckets](#store). Default: `{memory: {}}`. Takes a restart.
    pub(crate) store: Option<Spanned<Store>>,
    /// Clients that are [always let through](#allow-and-block). Default: none.
    pub(crate) allow: Option<Spanned<Allow>>,
    /// Clients that are [never let through](#allow-and-block). Default: none.
    pub(crate) block: Option<Spanned<Block>>,
    /// Clients whose requests [matter more or less](#shedding) than others, whatever their routes.
    /// Default: none.
    pub(crate) priorities: Option<Spanned<Priorities>>,
    /// What happens to requests when the gateway itself [has more to do than its CPU
    /// can handle](#own-overload). Default: none.
    pub(crate) overload: Option<OverloadKeys>,
    /// [Clients that are kept out for a while, and why](#bans).
    pub(crate) bans: Option<Spanned<Entries<Spanned<Ban>>>>,
    /// The folder of [`defaults.yaml` and `overrides.yaml`](#limits), or the limits themselves.
    /// Type: path, or names and keys. Default: `limits`.
    pub(crate) limits: Option<Spanned<WordOr<DefaultLimits>>>,
    /// The [overrides](#overridesyaml) of limits that stand in `gateway.yaml`.
    pub(crate) overrides: Option<Overrides>,
    /// [The apps behind the gateway](#upstreams).
    pub(crate) upstreams: Option<Spanned<Entries<Spanned<Upstream>>>>,
    /// [The answers that shadow-banned requests get](#decoys).
    pub(crate) decoys: Option<Spanned<Entries<Spanned<DecoyKeys>>>>,
    /// Whether denials are acted upon; `false` makes everything a [dry run](#dry-runs). Default:
    /// `true`.
    pub(crate) enforce: Option<Spanned<Enforcement>>,
    /// [Pages for people](#errors) in place of problem documents. Type: statuses and paths.
    pub(crate) errors: Option<Entries<Spanned<String>, Parsed<Statuses>>>,
    /// What holds for [routes](#routes) that do not say otherwise. Default: `{}`.
    pub(crate) defaults: Option<RouteDefaults>,
    /// [Which requests go where, under which limits](#routes).
    pub(crate) routes: Spanned<Vec<Spanned<Route>>>,
    /// [What is logged](#log). Default: `{}`.
    pub(crate) log: Option<Log>,
    /// Where [traces and metrics](#telemetry) are sent by OTLP; only in a build that has it.
    /// Default: none. Takes a restart.
    pub(crate) telemetry: Option<Telemetry>,
}

impl Gateway {
    pub(crate) fn upstreams(&self) -> &[(Spanned<String>, Spanned<Upstream>)] {
        let written = self.upstreams.as_ref();
        written.map_or(&[], |upstreams| upstreams.0.as_slice())
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Admin {
    /// Where it listens. Takes a restart.
    pub(crate) address: Spanned<Required<ListenAddress>>,
    /// The token that a request must carry to see or change buckets, at least 16 bytes long:
    /// `openssl rand -hex 32 > admin.token`; without a token, only this machine may. `weir check`
    /// warns of an address other than a loopback one without a token.
    pub(crate) token: Option<Spanned<Secret>>,
    /// More tokens, one for each person or program: the [log of
    /// changes](ADMIN_API.md#who-changed-what) shows the name. That of `token` is `admin`. Type:
    /// secrets by name.
    pub(crate) tokens: Option<Entries<Spanned<Secret>>>,
    /// The names of tokens that may read and change nothing. Type: list of names.
    pub(crate) read_only: Option<Vec<Spanned<String>>>,
    /// Whether `/` is the [dashboard](ADMIN_API.md#dashboard); without a token, the listener must
    /// have a loopback address, or all addresses. Default: `false`.
    pub(crate) dashboard: Option<Spanned<bool>>,
    /// Names by which scrapers may ask for `/metrics`, such as `weir.example.com` or
    /// `*.example.com`. Addresses, and [names that no web page can
    /// have](METRICS.md#who-may-read-it), need not be listed. Type: list of hosts.
    pub(crate) hosts: Option<Vec<Spanned<String>>>,
    /// With the memory store: the file in which [overrides by the admin
    /// API](ADMIN_API.md#overrides) are kept. The gateway's user must be able to write it and its
    /// folder, or `weir check` warns; with `deploy/weir.service`, that is a folder below
    /// `/var/lib/weir`. Type: path. Default: `admin-overrides.json`. Takes a restart.
    pub(crate) overrides_file: Option<Spanned<String>>,
}

/// `auto`, or a number as text.
pub(crate) type Workers = String;

/// Whose word on a client's address is taken.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientAddress {
    /// The proxies whose forwarding headers are trusted. Type: list of addresses and networks.
    pub(crate) trusted_proxies: Option<Spanned<Vec<Spanned<Network>>>>,
    /// The header that they set: `x-forwarded-for`, `forwarded`, or any header with a single
    /// address, such as `x-real-ip`. Default: `x-forwarded-for`.
    pub(crate) header: Option<Spanned<FieldName>>,
    /// The prefix that identifies an IPv6 client, unless a limit says otherwise. Type: 32 to 128.
    /// Default: `64`.
    pub(crate) ipv6_prefix: Option<Spanned<u8>>,
    /// Prefixes of 96 bits by which translators of your own (NAT64, SIIT) write IPv4 addresses,
    /// beside `64:ff9b::/96`; such clients count as the IPv4 addresses that they are. Type: list of
    /// IPv6 networks.
    pub(crate) nat64_prefixes: Option<Spanned<Vec<Spanned<Nat64Prefix>>>>,
}

/// Which header ids of requests are sent in.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestId {
    /// The header that ids are taken from and sent in; `true` stands for `X-Request-Id`.
    pub(crate) header: Spanned<FieldName>,
}
