//! What is done with responses on their way to clients. Each step has its room here, with its keys;
//! [`ResponseStep`] is their door.

mod response_step;

#[cfg(feature = "gateway")]
mod compression;
mod cors;
mod error_pages;
pub(crate) mod grpc;
mod header_edits;
mod hsts;

#[cfg(feature = "gateway")]
pub use compression::{Compression, ContentCoding};
#[cfg(feature = "config")]
pub use cors::CorsKeys;
pub use cors::{Cors, OriginPattern, Origins, PreflightResponse};
pub use error_pages::ErrorPages;
pub use grpc::GrpcStatuses;
pub(crate) use header_edits::remove_names;
pub use header_edits::{HeaderEdits, HeaderTemplate};
pub use hsts::Hsts;
#[cfg(feature = "config")]
pub use hsts::HstsKeys;
pub use response_step::{Outgoing, Phase, PreparedStep, ResponseStep, ResponseSteps};
pub(crate) use response_step::{PreparedSteps, is_json_error};
