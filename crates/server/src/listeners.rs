//! The listening sockets: one for each address and worker.
//!
//! The workers' sockets share an address by `SO_REUSEPORT`, so that the kernel spreads connections
//! over them and each worker has its own queue.
//!
//! Some may have been opened before this process started: by a service manager, or by the gateway
//! that this one replaces.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;

use listenfd::ListenFd;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

/// How many connections may wait to be accepted, per worker; the kernel caps it
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Listening sockets for every worker.
#[derive(Debug)]
pub struct Listeners {
    addresses: Vec<SocketAddr>,
    /// The addresses whose sockets a service manager keeps open.
    managed: Vec<SocketAddr>,
    /// By worker; each with the index of its address.
    workers: Vec<Vec<(usize, TcpListener)>>,
}

/// An address that cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {cause}{}", .remedy.as_deref().unwrap_or(help(.cause)))]
pub struct BindError {
    /// The address as configured.
    pub address: SocketAddr,
    /// The system's answer.
    #[source]
    pub cause: io::Error,
    /// What to do about it, if the caller knows more than the system's answer says.
    pub remedy: Option<String>,
}

impl BindError {
    /// An error without a remedy of its own.
    pub fn new(address: SocketAddr, cause: io::Error) -> Self {
        let remedy = None;
        Self {
            address,
            cause,
            remedy,
        }
    }
}

fn help(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => "; another process listens there",
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need the capability CAP_NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has this address",
        _ => "",
    }
}

impl Listeners {
    #[cfg(test)]
    pub(crate) fn bind(addresses: &[SocketAddr], workers: NonZeroUsize) -> Result<Self, BindError> {
        Self::open(addresses, workers, &Inherited::default())
    }

    /// Listens on every address for every worker, with the sockets that are already open. Port 0 is
    /// resolved once, so that all workers share the port that the system picks.
    ///
    /// # Errors
    /// Names the first address that cannot be listened on, and why.
    pub fn open(
        addresses: &[SocketAddr],
        workers: NonZeroUsize,
        inherited: &Inherited,
    ) -> Result<Self, BindError> {
        let mut listeners = Self {
            addresses: Vec::with_capacity(addresses.len()),
            managed: Vec::new(),
            workers: (0..workers.get()).map(|_| Vec::new()).collect(),
        };
        for &address in addresses {
            // `[::]` accepts IPv4 connections too, unless they have a listener of their own. Two
            // ports that the system picks never coincide.
            let only_v6 = addresses.iter().any(|other| {
                other.is_ipv4() && other.port() == address.port() && other.port() != 0
            });
            let inherited = inherited.sockets_at(address);
            let added = inherited.and_then(|sockets| listeners.add(address, only_v6, sockets));
            added.map_err(|cause| BindError::new(address, cause))?;
        }
        Ok(listeners)
    }

    fn add(
        &mut self,
        address: SocketAddr,
        only_v6: bool,
        inherited: Vec<ListeningSocket>,
    ) -> io::Result<()> {
        if inherited.is_empty() {
            ensure_free(address, only_v6)?;
        } else if inherited.iter().any(|socket| socket.is_managed) {
            self.managed.push(address);
        }
        let mut resolved = address;
        let mut sockets = Vec::with_capacity(self.workers.len());
        for inherited in inherited {
            inherited.listener.set_nonblocking(true)?;
            sockets.push(inherited);
        }
        let found = sockets.len();
        for nth in found..self.workers.len() {
            let listener = match nth.checked_rem(found).and_then(|index| sockets.get(index)) {
                Some(shared) => listen_beside(shared, resolved, only_v6)?,
                None => listen(resolved, only_v6)?,
            };
            resolved = listener.local_addr()?;
            sockets.push(ListeningSocket {
                listener,
                is_managed: false,
            });
        }
        let index = self.addresses.len();
        let workers = self.workers.len();
        // A predecessor may have had more workers. No socket may be left without one.
        for (nth, socket) in sockets.into_iter().enumerate() {
            if let Some(worker) = self.workers.get_mut(nth % workers) {
                worker.push((index, socket.listener));
            }
        }
        self.addresses.push(resolved);
        Ok(())
    }

    /// Another handle of each socket.
    ///
    /// # Errors
    /// When there are no file descriptors for them.
    pub fn handles(&self) -> io::Result<Vec<ListeningSocket>> {
        let sockets = self.workers.iter().flatten();
        let handle = |(index, listener): &(usize, TcpListener)| {
            let address = self.addresses.get(*index);
            Ok(ListeningSocket {
                listener: listener.try_clone()?,
                is_managed: address.is_some_and(|address| self.managed.contains(address)),
            })
        };
        sockets.map(handle).collect()
    }

    /// The addresses on which a service manager still listens when this process has ended.
    pub fn managed(&self) -> &[SocketAddr] {
        &self.managed
    }

    /// The addresses, in the configured order, with ports resolved.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The sockets of each worker, each with the index of its address. If sockets were inherited,
    /// there may be several of one address.
    pub fn into_workers(self) -> Vec<Vec<(usize, TcpListener)>> {
        self.workers
    }
}

/// One socket that shares its address with other workers' sockets.
fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = socket(address, only_v6)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// One more socket for the address of an inherited one: with its own queue, or the same queue where
/// that is impossible or a service manager would not keep the socket.
fn listen_beside(
    shared: &ListeningSocket,
    address: SocketAddr,
    only_v6: bool,
) -> io::Result<TcpListener> {
    if shared.is_managed {
        return shared.listener.try_clone();
    }
    listen(address, only_v6).or_else(|_| shared.listener.try_clone())
}

/// Refuses an address that is in use. `SO_REUSEPORT` alone would let a second gateway of the same
/// user share it unnoticed, and get half of the connections.
fn ensure_free(address: SocketAddr, only_v6: bool) -> io::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    socket(address, only_v6)?.bind(&address.into())
}

fn socket(address: SocketAddr, only_v6: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // Without it, a restart would have to wait until the last connections have left TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sockets that were open before this process, until they are served.
#[derive(Debug, Default)]
pub struct Inherited(Vec<ListeningSocket>);

/// A listening socket that another process has as well.
#[derive(Debug)]
pub struct ListeningSocket {
    pub(super) listener: TcpListener,
    /// A service manager keeps it open when this process ends.
    pub(super) is_managed: bool,
}

impl ListeningSocket {
    fn is_at(&self, address: SocketAddr) -> bool {
        self.listener.local_addr().is_ok_and(|own| own == address)
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            listener: self.listener.try_clone()?,
            is_managed: self.is_managed,
        })
    }
}

impl Inherited {
    /// The sockets that a service manager passes by `LISTEN_FDS` (see `sd_listen_fds(3)`). Other
    /// sockets than TCP ones are ignored. Call it early: it removes the variables from the
    /// environment, so that no child inherits them.
    pub fn from_service_manager() -> Self {
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).filter_map(|index| passed.take_tcp_listener(index).ok()?);
        Self(
            sockets
                .map(|listener| ListeningSocket {
                    listener,
                    is_managed: true,
                })
                .collect(),
        )
    }

    pub(super) fn push(&mut self, socket: ListeningSocket) {
        self.0.push(socket);
    }

    pub(super) fn sockets_at(&self, address: SocketAddr) -> io::Result<Vec<ListeningSocket>> {
        let is_there = |socket: &&ListeningSocket| socket.is_at(address);
        self.0
            .iter()
            .filter(is_there)
            .map(ListeningSocket::try_clone)
            .collect()
    }

    /// The addresses of the sockets that a service manager passed and that are not in `used`.
    pub fn unused(&self, used: &[SocketAddr]) -> Vec<SocketAddr> {
        let managed = self.0.iter().filter(|socket| socket.is_managed);
        let addresses = managed.filter_map(|socket| socket.listener.local_addr().ok());
        addresses
            .filter(|address| !used.contains(address))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

    fn any(host: &str) -> SocketAddr {
        SocketAddr::new(host.parse().unwrap(), 0)
    }

    #[test]
    fn all_workers_share_the_port_that_the_system_picked() {
        let listeners = Listeners::bind(&[any("127.0.0.1"), any("127.0.0.1")], TWO).unwrap();
        let addresses = listeners.addresses().to_vec();
        assert_ne!(addresses[0], addresses[1]);
        for worker in listeners.into_workers() {
            let own: Vec<_> = worker
                .iter()
                .map(|(_, listener)| listener.local_addr().unwrap())
                .collect();
            assert_eq!(own, addresses);
        }
    }

    #[test]
    fn an_address_that_is_taken_is_refused_even_by_another_gateway() {
        let first = Listeners::bind(&[any("127.0.0.1")], TWO).unwrap();
        let taken = first.addresses()[0];
        let refused = Listeners::bind(&[taken], TWO).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("cannot listen on {taken}: ")));
        assert!(
            refused.ends_with("; another process listens there"),
            "{refused}"
        );
    }

    #[test]
    fn an_address_of_no_interface_is_refused_with_its_cause() {
        let refused = Listeners::bind(&[any("203.0.113.1")], TWO).unwrap_err();
        assert_eq!(refused.cause.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn a_connection_waits_in_the_queue_of_exactly_one_worker() {
        let listeners = Listeners::bind(&[any("127.0.0.1")], TWO).unwrap();
        let _client = TcpStream::connect(listeners.addresses()[0]).unwrap();
        let workers = listeners.into_workers();
        let accepted = workers.iter().filter(|worker| worker[0].1.accept().is_ok());
        assert_eq!(accepted.count(), 1);
    }
    fn given(sockets: &[(&TcpListener, bool)]) -> Inherited {
        let mut inherited = Inherited::default();
        for (listener, is_managed) in sockets {
            inherited.push(ListeningSocket {
                listener: listener.try_clone().unwrap(),
                is_managed: *is_managed,
            });
        }
        inherited
    }

    #[test]
    fn every_socket_that_was_given_is_served_however_many_workers_there_are() {
        let mut three = Listeners::bind(&[any("127.0.0.1")], NonZeroUsize::new(3).unwrap());
        let three = three.as_mut().unwrap();
        let address = three.addresses()[0];
        let mut inherited = Inherited::default();
        for handle in three.handles().unwrap() {
            inherited.push(handle);
        }
        let two = Listeners::open(&[address], TWO, &inherited).unwrap();
        let numbers: Vec<_> = two.into_workers().iter().map(Vec::len).collect();
        assert_eq!(numbers, [2, 1]);

        let first = three.handles().unwrap().remove(0).listener;
        let inherited = given(&[(&first, false)]);
        let two = Listeners::open(&[address], TWO, &inherited).unwrap();
        let numbers: Vec<_> = two.into_workers().iter().map(Vec::len).collect();
        assert_eq!(numbers, [1, 1]);
    }

    #[test]
    fn a_socket_of_a_service_manager_is_shared_by_all_workers_and_known_to_stay() {
        let managed = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = managed.local_addr().unwrap();
        let inherited = given(&[(&managed, true)]);
        let listeners = Listeners::open(&[address], TWO, &inherited).unwrap();
        assert_eq!(listeners.managed(), [address]);
        assert!(
            listeners
                .handles()
                .unwrap()
                .iter()
                .all(|socket| socket.is_managed)
        );
        let _client = TcpStream::connect(address).unwrap();
        for worker in listeners.into_workers().iter().rev().take(1) {
            worker[0].1.accept().unwrap();
        }
    }

    #[test]
    fn a_socket_that_is_not_configured_is_left_over() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let inherited = given(&[(&other, true)]);
        let listeners = Listeners::open(&[any("127.0.0.1")], TWO, &inherited).unwrap();
        let address = other.local_addr().unwrap();
        assert_eq!(inherited.unused(listeners.addresses()), [address]);
        assert_eq!(inherited.unused(&[address]), []);
    }
}
