//! The composition root: the only place that names every layer.
//!
//! `run` loads the configuration, starts what a process has once (log, metrics, admin listener,
//! store, the demo upstream), and then a worker per core, each with its own connections. From
//! then on it waits for signals, and for changes of the configuration's files.

mod admin_api;
mod admin_client;
mod against;
mod client_certificate;
mod envoy;
mod explain;
mod features;
mod file_descriptors;
mod fleet;
mod forward_auth;
mod gateway;
mod reloads;
pub mod schemas;
mod shared_list;
#[cfg(feature = "internals")]
mod socketless;
mod sockets;
mod stack;
mod stacks;
mod startup_log;
mod store_observer;
mod stores;
#[cfg(test)]
mod tests;
mod upstreams;
mod wording;
mod worker;
mod worker_stack;

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use weir_proxy::demo;
use weir_server::{
    Admin, AdminThread, BindError, Drain, DrainSettings, Draining, Ended, Event, EventHandler,
    Http, HttpSettings, Inherited, Listeners, Readiness, Signals, Takeover, WorkerFailed, Workers,
    supervise,
};

pub use self::admin_client::{AdminClient, AdminError};
pub use self::against::{EffectKind, LiveCheck};
pub use self::explain::{
    Descriptor, explain, explain_descriptor, parse_entry, parse_header, parse_path, request_head,
};
use self::features::Features;
use self::file_descriptors::FileDescriptors;
pub use self::file_descriptors::too_many_servers;
use self::fleet::Identity;
use self::gateway::Gateway;
use self::reloads::{Environment, Source};
#[cfg(feature = "internals")]
pub use self::socketless::SocketlessGateway;
use self::sockets::{AddressKey, OpenSockets, Sockets, UdpSockets};
pub(crate) use self::stack::refusal;
#[cfg(feature = "internals")]
pub use self::stack::{Layers, SharedState};
#[cfg(feature = "internals")]
pub use self::upstreams::ActiveUpstreams;
use weir_config::Settings;
use weir_logging::{LogError, LogLevel};
use weir_telemetry::Metrics;
use weir_yaml::{Diagnostics, Inputs};

use self::worker::WorkerContext;

/// Upper bound on the wait for threads that read or write files when the process ends.
const BLOCKED_THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// Upper bound on the wait until other gateways are told that this one ends.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the gateway ended other than by a drain.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The configuration has errors, all of which the report lists.
    #[error("{0}")]
    Configuration(Diagnostics),
    /// The log cannot be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A worker ended before its time.
    #[error(transparent)]
    Worker(#[from] WorkerFailed),
    /// A second signal cut the drain short.
    #[error("a second signal ended the drain before all requests were finished")]
    ForcedShutdown,
    /// The system refused a resource that every process needs.
    #[error("the system refuses what the gateway needs: {0}")]
    System(#[from] io::Error),
}

impl RunError {
    /// Whether the configuration is the cause.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Configuration(_) | Self::Log(_))
    }
}

/// Serves the configuration at `path` until a signal or a successor ends it. With `takeover` it
/// takes the place of the gateway of the same user that listens there, if there is one.
///
/// # Errors
/// When it cannot be served, or ended before all requests were finished.
pub fn run(path: &Path, takeover: bool) -> Result<(), RunError> {
    let inherited = Inherited::from_service_manager();
    let source = Source::new(path.to_owned());
    let read = source.read(None);
    let settings = read.outcome.map_err(RunError::Configuration)?;
    let log = weir_logging::install(&settings.process.log)?;
    let metrics = Metrics::new();
    metrics.log_lines_dropped(log.dropped());
    if settings.process.admin.is_some() {
        metrics.track_subjects();
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let addresses: Vec<_> = settings
            .listen
            .iter()
            .map(|listener| listener.address)
            .collect();
        let open = OpenSockets::new(inherited, takeover, &addresses)?;
        let log_level = log.level();
        serve(source, read.inputs, settings, metrics, log_level, open).await
    });
    // A thread may hang in a file system.
    runtime.shutdown_timeout(BLOCKED_THREADS_TIMEOUT);
    ended
}

/// Serves from the binding of the addresses to the end of the drain.
async fn serve(
    source: Source,
    inputs: Inputs,
    settings: Settings,
    metrics: Arc<Metrics>,
    log_level: LogLevel,
    open: OpenSockets,
) -> Result<(), RunError> {
    // From here on no signal is missed.
    let mut signals = Signals::new()?;
    let (count, grace) = (settings.process.workers, settings.grace);

    // All addresses are bound before anything is started that would have to be ended again.
    let sockets = Sockets::new(&settings.listen, &metrics);
    sockets.export_expiry(&metrics);
    let clients = Bound::new(&open, AddressKey::Listen, &sockets.addresses(), count).await?;
    let admin = settings.process.admin.as_slice();
    let admin = Bound::new(&open, AddressKey::Admin, admin, NonZeroUsize::MIN).await?;
    let listening = clients.listeners.addresses().to_vec();
    let by_udp = UdpSockets::open(&settings, &listening, &sockets, open.takes_over())?;
    let handles = (clients.listeners.handles()?, admin.listeners.handles()?);

    let demo_upstream = start_demo_upstream().await?;
    let features = Features::new(&metrics).tracing(&settings, &metrics)?;
    let environment = Environment::new(
        &settings.process,
        demo_upstream,
        sockets.clone(),
        features.clone(),
        &metrics,
    );
    let (gateway, mut keepers) = Gateway::start(source, (settings, inputs), environment).await?;

    let admin_address = admin.listeners.addresses().first().copied();
    let fleet = gateway.fleet(Identity::of_process(admin_address, &listening));

    // The admin listener tells why the gateway is not ready yet.
    let api = gateway.admin_api(fleet.clone(), log_level, clients.draining.subscribe());
    let service = admin_service(&gateway, &sockets, &clients.draining).with_api(api);
    let admin_address = start_admin(admin.listeners, service, admin.draining)?;

    let context = worker_context(&gateway, &sockets, by_udp, clients.draining);
    let aborted = Arc::clone(&context.aborted);
    let mut workers = start_workers(clients.listeners, count, context).await?;

    // A predecessor drains when it hears that this process serves, and a successor may come.
    let everywhere: Vec<_> = listening.iter().copied().chain(admin_address).collect();
    open.report_serving(&everywhere)?;
    sockets.take_back_from_predecessor();
    let first = listening.first().copied();
    let first = first.ok_or(io::Error::from(ErrorKind::AddrNotAvailable))?;
    let (takeover, mut replaced) = Takeover::spawn(first, handles.0, handles.1)?;
    let snapshot = gateway.snapshot();
    startup_log::started(&snapshot.settings, &listening, admin_address, &metrics);
    snapshot.overrides.warn(&snapshot.settings);

    // Until a signal or a successor ends it.
    let handler = ProcessEvents {
        gateway: &gateway,
        drain: &clients.drain,
        admin_drain: admin.drain,
        takeover,
        sockets,
        grace,
    };
    let next = async || {
        tokio::select! {
            signal = signals.next() => Event::Signal(signal),
            Some(addresses) = replaced.recv() => Event::Replaced(addresses),
        }
    };
    let ended = tokio::select! {
        ended = supervise(&mut workers, &clients.drain, next, &handler) => ended?,
        never = gateway.follow(&mut keepers) => match never {},
        never = fleet.follow() => match never {},
    };
    let _ = timeout(LEAVE_TIMEOUT, fleet.leave()).await;
    features.end().await;
    if ended == Ended::Forced {
        return Err(RunError::ForcedShutdown);
    }
    weir_telemetry::events::drained(aborted.load(Ordering::Relaxed));
    Ok(())
}

/// Listeners, and the drain of the connections that they accept.
struct Bound {
    listeners: Listeners,
    drain: Drain,
    draining: Draining,
}

impl Bound {
    async fn new(
        open: &OpenSockets,
        key: AddressKey,
        addresses: &[SocketAddr],
        workers: NonZeroUsize,
    ) -> Result<Self, RunError> {
        let listeners = open.listen(key, addresses, workers).await?;
        let (drain, draining) = Drain::new();
        drain.keep_open(listeners.managed());
        Ok(Self {
            listeners,
            drain,
            draining,
        })
    }
}

fn worker_context(
    gateway: &Gateway,
    sockets: &Sockets,
    by_udp: UdpSockets,
    draining: Draining,
) -> WorkerContext {
    let settings = &gateway.snapshot().settings;
    let descriptors = FileDescriptors::for_process(settings);
    WorkerContext {
        http: http(settings, &descriptors, &gateway.metrics()),
        transports: sockets.transports(),
        by_udp,
        roles: sockets.roles(),
        snapshots: gateway.snapshots.clone(),
        stores: gateway.stores.clone(),
        upstreams: descriptors.upstreams(),
        serving: Arc::new(Semaphore::new(0)),
        draining,
        aborted: Arc::default(),
        features: gateway.features.clone(),
    }
}

/// The HTTP server for clients, bounded by the file descriptors.
fn http(settings: &Settings, descriptors: &FileDescriptors, metrics: &Metrics) -> Http {
    let connections = HttpSettings {
        max_connections: Some(descriptors.clients),
        drain: DrainSettings {
            grace: settings.grace,
            ..DrainSettings::default()
        },
        ..settings.process.connections.clone()
    };
    Http::new(&connections, metrics.server())
}

/// Starts the workers, and returns when all of them serve.
async fn start_workers(
    listeners: Listeners,
    count: NonZeroUsize,
    context: WorkerContext,
) -> Result<Workers, RunError> {
    let serving = Arc::clone(&context.serving);
    let mut workers = Workers::spawn(listeners.into_workers(), move |index, sockets| {
        worker::run(index, context.clone(), sockets)
    })?;
    let all = u32::try_from(count.get()).unwrap_or(u32::MAX);
    tokio::select! {
        failed = workers.finished() => failed?,
        _ = serving.acquire_many(all) => {}
    }
    Ok(workers)
}

/// The reactions of the process to signals, and to a successor.
struct ProcessEvents<'a> {
    gateway: &'a Gateway,
    drain: &'a Drain,
    admin_drain: Drain,
    takeover: Takeover,
    sockets: Sockets,
    grace: Duration,
}

impl EventHandler for ProcessEvents<'_> {
    fn reload(&self) {
        self.gateway.reload();
    }

    fn restart(&self) {
        sockets::start_successor();
    }

    fn draining(&self, replaced: bool) {
        weir_telemetry::events::draining(self.grace);
        // Another handle would keep a socket open whose connections are no longer accepted.
        self.drain.keep_open(&self.takeover.give_up());
        // A request in the tarpit is in flight, and would delay the drain.
        self.gateway.release_held();
        self.sockets.leave_to_successor();
        if !replaced {
            sockets::notify_stopping();
        }
    }

    fn replaced(&self, addresses: &[SocketAddr]) {
        tracing::info!("a successor has taken over");
        self.admin_drain.hand_over(addresses);
    }
}

/// Every process serves the demo upstream, so that a reload can begin to use it. Only this
/// machine can reach it.
async fn start_demo_upstream() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(demo::serve(listener));
    Ok(address)
}

fn start_admin(
    listeners: Listeners,
    admin: Admin,
    draining: Draining,
) -> io::Result<Option<SocketAddr>> {
    let listener = listeners.into_workers().into_iter().flatten().next();
    let Some((_, listener)) = listener else {
        return Ok(None);
    };
    let thread = AdminThread::spawn(listener, admin, draining)?;
    Ok(Some(thread.address()))
}

fn admin_service(gateway: &Gateway, sockets: &Sockets, draining: &Draining) -> Admin {
    let (stores, features) = (gateway.stores.clone(), gateway.features.clone());
    let sockets = sockets.clone();
    let readiness = move || {
        if let Some(why) = stores.trouble() {
            Readiness::NotReady(why)
        } else if let Some(what) = features.lacking() {
            Readiness::NotReady(what)
        } else if let Some(domain) = sockets.uncertified() {
            Readiness::ReadyWithout(format!("a valid certificate for {domain}"))
        } else {
            Readiness::Ready
        }
    };
    let snapshots = gateway.snapshots.clone();
    let is_listed = move |host: &str| {
        let settings = &snapshots.borrow().settings;
        settings
            .admin_hosts
            .iter()
            .any(|listed| listed.covers(host))
    };
    Admin::new(gateway.metrics(), draining.clone(), readiness).with_hosts(is_listed)
}
