//! Puts lines in the order in which their requests were decided.
//!
//! Logs are written when requests end, so a long request stands behind short ones that came later.
//! Lines wait until the log is a while ahead of them; those that come later still are decided at once.

use super::line::Line;
use crate::time::{Nanos, Timestamp};

const SECOND: u64 = 1_000_000_000;

/// Lines that are sorted only when there are as many new ones as old ones, or this many.
const FEW: usize = 1024;

/// Lines that wait for those that belong before them.
#[derive(Debug)]
pub struct Window {
    waiting: Vec<Line>,
    /// Sorted again when there are more.
    sort_at: usize,
    /// How many may wait.
    most: usize,
    /// When the last line was decided.
    decided: Timestamp,
    /// Whether times are of whole seconds, over which their lines are to be spread.
    is_coarse: bool,
    /// Lines that came too late to be put in order.
    pub late: u64,
}

impl Window {
    /// A window of no more than `most` lines.
    pub const fn new(most: usize, is_coarse: bool) -> Self {
        Self {
            waiting: Vec::new(),
            sort_at: FEW,
            most,
            decided: Timestamp::from_nanos(0),
            is_coarse,
            late: 0,
        }
    }

    /// Adds lines in the order of the log.
    pub fn push(&mut self, mut lines: Vec<Line>) {
        if self.is_coarse {
            let whole = |time: Timestamp| Timestamp::from_nanos(time.as_nanos() / SECOND * SECOND);
            lines.iter_mut().for_each(|line| line.at = whole(line.at));
        }
        self.waiting.extend(lines);
    }

    /// The lines of before `until`, in order, if enough wait to be worth it.
    pub fn take_until(&mut self, until: Timestamp) -> Vec<Line> {
        if self.waiting.len() < self.sort_at {
            return Vec::new();
        }
        let taken = self.take(until);
        let spared = self.waiting.len();
        let taken = match spared > self.most {
            true => {
                let half = self.waiting.get(spared / 2).map_or(until, |line| line.at);
                let more = self.take(half);
                taken.into_iter().chain(more).collect()
            }
            false => taken,
        };
        self.sort_at = FEW.max(2 * self.waiting.len()).min(self.most.max(1));
        taken
    }

    /// All lines that are left, in order.
    pub fn take_all(&mut self) -> Vec<Line> {
        self.take(Timestamp::MAX)
    }

    fn take(&mut self, until: Timestamp) -> Vec<Line> {
        // Of two lines at the same time the first of the log comes first.
        self.waiting.sort_by_key(|line| line.at);
        let until = match self.is_coarse {
            true if until != Timestamp::MAX => {
                Timestamp::from_nanos(until.as_nanos() / SECOND * SECOND)
            }
            _ => until,
        };
        let count = self.waiting.partition_point(|line| line.at < until);
        let rest = self.waiting.split_off(count);
        let mut taken = std::mem::replace(&mut self.waiting, rest);
        for line in &mut taken {
            if line.at < self.decided {
                self.late += 1;
                line.shift(self.decided.since(line.at));
            }
        }
        if let Some(last) = taken.last() {
            self.decided = last.at;
        }
        if self.is_coarse {
            spread(&mut taken);
        }
        taken
    }
}

impl Line {
    fn shift(&mut self, by: Nanos) {
        self.at = self.at + by;
        self.answered = self.answered + by;
        self.ended = self.ended + by;
    }
}

/// Spreads the lines of each second evenly over it: a client that sends one request each 100 ms
/// would seem to send ten at once.
fn spread(lines: &mut [Line]) {
    for second in lines.chunk_by_mut(|one, next| one.at == next.at) {
        let count = second.len() as u64;
        for (index, line) in (0_u64..).zip(second) {
            line.shift(Nanos::new(index * SECOND / count));
        }
    }
}
