//! How much a limit lets pass, in the words that the start-up text and `weir explain` share.

use std::fmt;
use std::time::Duration;

use crate::config::HumanDuration;
use crate::limit::{Algorithm, Alignment, Quota};

/// Such as `20 at once, then one each 600ms`, or `500 in any 1d`.
pub(super) struct Pace(pub(super) Quota);

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(quota) = self;
        let (burst, period) = (
            quota.burst(),
            HumanDuration(Duration::from(quota.tolerance())),
        );
        match quota.algorithm() {
            Algorithm::Gcra => {
                let interval = HumanDuration(Duration::from(quota.emission_interval()));
                write!(f, "{burst} at once, then one each {interval}")
            }
            Algorithm::InFlight => write!(f, "{burst} in flight"),
            Algorithm::FixedWindow(Alignment::Calendar(calendar)) => {
                write!(f, "{burst} each {calendar}")
            }
            Algorithm::FixedWindow(Alignment::Period) => {
                write!(f, "{burst} in each {period}, counted from the Unix epoch")
            }
            Algorithm::FixedWindow(Alignment::FirstRequest) => {
                write!(f, "{burst} in the {period} from a first request on")
            }
            Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. } => {
                write!(f, "{burst} in any {period}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Calendar, CalendarUnit};

    fn windowed(algorithm: Algorithm) -> String {
        let hour = Duration::from_secs(3600);
        Pace(Quota::windowed(algorithm, 5, hour).unwrap()).to_string()
    }

    #[test]
    fn units_of_a_token_bucket_come_back_one_by_one() {
        let quota = Quota::new(5, 10, Duration::from_secs(3600)).unwrap();
        assert_eq!(Pace(quota).to_string(), "5 at once, then one each 6m");
    }

    #[test]
    fn requests_in_flight_are_told_by_their_number() {
        assert_eq!(
            Pace(Quota::in_flight(5).unwrap()).to_string(),
            "5 in flight"
        );
    }

    #[test]
    fn units_of_a_window_come_back_with_it() {
        let fixed = |alignment| windowed(Algorithm::FixedWindow(alignment));
        assert_eq!(
            fixed(Alignment::Period),
            "5 in each 1h, counted from the Unix epoch"
        );
        assert_eq!(
            fixed(Alignment::FirstRequest),
            "5 in the 1h from a first request on"
        );
        let month = Calendar::new(CalendarUnit::Month, "Europe/Berlin").unwrap();
        assert_eq!(
            fixed(Alignment::Calendar(month)),
            "5 each month in Europe/Berlin"
        );
        let count_denied = true;
        for sliding in [
            Algorithm::SlidingWindow { count_denied },
            Algorithm::SlidingLog { count_denied },
        ] {
            assert_eq!(windowed(sliding), "5 in any 1h");
        }
    }
}
