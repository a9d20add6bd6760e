//! HTTP/3 (RFC 9114): QUIC connections of clients, whose requests go through the same service as
//! those of HTTP/1.1 and HTTP/2, by the same bounds and time-outs.
//!
//! quinn speaks QUIC and h3 reads and writes the frames. This crate accepts connections (`accept`),
//! bounds what h3 buffers and checks what it does not (`quic`, `frames`, `field_lines`), and serves
//! streams (`connection`, `exchange`, `body`).

#![forbid(unsafe_code)]

mod accept;
mod body;
mod connection;
mod early_data;
mod exchange;
mod field_lines;
mod frames;
mod quic;
mod settings;
mod sockets;

pub use accept::serve;
pub use early_data::EarlyData;
pub use sockets::{WorkerSocket, bind};
