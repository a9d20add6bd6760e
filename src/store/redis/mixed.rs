//! Batches with limits that are counted in windows, alone or beside GCRA's.
//!
//! They are one pipeline, too. What differs is what is to be put right afterwards: a window may have
//! been written to although the cost did not fit.

use std::sync::Arc;

use futures_util::FutureExt;
use smallvec::SmallVec;

use super::asked::{Answer, Asked, answers, answers_or_refusals};
use super::channel::Client;
use super::giving_back::{GivingBack, Taken, add_fixed_refund};
use super::link::Live;
use super::replies::Replies;
use super::request::Request;
use super::windows::{WindowKind, log, sliding};
use crate::limit::{Batch, Mode, SubWindows, Transaction};
use crate::store::{Call, DecisionSource, Outcome, StoreError};
use crate::time::Timestamp;

/// A bucket's key in Redis.
pub(super) type Key = SmallVec<[u8; 96]>;

impl Client {
    /// Asks Redis about a batch of which some transactions are counted in windows. It is a task of
    /// its own, since what does not fit must be put right although the caller may no longer wait.
    pub(super) fn ask_mixed(
        self: Arc<Self>,
        live: Live,
        batch: Batch,
        now: Timestamp,
    ) -> impl Future<Output = Result<Outcome, StoreError>> {
        let decided = tokio::spawn(self.decide_mixed(live, batch, now));
        // Without an outcome the runtime is ending.
        decided.map(|outcome| outcome.unwrap_or(Err(StoreError::OutOfReach)))
    }

    /// Takes from all of a batch's buckets or from none, and decides.
    pub(super) async fn decide_mixed(
        self: Arc<Self>,
        live: Live,
        batch: Batch,
        now: Timestamp,
    ) -> Result<Outcome, StoreError> {
        let asked: SmallVec<[Asked; 3]> = batch.iter().map(|one| Asked::of(one, now)).collect();
        let mut request = Request::roomy();
        for (one, asked) in batch.iter().zip(&asked) {
            asked.add(&mut request, &self.any_key(one), one, now);
        }
        let replies = self.ask(&live, request).await?;
        let answers = match answers(&batch, &asked, &replies, now) {
            Some(answers) => answers,
            None => self.answers_or_refusals(&live, &batch, &asked, &replies, now)?,
        };
        let looks = || batch.iter().zip(asked.iter().zip(&answers));
        let denied = looks().any(|(one, (asked, answer))| answer.denies(*asked, one));
        let decision = |(one, (asked, answer)): (&Transaction, (&Asked, &Answer))| {
            answer.decision(*asked, one, denied)
        };
        let decisions = looks().map(decision).collect();
        self.put_right(&live, &batch, &asked, &answers, denied, now);
        let outcome = Outcome {
            decisions,
            basis: DecisionSource::Store,
        };
        let mut refusals = answers.into_iter().filter_map(Answer::refusal);
        match refusals.next() {
            // What one limit denies need not be decided by another.
            Some(error) if !denied => Err(StoreError::Undecided {
                outcome: Box::new(outcome),
                source: Box::new(error),
            }),
            _ => Ok(outcome),
        }
    }

    /// The answers when there are errors among the replies. A limit that needs a command that the server
    /// refuses stands in no other's way.
    fn answers_or_refusals(
        &self,
        live: &Live,
        batch: &Batch,
        asked: &[Asked],
        replies: &Replies,
        now: Timestamp,
    ) -> Result<SmallVec<[Answer; 3]>, StoreError> {
        let counted = |(one, asked): (&Transaction, &Asked)| {
            let mut request = Request::default();
            asked.add(&mut request, &[], one, now);
            (*asked, request.len())
        };
        let counts: SmallVec<[_; 3]> = batch.iter().zip(asked).map(counted).collect();
        match answers_or_refusals(batch, &counts, replies, now) {
            Some(Ok(answers)) if !answers.iter().any(Answer::is_for_all) => Ok(answers),
            _ => Err(self.unfit(live, replies)),
        }
    }

    /// Gives back what was taken, as far as it is still owed. What of a sliding window is owed has to
    /// be read first.
    pub(super) async fn refund_mixed(
        self: Arc<Self>,
        live: Live,
        batch: Batch,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut giving = GivingBack::default();
        for one in batch.iter().filter(|one| one.kind.spends()) {
            if !one.quota.algorithm().is_windowed() {
                if let Some(increment) = one.quota.increment(one.cost) {
                    self.add_give_back(&mut giving.request, one, increment, now);
                }
            } else if one.fits_beside(0) {
                self.add_refund(&live, &mut giving, one, now).await?;
            }
        }
        self.give_back(&live, giving).await
    }

    async fn add_refund(
        &self,
        live: &Live,
        giving: &mut GivingBack,
        one: &Transaction,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let key = self.any_key(one);
        match WindowKind::of(&one.quota) {
            WindowKind::Fixed => add_fixed_refund(&mut giving.request, &key, one, now),
            WindowKind::Log => log::give_back(&mut giving.request, &key, one),
            WindowKind::Sliding => {
                let mut request = Request::default();
                sliding::read(&mut request, &key);
                let replies = self.ask(live, request).await?;
                let all = replies
                    .iter()
                    .value()
                    .as_ref()
                    .and_then(sliding::sub_windows);
                let all = all.ok_or_else(|| self.unfit(live, &replies))?;
                let all: SubWindows = all.into_iter().collect();
                let taken = |sub_window| Taken {
                    key: key.clone(),
                    sub_window,
                    transaction: one.clone(),
                };
                giving
                    .taken
                    .extend(all.given_back(one.cost.get()).map(taken));
            }
        }
        Ok(())
    }

    /// A bucket's key in Redis, with the mark of its algorithm.
    fn any_key(&self, one: &Transaction) -> Key {
        let mut key = self.key(&one.key);
        if one.quota.algorithm().is_windowed() {
            key.extend_from_slice(WindowKind::of(&one.quota).mark().as_bytes());
        }
        key
    }

    fn put_right(
        self: &Arc<Self>,
        live: &Live,
        batch: &Batch,
        asked: &[Asked],
        answers: &[Answer],
        denied: bool,
        now: Timestamp,
    ) {
        let (mut giving, mut repairs) = (GivingBack::default(), Request::default());
        for (one, (&asked, answer)) in batch.iter().zip(asked.iter().zip(answers)) {
            let key = self.any_key(one);
            answer.add_repair(&mut repairs, &key, one, now);
            if answer.is_to_be_given_back(asked, one, denied) {
                giving.add(asked, key, one, now);
            }
        }
        self.repair(live, repairs);
        if !giving.is_empty() {
            let (channel, live) = (Arc::clone(self), Arc::clone(live));
            let work = async move { channel.give_back(&live, giving).await };
            self.off_path(Call::Refund, work);
        }
    }
}

/// Whether a batch has transactions that are counted in windows.
pub(super) fn has_windows(batch: &Batch) -> bool {
    let is_asked = |one: &&Transaction| one.kind != Mode::AllowOnly;
    let mut asked = batch.iter().filter(is_asked);
    asked.any(|one| one.quota.algorithm().is_windowed())
}
