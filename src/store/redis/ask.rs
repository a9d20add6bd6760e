//! A batch's way to Redis and back: questions, replies, decisions, and what is to be put right.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::channel::Client;
use super::commands::{self, Found, Question};
use super::connection::Answer;
use super::link::Live;
use super::replies::Replies;
use super::request::Request;
use crate::limit::{Batch, Decision, Transaction};
use crate::store::hashed_key::HashedKey;
use crate::store::{Call, DecisionSource, Outcome, StoreError};
use crate::time::{Nanos, Timestamp};

type Keys = SmallVec<[HashedKey; 3]>;
type Questions = SmallVec<[Question; 3]>;
type Findings = SmallVec<[Found; 3]>;

/// A batch that Redis has been asked about. As a future it is the decision: it takes from all of the
/// batch's buckets or from none.
pub(super) struct Asking {
    channel: Arc<Client>,
    live: Live,
    batch: Batch,
    keys: Keys,
    questions: Questions,
    now: Timestamp,
    /// The answer, until it has come.
    answer: Option<oneshot::Receiver<Answer>>,
}

impl Asking {
    /// Asks Redis about a batch.
    pub(super) fn new(channel: Arc<Client>, live: Live, batch: Batch, now: Timestamp) -> Self {
        let mut request = Request::roomy();
        let (mut keys, mut questions) = (Keys::new(), Questions::new());
        for one in &batch {
            let key = live.notes.hash(&one.key);
            let question = Question::of(one, || live.notes.expiry_of(key, one, now));
            question.add(&mut request, &channel.key(&one.key), one, now);
            keys.push(key);
            questions.push(question);
        }
        Self {
            answer: Some(live.connection.send(request)),
            channel,
            live,
            batch,
            keys,
            questions,
            now,
        }
    }

    fn decide(&self, replies: &Replies) -> Result<Outcome, StoreError> {
        let Some(found) = self.findings(replies) else {
            return Err(self.channel.unfit(&self.live, replies));
        };
        let (decisions, denied) = self.decisions(&found);
        if denied {
            self.give_back_taken(&found);
        }
        self.clamp_left_overs(&found);
        self.renew_expiries(&found);
        Ok(Outcome {
            decisions,
            basis: DecisionSource::Store,
        })
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

    /// Cuts what a greater limit has left behind. Who only looks changes nothing.
    fn clamp_left_overs(&self, found: &Findings) {
        let mut request = Request::default();
        for (one, _, found) in self.each(found) {
            if one.kind.spends() && one.quota.is_left_over(found.debt) {
                let (key, tolerance) = (self.channel.key(&one.key), one.quota.tolerance());
                commands::clamp(&mut request, &key, tolerance, self.now);
            }
        }
        self.channel.repair(&self.live, request);
    }

    /// Sets the expiry of buckets that last less long than was expected, or are new.
    fn renew_expiries(&self, found: &Findings) {
        let mut request = Request::default();
        for ((one, question, found), &key) in self.each(found).zip(&self.keys) {
            let notes = &self.live.notes;
            if !notes.learn(key, one, question, found, self.now) {
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
}

impl Future for Asking {
    type Output = Result<Outcome, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.answer else {
            return Poll::Pending;
        };
        let answer = ready!(Pin::new(answer).poll(cx));
        self.answer = None;
        let replies = self.channel.answered(&self.live, answer);
        Poll::Ready(replies.and_then(|replies| self.decide(&replies)))
    }
}

/// A caller who no longer waits leaves buckets behind that were taken from although another denies,
/// or that are new and have no expiry yet. So the answer is looked at all the same.
impl Drop for Asking {
    fn drop(&mut self) {
        let (Some(answer), Ok(runtime)) = (self.answer.take(), Handle::try_current()) else {
            return;
        };
        let left = Self {
            channel: Arc::clone(&self.channel),
            live: Arc::clone(&self.live),
            batch: std::mem::take(&mut self.batch),
            keys: std::mem::take(&mut self.keys),
            questions: std::mem::take(&mut self.questions),
            now: self.now,
            answer: None,
        };
        runtime.spawn(async move {
            if let Ok(replies) = left.channel.answered(&left.live, answer.await) {
                let _ = left.decide(&replies);
            }
        });
    }
}

/// The outcome for a batch of limits that are all switched off.
pub(super) fn unasked(batch: &Batch) -> Outcome {
    let decision = |one: &Transaction| Some(one.untouched(Nanos::ZERO));
    Outcome {
        decisions: batch.iter().map(decision).collect(),
        basis: DecisionSource::Store,
    }
}
