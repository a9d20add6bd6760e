//! Findings among the subjects of limits, beside those of the [gateway
//! itself](super::gateway_findings): which subjects are denied or near to it, whether they look
//! like abuse, and the remedies. The dashboard and `weir top` show the same.
//!
//! A client that waits as `Retry-After` says is denied at most once for each request that passes, and
//! a crowd of workers that shares a bucket about twice, as their waits are spread
//! (`docs/decisions/0083-spread-waits.md`), beside once for each worker when they begin. So a subject
//! that is denied more than three times for each request that passes does not wait; nor does one that
//! a slow limit, such as one on logins, denies three times as often as units come back. That is abuse.
//! Others want more than they have: a heavy customer, a crowd that waits, or an honest client at a bad
//! moment. An account is a customer until nine of ten of its requests are denied: many programs may
//! use it at once, by gateways that do not know of each other's waits.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use weir_config::Settings;
use weir_console::findings::{
    Finding as ShownFinding, FindingKind as Kind, Findings, RaisedLimit, Remedy, RemedyAction,
};
use weir_console::fleet::findings as fleet_findings;
use weir_console::rounded_down;
use weir_console::scope::{Scope, counted};
use weir_console::subjects::CountedSubject;
use weir_limit::time::Timestamp;
use weir_limit::{BucketKey, Quota};
use weir_middleware::WaitSpreader;
use weir_rules::{KeySource, Limit};
use weir_telemetry::{Metrics, Period, SubjectActivity};
use weir_yaml::pluralized;

use super::endpoint::{Call, Endpoint, Reply, json_response};
use super::{Api, fleet, gateway_findings};
use crate::app::features::{ROOMS, SharedFeatures};
use crate::app::stores::AdminStores;

pub(super) const ENDPOINTS: &[Endpoint] =
    &[Endpoint::new("/v1/findings", "GET, HEAD", |api, call| {
        Box::pin(respond(api, call))
    })];

const MAX_FINDINGS: usize = 12;

/// Upper bound on subjects of which the rooms of features look up what holds for them: per group, and in
/// total.
pub(in crate::app) const MAX_LOOKUPS: usize = 64;

/// Findings of subjects that are only near a limit.
const MAX_NEAR_LIMIT: usize = 4;

const PERIOD: Period = Period::Minute;

/// A person who tries again and again is denied less often than that in a minute. Below this rate a
/// client is listed only after it was denied.
const MIN_REQUESTS: u64 = 5;

/// A limit is slow if a unit comes back once in this interval, or less often.
const SLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Who waits is denied less often than that for each unit. A burst of one, which keeps no unit for a
/// worker that is late, comes to two, and workers that begin are denied once more.
const DENIED_PER_UNIT: u64 = 3;

/// A bucket may be shared by a crowd from so many clients on that wait for it. A person who tries again
/// and again, and does not wait, is told as many waits as a few workers.
const MIN_CROWD: u64 = MIN_REQUESTS;

/// Report the network instead of its clients from this many abusers on, or from this many clients
/// on that are denied seldom each, but mostly in all.
const ABUSERS_OF_NETWORK: usize = 3;
const CLIENTS_OF_NETWORK: usize = 8;

/// The networks that one owner has, as a rule.
const V4_NETWORK: u8 = 24;
const V6_NETWORK: u8 = 48;

const OVERRIDE_DURATION: &str = "1h";

/// A finding about a subject of a limit, or about several in one network.
pub(in crate::app) struct Finding<'s> {
    kind: Kind,
    limit: &'s Arc<Limit>,
    /// As requests to this API name it.
    id: String,
    /// The name of the account, where the log shows names.
    name: Option<String>,
    /// The ids of those in the network; of one subject its own.
    members: Vec<String>,
    requests: u64,
    denied: u64,
    /// Requests a second.
    rate: f64,
    used_percent: u8,
    /// Other limits per the same that deny it as well.
    also: Vec<&'s str>,
    measure: Option<Box<dyn Measure>>,
    /// The workers that share its bucket and wait as they are told, if they are a crowd.
    crowd: Option<Crowd>,
    /// It names other clients, as a proxy does that nobody trusts.
    forwards: bool,
}

/// Where the rooms of features look up what holds for subjects.
#[derive(Clone, Copy)]
pub(in crate::app) struct LookUp<'a> {
    pub(in crate::app) settings: &'a Settings,
    pub(in crate::app) stores: &'a AdminStores,
    pub(in crate::app) shared: &'a SharedFeatures,
    pub(in crate::app) now: Timestamp,
}

/// What a room does about a subject already.
pub(in crate::app) trait Measure: Send + Sync {
    /// What the finding is then.
    fn kind(&self) -> Kind;

    /// What it is called: findings of the same about one subject are one.
    fn name(&self) -> &str;

    /// A sentence about the subject, which `sent` so much.
    fn text(&self, sent: &str) -> String;

    fn remedy(&self, of: &Finding<'_>) -> Remedy;

    /// Completes the finding as it is shown.
    fn show(&self, of: &Finding<'_>, shown: &mut ShownFinding);
}

/// Workers that share a bucket.
#[derive(Clone, Copy)]
struct Crowd {
    workers: u64,
    /// Other gateways may have more of them.
    is_least: bool,
}

/// What this gateway has seen of clients, beside how much they send.
#[derive(Clone, Copy)]
struct SeenClients<'g> {
    /// Peers that name other clients, and are no trusted proxies.
    forwarders: &'g [IpAddr],
    waits: &'g WaitSpreader,
    metrics: &'g Metrics,
}

impl SeenClients<'_> {
    /// The crowd that waits for a bucket.
    fn crowd(
        self,
        limit: &Limit,
        key: &str,
        quota: Option<Quota>,
        now: Timestamp,
    ) -> Option<Crowd> {
        let bucket = self.metrics.subject_id(limit.name(), key)?;
        let workers = self.waits.waiting(bucket, &quota?, now);
        (workers >= MIN_CROWD).then_some(Crowd {
            workers,
            is_least: false,
        })
    }
}

async fn respond(api: &Api, call: Call<'_>) -> Reply {
    let snapshot = api.snapshot();
    let view = api.view(fleet::scope(call.query())?).await;
    // Asked once, and first: what fails then is among the findings about the gateway.
    let stores = api.admin_stores().await.ok();
    let (scope, counted) = counted(view.as_deref(), &api.metrics, call.now);
    let mut of_gateway = gateway_findings::all(&snapshot, &api.stores, &api.metrics);
    let mut forwarders = snapshot.layers.forwarding.untrusted_forwarders();
    if let Some(view) = &view {
        of_gateway.extend(fleet_findings(view));
        forwarders = view.forwarders();
    }
    let seen = SeenClients {
        forwarders: &forwarders,
        waits: snapshot.layers.forwarding.waits(),
        metrics: &api.metrics,
    };
    let settings = &snapshot.settings;
    let mut noted = NotedSubjects::new(settings, scope, seen, call.now);
    if let Some(stores) = stores {
        let by = LookUp {
            settings,
            stores,
            shared: api.shared(),
            now: call.now,
        };
        noted.look_up(by).await;
    }
    json_response(&Findings {
        period: PERIOD.seconds(),
        counted,
        gateway: of_gateway,
        findings: noted.findings(settings, scope, seen, call.now),
    })
}

/// Subjects that may need attention. Each group has no more than rooms look up.
struct NotedSubjects<'s> {
    denied: Vec<Finding<'s>>,
    /// Those that send much, and that no limit has denied: none is asked about a subject that a room
    /// keeps out.
    others: Vec<Finding<'s>>,
}

impl<'s> NotedSubjects<'s> {
    fn new(
        settings: &'s Settings,
        scope: Scope<'_>,
        seen: SeenClients<'_>,
        now: Timestamp,
    ) -> Self {
        let mut found = Vec::new();
        for limit in settings.limits() {
            let subjects = scope.subjects(limit.name(), PERIOD);
            let (enforced, dry): (Vec<_>, Vec<_>) = subjects
                .into_iter()
                .partition(|subject| is_enforced(settings, limit, &subject.activity.key));
            let alone = enforced.into_iter();
            let alone =
                alone.map(|subject| Finding::for_subject(settings, limit, subject, seen, now));
            let noted =
                alone.filter(|finding| finding.denied > 0 || finding.requests >= MIN_REQUESTS);
            found.extend(by_network(limit, noted.collect()));
            found.extend(Finding::dry_run(settings, limit, &dry));
        }
        let (mut denied, mut others): (Vec<_>, Vec<_>) = merged(found)
            .into_iter()
            .partition(|finding| finding.denied > 0);
        sort(&mut denied);
        others.sort_by_key(|finding| Reverse(finding.requests));
        denied.truncate(MAX_LOOKUPS);
        others.truncate(MAX_LOOKUPS);
        Self { denied, others }
    }

    /// Lets rooms note what they do about them already.
    async fn look_up(&mut self, by: LookUp<'_>) {
        for some in [&mut self.denied, &mut self.others] {
            for room in ROOMS {
                room.look_up(by, some).await;
            }
        }
    }

    /// The findings about them, the worst first.
    fn findings(
        mut self,
        settings: &Settings,
        scope: Scope<'_>,
        seen: SeenClients<'_>,
        now: Timestamp,
    ) -> Vec<ShownFinding> {
        let mut found = joined(self.denied, &mut self.others);
        found.retain(|finding| finding.kind != Kind::Sends);
        sort(&mut found);
        let mut near = 0;
        found.retain(|finding| {
            near += usize::from(finding.kind == Kind::NearLimit);
            finding.kind != Kind::NearLimit || near <= MAX_NEAR_LIMIT
        });
        found.truncate(MAX_FINDINGS);
        for finding in &mut found {
            if let Some(crowd) = &mut finding.crowd {
                crowd.is_least = scope.has_others();
            }
            finding.forwards = seen.forwarders.iter().any(|peer| finding.is_of(*peer));
        }
        let found = found.iter().map(|finding| finding.response(settings, now));
        found.collect()
    }
}

/// Whether denials of this bucket are acted upon on some route.
pub(in crate::app) fn is_enforced(settings: &Settings, limit: &Limit, key: &str) -> bool {
    let key = BucketKey::from(key);
    let mut uses = settings.limit_uses();
    uses.any(|used| {
        let is_of_limit = used.limit.name() == limit.name();
        is_of_limit && used.is_enabled() && used.enforcement.acts_on(&key)
    })
}

fn sort(found: &mut [Finding<'_>]) {
    found.sort_by(|one, other| {
        let weight = |finding: &Finding<'_>| (finding.denied, finding.requests);
        let order = one.kind.cmp(&other.kind);
        let order = order.then_with(|| weight(other).cmp(&weight(one)));
        order.then_with(|| one.id.cmp(&other.id))
    });
}

/// Whether a subject does not wait when it is denied.
fn is_abuse(per: &[KeySource], quota: Option<Quota>, requests: u64, denied: u64) -> bool {
    if denied < MIN_REQUESTS {
        return false;
    }
    if per.contains(&KeySource::Account) {
        return denied.saturating_mul(10) >= requests.saturating_mul(9);
    }
    ignores_waits(quota, 1, requests, denied)
}

/// Whether so many subjects of this quota, taken together, were denied more often than those are that
/// wait.
fn ignores_waits(quota: Option<Quota>, subjects: usize, requests: u64, denied: u64) -> bool {
    let passed = requests.saturating_sub(denied);
    let interval = quota
        .filter(|quota| !quota.is_in_flight())
        .map(|quota| Duration::from(quota.emission_interval()));
    let outpaces = interval
        .filter(|interval| *interval >= SLOW_INTERVAL)
        .is_some_and(|interval| {
            let units = f64::from(PERIOD.seconds()) / interval.as_secs_f64();
            denied as f64 > (DENIED_PER_UNIT * subjects as u64) as f64 * units
        });
    denied > passed.saturating_mul(DENIED_PER_UNIT) || outpaces
}

/// Puts abusers of one network together, where they are several.
fn by_network<'s>(limit: &'s Arc<Limit>, alone: Vec<Finding<'s>>) -> Vec<Finding<'s>> {
    if !matches!(limit.per(), [KeySource::Address { .. }]) {
        return alone;
    }
    let (mut networks, mut others) = (BTreeMap::<IpNet, Vec<Finding<'s>>>::new(), Vec::new());
    for finding in alone {
        match network_of(&finding.id).filter(|_| finding.denied > 0) {
            Some(network) => networks.entry(network).or_default().push(finding),
            None => others.push(finding),
        }
    }
    for (network, clients) in networks {
        let sum = |of: fn(&Finding<'_>) -> u64| clients.iter().map(of).sum::<u64>();
        let abusers = clients.iter().filter(|client| client.kind == Kind::Abuse);
        let (requests, denied) = (sum(|client| client.requests), sum(|client| client.denied));
        let is_spread = clients.len() >= CLIENTS_OF_NETWORK
            && ignores_waits(limit.quota(), clients.len(), requests, denied);
        let is_abused = abusers.count() >= ABUSERS_OF_NETWORK;
        let (together, left): (Vec<_>, Vec<_>) = clients
            .into_iter()
            .partition(|client| is_spread || is_abused && client.kind == Kind::Abuse);
        others.extend(left);
        others.extend(Finding::of_network(limit, network, &together));
    }
    others
}

fn network_of(id: &str) -> Option<IpNet> {
    let address = || id.parse().map(|address: IpAddr| address.into());
    let net: IpNet = id.parse().ok().or_else(|| address().ok())?;
    let prefix = match net {
        IpNet::V4(_) => V4_NETWORK,
        IpNet::V6(_) => V6_NETWORK,
    };
    let network = IpNet::new(net.addr(), prefix).ok()?.trunc();
    (net.prefix_len() > prefix).then_some(network)
}

/// Puts what several limits per the same say of one subject together, as what the worst says.
fn merged(mut found: Vec<Finding<'_>>) -> Vec<Finding<'_>> {
    sort(&mut found);
    let mut kept: Vec<Finding<'_>> = Vec::new();
    for finding in found {
        let is_same = |other: &&mut Finding<'_>| {
            let is_subject = finding.kind != Kind::DryRun && other.kind != Kind::DryRun;
            is_subject && other.id == finding.id && other.limit.per() == finding.limit.per()
        };
        match kept.iter_mut().find(is_same) {
            Some(worse) if finding.denied > 0 => worse.also.push(finding.limit.name()),
            Some(_) => {}
            None => kept.push(finding),
        }
    }
    kept
}

/// Puts those together of whose network one measure holds.
fn joined<'s>(found: Vec<Finding<'s>>, others: &mut Vec<Finding<'s>>) -> Vec<Finding<'s>> {
    let mut joined: Vec<Finding<'s>> = Vec::new();
    for finding in found.into_iter().chain(others.drain(..)) {
        let is_same = |one: &&mut Finding<'_>| {
            let (held, other) = (one.measure.as_ref(), finding.measure.as_ref());
            let is_same_measure = held
                .zip(other)
                .is_some_and(|(held, other)| held.name() == other.name());
            is_same_measure && one.id == finding.id
        };
        match joined.iter_mut().find(is_same) {
            Some(one) => one.join(finding),
            None => joined.push(finding),
        }
    }
    joined
}

impl<'s> Finding<'s> {
    /// Counts those of another finding here as well, which may be by another limit.
    fn join(&mut self, other: Self) {
        if other
            .members
            .iter()
            .all(|member| self.members.contains(member))
        {
            return;
        }
        self.requests += other.requests;
        self.denied += other.denied;
        self.rate += other.rate;
        self.used_percent = self.used_percent.max(other.used_percent);
        for member in other.members {
            if !self.members.contains(&member) {
                self.members.push(member);
            }
        }
    }

    fn for_subject(
        settings: &Settings,
        limit: &'s Arc<Limit>,
        counted: CountedSubject,
        seen: SeenClients<'_>,
        now: Timestamp,
    ) -> Self {
        let (subject, rate) = (counted.activity, counted.rate);
        let is_near_limit = subject.is_near_limit();
        let SubjectActivity {
            requests,
            denied,
            used_percent,
            ..
        } = subject;
        let id = limit.id_of(&subject.key);
        let quota = quota_of(limit, &id, now);
        let kind = match denied {
            0 if !is_near_limit => Kind::Sends,
            0 => Kind::NearLimit,
            _ if is_abuse(limit.per(), quota, requests, denied) => Kind::Abuse,
            _ => Kind::OverLimit,
        };
        let waits = kind == Kind::OverLimit && !ignores_waits(quota, 1, requests, denied);
        let crowd = waits.then(|| seen.crowd(limit, &subject.key, quota, now));
        Self {
            kind,
            limit,
            members: vec![id.clone()],
            id,
            name: subject.name.filter(|_| settings.account.keeps_names),
            requests,
            denied,
            rate,
            used_percent,
            also: Vec::new(),
            measure: None,
            crowd: crowd.flatten(),
            forwards: false,
        }
    }

    /// The finding about one network, if it has members.
    fn of_network(limit: &'s Arc<Limit>, network: IpNet, members: &[Self]) -> Option<Self> {
        let sum = |of: fn(&Self) -> u64| members.iter().map(of).sum();
        Some(Self {
            kind: Kind::Abuse,
            limit,
            id: network.to_string(),
            name: None,
            requests: sum(|member| member.requests),
            denied: sum(|member| member.denied),
            rate: members.iter().map(|member| member.rate).sum(),
            used_percent: members.iter().map(|member| member.used_percent).max()?,
            members: members.iter().map(|member| member.id.clone()).collect(),
            also: Vec::new(),
            measure: None,
            crowd: None,
            forwards: false,
        })
    }

    /// The finding about a limit that is not enforced on all subjects, naming the one that it would
    /// deny most.
    fn dry_run(
        settings: &Settings,
        limit: &'s Arc<Limit>,
        subjects: &[CountedSubject],
    ) -> Option<Self> {
        let activities = || subjects.iter().map(|subject| &subject.activity);
        let sum = |of: fn(&SubjectActivity) -> u64| activities().map(of).sum();
        let denied = sum(|subject| subject.denied);
        let most = activities().max_by_key(|subject| subject.denied)?;
        let id = limit.id_of(&most.key);
        (denied > 0).then(|| Self {
            kind: Kind::DryRun,
            limit,
            members: vec![id.clone()],
            id,
            name: most.name.clone().filter(|_| settings.account.keeps_names),
            requests: sum(|subject| subject.requests),
            denied,
            rate: subjects.iter().map(|subject| subject.rate).sum(),
            used_percent: most.used_percent,
            also: Vec::new(),
            measure: None,
            crowd: None,
            forwards: false,
        })
    }

    pub(in crate::app) fn limit(&self) -> &Limit {
        self.limit
    }

    /// As requests to this API name it.
    pub(in crate::app) fn id(&self) -> &str {
        &self.id
    }

    /// The ids of those in the network; of one subject its own.
    pub(in crate::app) fn members(&self) -> &[String] {
        &self.members
    }

    /// Whether it is about all subjects that a limit would deny, though it names one.
    pub(in crate::app) fn is_dry_run(&self) -> bool {
        self.kind == Kind::DryRun
    }

    /// Notes what holds for it already, and, if that is for a network, which it is. It replaces what
    /// was noted before.
    pub(in crate::app) fn found(&mut self, measure: impl Measure + 'static, network: Option<&str>) {
        self.kind = measure.kind();
        self.measure = Some(Box::new(measure));
        if let Some(network) = network {
            network.clone_into(&mut self.id);
        }
    }

    pub(in crate::app) fn is_network(&self) -> bool {
        self.members.len() > 1
    }

    fn response(&self, settings: &Settings, now: Timestamp) -> ShownFinding {
        let mut shown = ShownFinding {
            kind: self.kind,
            limit: self.limit.name().to_owned(),
            subject: self.id.clone(),
            name: self.name.clone(),
            subjects: self.members.len(),
            requests: self.requests,
            denied: self.denied,
            rate: self.rate(),
            used: f64::from(self.used_percent) / 100.0,
            also: self.also.iter().map(ToString::to_string).collect(),
            banned: None,
            text: self.text(),
            remedy: self.remedy(settings, now),
        };
        if let Some(measure) = &self.measure {
            measure.show(self, &mut shown);
        }
        shown
    }

    /// Whether it is an address, or the network of one.
    fn is_of(&self, peer: IpAddr) -> bool {
        let is_per_address = matches!(self.limit.per(), [KeySource::Address { .. }]);
        let same_network = || self.id.parse().is_ok_and(|net: IpNet| net.contains(&peer));
        is_per_address && (self.id.parse() == Ok(peer) || same_network())
    }

    /// The rate of the subject in words, also of a small one.
    fn demand(&self) -> String {
        match self.rate() {
            rate if rate < 1.0 || self.requests < PERIOD.seconds().into() => self.sent_in_period(),
            rate => format!("{rate} requests a second"),
        }
    }

    fn sent_in_period(&self) -> String {
        let requests = usize::try_from(self.requests).unwrap_or(usize::MAX);
        format!("{} in the last minute", pluralized(requests, "request"))
    }

    /// Requests a second, to a tenth.
    fn rate(&self) -> f64 {
        rounded_down(self.rate, 10.0)
    }

    /// A sentence about the subject.
    fn text(&self) -> String {
        let (limit, sent) = (self.limit.name(), self.demand());
        let denied = percent(self.denied, self.requests);
        let also = match &*self.also {
            [] => String::new(),
            also => format!(", and {} denies it as well", also.join(", ")),
        };
        let clients = self.members.len();
        if let Some(measure) = &self.measure {
            return measure.text(&self.sent_in_period());
        }
        match self.kind {
            Kind::Abuse if self.is_network() => format!(
                "has {clients} clients that keep sending although {limit} denies {denied} of their \
                 {sent}{also}"
            ),
            Kind::Abuse => {
                format!("keeps sending although {limit} denies {denied} of its {sent}{also}")
            }
            Kind::DryRun => format!(
                "would be denied most by {limit}, a dry run: enforced, {limit} would deny {denied} of \
                 all requests that it counts"
            ),
            Kind::NearLimit => format!(
                "has used {}% of {limit}, with {sent}; nothing is denied",
                self.used_percent
            ),
            Kind::OverLimit if let Some(crowd) = self.crowd => format!(
                "may be {crowd} that wait as they are told, for which {limit} is too small: it denies \
                 {denied} of their {sent}{also}"
            ),
            _ => format!("wants more than {limit} allows: {denied} of its {sent} are denied{also}"),
        }
    }

    fn remedy(&self, settings: &Settings, now: Timestamp) -> Remedy {
        if let Some(measure) = &self.measure {
            return measure.remedy(self);
        }
        match self.kind {
            Kind::Abuse | Kind::OverLimit | Kind::NearLimit if self.forwards => Remedy::advice(
                "If it is your proxy, add it to client_address.trusted_proxies: its clients count \
                 as one until then",
            ),
            Kind::Abuse => {
                let mut rooms = ROOMS.iter();
                let remedy = rooms.find_map(|room| room.remedy(settings, self));
                // Bans have a remedy for all of them; this stands for a list of rooms without them.
                remedy.unwrap_or_else(|| Remedy::advice("The limit holds it off"))
            }
            Kind::DryRun => {
                Remedy::advice("If these are honest clients, raise the limit before you enforce it")
            }
            _ => {
                let raised = self.raised(settings, now);
                let text = match self.crowd {
                    Some(_) => {
                        "If these are workers of a customer, raise its limit for all of them"
                    }
                    None => "If it is a customer who may send more, raise its limit",
                };
                Remedy {
                    action: Some(RemedyAction::Override),
                    command: raised
                        .as_ref()
                        .and_then(|raised| self.override_command(raised)),
                    parameters: raised,
                    ..Remedy::advice(text)
                }
            }
        }
    }

    /// Parameters that give the subject about its demand, or twice its present quota.
    fn raised(&self, settings: &Settings, now: Timestamp) -> Option<RaisedLimit> {
        let quota = quota_of(self.limit, &self.id, now)?;
        let allowed = self.requests.saturating_sub(self.denied).max(1);
        let factor = self.requests.div_ceil(allowed).saturating_add(1);
        let factor = factor.clamp(2, 10);
        let units = Some(quota.burst().get().saturating_mul(factor));
        if quota.is_in_flight() {
            return Some(RaisedLimit {
                burst: None,
                count: None,
                period: None,
                in_flight: units,
                length: OVERRIDE_DURATION,
            });
        }
        let written = settings.parameters_of(self.limit.name(), &quota)?;
        Some(RaisedLimit {
            burst: units,
            count: Some(written.count?.saturating_mul(factor)),
            period: written.period.map(|period| period.to_string()),
            in_flight: None,
            length: OVERRIDE_DURATION,
        })
    }

    fn override_command(&self, raised: &RaisedLimit) -> Option<String> {
        let number = |units: Option<u64>| units.map(|units| units.to_string());
        let options = [
            ("--burst", number(raised.burst)),
            ("--count", number(raised.count)),
            ("--period", raised.period.clone()),
            ("--in-flight", number(raised.in_flight)),
            ("--for", Some(raised.length.to_owned())),
        ];
        let given = options
            .iter()
            .filter_map(|(name, value)| Some([*name, value.as_deref()?]));
        let given: Vec<&str> = given.flatten().collect();
        // Clients choose subjects, and a bare `*` in the id of an override covers others as well.
        let id = self.shown_id().replace('*', r"\*");
        command(&["override", "set", self.limit.name()], &id, &given)
    }

    /// The name where it is an id of the subject, which people know it by.
    pub(in crate::app) fn shown_id(&self) -> &str {
        let name = self.name.as_deref().filter(|name| self.is_named(name));
        name.unwrap_or(&self.id)
    }

    /// Whether the name alone is an id of the subject.
    fn is_named(&self, name: &str) -> bool {
        let named = self.limit.bucket_of(name).ok();
        let own = self.limit.bucket_of(&self.id).ok();
        named.is_some() && named == own
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.is_least { "at least" } else { "about" };
        write!(f, "{about} {} workers", self.workers)
    }
}

/// A command about a subject for a shell; none if that would not be safe to paste.
pub(in crate::app) fn command(verb: &[&str], id: &str, options: &[&str]) -> Option<String> {
    let words = verb.iter().chain([&id]).chain(options);
    let words: Vec<String> = words.map(|word| quoted(word)).collect::<Option<_>>()?;
    // What looks like an option is taken for one.
    (!id.starts_with('-')).then(|| format!("weir {}", words.join(" ")))
}

/// The quota of a subject, be it that of an override.
pub(in crate::app) fn quota_of(limit: &Limit, id: &str, now: Timestamp) -> Option<Quota> {
    let overridden = limit.override_of(id, now).ok().flatten();
    overridden.map(|entry| entry.quota).or(limit.quota())
}

/// A share in whole percent; no share is 0% or 100% that is not.
fn percent(part: u64, whole: u64) -> String {
    let percent = part.saturating_mul(100) / whole.max(1);
    match percent {
        0 if part > 0 => "less than 1%".to_owned(),
        percent => format!("{percent}%"),
    }
}

/// A word of a command line; none if it has a character that a terminal would act upon.
fn quoted(word: &str) -> Option<String> {
    let is_bare = |char: char| char.is_ascii_alphanumeric() || "._:/@%+,=-".contains(char);
    if !word.is_empty() && word.chars().all(is_bare) {
        return Some(word.to_owned());
    }
    // Letters of all scripts are escaped by nobody; controls and what turns a line around are.
    let is_shown = |char: char| "'\"\\".contains(char) || char.escape_debug().count() == 1;
    let is_plain = word.chars().all(is_shown);
    is_plain.then(|| format!("'{}'", word.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use serde_json::{Value, json};
    use tokio::runtime::Builder;
    use tokio::time::advance;

    use super::*;
    use weir_config::testing::Folder;
    use weir_telemetry::Metrics;

    const NOW: u64 = 1_800_000_000;

    const GATEWAY: &str = r#"
admin: {address: 127.0.0.1:9901}
account: [{header: x-api-key}]
hash_key: {file: hash.key}
log: {account: plain}
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
bans: {abusers: {per: address, strikes: {limits: [Logins], count: 10, period: 1m}, for: 30m}}
routes:
  - name: teams
    match: {path: "/teams/{team}"}
    upstream: app
    limits: [Teams]
  - {name: all, match: {}, upstream: app, limits: [Logins, Requests, Calls, {limit: New, enforce: false}]}
"#;

    const LIMITS: &str = "Logins: {per: address, burst: 5, count: 5, period: 6m}\n\
                          Requests: {per: address, burst: 50, count: 600, period: 1m}\n\
                          Calls: {per: account, burst: 100, count: 600, period: 1m}\n\
                          New: {per: address, burst: 5, count: 60, period: 1m}\n\
                          Teams: {per: \"path:team\", burst: 5, count: 5, period: 1h}\n";

    fn settings(gateway: &str) -> Settings {
        let folder = Folder::with(&[
            ("gateway.yaml", gateway),
            ("limits/defaults.yaml", LIMITS),
            ("hash.key", "fedcba9876543210"),
        ]);
        folder.settings()
    }

    /// Peers that name other clients and are not trusted.
    const PROXIES: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9)),
    ];

    /// What a subject has sent, and been denied, of a limit: its key without the limit's name.
    type Sent<'a> = (&'a str, &'a str, u32, u32);

    /// What is found of these, a minute after the start.
    fn found(settings: &Settings, sent: &[Sent<'_>]) -> Vec<Value> {
        found_after(60, settings, sent)
    }

    /// The same, so many seconds after the start.
    fn found_after(seconds: u64, settings: &Settings, sent: &[Sent<'_>]) -> Vec<Value> {
        let mut runtime = Builder::new_current_thread();
        runtime.enable_time().start_paused(true);
        runtime.build().unwrap().block_on(async {
            let metrics = counted(sent);
            advance(Duration::from_secs(seconds)).await;
            let now = Timestamp::from_nanos(NOW * 1_000_000_000);
            let scope = Scope::Gateway(&metrics, now);
            let seen = SeenClients {
                forwarders: &PROXIES,
                waits: &WaitSpreader::default(),
                metrics: &metrics,
            };
            let noted = NotedSubjects::new(settings, scope, seen, now);
            let found = noted.findings(settings, scope, seen, now);
            let found = serde_json::to_value(found).unwrap();
            found.as_array().unwrap().clone()
        })
    }

    fn counted(sent: &[Sent<'_>]) -> Arc<Metrics> {
        let metrics = Metrics::new();
        metrics.track_subjects();
        for (limit, subject, requests, denied) in sent {
            let handle = metrics.limit(limit);
            let key = format!("{limit}:{subject}");
            for request in 0..*requests {
                let name = || (*limit == "Calls").then_some("acme");
                let subject = handle.subject_asked(key.as_bytes(), || NOW, name).unwrap();
                let used = if *denied > 0 { 100 } else { 90 };
                handle.subject_decided(subject, request < *denied, || used, || NOW);
            }
        }
        metrics
    }

    /// To raise the limit of a load balancer whose clients all count as one was the advice.
    #[test]
    fn a_proxy_that_nobody_trusts_is_never_a_client_whose_limit_should_be_raised() {
        let settings = settings(GATEWAY);
        for (id, proxy) in [
            ("10.0.0.9", true),
            ("2001:db8::/64", true),
            ("10.0.0.8", false),
        ] {
            for denied in [0, 5, 40] {
                let found = found(&settings, &[("Requests", id, 50, denied)]);
                let remedy = &found[0]["remedy"];
                let text = remedy["text"].as_str().unwrap();
                assert_eq!(text.contains("trusted_proxies"), proxy, "{found:#?}");
                assert_eq!(remedy["command"].is_null(), proxy, "{found:#?}");
            }
        }
    }

    /// The rate of a gateway that had just started was a sixtieth of what clients sent, and that of
    /// a client that had just begun as well.
    #[test]
    fn requests_are_never_divided_by_a_time_in_which_they_did_not_come() {
        let settings = settings(GATEWAY);
        let sent = [("Logins", "203.0.113.9", 600, 550)];
        for (seconds, rate) in [(0, 600.0), (2, 300.0), (9, 200.0), (3600, 200.0)] {
            let found = found_after(seconds, &settings, &sent);
            assert_eq!(found[0]["rate"], rate, "after {seconds} s");
        }
    }

    fn kinds(found: &[Value]) -> Vec<(&str, &str)> {
        found
            .iter()
            .map(|found| {
                (
                    found["kind"].as_str().unwrap(),
                    found["subject"].as_str().unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn a_client_that_does_not_wait_is_an_abuser_and_one_that_wants_a_little_more_is_not() {
        let per = |burst, count, period| Quota::new(burst, count, Duration::from_secs(period)).ok();
        let (fast, slow, logins) = (per(100, 6000, 60), per(20, 1, 1), per(5, 5, 360));
        let places = Quota::in_flight(10).ok();
        let address = KeySource::parse("address", 64).unwrap();
        for (source, quota, requests, denied, abuses) in [
            (&address, fast, 1000, 100, false),
            // A crowd that waits is denied once or twice for each request that passes.
            (&address, fast, 1000, 670, false),
            (&address, fast, 1000, 750, false),
            (&address, fast, 1000, 751, true),
            (&address, fast, 4, 4, false),
            // Twenty workers begin at once, and each second one of them passes and is denied.
            (&address, slow, 140, 80, false),
            // The same with a burst of one.
            (&address, slow, 187, 127, false),
            (&address, slow, 240, 181, true),
            // An attack on logins of which a ban has ended most before the limit was asked.
            (&address, logins, 96, 10, true),
            (&address, logins, 7, 2, false),
            (&address, places, 100, 60, false),
            (&address, places, 100, 80, true),
            (&KeySource::Account, fast, 1000, 500, false),
            (&KeySource::Account, logins, 96, 10, false),
            (&KeySource::Account, logins, 96, 90, true),
        ] {
            let told = is_abuse(std::slice::from_ref(source), quota, requests, denied);
            assert_eq!(told, abuses, "{source} {quota:?} {requests} {denied}");
        }
    }

    #[test]
    fn the_worst_comes_first_with_its_remedy() {
        let settings = settings(GATEWAY);
        let calls = settings.limit("Calls").unwrap().bucket_of("acme").unwrap();
        let acme = calls.as_str().strip_prefix("Calls:").unwrap();
        let found = found(
            &settings,
            &[
                ("Calls", acme, 1200, 200),
                ("Requests", "198.51.100.1", 500, 0),
                ("Logins", "203.0.113.9", 90, 10),
                ("Requests", "203.0.113.9", 900, 800),
                ("New", "192.0.2.1", 100, 25),
            ],
        );
        let subject = format!("hash:{acme}");
        assert_eq!(
            kinds(&found),
            [
                ("abuse", "203.0.113.9"),
                ("over_limit", &*subject),
                ("dry_run", "192.0.2.1"),
                ("near_limit", "198.51.100.1"),
            ]
        );
        let told = |place: usize| {
            let (found, remedy) = (&found[place], &found[place]["remedy"]);
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            [
                text(&found["text"]),
                text(&remedy["text"]),
                text(&remedy["command"]),
            ]
            .join("\n")
        };
        insta::assert_snapshot!(told(0), @r"
        keeps sending although Requests denies 88% of its 300 requests a second, and Logins denies it as well
        Ban it for a while
        weir ban add abusers 203.0.113.9 --for 30m
        ");
        insta::assert_snapshot!(told(1), @r"
        wants more than Calls allows: 16% of its 400 requests a second are denied
        If it is a customer who may send more, raise its limit
        weir override set Calls acme --burst 300 --count 1800 --period 1m --for 1h
        ");
        insta::assert_snapshot!(told(2), @r"
        would be denied most by New, a dry run: enforced, New would deny 25% of all requests that it counts
        If these are honest clients, raise the limit before you enforce it
        -
        ");
        insta::assert_snapshot!(told(3), @r"
        has used 90% of Requests, with 166.6 requests a second; nothing is denied
        If it is a customer who may send more, raise its limit
        weir override set Requests 198.51.100.1 --burst 100 --count 1200 --period 1m --for 1h
        ");
    }

    #[test]
    fn a_client_that_sends_little_is_not_told_of_before_it_is_denied() {
        let settings = settings(GATEWAY);
        assert!(found(&settings, &[("Logins", "203.0.113.1", 4, 0)]).is_empty());
        let denied = found(&settings, &[("Logins", "203.0.113.1", 4, 1)]);
        assert_eq!(kinds(&denied), [("over_limit", "203.0.113.1")]);
        let text = denied[0]["text"].as_str().unwrap();
        assert!(
            text.ends_with("25% of its 4 requests in the last minute are denied"),
            "{text}"
        );
    }

    #[test]
    fn abusers_of_one_network_are_named_by_it_and_honest_clients_in_it_are_not() {
        let settings = settings(GATEWAY);
        let found = found(
            &settings,
            &[
                ("Logins", "203.0.113.1", 60, 50),
                ("Logins", "203.0.113.2", 60, 50),
                ("Logins", "203.0.113.3", 60, 50),
                ("Logins", "203.0.113.4", 9, 1),
                ("Logins", "2001:db8:0:1::/64", 60, 50),
            ],
        );
        assert_eq!(
            kinds(&found),
            [
                ("abuse", "203.0.113.0/24"),
                ("abuse", "2001:db8:0:1::/64"),
                ("over_limit", "203.0.113.4"),
            ]
        );
        assert_eq!(found[0]["subjects"], 3);
        assert_eq!(
            found[0]["remedy"]["command"],
            "weir ban add abusers 203.0.113.0/24 --for 30m"
        );
    }

    #[test]
    fn an_attack_that_is_spread_over_a_network_is_one_although_each_address_sends_little() {
        let settings = settings(GATEWAY);
        let addresses: Vec<String> = (1..=10).map(|host| format!("203.0.113.{host}")).collect();
        let sent = |requests, denied| -> Vec<Sent<'_>> {
            let each = addresses.iter();
            each.map(|address| ("Logins", &**address, requests, denied))
                .collect()
        };
        assert_eq!(
            kinds(&found(&settings, &sent(6, 4))),
            [("abuse", "203.0.113.0/24")]
        );
        // Each of them waits as it is told, and is denied once for each request that passes.
        let waits: Vec<Sent<'_>> = addresses
            .iter()
            .map(|address| ("Requests", &**address, 1200, 600))
            .collect();
        for honest in [sent(6, 1), waits] {
            let honest = found(&settings, &honest);
            assert!(
                kinds(&honest).iter().all(|(kind, _)| *kind == "over_limit"),
                "{honest:?}"
            );
        }
    }

    #[test]
    fn without_a_ban_per_the_same_the_remedy_is_one_that_there_is() {
        let without = GATEWAY.replace("bans: ", "# ");
        let settings = settings(&without);
        let found = found(&settings, &[("Logins", "203.0.113.9", 90, 50)]);
        let remedy = &found[0]["remedy"];
        assert_eq!(
            (&remedy["action"], &remedy["command"]),
            (&Value::Null, &Value::Null)
        );
        assert!(
            remedy["text"].as_str().unwrap().contains("`block`"),
            "{remedy}"
        );
    }

    #[test]
    fn a_command_never_does_more_than_it_says_whatever_the_subject_is() {
        let settings = settings(GATEWAY);
        let command = |team: &str| {
            let found = found(&settings, &[("Teams", team, 6, 2)]);
            found[0]["remedy"]["command"].as_str().map(str::to_owned)
        };
        let parameters = "--burst 15 --count 15 --period 1h --for 1h";
        for (team, shown) in [
            ("red", "red"),
            ("a b", "'a b'"),
            ("$(reboot)", "'$(reboot)'"),
            ("a';reboot;'", r"'a'\'';reboot;'\'''"),
            ("caf\u{e9}", "'caf\u{e9}'"),
            // A bare `*` would raise the limit of other teams as well.
            ("*", r"'\*'"),
            ("red*", r"'red\*'"),
            (r"red\*", r"'red\\*'"),
        ] {
            let expected = format!("weir override set Teams {shown} {parameters}");
            assert_eq!(command(team), Some(expected), "{team}");
        }
        for team in [
            "--config=/etc/passwd",
            "a\nreboot",
            "a\u{1b}[2J",
            "\u{202e}toober",
        ] {
            assert_eq!(command(team), None, "{team:?}");
        }
    }

    #[test]
    fn names_of_accounts_are_shown_only_while_the_log_shows_them() {
        let hashed = GATEWAY.replace("account: plain", "account: hash");
        for (gateway, name) in [(GATEWAY, json!("acme")), (&hashed, Value::Null)] {
            let settings = settings(gateway);
            let found = found(
                &settings,
                &[("Calls", "42c215a98a732f91bbfa66a067d1401d", 90, 50)],
            );
            assert_eq!(found[0]["name"], name, "{gateway}");
        }
    }
}
