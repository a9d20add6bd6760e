//! A configuration as rules to replay by: those that a log tells enough for, and the others with
//! the reason why they cannot be replayed.

mod access;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use weir_config::{Route, Settings};
use weir_limit::Quota;
use weir_middleware::{
    AccessControl, Cors, HeaderForms, OnDenied, Rejection, RouteAction, RoutePolicy, RouteState,
};
use weir_rules::{
    AccountRules, Cost, HashKey, KeySource, Limit, LimitUse, RouteMatcher, RouteTable, SpendWhen,
    ValuePattern,
};
use weir_store::MemorySettings;
use weir_telemetry::Metrics;
use weir_yaml::Diagnostics;

pub use self::access::{AccessReport, AccessTally};
use super::format::{DetailSet, Format, LogNeeds, Name, Names, Seen};
use super::need::Rate;

/// A configuration, ready to be replayed.
#[derive(Debug)]
pub struct Ruleset {
    settings: Settings,
    /// The policies of all routes, with those limits alone that can be replayed.
    policies: Vec<RoutePolicy>,
    /// The number of each limit of each route, in [`Ruleset::limits`].
    numbers: Vec<Vec<usize>>,
    limits: Vec<ReplayedLimit>,
    /// Rules that cannot be replayed.
    pub gaps: Vec<Gap>,
    /// The names of limits that cannot be replayed.
    gap_names: Vec<Name>,
    /// Whether there is a ban or a list which the log has what it takes for.
    has_access_rules: bool,
    /// What routes are found by that the log does not have, and the remedy; none if it has all.
    pub unlogged_matches: Option<String>,
}

#[derive(Clone, Debug)]
pub struct ReplayedLimit {
    pub limit: Arc<Limit>,
    /// How it charges, on the first route that uses it.
    pub spend: SpendWhen,
    pub routes: Vec<Arc<str>>,
}

/// A rule that is not replayed, or not exactly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Gap {
    /// The limit, ban or route.
    pub what: String,
    pub why: String,
}

/// How requests are divided among threads so that all requests of a bucket are on one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioning {
    One,
    /// By a network of the client's address.
    Address {
        v4_prefix: u8,
        v6_prefix: u8,
    },
    /// By the account; requests without one are counted by nothing.
    Account,
}

impl Ruleset {
    /// Loads the configuration at `path`, and changes the quotas of limits as `change` says.
    ///
    /// # Errors
    /// When the configuration is in error.
    pub fn load(
        path: &Path,
        hash_key: &HashKey,
        log: &LogFields,
        names: &mut Names,
        change: impl Fn(&Limit, Option<Rate>) -> Option<Quota>,
    ) -> Result<Self, Diagnostics> {
        let settings = weir_config::load(path, hash_key)?;
        Ok(Self::new(settings, log, names, change))
    }

    /// The rules of settings whose limits `change` changes.
    pub fn new(
        settings: Settings,
        log: &LogFields,
        names: &mut Names,
        change: impl Fn(&Limit, Option<Rate>) -> Option<Quota>,
    ) -> Self {
        let mut gaps = Vec::new();
        let mut limits: Vec<ReplayedLimit> = Vec::new();
        let mut gap_names = Vec::new();
        let mut numbers = Vec::new();
        let mut policies = Vec::new();
        for route in &settings.routes {
            let mut kept = Vec::new();
            let mut of_route = Vec::new();
            for usage in &route.policy.limits {
                let name = usage.limit.name();
                let number = names.add(name);
                if let Some(why) = why_not(usage, log) {
                    gaps.push(Gap {
                        what: format!("limit {name}"),
                        why,
                    });
                    gap_names.push(number);
                    continue;
                }
                let known = limits.iter().position(|known| known.limit.name() == name);
                let index = known.unwrap_or_else(|| {
                    limits.push(ReplayedLimit {
                        limit: changed(&usage.limit, &settings, &change),
                        spend: usage.spend.clone(),
                        routes: Vec::new(),
                    });
                    limits.len() - 1
                });
                if let Some(limit) = limits.get_mut(index) {
                    limit.routes.push(Arc::clone(&route.policy.name));
                    let yields_to = usage.yields_to.clone().filter(|to| {
                        let mut others = route.policy.limits.iter();
                        let named = |other: &&LimitUse| other.limit.name() == to.limit.name();
                        others
                            .find(named)
                            .is_some_and(|other| why_not(other, log).is_none())
                    });
                    if yields_to.is_none()
                        && let Some(to) = &usage.yields_to
                    {
                        let to = to.limit.name();
                        gaps.push(Gap {
                            what: format!("limit {name}"),
                            why: format!("it leaves denials to {to}, which is not replayed"),
                        });
                    }
                    kept.push(LimitUse {
                        limit: Arc::clone(&limit.limit),
                        yields_to,
                        ..usage.clone()
                    });
                    of_route.push(index);
                }
            }
            gaps.extend(route_gaps(route, log));
            numbers.push(of_route);
            policies.push(RoutePolicy {
                limits: kept,
                on_denied: OnDenied::Reject(Rejection::default()),
                header_forms: HeaderForms::NONE,
                ..route.policy.clone()
            });
        }
        gaps.extend(access::gaps(&settings.access, log, names));
        let has_access_rules = access::is_replayed(&settings.access, log);
        let unlogged_matches = unlogged_matches(&settings, log);
        gaps.sort();
        gaps.dedup();
        Self {
            settings,
            policies,
            numbers,
            limits,
            gaps,
            gap_names,
            has_access_rules,
            unlogged_matches,
        }
    }

    pub fn limits(&self) -> &[ReplayedLimit] {
        &self.limits
    }

    /// Whether a limit of this name is replayed.
    pub fn has_limit(&self, name: &str) -> bool {
        let mut limits = self.limits.iter();
        limits.any(|limit| limit.limit.name() == name)
    }

    /// Says that no limit of this name is replayed, and which ones are.
    pub fn lacks(&self, name: &str) -> String {
        let names: Vec<&str> = self.limits.iter().map(|limit| limit.limit.name()).collect();
        match names.as_slice() {
            [] => format!("no limit {name} is replayed, nor any other"),
            names => format!(
                "no limit {name} is replayed; those are {}",
                names.join(", ")
            ),
        }
    }

    /// The number of a limit, by its index among those of a route.
    pub fn number(&self, route: usize, index: usize) -> Option<usize> {
        self.numbers.get(route)?.get(index).copied()
    }

    /// Whether this is a limit that cannot be replayed.
    pub fn is_gap(&self, name: Name) -> bool {
        self.gap_names.contains(&name)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn route_table(&self) -> RouteTable {
        self.settings.route_table()
    }

    /// The matcher and the name of a route.
    pub fn route(&self, index: usize) -> Option<(&RouteMatcher, &Arc<str>)> {
        let route = self.settings.routes.get(index)?;
        Some((&route.matcher, &route.policy.name))
    }

    pub fn access(&self, metrics: &Metrics) -> AccessControl {
        access::control(&self.settings.access, metrics)
    }

    /// The states of all routes, and then that of none.
    pub fn states(
        &self,
        access: &AccessControl,
        metrics: &Metrics,
    ) -> (Vec<Arc<RouteState>>, Arc<RouteState>) {
        let state = |policy: &RoutePolicy| {
            RouteState::new(policy.clone(), &RouteAction::default(), access, metrics)
        };
        let unrouted = RoutePolicy {
            header_forms: HeaderForms::NONE,
            ..RoutePolicy::default()
        };
        let states = self.policies.iter().map(state).collect();
        (states, state(&unrouted))
    }

    /// The address that a client is counted by.
    pub fn client(&self, address: IpAddr) -> IpAddr {
        self.settings.client.canonical(address)
    }

    /// How accounts are found; holds the key of hashes.
    pub fn account(&self) -> &AccountRules {
        &self.settings.account
    }

    /// The rate of a quota, as it is written; none if it has none.
    pub fn rate(&self, limit: &str, quota: &Quota) -> Option<Rate> {
        rate(&self.settings, limit, quota)
    }

    /// Whether CORS is configured on a route.
    pub fn has_cors(&self, route: usize) -> bool {
        self.settings.routes.get(route).is_some_and(has_cors)
    }

    /// How many buckets may be kept.
    pub fn memory(&self) -> MemorySettings {
        match &self.settings.process.store {
            weir_config::StoreSettings::Memory(memory) => *memory,
            weir_config::StoreSettings::Redis(_) => MemorySettings::default(),
        }
    }

    /// The routes that are found by headers.
    pub fn has_header_matches(&self) -> bool {
        self.settings
            .routes
            .iter()
            .any(|route| !route.matcher.headers.is_empty())
    }

    /// Whether requests that no limit applies to are judged all the same, as all that is configured
    /// is bans or lists which this log has what it takes for.
    pub fn judges_by_access_alone(&self) -> bool {
        self.has_access_rules && self.limits.is_empty() && self.gap_names.is_empty()
    }

    /// The details of lines that these rules ask for.
    pub fn detail_set(&self) -> DetailSet {
        let uses = self.policies.iter().flat_map(|policy| &policy.limits);
        let sources = uses.flat_map(|usage| usage.limit.per());
        let sources = sources.chain(self.settings.access.key_sources());
        let mut detail_set = DetailSet::default();
        for source in sources {
            match source {
                KeySource::Account => detail_set.account = true,
                KeySource::Host | KeySource::Domain => detail_set.host = true,
                KeySource::Header(_) => detail_set.headers = true,
                _ => {}
            }
        }
        detail_set.account |= access::has_listed_accounts(&self.settings.access);
        detail_set.host |= has_host_matches(&self.settings);
        detail_set.route |= self.has_header_matches();
        detail_set.headers |= self.has_header_matches();
        detail_set
    }

    /// How requests may be divided.
    pub fn partitioning(&self) -> Partitioning {
        if self.policies.iter().any(|policy| policy.delay.is_some()) {
            return Partitioning::One;
        }
        let uses = self.policies.iter().flat_map(|policy| &policy.limits);
        let uses = uses.map(|usage| usage.limit.per());
        let subjects = self.settings.access.subjects();
        let all: Vec<&[KeySource]> = uses.chain(subjects).collect();
        let address = |per: &&[KeySource]| {
            per.iter().find_map(|source| match source {
                KeySource::Address {
                    v4_prefix,
                    v6_prefix,
                } => Some((*v4_prefix, *v6_prefix)),
                _ => None,
            })
        };
        let prefixes: Option<Vec<(u8, u8)>> = all.iter().map(address).collect();
        if let Some(prefixes) = prefixes {
            return Partitioning::Address {
                v4_prefix: prefixes.iter().map(|(v4, _)| *v4).min().unwrap_or(32),
                v6_prefix: prefixes.iter().map(|(_, v6)| *v6).min().unwrap_or(64),
            };
        }
        match all.iter().all(|per| per.contains(&KeySource::Account)) {
            true => Partitioning::Account,
            false => Partitioning::One,
        }
    }
}

impl Partitioning {
    /// The partitioning that suits both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Address {
                    v4_prefix,
                    v6_prefix,
                },
                Self::Address {
                    v4_prefix: other_v4,
                    v6_prefix: other_v6,
                },
            ) => Self::Address {
                v4_prefix: v4_prefix.min(other_v4),
                v6_prefix: v6_prefix.min(other_v6),
            },
            (Self::Account, Self::Account) => Self::Account,
            _ => Self::One,
        }
    }
}

fn changed(
    limit: &Arc<Limit>,
    settings: &Settings,
    change: impl Fn(&Limit, Option<Rate>) -> Option<Quota>,
) -> Arc<Limit> {
    let quota = limit.quota();
    let rate = quota.and_then(|quota| rate(settings, limit.name(), &quota));
    match change(limit, rate) {
        Some(quota) => Arc::new(Limit::clone(limit).with_quota(quota)),
        None => Arc::clone(limit),
    }
}

/// The rate of a quota, as it is written; none if it has none.
fn rate(settings: &Settings, limit: &str, quota: &Quota) -> Option<Rate> {
    let written = settings.parameters_of(limit, quota)?;
    Some(Rate {
        count: written.count?,
        period: written.period?.0,
    })
}

/// Whether routes are found by their hosts.
fn has_host_matches(settings: &Settings) -> bool {
    let mut routes = settings.routes.iter();
    routes.any(|route| route.matcher.host.is_some())
}

/// What the rules of these settings ask of a log.
pub fn needs(settings: &Settings) -> LogNeeds {
    let mut needs = LogNeeds {
        account: access::has_listed_accounts(&settings.access),
        host: has_host_matches(settings),
        ..LogNeeds::default()
    };
    for route in &settings.routes {
        needs.query |= !route.matcher.query.is_empty();
        let headers = route.matcher.headers.iter().map(|(name, _)| name.clone());
        needs.headers.extend(headers);
    }
    let uses = || {
        settings
            .routes
            .iter()
            .flat_map(|route| &route.policy.limits)
    };
    for usage in uses() {
        needs.durations |= is_in_flight(usage);
        needs.status |= usage.spend != SpendWhen::Always;
    }
    let sources = uses().flat_map(|usage| usage.limit.per());
    for source in sources.chain(settings.access.key_sources()) {
        match source {
            KeySource::Account => needs.account = true,
            KeySource::Host | KeySource::Domain => needs.host = true,
            KeySource::Header(name) => drop(needs.headers.insert(name.clone())),
            KeySource::Query(_) => needs.query = true,
            _ => {}
        }
    }
    needs
}

fn is_in_flight(usage: &LimitUse) -> bool {
    usage
        .limit
        .quota()
        .is_some_and(|quota| quota.is_in_flight())
}

/// Why a limit cannot be replayed, if it cannot.
fn why_not(usage: &LimitUse, log: &LogFields) -> Option<String> {
    if let Cost::Measured(_) = usage.cost {
        return Some(
            "its cost is said by headers or bodies of requests and responses, which logs do not have"
                .to_owned(),
        );
    }
    if is_in_flight(usage) && !log.has_durations() {
        return Some(
            "it counts requests in flight, and the log does not say how long requests took"
                .to_owned(),
        );
    }
    if usage.spend != SpendWhen::Always && !log.has_statuses() {
        return Some("it charges by statuses, which the log does not have".to_owned());
    }
    let mut sources = usage.limit.per().iter();
    sources.find_map(|source| log.lacks(source))
}

/// What the lines of a log have of requests: by their form, and by those that were looked at.
#[derive(Debug)]
pub struct LogFields {
    pub format: Format,
    pub seen: Seen,
    /// Whether the operator said by `--host` which host requests were of.
    pub is_host_given: bool,
}

impl LogFields {
    /// Why the log does not say what requests have for this source, if it does not.
    fn lacks(&self, source: &KeySource) -> Option<String> {
        let (has, remedy) = match source {
            KeySource::Header(name) if *name == http::header::HOST => (self.has_host(), BY_HOST),
            KeySource::Header(name) => (self.has_header(name), ""),
            KeySource::Cookie(_) => (false, ""),
            KeySource::Host | KeySource::Domain => (self.has_host(), BY_HOST),
            KeySource::Account => (self.format.is_weir() || self.seen.has_accounts, ""),
            KeySource::Query(_) => (self.seen.has_queries, self.query_remedy()),
            _ => (true, ""),
        };
        (!has).then(|| format!("it is counted per {source}, which the log does not have{remedy}"))
    }

    /// Weir's own log has all fields that a request had, so that only those of forms of others are
    /// looked for.
    fn has_header(&self, name: &http::HeaderName) -> bool {
        if self.format.is_weir() {
            return matches!(
                name.as_str(),
                "host" | "user-agent" | "referer" | "x-request-id"
            );
        }
        match self.format.has_all_headers_but(name.as_str()) {
            Some(is_hidden) => !is_hidden,
            None => self.seen.has_header(name),
        }
    }

    fn has_host(&self) -> bool {
        self.is_host_given || self.format.is_weir() || self.seen.has_host()
    }

    fn has_durations(&self) -> bool {
        self.format.is_weir() || self.seen.has_durations
    }

    fn has_statuses(&self) -> bool {
        self.format.is_weir() || self.seen.has_statuses
    }

    fn query_remedy(&self) -> &'static str {
        match self.format.is_weir() {
            true => "; Weir's log has queries with `log: {query: true}` only",
            false => "",
        }
    }
}

const BY_HOST: &str = "; say by --host which one requests were for";

/// Says what routes are found by that the log does not have: requests take others in their place.
fn unlogged_matches(settings: &Settings, log: &LogFields) -> Option<String> {
    let all = |lacks: fn(&Route, &LogFields) -> bool| {
        let routes = settings.routes.iter().filter(|route| lacks(route, log));
        let names: Vec<&str> = routes.map(|route| &*route.policy.name).collect();
        names
    };
    let hosts = (!all(lacks_host).is_empty()).then_some("hosts");
    let by_headers = all(lacks_headers);
    let headers = (!by_headers.is_empty()).then_some("headers");
    let queries = (!all(lacks_query).is_empty()).then_some("query parameters");
    let missing: Vec<&str> = [hosts, headers, queries].into_iter().flatten().collect();
    let by_host = if hosts.is_some() { BY_HOST } else { "" };
    let unnamed = match headers.filter(|_| log.format.is_weir()) {
        Some(_) => format!(
            " (Weir's log tells headers by the names of the routes that requests took: {} is new, \
             has another name there, or matches by more than that tells)",
            by_headers.join(", ")
        ),
        None => String::new(),
    };
    let others = match headers.or(queries) {
        Some(_) => "; log what routes are found by, or replay a configuration without those routes",
        None => "",
    };
    (!missing.is_empty()).then(|| {
        let missing = missing.join(" and ");
        format!(
            "the log does not have {missing}, by which routes are found{unnamed}{by_host}{others}"
        )
    })
}

fn lacks_host(route: &Route, log: &LogFields) -> bool {
    route.matcher.host.is_some() && !log.has_host()
}

/// Weir's log says which route a request took, from which most headers can be concluded: of a route
/// that had this name then.
fn lacks_headers(route: &Route, log: &LogFields) -> bool {
    let mut unlogged = route
        .matcher
        .headers
        .iter()
        .filter(|(name, _)| !log.has_header(name));
    let is_named = log.seen.has_route(&route.policy.name);
    let is_concluded =
        |pattern: &ValuePattern| matches!(pattern, ValuePattern::Exact(_) | ValuePattern::Present);
    unlogged.any(|(_, pattern)| !(is_named && is_concluded(pattern)))
}

fn lacks_query(route: &Route, log: &LogFields) -> bool {
    !route.matcher.query.is_empty() && !log.seen.has_queries
}

/// The parts of a route that cannot be replayed.
fn route_gaps(route: &Route, log: &LogFields) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut add = |why: String| {
        gaps.push(Gap {
            what: format!("route {}", route.policy.name),
            why,
        });
    };
    if lacks_host(route, log) {
        add(format!(
            "it is found by its host, which the log does not have{BY_HOST}"
        ));
    }
    let mut headers = route.matcher.headers.iter();
    if headers.any(|(name, _)| !log.has_header(name)) {
        add(
            "it is found by headers, which the log does not have; requests take it if Weir's log \
             says that they took a route of this name"
                .to_owned(),
        );
    }
    if lacks_query(route, log) {
        let remedy = log.query_remedy();
        add(format!(
            "it is found by query parameters, which the log does not have{remedy}"
        ));
    } else if !route.matcher.query.is_empty() && !log.seen.is_any_query_given {
        add(
            "it is found by query parameters, and no request at the log's beginning has a query: \
             some servers leave them out, as Weir does without `log: {query: true}`"
                .to_owned(),
        );
    }
    if has_cors(route) {
        add(
            "logs do not tell preflights of CORS from other OPTIONS requests: each of those is \
             counted, unless Weir's log says that no limit applied"
                .to_owned(),
        );
    }
    gaps
}

fn has_cors(route: &Route) -> bool {
    route.response_steps.find::<Arc<Cors>>().is_some()
}

#[cfg(test)]
mod tests;
