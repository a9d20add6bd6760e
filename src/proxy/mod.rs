//! HTTP to the upstream.

mod body;
mod connection;
pub mod demo;
mod error;
mod hop;
mod peer;
mod pool;
mod request;
mod response;
mod server;
mod service;
mod settings;
mod upgrade;
mod upload;
mod upstream;

pub use body::ProxyBody;
pub use server::{Server, ServerError};
pub use service::{Proxy, ResponseFuture};
pub use settings::{HostHeader, UpstreamSettings};
pub use upstream::Upstream;

#[cfg(test)]
mod tests;
