//! Buckets that are counted in windows, in Redis.
//!
//! Each algorithm has a file with its commands and what their replies mean. All of a transaction's
//! commands run at once: either there is only one, or they stand between `MULTI` and `EXEC`.
//!
//! The key has a mark at its end, so that a limit whose algorithm was changed finds no value of
//! another type. No subject ends so, because a `%` in it is followed by two hexadecimal digits.

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Algorithm, CLOCK_TOLERANCE, Quota, Usage};

use super::resp::Request;

/// How much longer Redis keeps a bucket than it may count: covers the clock tolerance between
/// gateways and as much again for Redis's own clock.
const SLACK: Nanos = Nanos::from_secs(2 * CLOCK_TOLERANCE.ceil_secs());

/// The marks of all algorithms.
pub(super) const MARKS: [&str; 3] = [
    WindowKind::Fixed.mark(),
    WindowKind::Sliding.mark(),
    WindowKind::Log.mark(),
];

/// Algorithms by what Redis holds for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowKind {
    Fixed,
    Sliding,
    Log,
}

/// The reply about a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowReply {
    /// The usage of the bucket before the transaction.
    pub(super) usage: Usage,
    /// Whether the cost was written, which for sliding windows it is when it does not fit, too.
    pub(super) written: bool,
    /// The usage once the cost is written although it did not fit.
    pub(super) usage_after: Option<Usage>,
    pub(super) repair: Repair,
    /// The end of the fixed window that units were taken from.
    pub(super) end: Timestamp,
    /// The key holds something that Weir does not write there.
    pub(super) is_foreign: bool,
}

impl WindowReply {
    /// The reply about a key of the right type with contents that are not Weir's.
    pub(super) fn foreign(written: bool) -> Self {
        Self {
            written,
            is_foreign: true,
            ..Self::default()
        }
    }
}

/// A repair of a bucket in the background.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Repair {
    #[default]
    Nothing,
    /// A fixed window that another quota has left behind is to end here.
    Cut(Timestamp),
    /// These sub-windows count no more.
    Prune(Vec<u64>),
}

impl WindowKind {
    pub(super) fn new(quota: &Quota) -> Self {
        match quota.algorithm() {
            Algorithm::SlidingWindow { .. } => Self::Sliding,
            Algorithm::SlidingLog { .. } => Self::Log,
            Algorithm::FixedWindow(_) | Algorithm::Gcra | Algorithm::InFlight => Self::Fixed,
        }
    }

    /// The suffix of the keys of these buckets.
    pub(super) const fn mark(self) -> &'static str {
        match self {
            Self::Fixed => "%f",
            Self::Sliding => "%w",
            Self::Log => "%l",
        }
    }
}

/// Wraps the commands that `fill` adds in a transaction: no other client's come between.
pub(super) fn at_once(request: &mut Request, fill: impl FnOnce(&mut Request)) {
    request.command(1, "MULTI");
    fill(request);
    request.command(1, "EXEC");
}

/// Lets a bucket expire after this span, and some slack.
pub(super) fn expire_in(request: &mut Request, key: &[u8], span: Nanos) {
    let lifetime = (span + SLACK).ceil_millis();
    request.command(3, "PEXPIRE").word(key).int(lifetime);
}
