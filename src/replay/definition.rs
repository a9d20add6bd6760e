//! Limits as they are written in `limits/defaults.yaml`.

use std::fmt::Write;

use crate::config::HumanDuration;
use crate::limit::{Algorithm, Alignment, Quota};
use crate::rules::KeySource;

use super::need::Rate;

/// What a limit allows, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// A burst at a rate.
    Rate { burst: u64, rate: Rate },
    /// A count in windows like those of the quota.
    Windows { count: u64, like: Quota },
    /// Requests in flight.
    InFlight(u64),
}

impl Definition {
    /// The line in YAML that defines a limit so.
    pub fn yaml(&self, name: &str, per: &[KeySource]) -> String {
        let mut keys = vec![format!("per: {}", sources(per))];
        match self {
            Self::Rate { burst, rate } => {
                keys.push(format!("burst: {burst}"));
                keys.push(format!("count: {}", rate.count));
                keys.push(format!("period: {}", HumanDuration(rate.period)));
            }
            Self::Windows { count, like } => {
                let algorithm = like.algorithm();
                keys.push(format!("algorithm: {}", algorithm.name()));
                keys.push(format!("count: {count}"));
                keys.extend(window_keys(like));
            }
            Self::InFlight(most) => keys.push(format!("in_flight: {most}")),
        }
        format!("{name}: {{{}}}", keys.join(", "))
    }
}

fn window_keys(quota: &Quota) -> Vec<String> {
    let period = format!("period: {}", HumanDuration(quota.tolerance().into()));
    match quota.algorithm() {
        Algorithm::FixedWindow(Alignment::Calendar(calendar)) => vec![
            format!("calendar: {}", calendar.unit().name()),
            format!("time_zone: {}", calendar.time_zone()),
        ],
        Algorithm::FixedWindow(Alignment::FirstRequest) => {
            vec![period, "align: first_request".to_owned()]
        }
        Algorithm::SlidingWindow { count_denied: true }
        | Algorithm::SlidingLog { count_denied: true } => {
            vec![period, "count_denied: true".to_owned()]
        }
        _ => vec![period],
    }
}

/// Sources as YAML has them; `header:x` would be a mapping without quotes.
fn sources(per: &[KeySource]) -> String {
    let quoted = |source: &KeySource| {
        let text = source.to_string();
        match text.contains(':') {
            true => format!("'{text}'"),
            false => text,
        }
    };
    let mut all = String::new();
    for (index, source) in per.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        // Writing to a `String` never fails.
        let _ = write!(all, "{comma}{}", quoted(source));
    }
    if per.len() == 1 {
        all
    } else {
        format!("[{all}]")
    }
}
