//! What holds on a route: its limits, and what becomes of a request that one of them denies.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, Method};
use weir_limit::time::Nanos;
use weir_rules::{Cost, KeySource, LimitMatch, LimitUse, PlainCost, RequestAttributes};
use weir_telemetry::{Disposition, LimitMetrics, Metrics};

use super::delay::Delay;
use super::denial_lines::DenialLines;
use super::header_fields::{HeaderForm, HeaderForms, Label};
use super::in_flight::PlaceCounter;
use super::on_denied::OnDenied;
use crate::rejection::{self, retry_after};

/// The limits of one route and how their decisions show. By default there are none, and denials are
/// honest. `L` is a limit: as the route uses it, or with all that can be prepared at load time.
#[derive(Clone, Debug)]
pub struct RoutePolicy<L = LimitUse> {
    /// The route's name, which limits `per: route` count by.
    pub name: Arc<str>,
    /// The limits; a request takes from all of them or from none.
    pub limits: Vec<L>,
    /// What a denied request gets.
    pub on_denied: OnDenied,
    /// How requests wait for their turn in place of a denial; none where they do not.
    pub delay: Option<Arc<Delay>>,
    /// Which forms of RateLimit headers responses have.
    pub header_forms: HeaderForms,
    /// The feature beside the limits that they ask and tell.
    pub hook: Option<Arc<dyn LimitHook>>,
}

/// A feature of a route that stands beside its limits, such as [`Cors`](crate::Cors). A request's
/// `body_bytes` are the length of its body, if that is known.
pub trait LimitHook: fmt::Debug + Send + Sync {
    /// Whether the limits leave a request alone.
    fn exempts(&self, method: &Method, headers: &HeaderMap, body_bytes: BodyBytes<'_>) -> bool;

    /// Whether it is no fault of the client that a request lacks what a limit counts by.
    fn excuses(&self, method: &Method, headers: &HeaderMap, body_bytes: BodyBytes<'_>) -> bool;

    /// What else decides whether the limits leave a request alone, for people; none if nothing does.
    fn caveat(
        &self,
        _method: &Method,
        _headers: &HeaderMap,
        _body_bytes: BodyBytes<'_>,
    ) -> Option<&'static str> {
        None
    }

    /// The headers of a response show where its client stands.
    fn limits_shown(&self, headers: &mut HeaderMap);
}

/// Finds out the length of a request's body.
pub type BodyBytes<'b> = &'b dyn Fn() -> Option<u64>;

impl Default for RoutePolicy {
    fn default() -> Self {
        Self {
            name: "-".into(),
            limits: Vec::new(),
            on_denied: OnDenied::default(),
            delay: None,
            header_forms: HeaderForms::default(),
            hook: None,
        }
    }
}

/// A limit as the route uses it, with all that can be prepared at load time.
#[derive(Clone)]
pub struct PreparedLimit {
    pub used: LimitUse,
    plain_cost: Option<PlainCost>,
    pub name: Arc<str>,
    pub(super) label: Label,
    /// The problem document for a request that this limit alone denies.
    pub document: Bytes,
    /// The header lines of the response to it; none where they are not the default ones.
    pub(super) lines: Option<Arc<DenialLines>>,
    pub metrics: LimitMetrics,
    pub(super) places: PlaceCounter,
}

/// A limit of a policy: as the route uses it, or prepared.
pub trait UsedLimit {
    /// The limit as the route uses it.
    fn used(&self) -> &LimitUse;

    /// [`LimitUse::plain_cost`].
    fn plain_cost(&self) -> Option<PlainCost>;
}

impl UsedLimit for LimitUse {
    fn used(&self) -> &LimitUse {
        self
    }

    fn plain_cost(&self) -> Option<PlainCost> {
        Self::plain_cost(self)
    }
}

impl UsedLimit for PreparedLimit {
    fn used(&self) -> &LimitUse {
        &self.used
    }

    fn plain_cost(&self) -> Option<PlainCost> {
        self.plain_cost
    }
}

impl RoutePolicy {
    /// What requests get that its limits do not let through at once.
    pub fn dispositions(&self) -> impl Iterator<Item = Disposition> + use<> {
        let delayed = self.delay.as_ref().map(|_| Disposition::Delayed);
        let limits = !self.limits.is_empty();
        let all = [self.on_denied.disposition()].into_iter().chain(delayed);
        all.filter(move |_| limits)
    }

    /// Whether a limit counts requests by such a source.
    pub(crate) fn counts_by(&self, is_such: impl Fn(&KeySource) -> bool) -> bool {
        let mut sources = self.limits.iter().flat_map(|used| used.limit.per());
        sources.any(is_such)
    }

    /// The headers by which an upstream tells what a request has cost.
    pub(crate) fn cost_headers(&self) -> Vec<HeaderName> {
        let names = self.limits.iter().filter_map(|used| match &used.cost {
            Cost::Measured(measured) => measured.response_header.clone(),
            Cost::Fixed(_) => None,
        });
        names.collect()
    }

    /// Whether the response to a denied request has the headers that it has by default.
    fn has_default_lines(&self) -> bool {
        let rejection = self.on_denied.rejection();
        let is_default = rejection.is_some_and(|it| it.body.is_none() && it.headers.is_empty());
        is_default && self.hook.is_none() && self.header_forms == HeaderForms::default()
    }

    pub(crate) fn prepare(self, metrics: &Metrics) -> RoutePolicy<PreparedLimit> {
        let status = self.on_denied.status();
        let has_default_lines = self.has_default_lines();
        let prepare = |used: LimitUse| {
            let name = used.limit.name();
            let label = Label::new(name, used.limit.quota());
            let lines = has_default_lines.then(|| DenialLines::new(&label));
            PreparedLimit {
                name: name.into(),
                lines: lines.flatten().map(Arc::new),
                label,
                document: rejection::document(status, &[name], Nanos::ZERO),
                metrics: counters(&used, metrics),
                places: PlaceCounter::of(&used.limit, metrics),
                plain_cost: used.plain_cost(),
                used,
            }
        };
        RoutePolicy {
            name: self.name,
            limits: self.limits.into_iter().map(prepare).collect(),
            on_denied: self.on_denied,
            delay: self.delay,
            header_forms: self.header_forms,
            hook: self.hook,
        }
    }
}

impl<L: UsedLimit> RoutePolicy<L> {
    /// What each limit has to do with a request, whose body has `body_bytes` if that is known.
    pub fn matches<'p>(
        &'p self,
        attributes: &'p RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64> + 'p,
    ) -> impl Iterator<Item = (&'p L, LimitMatch<'p>)> {
        let limits = self.limits_for(attributes, &body_bytes);
        limits
            .iter()
            .map(move |limit| (limit, self.matching(limit, attributes, &body_bytes)))
    }

    /// Whether the limits leave a request alone.
    #[inline]
    pub fn exempts(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body_bytes: impl Fn() -> Option<u64>,
    ) -> bool {
        let hook = self.hook.as_deref();
        hook.is_some_and(|hook| hook.exempts(method, headers, &body_bytes))
    }

    /// The limits that a request is held to.
    #[inline]
    pub(super) fn limits_for(
        &self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
    ) -> &[L] {
        match self.exempts(attributes.method, attributes.headers, body_bytes) {
            true => &[],
            false => &self.limits,
        }
    }

    /// What a limit has to do with a request. What it says is large, so it is made where it is used.
    #[inline(always)]
    pub(super) fn matching<'p>(
        &'p self,
        limit: &'p L,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
    ) -> LimitMatch<'p> {
        let is_excused = || {
            let (method, headers) = (attributes.method, attributes.headers);
            let hook = self.hook.as_deref();
            hook.is_some_and(|hook| hook.excuses(method, headers, &body_bytes))
        };
        let (used, plain_cost) = (limit.used(), limit.plain_cost());
        let mut found = used.matching_at(plain_cost, attributes, &body_bytes);
        if let LimitMatch::Missing { source, acts: true } = found
            && is_excused()
        {
            found = LimitMatch::Skipped(source);
        }
        found
    }
}

impl RoutePolicy<PreparedLimit> {
    /// The same policy, with copies of what requests refer to.
    pub(crate) fn unshared(&self) -> Self {
        let unshared = |limit: &PreparedLimit| PreparedLimit {
            name: (*limit.name).into(),
            document: Bytes::copy_from_slice(&limit.document),
            ..limit.clone()
        };
        Self {
            limits: self.limits.iter().map(unshared).collect(),
            ..self.clone()
        }
    }

    /// The wait that a denial tells its client, where a limit asks for this one: that, or the seconds
    /// that the route says in its place. A decoy tells none, nor does a denial for good.
    pub(super) fn told_wait(&self, wait: Nanos) -> Option<Nanos> {
        let rejection = self.on_denied.rejection()?;
        let written = rejection.headers.get(RETRY_AFTER);
        let written = written.and_then(|value| value.to_str().ok()?.parse().ok());
        let exact = || (wait != Nanos::NEVER).then_some(wait);
        match self.header_forms.contains(HeaderForm::RetryAfterMs) {
            _ if written.is_some() => written.map(Nanos::from_secs),
            true => exact(),
            false => retry_after(wait).map(Nanos::from_secs),
        }
    }

    /// A limit by its index.
    pub(crate) fn limit(&self, index: usize) -> Option<&PreparedLimit> {
        self.limits.get(index)
    }
}

/// What is counted of a limit, with all that its use on a route can lead to at zero.
fn counters(used: &LimitUse, metrics: &Metrics) -> LimitMetrics {
    let counters = metrics.limit(used.limit.name());
    if !used.is_plain() {
        counters.expect_settlements();
    }
    counters
}
