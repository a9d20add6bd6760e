//! Who is told how a remote store does, and how far the gateway's clock is off by the store's.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{CLOCK_BOUND, CLOCK_TOLERANCE};

use crate::StoreError;

/// What a remote store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// To decide a batch.
    Decide,
    /// To give out units of a hot bucket ahead of the requests that spend them.
    Prefetch,
    /// To give back what was taken: for a caller, or because another limit denied the request.
    Refund,
    /// To make a bucket full.
    Reset,
    /// To cut what a longer window or ban has left behind.
    Clamp,
    /// To set the expiry of buckets that were found to have none, or too short a one.
    Expire,
    /// To lease places to a request.
    Acquire,
    /// To go on leasing places to requests that last.
    Renew,
    /// To take back the places of requests that are over.
    Release,
    /// To list what it has.
    List,
    /// To tell other gateways of bans, or this one what others have changed.
    Share,
}

/// Is told how a remote store does, to log and count it.
pub trait Observer: Send + Sync + 'static {
    /// A call was answered, or failed, after `took`. Calls that were not sent because the store
    /// is known to be out of reach are not reported.
    fn called(&self, call: Call, took: Duration, failure: Option<&StoreError>);

    /// The store went out of reach of this process, for this cause, or came back. Told once each
    /// time, however many workers there are.
    fn state_changed(&self, reachable: bool, cause: Option<&StoreError>);

    /// The store, or this node of it, is still out of reach, for this cause. Told each time that a
    /// worker has probed it.
    fn still_unreachable(&self, _node: Option<&str>, _cause: &StoreError) {}

    /// The store, or this node of it, can be reached, but refuses commands that limits of the
    /// configuration need. Told once for each cause, however many workers there are.
    fn refuses_commands(&self, _node: Option<&str>, _cause: &StoreError) {}

    /// It refuses none of them any more.
    fn refuses_no_command(&self, _node: Option<&str>) {}

    /// The server can be used, but not in every way in which others can, for this reason. Told by
    /// each worker for each connection.
    fn server_is_peculiar(&self, _why: &str) {}

    /// Something happened to one node of a store that consists of several. Told once each time,
    /// however many workers there are.
    fn node_changed(&self, node: &str, change: NodeChange<'_>) {
        let _ = (node, change);
    }

    /// The gateway's clock was held against the store's, or that of one of its nodes if it has
    /// several, or could not be, for this reason. Told by each worker, about once a second.
    fn clock_measured(&self, node: Option<&str>, offset: Result<ClockOffset, &dyn Error>);

    /// The clock by which decisions are taken followed a jump of the store's by so many seconds,
    /// forward or, if they are negative, backward. Told once a process.
    fn clock_stepped(&self, _seconds: f64) {}

    /// The Sentinels name this address as that of the primary: the first one, or another.
    fn primary_named(&self, _primary: &str) {}

    /// The Sentinel at this address fails, or answers again. Told of each Sentinel once a minute
    /// at most.
    fn sentinel_changed(&self, _sentinel: &str, _failure: Option<&dyn Error>) {}
}

/// What happened to a node.
#[derive(Clone, Copy, Debug)]
pub enum NodeChange<'e> {
    /// It is one of the store's nodes from now on, and taken to be within reach.
    Joined,
    /// It went out of reach of this process, for this cause.
    Unreachable(&'e StoreError),
    /// It is within reach again.
    Reachable,
    /// It is not one of the store's nodes any more.
    Left,
}

/// An observer that keeps everything to itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn called(&self, _: Call, _: Duration, _: Option<&StoreError>) {}

    fn state_changed(&self, _: bool, _: Option<&StoreError>) {}

    fn clock_measured(&self, _: Option<&str>, _: Result<ClockOffset, &dyn Error>) {}
}

/// The difference between this gateway's clock and the store's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    ahead: bool,
    by: Nanos,
    /// How far the measurement itself may be off.
    uncertainty: Nanos,
}

impl ClockOffset {
    /// By a question to the store that was sent and answered at these moments of the gateway's
    /// clock.
    pub fn measured(sent: Timestamp, answered: Timestamp, store: Timestamp) -> Self {
        let uncertainty = Nanos::new(answered.since(sent).get() / 2);
        let here = sent + uncertainty;
        Self {
            ahead: here > store,
            by: Nanos::new(here.as_nanos().abs_diff(store.as_nanos())),
            uncertainty,
        }
    }

    /// In seconds; negative when the gateway's clock is behind.
    pub fn seconds(self) -> f64 {
        let seconds = Duration::from(self.by).as_secs_f64();
        if self.ahead { seconds } else { -seconds }
    }

    /// Whether an operator should look after the clock.
    pub fn is_suspicious(self) -> bool {
        self.certain() > CLOCK_TOLERANCE
    }

    /// Whether the clock is off by so much that the gateway must not touch shared buckets.
    pub fn is_beyond_bound(self) -> bool {
        self.certain() > CLOCK_BOUND
    }

    /// Whether a clock that was off is well again.
    pub fn is_within_half_the_tolerance(self) -> bool {
        self.by.get() <= CLOCK_TOLERANCE.get() / 2
    }

    /// Whether the clock is certainly as good as the store's.
    pub fn is_within_tolerance(self) -> bool {
        self.by + self.uncertainty <= CLOCK_TOLERANCE
    }

    fn certain(self) -> Nanos {
        self.by.saturating_sub(self.uncertainty)
    }
}

impl fmt::Display for ClockOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.ahead { "ahead of" } else { "behind" };
        write!(f, "{:.3} s {side} the store's", self.seconds().abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn it_is_measured_by_the_middle_of_the_question_and_signed() {
        let behind = ClockOffset::measured(at(1000), at(1200), at(5000));
        assert!((behind.seconds() + 3.9).abs() < 1e-9);
        assert_eq!(behind.to_string(), "3.900 s behind the store's");
        let ahead = ClockOffset::measured(at(5000), at(5000), at(2000));
        assert_eq!(ahead.to_string(), "3.000 s ahead of the store's");
    }

    #[test]
    fn beyond_a_second_it_is_suspicious_and_beyond_two_it_is_too_much_on_either_side() {
        for (millis, suspicious, beyond) in [
            (10_000, false, false),
            (11_000, false, false),
            (11_001, true, false),
            (12_000, true, false),
            (12_001, true, true),
            (9_000, false, false),
            (8_999, true, false),
            (7_999, true, true),
        ] {
            let offset = ClockOffset::measured(at(millis), at(millis), at(10_000));
            let found = (offset.is_suspicious(), offset.is_beyond_bound());
            assert_eq!(found, (suspicious, beyond), "{millis}");
        }
    }

    /// A loop that was busy for three seconds must not cost a gateway its store.
    #[test]
    fn a_slow_answer_proves_nothing() {
        let offset = ClockOffset::measured(at(10_000), at(15_000), at(10_000));
        assert!(!offset.is_suspicious() && !offset.is_within_tolerance());
        let offset = ClockOffset::measured(at(10_000), at(15_000), at(20_000));
        assert!(offset.is_beyond_bound());
    }
}
