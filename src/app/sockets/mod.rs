//! The listening sockets of a process: where they come from, how a successor gets them, and the
//! certificates in force on them. Also notifies the service manager.

pub(super) mod acme;
#[cfg(feature = "http3")]
mod http3;
#[cfg(not(feature = "http3"))]
#[path = "no_http3.rs"]
mod http3;

use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sd_notify::NotifyState;
use tokio::time::sleep;
use weir_config::Listener;
use weir_server::{
    AltService, AltSvc, BindError, Inherited, Listeners, PeerFilter, Predecessor, ProxyProtocol,
    Tls, Transport,
};

use weir_middleware::HttpsRedirect;
use weir_telemetry::Metrics;

use self::acme::AcmeCertificates;
pub(super) use self::http3::UdpSockets;

/// The option that makes a process take the place of another.
pub(crate) const TAKEOVER: &str = "--takeover";

/// The interval and the number of retries for an address that a draining predecessor still has.
const BIND_RETRIES: (Duration, usize) = (Duration::from_millis(100), 50);

/// The source of the process's listening sockets.
pub(super) struct OpenSockets {
    inherited: Inherited,
    /// The first address, if this process was told to take the place of the gateway there.
    takeover: Option<SocketAddr>,
    predecessor: Option<Predecessor>,
}

/// Whom an address is for, by the key that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressKey {
    Listen,
    Admin,
}

impl OpenSockets {
    /// Uses inherited sockets, and with `takeover` those of the gateway that listens on the first
    /// of the addresses.
    pub(super) fn new(
        mut inherited: Inherited,
        takeover: bool,
        addresses: &[SocketAddr],
    ) -> io::Result<Self> {
        let first = addresses.first().filter(|_| takeover);
        let predecessor = match first {
            Some(first) => Predecessor::find(*first, &mut inherited)?,
            None => None,
        };
        Ok(Self {
            inherited,
            takeover: first.copied(),
            predecessor,
        })
    }

    /// Whether this process takes the place of another.
    pub(super) fn takes_over(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Listens on addresses, with existing sockets and new ones.
    pub(super) async fn listen(
        &self,
        key: AddressKey,
        addresses: &[SocketAddr],
        workers: NonZeroUsize,
    ) -> Result<Listeners, BindError> {
        let (pause, mut retries) = BIND_RETRIES;
        loop {
            match Listeners::open(addresses, workers, &self.inherited) {
                // A predecessor that drains is about to close the sockets that it did not pass on.
                Err(error)
                    if error.cause.kind() == ErrorKind::AddrInUse
                        && self.predecessor.is_some()
                        && retries > 0 =>
                {
                    retries -= 1;
                    sleep(pause).await;
                }
                listening => return listening.map_err(|error| self.with_remedy(error, key)),
            }
        }
    }

    /// Says what to do about an address that another process has.
    fn with_remedy(&self, error: BindError, key: AddressKey) -> BindError {
        if error.cause.kind() != ErrorKind::AddrInUse {
            return error;
        }
        let another = match key {
            AddressKey::Listen => "write another port under `listen`",
            AddressKey::Admin => "write another port under `admin`",
        };
        let who = match (self.takeover, key) {
            (None, AddressKey::Listen) => {
                "another process listens there: if it is a gateway of yours, `weir run --takeover` \
                 takes its place; otherwise "
                    .to_owned()
            }
            (Some(first), _) if self.predecessor.is_none() => {
                format!(
                    "another process listens there, and no gateway of this user serves {first}, \
                     whose place `{TAKEOVER}` would take: "
                )
            }
            (None, AddressKey::Admin) | (Some(_), _) => {
                "another process listens there: ".to_owned()
            }
        };
        BindError {
            remedy: Some(format!("; {who}{another} (`ss -ltnp` says who listens)")),
            ..error
        }
    }

    /// Tells the predecessor and the service manager that this process serves.
    pub(super) fn report_serving(self, addresses: &[SocketAddr]) -> io::Result<()> {
        for address in self.inherited.unused(addresses) {
            tracing::warn!(%address, "a socket was passed that `listen` does not name; it is not served");
        }
        if let Some(predecessor) = self.predecessor {
            predecessor.replace(addresses)?;
            tracing::info!("took the place of the gateway that listened here");
        }
        // If the manager started the predecessor, it does not know this process.
        notify(&[NotifyState::MainPid(process::id()), NotifyState::Ready]);
        Ok(())
    }
}

/// Tells the service manager that this process is about to end.
pub(super) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    // Without a service manager, this does nothing.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

/// What a listener tells of others, if it may have some; of HTTP/3 once it is served.
fn alt_svc(listener: &Listener) -> Option<AltSvc> {
    let service = listener.alt_service?;
    let alt_svc = AltSvc::default();
    if service == AltService::Withdrawn {
        alt_svc.clear();
    }
    Some(alt_svc)
}

/// Starts the same command again, perhaps of a newer version, to take the place of this process.
pub(super) fn start_successor() {
    if let Err(error) = try_start_successor() {
        tracing::error!(%error, "a successor cannot be started");
    }
}

fn try_start_successor() -> io::Result<()> {
    let mut arguments = env::args_os();
    let program = arguments.next().ok_or(ErrorKind::NotFound)?;
    let configuration = weir_yaml::standard_input();
    let mut successor = Command::new(program)
        .args(successor_arguments(arguments))
        .stdin(match configuration {
            Some(_) => Stdio::piped(),
            None => Stdio::inherit(),
        })
        .spawn()?;
    tracing::info!(pid = successor.id(), "started a successor");
    thread::Builder::new().spawn(move || {
        if let (Some(configuration), Some(mut stdin)) = (configuration, successor.stdin.take()) {
            // A successor that does not read all of it says why itself.
            let _ = stdin.write_all(configuration);
        }
        // This process ends before its successor does, unless the successor has failed.
        if let Ok(status) = successor.wait() {
            tracing::error!(%status, "the successor ended");
        }
    })?;
    Ok(())
}

fn successor_arguments(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.collect();
    if !arguments.iter().any(|argument| argument == TAKEOVER) {
        arguments.push(TAKEOVER.into());
    }
    arguments
}

/// The sockets of the process, as in its first configuration.
#[derive(Clone)]
pub(super) struct Sockets {
    sockets: Vec<Socket>,
    /// The certificates that are obtained for them.
    acme: AcmeCertificates,
    /// Refuses connections on those that clients connect to themselves.
    pub(super) peer_filter: PeerFilter,
}

#[derive(Clone, Debug)]
struct Socket {
    address: SocketAddr,
    transport: Transport,
    role: ListenerRole,
}

/// The treatment of the requests that a listener gets.
#[derive(Clone, Debug, Default)]
pub(super) struct ListenerRole {
    pub(super) redirect_to_https: Option<HttpsRedirect>,
    /// Whether they are subrequests of other proxies.
    pub(super) decides: bool,
}

impl Sockets {
    /// The sockets of these listeners, with their certificates.
    pub(super) fn new(listeners: &[Listener], metrics: &Arc<Metrics>) -> Self {
        let acme = AcmeCertificates::new(metrics);
        let listeners = acme.configure(listeners);
        let peer_filter = PeerFilter::new(metrics.refusals().clone());
        // It refuses nobody, and takes away what another process has left.
        let no_filter = PeerFilter::new(metrics.refusals().clone());
        let sockets = listeners.iter().map(|listener| Socket {
            address: listener.address,
            transport: Transport {
                proxy_protocol: listener.proxy_protocol.clone().map(ProxyProtocol::new),
                tls: listener.certificates.clone().map(Tls::new),
                challenges: acme.challenges().clone(),
                alt_svc: alt_svc(listener),
                peer_filter: Some(match listener.takes_clients() {
                    true => peer_filter.clone(),
                    false => no_filter.clone(),
                }),
            },
            role: ListenerRole {
                redirect_to_https: listener
                    .redirect_to_https
                    .clone()
                    .map(|redirect| HttpsRedirect(Arc::new(redirect))),
                decides: listener.decides_for.is_some(),
            },
        });
        Self {
            sockets: sockets.collect(),
            acme,
            peer_filter,
        }
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(|socket| socket.address).collect()
    }

    /// The layers below HTTP of each listener.
    pub(super) fn transports(&self) -> Vec<Transport> {
        let transports = self.sockets.iter().map(|socket| socket.transport.clone());
        transports.collect()
    }

    /// Attaches what this process has on its sockets again: a predecessor had the same sockets until
    /// it drained, and got the challenges of certificates. Obtains those from now on. Must be called
    /// on a runtime.
    pub(super) fn take_back_from_predecessor(&self) {
        self.peer_filter.attach_again();
        self.acme.begin(&self.sockets);
    }

    /// Obtains no more certificates: challenges go to the successor.
    pub(super) fn leave_to_successor(&self) {
        self.acme.end();
    }

    /// A domain that has no valid certificate.
    pub(super) fn uncertified(&self) -> Option<String> {
        self.acme.missing()
    }

    /// The role of each listener.
    pub(super) fn roles(&self) -> Vec<ListenerRole> {
        let roles = self.sockets.iter().map(|socket| socket.role.clone());
        roles.collect()
    }

    pub(super) fn redirect_to_https(&self) -> bool {
        self.sockets
            .iter()
            .any(|socket| socket.role.redirect_to_https.is_some())
    }

    pub(super) fn decide(&self) -> bool {
        self.sockets.iter().any(|socket| socket.role.decides)
    }

    /// The listeners with certificates that are about to end, and the rest of their validity.
    pub(super) fn ending_certificates(&self) -> Vec<(SocketAddr, Duration)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let ending = self.sockets.iter().filter_map(|socket| {
            let left = socket.transport.tls.as_ref()?.ends_soon(now)?;
            Some((socket.address, left))
        });
        ending.collect()
    }

    /// Exports when the first of the certificates in force expires, if there are any.
    pub(super) fn export_expiry(&self, metrics: &Metrics) {
        let transports = self.transports().into_iter();
        let tls: Vec<Tls> = transports.filter_map(|transport| transport.tls).collect();
        if !tls.is_empty() {
            metrics.certificates(move || {
                let expiry = tls.iter().filter_map(Tls::expires).min();
                expiry.unwrap_or_default().as_secs()
            });
        }
    }

    /// Applies the certificates and the trusted load balancers of another configuration. A socket
    /// that is not in it keeps its own, and so does one for which it has no TLS or no PROXY
    /// protocol.
    pub(super) fn renew(&self, listeners: &[Listener]) {
        renew(&self.sockets, &self.acme.configure(listeners));
    }
}

/// The same for listeners that have the certificates which were obtained for them.
fn renew(sockets: &[Socket], listeners: &[Listener]) {
    for (index, socket) in sockets.iter().enumerate() {
        // The system picks a port for each 0, so only the order distinguishes them.
        let same_place = listeners.get(index).into_iter();
        let mut candidates = same_place.chain(listeners);
        let new = candidates.find(|listener| listener.address == socket.address);
        let certificates = new.and_then(|listener| listener.certificates.clone());
        if let (Some(tls), Some(certificates)) = (&socket.transport.tls, certificates) {
            tls.renew(certificates);
        }
        let trusted = new.and_then(|listener| listener.proxy_protocol.clone());
        if let (Some(protocol), Some(trusted)) = (&socket.transport.proxy_protocol, trusted) {
            protocol.renew(trusted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_is_told_once_to_take_over() {
        let of = |arguments: &[&str]| successor_arguments(arguments.iter().map(OsString::from));
        assert_eq!(of(&["run", "--takeover"]), ["run", "--takeover"]);
        assert_eq!(
            of(&["--config", "a.yaml"]),
            ["--config", "a.yaml", "--takeover"]
        );
    }
}
