//! The arithmetic of limits: pure, exact, and given the time by its caller.
//!
//! Nothing here knows of HTTP, of stores or of clocks. A [`Transaction`] names one bucket, a
//! [`Quota`] and a cost; [`Transaction::decide`] says what GCRA makes of it, and a [`Window`]
//! what the other algorithms do. A [`Claim`] asks for a place among the requests in flight.

mod bucket_key;
mod calendar;
mod in_flight;
mod quota;
mod transaction;
mod window;

pub use bucket_key::{BucketClass, BucketKey, BucketKeys};
pub use calendar::{Calendar, CalendarUnit, UnknownTimeZone};
pub use in_flight::{Claim, Claims, RETRY_IN};
pub use quota::{
    Algorithm, Alignment, CLOCK_BOUND, CLOCK_TOLERANCE, LONGEST_LOG, Quota, QuotaError, Rate,
};
pub use transaction::{Batch, Decision, Mode, Strictness, Transaction};
pub(crate) use window::sub_window_end;
pub use window::{
    FixedWindow, LogView, SubWindow, SubWindows, UnitLog, Usage, Window, farthest_horizon, horizon,
    sub_windows_lifetime, window_end,
};
