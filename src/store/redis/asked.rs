//! What is asked about a transaction of any algorithm, and what came of it.

use redis::{Pipeline, Value};
use smallvec::SmallVec;

use super::commands::{self, Found, Question};
use super::windows::{Repair, WindowFound, WindowQuestion, fixed, sliding};
use crate::limit::{Batch, Decision, Transaction};
use crate::time::{Nanos, Timestamp};

/// What is asked about a transaction.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    Gcra(Question),
    Window(WindowQuestion),
}

/// What came of it.
pub(super) enum Answer {
    Gcra(Found),
    Window(WindowFound, Repair),
}

impl Asked {
    pub(super) fn of(one: &Transaction, now: Timestamp) -> Self {
        if one.quota.algorithm().is_windowed() {
            Self::Window(WindowQuestion::of(one, now))
        } else {
            Self::Gcra(Question::of(one))
        }
    }

    pub(super) fn add(
        self,
        commands: &mut Pipeline,
        key: &[u8],
        one: &Transaction,
        now: Timestamp,
    ) {
        match self {
            Self::Window(question) => question.add(commands, key, one, now),
            Self::Gcra(Question::Nothing) => {}
            Self::Gcra(Question::Read) => {
                commands.add_command(commands::read(key));
            }
            Self::Gcra(Question::Take(increment)) => {
                let tolerance = one.quota.tolerance();
                commands.add_command(commands::take(key, increment, tolerance, now));
                commands.add_command(commands::expire(key, tolerance));
            }
        }
    }

    fn replies(self, one: &Transaction) -> usize {
        match self {
            Self::Gcra(question) => question.replies(),
            Self::Window(question) => question.replies(one),
        }
    }

    fn parse(self, replies: &[Value], one: &Transaction, now: Timestamp) -> Option<Answer> {
        match self {
            Self::Gcra(question) => match replies.first() {
                None => Some(Answer::Gcra(Found::default())),
                Some(reply) => Found::parse(question, reply, now).map(Answer::Gcra),
            },
            Self::Window(question) => question
                .parse(replies, one, now)
                .map(|(found, repair)| Answer::Window(found, repair)),
        }
    }
}

/// Matches replies with questions.
pub(super) fn answers(
    batch: &Batch,
    asked: &[Asked],
    replies: &[Value],
    now: Timestamp,
) -> Option<SmallVec<[Answer; 3]>> {
    let mut rest = replies;
    let mut answers = SmallVec::new();
    for (one, asked) in batch.iter().zip(asked) {
        let (replies, after) = rest.split_at_checked(asked.replies(one))?;
        rest = after;
        answers.push(asked.parse(replies, one, now)?);
    }
    Some(answers)
}

impl Answer {
    pub(super) fn denies(&self, asked: Asked, one: &Transaction) -> bool {
        !self.decision(asked, one, false).allowed
    }

    /// The decision about a bucket; `denied` when one of its batch denies.
    pub(super) fn decision(&self, asked: Asked, one: &Transaction, denied: bool) -> Decision {
        match self {
            Self::Gcra(found) => {
                let debt = match asked {
                    Asked::Gcra(question) => found.deciding_debt(question, one),
                    Asked::Window(_) => Nanos::ZERO,
                };
                match one.decide(debt) {
                    decision if denied && decision.allowed => one.untouched(debt),
                    decision => decision,
                }
            }
            Self::Window(found, _) => match one.decide_in_window(&found.usage) {
                decision if denied && decision.allowed => one.untouched_in_window(&found.usage),
                decision if decision.allowed => decision,
                decision => found
                    .usage_after
                    .map_or(decision, |after| one.decide_in_window(&after)),
            },
        }
    }

    /// Whether something was written that must not stay.
    pub(super) fn is_to_be_given_back(
        &self,
        asked: Asked,
        one: &Transaction,
        denied: bool,
    ) -> bool {
        match self {
            Self::Gcra(found) => denied && found.taken,
            Self::Window(found, _) => {
                let fits = one.fits_beside(found.usage.used);
                let stays = if fits {
                    !denied
                } else {
                    one.is_counted_when_denied() && self.denies(asked, one)
                };
                found.written && !stays
            }
        }
    }

    pub(super) fn add_repair(
        &self,
        commands: &mut Pipeline,
        key: &[u8],
        one: &Transaction,
        now: Timestamp,
    ) {
        match self {
            Self::Gcra(found) if one.quota.is_left_over(found.debt) => {
                let tolerance = one.quota.tolerance();
                commands.add_command(commands::clamp(key, now + tolerance));
                commands.add_command(commands::expire(key, tolerance));
            }
            Self::Window(_, Repair::Cut(end)) => {
                commands.add_command(fixed::cut(key, *end));
                commands.add_command(fixed::expire(key, &one.quota, now));
            }
            Self::Window(_, Repair::Prune(starts)) => {
                commands.add_command(sliding::prune(key, starts));
            }
            Self::Gcra(_) | Self::Window(_, Repair::Nothing) => {}
        }
    }
}
