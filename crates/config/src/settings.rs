//! A configuration that was found fit: what the rest of the gateway is built from.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use weir_limit::time::Timestamp;
use weir_limit::{Algorithm, Prefetch, Priority, Quota};
use weir_middleware::{
    AccessSettings, ClientPriorities, ConcurrencySettings, Domains, OverloadSettings, Redirect,
    RequestBounds, ResponseSteps, RouteAction, RoutePolicy, UpstreamId,
};
use weir_proxy::{RequestBuffering, Server, Timeouts, UpstreamSettings, UpstreamTls};
use weir_redis::RedisSettings;
use weir_rules::{
    AccountRules, ClientRules, HashKey, HostPattern, Limit, LimitUse, Override, RemoteKeys,
    RouteMatcher, RouteTable, SecretHash, SubjectHash,
};
use weir_server::{AltService, Certificates, HttpSettings};
use weir_store::{ClockSource, GuardSettings, MemorySettings};
use weir_telemetry::LogSettings;
use weir_yaml::{Diagnostics, HumanDuration};

/// How long requests in flight may take to finish when the gateway stops, unless told otherwise.
pub(super) const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The hundredths of a percent in one.
const ONE: u64 = 10_000;

/// Fewer bytes could be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// An override by the admin API as it was set: what stands under a limit in `overrides.yaml`, for
/// one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiOverride {
    /// The limit's name.
    pub limit: String,
    /// Whom it is for.
    pub id: String,
    /// `burst`, `count`, `period`, `in_flight`, `until` and `comment`, as they were written.
    pub parameters: Map<String, Value>,
}

/// An override by the admin API that is fit for its limit, or why it is not.
pub(super) type CheckedOverride = Result<FitOverride, Vec<String>>;

/// An override with the result of its check. Holding the override keeps its address, by which the
/// result is found, from being reused for another one.
pub(super) type KnownOverride = (Arc<ApiOverride>, CheckedOverride);

/// An override that is fit for its limit, and what is doubtful about it.
#[derive(Clone, Debug)]
pub(super) struct FitOverride {
    pub(super) parameters: Parameters,
    pub(super) added: Arc<Override>,
    pub(super) warnings: Vec<String>,
}

/// Everything that is configured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What only a new process can change.
    pub process: ProcessSettings,
    /// Where requests are taken. Only a new process can change it, the certificates excepted.
    pub listen: Vec<Listener>,
    /// How long requests in flight may take to finish when the gateway stops.
    pub grace: Duration,
    /// What the admin listener asks for before it shows and changes anything; without one, only
    /// this machine may.
    pub admin_tokens: Vec<AdminToken>,
    /// The names by which the admin listener is asked for metrics, beside those that no page has.
    pub admin_hosts: Vec<HostPattern>,
    /// Whether the admin listener serves the dashboard, to whose page it answers as well.
    pub admin_dashboard: bool,
    /// Whether the files of the configuration are loaded again when they change.
    pub watch: bool,
    /// How a client's address is found.
    pub client: ClientRules,
    /// How a request's account is found; holds the key of all hashes as well.
    pub account: AccountRules,
    /// Tells different keys of hashes apart, and shows nothing of them; none without `hash_key`.
    pub hash_key_fingerprint: Option<u32>,
    /// The key sets that are fetched for it.
    pub jwks: Vec<Jwks>,
    /// Whether the access log shows queries.
    pub log_queries: bool,
    /// How many requests that were not let through the access log shows in a second, if not all.
    pub log_denied_per_second: Option<NonZeroU32>,
    /// The upstreams, which routes and bans refer to by their places; see [`Self::upstream`].
    pub upstreams: Vec<Arc<Upstream>>,
    /// The routes, in the order in which they are written.
    pub routes: Vec<Route>,
    /// What Envoy's rate limit service decides; none where Envoy does not ask.
    pub envoy: Option<EnvoyService>,
    /// The priorities of clients that are not by their routes alone.
    pub priorities: Arc<ClientPriorities>,
    /// When workers are overloaded; none where that is not watched.
    pub overload: Option<OverloadSettings>,
    /// What is done with all responses.
    pub response_steps: ResponseSteps,
    /// The header that ids of requests are sent in; none if they have no ids.
    pub request_id: Option<HeaderName>,
    /// Which clients are banned or blocked, and which never are.
    pub access: AccessSettings,
    /// The parameters of all limits and overrides, as they are written.
    pub parameters: Vec<Parameters>,
    /// What overrides by the admin API go by, for each limit.
    pub(super) override_rules: HashMap<String, OverrideRules>,
    /// What is known of overrides by the admin API, by where they are in memory. Reading one takes
    /// far longer than adding it, and each change adds all of them again.
    pub(super) known_overrides: Arc<Mutex<HashMap<usize, KnownOverride>>>,
    /// The text of `overrides.yaml`, if it overrides anything.
    pub(super) overrides: Arc<str>,
    /// The files of the configuration in YAML, as they are written: their names and texts.
    pub(super) files: Vec<(String, Arc<str>)>,
    /// The file that defines the limits, be it there or not; none if `gateway.yaml` does.
    pub limits_file: Option<PathBuf>,
    /// When they were read.
    pub loaded_at: Timestamp,
    /// What is doubtful about the configuration.
    pub warnings: Diagnostics,
}

/// Where requests are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address.
    pub address: SocketAddr,
    /// What it shows to its clients if it speaks TLS, from files.
    pub certificates: Option<Certificates>,
    /// What it shows as well, once it is obtained; only if it speaks TLS.
    pub acme: Vec<AcmeCertificate>,
    /// The networks of peers that must say by the PROXY protocol from whom a connection is.
    pub proxy_protocol: Option<Vec<IpNet>>,
    /// Where requests are sent that did not come by HTTPS; none if they are served.
    pub redirect_to_https: Option<Redirect>,
    /// What clients are told of HTTP/3; none where they have never heard of it.
    pub alt_service: Option<AltService>,
    /// The networks of the proxies for whose requests it decides; none if it forwards requests.
    pub decides_for: Option<Vec<IpNet>>,
}

impl Listener {
    /// Whether it has sockets for UDP beside those for TCP.
    pub fn listens_by_udp(&self) -> bool {
        matches!(self.alt_service, Some(AltService::Announced { .. }))
    }

    /// Whether clients connect to it themselves.
    pub fn takes_clients(&self) -> bool {
        self.proxy_protocol.is_none() && self.decides_for.is_none()
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = self.certificates.as_ref().map_or("", |_| " with TLS");
        let proxied = self.proxy_protocol.as_ref();
        let proxied = proxied.map_or("", |_| " with the PROXY protocol");
        let redirect = self.redirect_to_https.as_ref();
        let redirect = redirect.map_or("", |_| " redirecting to HTTPS");
        let decides = self.decides_for.as_ref().map_or("", |_| " for decisions");
        let by_udp = match self.alt_service {
            Some(AltService::Announced { .. }) => " with HTTP/3",
            Some(AltService::Withdrawn) => " without HTTP/3",
            None => "",
        };
        let address = self.address;
        write!(f, "{address}{tls}{proxied}{redirect}{by_udp}{decides}")
    }
}

/// A certificate that is obtained by ACME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeCertificate {
    /// The name that it is for.
    pub domain: String,
    /// From whom, and how.
    pub settings: Arc<AcmeSettings>,
}

/// How certificates are obtained by ACME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The URL of the server's directory.
    pub directory: Uri,
    /// How the server shows that it is the right one.
    pub tls: UpstreamTls,
    /// Whom the server may write to.
    pub email: Option<String>,
    /// The account that there is already, which the ACME account is bound to.
    pub external_account: Option<ExternalAccount>,
    /// The folder in which accounts and certificates are kept.
    pub cache: PathBuf,
    /// The challenges that can be answered, of which each attempt takes the next.
    pub challenges: Vec<AcmeChallenge>,
}

/// How an ACME server sees that the gateway serves a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// By a handshake on port 443.
    TlsAlpn01,
    /// By a request on port 80.
    Http01,
}

/// Its name, as it is configured.
impl fmt::Display for AcmeChallenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        })
    }
}

/// An account at a certificate authority (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Its name.
    pub key_id: String,
    /// The key that it is shown to be one's own with.
    pub hmac_key: Vec<u8>,
}

/// The key is secret.
impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExternalAccount")
            .field(&self.key_id)
            .finish()
    }
}

/// A key set that is fetched, and the place for its keys.
#[derive(Clone, Debug)]
pub struct Jwks {
    /// How it is fetched.
    pub settings: JwksSettings,
    /// Where its keys are looked for.
    pub keys: RemoteKeys,
}

/// How a key set is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksSettings {
    /// Where it is.
    pub url: Uri,
    /// The server of the URL.
    pub server: Server,
    /// How long to wait before the next fetch if the response does not say.
    pub refresh: Duration,
    /// How old keys may become if they cannot be fetched again.
    pub max_stale: Duration,
}

/// What a process keeps until it ends. When a reload brings other values, they need a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSettings {
    /// Where the admin listener is.
    pub admin: Option<SocketAddr>,
    /// Where overrides by the admin API are kept; none where they are in Redis, or there is no
    /// admin listener.
    pub overrides_file: Option<PathBuf>,
    /// The number of threads.
    pub workers: NonZeroUsize,
    /// What clients' connections may do. Without `max_connections`, the limit of file descriptors
    /// says how many there may be.
    pub connections: HttpSettings,
    /// What remembers buckets.
    pub store: StoreSettings,
    /// What is logged, and how.
    pub log: LogSettings,
    /// Where traces and metrics are sent, if they are.
    pub otlp: Option<OtlpSettings>,
}

/// Where traces and metrics are sent by OTLP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The URL of the collector, without the path of a signal.
    pub endpoint: String,
    /// The server of the URL.
    pub server: Server,
    /// Headers of each request to it.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How many of a million traces that begin here are sampled.
    pub sample: u32,
    /// The name of the service in traces and metrics.
    pub service_name: String,
    /// How often metrics are sent.
    pub interval: Duration,
}

/// What remembers buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSettings {
    /// The process itself.
    Memory(MemorySettings),
    /// Servers of Redis.
    Redis(Box<RedisStore>),
}

/// A Redis, and what happens without it.
#[derive(Clone, Debug)]
pub struct RedisStore {
    /// Where it is.
    pub redis: RedisSettings,
    /// Whose time decisions are taken in.
    pub clock: ClockSource,
    /// How long it may take, and what happens when it takes longer.
    pub guard: GuardSettings,
    /// The memory store that stands in for it with `on_failure: local`.
    pub local: MemorySettings,
    /// Whether gateways tell each other how they do.
    pub has_fleet: bool,
}

/// An upstream.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// How it is reached. The demo upstream has no servers until it is started.
    pub settings: UpstreamSettings,
    /// It is the demo upstream, which responds with the request that it received.
    pub is_demo: bool,
    /// How its requests in flight are limited, if they are.
    pub concurrency: Option<ConcurrencySettings>,
    /// What its servers are chosen by, if that is a hash.
    pub hash: Option<SubjectHash>,
    /// How large requests may be, where a route does not say.
    pub bounds: RequestBounds,
    /// How much of request bodies is read before they are sent on, where a route does not say.
    pub request_buffering: Option<Arc<RequestBuffering>>,
}

impl Upstream {
    /// Whether its servers are told by the PROXY protocol from whom requests are.
    pub fn sends_proxy_headers(&self) -> bool {
        let mut servers = self.settings.servers.iter();
        servers.any(|server| server.proxy_protocol().is_some())
    }
}

/// A route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Which requests take it.
    pub matcher: RouteMatcher,
    /// Its name and limits, and what a denied request gets.
    pub policy: RoutePolicy,
    /// Its upstream; none where the route answers itself.
    pub upstream: Option<UpstreamId>,
    /// How much its requests matter.
    pub priority: Priority,
    /// How large they may be.
    pub bounds: RequestBounds,
    /// What it does beside forwarding.
    pub action: RouteAction,
    /// What it does with responses.
    pub response_steps: ResponseSteps,
    /// The time-outs of its requests.
    pub timeouts: Timeouts,
    /// How much of their bodies is read before they are sent on.
    pub request_buffering: Option<Arc<RequestBuffering>>,
    /// What it matches, in words.
    pub description: String,
}

/// What Envoy's rate limit service decides.
#[derive(Clone, Debug)]
pub struct EnvoyService {
    /// The route of its calls, which has the limits of all descriptors.
    pub route: Route,
    /// The rules that lead from descriptors to these limits.
    pub domains: Arc<Domains>,
    /// The same rules, as they are written.
    pub rules: Vec<WrittenDescriptor>,
}

/// A rule for descriptors of Envoy's, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenDescriptor {
    /// The domain.
    pub domain: String,
    /// The entries that it matches, such as `tenant, path=/costly`.
    pub entries: String,
    /// The index of the limit; none where such descriptors are not limited.
    pub limit: Option<usize>,
}

impl EnvoyService {
    /// The limit of a rule for descriptors; none where they are not limited.
    pub fn limit_of(&self, rule: &WrittenDescriptor) -> Option<&LimitUse> {
        self.route.policy.limits.get(rule.limit?)
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.route.policy.limits.iter().map(|usage| &usage.limit)
    }
}

/// The parameters of a limit or of an override of it, as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The limit's name.
    pub limit: Arc<str>,
    /// What they come to; it holds the burst.
    pub quota: Quota,
    /// Units that come back each period; none when they are requests in flight.
    pub count: Option<u64>,
    /// The period; none when a calendar says it, or there is none.
    pub period: Option<HumanDuration>,
}

/// What the overrides of a limit go by, beside what they say themselves.
#[derive(Clone, Copy, Debug)]
pub struct OverrideRules {
    /// None when the limit is neither defined nor overridden.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) prefetch: Option<PrefetchRule>,
}

/// What is said of units that are taken ahead, from which each quota of a limit gets its own
/// number.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefetchRule {
    pub(super) units: PrefetchUnits,
    pub(super) max_age: Duration,
}

/// How many units a gateway may hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum PrefetchUnits {
    /// Hundredths of a percent of the burst.
    Share(u64),
    Number(u64),
}

impl PrefetchRule {
    /// The quota with its units. An override of so small a burst that they are too few is counted
    /// without.
    pub(super) fn apply(self, quota: Quota) -> Quota {
        let burst = quota.burst().get();
        let units = self.units.of(burst);
        let units = units.min(PrefetchUnits::GREATEST.of(burst));
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        quota.with_prefetch(Prefetch::new(units, self.max_age))
    }
}

impl PrefetchUnits {
    /// The share of the burst that a gateway may hold at most.
    pub(super) const GREATEST: Self = Self::Share(ONE / 2);

    pub(super) fn of(self, burst: u64) -> u64 {
        match self {
            Self::Number(units) => units,
            Self::Share(share) => {
                let units = u128::from(burst) * u128::from(share) / u128::from(ONE);
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Settings {
    /// The upstream of a route or of a ban.
    pub fn upstream(&self, id: UpstreamId) -> Option<&Arc<Upstream>> {
        self.upstreams.get(id.0)
    }

    /// Where a route forwards to, if it does.
    pub fn upstream_of(&self, route: &Route) -> Option<&Arc<Upstream>> {
        self.upstream(route.upstream?)
    }

    /// The table that finds a request's route; its ids are indexes into [`Settings::routes`].
    pub fn route_table(&self) -> RouteTable {
        RouteTable::new(
            self.routes
                .iter()
                .map(|route| route.matcher.clone())
                .collect(),
        )
    }

    /// The networks of the proxies that ask for decisions; none where no listener decides.
    pub fn decides_for(&self) -> Option<&[IpNet]> {
        let mut listeners = self.listen.iter();
        listeners.find_map(|listener| listener.decides_for.as_deref())
    }

    /// The parameters that a quota of a limit was made of.
    pub fn parameters_of(&self, limit: &str, quota: &Quota) -> Option<&Parameters> {
        let mut all = self.parameters.iter();
        all.find(|known| &*known.limit == limit && known.quota == *quota)
    }

    /// A limit that a route uses, by its name.
    pub fn limit(&self, name: &str) -> Option<&Arc<Limit>> {
        let mut uses = self.limit_uses();
        uses.find(|usage| usage.limit.name() == name)
            .map(|usage| &usage.limit)
    }

    /// Whether gateways may take units of some limit ahead of their requests.
    pub fn prefetches(&self) -> bool {
        self.limits()
            .into_iter()
            .any(|limit| prefetched_units(limit).is_some())
    }

    /// The limits as routes use them, that of Envoy's calls among them.
    pub fn limit_uses(&self) -> impl Iterator<Item = &LimitUse> {
        let routes = self.all_routes();
        routes.flat_map(|route| &route.policy.limits)
    }

    /// The routes, and behind them that of Envoy's calls.
    pub fn all_routes(&self) -> impl Iterator<Item = &Route> {
        let envoy = self.envoy.iter().map(|envoy| &envoy.route);
        self.routes.iter().chain(envoy)
    }

    /// The limits that routes use, each once, by name.
    pub fn limits(&self) -> Vec<&Arc<Limit>> {
        let uses = self.limit_uses();
        let mut limits: Vec<_> = uses.map(|usage| &usage.limit).collect();
        limits.sort_by_key(|limit| limit.name());
        limits.dedup_by_key(|limit| limit.name());
        limits
    }
}

/// How many units of one bucket of this limit a gateway holds at most; none if no unit is taken
/// ahead.
pub fn prefetched_units(limit: &Limit) -> Option<u64> {
    let of_overrides = limit.overrides().map(|overridden| overridden.quota);
    let quotas = limit.quota().into_iter().chain(of_overrides);
    let units = quotas.filter_map(|quota| quota.prefetch());
    units.map(Prefetch::units).max()
}

impl StoreSettings {
    /// Whether several gateways share the buckets.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }
}

/// The same Redis, reached with the same secrets, under the same guard.
impl PartialEq for RedisStore {
    fn eq(&self, other: &Self) -> bool {
        self.redis.is_same_as(&other.redis)
            && self.clock == other.clock
            && self.guard == other.guard
            && self.local == other.local
            && self.has_fleet == other.has_fleet
    }
}

impl Eq for RedisStore {}

/// What an operator has to show to see buckets, and, unless it is for reading only, to change them.
///
/// Only its hash under a key of this process is kept and compared, so that neither memory nor
/// the time that a comparison takes tells anything of the token.
#[derive(Clone, Debug)]
pub struct AdminToken {
    /// Whose it is, for the log of changes.
    pub name: Arc<str>,
    /// Whether nothing can be changed with it.
    pub is_read_only: bool,
    key: HashKey,
    hash: SecretHash,
}

impl AdminToken {
    /// None when the token has fewer than 16 bytes.
    pub fn new(name: &str, token: &str) -> Option<Self> {
        let key = HashKey::random();
        let hash = key.hash(token.as_bytes());
        (token.len() >= MIN_TOKEN_BYTES).then_some(Self {
            name: name.into(),
            is_read_only: false,
            key,
            hash,
        })
    }

    /// The same token, with which nothing can be changed.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self {
            is_read_only: true,
            ..self
        }
    }

    /// Whether this is the token.
    pub fn is(&self, offered: &[u8]) -> bool {
        self.key.hash(offered) == self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_no_other() {
        let token = AdminToken::new("admin", "0123456789abcdef").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in ["", "0123456789abcde", "0123456789abcdeF"] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_token_of_fewer_than_16_bytes_is_none() {
        assert!(AdminToken::new("admin", "0123456789abcde").is_none());
    }
}
