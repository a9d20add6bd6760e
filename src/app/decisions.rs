//! The stack of a listener that decides about requests which other proxies forward: the layers of
//! the gateway, without what needs the response or the client's connection.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode, request};
use http_body_util::Full;
use tower::Layer;
use weir_config::{Route, Settings};
use weir_limit::time::Clock;
use weir_middleware::{
    AccessSettings, BackgroundTasks, BanPolicy, Decide, DecideLayer, KnownBans, OnDenied,
    Rejection, RequestBounds, RouteAction, RoutePolicy, SubrequestError, TarpitSlots, Treatment,
    UpstreamRouter, WaitSpreader,
};
use weir_rules::{LimitUse, StatusSet};
use weir_store::{Leases, Store};
use weir_telemetry::{ListenerKind, Metrics, Tracer};

use super::stack::{self, Layers, Stack};

/// The gateway as a service for subrequests. `S` is the service of an upstream, which it never
/// calls.
pub(super) type DecisionStack<S> = Decide<Stack<S>>;

/// The layers of a configuration for subrequests.
pub(super) struct DecisionLayers {
    decide: DecideLayer,
    layers: Layers,
}

impl DecisionLayers {
    /// Prepares all that workers share, from the same values as [`Layers::new`]. Without `decide` in
    /// the settings it trusts no proxy.
    pub(super) fn new(
        settings: &Settings,
        tarpit_slots: &TarpitSlots,
        bans: &KnownBans,
        metrics: &Arc<Metrics>,
        tracer: Option<Arc<Tracer>>,
    ) -> Self {
        let trusted = settings.decides_for().unwrap_or_default();
        let settings = decidable(settings);
        let listener = ListenerKind::Decide;
        let layers = Layers::on(
            listener,
            &settings,
            &[],
            tarpit_slots,
            bans,
            metrics,
            tracer,
        );
        Self {
            decide: DecideLayer::new(trusted),
            layers: layers.refusing(refusal),
        }
    }

    /// The same layers, as [`Layers::spreading_waits`] makes them.
    pub(super) fn spreading_waits(self, waits: &WaitSpreader) -> Self {
        let layers = self.layers.spreading_waits(waits);
        Self { layers, ..self }
    }

    /// Stacks the layers on a worker's store, as [`Layers::stack`] does.
    pub(super) fn stack<S>(
        &self,
        store: Arc<dyn Store>,
        leases: Arc<dyn Leases>,
        clock: Arc<dyn Clock>,
        tasks: &BackgroundTasks,
    ) -> DecisionStack<S> {
        let admitting = UpstreamRouter::admitting();
        let stack = self.layers.stack(store, leases, clock, tasks, admitting);
        self.decide.layer(stack)
    }
}

pub(super) fn refusal(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
    SubrequestError::refusal(head).or_else(|| stack::refusal(head))
}

/// The settings without what a decision cannot do; `weir check` warns of each.
fn decidable(settings: &Settings) -> Settings {
    let access = &settings.access;
    let bans = access.bans.iter().map(|ban| BanPolicy {
        statuses: StatusSet::default(),
        treatment: honest(&ban.treatment, StatusCode::TOO_MANY_REQUESTS),
        ..ban.clone()
    });
    let mut decidable = settings.clone();
    decidable.routes = settings.routes.iter().map(decidable_route).collect();
    decidable.access = AccessSettings {
        lists: access.lists.clone(),
        blocked: honest(&access.blocked, StatusCode::FORBIDDEN),
        bans: bans.collect(),
    };
    decidable.response_steps = settings.response_steps.of_decisions();
    decidable
}

fn decidable_route(route: &Route) -> Route {
    let policy = &route.policy;
    let limits = policy.limits.iter().filter_map(LimitUse::by_head_alone);
    let on_denied = match &policy.on_denied {
        OnDenied::Reject(rejection) => rejection.clone(),
        // A decoy would look like an admission to the proxy.
        OnDenied::Shadow(_) => Rejection::default(),
    };
    Route {
        policy: RoutePolicy {
            limits: limits.collect(),
            on_denied: OnDenied::Reject(on_denied),
            ..policy.clone()
        },
        upstream: None,
        bounds: RequestBounds::default(),
        action: RouteAction::default(),
        response_steps: route.response_steps.of_decisions(),
        ..route.clone()
    }
}

/// The treatment as a response that the proxy can send on.
fn honest(treatment: &Treatment, status: StatusCode) -> Treatment {
    match treatment {
        Treatment::Reject(_) | Treatment::Tarpit(_) => treatment.clone(),
        Treatment::Shadow(_) | Treatment::Divert(_) | Treatment::Drop => {
            Treatment::Reject(Rejection {
                status,
                ..Rejection::default()
            })
        }
    }
}
