//! The arithmetic of limits: pure, exact, and given the time by its caller.
//!
//! Nothing here knows of HTTP, of stores or of clocks. A [`Transaction`] names one bucket, a
//! [`Quota`] and a cost; [`Transaction::decide`] says what GCRA makes of it, and a [`Window`]
//! what the other algorithms do. A [`Claim`] asks for a place among the requests in flight.

mod algorithm;
mod bucket_key;
mod calendar;
mod decision;
mod fixed_window;
mod in_flight;
mod quota;
mod rate;
mod sub_windows;
mod transaction;
mod unit_log;
mod window;

pub use algorithm::{Algorithm, Alignment};
pub use bucket_key::{BucketClass, BucketKey, BucketKeys};
pub use calendar::{Calendar, CalendarUnit, UnknownTimeZone};
pub use decision::{Decision, Strictness};
pub use fixed_window::{FixedWindow, window_end};
pub use in_flight::{Claim, Claims, RETRY_IN};
pub use quota::{CLOCK_BOUND, CLOCK_TOLERANCE, LONGEST_LOG, Quota, QuotaError};
pub use rate::Rate;
pub use sub_windows::{SubWindow, SubWindows, lifetime as sub_windows_lifetime};
pub use transaction::{Batch, Mode, Transaction};
pub use unit_log::{LogView, UnitLog, farthest_horizon, horizon};
pub use window::{Usage, Window};
