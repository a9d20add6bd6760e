//! The arithmetic of Weir's limits: pure, exact, and given the time by its caller.
//!
//! Nothing here knows of HTTP, of stores or of clocks, but for [`time`], which has the types of
//! time and the clocks that callers read. The crate `weir` has what is promised of it to users, as
//! `weir::limit` and `weir::time`; what else is public here serves Weir's other crates.

#![forbid(unsafe_code)]

mod bucket_key;
mod calendar;
mod concurrency;
mod gcra;
mod in_flight;
mod levels;
mod overload;
mod prefetch;
mod projection;
mod quota;
pub mod time;
mod transaction;
mod waits;
mod window;

pub use bucket_key::{BucketClass, BucketKey, BucketKeys, Kept};
pub use calendar::{Calendar, CalendarUnit, UnknownTimeZone};
pub use concurrency::{
    AdaptiveLimit, Arrival, ConcurrencyBounds, Priority, ServerReply, SlotRequest, Slots, WaiterId,
    places,
};
pub use in_flight::{Claim, Claims};
pub use levels::{LEVELS, Level, LevelChoice};
pub use overload::{OverloadControl, ShedLevel};
pub use prefetch::Prefetch;
pub use quota::{
    Algorithm, Alignment, CLOCK_BOUND, CLOCK_TOLERANCE, MAX_DELAY, MAX_LOG_ENTRIES, MAX_LOG_UNITS,
    MAX_UNCHECKED_LOG_ENTRIES, Quota, QuotaError, Rate,
};
pub use transaction::{Batch, Decision, Mode, Strictness, Transaction};
pub use waits::{ToldWaits, WaitForm};
pub use window::{
    FixedWindow, LogView, SubWindow, SubWindows, UnitLog, Usage, Window, farthest_horizon, horizon,
    sub_window_end, sub_windows_lifetime, window_end,
};
