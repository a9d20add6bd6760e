//! What may be written of the gateway as a whole: everything but limits, routes and bans.

use std::num::{NonZeroU16, NonZeroU32};

use serde::Deserialize;
use weir_middleware::decoy::DecoyKeys;
use weir_middleware::{HstsKeys, OverloadKeys};
use weir_rules::{CertificateField, Enforcement, JwtAlgorithm, Statuses};
use weir_server::HttpSettings;
use weir_store::{ClockSource, OnFailure};
use weir_telemetry::LogFormat;
use weir_yaml::{
    Entries, FieldName, HumanDuration, OneOrMany, PositiveDuration, Required, Secret, Spanned,
    WordOr, words,
};

use crate::access::bans::schema::Ban;
use crate::access::schema::{Allow, Block};
use crate::addresses::{ListenAddress, Nat64Prefix, Network};
use crate::foreign::{AccessFormat, Config, Parsed, Word};
use crate::limits::schema::{DefaultLimits, LimitUse, Overrides};
use crate::routes::schema::{Route, RouteDefaults, Upstream};
use crate::settings::AcmeChallenge;

/// The whole file.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Gateway {
    /// [Where requests are taken](#listen). Type: `{address, tls}` or list of them. Default:
    /// `{address: 127.0.0.1:8080}`, or none beside `decide`. Takes a restart.
    pub(crate) listen: Option<Spanned<OneOrMany<Spanned<WordOr<Listener>>>>>,
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
    pub(crate) account: Option<Spanned<Vec<Spanned<AccountSource>>>>,
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
    /// `limits`, `on_denied`, `ratelimit_headers`, `cors`, `compression`, `request_headers` and
    /// `response_headers` of [routes](#routes) that do not say otherwise. Default: `{}`.
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

/// Clients by how much their requests matter.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Priorities {
    /// Clients whose requests are shed first, on all routes. Type: `{addresses, accounts}`, as of
    /// [`allow`](#allow-and-block). Default: none.
    pub(crate) low: Option<Allow>,
    /// Clients whose requests have at least this priority. Type: the same. Default: none.
    pub(crate) high: Option<Allow>,
    /// Clients whose requests are shed last. Type: the same. Default: none.
    pub(crate) critical: Option<Allow>,
}

/// A socket to listen on.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Listener {
    /// `0.0.0.0:8080`, or `[::]:8080` for IPv6. Takes a restart.
    pub(crate) address: Spanned<Required<ListenAddress>>,
    /// The certificates of a TLS listener; switching TLS on or off takes a restart. Type: keys, or
    /// a list of them.
    pub(crate) tls: Option<Spanned<OneOrMany<Spanned<ListenerCertificate>>>>,
    /// The [certificates that clients show](#certificates-of-clients). Default: none.
    pub(crate) client_auth: Option<Spanned<ClientAuth>>,
    /// The load balancers that say by the PROXY protocol from whom a connection is; switching it on
    /// or off takes a restart. Default: none.
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    /// Whether requests that did not come by [HTTPS](#https) are redirected there. Type: `true`,
    /// `false`, or `{port}`. Default: `false`. Takes a restart.
    pub(crate) redirect_to_https: Option<Spanned<WordOr<HttpsRedirect>>>,
    /// Whether clients may speak [HTTP/3](#http3) as well, at the same port by UDP; only with
    /// `tls`. `false`, written out, makes them forget that they could. Type: `true`, `false`, or
    /// keys. Default: none. Takes a restart.
    pub(crate) http3: Option<Spanned<WordOr<Http3>>>,
}

/// What clients are told of HTTP/3.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Http3 {
    /// The port of UDP that clients reach, if it is another outside than here. Default: the
    /// listener's.
    pub(crate) port: Option<NonZeroU16>,
    /// For how long clients remember it. Default: `1d`.
    pub(crate) max_age: Option<HumanDuration>,
    /// Whether clients that return may send [requests before the handshake
    /// ends](HTTP3.md#early-data), which takes a round trip less. Default: `false`.
    pub(crate) early_data: Option<bool>,
}

/// The listener for other proxies.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Decide {
    /// Where it listens; not where clients can send requests. Type: address and port. Takes a
    /// restart.
    pub(crate) address: Spanned<Required<ListenAddress>>,
    /// The proxies that may ask, and are believed what they say of a request. Type: list of
    /// addresses and networks.
    pub(crate) trusted_proxies: Spanned<Vec<Spanned<Network>>>,
    /// The certificates of a TLS listener, from files; switching TLS on or off takes a restart.
    /// Type: `{certificate, key}` or list of them. Default: none.
    pub(crate) tls: Option<Spanned<OneOrMany<Spanned<ListenerCertificate>>>>,
    /// The [certificates that the proxies show](#certificates-of-clients). Default: none.
    pub(crate) client_auth: Option<Spanned<ClientAuth>>,
    /// [Limits for Envoy](#decideenvoy), which asks by its rate limit service. Type: list of
    /// `{domain, descriptors}`. Default: none.
    pub(crate) envoy: Option<Spanned<Vec<Spanned<EnvoyDomain>>>>,
}

/// The descriptors of a domain of Envoy's rate limit service.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct EnvoyDomain {
    /// As Envoy's filter names it; a call of another domain is not limited. Type: name.
    pub(crate) domain: Spanned<String>,
    /// The descriptors that are limited. Type: list of `{key, value, limit, descriptors}`.
    pub(crate) descriptors: Vec<Spanned<EnvoyDescriptor>>,
}

/// What holds for an entry of a descriptor.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct EnvoyDescriptor {
    /// The key of the entry. Type: name.
    pub(crate) key: Spanned<String>,
    /// Its value, or how it begins, with a `*` at the end. Type: text. Default: any.
    pub(crate) value: Option<Spanned<String>>,
    /// The limit for descriptors that end with the entry. Type: name or [keys](#routes).
    /// Default: none.
    pub(crate) limit: Option<Spanned<WordOr<LimitUse>>>,
    /// The same for the entry behind it. Type: list of `{key, value, limit, descriptors}`. Default:
    /// none.
    #[serde(default)]
    pub(crate) descriptors: Vec<Spanned<EnvoyDescriptor>>,
}

/// Where HTTPS is, if it is not at its usual port.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpsRedirect {
    /// The port of HTTPS; `true` stands for 443.
    pub(crate) port: NonZeroU16,
}

/// Whose certificates clients show.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientAuth {
    /// The authorities (PEM) that sign certificates of clients. Type: path.
    pub(crate) ca: Spanned<String>,
    /// Whether a client without a certificate is refused; one with a certificate that is not
    /// accepted always is. Default: `required`.
    pub(crate) mode: Option<ClientAuthMode>,
    /// Revocation lists (PEM), one of each authority; a certificate on them is refused, and so is
    /// one whose authority has no list. Type: path.
    pub(crate) crl: Option<Spanned<String>>,
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
    /// The load balancers, which must then send a header, before TLS. Type: list of addresses and
    /// networks.
    pub(crate) trusted: Spanned<Vec<Spanned<Network>>>,
}

/// A certificate and its key, or how both are obtained.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerCertificate {
    /// A PEM file: the leaf certificate, then the intermediates (`fullchain.pem`). Type: path.
    pub(crate) certificate: Option<Spanned<String>>,
    /// A PEM file with its unencrypted private key: PKCS#8, PKCS#1 or SEC1. Type: path.
    pub(crate) key: Option<Spanned<String>>,
    /// In place of both: the domains whose [certificates Weir obtains](#certificates-by-acme).
    /// Type: domain, keys, or a list of them.
    pub(crate) acme: Option<Spanned<OneOrMany<Spanned<WordOr<Acme>>>>>,
}

/// Certificates by ACME, with what is said of them beside their domains.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Acme {
    /// The domains; no wildcards, which take a challenge by DNS, and no addresses. Type: name or
    /// list of names.
    pub(crate) domains: Spanned<OneOrMany<Spanned<String>>>,
    /// Whom the authority may write to. Type: address.
    pub(crate) email: Option<Spanned<String>>,
    /// The directory of the ACME server, with `https://`; for tries,
    /// `https://acme-staging-v02.api.letsencrypt.org/directory`. Type: URL. Default:
    /// `https://acme-v02.api.letsencrypt.org/directory`.
    pub(crate) directory: Option<Spanned<String>>,
    /// The authorities (PEM) that the ACME server's own certificate is checked by. Type: path.
    /// Default: public authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// The folder in which accounts, certificates and their keys are kept; made when it is needed,
    /// and readable for Weir's user alone. Type: path. Default: `acme`.
    pub(crate) cache: Option<Spanned<String>>,
    /// How the authority sees that the domain is yours. Default: both.
    pub(crate) challenge: Option<Spanned<Word<AcmeChallenge>>>,
    /// An account at the authority that the ACME account is bound to, if the authority asks for
    /// that. Default: none.
    pub(crate) eab: Option<ExternalAccount>,
}

/// An account that there is already, which the ACME account is bound to.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ExternalAccount {
    /// The account's name.
    pub(crate) key_id: String,
    /// Its key, in base64url as the authority shows it.
    pub(crate) hmac_key: Spanned<Secret>,
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

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccountSource {
    /// The header's value.
    Header(FieldName),
    /// The token of `Authorization: Bearer`. Type: nothing: `bearer: {}`.
    Bearer(#[expect(dead_code, reason = "it only checks that nothing is set")] Option<Bearer>),
    /// The user of `Authorization: Basic`, if the password is right; a wrong one names no account.
    /// Type: keys, below.
    Basic(Basic),
    /// The cookie's value. Type: cookie name.
    Cookie(String),
    /// What the [client's certificate](#certificates-of-clients) says: the common name of its
    /// subject, the first alternative name of a kind, or the SHA-256 hash of the certificate, in
    /// lower-case hex digits. Type: `subject_cn`, `san_dns`, `san_email`, `san_uri`, `fingerprint`.
    Certificate(Word<CertificateField>),
    /// A claim of a JSON Web Token, which is verified; an invalid token names no account. Type:
    /// keys, below.
    Jwt(Box<Spanned<Jwt>>),
}

/// Users with passwords.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Basic {
    /// The users, as `htpasswd -B -c FILE NAME` writes them: a name, a colon, and a hash of bcrypt
    /// or Argon2 on each line. Type: path.
    pub(crate) file: Spanned<String>,
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
    /// The claim that names the account. Default: `sub`.
    pub(crate) claim: Option<String>,
    /// Where the token is; `Bearer` is dropped. Default: `authorization`.
    pub(crate) header: Option<FieldName>,
    /// The shared secret of HS256, at least 32 bytes long.
    pub(crate) secret: Option<Spanned<Secret>>,
    /// A JSON Web Key Set; exactly one of `jwks` and `secret` is required. Type: path, `https://`
    /// URL, or keys.
    pub(crate) jwks: Option<Spanned<WordOr<Jwks>>>,
    /// The signature algorithms that are accepted. Type: list of `HS256`, `RS256`, `ES256`,
    /// `EdDSA`. Default: those that fit the keys.
    pub(crate) algorithms: Option<Spanned<Vec<Word<JwtAlgorithm>>>>,
    /// The `iss` that a token must have. Default: any.
    pub(crate) issuer: Option<String>,
    /// The `aud` that a token must have. Default: any.
    pub(crate) audience: Option<String>,
    /// The clock skew that is tolerated. Default: `60s`.
    pub(crate) leeway: Option<HumanDuration>,
}

/// A key set that is fetched.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Jwks {
    /// Where the key set is; redirects are not followed. Type: `https://` URL.
    pub(crate) url: Spanned<String>,
    /// The certificate authorities (PEM) that may sign the server's certificate. Type: path.
    /// Default: public authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// How long to wait before the next fetch if the response does not say. Default: `10m`.
    pub(crate) refresh: Option<PositiveDuration>,
    /// How old keys may become while they cannot be fetched; older ones verify nothing. Default:
    /// `24h`.
    pub(crate) max_stale: Option<PositiveDuration>,
}

/// What remembers buckets.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    /// The memory store; with `redis` and `on_failure: local`, the store to fall back to. Default:
    /// `{}`.
    pub(crate) memory: Option<Memory>,
    /// Redis 3.2 or later, or Valkey: [where it is](#where-redis-is), and how it is used. Default:
    /// none.
    pub(crate) redis: Option<Spanned<Redis>>,
    /// With `redis`: whose time limits and bans go by. `store`: Redis's, so gateways agree whatever
    /// their own clocks say. `local`: this machine's; Redis is not used while the two differ by
    /// more than 2 s. Default: `store`.
    pub(crate) clock: Option<Spanned<Word<ClockSource>>>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    /// The greatest number of buckets, at most about 32 bytes each; [bans](#bans) and their strikes
    /// may use as many again. Default: `1000000`.
    pub(crate) max_buckets: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Redis {
    /// One server that holds all keys: `redis://HOST:PORT/DATABASE`, `rediss://` for TLS,
    /// `unix:///PATH?db=DATABASE`. Type: URL. Default: one of the three is required.
    pub(crate) url: Option<Spanned<String>>,
    /// A Redis Cluster: `nodes` alone. Default: one of the three is required.
    pub(crate) cluster: Option<Spanned<Cluster>>,
    /// One primary and its replicas, watched by Sentinels, which name the primary. Default: one of
    /// the three is required.
    pub(crate) sentinel: Option<Spanned<Sentinel>>,
    /// The prefix of every key, which a colon follows. It neither begins nor ends with a colon, and
    /// has no `{` in a Cluster, where that would put all keys on one node.
    /// Default: `weir`.
    pub(crate) prefix: Option<Spanned<String>>,
    /// How long a call may take. Default: `20ms`.
    pub(crate) timeout: Option<PositiveDuration>,
    /// What happens when Redis cannot be reached: requests pass, get 503, or are counted by the
    /// memory store. Default: `local`.
    pub(crate) on_failure: Option<Word<OnFailure>>,
    /// How long a request in flight still counts when its gateway is gone; at least `1s`, and the
    /// same on all gateways. A lease is renewed three times during its length. Default: `30s`.
    pub(crate) lease: Option<Spanned<HumanDuration>>,
    /// Whether this gateway tells the others of the same Redis and prefix how it does, and shows
    /// [the fleet](ADMIN_API.md#the-fleet). Default: `true`.
    pub(crate) fleet: Option<bool>,
    /// The user to log in as, at every server that holds buckets; a file is read again for each
    /// connection. Default: the URL's.
    pub(crate) username: Option<Spanned<WordOr<Secret>>>,
    /// The password; a file is read again for each connection, so a changed one needs no restart.
    /// Default: the URL's.
    pub(crate) password: Option<Spanned<Secret>>,
    /// With `rediss://`: the certificate authorities (PEM) that may sign the servers' certificates;
    /// the file is read again for each connection. Type: path. Default: public authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// With `rediss://`: the name that the servers' certificates must state, for servers that are
    /// reached by, or announce, IP addresses that no certificate states. Type: name. Default: the
    /// host connected to.
    pub(crate) tls_name: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    /// `redis://HOST:PORT`, or `rediss://` for TLS with all servers and Sentinels: some nodes of
    /// the Cluster, or all Sentinels. The URLs hold no user, password or database. Type: list of
    /// URLs.
    pub(crate) nodes: Spanned<Vec<Spanned<String>>>,
    /// The database. Only Valkey from 9.0 on, with `cluster-databases`, has others than the first
    /// in a Cluster. Default: `0`.
    pub(crate) database: Option<Spanned<u64>>,
}

/// Sentinels, and the primary that they watch.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Sentinel {
    /// `redis://HOST:PORT`, or `rediss://` for TLS with all servers and Sentinels: some nodes of
    /// the Cluster, or all Sentinels. The URLs hold no user, password or database. Type: list of
    /// URLs.
    pub(crate) nodes: Spanned<Vec<Spanned<String>>>,
    /// The name that the Sentinels know the primary by, as in `sentinel monitor NAME ...`.
    pub(crate) primary: Spanned<String>,
    /// The database of the primary. Default: `0`.
    pub(crate) database: Option<Spanned<u64>>,
    /// The user to log in as at the Sentinels; the `username` of `redis` is for the primary.
    pub(crate) username: Option<Spanned<WordOr<Secret>>>,
    /// The password for the Sentinels.
    pub(crate) password: Option<Spanned<Secret>>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    /// `auto` is `human` on a terminal and `json` elsewhere. Default: `auto`. Takes a
    /// restart.
    pub(crate) format: Option<Word<LogFormat>>,
    /// A line for every request, whatever the `level`. Default: `true`. Takes a restart.
    pub(crate) access: Option<Spanned<bool>>,
    /// The form of these lines, if it is another than `format`:
    /// [templates](LOGS.md#other-formats-of-the-access-log). Takes a restart.
    pub(crate) access_format: Option<Spanned<Parsed<AccessFormat>>>,
    /// `error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter of `tracing` such as
    /// `info,weir::proxy=debug`. Type: filter. Default: `info`. Takes a
    /// restart.
    pub(crate) level: Option<Spanned<String>>,
    /// How the access log shows accounts: as a hash, or by the account's name, which may be a
    /// secret. Default: `hash`.
    pub(crate) account: Option<LogAccount>,
    /// Whether the access log shows queries, which may hold secrets, also those of a `Referer`.
    /// Default: `false`.
    pub(crate) query: Option<bool>,
    /// How many lines a second the access log has for requests that were [not let
    /// through](LOGS.md#the-access-log); the others are counted.
    pub(crate) denied_per_second: Option<NonZeroU32>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Telemetry {
    /// The collector.
    pub(crate) otlp: Spanned<Otlp>,
}

/// A collector of OpenTelemetry.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Otlp {
    /// `http://` or `https://`; `/v1/traces` and `/v1/metrics` are added. Type: URL.
    pub(crate) endpoint: Spanned<String>,
    /// Headers of each request to it; a value may be a [secret](#how-values-are-written). Type: names and
    /// values.
    pub(crate) headers: Option<Entries<Spanned<WordOr<Secret>>, FieldName>>,
    /// A PEM file of the certificates to trust in their place. Type: path. Default: public
    /// authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// How many of the traces that begin here are sent; also of those that other clients than
    /// trusted proxies began. Type: percentage. Default: `100%`.
    pub(crate) sample: Option<Spanned<String>>,
    /// The name of the service. Default: `weir`.
    pub(crate) service_name: Option<String>,
    /// How often metrics are sent; traces are sent each second. Default: `60s`.
    pub(crate) interval: Option<PositiveDuration>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogAccount {
    Hash,
    Plain,
}

words!(AcmeChallenge, by Config: "tls-alpn-01" => Self::TlsAlpn01, "http-01" => Self::Http01);

words!(CertificateField, by Config:
    "subject_cn" => Self::SubjectCn,
    "san_dns" => Self::SanDns,
    "san_email" => Self::SanEmail,
    "san_uri" => Self::SanUri,
    "fingerprint" => Self::Fingerprint,
);

words!(JwtAlgorithm, by Config:
    "HS256" => Self::Hs256,
    "RS256" => Self::Rs256,
    "ES256" => Self::Es256,
    "EdDSA" => Self::EdDsa,
);

words!(ClockSource, by Config: "store" => Self::Store, "local" => Self::Local);

words!(OnFailure, by Config: "allow" => Self::Allow, "deny" => Self::Deny, "local" => Self::Local);

words!(LogFormat, by Config: "auto" => Self::Auto, "human" => Self::Text, "json" => Self::Json);
