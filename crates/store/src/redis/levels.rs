//! Buckets of which the first level is beyond what a quota can have caused, since gateways have
//! other definitions of the limit, or had (see `weir_limit::levels`). They are seldom, so a
//! decision about them takes two calls more: one that reads the other levels, and one that takes.

use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::Value;
use smallvec::SmallVec;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{LevelChoice, Transaction};

use super::awaited_nodes::AwaitedNodes;
use super::client::{Client, Key};
use super::gcra::{self, GcraCommand, GcraReply};
use super::manager::Session;
use super::resp::Request;
use crate::StoreError;

/// A bucket whose first level did not decide.
pub(super) struct StaleBucket {
    /// Which one of its batch it is.
    pub(super) index: usize,
    pub(super) session: Arc<Session>,
    pub(super) key: Key,
    pub(super) transaction: Transaction,
    pub(super) command: GcraCommand,
    pub(super) reply: GcraReply,
}

/// What became of them.
pub(super) type Settled = SmallVec<[(usize, GcraReply); 1]>;

impl Client {
    /// Decides by the levels that count, and takes from them unless the batch is `denied` by
    /// others.
    pub(super) async fn decide_stale(
        &self,
        stale: SmallVec<[StaleBucket; 1]>,
        denied: bool,
        now: Timestamp,
        awaited: &AwaitedNodes,
    ) -> Result<Settled, StoreError> {
        let reads = stale.iter().map(|bucket| {
            let StaleBucket { session, key, .. } = bucket;
            self.choose_level(
                session,
                key,
                &bucket.transaction,
                bucket.reply.first,
                (now, awaited),
            )
        });
        let levels = try_join_all(reads).await?;
        let both = || stale.iter().zip(&levels);
        let denied =
            denied || both().any(|(bucket, level)| !bucket.transaction.decide(level.debt).allowed);
        let settled = both().map(|(bucket, level)| async move {
            let reply = self
                .settle_stale(bucket, level, denied, (now, awaited))
                .await?;
            Ok::<_, StoreError>((bucket.index, reply))
        });
        Ok(try_join_all(settled).await?.into())
    }

    /// Gives back what was taken from the levels below the first, by the debt that the first had.
    pub(super) async fn refund_deeper(
        &self,
        session: &Arc<Session>,
        key: &[u8],
        (transaction, first): (&Transaction, Nanos),
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let awaited = AwaitedNodes::default();
        let level = self
            .choose_level(session, key, transaction, first, (now, &awaited))
            .await?;
        let mut request = Request::default();
        if let Some(increment) = transaction.quota.increment(transaction.cost)
            && level.index > 0
        {
            gcra::refund_levels(&mut request, key, increment, 1..level.index + 1, now);
        }
        // The refund of the first level has set an expiry that is too short for its debt.
        gcra::renew(&mut request, key, first, now);
        self.send(session, request).await.map(drop)
    }

    async fn choose_level(
        &self,
        session: &Arc<Session>,
        key: &[u8],
        transaction: &Transaction,
        first: Nanos,
        (now, awaited): (Timestamp, &AwaitedNodes),
    ) -> Result<LevelChoice, StoreError> {
        let mut request = Request::default();
        gcra::read_levels(&mut request, key);
        let reply = self.one_reply(session, request, awaited).await?;
        let levels =
            gcra::parse_levels(&reply).ok_or_else(|| session.failure(session.invalid_reply()))?;
        Ok(transaction.quota.choose_level(first, &levels, now))
    }

    async fn settle_stale(
        &self,
        bucket: &StaleBucket,
        level: &LevelChoice,
        denied: bool,
        (now, awaited): (Timestamp, &AwaitedNodes),
    ) -> Result<GcraReply, StoreError> {
        let StaleBucket {
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
                let reply = self.one_reply(session, request, awaited).await?;
                let (debt, taken) = gcra::parse_take_level(&reply)
                    .ok_or_else(|| session.failure(session.invalid_reply()))?;
                if !taken {
                    // Another gateway was faster. The levels above were charged all the same.
                    let mut back = Request::default();
                    gcra::refund_levels(&mut back, key, increment, 0..level.index, now);
                    self.one_reply(session, back, awaited).await?;
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
                self.one_reply(session, request, awaited).await?;
                Ok(settled)
            }
            _ => Ok(settled),
        }
    }

    async fn one_reply(
        &self,
        session: &Arc<Session>,
        request: Request,
        awaited: &AwaitedNodes,
    ) -> Result<Value, StoreError> {
        let sent = awaited.wait_on(session, self.send(session, request)).await;
        session.record(sent.as_ref().err());
        let replies = sent.map_err(|error| session.failure(error))?;
        let reply = replies.into_iter().next();
        reply.ok_or_else(|| session.failure(session.invalid_reply()))
    }
}
