//! What is asked about a transaction of any algorithm, and what came of it.

use redis::RedisError;
use smallvec::SmallVec;

use super::check::{is_refused_command, is_right_of_some};
use super::commands::{self, Expiry, Found, Question};
use super::replies::{Cursor, Replies};
use super::request::Request;
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
    /// The server refuses a command that it needs.
    Forbidden(RedisError),
}

impl Asked {
    pub(super) fn of(one: &Transaction, now: Timestamp) -> Self {
        if one.quota.algorithm().is_windowed() {
            Self::Window(WindowQuestion::of(one, now))
        } else {
            Self::Gcra(Question::of(one, || Expiry::Set))
        }
    }

    pub(super) fn add(self, request: &mut Request, key: &[u8], one: &Transaction, now: Timestamp) {
        match self {
            Self::Gcra(question) => question.add(request, key, one, now),
            Self::Window(question) => question.add(request, key, one, now),
        }
    }

    fn parse(self, replies: &mut Cursor<'_>, one: &Transaction, now: Timestamp) -> Option<Answer> {
        match self {
            Self::Gcra(question) => Found::read(question, replies, now).map(Answer::Gcra),
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
    replies: &Replies,
    now: Timestamp,
) -> Option<SmallVec<[Answer; 3]>> {
    let mut replies = replies.iter();
    let asked = batch.iter().zip(asked);
    asked
        .map(|(one, asked)| asked.parse(&mut replies, one, now))
        .collect()
}

/// The same when some of the questions were answered by errors: there are so many replies to each. An
/// error is the answer when it is no refusal of a command; none when replies do not fit.
pub(super) fn answers_or_refusals(
    batch: &Batch,
    asked: &[(Asked, usize)],
    replies: &Replies,
    now: Timestamp,
) -> Option<Result<SmallVec<[Answer; 3]>, RedisError>> {
    let mut replies = replies.iter();
    let mut answers = SmallVec::new();
    for (one, (asked, count)) in batch.iter().zip(asked) {
        let mut own = replies;
        // Every error is looked for: after a refused `MULTI` what stood in it is done all the same.
        let mut errors = replies.by_ref().take(*count).filter_map(Result::err);
        match errors.next() {
            None => answers.push(asked.parse(&mut own, one, now)?),
            Some(error) if is_refused_command(&error) => answers.push(Answer::Forbidden(error)),
            Some(error) => return Some(Err(error)),
        }
        errors.for_each(drop);
    }
    Some(Ok(answers))
}

impl Answer {
    pub(super) fn denies(&self, asked: Asked, one: &Transaction) -> bool {
        let decision = self.decision(asked, one, false);
        decision.is_some_and(|decision| !decision.allowed)
    }

    /// The decision about a bucket, if it was asked; `denied` when one of its batch denies.
    pub(super) fn decision(
        &self,
        asked: Asked,
        one: &Transaction,
        denied: bool,
    ) -> Option<Decision> {
        Some(match self {
            Self::Forbidden(_) => return None,
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
        })
    }

    /// Whether something was written that must not stay.
    pub(super) fn is_to_be_given_back(
        &self,
        asked: Asked,
        one: &Transaction,
        denied: bool,
    ) -> bool {
        match self {
            Self::Forbidden(_) => false,
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

    /// Adds what puts right what other quotas and old times have left behind. Who only looks changes
    /// nothing.
    pub(super) fn add_repair(
        &self,
        request: &mut Request,
        key: &[u8],
        one: &Transaction,
        now: Timestamp,
    ) {
        match self {
            _ if !one.kind.spends() => {}
            Self::Gcra(found) if one.quota.is_left_over(found.debt) => {
                commands::clamp(request, key, one.quota.tolerance(), now);
            }
            Self::Window(_, Repair::Cut(end)) => {
                fixed::cut(request, key, *end);
                fixed::expire(request, key, &one.quota, now);
            }
            Self::Window(_, Repair::Prune(starts)) => sliding::prune(request, key, starts),
            Self::Gcra(_) | Self::Window(_, Repair::Nothing) | Self::Forbidden(_) => {}
        }
    }

    /// What the server refuses, and why.
    pub(super) fn refusal(self) -> Option<RedisError> {
        match self {
            Self::Forbidden(error) => Some(error),
            Self::Gcra(_) | Self::Window(..) => None,
        }
    }

    /// Whether what the server refuses is needed by all limits.
    pub(super) fn is_for_all(&self) -> bool {
        matches!(self, Self::Forbidden(error) if !is_right_of_some(error))
    }
}
