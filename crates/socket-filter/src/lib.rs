//! Filters of listening sockets: the kernel drops the handshakes of peers that are kept out, before
//! there is a connection. See `docs/decisions/0088-the-kernel-drops-what-is-banned.md`.
//!
//! A filter is a program of classic BPF (`socket(7)`, `SO_ATTACH_FILTER`), which a listening socket
//! runs for each segment of TCP that is no established connection's.

#![forbid(unsafe_code)]

mod assembler;
#[cfg(target_os = "linux")]
mod drops;
#[cfg(test)]
mod evaluate;
mod peers;
mod program;
mod socket;

#[cfg(target_os = "linux")]
pub use drops::dropped;
pub use peers::PeerSet;
pub use program::{FilterTooLong, MAX_INSTRUCTIONS, Program};
pub use socket::{attach, detach};

#[cfg(test)]
mod tests;
