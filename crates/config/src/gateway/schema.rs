//! What may be written of the gateway as a whole: everything but limits, routes and bans.

use std::num::{NonZeroU16, NonZeroU32};

use serde::Deserialize;

use crate::bans::schema::{Allow, Ban, Block};
use crate::limits::schema::{DefaultLimits, Enforce, Overrides};
use crate::routes::schema::{Decoy, Route, RouteDefaults, Upstream};
use crate::values::{ByteSize, HumanDuration};
use crate::yaml::{Entries, OneOrMany, Spanned, WordOr};

/// The whole file.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Gateway {
    pub(crate) listen: Option<Spanned<OneOrMany<Spanned<WordOr<Listener>>>>>,
    pub(crate) hsts: Option<Spanned<Hsts>>,
    pub(crate) admin: Option<Admin>,
    pub(crate) watch: Option<bool>,
    pub(crate) workers: Option<Spanned<Workers>>,
    pub(crate) connections: Option<Connections>,
    pub(crate) grace: Option<HumanDuration>,
    pub(crate) client_address: Option<ClientAddress>,
    pub(crate) request_id: Option<Spanned<WordOr<RequestId>>>,
    pub(crate) account: Option<Spanned<Vec<Spanned<AccountSource>>>>,
    pub(crate) hash_key: Option<Spanned<Secret>>,
    pub(crate) store: Option<Spanned<Store>>,
    pub(crate) allow: Option<Spanned<Allow>>,
    pub(crate) block: Option<Spanned<Block>>,
    pub(crate) bans: Option<Spanned<Entries<Spanned<Ban>>>>,
    pub(crate) limits: Option<Spanned<WordOr<DefaultLimits>>>,
    pub(crate) overrides: Option<Overrides>,
    pub(crate) upstreams: Option<Spanned<Entries<Spanned<Upstream>>>>,
    pub(crate) decoys: Option<Spanned<Entries<Spanned<Decoy>>>>,
    pub(crate) enforce: Option<Spanned<Enforce>>,
    pub(crate) errors: Option<Entries<Spanned<String>>>,
    pub(crate) defaults: Option<RouteDefaults>,
    pub(crate) routes: Spanned<Vec<Spanned<Route>>>,
    pub(crate) log: Option<Log>,
    pub(crate) telemetry: Option<Telemetry>,
}

impl Gateway {
    pub(crate) fn upstreams(&self) -> &[(Spanned<String>, Spanned<Upstream>)] {
        let written = self.upstreams.as_ref();
        written.map_or(&[], |upstreams| upstreams.0.as_slice())
    }
}

/// A socket to listen on.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Listener {
    pub(crate) address: Spanned<String>,
    pub(crate) tls: Option<Spanned<OneOrMany<Spanned<ListenerCertificate>>>>,
    pub(crate) client_auth: Option<Spanned<ClientAuth>>,
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    pub(crate) redirect_to_https: Option<Spanned<WordOr<HttpsRedirect>>>,
}

/// Where HTTPS is, if it is not at its usual port.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpsRedirect {
    pub(crate) port: NonZeroU16,
}

/// What browsers are told about HTTPS.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Hsts {
    pub(crate) max_age: Spanned<HumanDuration>,
    pub(crate) include_subdomains: Option<bool>,
    pub(crate) preload: Option<Spanned<bool>>,
}

/// Whose certificates clients show.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientAuth {
    pub(crate) ca: Spanned<String>,
    pub(crate) crl: Option<Spanned<String>>,
    pub(crate) mode: Option<ClientAuthMode>,
}

/// Whether clients have to show one.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientAuthMode {
    Required,
    Optional,
}

/// Who says by the PROXY protocol from whom a connection is.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyProtocol {
    pub(crate) trusted: Spanned<Vec<Spanned<String>>>,
}

/// A certificate and its key, or how both are obtained.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerCertificate {
    pub(crate) certificate: Option<Spanned<String>>,
    pub(crate) key: Option<Spanned<String>>,
    pub(crate) acme: Option<Spanned<OneOrMany<Spanned<WordOr<Acme>>>>>,
}

/// Certificates by ACME, with what is said of them beside their domains.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Acme {
    pub(crate) domains: Spanned<OneOrMany<Spanned<String>>>,
    pub(crate) email: Option<Spanned<String>>,
    pub(crate) directory: Option<Spanned<String>>,
    pub(crate) ca: Option<Spanned<String>>,
    pub(crate) cache: Option<Spanned<String>>,
    pub(crate) challenge: Option<Spanned<AcmeChallenge>>,
    pub(crate) eab: Option<ExternalAccount>,
}

/// How an ACME server sees that the gateway serves a domain.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum AcmeChallenge {
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    #[serde(rename = "http-01")]
    Http01,
}

/// An account that there is already, which the ACME account is bound to.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ExternalAccount {
    pub(crate) key_id: String,
    pub(crate) hmac_key: Spanned<Secret>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Admin {
    pub(crate) address: Spanned<String>,
    pub(crate) token: Option<Spanned<Secret>>,
    pub(crate) tokens: Option<Entries<Spanned<Secret>>>,
    pub(crate) read_only: Option<Vec<Spanned<String>>>,
    pub(crate) dashboard: Option<Spanned<bool>>,
    pub(crate) overrides_file: Option<Spanned<String>>,
}

/// `auto`, or a number as text.
pub(crate) type Workers = String;

/// What clients' connections may do, and for how long.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Connections {
    pub(crate) max_connections: Option<Spanned<String>>,
    pub(crate) header_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) max_header_bytes: Option<Spanned<ByteSize>>,
    pub(crate) max_headers: Option<Spanned<u64>>,
    pub(crate) max_streams: Option<Spanned<u64>>,
    pub(crate) idle_timeout: Option<Spanned<HumanDuration>>,
    pub(crate) stall_timeout: Option<Spanned<HumanDuration>>,
}

/// Whose word on a client's address is taken.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientAddress {
    pub(crate) trusted_proxies: Option<Vec<Spanned<String>>>,
    pub(crate) header: Option<Spanned<String>>,
    pub(crate) ipv6_prefix: Option<Spanned<u8>>,
}

/// Which header ids of requests are sent in.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestId {
    pub(crate) header: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccountSource {
    Header(Spanned<String>),
    Bearer(#[expect(dead_code, reason = "it only checks that nothing is set")] Option<Bearer>),
    Cookie(String),
    Certificate(CertificateField),
    Basic(Basic),
    Jwt(Box<Spanned<Jwt>>),
}

/// Users with passwords.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Basic {
    pub(crate) file: Spanned<String>,
}

/// What of a client's certificate names the account.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum CertificateField {
    SubjectCn,
    SanDns,
    SanEmail,
    SanUri,
    Fingerprint,
}

/// A bearer token has nothing to set.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Bearer {}

/// A JSON web token, which is verified.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Jwt {
    pub(crate) claim: Option<String>,
    pub(crate) header: Option<Spanned<String>>,
    pub(crate) secret: Option<Spanned<Secret>>,
    pub(crate) jwks: Option<Spanned<WordOr<Jwks>>>,
    pub(crate) algorithms: Option<Spanned<Vec<JwtAlgorithm>>>,
    pub(crate) issuer: Option<String>,
    pub(crate) audience: Option<String>,
    pub(crate) leeway: Option<HumanDuration>,
}

/// A key set that is fetched.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Jwks {
    pub(crate) url: Spanned<String>,
    pub(crate) ca: Option<Spanned<String>>,
    pub(crate) refresh: Option<Spanned<HumanDuration>>,
    pub(crate) max_stale: Option<Spanned<HumanDuration>>,
}

/// The signatures that can be asked for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum JwtAlgorithm {
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "$weir::Secret", rename_all = "snake_case")]
pub(crate) enum Secret {
    File(String),
    Env(String),
}

/// What remembers buckets.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    pub(crate) memory: Option<Memory>,
    pub(crate) redis: Option<Spanned<Redis>>,
    pub(crate) clock: Option<Spanned<ClockSource>>,
}

/// Whose time decisions are taken in.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClockSource {
    Store,
    Local,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    pub(crate) max_buckets: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Redis {
    pub(crate) url: Option<Spanned<String>>,
    pub(crate) cluster: Option<Spanned<Cluster>>,
    pub(crate) sentinel: Option<Spanned<Sentinel>>,
    pub(crate) prefix: Option<Spanned<String>>,
    pub(crate) timeout: Option<Spanned<HumanDuration>>,
    pub(crate) on_failure: Option<OnFailure>,
    pub(crate) lease: Option<Spanned<HumanDuration>>,
    pub(crate) username: Option<Spanned<WordOr<Secret>>>,
    pub(crate) password: Option<Spanned<Secret>>,
    pub(crate) ca: Option<Spanned<String>>,
    pub(crate) tls_name: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    pub(crate) nodes: Spanned<Vec<Spanned<String>>>,
}

/// Sentinels, and the primary that they watch.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Sentinel {
    pub(crate) nodes: Spanned<Vec<Spanned<String>>>,
    pub(crate) primary: Spanned<String>,
    pub(crate) database: Option<Spanned<u64>>,
    pub(crate) username: Option<Spanned<WordOr<Secret>>>,
    pub(crate) password: Option<Spanned<Secret>>,
}

/// What becomes of requests while the store is out of reach.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnFailure {
    Allow,
    Deny,
    Local,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: Option<LogFormat>,
    pub(crate) access: Option<Spanned<bool>>,
    pub(crate) access_format: Option<Spanned<String>>,
    pub(crate) level: Option<Spanned<String>>,
    pub(crate) account: Option<LogAccount>,
    pub(crate) query: Option<bool>,
    pub(crate) denied_per_second: Option<NonZeroU32>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Telemetry {
    pub(crate) otlp: Spanned<Otlp>,
}

/// A collector of OpenTelemetry.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Otlp {
    pub(crate) endpoint: Spanned<String>,
    pub(crate) headers: Option<Entries<Spanned<WordOr<Secret>>>>,
    pub(crate) ca: Option<Spanned<String>>,
    pub(crate) sample: Option<Spanned<String>>,
    pub(crate) service_name: Option<String>,
    pub(crate) interval: Option<Spanned<HumanDuration>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogAccount {
    Hash,
    Plain,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    Auto,
    Human,
    Json,
}
