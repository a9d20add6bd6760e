//! What is done with responses on their way to clients. Each step has its room here, with its keys;
//! [`ResponseStep`] is their door.

mod cors;
mod error_pages;
pub mod grpc;
mod header_edits;
mod hsts;
mod response_step;

pub use cors::*;
pub use error_pages::*;
pub use grpc::GrpcStatuses;
pub use header_edits::*;
pub use hsts::*;
pub use response_step::{Outgoing, Phase, PreparedStep, ResponseStep, ResponseSteps};
pub(crate) use response_step::{PreparedSteps, is_json_error};

impl ResponseSteps {
    /// The steps that all responses have, whatever is configured: what is no call of gRPC may get a
    /// page.
    pub fn of_all_responses() -> Self {
        Self::default().with(Some(GrpcStatuses))
    }
}
