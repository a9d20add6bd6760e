//! A batch's way to Redis and back: commands, replies, decisions, and what is to be refunded and
//! repaired afterwards.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use redis::Value;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::client::{Client, Key};
use super::command::{Command, Reply, WindowCommand};
use super::connection::RequestResult;
use super::gcra::{self, GcraCommand};
use super::manager::Session;
use super::resp::{Replies, Request};
use super::window::WindowKind;
use super::{fixed_window, sliding_log, sliding_window};
use crate::limit::{Batch, SubWindow, SubWindows, Transaction};
use crate::store::{Call, DecisionSource, Outcome, StoreError};
use crate::time::{Nanos, Timestamp};

/// A batch that Redis has been asked about. As a future it is the decision: it takes from all of
/// the batch's buckets or from none.
pub(super) struct BatchCall {
    client: Arc<Client>,
    session: Arc<Session>,
    batch: Batch,
    commands: SmallVec<[Command; 3]>,
    now: Timestamp,
    /// The answer, until it has come.
    answer: Option<oneshot::Receiver<RequestResult>>,
}

impl BatchCall {
    /// Asks Redis about a batch.
    pub(super) fn new(
        client: Arc<Client>,
        session: Arc<Session>,
        batch: Batch,
        now: Timestamp,
    ) -> Self {
        let mut request = Request::roomy();
        let mut commands = SmallVec::new();
        for transaction in &batch {
            let command = Command::of(transaction, now, || {
                let key = session.expiries.hash(&transaction.key);
                let tolerance = transaction.quota.tolerance();
                (key, session.expiries.expiry_of(key, tolerance, now))
            });
            let key = client.transaction_key(transaction);
            command.add(&mut request, &key, transaction, now);
            commands.push(command);
        }
        Self {
            answer: Some(session.connection.send(request)),
            client,
            session,
            batch,
            commands,
            now,
        }
    }

    fn decide(&self, replies: &Replies) -> Result<Outcome, StoreError> {
        let replies = self.parse(replies)?;
        let denied = self
            .each(&replies)
            .any(|(transaction, command, reply)| reply.denies(command, transaction));
        let decision = |(transaction, command, reply): (&Transaction, Command, &Reply)| {
            reply.decision(command, transaction, denied)
        };
        let outcome = Outcome {
            decisions: self.each(&replies).map(decision).collect(),
            source: DecisionSource::Store,
        };
        self.settle(&replies, denied);
        let mut refusals = replies.into_iter().filter_map(Reply::refusal);
        match refusals.next() {
            // What one limit denies need not be decided by another.
            Some(error) if !denied => Err(StoreError::Undecided {
                outcome: Box::new(outcome),
                source: Box::new(error),
            }),
            _ => Ok(outcome),
        }
    }

    /// Matches replies with commands. A limit that needs a command that the server refuses does not
    /// affect the others.
    fn parse(&self, replies: &Replies) -> Result<SmallVec<[Reply; 3]>, StoreError> {
        let mut cursor = replies.iter();
        let parsed: Option<SmallVec<_>> = self
            .asked()
            .map(|(transaction, command)| command.parse(&mut cursor, transaction, self.now))
            .collect();
        if let Some(parsed) = parsed {
            return Ok(parsed);
        }
        let mut cursor = replies.iter();
        let parsed: Option<Result<SmallVec<[Reply; 3]>, _>> = self
            .asked()
            .map(|(transaction, command)| {
                command.parse_or_refusal(&mut cursor, transaction, self.now)
            })
            .collect();
        match parsed {
            Some(Ok(parsed)) if !parsed.iter().any(Reply::is_refused_for_all) => Ok(parsed),
            _ => Err(self.client.unfit(&self.session, replies)),
        }
    }

    /// Does in the background what is left to do: gives back what must not stay, repairs what
    /// another quota has left behind, and sets the expiry of buckets that last less long than was
    /// expected, or are new.
    fn settle(&self, replies: &[Reply], denied: bool) {
        let mut refund = Refund::default();
        let (mut repairs, mut renewals) = (Request::default(), Request::default());
        for (transaction, command, reply) in self.each(replies) {
            let key = || self.client.transaction_key(transaction);
            if reply.is_to_be_refunded(command, transaction, denied) {
                refund.add(command, key(), transaction, self.now);
            }
            reply.add_repair(&mut repairs, key, transaction, self.now);
            if let (Command::Gcra(GcraCommand::Take(_, expiry), hash), Reply::Gcra(found)) =
                (command, reply)
            {
                let (expiries, tolerance) = (&self.session.expiries, transaction.quota.tolerance());
                if !expiries.learn(hash, tolerance, (expiry, found.note), self.now) {
                    gcra::renew(&mut renewals, &key(), tolerance, self.now);
                }
            }
        }
        self.client.refund_in_background(&self.session, refund);
        self.client.repair(&self.session, repairs);
        self.client
            .in_background(Call::Expire, &self.session, renewals);
    }

    fn asked(&self) -> impl Iterator<Item = (&Transaction, Command)> {
        self.batch.iter().zip(self.commands.iter().copied())
    }

    fn each<'a>(
        &'a self,
        replies: &'a [Reply],
    ) -> impl Iterator<Item = (&'a Transaction, Command, &'a Reply)> {
        let both = self.asked().zip(replies);
        both.map(|((transaction, command), reply)| (transaction, command, reply))
    }
}

impl Future for BatchCall {
    type Output = Result<Outcome, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.answer else {
            return Poll::Pending;
        };
        let answer = ready!(Pin::new(answer).poll(cx));
        self.answer = None;
        let replies = self.client.answered(&self.session, answer);
        Poll::Ready(replies.and_then(|replies| self.decide(&replies)))
    }
}

/// A caller that no longer waits leaves buckets behind that were taken from although another
/// denies, or that are new and have no expiry yet. So the answer is looked at all the same.
impl Drop for BatchCall {
    fn drop(&mut self) {
        let (Some(answer), Ok(runtime)) = (self.answer.take(), Handle::try_current()) else {
            return;
        };
        let left = Self {
            client: Arc::clone(&self.client),
            session: Arc::clone(&self.session),
            batch: std::mem::take(&mut self.batch),
            commands: std::mem::take(&mut self.commands),
            now: self.now,
            answer: None,
        };
        runtime.spawn(async move {
            if let Ok(replies) = left.client.answered(&left.session, answer.await) {
                let _ = left.decide(&replies);
            }
        });
    }
}

/// The outcome for a batch of limits that are all switched off.
pub(super) fn unasked(batch: &Batch) -> Outcome {
    let decision = |transaction: &Transaction| Some(transaction.untouched(Nanos::ZERO));
    Outcome {
        decisions: batch.iter().map(decision).collect(),
        source: DecisionSource::Store,
    }
}

/// What is to be given back: commands, and units of sub-windows, which need to be looked after.
#[derive(Default)]
pub(super) struct Refund {
    request: Request,
    taken: Vec<SubWindowRefund>,
}

struct SubWindowRefund {
    key: Key,
    sub_window: SubWindow,
    transaction: Transaction,
}

impl Client {
    /// Gives back what a batch took, as far as it is still owed. What of a sliding window is owed
    /// has to be read first.
    pub(super) async fn refund_batch(
        self: Arc<Self>,
        session: Arc<Session>,
        batch: Batch,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut refund = Refund::default();
        for transaction in batch.iter().filter(|transaction| transaction.mode.spends()) {
            let key = self.transaction_key(transaction);
            if !transaction.is_windowed() {
                if let Some(increment) = transaction.quota.increment(transaction.cost) {
                    refund.add_gcra(&key, increment, transaction, now);
                }
            } else if transaction.fits_beside(0) {
                match WindowKind::of(&transaction.quota) {
                    WindowKind::Fixed => refund.add_fixed(&key, transaction, now),
                    WindowKind::Log => {
                        sliding_log::refund(&mut refund.request, &key, transaction);
                    }
                    WindowKind::Sliding => {
                        let all = self.sub_windows(&session, &key).await?;
                        for sub_window in all.given_back(transaction.cost.get()) {
                            refund.add_sliding(key.clone(), sub_window, transaction);
                        }
                    }
                }
            }
        }
        self.refund(&session, refund).await
    }

    async fn sub_windows(
        &self,
        session: &Arc<Session>,
        key: &[u8],
    ) -> Result<SubWindows, StoreError> {
        let mut request = Request::default();
        sliding_window::read(&mut request, key);
        let replies = self.ask(session, request).await?;
        let reply = replies.iter().value();
        let all = reply.as_ref().and_then(sliding_window::sub_windows);
        let all = all.ok_or_else(|| self.unfit(session, &replies))?;
        Ok(all.into_iter().collect())
    }

    /// Gives back what no request waits for, if it is anything.
    pub(super) fn refund_in_background(self: &Arc<Self>, session: &Arc<Session>, refund: Refund) {
        if refund.is_empty() {
            return;
        }
        let (client, session) = (Arc::clone(self), Arc::clone(session));
        self.off_path(Call::Refund, async move {
            client.refund(&session, refund).await
        });
    }

    /// A sub-window that a reset has emptied meanwhile would have less than nothing: that is made
    /// up for at once.
    async fn refund(&self, session: &Arc<Session>, refund: Refund) -> Result<(), StoreError> {
        let Refund { mut request, taken } = refund;
        let first = request.len();
        for taken in &taken {
            let start = taken.sub_window.start;
            sliding_window::increase(&mut request, &taken.key, start, -taken.units());
            sliding_window::expire(&mut request, &taken.key, &taken.transaction.quota);
        }
        if request.is_empty() {
            return Ok(());
        }
        let replies = self.send(session, request).await?;
        let mut amends = Request::default();
        let results = replies.iter().skip(first).step_by(2);
        for (taken, result) in taken.iter().zip(results) {
            if let Value::Int(below @ ..0) = result {
                let missing = below.saturating_neg().min(taken.units());
                let start = taken.sub_window.start;
                sliding_window::increase(&mut amends, &taken.key, start, missing);
            }
        }
        if amends.is_empty() {
            return Ok(());
        }
        self.send(session, amends).await.map(drop)
    }
}

impl SubWindowRefund {
    fn units(&self) -> i64 {
        i64::try_from(self.sub_window.used).unwrap_or(i64::MAX)
    }
}

impl Refund {
    fn is_empty(&self) -> bool {
        self.request.is_empty() && self.taken.is_empty()
    }

    /// Adds just what a command took.
    pub(super) fn add(
        &mut self,
        command: Command,
        key: Key,
        transaction: &Transaction,
        now: Timestamp,
    ) {
        match command {
            Command::Gcra(GcraCommand::Take(increment, _), _) => {
                self.add_gcra(&key, increment, transaction, now);
            }
            Command::Window(WindowCommand::TakeFixed) => self.add_fixed(&key, transaction, now),
            Command::Window(WindowCommand::TakeLog(members)) => {
                members.remove(&mut self.request, &key);
            }
            Command::Window(WindowCommand::TakeSliding) => {
                let sub_window = SubWindow {
                    start: SubWindow::start_at(&transaction.quota, now),
                    used: transaction.cost.get(),
                };
                self.add_sliding(key, sub_window, transaction);
            }
            Command::Gcra(..) | Command::Window(_) => {}
        }
    }

    fn add_gcra(&mut self, key: &[u8], by: Nanos, transaction: &Transaction, now: Timestamp) {
        let costs = (by, transaction.quota.tolerance());
        gcra::refund(&mut self.request, key, costs, now);
    }

    fn add_fixed(&mut self, key: &[u8], transaction: &Transaction, now: Timestamp) {
        fixed_window::refund(&mut self.request, key, transaction, now);
        fixed_window::expire(&mut self.request, key, &transaction.quota, now);
    }

    fn add_sliding(&mut self, key: Key, sub_window: SubWindow, transaction: &Transaction) {
        self.taken.push(SubWindowRefund {
            key,
            sub_window,
            transaction: transaction.clone(),
        });
    }
}
