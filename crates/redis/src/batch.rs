//! A batch's way to Redis and back: commands, replies, decisions, and what is to be refunded and
//! repaired afterwards.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Transaction};
use weir_store::{Call, DecisionSource, Outcome, OwedBatch, PendingReply, StoreError, StoreFuture};

use super::awaited_nodes::AwaitedNodes;
use super::batch_plan::{BatchPlan, BatchReplies, Resolved};
use super::client::Client;
use super::command::{Command, Reply};
use super::expiry::Expiry;
use super::gcra::{self, GcraCommand};
use super::node_requests::NodeRequests;
use super::refund::Refund;
use super::resolve::Resolution;
use super::resp::Request;

/// A batch that Redis has been asked about. As a future it is the decision: it takes from all of
/// the batch's buckets or from none.
pub(super) struct BatchCall {
    client: Arc<Client>,
    plan: BatchPlan,
    /// The transactions that take later if the checks of this batch allow it. What another quota has
    /// left behind is cut for them now, as no take follows a denial.
    later_takes: Option<Box<Batch>>,
    requests: NodeRequests,
    /// Work that follows redirections and reads other levels, if the replies need it.
    resolving: Option<Box<Resolving>>,
    is_abandoned: bool,
}

struct Resolving {
    future: BoxFuture<'static, Resolved>,
    awaited: AwaitedNodes,
}

impl BatchCall {
    /// Asks Redis about a batch: all nodes that hold some of its buckets, or none.
    ///
    /// # Errors
    /// When one of them is known to be out of reach.
    pub(super) fn new(
        client: Arc<Client>,
        batch: Batch,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let mut requests = client.node_requests()?;
        let mut commands = SmallVec::new();
        for transaction in &batch {
            let key = client.transaction_key(transaction);
            let index = requests.index_for(&key)?;
            let Some(node) = requests.get_mut(index) else {
                return Err(StoreError::OutOfReach);
            };
            let read_by = node.session.commands.read_by();
            let command = Command::new(transaction, now, read_by, || {
                let expiries = &node.session.expiries;
                let hash = expiries.hash(&transaction.key);
                let tolerance = transaction.quota.tolerance();
                (hash, expiries.expiry_of(hash, tolerance, now))
            });
            command.add(&mut node.request, &key, transaction, now);
            commands.push((command, index));
        }
        requests.send();
        Ok(Self {
            client,
            plan: BatchPlan {
                batch,
                commands,
                now,
            },
            later_takes: None,
            requests,
            resolving: None,
            is_abandoned: false,
        })
    }

    /// The same call, whose checks precede a batch that takes.
    pub(super) fn checking_for(mut self, batch: Batch) -> Self {
        self.later_takes = Some(Box::new(batch));
        self
    }

    /// The replies, if each command was answered as it should be.
    fn parse(&self) -> Option<BatchReplies> {
        let plan = &self.plan;
        if let [node] = self.requests.as_slice() {
            let mut cursor = node.replies.as_ref().ok()?.iter();
            let parsed = plan.asked().map(|(transaction, (command, _))| {
                command.parse(&mut cursor, transaction, plan.now)
            });
            return parsed.collect();
        }
        let nodes = self.requests.as_slice().iter();
        let cursors = nodes.map(|node| Some(node.replies.as_ref().ok()?.iter()));
        let mut cursors: SmallVec<[_; 1]> = cursors.collect::<Option<_>>()?;
        let parsed = plan.asked().map(|(transaction, (command, index))| {
            command.parse(cursors.get_mut(index)?, transaction, plan.now)
        });
        parsed.collect()
    }

    /// Whether the first levels decide all buckets.
    fn is_decided_by(&self, replies: &[Reply]) -> bool {
        let mut both = self.plan.batch.iter().zip(replies);
        !both.any(|(transaction, reply)| reply.has_foreign_level(transaction))
    }

    #[cold]
    fn resolve(&mut self) -> Box<Resolving> {
        let awaited = self.client.awaited_nodes();
        if self.requests.is_overdue() {
            awaited.stop_counting();
        }
        let resolution = Resolution {
            client: Arc::clone(&self.client),
            plan: self.plan.clone(),
            nodes: self.requests.take_replies(),
            is_overdue: self.requests.is_overdue(),
            awaited: awaited.clone(),
        };
        Box::new(Resolving {
            future: Box::pin(resolution.run()),
            awaited,
        })
    }

    fn decide(&self, replies: &[Reply], failure: Option<StoreError>) -> Decided {
        let outcome = self.decide_and_repair(replies);
        // The denial of one limit is enough: no other need decide the request.
        if !outcome.is_allowed() {
            return Ok(outcome);
        }
        match (failure, self.refusal(replies)) {
            (Some(failure), _) => Err(failure.with_allowed(outcome)),
            (None, Some(error)) => Err(StoreError::Undecided {
                outcome: Box::new(outcome),
                source: Box::new(error),
            }),
            (None, None) => Ok(outcome),
        }
    }

    /// Decides by the nodes that have replied in time, of several. A caller that does not let the
    /// request through gives back what it took there, so when the others reply, these count as
    /// nodes that have not.
    fn decide_in_time(&mut self, failure: StoreError) -> StoreError {
        let mut replies: BatchReplies = self.plan.asked().map(|_| Reply::Missing).collect();
        let mut settled = SmallVec::<[usize; 3]>::new();
        for index in 0..self.requests.as_slice().len() {
            let Some(own) = self.replies_in_time(index) else {
                continue;
            };
            let all = self.plan.asked().zip(&mut replies);
            let missing = all.filter(|((_, (_, node)), _)| *node == index);
            for ((_, missing), reply) in missing.zip(own) {
                *missing = reply;
            }
            settled.push(index);
        }
        if settled.is_empty() {
            return failure;
        }
        let outcome = self.decide_and_repair(&replies);
        for index in settled {
            if let Some(node) = self.requests.get_mut(index) {
                node.replies = Err(StoreError::OutOfReach);
            }
        }
        match outcome.is_allowed() {
            true => failure.with_allowed(outcome),
            // The costs that the other limits took are given back already.
            false => failure,
        }
    }

    fn replies_in_time(&self, index: usize) -> Option<BatchReplies> {
        let node = self.requests.as_slice().get(index)?;
        if node.is_pending() {
            return None;
        }
        let mut cursor = node.replies.as_ref().ok()?.iter();
        let own = self.plan.asked().filter(|(_, (_, node))| *node == index);
        let own = own.map(|(transaction, (command, _))| {
            command.parse(&mut cursor, transaction, self.plan.now)
        });
        own.collect()
    }

    /// The first thing that a server refuses.
    fn refusal(&self, replies: &[Reply]) -> Option<StoreError> {
        let mut both = self.plan.batch.iter().zip(replies);
        let (transaction, refusal) =
            both.find_map(|(transaction, reply)| Some((transaction, reply.refusal()?)))?;
        Some(refusal.about_key(&transaction.key))
    }

    /// Decides by these replies, and does in the background what is left to do: gives back what
    /// must not stay, repairs what another quota has left behind, and sets the expiry of buckets
    /// that last less long than was expected, or are new.
    #[inline(always)]
    fn decide_and_repair(&self, replies: &[Reply]) -> Outcome {
        let decision = |(transaction, command, reply): (&Transaction, Command, &Reply)| {
            reply.decision(command, transaction, false)
        };
        let mut outcome = Outcome {
            decisions: self.plan.each(replies).map(decision).collect(),
            source: DecisionSource::Store,
        };
        let denied = !outcome.is_allowed();
        if denied {
            let each = self.plan.each(replies).zip(&mut outcome.decisions);
            for ((transaction, command, reply), decision) in each {
                *decision = reply.decision(command, transaction, true);
            }
        }
        self.repair(replies, denied);
        outcome
    }

    fn repair(&self, replies: &[Reply], denied: bool) {
        let now = self.plan.now;
        for (index, node) in self.requests.as_slice().iter().enumerate() {
            let mut refund = None;
            let (mut repairs, mut renewals) = (Request::default(), Request::default());
            let nodes = self.plan.commands.iter().map(|(_, node)| *node);
            let take = self.later_takes.as_deref().unwrap_or(&self.plan.batch);
            let own = self.plan.each(replies).zip(take).zip(nodes);
            let own = own.filter(|(_, node)| *node == index);
            for (((transaction, command, reply), take), _) in own {
                let key = || self.client.transaction_key(transaction);
                if reply.is_to_be_refunded(command, transaction, denied) {
                    let end = reply.window_end();
                    let refund = refund.get_or_insert_with(Refund::default);
                    refund.add(command, key(), (transaction, end), now);
                    refund.add_deeper(command, reply, &key(), now);
                }
                reply.add_repair(&mut repairs, key, take, now);
                if let (Command::Gcra(GcraCommand::Take(_, expiry), hash), Reply::Gcra(found)) =
                    (command, reply)
                {
                    let (expiries, tolerance) =
                        (&node.session.expiries, transaction.quota.tolerance());
                    if transaction.has_foreign_level(found.first) {
                        // Another definition's debt outlasts what this one expects of the bucket.
                        let lasting = found.first + tolerance;
                        expiries.record(hash, tolerance, (Expiry::Set, found.note), now);
                        gcra::renew(&mut renewals, &key(), lasting, now);
                    } else if !expiries.record(hash, tolerance, (expiry, found.note), now) {
                        gcra::renew(&mut renewals, &key(), tolerance, now);
                    }
                }
            }
            if let Some(refund) = refund {
                self.client.refund_in_background(&node.session, refund);
            }
            self.client.repair(&node.session, repairs);
            self.client
                .send_in_background(Call::Expire, &node.session, renewals);
        }
    }
}

type Decided = Result<Outcome, StoreError>;

impl Future for BatchCall {
    type Output = Decided;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decided> {
        let call = &mut *self;
        let resolving = match &mut call.resolving {
            Some(resolving) => resolving,
            None => {
                ready!(call.requests.poll_replies(cx));
                if let Some(parsed) = call.parse()
                    && call.is_decided_by(&parsed)
                {
                    call.requests.record_success();
                    return Poll::Ready(call.decide(&parsed, None));
                }
                let resolving = call.resolve();
                call.resolving.insert(resolving)
            }
        };
        let (replies, failure) = ready!(resolving.future.as_mut().poll(cx));
        call.resolving = None;
        Poll::Ready(call.decide(&replies, failure))
    }
}

impl PendingReply<Outcome> for BatchCall {
    fn overdue(mut self: Pin<&mut Self>) -> StoreError {
        match &self.resolving {
            Some(resolving) => resolving.awaited.overdue(),
            None => match self.requests.overdue() {
                failure @ StoreError::Node { .. } => self.decide_in_time(failure),
                failure => failure,
            },
        }
    }

    /// A reply shows that its connection can be used, whatever the circuit breakers say, and that it
    /// leads to the server that took.
    fn refund(self: Pin<&mut Self>, taken: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        self.client.refund_batch(self.requests.unsent(), taken, now)
    }
}

/// A caller that no longer waits leaves buckets behind that were taken from although another
/// denies, or that are new and have no expiry yet. So the replies are looked at all the same.
impl Drop for BatchCall {
    fn drop(&mut self) {
        let is_under_way = self.resolving.is_some() || self.requests.are_pending();
        if self.is_abandoned || !is_under_way {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let abandoned = Self {
                client: Arc::clone(&self.client),
                plan: std::mem::take(&mut self.plan),
                later_takes: self.later_takes.take(),
                requests: std::mem::take(&mut self.requests),
                resolving: self.resolving.take(),
                is_abandoned: true,
            };
            runtime.spawn(async move { drop(abandoned.await) });
        }
    }
}

/// The outcome for a batch of limits that are all switched off.
pub(super) fn untouched_outcome(batch: &Batch) -> Outcome {
    let decision = |transaction: &Transaction| Some(transaction.untouched(Nanos::ZERO));
    Outcome {
        decisions: batch.iter().map(decision).collect(),
        source: DecisionSource::Store,
    }
}
