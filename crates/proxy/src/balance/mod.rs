//! Which server of an upstream gets a request.
//!
//! - `picker` chooses among servers: in turn, by the requests in flight, or by a hash.
//! - `server_state` is what the process knows of one server: its requests in flight, whether
//!   failures have ejected it, and what active health checks say. All workers share it, so what one
//!   worker finds out holds for all.
//! - `upstream_state` holds the states of an upstream's servers, and what requests may spend on
//!   retries.
//! - `settings` is what the configuration decides.

mod picker;
mod server_state;
mod settings;
mod upstream_state;

pub(super) use picker::Picker;
pub(super) use server_state::{Attempt, Failure, ServerState, ServerStatus};
pub use settings::{Balance, Ejection, HealthCheck, Retries, Sticky};
pub(super) use upstream_state::RetryPermit;
pub use upstream_state::UpstreamState;

#[cfg(test)]
mod tests;
