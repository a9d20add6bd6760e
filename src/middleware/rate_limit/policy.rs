//! What holds on a route: its limits, and what becomes of a request that one of them denies.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};

use super::header_fields::{HeaderForms, Label};
use crate::middleware::Cors;
use crate::middleware::decoy::Shadow;
use crate::middleware::response::{self, Rejection};
use crate::rules::{Cost, KeySource, LimitUse};
use crate::telemetry::{LimitMetrics, Metrics};
use crate::time::Nanos;

/// The limits of one route and how their decisions show. By default there are none, and denials are
/// honest.
#[derive(Clone, Debug)]
pub struct RoutePolicy {
    /// The route's name, which limits `per: route` count by.
    pub name: Arc<str>,
    /// The limits; a request takes from all of them or from none.
    pub limits: Vec<LimitUse>,
    /// What a denied request gets.
    pub on_denied: OnDenied,
    /// The header fields that tell a client where it stands.
    pub headers: HeaderForms,
    /// What pages of other origins may do; none where nothing is said of that.
    pub cors: Option<Arc<Cors>>,
}

impl Default for RoutePolicy {
    fn default() -> Self {
        Self {
            name: "-".into(),
            limits: Vec::new(),
            on_denied: OnDenied::default(),
            headers: HeaderForms::default(),
            cors: None,
        }
    }
}

/// What a denied request gets.
#[derive(Clone, Debug)]
pub enum OnDenied {
    /// An honest answer.
    Reject(Rejection),
    /// An invented one.
    Shadow(Arc<Shadow>),
}

impl Default for OnDenied {
    fn default() -> Self {
        Self::Reject(Rejection::default())
    }
}

/// A policy with all that can be prepared at load time.
#[derive(Clone)]
pub(in crate::middleware) struct PreparedPolicy {
    policy: RoutePolicy,
    limits: Vec<PreparedLimit>,
    /// Whether a limit counts clients by their addresses.
    pub(super) counts_addresses: bool,
    /// Fields of responses that are not for clients.
    concealed: Vec<HeaderName>,
}

#[derive(Clone)]
pub(super) struct PreparedLimit {
    pub(super) name: Arc<str>,
    pub(super) label: Label,
    /// The problem document for a request that this limit alone denies.
    pub(super) document: Bytes,
    pub(super) metrics: LimitMetrics,
}

impl PreparedPolicy {
    pub(in crate::middleware) fn new(policy: RoutePolicy, metrics: &Metrics) -> Self {
        let status = match &policy.on_denied {
            OnDenied::Reject(rejection) => rejection.status,
            OnDenied::Shadow(_) => Rejection::default().status,
        };
        let prepare = |used: &LimitUse| {
            let name = used.limit.name();
            PreparedLimit {
                name: name.into(),
                label: Label::new(name, used.limit.quota()),
                document: response::document(status, &[name], Nanos::ZERO),
                metrics: counters(used, metrics),
            }
        };
        let mut sources = policy.limits.iter().flat_map(|used| used.limit.per());
        Self {
            counts_addresses: sources.any(|source| matches!(source, KeySource::Address { .. })),
            limits: policy.limits.iter().map(prepare).collect(),
            concealed: concealed(&policy),
            policy,
        }
    }

    pub(in crate::middleware) fn policy(&self) -> &RoutePolicy {
        &self.policy
    }

    pub(super) fn limit(&self, index: usize) -> Option<&PreparedLimit> {
        self.limits.get(index)
    }

    /// A limit as the route uses it.
    pub(super) fn used(&self, index: usize) -> Option<&LimitUse> {
        self.policy.limits.get(index)
    }

    /// What is counted of a limit.
    pub(super) fn metrics(&self, index: usize) -> Option<&LimitMetrics> {
        self.limit(index).map(|limit| &limit.metrics)
    }

    /// Whether the upstream's responses have fields that are not for clients.
    pub(super) fn conceals(&self) -> bool {
        !self.concealed.is_empty()
    }

    /// Takes off what the upstream says to Weir alone.
    pub(super) fn conceal(&self, headers: &mut HeaderMap) {
        for name in &self.concealed {
            headers.remove(name);
        }
    }
}

/// What is counted of a limit, with all that its use on a route can lead to at zero.
fn counters(used: &LimitUse, metrics: &Metrics) -> LimitMetrics {
    let limit = &used.limit;
    let counters = metrics.limit(limit.name());
    if !used.is_plain() {
        counters.expect_settlements();
    }
    let of_overrides = limit.overrides().map(|overridden| overridden.quota);
    let mut quotas = limit.quota().into_iter().chain(of_overrides);
    if quotas.any(|quota| quota.is_in_flight()) {
        counters.expect_leases();
    }
    counters
}

/// The fields by which an upstream tells what a request has cost.
fn concealed(policy: &RoutePolicy) -> Vec<HeaderName> {
    let names = policy.limits.iter().filter_map(|used| match &used.cost {
        Cost::Measured(measured) => measured.response_header.clone(),
        Cost::Fixed(_) => None,
    });
    names.collect()
}
