//! The stacks of all kinds of listeners, and which of them serves a request.

use futures_util::future::Either;
use tower::Service;
use weir_config::Settings;
use weir_http::request::HttpRequest;
use weir_middleware::{Backend, UpstreamRouter};

use super::envoy::{self, EnvoyLayers, EnvoyStack};
use super::forward_auth::{ForwardAuthLayers, ForwardAuthStack};
use super::stack::{Layers, SharedState, Stack};
use super::upstreams::ActiveUpstreams;

/// The layers of a configuration for all kinds of listeners.
pub(super) struct StackLayers {
    pub(super) forwarding: Layers,
    /// None where no listener decides for other proxies.
    deciding: Option<ForwardAuthLayers>,
    /// None where Envoy does not ask.
    envoy: Option<EnvoyLayers>,
}

/// The services for all kinds of listeners. They are always ready.
pub(super) struct Stacks<S> {
    pub(super) forwarding: Stack<S>,
    deciding: Option<ForwardAuthStack<S>>,
    envoy: Option<EnvoyStack<S>>,
}

/// The future of a request to one of them.
pub(super) type StackFuture<S, Q> = Either<
    <Stack<S> as Service<Q>>::Future,
    Either<<ForwardAuthStack<S> as Service<Q>>::Future, <EnvoyStack<S> as Service<Q>>::Future>,
>;

impl StackLayers {
    /// Prepares all that workers share. `redirects_to_https` and `decides` say whether some listener
    /// does.
    pub(super) fn new(
        settings: &Settings,
        upstreams: &ActiveUpstreams,
        shared: &SharedState,
        redirects_to_https: bool,
        decides: bool,
    ) -> Self {
        let envoy = settings.envoy.as_ref().filter(|_| decides);
        let forwarding = Layers::new(settings, upstreams, shared);
        Self {
            forwarding: match redirects_to_https {
                true => forwarding.redirecting_to_https(),
                false => forwarding,
            },
            deciding: decides.then(|| ForwardAuthLayers::new(settings, shared)),
            envoy: envoy.map(|service| EnvoyLayers::new(settings, service, shared)),
        }
    }

    /// Stacks the layers on a worker's services.
    pub(super) fn stacks<S>(
        &self,
        backend: impl Fn() -> Backend,
        services: UpstreamRouter<S>,
    ) -> Stacks<S> {
        let (deciding, envoy) = (self.deciding.as_ref(), self.envoy.as_ref());
        Stacks {
            forwarding: self.forwarding.stack(backend(), services),
            deciding: deciding.map(|layers| layers.stack(backend())),
            envoy: envoy.map(|layers| layers.stack(backend())),
        }
    }
}

impl<S> Stacks<S> {
    /// Serves a request, which a listener got that `decides` for other proxies or forwards.
    pub(super) fn call<Q>(&mut self, decides: bool, request: Q) -> StackFuture<S, Q>
    where
        Q: HttpRequest,
        Stack<S>: Service<Q>,
        ForwardAuthStack<S>: Service<Q>,
        EnvoyStack<S>: Service<Q>,
    {
        match (&mut self.deciding, &mut self.envoy) {
            (_, Some(envoy)) if decides && envoy::is_call(&request) => {
                Either::Right(Either::Right(envoy.call(request)))
            }
            (Some(deciding), _) if decides => Either::Right(Either::Left(deciding.call(request))),
            _ => Either::Left(self.forwarding.call(request)),
        }
    }
}
