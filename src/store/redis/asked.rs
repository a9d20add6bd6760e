//! What is asked about a transaction of any algorithm, and what came of it.

use smallvec::SmallVec;

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
        request: &mut Request,
        key: &[u8],
        one: &Transaction,
        now: Timestamp,
    ) {
        match self {
            Self::Gcra(found) if one.quota.is_left_over(found.debt) => {
                commands::clamp(request, key, one.quota.tolerance(), now);
            }
            Self::Window(_, Repair::Cut(end)) => {
                fixed::cut(request, key, *end);
                fixed::expire(request, key, &one.quota, now);
            }
            Self::Window(_, Repair::Prune(starts)) => sliding::prune(request, key, starts),
            Self::Gcra(_) | Self::Window(_, Repair::Nothing) => {}
        }
    }
}
