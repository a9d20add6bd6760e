//! What is to be asked about one request: which buckets, with which quotas.

mod answers;
mod inquiry;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request};
use http_body::Body;

pub(super) use self::answers::Denial;
use self::inquiry::Role;
pub(super) use self::inquiry::{QueriedLimits, StoreQuery};
use super::fields::Label;
use super::{HeaderForms, OnDenied, Rejection, RoutePolicy, reject};
use crate::middleware::ClientIdentity;
use crate::rules::{Captures, Cost, KeySource, LimitUse, RequestAttributes, RouteMatch, Subject};
use crate::telemetry::{LimitMetrics, Metrics};
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
    Lacking(MissingValue),
    /// The store has to be asked.
    Ask(StoreQuery),
}

/// A limit without the value that it counts by.
pub(super) struct MissingValue {
    limit: usize,
    source: KeySource,
}

impl Prepared {
    pub(super) fn new(policy: RoutePolicy, metrics: &Metrics) -> Self {
        let status = match &policy.on_denied {
            OnDenied::Reject(rejection) => rejection.status,
            OnDenied::Shadow(_) => Rejection::default().status,
        };
        let prepare = |used: &LimitUse| {
            let name = used.limit.name();
            PreparedLimit {
                name: name.into(),
                label: Label::new(name, used.limit.quota()),
                document: reject::document(status, &[name], Nanos::ZERO),
                metrics: counters(used, metrics),
            }
        };
        let limits = policy.limits.iter().map(prepare).collect();
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
        let cors = self.0.policy.cors.as_deref();
        if cors.is_some_and(|cors| cors.spares(request)) {
            return Plan::Unlimited;
        }
        let mut inquiry = StoreQuery::default();
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
                    // Clients are told where they stand, if they are told at all.
                    if !arrival.is_free || self.0.policy.headers != HeaderForms::NONE {
                        inquiry.add(index, used.kind, arrival);
                    }
                }
                Subject::Skipped(_) | Subject::Exempt => {}
                // A request without a subject is not among the share that is acted upon.
                Subject::Missing(_) if used.enforcement.is_partial() => {
                    inquiry.asked.would_lack.get_or_insert(index);
                }
                // A browser sends no credentials with its preflights.
                Subject::Missing(_) if cors.is_some_and(|cors| cors.is_preflight(request)) => {}
                Subject::Missing(source) => {
                    return Plan::Lacking(MissingValue {
                        limit: index,
                        source: source.clone(),
                    });
                }
            }
        }
        if inquiry.asked.is_empty() {
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
    ) -> RequestAttributes<'a> {
        let sender = request.extensions().get::<ClientIdentity>();
        let route = request.extensions().get::<RouteMatch>();
        RequestAttributes {
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
    pub(super) fn name_of(&self, lack: &MissingValue) -> Option<Arc<str>> {
        self.limit(lack.limit).map(|limit| Arc::clone(&limit.name))
    }
}

/// What is counted of a limit, with all that its use on a route can lead to at zero.
fn counters(used: &LimitUse, metrics: &Metrics) -> LimitMetrics {
    let counters = metrics.limit(used.limit.name());
    if !used.is_plain() {
        counters.expect_settlements();
    }
    let of_overrides = used.limit.overrides().map(|it| it.quota);
    if used
        .limit
        .quota()
        .into_iter()
        .chain(of_overrides)
        .any(|quota| quota.is_in_flight())
    {
        counters.expect_leases();
    }
    counters
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

impl MissingValue {
    /// The source of the value.
    pub(super) fn source(&self) -> &KeySource {
        &self.source
    }
}
