//! A gateway without sockets and threads, for simulations.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use http::{Request, Response};
use tower::{Service, ServiceExt};
use weir_config::StoreSettings;
use weir_middleware::{Peer, RequestContext};
use weir_redis::Connect;
use weir_server::{AdminApi, AdminBody, Connection, Drain, RequestBody};
use weir_telemetry::{Metrics, PageFormat};

use super::RunError;
use super::features::Features;
use super::fleet::Identity;
use super::gateway::Gateway;
use super::reloads::{Environment, Snapshot, Source};
use super::sockets::Sockets;
use super::stack::{self, Stack};
use super::worker_stack::WorkerStack;

/// The parts of a process without sockets, and one worker's stack over services in place of
/// upstreams.
pub struct SocketlessGateway<S> {
    gateway: Gateway,
    stack: WorkerStack<S>,
    api: AdminApi,
    _drain: Drain,
}

impl<S: Clone + 'static> SocketlessGateway<S> {
    /// Starts the configuration at `path`, whose Redis servers are reached by `connect` and whose
    /// upstreams are what `upstream` makes of their names. The future keeps the gateway up to date.
    ///
    /// # Errors
    /// When the configuration cannot be served.
    pub async fn start(
        path: &Path,
        connect: Connect,
        upstream: impl Fn(&str) -> S + Send + 'static,
    ) -> Result<(Rc<Self>, impl Future<Output = Infallible>), RunError> {
        let source = Source::new(path.to_owned());
        let read = source.read(None);
        let mut settings = read.outcome.map_err(RunError::Configuration)?;
        if let StoreSettings::Redis(store) = &mut settings.process.store {
            store.redis = store.redis.clone().with_connect(connect);
        }
        let (log_level, metrics) = (
            weir_logging::log_level(&settings.process.log)?,
            Metrics::new(),
        );
        let demo_upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (sockets, features) = (Sockets::new(&[], &metrics), Features::new(&metrics));
        let process = &settings.process;
        let environment = Environment::new(process, demo_upstream, sockets, features, &metrics);
        let loaded = (settings, read.inputs);
        let (gateway, mut keepers) = Gateway::start(source, loaded, environment).await?;
        let services = move |snapshot: &Snapshot| {
            let upstreams = snapshot.upstreams.iter();
            let upstreams = upstreams.map(|active| (active.name(), upstream(&active.name())));
            stack::services(&snapshot.settings, upstreams, |_, upstream| {
                upstream.clone()
            })
        };
        let snapshots = gateway.snapshots.clone();
        let stack = WorkerStack::start(&gateway.stores, snapshots, services).await?;
        let (drain, draining) = Drain::new();
        // It publishes nothing: nobody follows the fleet.
        let fleet = gateway.fleet(Identity::default());
        let api = gateway.admin_api(fleet, log_level, draining.subscribe());
        let started = Rc::new(Self {
            gateway,
            stack,
            api,
            _drain: drain,
        });
        let followed = Rc::clone(&started);
        let follow = async move {
            let (gateway, stack) = (&followed.gateway, &followed.stack);
            tokio::join!(gateway.follow(&mut keepers), stack.follow()).0
        };
        Ok((started, follow))
    }

    /// Serves a request of this peer.
    pub fn call<B>(
        &self,
        peer: IpAddr,
        mut request: Request<B>,
    ) -> <Stack<S> as Service<Request<B>>>::Future
    where
        Stack<S>: Service<Request<B>>,
    {
        let secure = false;
        let context = RequestContext::new(Peer {
            address: peer,
            secure,
        });
        request.extensions_mut().insert(context);
        self.stack.with(|stacks| stacks.forwarding.call(request))
    }

    /// Serves a request to the admin API, which comes from this machine.
    pub fn call_admin(
        &self,
        request: Request<Bytes>,
    ) -> impl Future<Output = Result<Response<AdminBody>, Infallible>> + Send + use<S> {
        let mut request = request.map(RequestBody::buffered);
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        request.extensions_mut().insert(Connection {
            peer: local,
            local,
            secure: false,
            certificate: None,
        });
        self.api.clone().oneshot(request)
    }

    /// The page of `/metrics`.
    pub fn metrics(&self) -> String {
        let page = self.gateway.metrics().page(PageFormat::Text);
        page.unwrap_or_default()
    }

    /// Reads the configuration again, as after a signal.
    pub fn reload(&self) {
        self.gateway.reload();
    }

    /// Ends what a worker that drains ends, once its last request is served.
    pub async fn end(&self) {
        self.stack.end().await;
    }
}
