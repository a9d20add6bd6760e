//! HTTP/3 on the listeners that speak it: their UDP sockets, and when clients hear of them.
//!
//! A successor cannot have the sockets of its predecessor, to which packets of open connections go.
//! So it serves without HTTP/3 until these are done, and announces it then.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::watch;
use tokio::time::sleep;
use weir_config::Settings;
use weir_http3::{EarlyData, WorkerSocket};
use weir_runtime::sync::Mutex;
use weir_server::{
    AltService, AltSvc, BindError, Connection, ConnectionService, Draining, Http, Transport,
};

use super::Sockets;

/// How often a successor looks whether its predecessor is done.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// The sockets of all listeners that speak HTTP/3.
#[derive(Clone, Default)]
pub(in crate::app) struct UdpSockets(Vec<ListenerSockets>);

/// The sockets of one listener, which its workers take.
#[derive(Clone)]
struct ListenerSockets {
    /// Which listener it is.
    place: usize,
    left: Arc<Mutex<Vec<WorkerSocket>>>,
    are_open: watch::Receiver<bool>,
    early_data: Option<EarlyData>,
}

/// Where the sockets of one listener are opened, and who is told.
struct Opening {
    address: SocketAddr,
    only_v6: bool,
    workers: NonZeroUsize,
    left: Arc<Mutex<Vec<WorkerSocket>>>,
    opened: watch::Sender<bool>,
    alt_svc: AltSvc,
    /// What clients are told.
    port: u16,
    max_age: Duration,
}

impl Opening {
    fn open(&self) -> io::Result<()> {
        *self.left.lock() = weir_http3::bind(self.address, self.only_v6, self.workers)?;
        self.opened.send_replace(true);
        self.alt_svc.announce("h3", self.port, self.max_age);
        tracing::info!(address = %self.address, "listens for HTTP/3");
        Ok(())
    }

    async fn open_when_free(self) {
        tracing::info!(
            address = %self.address,
            "HTTP/3 begins when the predecessor has finished its connections"
        );
        let failure = loop {
            sleep(RETRY_EVERY).await;
            match self.open() {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => break error,
                Ok(()) => return,
            }
        };
        tracing::error!(address = %self.address, error = %failure, "cannot listen for HTTP/3");
    }
}

impl UdpSockets {
    /// Listens where the settings want HTTP/3, at the `addresses` of the listeners.
    pub(in crate::app) fn open(
        settings: &Settings,
        addresses: &[SocketAddr],
        sockets: &Sockets,
        takes_over: bool,
    ) -> Result<Self, BindError> {
        let workers = settings.process.workers;
        let mut all = Vec::new();
        let listeners = settings.listen.iter().zip(addresses).enumerate();
        for ((place, (listener, address)), transport) in listeners.zip(sockets.transports()) {
            let (
                Some(AltService::Announced {
                    port,
                    max_age,
                    early_data,
                }),
                Some(alt_svc),
            ) = (listener.alt_service, transport.alt_svc)
            else {
                continue;
            };
            let (opened, are_open) = watch::channel(false);
            let left = Arc::<Mutex<Vec<WorkerSocket>>>::default();
            let opening = Opening {
                address: *address,
                only_v6: has_own_ipv4(*address, addresses),
                workers,
                left: Arc::clone(&left),
                opened,
                alt_svc,
                port: port.map_or(address.port(), NonZeroU16::get),
                max_age,
            };
            begin(opening, takes_over)?;
            all.push(ListenerSockets {
                place,
                left,
                are_open,
                early_data: early_data.then(EarlyData::default),
            });
        }
        Ok(Self(all))
    }

    /// Serves what a worker gets of them until the drain is over. `entry` makes what serves the
    /// connections of a listener. Returns how many connections were aborted.
    pub(in crate::app) async fn serve<M, S>(
        &self,
        http: &Http,
        transports: &[Transport],
        draining: &Draining,
        entry: impl Fn(usize) -> M,
    ) -> io::Result<usize>
    where
        M: Fn(&Connection) -> S + Send + Sync + 'static,
        S: ConnectionService + Sync,
    {
        let all = self.0.iter().map(async |listener| {
            let transport = transports.get(listener.place);
            let socket = listener.socket(draining.clone()).await;
            let (Some(transport), Some(socket)) = (transport, socket) else {
                return Ok(0);
            };
            let (entry, early_data) = (entry(listener.place), listener.early_data.as_ref());
            weir_http3::serve(http, socket, transport, early_data, entry, draining.clone()).await
        });
        let aborted = try_join_all(all).await?;
        Ok(aborted.into_iter().sum())
    }
}

/// Opens the sockets, or has that done when a predecessor has closed its own.
fn begin(opening: Opening, takes_over: bool) -> Result<(), BindError> {
    match opening.open() {
        Err(error) if error.kind() == ErrorKind::AddrInUse && takes_over => {
            tokio::spawn(opening.open_when_free());
            Ok(())
        }
        opened => opened.map_err(|error| {
            let cause = format!("by UDP, for HTTP/3: {error}");
            BindError::new(opening.address, io::Error::new(error.kind(), cause))
        }),
    }
}

/// Whether IPv4 has a listener of its own beside an address of IPv6, as for TCP.
fn has_own_ipv4(address: SocketAddr, addresses: &[SocketAddr]) -> bool {
    let mut others = addresses.iter();
    address.is_ipv6() && others.any(|other| other.is_ipv4() && other.port() == address.port())
}

impl ListenerSockets {
    /// The socket of one worker, once there is one; none if the drain begins before.
    async fn socket(&self, draining: Draining) -> Option<WorkerSocket> {
        let mut are_open = self.are_open.clone();
        tokio::select! {
            biased;
            opened = are_open.wait_for(|opened| *opened) => {
                opened.ok()?;
            }
            () = draining.begun() => return None,
        }
        self.left.lock().pop()
    }
}
