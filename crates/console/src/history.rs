//! What was counted in the last hour, for whoever opens the dashboard.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// The time that a point tells of.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// An hour of points.
const MAX_POINTS: usize = 360;

/// The points of the last hour, the latest last.
#[derive(Default)]
pub struct History(Mutex<Points>);

#[derive(Default)]
struct Points {
    points: VecDeque<Value>,
    /// How many there were since the start.
    count: u64,
}

impl History {
    /// Adds a point, and drops those of more than an hour ago.
    pub fn push(&self, point: Value) {
        let mut kept = self.0.lock();
        kept.points.push_back(point);
        kept.count += 1;
        let excess = kept.points.len().saturating_sub(MAX_POINTS);
        kept.points.drain(..excess);
    }

    /// The points after the first `seen` of all; none if there are none.
    pub fn since(&self, seen: &mut u64) -> Option<Value> {
        let points: Vec<Value> = {
            let kept = self.0.lock();
            let new = usize::try_from(kept.count - *seen).unwrap_or(MAX_POINTS);
            *seen = kept.count;
            let known = kept.points.len().saturating_sub(new);
            kept.points.iter().skip(known).cloned().collect()
        };
        let seconds = INTERVAL.as_secs();
        (!points.is_empty()).then(|| json!({"seconds": seconds, "points": points}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_a_page_gets_each_point_once() {
        let history = History::default();
        let mut seen = 0;
        assert_eq!(history.since(&mut seen), None);
        for at in 0..400 {
            history.push(json!({ "at": at }));
        }
        let all = history.since(&mut seen).unwrap();
        let points = all["points"].as_array().unwrap();
        assert_eq!(
            (points.len(), &points[0]["at"], &points[359]["at"]),
            (360, &json!(40), &json!(399))
        );
        assert_eq!(history.since(&mut seen), None);
        history.push(json!({"at": 400}));
        let new = history.since(&mut seen).unwrap();
        assert_eq!(new["points"], json!([{"at": 400}]));
    }
}
