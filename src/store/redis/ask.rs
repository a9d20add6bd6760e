//! A batch's way to Redis and back: questions, replies, decisions, and what is to be put right.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::channel::Channel;
use super::commands::{self, Expiry, Found, Question};
use super::connection::Answer;
use super::link::Live;
use super::replies::Replies;
use super::request::Request;
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
        let mut asked = Asked::new(self, live, batch, now);
        let replies = asked.replies().await?;
        let found = match asked.findings(&replies) {
            Some(found) => found,
            None => return Err(asked.channel.unfit(&replies)),
        };
        let (decisions, denied) = asked.decisions(&found);
        if denied {
            asked.give_back_taken(&found);
        }
        asked.clamp_left_overs(&found);
        asked.renew_expiries(&found);
        Ok(Outcome {
            decisions,
            basis: Basis::Store,
        })
    }
}

type Questions = SmallVec<[Question; 3]>;
type Findings = SmallVec<[Found; 3]>;

/// A batch that Redis has been asked about.
struct Asked {
    channel: Arc<Channel>,
    live: Live,
    batch: Batch,
    questions: Questions,
    now: Timestamp,
    /// The answer, until it has come.
    answer: Option<oneshot::Receiver<Answer>>,
}

impl Asked {
    fn new(channel: Arc<Channel>, live: Live, batch: Batch, now: Timestamp) -> Self {
        let mut request = Request::roomy();
        let mut questions = Questions::new();
        for one in &batch {
            let question = Question::of(one, || live.expiry_of(one, now));
            question.add(&mut request, &channel.key(&one.key), one, now);
            questions.push(question);
        }
        Self {
            answer: Some(live.connection.send(request)),
            channel,
            live,
            batch,
            questions,
            now,
        }
    }

    async fn replies(&mut self) -> Result<Replies, StoreError> {
        let replies = match &mut self.answer {
            Some(answer) => self.channel.answered(&self.live, answer.await),
            None => Err(StoreError::OutOfReach),
        };
        self.answer = None;
        replies
    }

    /// Matches replies with questions.
    fn findings(&self, replies: &Replies) -> Option<Findings> {
        let mut replies = replies.iter();
        let questions = self.questions.iter();
        questions
            .map(|&question| Found::read(question, &mut replies, self.now))
            .collect()
    }

    /// The decisions, and whether one denies the batch.
    fn decisions(&self, found: &Findings) -> (SmallVec<[Option<Decision>; 3]>, bool) {
        let debts = || {
            self.each(found)
                .map(|(one, question, found)| (one, found.deciding_debt(question, one)))
        };
        let denied = debts().any(|(one, debt)| !one.decide(debt).allowed);
        let decision = |(one, debt): (&Transaction, Nanos)| match one.decide(debt) {
            decision if denied && decision.allowed => Some(one.untouched(debt)),
            decision => Some(decision),
        };
        (debts().map(decision).collect(), denied)
    }

    fn give_back_taken(&self, found: &Findings) {
        let mut request = Request::default();
        for (one, question, found) in self.each(found) {
            if let (Question::Take(increment, _), true) = (question, found.taken) {
                let channel = &self.channel;
                channel.add_give_back(&mut request, one, increment, self.now);
            }
        }
        self.in_background(Call::Refund, request);
    }

    fn clamp_left_overs(&self, found: &Findings) {
        let mut request = Request::default();
        for (one, _, found) in self.each(found) {
            if one.quota.is_left_over(found.debt) {
                let (key, tolerance) = (self.channel.key(&one.key), one.quota.tolerance());
                commands::clamp(&mut request, &key, tolerance, self.now);
            }
        }
        self.in_background(Call::Clamp, request);
    }

    /// Sets the expiry of buckets that last less long than was expected, or are new.
    fn renew_expiries(&self, found: &Findings) {
        let mut request = Request::default();
        for (one, question, found) in self.each(found) {
            if !self.live.lasts(one, question, found, self.now) {
                let (key, tolerance) = (self.channel.key(&one.key), one.quota.tolerance());
                commands::renew(&mut request, &key, tolerance, self.now);
            }
        }
        self.in_background(Call::Expire, request);
    }

    fn each<'a>(
        &'a self,
        found: &'a Findings,
    ) -> impl Iterator<Item = (&'a Transaction, Question, Found)> {
        let questions = self.questions.iter().zip(found);
        let batch = self.batch.iter().zip(questions);
        batch.map(|(one, (&question, &found))| (one, question, found))
    }

    fn in_background(&self, call: Call, request: Request) {
        self.channel.in_background(call, &self.live, request);
    }

    fn expects_expiry(&self) -> bool {
        let expected =
            |question: &Question| matches!(question, Question::Take(_, Expiry::Expected));
        self.questions.iter().any(expected)
    }
}

/// A caller who no longer waits leaves buckets behind that may be new and have no expiry yet, so
/// the answer is looked at all the same.
impl Drop for Asked {
    fn drop(&mut self) {
        let (Some(answer), Ok(runtime)) = (self.answer.take(), Handle::try_current()) else {
            return;
        };
        if !self.expects_expiry() {
            return;
        }
        let left = Self {
            channel: Arc::clone(&self.channel),
            live: Arc::clone(&self.live),
            batch: std::mem::take(&mut self.batch),
            questions: std::mem::take(&mut self.questions),
            now: self.now,
            answer: None,
        };
        runtime.spawn(async move {
            if let Ok(Ok(replies)) = answer.await
                && let Some(found) = left.findings(&replies)
            {
                left.renew_expiries(&found);
            }
        });
    }
}

/// The outcome for a batch of limits that are all switched off.
pub(super) fn unasked(batch: &Batch) -> Outcome {
    let decision = |one: &Transaction| Some(one.untouched(Nanos::ZERO));
    Outcome {
        decisions: batch.iter().map(decision).collect(),
        basis: Basis::Store,
    }
}
