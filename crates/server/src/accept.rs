//! Accepts connections, up to the last one in the queue.
//!
//! Closing a listening socket resets every connection in its queue, and every handshake that is
//! under way. So a drain first refuses new handshakes, then empties the queue, and only then closes
//! the socket.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};
use weir_runtime::keepalive;
use weir_socket_filter::{Program, attach};
use weir_telemetry::{ServerMetrics, events};

use super::peer_filter::{ListenerFilter, PeerFilter};

/// How long handshakes that are under way may take when the listener closes. A client with a longer
/// round trip has to connect again.
const HANDSHAKE_TIME: Duration = Duration::from_millis(300);

/// How many bytes of a response the kernel buffers beyond what it may send now. Without a bound it
/// buffers up to 4 MB (net.ipv4.tcp_wmem) for a client that does not read.
const MAX_UNSENT: u32 = 128 * 1024;

/// The first and the longest back-off after a failure.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// A listener that backs off while the system is out of resources.
pub(super) struct Acceptor {
    listener: AsyncFd<Arc<std::net::TcpListener>>,
    /// None where all peers may connect.
    filter: Option<ListenerFilter>,
    address: SocketAddr,
    metrics: ServerMetrics,
    back_off: Duration,
}

impl Acceptor {
    /// Must be called on the runtime that will accept. A client may read nothing for
    /// `stall_timeout`.
    pub(super) fn new(
        listener: std::net::TcpListener,
        stall_timeout: Duration,
        filter: Option<&PeerFilter>,
        metrics: ServerMetrics,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        set_inherited_options(&listener, stall_timeout);
        let listener = Arc::new(listener);
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe; the socket is never replaced"
        )]
        let watched = AsyncFd::with_interest(Arc::clone(&listener), Interest::READABLE)?;
        Ok(Self {
            address: listener.local_addr()?,
            filter: filter.map(|filter| filter.on(&listener)),
            listener: watched,
            metrics,
            back_off: BACK_OFF.0,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.accept().await {
                Ok(accepted) => {
                    self.back_off = BACK_OFF.0;
                    if let Some(accepted) = accepted {
                        return accepted;
                    }
                }
                Err(error) => self.back_off_after(&error).await,
            }
        }
    }

    /// `None` for a connection that is refused, which is closed before the runtime watches it. A
    /// flood of those does not keep a worker from its clients: the runtime lets a task accept 128
    /// connections in a turn.
    async fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let accept = |listener: &Arc<std::net::TcpListener>| accept(listener);
        let (stream, peer) = self.listener.async_io(Interest::READABLE, accept).await?;
        if !self.admits(&stream, peer) {
            return Ok(None);
        }
        Ok(Some((TcpStream::from_std(stream)?, peer)))
    }

    fn admits(&self, stream: &std::net::TcpStream, peer: SocketAddr) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| filter.admits(stream, peer.ip()))
    }

    async fn back_off_after(&mut self, error: &io::Error) {
        // The client left before its connection was accepted: nothing is wrong here.
        if is_client_error(error) {
            return;
        }
        events::accept_failed(&self.metrics, self.address, error);
        sleep(self.back_off).await;
        self.back_off = BACK_OFF.1.min(self.back_off * 2);
    }

    /// Leaves the socket as it is to whoever else has it.
    pub(super) async fn hand_over(self) {
        if let Some(filter) = self.filter {
            filter.end().await;
        }
    }

    /// Accepts every connection that exists or is being made, then closes the socket.
    pub(super) async fn close(mut self, mut accepted: impl FnMut(TcpStream, SocketAddr)) {
        // It has a handle of the socket, and would attach another filter than that of the drain.
        if let Some(filter) = self.filter.take() {
            filter.end().await;
        }
        // Where new handshakes cannot be refused, this wait would never end.
        if refuse_handshakes(self.listener.get_ref()).is_ok() {
            let end = Instant::now() + HANDSHAKE_TIME;
            while let Ok((stream, peer)) = timeout_at(end, self.next()).await {
                accepted(stream, peer);
            }
        }
        // Asks the kernel directly: the runtime's view of the socket may be stale.
        while let Ok((stream, peer)) = accept(self.listener.get_ref()) {
            if let Ok(stream) = TcpStream::from_std(stream) {
                accepted(stream, peer);
            }
        }
    }
}

/// Accepts a connection that does not block, as the listener does not.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn accept(listener: &std::net::TcpListener) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (stream, peer) = acceptfrom_with(listener, flags)?;
    let peer = peer.ok_or(ErrorKind::ConnectionAborted)?;
    Ok((stream.into(), peer.try_into()?))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn accept(listener: &std::net::TcpListener) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept()?;
    stream.set_nonblocking(true)?;
    Ok((stream, peer))
}

/// Sets what all connections accepted from now on inherit. Without these options, clients are still
/// served.
fn set_inherited_options(listener: &std::net::TcpListener, stall_timeout: Duration) {
    let _ = keepalive::enable(listener.into());
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let _ = keepalive::bound_retransmission(listener.into(), stall_timeout);
        let _ = socket2::SockRef::from(listener).set_tcp_notsent_lowat(MAX_UNSENT);
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = stall_timeout;
}

fn is_client_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
    )
}

/// Drops the SYN of every new handshake, and lets those under way finish. Clients retransmit it
/// after a second, by when the port is closed or the next gateway listens.
fn refuse_handshakes(listener: &std::net::TcpListener) -> io::Result<()> {
    attach(listener.into(), &Program::refusing_handshakes())
}

#[cfg(test)]
mod tests {
    use weir_telemetry::Metrics;

    use super::*;

    fn acceptor() -> Acceptor {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let metrics = Metrics::new().server();
        Acceptor::new(listener, Duration::from_secs(120), None, metrics).unwrap()
    }

    async fn wait(acceptor: &mut Acceptor, error: io::Error) -> Duration {
        let start = Instant::now();
        acceptor.back_off_after(&error).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn it_backs_off_longer_and_longer_while_there_are_no_file_descriptors() {
        const EMFILE: i32 = 24;
        let mut acceptor = acceptor();
        for millis in [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            let waited = wait(&mut acceptor, io::Error::from_raw_os_error(EMFILE)).await;
            assert_eq!(waited, Duration::from_millis(millis));
        }
        assert_eq!(acceptor.metrics.accept_errors.get(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_connection_the_back_off_begins_anew() {
        const EMFILE: i32 = 24;
        let mut acceptor = acceptor();
        for _ in 0..5 {
            wait(&mut acceptor, io::Error::from_raw_os_error(EMFILE)).await;
        }
        let _client = std::net::TcpStream::connect(acceptor.address).unwrap();
        acceptor.next().await;
        let waited = wait(&mut acceptor, io::Error::from_raw_os_error(EMFILE)).await;
        assert_eq!(waited, BACK_OFF.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_left_again_is_no_failure() {
        let mut acceptor = acceptor();
        let waited = wait(&mut acceptor, ErrorKind::ConnectionAborted.into()).await;
        assert_eq!(waited, Duration::ZERO);
        assert_eq!(acceptor.metrics.accept_errors.get(), 0);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_keeps_little_for_a_client_that_does_not_read() {
        let mut acceptor = acceptor();
        let _client = std::net::TcpStream::connect(acceptor.address).unwrap();
        let (stream, _) = acceptor.next().await;
        let bound = socket2::SockRef::from(&stream).tcp_notsent_lowat();
        assert_eq!(bound.unwrap(), MAX_UNSENT);
    }

    /// Clients that vanished without a packet held their connections for ever.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_notices_clients_that_vanished() {
        let mut acceptor = acceptor();
        let _client = std::net::TcpStream::connect(acceptor.address).unwrap();
        let (stream, _) = acceptor.next().await;
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(
            socket.tcp_keepalive_time().unwrap(),
            Duration::from_secs(45)
        );
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap(),
            Duration::from_secs(15)
        );
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        // It is not cut off while it may still read nothing.
        let bound = socket.tcp_user_timeout().unwrap();
        assert_eq!(bound, Some(Duration::from_secs(120)));
    }

    #[tokio::test]
    async fn closing_takes_what_waits_in_the_queue() {
        let acceptor = acceptor();
        let connect = || std::net::TcpStream::connect(acceptor.address).unwrap();
        let clients: Vec<_> = (0..20).map(|_| connect()).collect();
        let mut accepted = Vec::new();
        acceptor.close(|_, peer| accepted.push(peer)).await;
        let connected = clients.iter().map(|client| client.local_addr().unwrap());
        assert_eq!(accepted, connected.collect::<Vec<_>>());
    }
}
