//! What tests and benches of several crates start and use: real Redis servers, Prometheus's tool,
//! certificates, a client that shows each byte, and the one way to wait.
//!
//! A server ends when its value is dropped. A tool that is missing fails the test, and the failure
//! names the package to install.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test that meets what it does not expect fails"
)]

#[cfg(feature = "tls")]
pub mod certificates;
pub mod client;
mod eventually;
mod log;
#[cfg(target_os = "linux")]
pub mod namespace;
mod ports;
pub mod promtool;
mod redis_cluster;
mod redis_server;
pub mod sentinels;
mod uninterrupted;

pub use client::Client;
pub use eventually::{PATIENCE, eventually};
pub use log::subscribed;
pub use ports::{free_port, listen_on_free_port, refuse, refusing_address};
pub use redis_cluster::RedisCluster;
pub use redis_server::RedisServer;
pub use sentinels::Sentinels;
pub use uninterrupted::uninterrupted;
