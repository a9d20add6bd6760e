//! The UDP sockets of a listener, one for each worker.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;

use socket2::{Domain, Protocol, Socket, Type};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How much the kernel may buffer in each direction, as far as `net.core.rmem_max` and `wmem_max`
/// allow it. The usual 208 KiB are one burst of a fast client.
const BUFFER: usize = 2 * 1024 * 1024;

/// The socket of one worker.
///
/// The workers' sockets share an address by `SO_REUSEPORT`: the kernel gives all packets of a pair
/// of addresses and ports to the same socket, as long as there are as many of them. So none is
/// closed before the connections of all are.
#[derive(Debug)]
pub struct WorkerSocket {
    socket: UdpSocket,
    /// Has a token for each worker whose connections are not closed.
    group: TaskTracker,
    token: TaskTrackerToken,
}

/// What is left of a [`WorkerSocket`] whose connections are served.
pub(crate) struct Group {
    tracker: TaskTracker,
    token: TaskTrackerToken,
}

impl WorkerSocket {
    pub(crate) fn into_parts(self) -> (UdpSocket, Group) {
        let group = Group {
            tracker: self.group,
            token: self.token,
        };
        (self.socket, group)
    }
}

impl Group {
    /// This worker's connections are closed; waits until those of the others are.
    pub(crate) async fn all_closed(self) {
        drop(self.token);
        self.tracker.wait().await;
    }
}

/// Listens on an address for every worker.
///
/// `only_v6` is for an IPv6 address beside which IPv4 has a listener of its own.
///
/// # Errors
/// When the address cannot be listened on, because another process has it or for other reasons.
pub fn bind(
    address: SocketAddr,
    only_v6: bool,
    workers: NonZeroUsize,
) -> io::Result<Vec<WorkerSocket>> {
    // `SO_REUSEPORT` alone would let a second gateway of the same user share the address unnoticed.
    let free = socket(address, only_v6)?;
    free.bind(&address.into())?;
    drop(free);
    let group = TaskTracker::new();
    group.close();
    let sockets = (0..workers.get()).map(|_| {
        Ok(WorkerSocket {
            socket: listen(address, only_v6)?,
            token: group.token(),
            group: group.clone(),
        })
    });
    sockets.collect()
}

fn listen(address: SocketAddr, only_v6: bool) -> io::Result<UdpSocket> {
    let socket = socket(address, only_v6)?;
    socket.set_reuse_port(true)?;
    // A smaller buffer serves as well.
    let _ = socket.set_recv_buffer_size(BUFFER);
    let _ = socket.set_send_buffer_size(BUFFER);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn socket(address: SocketAddr, only_v6: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_an_address_that_no_other_gateway_gets_as_well() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let mut sockets = bind(address, false, NonZeroUsize::new(3).unwrap()).unwrap();
        assert_eq!(sockets.len(), 3);
        for socket in &sockets {
            assert_eq!(socket.socket.local_addr().unwrap(), address);
        }
        sockets.truncate(1);
        let refused = bind(address, false, NonZeroUsize::MIN).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn no_worker_closes_its_socket_while_another_has_connections() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let sockets = bind(address, false, NonZeroUsize::new(2).unwrap()).unwrap();
        let mut groups = sockets.into_iter().map(|socket| socket.into_parts().1);
        let (first, second) = (groups.next().unwrap(), groups.next().unwrap());
        let first = tokio::spawn(first.all_closed());
        tokio::task::yield_now().await;
        assert!(!first.is_finished());
        second.all_closed().await;
        first.await.unwrap();
    }
}
