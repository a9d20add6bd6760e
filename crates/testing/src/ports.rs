//! Ports that are free, and addresses at which nothing listens.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use socket2::{Domain, Socket, Type};

/// A TCP port that is free now. It is none of those that the system gives to whoever asks for any,
/// since one of them may be taken before it is used.
pub fn free_port() -> u16 {
    listen_on_free_port().local_addr().expect("a port").port()
}

/// Listens on a port that is none of those that the system gives to whoever asks for any, also once
/// the listener is gone.
pub fn listen_on_free_port() -> TcpListener {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Processes that are started one after the other begin far from each other.
        let first = std::process::id().wrapping_mul(4241);
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(20_000 + number % 10_000).expect("a port");
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener;
        }
    }
}

/// An address of this machine that refuses connections.
pub fn refusing_address() -> SocketAddr {
    refuse((Ipv4Addr::LOCALHOST, 0).into())
}

/// Takes an address for as long as this process lives, and refuses connections to it: once it is
/// free, another test's server may get it.
pub fn refuse(address: SocketAddr) -> SocketAddr {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    // Connections that were made before are no obstacle.
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).expect("the address is free");
    let address = socket.local_addr().unwrap();
    std::mem::forget(socket);
    address.as_socket().unwrap()
}
