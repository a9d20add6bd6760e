//! Buckets of which the first level is beyond what a quota can have caused, since gateways have
//! other definitions of the limit, or had (see `weir_limit::levels`). They are seldom, so a
//! decision about them takes two calls more: one that reads the other levels, and one that takes.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::Value;
use smallvec::SmallVec;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{LevelChoice, Transaction};
use weir_store::StoreError;

use super::awaited_nodes::AwaitedNodes;
use super::client::{Client, Key};
use super::gcra::{self, GcraCommand, GcraReply};
use super::manager::Session;
use super::resp::Request;

/// A bucket whose first level did not decide.
pub(super) struct ForeignBucket {
    /// Which one of its batch it is.
    pub(super) index: usize,
    pub(super) session: Arc<Session>,
    pub(super) key: Key,
    pub(super) transaction: Transaction,
    pub(super) command: GcraCommand,
    pub(super) reply: GcraReply,
}

/// The result for each: one whose node fails does not affect the others.
pub(super) type Settled = SmallVec<[(usize, Result<GcraReply, StoreError>); 1]>;

impl Client {
    /// Decides by the levels that count, and takes from them unless the batch is `denied` by
    /// others.
    pub(super) async fn decide_foreign(
        &self,
        foreign: SmallVec<[ForeignBucket; 1]>,
        denied: bool,
        now: Timestamp,
        awaited: &AwaitedNodes,
    ) -> Settled {
        let reads = foreign.iter().map(|bucket| {
            let ForeignBucket { session, key, .. } = bucket;
            let taken = (&bucket.transaction, bucket.reply.first);
            awaited.wait_on(session, self.choose_level(session, key, taken, now))
        });
        let levels = join_all(reads).await;
        let denies = |(bucket, level): (&ForeignBucket, &Result<LevelChoice, _>)| {
            let decide = |level: &LevelChoice| bucket.transaction.decide(level.debt);
            level.as_ref().is_ok_and(|level| !decide(level).allowed)
        };
        let denied = denied || foreign.iter().zip(&levels).any(denies);
        let settled = foreign
            .iter()
            .zip(levels)
            .map(|(bucket, level)| async move {
                let settled = match level {
                    Ok(level) => {
                        let settled = self.settle_foreign(bucket, &level, denied, now);
                        awaited.wait_on(&bucket.session, settled).await
                    }
                    Err(error) => Err(error),
                };
                (bucket.index, settled)
            });
        join_all(settled).await.into()
    }

    /// Gives back what was taken from the levels below the first, by the debt that the first had.
    pub(super) async fn refund_deeper(
        &self,
        session: &Arc<Session>,
        key: &[u8],
        (transaction, increment, first): (&Transaction, Nanos, Nanos),
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let level = self.choose_level(session, key, (transaction, first), now);
        let level = level.await?;
        let mut request = Request::default();
        if level.index > 0 {
            gcra::refund_levels(&mut request, key, increment, 1..level.index + 1, now);
        }
        // The refund of the first level has set an expiry that is too short for its debt.
        gcra::renew(&mut request, key, first, now);
        self.send_checked(session, request).await.map(drop)
    }

    async fn choose_level(
        &self,
        session: &Arc<Session>,
        key: &[u8],
        (transaction, first): (&Transaction, Nanos),
        now: Timestamp,
    ) -> Result<LevelChoice, StoreError> {
        let mut request = Request::default();
        gcra::read_levels(&mut request, key);
        let reply = self.one_reply(session, request).await?;
        let levels = gcra::parse_levels(&reply).ok_or_else(|| session.invalid_reply())?;
        Ok(transaction.quota.choose_level(first, &levels, now))
    }

    async fn settle_foreign(
        &self,
        bucket: &ForeignBucket,
        level: &LevelChoice,
        denied: bool,
        now: Timestamp,
    ) -> Result<GcraReply, StoreError> {
        let ForeignBucket {
            session,
            key,
            transaction,
            ..
        } = bucket;
        let settled = GcraReply {
            debt: level.debt,
            level: level.index,
            ..bucket.reply
        };
        let mut request = Request::default();
        let fitting = transaction.fitting_increment(level.debt);
        match (bucket.command, fitting) {
            (GcraCommand::Take(..), Some(increment)) if level.index > 0 && !denied => {
                let costs = (increment, transaction.quota.tolerance());
                gcra::take_level(&mut request, key, costs, level, now);
                let reply = self.one_reply(session, request).await?;
                let (debt, taken) =
                    gcra::parse_take_level(&reply).ok_or_else(|| session.invalid_reply())?;
                if !taken {
                    // Another gateway was faster. The levels above were charged all the same.
                    let mut back = Request::default();
                    gcra::refund_levels(&mut back, key, increment, 0..level.index, now);
                    self.send_checked(session, back).await?;
                }
                Ok(GcraReply {
                    debt,
                    taken,
                    ..settled
                })
            }
            _ if level.begins => {
                gcra::begin_level(&mut request, key, level, now);
                // A bucket that was reset meanwhile is there again by that.
                let lasting = bucket.reply.first + transaction.quota.tolerance();
                gcra::renew(&mut request, key, lasting, now);
                self.send_checked(session, request).await?;
                Ok(settled)
            }
            _ => Ok(settled),
        }
    }

    async fn one_reply(
        &self,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<Value, StoreError> {
        let reply = self
            .send_checked(session, request)
            .await?
            .into_iter()
            .next();
        reply.ok_or_else(|| session.invalid_reply())
    }
}
