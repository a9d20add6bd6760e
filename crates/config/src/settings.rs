//! A configuration that was found fit: what the rest of the gateway is built from.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use weir_limit::time::Timestamp;
use weir_limit::{Priority, Quota};
use weir_middleware::{
    AccessSettings, ConcurrencySettings, Domains, RequestBounds, ResponseSteps, RouteAction,
    RoutePolicy, SheddingSettings,
};
use weir_proxy::{RequestBuffering, Timeouts, UpstreamSettings};
use weir_rules::{
    AccountRules, ClientRules, HashKey, HostPattern, Limit, LimitUse, Override, RouteMatcher,
    RouteTable, SecretHash, SubjectHash,
};
use weir_yaml::{Diagnostics, HumanDuration};

use crate::gateway::account::jwt::Jwks;
use crate::gateway::listen::Listener;
use crate::gateway::process::ProcessSettings;
use crate::limits::override_rules::OverrideRules;

/// How long requests in flight may take to finish when the gateway stops, unless told otherwise.
pub(super) const DEFAULT_GRACE: Duration = Duration::from_secs(30);

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
    /// The upstreams, in the order in which they are written.
    pub upstreams: Vec<Arc<Upstream>>,
    /// The routes, in the order in which they are written.
    pub routes: Vec<Route>,
    /// What Envoy's rate limit service decides; none where Envoy does not ask.
    pub envoy: Option<EnvoyService>,
    /// Which requests are shed first, and when for the sake of workers.
    pub shedding: SheddingSettings,
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
    /// Its upstream as it is written; none where the route answers itself.
    pub upstream: Option<Arc<Upstream>>,
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

impl Route {
    /// The name of its upstream; none where the route answers itself.
    pub fn upstream_name(&self) -> Option<&str> {
        let upstream = self.upstream.as_ref()?;
        Some(&upstream.settings.name)
    }

    /// A route that has nothing but limits, with the description of what it matches.
    pub(crate) fn plain(matcher: RouteMatcher, policy: RoutePolicy, description: &str) -> Self {
        Self {
            matcher,
            policy,
            upstream: None,
            priority: Priority::default(),
            bounds: RequestBounds::default(),
            action: RouteAction::default(),
            response_steps: ResponseSteps::default(),
            timeouts: Timeouts::default(),
            request_buffering: None,
            description: description.to_owned(),
        }
    }
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

impl Settings {
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
