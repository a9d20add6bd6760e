//! What is to be asked about one request: which buckets, with which quotas.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request};
use http_body::Body;
use smallvec::SmallVec;

use super::fields::{Label, Standing, Standings};
use super::settlement::Due;
use super::{OnDenied, Rejection, RoutePolicy, reject};
use crate::limit::{Batch, Claim, Decision, Kind, Quota, Transaction};
use crate::middleware::Sender;
use crate::rules::{Arrival, Captures, Cost, Facts, Limit, LimitUse, RouteMatch, Source, Subject};
use crate::store::{Basis, Outcome};
use crate::telemetry::{Disposition, LimitMetrics, Metrics};
use crate::time::{Nanos, Timestamp};

/// A route's policy with all that can be prepared at load time. Clones share it.
#[derive(Clone)]
pub(super) struct Prepared(Arc<Inner>);

struct Inner {
    policy: RoutePolicy,
    limits: Vec<PreparedLimit>,
    /// Fields of responses that are not for clients.
    concealed: Vec<HeaderName>,
}

struct PreparedLimit {
    name: Arc<str>,
    label: Label,
    /// The problem document for a request that this limit alone denies.
    document: Bytes,
    metrics: LimitMetrics,
}

/// What is to be done about a request.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every plan is the large one, and none is kept"
)]
pub(super) enum Plan {
    /// No limit applies.
    Unlimited,
    /// A limit must have a value that the request lacks.
    Lacking(Lack),
    /// The store has to be asked.
    Ask(Inquiry),
}

/// A limit without the value that it counts by.
pub(super) struct Lack {
    limit: usize,
    source: Source,
}

/// What the store is asked about a request.
#[derive(Default)]
pub(super) struct Inquiry {
    pub(super) batch: Batch,
    /// The places that it asks for among the requests in flight, if the store allows it.
    pub(super) claims: Vec<Claim>,
    pub(super) asked: Asked,
    /// What is left to be done once the request is through; most requests leave nothing.
    pub(super) dues: Vec<Due>,
}

/// The limits that a batch asks about, in its order, and then those on requests in flight.
#[derive(Default)]
pub(super) struct Asked {
    limits: SmallVec<[AskedLimit; 3]>,
    /// A limit that would deny the request for want of a value, if that were acted upon.
    would_lack: Option<usize>,
}

/// A limit that a batch asks about.
#[derive(Clone, Copy)]
struct AskedLimit {
    /// Its index among those of the route.
    limit: usize,
    quota: Quota,
    role: Role,
}

/// What a limit has to say about a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It denies what does not fit.
    Denies,
    /// It would, if that were acted upon.
    WouldDeny,
    /// It never denies.
    Counts,
}

impl Role {
    fn new(kind: Kind, acts: bool) -> Self {
        match (kind.checks(), acts) {
            (true, true) => Self::Denies,
            (true, false) => Self::WouldDeny,
            (false, _) => Self::Counts,
        }
    }
}

impl Asked {
    /// Whether nothing that the store may say would be acted upon.
    pub(super) fn is_idle(&self) -> bool {
        self.limits.iter().all(|it| it.role != Role::Denies)
    }

    /// Whether no limit applies.
    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.would_lack.is_none()
    }

    /// Decisions as a real answer could show them, for a request that took from no bucket. They are
    /// made up even where a bucket was asked: it is not every time, and would give itself away.
    pub(super) fn imagined(&self, basis: Basis) -> Outcome {
        let imagine = |it: &AskedLimit| {
            Some(Decision {
                allowed: true,
                remaining: it.quota.burst().get() - 1,
                retry_in: Nanos::ZERO,
                reset_in: it.quota.emission_interval(),
            })
        };
        Outcome {
            decisions: self.limits.iter().map(imagine).collect(),
            basis,
        }
    }

    /// How many limits are asked about.
    pub(super) fn len(&self) -> usize {
        self.limits.len()
    }

    /// The indexes among those of the route, of the limits from this one on.
    pub(super) fn limits_from(&self, first: usize) -> impl Iterator<Item = usize> {
        self.limits.iter().skip(first).map(|it| it.limit)
    }
}

impl Prepared {
    pub(super) fn new(policy: RoutePolicy, metrics: &Metrics) -> Self {
        let status = match &policy.on_denied {
            OnDenied::Reject(rejection) => rejection.status,
            OnDenied::Shadow(_) => Rejection::default().status,
        };
        let prepare = |limit: &Limit| {
            let name = limit.name();
            PreparedLimit {
                name: name.into(),
                label: Label::new(name, limit.quota()),
                document: reject::document(status, &[name], Nanos::ZERO),
                metrics: metrics.limit(name),
            }
        };
        let limits = policy
            .limits
            .iter()
            .map(|used| prepare(&used.limit))
            .collect();
        Self(Arc::new(Inner {
            limits,
            concealed: concealed(&policy),
            policy,
        }))
    }

    pub(super) fn policy(&self) -> &RoutePolicy {
        &self.0.policy
    }

    /// Names the buckets of a request.
    pub(super) fn plan<B: Body>(&self, request: &Request<B>, now: Timestamp) -> Plan {
        let mut inquiry = Inquiry::default();
        let no_captures = Captures::default();
        let facts = self.facts(request, &no_captures, now);
        for (index, used) in self.0.policy.limits.iter().enumerate() {
            if !used.is_enabled() {
                continue;
            }
            match used.subject(&facts) {
                Subject::Counted { transaction, .. } if used.is_plain() => {
                    inquiry.ask(index, Role::new(used.kind, true), transaction);
                }
                Subject::Counted { transaction, .. } => {
                    let arrival = used.at_arrival(transaction, facts.headers, size(request.body()));
                    inquiry.add(index, used.kind, arrival);
                }
                Subject::Skipped(_) | Subject::Exempt => {}
                // A request without a subject is not among the share that is acted upon.
                Subject::Missing(_) if used.enforcement.is_partial() => {
                    inquiry.asked.would_lack.get_or_insert(index);
                }
                Subject::Missing(source) => {
                    return Plan::Lacking(Lack {
                        limit: index,
                        source: source.clone(),
                    });
                }
            }
        }
        if inquiry.asked.limits.is_empty() && inquiry.asked.would_lack.is_none() {
            Plan::Unlimited
        } else {
            Plan::Ask(inquiry)
        }
    }

    pub(super) fn facts<'a, B>(
        &'a self,
        request: &'a Request<B>,
        no_captures: &'a Captures,
        now: Timestamp,
    ) -> Facts<'a> {
        let sender = request.extensions().get::<Sender>();
        let route = request.extensions().get::<RouteMatch>();
        Facts {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            // Without an address all senders share one bucket, which errs on the strict side.
            client: sender.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |it| it.client.address),
            account: sender.and_then(|it| it.account.as_ref()),
            route: &self.0.policy.name,
            captures: route.map_or(no_captures, |found| &found.captures),
            now,
        }
    }

    fn limit(&self, index: usize) -> Option<&PreparedLimit> {
        self.0.limits.get(index)
    }

    /// A limit as the route uses it.
    pub(super) fn used(&self, index: usize) -> Option<&LimitUse> {
        self.0.policy.limits.get(index)
    }

    /// What is counted of a limit.
    pub(super) fn metrics(&self, index: usize) -> Option<&LimitMetrics> {
        self.limit(index).map(|limit| &limit.metrics)
    }

    /// Whether the upstream's responses have fields that are not for clients.
    pub(super) fn conceals(&self) -> bool {
        !self.0.concealed.is_empty()
    }

    /// Takes off what the upstream says to Weir alone.
    pub(super) fn conceal(&self, headers: &mut HeaderMap) {
        for name in &self.0.concealed {
            headers.remove(name);
        }
    }

    /// The name of the limit that a request lacks a value for.
    pub(super) fn name_of(&self, lack: &Lack) -> Option<Arc<str>> {
        self.limit(lack.limit).map(|limit| Arc::clone(&limit.name))
    }

    /// Where a request stands with each limit whose decision holds for it.
    pub(super) fn standings(&self, asked: &Asked, outcome: &Outcome) -> Standings<'_> {
        let pairs = asked.limits.iter().zip(&outcome.decisions);
        let telling = pairs.filter(|(it, _)| it.role != Role::WouldDeny);
        let standing = |(it, &decision): (&AskedLimit, &Option<Decision>)| {
            Some(Standing {
                label: &self.limit(it.limit)?.label,
                quota: it.quota,
                decision,
            })
        };
        telling.filter_map(standing).collect()
    }

    /// Counts the decisions, by limit.
    pub(super) fn count(&self, asked: &Asked, outcome: &Outcome) {
        for (it, decision) in asked.limits.iter().zip(&outcome.decisions) {
            if let (Some(limit), Some(decision)) = (self.limit(it.limit), decision) {
                limit.metrics.decided(said(it.role, decision));
            }
        }
        let lacking = asked.would_lack.and_then(|index| self.limit(index));
        if let Some(limit) = lacking {
            limit.metrics.decided(Disposition::WouldDeny);
        }
    }

    /// The limits that denied, if any did.
    pub(super) fn denial(&self, asked: &Asked, outcome: &Outcome) -> Option<Denial<'_>> {
        let mut violated: SmallVec<[(&PreparedLimit, Decision); 3]> =
            self.that_say(Disposition::Denied, asked, outcome).collect();
        violated.sort_by_key(|(_, decision)| decision.strictness());
        let strictest = violated.pop()?;
        Some(Denial {
            strictest,
            others: violated,
        })
    }

    /// How many requests the subject has in flight, this one included if it has a place, of the
    /// limit with the fewest places left.
    pub(super) fn in_flight(&self, asked: &Asked, outcome: &Outcome) -> Option<u64> {
        let pairs = asked.limits.iter().zip(&outcome.decisions);
        let places = pairs.filter(|(it, _)| it.quota.is_in_flight());
        let known =
            places.filter_map(|(it, decision)| Some((it.quota.burst().get(), (*decision)?)));
        let strictest = known.max_by_key(|(_, decision)| decision.strictness());
        strictest.map(|(most, decision)| most.saturating_sub(decision.remaining))
    }

    /// The name of the limit that would have denied the request, the strictest where several would.
    pub(super) fn would_deny(&self, asked: &Asked, outcome: &Outcome) -> Option<Arc<str>> {
        let lacking = asked.would_lack.and_then(|index| self.limit(index));
        let strictest = || {
            self.that_say(Disposition::WouldDeny, asked, outcome)
                .max_by_key(|(_, decision)| decision.strictness())
        };
        let limit = lacking.or_else(|| strictest().map(|(limit, _)| limit));
        limit.map(|limit| Arc::clone(&limit.name))
    }

    /// The names of all limits that would have denied the request.
    pub(super) fn would_denials(
        &self,
        asked: &Asked,
        outcome: &Outcome,
    ) -> impl Iterator<Item = &str> + Clone {
        let lacking = asked.would_lack.and_then(|index| self.limit(index));
        let others = self.that_say(Disposition::WouldDeny, asked, outcome);
        let all = lacking.into_iter().chain(others.map(|(limit, _)| limit));
        all.map(|limit| &*limit.name)
    }

    fn that_say(
        &self,
        what: Disposition,
        asked: &Asked,
        outcome: &Outcome,
    ) -> impl Iterator<Item = (&PreparedLimit, Decision)> + Clone {
        let decisions = asked.limits.iter().zip(&outcome.decisions);
        decisions.filter_map(move |(it, decision)| {
            let decision = decision.filter(|decision| said(it.role, decision) == what)?;
            Some((self.limit(it.limit)?, decision))
        })
    }
}

/// What a decision comes to.
fn said(role: Role, decision: &Decision) -> Disposition {
    match role {
        Role::Denies if !decision.allowed => Disposition::Denied,
        Role::WouldDeny if !decision.fits() => Disposition::WouldDeny,
        _ => Disposition::Allowed,
    }
}

impl Inquiry {
    fn add(&mut self, limit: usize, kind: Kind, arrival: Arrival) {
        let Some(transaction) = arrival.transaction else {
            return;
        };
        if let Some(later) = arrival.later {
            self.dues.push(Due {
                limit,
                asked: self.batch.len(),
                transaction: transaction.clone(),
                units: arrival.units,
                later,
            });
        }
        self.ask(limit, Role::new(kind, arrival.acts), transaction);
    }

    fn ask(&mut self, limit: usize, role: Role, transaction: Transaction) {
        let quota = transaction.quota;
        let asked = AskedLimit { limit, quota, role };
        match transaction.claim() {
            Some(claim) => {
                self.claims.push(claim);
                self.asked.limits.push(asked);
            }
            // Those of the batch come first, so that decisions are in the order of what is asked.
            None => {
                self.asked.limits.insert(self.batch.len(), asked);
                self.batch.push(transaction);
            }
        }
    }
}

/// The bytes of a body, where they are known before it is read.
fn size<B: Body>(body: &B) -> Option<u64> {
    if body.is_end_stream() {
        return Some(0);
    }
    body.size_hint().exact()
}

/// The fields by which an upstream tells what a request has cost.
fn concealed(policy: &RoutePolicy) -> Vec<HeaderName> {
    let names = policy.limits.iter().filter_map(|used| match &used.cost {
        Cost::Measured(measured) => measured.response_header.clone(),
        Cost::Fixed(_) => None,
    });
    names.collect()
}

/// The limits that denied a request.
pub(super) struct Denial<'a> {
    strictest: (&'a PreparedLimit, Decision),
    others: SmallVec<[(&'a PreparedLimit, Decision); 3]>,
}

impl Denial<'_> {
    /// The name of the strictest.
    pub(super) fn limit(&self) -> Arc<str> {
        Arc::clone(&self.strictest.0.name)
    }

    /// The names of all of them.
    pub(super) fn limits(&self) -> impl Iterator<Item = &str> + Clone {
        let all = std::iter::once(&self.strictest).chain(&self.others);
        all.map(|(limit, _)| &*limit.name)
    }

    /// The strictest decision.
    pub(super) fn decision(&self) -> &Decision {
        &self.strictest.1
    }

    /// The problem document that names them all, the strictest first.
    pub(super) fn document(&self, rejection: &Rejection) -> Bytes {
        let retry_in = self.decision().retry_in;
        if self.others.is_empty() && retry_in != Nanos::NEVER {
            return self.strictest.0.document.clone();
        }
        let all = std::iter::once(&self.strictest).chain(self.others.iter().rev());
        let names: SmallVec<[&str; 3]> = all.map(|(limit, _)| &*limit.name).collect();
        reject::document(rejection.status, &names, retry_in)
    }
}

impl Lack {
    /// The source of the value.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }
}
