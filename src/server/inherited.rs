//! Listening sockets that were open before this process: those of a service manager, or of the
//! gateway that this one replaces.

use std::io;
use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;

/// Such sockets, as long as nothing is served on them.
#[derive(Debug, Default)]
pub struct Inherited(Vec<ListeningSocket>);

/// A listening socket that somebody else has as well.
#[derive(Debug)]
pub struct ListeningSocket {
    pub(super) listener: TcpListener,
    /// A service manager has it too, and keeps it when this process ends.
    pub(super) is_managed: bool,
}

impl ListeningSocket {
    fn is_at(&self, address: SocketAddr) -> bool {
        self.listener.local_addr().is_ok_and(|it| it == address)
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            listener: self.listener.try_clone()?,
            is_managed: self.is_managed,
        })
    }
}

impl Inherited {
    /// The sockets that a service manager passes by `LISTEN_FDS` (see `sd_listen_fds(3)`). What is
    /// not a TCP socket is left out. To be called early: it takes the variables from the environment,
    /// so that no child inherits them.
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

    /// Handles of the sockets of an address.
    pub(super) fn of(&self, address: SocketAddr) -> io::Result<Vec<ListeningSocket>> {
        let is_there = |it: &&ListeningSocket| it.is_at(address);
        self.0
            .iter()
            .filter(is_there)
            .map(ListeningSocket::try_clone)
            .collect()
    }

    /// The addresses of the sockets that a service manager passed and that are none of `used`.
    pub fn unused(&self, used: &[SocketAddr]) -> Vec<SocketAddr> {
        let managed = self.0.iter().filter(|it| it.is_managed);
        let addresses = managed.filter_map(|it| it.listener.local_addr().ok());
        addresses.filter(|it| !used.contains(it)).collect()
    }
}
