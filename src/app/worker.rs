//! One worker: a thread with its own connections to the store and to the upstreams, and the stack
//! over them, which the first request after a reload replaces.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{try_join, try_join_all};
use http::{Extensions, request};
use hyper::service::Service;
use tokio::sync::{Semaphore, watch};
use weir_config::Route;
use weir_http::request::{BoxedRequest, HttpRequest};
use weir_middleware::{
    ClientConnection, ConnectionEnds, Peer, RequestContext, UpstreamRouter, upstream_key,
};
use weir_proxy::{
    ConnectionAddrs, ConnectionBudget, Proxy, ShutdownSignal, Upstream, UpstreamState,
};
use weir_rules::ClientCertificate;
use weir_server::{Connection, Draining, Http, RequestBody, Transport};
use weir_telemetry::RequestId;

use super::client_certificate::client_certificate;
use super::features::Features;
use super::reloads::Snapshot;
use super::sockets::{ListenerRole, UdpSockets};
use super::stack;
use super::stacks::StackFuture;
use super::stores::Stores;
use super::upstreams::ActiveUpstream;
use super::worker_stack::WorkerStack;

#[derive(Clone)]
pub(super) struct WorkerContext {
    pub(super) http: Http,
    /// The layers below HTTP of each listener, in their order.
    pub(super) transports: Vec<Transport>,
    pub(super) by_udp: UdpSockets,
    /// The role of each listener, in their order.
    pub(super) roles: Vec<ListenerRole>,
    /// The configuration in force, and those that follow it.
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) stores: Stores,
    pub(super) upstreams: ConnectionBudget,
    /// Counts the workers that serve.
    pub(super) serving: Arc<Semaphore>,
    pub(super) draining: Draining,
    pub(super) aborted: Arc<AtomicUsize>,
    pub(super) features: Features,
}

/// Serves a worker's listeners until the drain is over.
pub(super) async fn run(
    index: usize,
    context: WorkerContext,
    listeners: Vec<(usize, TcpListener)>,
) -> io::Result<()> {
    let mut upstreams = Upstreams {
        budget: context.upstreams,
        upstreams: Vec::new(),
        shutdown: ShutdownSignal::when(context.draining.subscribe()),
    };
    let snapshots = context.snapshots.clone();
    let services = move |snapshot: &Snapshot| upstreams.services(snapshot);
    let stack = WorkerStack::start(&context.stores, context.snapshots, services).await?;
    let stack = Arc::new(stack);
    let entry = |role: ListenerRole| {
        let (stack, snapshots) = (Arc::clone(&stack), snapshots.clone());
        let listener = Arc::new(ListenerEntry { stack, role });
        move |connection: &Connection| ConnectionEntry {
            connection: ClientConnection {
                peer: Some(peer(connection)),
                // That of another proxy is not its client's.
                certificate: (!listener.role.decides)
                    .then(|| certificate(connection))
                    .flatten(),
                ends: snapshots
                    .borrow()
                    .sends_proxy_headers
                    .then(|| ends(connection)),
            },
            listener: Arc::clone(&listener),
        }
    };
    let (http, draining, transports) = (&context.http, &context.draining, &context.transports);
    let role = |place: usize| context.roles.get(place).cloned().unwrap_or_default();
    let plain = Transport::default();
    let listeners = listeners.into_iter();
    let serving = try_join_all(listeners.map(async |(place, listener)| {
        let transport = transports.get(place).unwrap_or(&plain);
        let (entry, draining) = (entry(role(place)), draining.clone());
        http.serve(listener, transport, entry, draining).await
    }));
    let entry_at = |place| entry(role(place));
    let by_udp = (context.by_udp).serve(http, transports, draining, entry_at);
    let serving = try_join(serving, by_udp);
    // A task as others, so that it waits as long as they do.
    let features = context.features;
    tokio::spawn(features.follow_worker(index, snapshots.clone(), Snapshot::settings));
    context.serving.add_permits(1);
    tokio::select! {
        aborted = serving => {
            let (by_tcp, by_udp) = aborted?;
            let aborted = by_tcp.into_iter().sum::<usize>() + by_udp;
            context.aborted.fetch_add(aborted, Ordering::Relaxed);
            stack.end().await;
            Ok(())
        }
        never = stack.follow() => match never {},
    }
}

fn peer(connection: &Connection) -> Peer {
    Peer {
        address: connection.peer.ip(),
        secure: connection.secure,
    }
}

fn ends(connection: &Connection) -> Arc<ConnectionEnds> {
    Arc::new(ConnectionEnds {
        peer: connection.peer,
        local: connection.local,
    })
}

fn connection_addrs(head: &request::Parts) -> Option<ConnectionAddrs> {
    let (source, destination) = RequestContext::connection_addrs(&head.extensions)?;
    Some(ConnectionAddrs {
        source,
        destination,
    })
}

fn request_id(extensions: &Extensions) -> Option<Arc<RequestId>> {
    RequestContext::request_id(extensions).cloned()
}

fn certificate(connection: &Connection) -> Option<Arc<ClientCertificate>> {
    let der = connection.certificate.as_ref()?;
    Some(Arc::new(client_certificate(der)))
}

/// The stack over proxies to upstreams.
type Stack = stack::Stack<Proxy>;

/// The upstreams as this worker reaches them.
struct Upstreams {
    budget: ConnectionBudget,
    /// With what all workers know of them.
    upstreams: Vec<(Arc<UpstreamState>, Upstream)>,
    shutdown: ShutdownSignal,
}

impl Upstreams {
    /// The services of a configuration. Servers that stay as they are keep their connections.
    fn services(&mut self, snapshot: &Snapshot) -> UpstreamRouter<Proxy> {
        let kept = std::mem::take(&mut self.upstreams);
        let upstream = |active: &ActiveUpstream| {
            let (state, settings) = (&active.state, &active.upstream.settings);
            let known = kept.iter().find(|(known, _)| Arc::ptr_eq(known, state));
            if let Some((_, same)) = known {
                return same.clone();
            }
            let mut earlier = kept.iter().map(|(_, upstream)| upstream);
            let (state, settings) = (Arc::clone(state), settings.clone());
            if let Some(earlier) = earlier.find(|earlier| earlier.name() == settings.name) {
                return earlier.replaced(state, settings);
            }
            let (budget, shutdown) = (self.budget.clone(), self.shutdown.clone());
            Upstream::with_state(budget, shutdown, state, settings)
        };
        let reached = snapshot
            .upstreams
            .iter()
            .map(|active| (active, upstream(active)));
        let reached: Vec<_> = reached.collect();
        let with_state = reached
            .iter()
            .map(|(active, upstream)| (Arc::clone(&active.state), upstream.clone()));
        self.upstreams = with_state.collect();
        let proxies = reached.into_iter().map(|(active, upstream)| {
            let settings = &active.upstream;
            // The stack refuses what it would.
            let mut proxy = Proxy::new(upstream)
                .assume_checked()
                .with_secure(RequestContext::is_secure)
                .with_request_buffering(settings.request_buffering.clone());
            if snapshot.settings.request_id.is_some() {
                proxy = proxy.with_request_ids(request_id);
            }
            if settings.sends_proxy_headers() {
                proxy = proxy.with_connection_addrs(connection_addrs);
            }
            if let Some(hash) = settings.hash.clone() {
                proxy = proxy.with_key(Arc::new(move |head| upstream_key(&hash, head)));
            }
            (active.name(), proxy)
        });
        let of_route = |route: &Route, proxy: &Proxy| {
            let proxy = proxy.clone().with_timeouts(route.timeouts);
            proxy.with_request_buffering(route.request_buffering.clone())
        };
        stack::services(&snapshot.settings, proxies, of_route)
    }
}

/// What the connections of one listener and worker share.
struct ListenerEntry {
    stack: Arc<WorkerStack<Proxy>>,
    role: ListenerRole,
}

/// The entry of one connection: adds the peer to each request, and passes it to the stack in force.
struct ConnectionEntry {
    listener: Arc<ListenerEntry>,
    connection: ClientConnection,
}

impl Service<BoxedRequest<RequestBody>> for ConnectionEntry {
    type Response = <Stack as tower::Service<BoxedRequest<RequestBody>>>::Response;
    type Error = Infallible;
    type Future = StackFuture<Proxy, BoxedRequest<RequestBody>>;

    fn call(&self, mut request: BoxedRequest<RequestBody>) -> Self::Future {
        let takes_lines = request.body().takes_lines();
        let context = RequestContext::of_connection(self.connection.clone(), takes_lines);
        let extensions = request.extensions_mut();
        extensions.insert(context);
        let ListenerEntry { stack, role } = &*self.listener;
        if let Some(redirect) = &role.redirect_to_https {
            extensions.insert(redirect.clone());
        }
        stack.with(|stacks| stacks.call(role.decides, request))
    }
}
