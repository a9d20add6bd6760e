//! All that is known of a route before its first request.

use std::sync::Arc;

use super::UpstreamId;
use super::bans::{Gate, PreparedTreatment};
use super::cors::Cors;
use super::decoy::Shadow;
use super::rate_limit::policy::{OnDenied, PreparedPolicy, RoutePolicy};
use crate::rules::Captures;
use crate::telemetry::{Metrics, RouteMetrics};

/// A route's policy, metrics, decoys and upstream, made once for a configuration.
#[derive(Clone)]
pub struct RouteState {
    pub(super) policy: PreparedPolicy,
    pub(super) metrics: RouteMetrics,
    /// The decoys of those who are kept out. Each learns from this route's answers alone.
    decoys: Vec<(Arc<PreparedTreatment>, Arc<Shadow>)>,
    pub(super) upstream: Option<UpstreamId>,
}

/// The route of a request; it travels in the request's extensions.
#[derive(Clone)]
pub struct Routed {
    /// The route.
    pub(super) route: Arc<RouteState>,
    /// The captured segments of the path.
    pub(super) captures: Captures,
    /// Where the request goes; the route's upstream, unless it is diverted.
    pub(super) upstream: Option<UpstreamId>,
}

impl RouteState {
    /// A route to this upstream, behind a gate.
    pub fn new(
        policy: RoutePolicy,
        upstream: UpstreamId,
        gate: &Gate,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let route = Self::without_gate(policy, metrics).behind(gate);
        Arc::new(Self {
            upstream: Some(upstream),
            ..route
        })
    }

    /// A route that leads to whatever service is below.
    pub(super) fn without_gate(policy: RoutePolicy, metrics: &Metrics) -> Self {
        Self {
            metrics: metrics.route(&policy.name),
            policy: PreparedPolicy::new(policy, metrics),
            decoys: Vec::new(),
            upstream: None,
        }
    }

    /// The same route behind a gate.
    pub(super) fn behind(self, gate: &Gate) -> Self {
        let decoys = gate.treatments().filter_map(|treatment| {
            let shadow = Arc::new(treatment.shadow()?);
            Some((Arc::clone(treatment), shadow))
        });
        Self {
            decoys: decoys.collect(),
            ..self
        }
    }

    /// The decoy that such a treatment gives on this route.
    pub(super) fn decoy(&self, treatment: &Arc<PreparedTreatment>) -> Option<&Arc<Shadow>> {
        let mut decoys = self.decoys.iter();
        let found = decoys.find(|(of, _)| Arc::ptr_eq(of, treatment));
        found.map(|(_, shadow)| shadow)
    }

    /// The decoys that learn from all answers, whether a limit applied or not.
    pub(super) fn decoys(&self) -> impl Iterator<Item = &Arc<Shadow>> {
        self.decoys.iter().map(|(_, shadow)| shadow)
    }

    /// The decoys of the route: that of its limits, and those of bans and of the block list.
    pub fn shadows(&self) -> impl Iterator<Item = (ShadowOf<'_>, &Shadow)> {
        let of_limits = match &self.policy.policy().on_denied {
            OnDenied::Shadow(shadow) => Some((ShadowOf::Limits, &**shadow)),
            OnDenied::Reject(_) => None,
        };
        let kept_out = self.decoys.iter().map(|(treatment, shadow)| {
            let of = match &treatment.ban {
                Some(ban) => ShadowOf::Ban(ban),
                None => ShadowOf::BlockList,
            };
            (of, &**shadow)
        });
        of_limits.into_iter().chain(kept_out)
    }

    /// What pages of other origins may do.
    pub(super) fn cors(&self) -> Option<&Arc<Cors>> {
        self.policy.policy().cors.as_ref()
    }

    /// Whether any limit is used.
    pub(super) fn is_limited(&self) -> bool {
        !self.policy.policy().limits.is_empty()
    }

    /// The route's name.
    pub fn name(&self) -> &str {
        &self.policy.policy().name
    }
}

/// Whom a decoy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShadowOf<'r> {
    /// Those whom the route's limits deny.
    Limits,
    /// Those whom this ban bans.
    Ban(&'r str),
    /// Those on the block list.
    BlockList,
}
