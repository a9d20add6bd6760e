//! What holds on a route: its limits, and what becomes of a request that one of them denies.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use weir_limit::time::Nanos;
use weir_rules::{Cost, KeySource, LimitUse};
use weir_telemetry::{LimitMetrics, Metrics};

use super::delay::Delay;
use super::header_fields::{HeaderForms, Label};
#[cfg(feature = "gateway")]
use crate::Compression;
use crate::Cors;
use crate::decoy::Shadow;
use crate::rejection::{self, Rejection};

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
    /// How requests wait for their turn in place of a denial; none where they do not.
    pub delay: Option<Arc<Delay>>,
    /// The headers that show a client where it stands.
    pub headers: HeaderForms,
    /// What pages of other origins may do; none where CORS is not configured.
    pub cors: Option<Arc<Cors>>,
    /// How long request bodies may be, in bytes.
    #[cfg(feature = "gateway")]
    pub max_body_bytes: Option<u64>,
    /// Which responses are compressed; none where none is.
    #[cfg(feature = "gateway")]
    pub compression: Option<Arc<Compression>>,
}

impl Default for RoutePolicy {
    fn default() -> Self {
        Self {
            name: "-".into(),
            limits: Vec::new(),
            on_denied: OnDenied::default(),
            delay: None,
            headers: HeaderForms::default(),
            cors: None,
            #[cfg(feature = "gateway")]
            max_body_bytes: None,
            #[cfg(feature = "gateway")]
            compression: None,
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
pub struct PreparedPolicy {
    pub name: Arc<str>,
    pub limits: Vec<PreparedLimit>,
    pub on_denied: OnDenied,
    pub delay: Option<Arc<Delay>>,
    pub headers: HeaderForms,
    pub cors: Option<Arc<Cors>>,
    #[cfg(feature = "gateway")]
    pub max_body_bytes: Option<u64>,
    #[cfg(feature = "gateway")]
    pub compression: Option<Arc<Compression>>,
    /// Whether a limit counts clients by their addresses.
    pub counts_addresses: bool,
    /// Whether a limit counts clients by their accounts.
    pub counts_accounts: bool,
    /// Headers of responses that are not for clients.
    concealed: Vec<HeaderName>,
}

/// A limit as the route uses it, with all that can be prepared at load time.
#[derive(Clone)]
pub struct PreparedLimit {
    pub used: LimitUse,
    pub name: Arc<str>,
    pub(super) label: Label,
    /// The problem document for a request that this limit alone denies.
    pub document: Bytes,
    pub metrics: LimitMetrics,
}

impl PreparedPolicy {
    pub fn new(policy: RoutePolicy, metrics: &Metrics) -> Self {
        let status = match &policy.on_denied {
            OnDenied::Reject(rejection) => rejection.status,
            OnDenied::Shadow(_) => Rejection::default().status,
        };
        let concealed = concealed(&policy.limits);
        let sources = || policy.limits.iter().flat_map(|used| used.limit.per());
        let counts_addresses = sources().any(|source| matches!(source, KeySource::Address { .. }));
        let counts_accounts = sources().any(|source| *source == KeySource::Account);
        let prepare = |used: LimitUse| {
            let name = used.limit.name();
            PreparedLimit {
                name: name.into(),
                label: Label::new(name, used.limit.quota()),
                document: rejection::document(status, &[name], Nanos::ZERO),
                metrics: counters(&used, metrics),
                used,
            }
        };
        Self {
            name: policy.name,
            limits: policy.limits.into_iter().map(prepare).collect(),
            on_denied: policy.on_denied,
            delay: policy.delay,
            headers: policy.headers,
            cors: policy.cors,
            #[cfg(feature = "gateway")]
            max_body_bytes: policy.max_body_bytes,
            #[cfg(feature = "gateway")]
            compression: policy.compression,
            counts_addresses,
            counts_accounts,
            concealed,
        }
    }

    /// A limit by its index.
    pub fn limit(&self, index: usize) -> Option<&PreparedLimit> {
        self.limits.get(index)
    }

    /// Whether the upstream's responses have headers that are not for clients.
    pub fn conceals(&self) -> bool {
        !self.concealed.is_empty()
    }

    /// Removes the headers that the upstream sends to Weir alone.
    pub fn conceal(&self, headers: &mut HeaderMap) {
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

/// The headers by which an upstream tells what a request has cost.
fn concealed(limits: &[LimitUse]) -> Vec<HeaderName> {
    let names = limits.iter().filter_map(|used| match &used.cost {
        Cost::Measured(measured) => measured.response_header.clone(),
        Cost::Fixed(_) => None,
    });
    names.collect()
}
