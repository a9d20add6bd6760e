//! TCP keepalive, by which a peer that vanished without closing its connection is noticed.
//!
//! A connection that waits for its peer, such as a quiet WebSocket, sees neither a packet nor an
//! error when the peer has lost its power or its network.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// How long a connection is quiet before the peer is probed.
const QUIET: Duration = Duration::from_secs(45);

/// How long each probe may take.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// How many probes must fail in a row.
const PROBES: u32 = 3;

/// How long a peer may be silent before its connection is broken: 90 s.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MAX_SILENCE: Duration = QUIET.saturating_add(PROBE_INTERVAL.saturating_mul(PROBES));

/// Has the kernel probe the peer of a quiet connection, and break it when the peer is gone.
/// Connections inherit this from the socket that they are accepted on.
///
/// # Errors
/// The system's.
pub fn enable(socket: SockRef<'_>) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(QUIET)
        .with_interval(PROBE_INTERVAL)
        .with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Bounds how long the kernel retransmits bytes that the peer does not acknowledge, by default a
/// quarter of an hour; it does not probe meanwhile. A peer that acknowledges and reads nothing may
/// do so for `stall_timeout`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn bound_retransmission(socket: SockRef<'_>, stall_timeout: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(MAX_SILENCE.max(stall_timeout)))
}
