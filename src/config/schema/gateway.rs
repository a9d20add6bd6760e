//! `gateway.yaml`: everything but routes and what belongs to them.

use serde::Deserialize;

use super::bans::{Allow, Ban, Block};
use super::routes::{Decoy, Enforce, Route, RouteDefaults, Upstream};
use crate::config::duration::HumanDuration;
use crate::config::yaml::{Entries, OneOrMany, Spanned, WordOr};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Gateway {
    pub(in crate::config) listen: Option<Spanned<OneOrMany<Spanned<WordOr<Listener>>>>>,
    pub(in crate::config) admin: Option<Admin>,
    pub(in crate::config) watch: Option<bool>,
    pub(in crate::config) workers: Option<Spanned<Workers>>,
    pub(in crate::config) connections: Option<Connections>,
    pub(in crate::config) grace: Option<HumanDuration>,
    pub(in crate::config) client_address: Option<ClientAddress>,
    pub(in crate::config) account: Option<Spanned<Vec<Spanned<AccountSource>>>>,
    pub(in crate::config) hash_key: Option<Spanned<Secret>>,
    pub(in crate::config) store: Option<Spanned<Store>>,
    pub(in crate::config) allow: Option<Spanned<Allow>>,
    pub(in crate::config) block: Option<Spanned<Block>>,
    pub(in crate::config) bans: Option<Spanned<Entries<Spanned<Ban>>>>,
    pub(in crate::config) limits: Option<Spanned<String>>,
    pub(in crate::config) upstreams: Spanned<Entries<Spanned<Upstream>>>,
    pub(in crate::config) decoys: Option<Spanned<Entries<Spanned<Decoy>>>>,
    pub(in crate::config) enforce: Option<Spanned<Enforce>>,
    pub(in crate::config) errors: Option<Entries<Spanned<String>>>,
    pub(in crate::config) defaults: Option<RouteDefaults>,
    pub(in crate::config) routes: Spanned<Vec<Spanned<Route>>>,
    pub(in crate::config) log: Option<Log>,
}

/// A socket to listen on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Listener {
    pub(in crate::config) address: Spanned<String>,
    pub(in crate::config) tls: Option<Spanned<OneOrMany<Spanned<KeyPair>>>>,
}

/// A certificate and its key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct KeyPair {
    pub(in crate::config) certificate: Spanned<String>,
    pub(in crate::config) key: Spanned<String>,
}

/// The admin listener.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Admin {
    pub(in crate::config) address: Spanned<String>,
    pub(in crate::config) token: Option<Spanned<Secret>>,
}

/// `auto`, or a number as text.
pub(in crate::config) type Workers = String;

/// What clients' connections may do, and for how long.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Connections {
    pub(in crate::config) max_connections: Option<Spanned<String>>,
    pub(in crate::config) header_timeout: Option<Spanned<HumanDuration>>,
    pub(in crate::config) max_header_bytes: Option<Spanned<String>>,
    pub(in crate::config) max_headers: Option<Spanned<u64>>,
    pub(in crate::config) max_streams: Option<Spanned<u64>>,
    pub(in crate::config) idle_timeout: Option<Spanned<HumanDuration>>,
    pub(in crate::config) stall_timeout: Option<Spanned<HumanDuration>>,
}

/// Whose word on a client's address is taken.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ClientAddress {
    pub(in crate::config) trusted_proxies: Option<Vec<Spanned<String>>>,
    pub(in crate::config) header: Option<Spanned<String>>,
    pub(in crate::config) ipv6_prefix: Option<Spanned<u8>>,
}

/// Where a request names its account.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum AccountSource {
    Header(Spanned<String>),
    Bearer(#[expect(dead_code, reason = "it only checks that nothing is set")] Option<Bearer>),
    Cookie(String),
    Jwt(Box<Spanned<Jwt>>),
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
    pub(in crate::config) header: Option<Spanned<String>>,
    pub(in crate::config) secret: Option<Spanned<Secret>>,
    pub(in crate::config) jwks: Option<Spanned<String>>,
    pub(in crate::config) algorithms: Option<Spanned<Vec<JwtAlgorithm>>>,
    pub(in crate::config) issuer: Option<String>,
    pub(in crate::config) audience: Option<String>,
    pub(in crate::config) leeway: Option<HumanDuration>,
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
    pub(in crate::config) redis: Option<Spanned<Redis>>,
}

/// The memory store.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Memory {
    pub(in crate::config) max_buckets: Option<Spanned<u64>>,
}

/// The Redis store.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Redis {
    pub(in crate::config) url: Spanned<String>,
    pub(in crate::config) prefix: Option<Spanned<String>>,
    pub(in crate::config) timeout: Option<Spanned<HumanDuration>>,
    pub(in crate::config) on_failure: Option<OnFailure>,
    pub(in crate::config) lease: Option<Spanned<HumanDuration>>,
    pub(in crate::config) username: Option<Spanned<WordOr<Secret>>>,
    pub(in crate::config) password: Option<Spanned<Secret>>,
    pub(in crate::config) ca: Option<Spanned<String>>,
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
    pub(in crate::config) level: Option<Spanned<String>>,
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
