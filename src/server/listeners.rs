//! The sockets on which clients are awaited: one for every address and worker.
//!
//! The workers' sockets share an address by `SO_REUSEPORT`, so that the kernel spreads connections
//! over them and no worker takes from another's queue.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

/// Connections that may wait to be accepted, per worker; the kernel cuts it to its own bound
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Listening sockets for every worker.
#[derive(Debug)]
pub struct Listeners {
    addresses: Vec<SocketAddr>,
    /// By worker, then by address.
    workers: Vec<Vec<TcpListener>>,
}

/// An address that cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {cause}{}", remedy(.cause))]
pub struct BindError {
    /// The address as configured.
    pub address: SocketAddr,
    /// The system's answer.
    #[source]
    pub cause: io::Error,
}

fn remedy(cause: &io::Error) -> &'static str {
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
    /// Listens on every address for every worker. Port 0 is resolved once, so that all workers
    /// share the port that the system picks.
    ///
    /// # Errors
    /// Names the first address that cannot be listened on, and why.
    pub fn bind(addresses: &[SocketAddr], workers: NonZeroUsize) -> Result<Self, BindError> {
        let mut listeners = Self {
            addresses: Vec::with_capacity(addresses.len()),
            workers: (0..workers.get()).map(|_| Vec::new()).collect(),
        };
        for &address in addresses {
            // `[::]` takes IPv4 connections too, unless a listener of their own is wished for. Two
            // ports that the system picks are never the same.
            let only_v6 = addresses.iter().any(|other| {
                other.is_ipv4() && other.port() == address.port() && other.port() != 0
            });
            let added = listeners.add(address, only_v6);
            added.map_err(|cause| BindError { address, cause })?;
        }
        Ok(listeners)
    }

    fn add(&mut self, address: SocketAddr, only_v6: bool) -> io::Result<()> {
        probe(address, only_v6)?;
        let mut resolved = address;
        for worker in &mut self.workers {
            let listener = listen(resolved, only_v6)?;
            resolved = listener.local_addr()?;
            worker.push(listener);
        }
        self.addresses.push(resolved);
        Ok(())
    }

    /// Where clients are awaited, in the configured order, ports resolved.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The sockets of each worker.
    pub fn into_workers(self) -> Vec<Vec<TcpListener>> {
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

/// Refuses an address that is taken already. `SO_REUSEPORT` alone would let a second gateway of
/// the same user share it unnoticed, and get half of the connections.
fn probe(address: SocketAddr, only_v6: bool) -> io::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    socket(address, only_v6)?.bind(&address.into())
}

fn socket(address: SocketAddr, only_v6: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // Without it a restart would have to wait for the last connections' TIME_WAIT to pass.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
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
            let own: Vec<_> = worker.iter().map(|it| it.local_addr().unwrap()).collect();
            assert_eq!(own, addresses);
        }
    }

    #[test]
    fn an_address_that_is_taken_is_refused_even_by_another_gateway() {
        let first = Listeners::bind(&[any("127.0.0.1")], TWO).unwrap();
        let taken = first.addresses()[0];
        let refused = Listeners::bind(&[taken], TWO).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("cannot listen on {taken}: ")));
        assert!(refused.ends_with("; another process listens there"));
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
        let accepted = workers.iter().filter(|it| it[0].accept().is_ok());
        assert_eq!(accepted.count(), 1);
    }
}
