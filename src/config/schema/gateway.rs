//! `gateway.yaml`: everything but routes and what belongs to them.

use serde::Deserialize;

use super::bans::{Allow, Ban, Block};
use super::routes::{Decoy, Enforce, Route, RouteDefaults, Upstream};
use crate::config::duration::Span;
use crate::config::yaml::{Entries, OneOrMany, Placed, WordOr};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Gateway {
    pub(in crate::config) listen: Option<Placed<OneOrMany<Placed<WordOr<Listener>>>>>,
    pub(in crate::config) admin: Option<Admin>,
    pub(in crate::config) watch: Option<bool>,
    pub(in crate::config) workers: Option<Placed<Workers>>,
    pub(in crate::config) connections: Option<Connections>,
    pub(in crate::config) grace: Option<Span>,
    pub(in crate::config) client_address: Option<ClientAddress>,
    pub(in crate::config) account: Option<Placed<Vec<Placed<AccountSource>>>>,
    pub(in crate::config) hash_key: Option<Placed<Secret>>,
    pub(in crate::config) store: Option<Placed<Store>>,
    pub(in crate::config) allow: Option<Placed<Allow>>,
    pub(in crate::config) block: Option<Placed<Block>>,
    pub(in crate::config) bans: Option<Placed<Entries<Placed<Ban>>>>,
    pub(in crate::config) limits: Option<Placed<String>>,
    pub(in crate::config) upstreams: Placed<Entries<Placed<Upstream>>>,
    pub(in crate::config) decoys: Option<Placed<Entries<Placed<Decoy>>>>,
    pub(in crate::config) enforce: Option<Placed<Enforce>>,
    pub(in crate::config) errors: Option<Entries<Placed<String>>>,
    pub(in crate::config) defaults: Option<RouteDefaults>,
    pub(in crate::config) routes: Placed<Vec<Placed<Route>>>,
    pub(in crate::config) log: Option<Log>,
}

/// A socket to listen on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Listener {
    pub(in crate::config) address: Placed<String>,
    pub(in crate::config) tls: Option<Placed<OneOrMany<Placed<KeyPair>>>>,
}

/// A certificate and its key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct KeyPair {
    pub(in crate::config) certificate: Placed<String>,
    pub(in crate::config) key: Placed<String>,
}

/// The admin listener.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Admin {
    pub(in crate::config) address: Placed<String>,
    pub(in crate::config) token: Option<Placed<Secret>>,
}

/// `auto`, or a number as text.
pub(in crate::config) type Workers = String;

/// What clients' connections may do, and for how long.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Connections {
    pub(in crate::config) max_connections: Option<Placed<String>>,
    pub(in crate::config) header_timeout: Option<Placed<Span>>,
    pub(in crate::config) max_header_bytes: Option<Placed<String>>,
    pub(in crate::config) max_headers: Option<Placed<u64>>,
    pub(in crate::config) max_streams: Option<Placed<u64>>,
    pub(in crate::config) idle_timeout: Option<Placed<Span>>,
    pub(in crate::config) stall_timeout: Option<Placed<Span>>,
}

/// Whose word on a client's address is taken.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ClientAddress {
    pub(in crate::config) trusted_proxies: Option<Vec<Placed<String>>>,
    pub(in crate::config) header: Option<Placed<String>>,
    pub(in crate::config) ipv6_prefix: Option<Placed<u8>>,
}

/// Where a request names its account.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum AccountSource {
    Header(Placed<String>),
    Bearer(#[expect(dead_code, reason = "it only checks that nothing is set")] Option<Bearer>),
    Cookie(String),
    Jwt(Box<Placed<Jwt>>),
}

/// A bearer token has nothing to set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Bearer {}

/// A JSON web token, which is verified.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Jwt {
    pub(in crate::config) claim: Option<String>,
    pub(in crate::config) header: Option<Placed<String>>,
    pub(in crate::config) secret: Option<Placed<Secret>>,
    pub(in crate::config) jwks: Option<Placed<String>>,
    pub(in crate::config) algorithms: Option<Placed<Vec<JwtAlgorithm>>>,
    pub(in crate::config) issuer: Option<String>,
    pub(in crate::config) audience: Option<String>,
    pub(in crate::config) leeway: Option<Span>,
}

/// The signatures that can be asked for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(in crate::config) enum JwtAlgorithm {
    #[serde(rename = "HS256")]
    Hs256,
    #[serde(rename = "RS256")]
    Rs256,
    #[serde(rename = "ES256")]
    Es256,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// Something that is not written into the file itself.
#[derive(Debug, Deserialize)]
#[serde(rename = "$weir::Secret", rename_all = "snake_case")]
pub(in crate::config) enum Secret {
    File(String),
    Env(String),
}

/// What remembers buckets.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Store {
    pub(in crate::config) memory: Option<Memory>,
    pub(in crate::config) redis: Option<Placed<Redis>>,
}

/// The memory store.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Memory {
    pub(in crate::config) max_buckets: Option<Placed<u64>>,
}

/// The Redis store.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Redis {
    pub(in crate::config) url: Placed<String>,
    pub(in crate::config) prefix: Option<Placed<String>>,
    pub(in crate::config) timeout: Option<Placed<Span>>,
    pub(in crate::config) on_failure: Option<OnFailure>,
    pub(in crate::config) lease: Option<Placed<Span>>,
    pub(in crate::config) username: Option<WordOr<Placed<Secret>>>,
    pub(in crate::config) password: Option<Placed<Secret>>,
    pub(in crate::config) ca: Option<Placed<String>>,
}

/// What becomes of requests while the store is out of reach.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum OnFailure {
    Allow,
    Deny,
    Local,
}

/// What is logged.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Log {
    pub(in crate::config) format: Option<LogFormat>,
    pub(in crate::config) access: Option<bool>,
    pub(in crate::config) level: Option<Placed<String>>,
    pub(in crate::config) account: Option<LogAccount>,
    pub(in crate::config) query: Option<bool>,
}

/// How accounts are shown.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum LogAccount {
    Hash,
    Plain,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum LogFormat {
    Auto,
    Human,
    Json,
}
