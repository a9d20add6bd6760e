//! The stack of a listener that decides about requests which other proxies forward: the layers of
//! the gateway, without what needs the response or the client's connection.

use bytes::Bytes;
use http::{Response, request};
use http_body_util::Full;
use tower::Layer;
use weir_config::Settings;
use weir_middleware::{Backend, ForwardAuth, ForwardAuthLayer, SubrequestError, UpstreamRouter};
use weir_telemetry::ListenerKind;

use super::stack::{self, Layers, SharedState, Stack};
use super::upstreams::ActiveUpstreams;

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
    pub(super) fn new(settings: &Settings, shared: &SharedState) -> Self {
        let trusted = settings.decides_for().unwrap_or_default();
        let settings = settings.for_decisions();
        let layers = Layers::on(
            ListenerKind::Decide,
            &settings,
            &ActiveUpstreams::default(),
            shared,
        );
        Self {
            forward_auth: ForwardAuthLayer::new(trusted),
            layers: layers.refusing(refusal),
        }
    }

    /// Stacks the layers on a worker's store, as [`Layers::stack`] does.
    pub(super) fn stack<S>(&self, backend: Backend) -> ForwardAuthStack<S> {
        let stack = self.layers.stack(backend, UpstreamRouter::admitting());
        self.forward_auth.layer(stack)
    }
}

pub(super) fn refusal(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
    SubrequestError::refusal(head).or_else(|| stack::refusal(head))
}
