//! How much of a log was judged: a replay that asked no limit must not pass for a good one.

use super::{Condition, Report};
use crate::percent;

impl Report {
    /// Why the result must not be believed: nothing was judged, or, where conditions judge it, less
    /// than all but `max_unjudged` percent, or nothing that a condition is about.
    pub fn too_little(&self, conditions: &[Condition], max_unjudged: f64) -> Option<String> {
        if self.judged == 0 {
            let reasons = self.reasons();
            let unlogged = self.unlogged_matches.iter();
            let unlogged: String = unlogged.map(|text| format!("; {text}")).collect();
            return Some(format!(
                "no request was judged by a limit: {reasons}{unlogged}"
            ));
        }
        if conditions.is_empty() {
            return None;
        }
        if self.unlogged_matches.is_some() {
            return self.unlogged_matches.clone();
        }
        let unasked = |condition: &&Condition| {
            let mut limits = self.limits.iter();
            let named = |limit: &&super::LimitReport| Some(&*limit.name) == condition.limit();
            limits.find(named).is_some_and(|limit| limit.requests == 0)
        };
        if let Some(condition) = conditions.iter().find(unasked) {
            let text =
                format!("--fail-if {condition} is about a limit that no request was judged by");
            return Some(text);
        }
        let all = self.requests.total + self.log.counts.malformed;
        let share = percent(all - self.judged, all);
        (share > max_unjudged).then(|| {
            let reasons = self.reasons();
            format!(
                "{share}% of the log was judged by no limit ({reasons}), which is more than \
                 --max-unjudged {max_unjudged}%"
            )
        })
    }

    /// What became of requests that no limit judged.
    fn reasons(&self) -> String {
        let requests = &self.requests;
        let unlimited = match self.judged_without_limits {
            true => 0,
            false => requests.unlimited,
        };
        let counts = [
            (requests.unrouted, "without a route"),
            (unlimited, "that no limit applies to"),
            (requests.refused, "refused before any limit"),
            (self.log.counts.malformed, "lines that cannot be read"),
            (self.log.counts.other, "lines that are not about requests"),
            (self.log.counts.outside, "outside of --from and --to"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        match counts.as_slice() {
            [] => "the log has none".to_owned(),
            counts => counts.join(", "),
        }
    }
}
