//! A batch's way to Redis and back: questions, replies, decisions, and what is to be put right.

use std::sync::Arc;

use redis::{Pipeline, Value};
use smallvec::SmallVec;

use super::channel::Channel;
use super::commands::{self, Found, Question};
use super::link::Live;
use crate::limit::{Batch, Decision, Transaction};
use crate::store::{Basis, Call, Outcome, StoreError};
use crate::time::{Nanos, Timestamp};

impl Channel {
    /// Asks Redis about a batch, takes from all of its buckets or from none, and decides.
    pub(super) async fn ask(
        self: Arc<Self>,
        live: Live,
        batch: Batch,
        now: Timestamp,
    ) -> Result<Outcome, StoreError> {
        let (questions, commands) = self.questions(&batch, now);
        let replies = self.send(&live, &commands).await?;
        let found = findings(&questions, &replies, now).ok_or_else(strange_reply)?;
        let (decisions, denied) = decisions(&batch, &questions, &found);
        if denied {
            self.give_back_taken(&live, &batch, &questions, &found, now);
        }
        self.clamp_left_overs(&live, &batch, &found, now);
        Ok(Outcome {
            decisions,
            basis: Basis::Store,
        })
    }

    fn questions(&self, batch: &Batch, now: Timestamp) -> (Questions, Pipeline) {
        let questions = batch.iter().map(Question::of).collect::<Questions>();
        let mut commands = Pipeline::with_capacity(2 * batch.len());
        for (one, question) in batch.iter().zip(&questions) {
            let (key, tolerance) = (self.key(&one.key), one.quota.tolerance());
            match question {
                Question::Nothing => {}
                Question::Read => {
                    commands.add_command(commands::read(&key));
                }
                Question::Take(increment) => {
                    commands.add_command(commands::take(&key, *increment, tolerance, now));
                    commands.add_command(commands::expire(&key, tolerance));
                }
            }
        }
        (questions, commands)
    }

    fn give_back_taken(
        self: &Arc<Self>,
        live: &Live,
        batch: &Batch,
        questions: &Questions,
        found: &Findings,
        now: Timestamp,
    ) {
        let mut commands = Pipeline::new();
        for ((one, question), found) in batch.iter().zip(questions).zip(found) {
            if let (Question::Take(increment), true) = (question, found.taken) {
                self.add_give_back(&mut commands, one, *increment, now);
            }
        }
        self.in_background(Call::Refund, live, commands);
    }

    fn clamp_left_overs(
        self: &Arc<Self>,
        live: &Live,
        batch: &Batch,
        found: &Findings,
        now: Timestamp,
    ) {
        let mut commands = Pipeline::new();
        for (one, found) in batch.iter().zip(found) {
            if one.quota.is_left_over(found.debt) {
                let greatest = now + one.quota.tolerance();
                self.add_write(&mut commands, one, |key| commands::clamp(key, greatest));
            }
        }
        self.in_background(Call::Clamp, live, commands);
    }
}

type Questions = SmallVec<[Question; 3]>;
type Findings = SmallVec<[Found; 3]>;

/// Matches replies with questions. A take's second reply, the expiry's, says nothing of use.
fn findings(questions: &Questions, replies: &[Value], now: Timestamp) -> Option<Findings> {
    let mut rest = replies;
    let mut found = Findings::new();
    for &question in questions {
        let (replies, after) = rest.split_at_checked(question.replies())?;
        rest = after;
        found.push(match replies.first() {
            None => Found::default(),
            Some(reply) => Found::parse(question, reply, now)?,
        });
    }
    Some(found)
}

/// The decisions, and whether one denies the batch.
fn decisions(
    batch: &Batch,
    questions: &Questions,
    found: &Findings,
) -> (SmallVec<[Option<Decision>; 3]>, bool) {
    let debts = || {
        let found = questions.iter().zip(found);
        batch
            .iter()
            .zip(found)
            .map(|(one, (&question, found))| (one, found.deciding_debt(question, one)))
    };
    let denied = debts().any(|(one, debt)| !one.decide(debt).allowed);
    let decision = |(one, debt): (&Transaction, Nanos)| match one.decide(debt) {
        decision if denied && decision.allowed => Some(one.untouched(debt)),
        decision => Some(decision),
    };
    (debts().map(decision).collect(), denied)
}

/// The outcome for a batch of limits that are all switched off.
pub(super) fn unasked(batch: &Batch) -> Outcome {
    let decision = |one: &Transaction| Some(one.untouched(Nanos::ZERO));
    Outcome {
        decisions: batch.iter().map(decision).collect(),
        basis: Basis::Store,
    }
}

pub(super) fn strange_reply() -> StoreError {
    StoreError::Failed("a reply that does not fit the commands".into())
}
