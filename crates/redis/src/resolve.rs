//! The way on for a batch whose replies do not decide it at once: some are redirections or errors,
//! or tell of a debt of another definition of the limit.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;
use weir_limit::Transaction;
use weir_store::StoreError;

use super::awaited_nodes::AwaitedNodes;
use super::batch_plan::{BatchPlan, BatchReplies, Resolved};
use super::client::{Client, Nodes};
use super::cluster::Cluster;
use super::command::{Command, Reply};
use super::levels::ForeignBucket;
use super::manager::Session;
use super::resp::{Replies, Request};

/// A batch, and what its nodes have replied.
pub(super) struct Resolution {
    pub(super) client: Arc<Client>,
    pub(super) plan: BatchPlan,
    pub(super) nodes: Vec<(Arc<Session>, Result<Replies, StoreError>)>,
    /// The deadline of the call was over before: these replies are not counted any more.
    pub(super) is_overdue: bool,
    pub(super) awaited: AwaitedNodes,
}

impl Resolution {
    /// Finds out all that the batch's nodes can tell. A limit that needs a command that a server
    /// refuses does not affect the others; nor do those on a node that failed affect what others
    /// did.
    pub(super) async fn run(mut self) -> Resolved {
        let failure_elsewhere = match self.client.nodes() {
            Nodes::One(_) => None,
            Nodes::Cluster(cluster) => {
                let cluster = Arc::clone(cluster);
                self.follow_redirections(&cluster).await
            }
        };
        let (replies, failure) = self.parse(failure_elsewhere.is_some());
        let failure = failure.or(failure_elsewhere);
        self.decide_foreign(replies, failure).await
    }

    /// Repeats redirected commands. Returns why a node that was named failed.
    async fn follow_redirections(&mut self, cluster: &Cluster) -> Option<StoreError> {
        let nodes = std::mem::take(&mut self.nodes).into_iter().enumerate();
        let followed = nodes.map(async |(index, (session, replies))| match replies {
            Err(error) => (session, Err(error), None),
            Ok(replies) => {
                let request = self.request(index);
                let followed = cluster.follow(&session, &request, replies, &self.awaited);
                let (replies, failure) = followed.await;
                (session, Ok(replies), failure)
            }
        });
        let mut last_failure = None;
        let mut nodes = Vec::new();
        for (session, replies, failure) in join_all(followed).await {
            nodes.push((session, replies));
            last_failure = failure.or(last_failure);
        }
        self.nodes = nodes;
        last_failure
    }

    /// The request to a node, made again.
    fn request(&self, node: usize) -> Request {
        let mut request = Request::default();
        for (transaction, (command, _)) in self.own(node) {
            let key = self.client.transaction_key(transaction);
            command.add(&mut request, &key, transaction, self.plan.now);
        }
        request
    }

    fn own(&self, node: usize) -> impl Iterator<Item = (&Transaction, (Command, usize))> {
        let asked = self.plan.asked();
        asked.filter(move |(_, (_, own))| *own == node)
    }

    /// Matches replies with commands, and counts success or failure of each node.
    fn parse(&mut self, failed_elsewhere: bool) -> Resolved {
        let mut parsed: BatchReplies = self.plan.asked().map(|_| Reply::Missing).collect();
        let mut failure = None;
        for (index, (session, replies)) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            let error = match replies {
                Ok(replies) => {
                    let all = self.plan.asked().zip(&mut parsed);
                    let own = all.filter(|((_, (_, node)), _)| *node == index);
                    let error = self.parse_node(&session, &replies, own, failed_elsewhere);
                    if !self.is_overdue {
                        session.record(error.as_ref());
                    }
                    error
                }
                // It is counted already.
                Err(error) => Some(error),
            };
            failure = error.map(|error| session.failure(error)).or(failure);
            self.nodes.push((session, Ok(Replies::default())));
        }
        (parsed, failure)
    }

    /// Reads what one node has replied, and returns why that is not all. A redirection only says
    /// that another node failed, where that is known.
    fn parse_node<'r>(
        &self,
        session: &Arc<Session>,
        replies: &Replies,
        asked: impl Iterator<Item = ((&'r Transaction, (Command, usize)), &'r mut Reply)>,
        failed_elsewhere: bool,
    ) -> Option<StoreError> {
        let mut cursor = replies.iter();
        let mut failure = None;
        for ((transaction, (command, _)), reply) in asked {
            match command.parse_or_refusal(&mut cursor, transaction, self.plan.now) {
                Some(Ok(found)) if found.is_refused_for_all() => {
                    return Some(session.protocol_error(replies));
                }
                Some(Ok(found)) => {
                    if found
                        .refusal()
                        .is_some_and(|refusal| refusal.is_forbidden())
                    {
                        session.commands.doubt();
                    }
                    *reply = found;
                }
                Some(Err(error)) if failed_elsewhere && error.redirect_node().is_some() => {}
                Some(Err(error)) => failure = Some(session.failed(error)),
                None => return Some(session.protocol_error(replies)),
            }
        }
        failure
    }

    /// Decides the buckets of which the first level does not, if there are any; without an answer
    /// they have no decision.
    async fn decide_foreign(
        self,
        mut replies: BatchReplies,
        mut failure: Option<StoreError>,
    ) -> Resolved {
        let foreign: SmallVec<[ForeignBucket; 1]> = self.foreign(&replies).collect();
        if foreign.is_empty() {
            return (replies, failure);
        }
        let denied = self
            .plan
            .each(&replies)
            .any(|(transaction, command, reply)| {
                !reply.has_foreign_level(transaction) && reply.denies(command, transaction)
            });
        let decided = self
            .client
            .decide_foreign(foreign, denied, self.plan.now, &self.awaited);
        for (index, settled) in decided.await {
            let Some(reply) = replies.get_mut(index) else {
                continue;
            };
            *reply = match settled {
                Ok(found) => Reply::Gcra(found),
                Err(error) => {
                    failure = Some(error);
                    Reply::Missing
                }
            };
        }
        (replies, failure)
    }

    fn foreign(&self, replies: &[Reply]) -> impl Iterator<Item = ForeignBucket> {
        let both = self.plan.asked().zip(replies).enumerate();
        both.filter_map(|(index, ((transaction, (command, node)), reply))| {
            let (Command::Gcra(command, _), Reply::Gcra(found)) = (command, reply) else {
                return None;
            };
            let (session, _) = self.nodes.get(node)?;
            reply.has_foreign_level(transaction).then(|| ForeignBucket {
                index,
                session: Arc::clone(session),
                key: self.client.transaction_key(transaction),
                transaction: transaction.clone(),
                command,
                reply: *found,
            })
        })
    }
}
