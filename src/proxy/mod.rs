//! HTTP to the upstream.

mod server;
mod settings;

pub use server::{Server, ServerError};
pub use settings::{HostHeader, UpstreamSettings};
