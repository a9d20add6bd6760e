//! Limits on how many requests of a subject are in flight at the same time.
//!
//! Nothing comes back with time here: a place is free again when a request ends, and when
//! that will be is unknown.

use std::num::NonZeroU64;

use smallvec::SmallVec;

use crate::time::Nanos;
use crate::{BucketKey, Decision, Mode, Transaction};

/// When a refused request had best be tried again. When a place will be free is unknown; it is
/// the shortest time that `Retry-After` can tell.
pub const RETRY_IN: Nanos = Nanos::from_secs(1);

/// A request's claim to one limit on requests in flight: a slot for as long as it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whose places they are.
    pub key: BucketKey,
    /// How many there are.
    pub most: NonZeroU64,
    /// What to do, one place being the cost.
    pub mode: Mode,
}

/// The claims of one request, which get all their places or none.
pub type Claims = SmallVec<[Claim; 1]>;

impl Claim {
    /// Asks for a place, and is refused when there is none.
    pub const fn new(key: BucketKey, most: NonZeroU64) -> Self {
        Self {
            key,
            most,
            mode: Mode::CheckAndSpend,
        }
    }

    /// Whether there is a place beside this many other requests.
    pub const fn fits_beside(&self, others: u64) -> bool {
        others < self.most.get()
    }

    /// Whether the request is denied beside this many others.
    pub const fn is_denied_beside(&self, others: u64) -> bool {
        self.mode.checks() && !self.fits_beside(others)
    }

    /// Whether a place is taken beside this many others, if no other limit denies the request.
    pub const fn takes_beside(&self, others: u64) -> bool {
        self.mode.spends() && self.fits_beside(others)
    }

    /// The decision about a subject that has this many other requests in flight. An allowed one
    /// shows what is left once the place is taken, for the modes that take it.
    pub fn decide(&self, others: u64) -> Decision {
        match self.fits_beside(others) {
            true if self.mode.spends() => self.untouched(others + 1),
            false if self.mode != Mode::AllowOnly => Decision {
                allowed: !self.mode.checks(),
                retry_in: RETRY_IN,
                ..self.untouched(others)
            },
            _ => self.untouched(others),
        }
    }

    /// The decision when no place is taken, because another limit denies the request.
    pub const fn untouched(&self, in_flight: u64) -> Decision {
        Decision {
            allowed: true,
            remaining: self.most.get().saturating_sub(in_flight),
            retry_in: Nanos::ZERO,
            // After this time all places may be free; there is no promise.
            reset_in: if in_flight == 0 {
                Nanos::ZERO
            } else {
                RETRY_IN
            },
            reset_before_secs: 0,
        }
    }
}

impl Transaction {
    /// The claim that this is, if its quota is one of requests in flight.
    pub fn claim(&self) -> Option<Claim> {
        self.quota.is_in_flight().then(|| Claim {
            key: self.key.clone(),
            most: self.quota.burst(),
            mode: self.mode,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;

    fn claim(mode: Mode) -> Claim {
        Claim {
            mode,
            ..Claim::new("L:a".into(), NonZeroU64::new(2).unwrap())
        }
    }

    fn shown(mode: Mode, others: u64) -> (bool, u64) {
        let decision = claim(mode).decide(others);
        (decision.allowed, decision.remaining)
    }

    #[test]
    fn as_many_pass_as_there_are_places() {
        assert_eq!(shown(Mode::CheckAndSpend, 0), (true, 1));
        assert_eq!(shown(Mode::CheckAndSpend, 1), (true, 0));
        assert_eq!(shown(Mode::CheckAndSpend, 2), (false, 0));
        let lowered_since = claim(Mode::CheckAndSpend).decide(5);
        assert_eq!((lowered_since.allowed, lowered_since.remaining), (false, 0));
        assert_eq!(lowered_since.retry_in, RETRY_IN);
    }

    #[test]
    fn other_modes_keep_to_what_they_are() {
        assert_eq!(shown(Mode::CheckOnly, 1), (true, 1));
        assert_eq!(shown(Mode::CheckOnly, 2), (false, 0));
        assert_eq!(shown(Mode::SpendOnly, 1), (true, 0));
        assert_eq!(shown(Mode::SpendOnly, 2), (true, 0));
        assert!(!claim(Mode::SpendOnly).decide(2).fits());
        assert_eq!(shown(Mode::Peek, 1), (true, 1));
        assert!(!claim(Mode::Peek).decide(2).fits());
        assert!(!claim(Mode::SpendOnly).takes_beside(2));
        assert_eq!(shown(Mode::AllowOnly, 0), (true, 2));
    }

    #[test]
    fn only_a_quota_of_requests_in_flight_makes_a_claim() {
        let transaction = |quota| Transaction::new("L:a".into(), quota, NonZeroU64::MIN);
        let claimed = transaction(Quota::in_flight(2).unwrap()).claim();
        assert_eq!(claimed, Some(claim(Mode::CheckAndSpend)));
        let second = std::time::Duration::from_secs(1);
        let gcra = Quota::new(1, 1, second).unwrap();
        assert_eq!(transaction(gcra).claim(), None);
    }
}
