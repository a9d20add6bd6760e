//! One part of all subjects: their lines in order, and all configurations that are replayed over them.

use std::collections::HashMap;

use super::line::Line;
use super::replayer::{PastLine, Replayer};
use super::tally::{Changes, Difference, Kind, Minute, Outcome, Tally};
use super::window::Window;
use crate::time::Timestamp;

const MINUTE: u64 = 60_000_000_000;

/// What is replayed over the lines of a part of all subjects.
pub struct Partition<'r> {
    /// The lines that wait for those before them.
    pub window: Window,
    replayer: Replayer<'r>,
    baseline: Option<Replayer<'r>>,
    variants: Vec<Replayer<'r>>,
    changes: Changes,
    fidelity: Changes,
    minutes: HashMap<u64, Minute>,
}

/// What was counted.
#[derive(Debug, Default)]
pub struct Counted {
    /// By the configuration.
    pub tally: Tally,
    /// By the baseline, if there is one.
    pub baseline: Option<Tally>,
    /// By each variant of the configuration.
    pub variants: Vec<Tally>,
    /// How the configuration differs from the baseline, or from what Weir's log says.
    pub changes: Changes,
    /// How the baseline differs from what Weir's log says.
    pub fidelity: Changes,
    /// Requests and denials, by minutes since 1970.
    pub minutes: HashMap<u64, Minute>,
    /// Lines that came too late to be put in order.
    pub late: u64,
}

impl<'r> Partition<'r> {
    /// Nothing so far.
    pub fn new(
        window: Window,
        replayer: Replayer<'r>,
        baseline: Option<Replayer<'r>>,
        variants: Vec<Replayer<'r>>,
    ) -> Self {
        Self {
            window,
            replayer,
            baseline,
            variants,
            changes: Changes::default(),
            fidelity: Changes::default(),
            minutes: HashMap::new(),
        }
    }

    /// Replays the lines that came before `until`.
    pub fn replay_until(&mut self, until: Timestamp) {
        for line in self.window.take_until(until) {
            self.replay(&line);
        }
    }

    fn replay(&mut self, line: &Line) {
        let past = PastLine::new(line);
        let is = self.replayer.arrive(&past);
        for variant in &mut self.variants {
            variant.arrive(&past);
        }
        let recorded = line.recorded.filter(|recorded| recorded.is_comparable);
        let recorded = recorded.map(|recorded| {
            let outcome = Outcome::of(recorded.decision, recorded.by);
            (outcome, recorded)
        });
        let difference = |was, is| Difference {
            at: line.at,
            client: line.client,
            request: format!("{} {}", line.method, line.target.path()),
            was,
            is,
        };
        let was = match &mut self.baseline {
            Some(baseline) => {
                let was = baseline.arrive(&past);
                match recorded {
                    Some((recorded, _)) => {
                        self.fidelity
                            .compare(recorded, was, || difference(recorded, was));
                    }
                    None => self.fidelity.not_compared += 1,
                }
                Some(was)
            }
            None => recorded.map(|(outcome, _)| outcome),
        };
        match was {
            Some(was) => {
                self.changes.compare(was, is, || difference(was, is));
                self.count_change(was, is);
            }
            None => self.changes.not_compared += 1,
        }
        let minute = self.minutes.entry(line.at.as_nanos() / MINUTE).or_default();
        minute.requests += 1;
        minute.denied += u64::from(is.kind == Kind::Denied);
        minute.denied_before += u64::from(was.is_some_and(|was| was.kind == Kind::Denied));
    }

    /// Counts a change for the limit that denies, or denied.
    fn count_change(&mut self, was: Outcome, is: Outcome) {
        let limit = match (was.kind == Kind::Denied, is.kind == Kind::Denied) {
            (false, true) => is.by,
            (true, false) => was.by,
            _ => return,
        };
        if let Some(limit) = limit.and_then(|name| self.replayer.limit_named(name)) {
            match is.kind {
                Kind::Denied => limit.newly_denied += 1,
                _ => limit.no_longer_denied += 1,
            }
        }
    }

    /// Replays what is left.
    pub fn finish(mut self) -> Counted {
        for line in self.window.take_all() {
            self.replay(&line);
        }
        let finish = |mut replayer: Replayer<'r>| {
            replayer.finish();
            replayer.tally
        };
        Counted {
            tally: finish(self.replayer),
            baseline: self.baseline.map(finish),
            variants: self.variants.into_iter().map(finish).collect(),
            changes: self.changes,
            fidelity: self.fidelity,
            minutes: self.minutes,
            late: self.window.late,
        }
    }
}

impl Counted {
    /// Adds what another partition has counted.
    pub fn add(&mut self, other: Self) {
        self.tally.add(other.tally);
        match (&mut self.baseline, other.baseline) {
            (Some(baseline), Some(more)) => baseline.add(more),
            (baseline, more) => *baseline = more.or(baseline.take()),
        }
        if self.variants.is_empty() {
            self.variants = other.variants;
        } else {
            for (variant, more) in self.variants.iter_mut().zip(other.variants) {
                variant.add(more);
            }
        }
        self.changes.add(other.changes);
        self.fidelity.add(other.fidelity);
        for (minute, more) in other.minutes {
            let minute = self.minutes.entry(minute).or_default();
            minute.requests += more.requests;
            minute.denied += more.denied;
            minute.denied_before += more.denied_before;
        }
        self.late += other.late;
    }
}
