//! What several of Weir's crates need of threads and sockets.

#![forbid(unsafe_code)]

pub mod blocking;
#[cfg(feature = "sockets")]
pub mod keepalive;
pub mod loop_time;
pub mod send_gate;
pub mod sync;
