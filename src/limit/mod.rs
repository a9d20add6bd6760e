//! The arithmetic of limits: pure, exact, and given the time by its caller.
//!
//! Nothing here knows of HTTP, of stores or of clocks. A [`Transaction`] names one bucket, a
//! [`Quota`] and a cost; [`Transaction::decide`] says what GCRA makes of it.

mod bucket_key;
mod decision;
mod quota;
mod transaction;

pub use bucket_key::{BucketKey, BucketKeys};
pub use decision::{Decision, Strictness};
pub use quota::{CLOCK_TOLERANCE, Quota, QuotaError};
pub use transaction::{Batch, Kind, Transaction};
