//! Phrases that several descriptions of a configuration share: when the gateway starts, in the admin
//! API, and in `weir explain`.

use std::fmt::{self, Write};
use std::time::Duration;

use weir_limit::{Algorithm, Alignment, BucketKey, Quota};
use weir_rules::{Enforcement, KeySource};
use weir_yaml::HumanDuration;

/// Writes a heading and its lines, or nothing if there are no lines.
pub(super) fn write_list(
    text: &mut String,
    heading: &str,
    lines: impl Iterator<Item = String>,
) -> fmt::Result {
    for (number, line) in lines.enumerate() {
        if number == 0 {
            writeln!(text, "{heading}:")?;
        }
        writeln!(text, "  {line}")?;
    }
    Ok(())
}

/// The verb behind so many things.
pub(super) const fn was_or_were(count: u64) -> &'static str {
    match count {
        1 => "was",
        _ => "were",
    }
}

/// What something is counted per, in words.
pub(super) fn in_words(per: &[KeySource]) -> String {
    source_names(per).join(" and ")
}

/// The names of what something is counted per.
pub(super) fn source_names(per: &[KeySource]) -> Vec<String> {
    per.iter().map(ToString::to_string).collect()
}

/// The quota in words, such as `20 at once, then one each 600ms`, or `500 in any 1d`.
pub(super) fn describe_quota(quota: Quota) -> String {
    let burst = quota.burst();
    let period = HumanDuration(Duration::from(quota.tolerance()));
    match quota.algorithm() {
        Algorithm::Gcra => {
            let interval = HumanDuration(Duration::from(quota.emission_interval()));
            format!("{burst} at once, then one each {interval}")
        }
        Algorithm::InFlight => format!("{burst} in flight"),
        Algorithm::FixedWindow(Alignment::Calendar(calendar)) => {
            format!("{burst} each {calendar}")
        }
        Algorithm::FixedWindow(Alignment::Period) => {
            format!("{burst} in each {period}, counted from the Unix epoch")
        }
        Algorithm::FixedWindow(Alignment::FirstRequest) => {
            format!("{burst} in the {period} from a first request on")
        }
        Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. } => {
            format!("{burst} in any {period}")
        }
    }
}

/// Writes on which subjects a partly enforced limit is enforced.
pub(super) fn write_enforcement(
    out: &mut String,
    enforcement: Enforcement,
    key: &BucketKey,
) -> fmt::Result {
    let reach = reach(enforcement);
    match (enforcement.is_partial(), enforcement.acts_on(key)) {
        (false, _) => Ok(()),
        (true, true) => writeln!(out, "  is enforced on {reach}, this subject included"),
        (true, false) if enforcement == Enforcement::NONE => {
            writeln!(out, "  dry run: is enforced on {reach}")
        }
        (true, false) => {
            writeln!(
                out,
                "  dry run: is enforced on {reach}, this subject not included"
            )
        }
    }
}

/// On how many subjects a limit is enforced.
pub(super) fn reach(enforcement: Enforcement) -> String {
    if enforcement == Enforcement::NONE {
        "no subject".to_owned()
    } else {
        enforcement.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{Calendar, CalendarUnit};

    fn windowed(algorithm: Algorithm) -> String {
        let hour = Duration::from_secs(3600);
        describe_quota(Quota::windowed(algorithm, 5, hour).unwrap())
    }

    #[test]
    fn units_of_a_token_bucket_come_back_one_by_one() {
        let quota = Quota::new(5, 10, Duration::from_secs(3600)).unwrap();
        assert_eq!(describe_quota(quota), "5 at once, then one each 6m");
    }

    #[test]
    fn requests_in_flight_are_told_by_their_number() {
        assert_eq!(describe_quota(Quota::in_flight(5).unwrap()), "5 in flight");
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
