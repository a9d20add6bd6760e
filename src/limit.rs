//! The arithmetic of limits: pure, exact, and given the time by its caller.
//!
//! Nothing here knows of HTTP, of stores or of clocks. A [`Transaction`] names one bucket, a
//! [`Quota`] and a cost; [`Transaction::decide`] says what GCRA makes of it, and a [`Window`]
//! what the other algorithms do. A [`Claim`] asks for a place among the requests in flight.
//!
//! ```
//! use std::num::NonZeroU64;
//! use std::time::Duration;
//!
//! use weir::limit::{BucketKey, Quota, Transaction};
//! use weir::time::Nanos;
//!
//! // Two at once, then one every 30 seconds.
//! let quota = Quota::new(2, 2, Duration::from_secs(60))?;
//! let transaction = Transaction::new(BucketKey::from("alice"), quota, NonZeroU64::MIN);
//!
//! // A full bucket has no debt.
//! let first = transaction.decide(Nanos::ZERO);
//! assert!(first.allowed);
//! assert_eq!((first.remaining, first.reset_in), (1, Nanos::from_secs(30)));
//!
//! // An empty one has as much as the quota tolerates.
//! let denied = transaction.decide(quota.tolerance());
//! assert!(!denied.allowed);
//! assert_eq!(denied.retry_in, Nanos::from_secs(30));
//! # Ok::<(), weir::limit::QuotaError>(())
//! ```

pub use weir_limit::{
    Algorithm, Alignment, Batch, BucketClass, BucketKey, BucketKeys, Calendar, CalendarUnit, Claim,
    Claims, Decision, FixedWindow, Kept, LogView, MAX_DELAY, MAX_LOG_ENTRIES, MAX_LOG_UNITS,
    MAX_UNCHECKED_LOG_ENTRIES, Mode, Prefetch, Quota, QuotaError, Rate, Strictness, SubWindow,
    SubWindows, Transaction, UnitLog, UnknownTimeZone, Usage, Window,
};
