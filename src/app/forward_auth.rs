//! The stack of a listener that decides about requests which other proxies forward: the layers of
//! the gateway, without what needs the response or the client's connection.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, request};
use http_body_util::Full;
use tower::Layer;
use weir_config::Settings;
use weir_limit::time::Clock;
use weir_middleware::{
    BackgroundTasks, ForwardAuth, ForwardAuthLayer, KnownBans, SubrequestError, TarpitSlots,
    UpstreamRouter, WaitSpreader,
};
use weir_store::{Leases, Store};
use weir_telemetry::{ListenerKind, Metrics, Tracer};

use super::stack::{self, Layers, Stack};

/// The gateway as a service for subrequests. `S` is the service of an upstream, which it never
/// calls.
pub(super) type ForwardAuthStack<S> = ForwardAuth<Stack<S>>;

/// The layers of a configuration for subrequests.
pub(super) struct ForwardAuthLayers {
    forward_auth: ForwardAuthLayer,
    layers: Layers,
}

impl ForwardAuthLayers {
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
        let settings = settings.for_decisions();
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
            forward_auth: ForwardAuthLayer::new(trusted),
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
    ) -> ForwardAuthStack<S> {
        let admitting = UpstreamRouter::admitting();
        let stack = self.layers.stack(store, leases, clock, tasks, admitting);
        self.forward_auth.layer(stack)
    }
}

pub(super) fn refusal(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
    SubrequestError::refusal(head).or_else(|| stack::refusal(head))
}
