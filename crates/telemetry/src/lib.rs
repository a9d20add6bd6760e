//! Metrics, events and logs, for operators.
//!
//! An event is a function that logs and counts at once, so that neither is forgotten where
//! something happens. The names of metrics are listed in `names`, and each metric is described where
//! it is counted; no subject (an address, an account) is ever a label. The crate `weir` has what is
//! promised of it to users, as `weir::telemetry`; what else is public here serves Weir's other
//! crates.

#![forbid(unsafe_code)]

mod access_log;
pub mod audit;
pub mod events;
mod log_field;
mod metrics;
mod names;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "no_otlp.rs"]
mod otlp;
mod outcome;
mod printable;
mod striped;
mod tail;
mod top_subjects;

pub use access_log::{
    ACCESS_TARGET, CountedRequest, FIELDS as ACCESS_LOG_FIELDS, FieldVisitor, LoggedRequest,
    Milliseconds, RequestFinished, field, is_logged, log_requests_to,
};
pub use log_field::{Field, LogField, LogValue, Notes, StepField};
pub use metrics::*;
#[cfg(feature = "otlp")]
pub use otlp::TracerSettings;
pub use otlp::{ActiveTrace, Tracer};
pub use outcome::*;
pub use printable::{escape, is_deceptive, is_plain, write_json_escape};
pub use printable::{printable, printable_json, printable_lines};
pub use striped::{Counter, Striped, StripedGauge};
pub use tail::{Tail, TailFilter, Watch};
pub use top_subjects::{Period, SubjectActivity};
